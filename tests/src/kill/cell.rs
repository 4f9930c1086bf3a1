//! The cells of the matrix, and the allowed outcome of each.

use crate::proxy::{Aim, Harm, Lane, Toward};
use crate::transport::Transport;
use faults::Point;
use std::fmt;

/// Where a job can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spot {
    /// On a server, over TCP.
    Tcp,
    /// On a server of its own machine, over shared memory.
    Unix,
    /// In a helper process.
    Helper,
    /// In its own process.
    Local,
    /// Parked in memory.
    Memory,
    /// Parked in a file.
    File,
    /// Parked in the memory of a server, over TCP.
    ServerMemory,
}

impl Spot {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Spot::Tcp => "tcp",
            Spot::Unix => "unix",
            Spot::Helper => "helper",
            Spot::Local => "local",
            Spot::Memory => "memory",
            Spot::File => "file",
            Spot::ServerMemory => "server-memory",
        }
    }

    /// Whether nothing is executed there.
    pub fn is_store(self) -> bool {
        matches!(self, Spot::Memory | Spot::File | Spot::ServerMemory)
    }

    /// Whether a helper of the job is there.
    pub fn has_helper(self) -> bool {
        matches!(self, Spot::Helper | Spot::Memory | Spot::File)
    }

    /// Whether a daemon is there.
    pub fn has_server(self) -> bool {
        self.is_over_tcp() || self == Spot::Unix
    }

    /// Whether that is reached over TCP.
    fn is_over_tcp(self) -> bool {
        matches!(self, Spot::Tcp | Spot::ServerMemory)
    }

    /// Whether a process of its own carries the calls out.
    pub fn has_worker(self) -> bool {
        self != Spot::Local
    }
}

/// What the job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// It starts there.
    Start(Spot),
    /// It works there.
    Work(Spot),
    /// It moves from here to there.
    Move(Spot, Spot),
    /// It is here, and a copy is kept current there.
    Copy(Spot, Spot),
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 20] = [
        Way::Start(Spot::Tcp),
        Way::Start(Spot::Unix),
        Way::Start(Spot::Helper),
        Way::Work(Spot::Tcp),
        Way::Work(Spot::Unix),
        Way::Work(Spot::Helper),
        Way::Move(Spot::Tcp, Spot::Tcp),
        Way::Move(Spot::Tcp, Spot::Local),
        Way::Move(Spot::Local, Spot::Tcp),
        Way::Move(Spot::Unix, Spot::Unix),
        Way::Move(Spot::Unix, Spot::Helper),
        Way::Move(Spot::Helper, Spot::Unix),
        Way::Move(Spot::Helper, Spot::Local),
        Way::Move(Spot::Local, Spot::Helper),
        Way::Move(Spot::Tcp, Spot::Memory),
        Way::Move(Spot::Local, Spot::ServerMemory),
        Way::Move(Spot::Local, Spot::File),
        Way::Move(Spot::Memory, Spot::Tcp),
        Way::Move(Spot::File, Spot::Local),
        Way::Copy(Spot::Tcp, Spot::File),
    ];

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Way::Start(at) => format!("start-{}", at.name()),
            Way::Work(at) => format!("work-{}", at.name()),
            Way::Move(from, to) => format!("{}-to-{}", from.name(), to.name()),
            Way::Copy(from, to) => format!("{}-copied-to-{}", from.name(), to.name()),
        }
    }

    /// Where it begins.
    pub fn from(self) -> Spot {
        match self {
            Way::Start(at) | Way::Work(at) | Way::Move(at, _) | Way::Copy(at, _) => at,
        }
    }

    /// Where it moves to, or its copy is.
    pub fn to(self) -> Option<Spot> {
        match self {
            Way::Move(_, to) | Way::Copy(_, to) => Some(to),
            _ => None,
        }
    }

    /// The place at whose arrival points are passed.
    fn arrives(self) -> Option<Spot> {
        match self {
            Way::Start(at) => Some(at),
            // The copy is there already.
            Way::Work(_) | Way::Copy(..) => None,
            Way::Move(_, to) => Some(to),
        }
    }
}

/// To whom it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Victim {
    /// The daemon of the server on which the job is.
    Server,
    /// The job's worker there.
    Worker,
    /// The job.
    Client,
    /// The daemon of the server to which it moves.
    TargetServer,
    /// The worker there.
    TargetWorker,
}

impl Victim {
    /// All of them.
    pub const ALL: [Victim; 5] = [Victim::Server, Victim::Worker, Victim::Client, Victim::TargetServer, Victim::TargetWorker];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Victim::Server => "server",
            Victim::Worker => "worker",
            Victim::Client => "client",
            Victim::TargetServer => "target-server",
            Victim::TargetWorker => "target-worker",
        }
    }
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT 15 s later.
    Stop,
    /// SIGTERM: a server is asked to end.
    Term,
    /// Its connection is cut.
    Cut,
    /// Its next message is held back for 3 s.
    Delay,
    /// Half of its next message arrives, then the connection ends.
    Truncate,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 6] = [Action::Kill, Action::Stop, Action::Term, Action::Cut, Action::Delay, Action::Truncate];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Action::Kill => "kill",
            Action::Stop => "stop",
            Action::Term => "term",
            Action::Cut => "cut",
            Action::Delay => "delay",
            Action::Truncate => "truncate",
        }
    }

    fn harm(self) -> Option<Harm> {
        match self {
            Action::Cut => Some(Harm::Cut),
            Action::Delay => Some(Harm::Delay),
            Action::Truncate => Some(Harm::Truncate),
            Action::Kill | Action::Stop | Action::Term => None,
        }
    }
}

/// One cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// What the job does.
    pub way: Way,
    /// When it happens.
    pub point: Point,
    /// To whom.
    pub victim: Victim,
    /// What.
    pub action: Action,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}", self.way.name(), self.point.name(), self.victim.name(), self.action.name())
    }
}

/// At which server's door a message is harmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// That of the job's server.
    Source,
    /// That of the server it moves to.
    Target,
}

/// Points on the way to a place: passed at the start and in the preparation of a move.
const ARRIVING: [Point; 5] = [Point::Connect, Point::Welcome, Point::Open, Point::Handover, Point::Serve];
/// Points while bytes are copied from place to place.
const COPYING: [Point; 4] = [Point::PrecopySend, Point::PrecopyReceive, Point::DeltaSend, Point::DeltaReceive];

impl Cell {
    /// Every cell that makes sense, in order.
    pub fn all() -> Vec<Cell> {
        let mut all = Vec::new();
        for way in Way::ALL {
            for point in Point::ALL {
                for victim in Victim::ALL {
                    for action in Action::ALL {
                        let cell = Cell { way, point: *point, victim, action };
                        if cell.exists() {
                            all.push(cell);
                        }
                    }
                }
            }
        }
        all
    }

    /// Whether a server takes part that is reached in this way, and what happens to it can be done there.
    pub fn is_over(&self, transport: Transport) -> bool {
        let is_meant = |spot: Spot| if transport == Transport::Shm { spot == Spot::Unix } else { spot.is_over_tcp() };
        let takes_part = is_meant(self.way.from()) || self.way.to().is_some_and(is_meant);
        takes_part && (transport.has_proxies() || self.action.harm().is_none())
    }

    /// Whether its point is passed only where bytes are copied, which adoption would save.
    pub(super) fn copies(&self) -> bool {
        COPYING.contains(&self.point)
    }

    fn exists(&self) -> bool {
        let arriving = ARRIVING.contains(&self.point);
        let working = (Point::Launch..=Point::Load).contains(&self.point);
        let here = match self.way {
            Way::Start(_) => arriving,
            Way::Work(_) => working,
            Way::Move(..) => !working,
            Way::Copy(..) => !working && !arriving && self.point < Point::Commit,
        };
        let there = match self.way.arrives() {
            _ if !arriving => true,
            Some(Spot::Tcp | Spot::Unix | Spot::ServerMemory) => true,
            // The job opens it itself.
            Some(Spot::Helper | Spot::Memory | Spot::File) => matches!(self.point, Point::Open | Point::Serve),
            Some(Spot::Local) | None => false,
        };
        let passed = match self.point {
            // A store executes nothing, and a parked job does not run.
            Point::Replay => !self.way.to().is_some_and(Spot::is_store),
            Point::Precopy | Point::PrecopySend | Point::PrecopyReceive | Point::Quiesce => !self.way.from().is_store(),
            // Between places of this machine that execute.
            Point::Adopt | Point::Adopted => {
                let here = |spot| matches!(spot, Spot::Unix | Spot::Helper | Spot::Local);
                here(self.way.from()) && self.way.to().is_some_and(here)
            }
            // A worker that its job leaves there.
            Point::Leaving => {
                let here = |spot| matches!(spot, Spot::Unix | Spot::Helper | Spot::Local);
                self.way.from().has_worker() && here(self.way.from()) && self.way.to().is_some_and(here)
            }
            _ => true,
        };
        here && there && passed && self.victim_exists() && self.action_exists()
    }

    /// Whether the victim is there at that point.
    fn victim_exists(&self) -> bool {
        // A worker that is chosen but has no client yet is known only when it asks itself.
        let known = !matches!(self.point, Point::Connect | Point::Welcome | Point::Handover | Point::Plan);
        let (from, to) = (self.way.from(), self.way.to());
        match self.victim {
            Victim::Client => true,
            Victim::Server => from.has_server(),
            Victim::Worker => from.has_worker() && (known || !matches!(self.way, Way::Start(_))),
            Victim::TargetServer => to.is_some_and(Spot::has_server),
            Victim::TargetWorker => to.is_some_and(Spot::has_worker) && known,
        }
    }

    fn action_exists(&self) -> bool {
        let daemon = matches!(self.victim, Victim::Server | Victim::TargetServer);
        match self.action {
            Action::Kill | Action::Stop => true,
            Action::Term => daemon,
            Action::Cut | Action::Delay | Action::Truncate => self.aim(0).is_some(),
        }
    }

    /// Which message is harmed, and at which door; none if the victim sends none from here on. An even and an odd seed choose
    /// the direction where both say something of the victim.
    pub fn aim(&self, seed: u64) -> Option<(Door, Aim)> {
        let harm = self.action.harm()?;
        // Only messages over TCP can be harmed from outside.
        let start = matches!(self.way, Way::Start(_));
        let (tcp_here, tcp_there) = (self.way.from().is_over_tcp(), self.way.to().is_some_and(Spot::is_over_tcp));
        if !tcp_here && !tcp_there {
            return None;
        }
        let aim = |door, lane, toward| Some((door, Aim { lane, toward, harm }));
        let copying = self.copies();
        let arriving = ARRIVING.contains(&self.point);
        let either = if seed.is_multiple_of(2) { Toward::Client } else { Toward::Server };
        // Large copies travel beside the calls.
        let copies =
            if matches!(self.point, Point::CopyIn | Point::CopyOut) && seed.is_multiple_of(2) { Lane::Bulk } else { Lane::Calls };
        match self.victim {
            // A daemon speaks only in greetings: of the job's connection and of those for a move's bytes.
            Victim::Server if start && self.point <= Point::Welcome => aim(Door::Source, Lane::Calls, Toward::Client),
            Victim::Server if tcp_here && !tcp_there && self.point == Point::Wires => {
                aim(Door::Source, Lane::Bulk, Toward::Client)
            }
            Victim::TargetServer if self.point <= Point::Welcome => aim(Door::Target, Lane::Calls, Toward::Client),
            Victim::TargetServer if self.point == Point::Wires => aim(Door::Target, Lane::Bulk, Toward::Client),
            Victim::Server | Victim::TargetServer => None,
            Victim::Worker if copying && tcp_there => aim(Door::Target, Lane::Bulk, Toward::Server),
            Victim::Worker if copying => aim(Door::Source, Lane::Bulk, Toward::Client),
            Victim::Worker if !tcp_here || start && self.point < Point::Serve => None,
            Victim::Worker => aim(Door::Source, copies, Toward::Client),
            Victim::TargetWorker if copying && !tcp_there => aim(Door::Source, Lane::Bulk, Toward::Server),
            Victim::TargetWorker if !tcp_there => None,
            Victim::TargetWorker if copying => aim(Door::Target, Lane::Bulk, Toward::Client),
            Victim::TargetWorker if self.point < Point::Serve => None,
            Victim::TargetWorker => aim(Door::Target, Lane::Calls, either),
            Victim::Client if copying && !tcp_there => aim(Door::Source, Lane::Bulk, Toward::Server),
            Victim::Client if copying && !tcp_here => aim(Door::Target, Lane::Bulk, Toward::Server),
            Victim::Client if !tcp_here && self.point == Point::Plan => None,
            Victim::Client if !tcp_here => aim(Door::Target, Lane::Calls, Toward::Server),
            // The greeting is over; the job says nothing more before it has its answer.
            Victim::Client if start && !matches!(self.point, Point::Connect | Point::Welcome) => None,
            Victim::Client if arriving && !start => None,
            Victim::Client => aim(Door::Source, copies, Toward::Server),
        }
    }

    /// Whether the job may end with a CUDA error. Otherwise its output must be native's: what was harmed was not where it ran, or
    /// not for long.
    pub fn may_fail(&self) -> bool {
        if self.action == Action::Delay {
            return false;
        }
        if matches!(self.way, Way::Start(_)) {
            return true;
        }
        let committed = self.point >= Point::Committed;
        let daemon = matches!(self.victim, Victim::Server | Victim::TargetServer);
        if daemon && self.action == Action::Stop {
            // It hands connections over and is not needed while the job works.
            return false;
        }
        if self.way.to().is_some() && self.aim(0).is_some_and(|(_, aim)| aim.lane == Lane::Bulk) {
            // The move fails, and that is all.
            return false;
        }
        match self.victim {
            // The file is there still.
            Victim::Worker if self.way.from() == Spot::File => false,
            Victim::Server | Victim::Worker => !committed,
            // A target that is lost at the very instant of the commit is a lost worker.
            Victim::TargetServer | Victim::TargetWorker => self.point >= Point::Commit,
            Victim::Client if self.action.harm().is_none() => false,
            Victim::Client if self.way.from() != Spot::Tcp => self.point >= Point::Commit,
            Victim::Client => !committed,
        }
    }

    /// Whether the job itself is killed.
    pub fn ends_the_job(&self) -> bool {
        self.victim == Victim::Client && self.action == Action::Kill
    }

    /// Whether the point is passed more than once, so that the first time need not be the one.
    pub fn repeats(&self) -> bool {
        matches!(self.point, Point::Replay | Point::PrecopySend | Point::PrecopyReceive | Point::CopyIn | Point::CopyOut)
    }
}
