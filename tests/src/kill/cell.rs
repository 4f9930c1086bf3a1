//! The cells of the matrix: which there are, and what each may end in.

use super::proxy::{Aim, Harm, Lane, Toward};
use faults::Point;
use std::fmt;

/// What the job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// It starts on a server.
    Start,
    /// It works on a server.
    Work,
    /// It moves from one server to another.
    Across,
    /// It moves from a server into its own process.
    Home,
    /// It moves from its own process to a server.
    Away,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 5] = [Way::Start, Way::Work, Way::Across, Way::Home, Way::Away];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Start => "start",
            Way::Work => "work",
            Way::Across => "across",
            Way::Home => "home",
            Way::Away => "away",
        }
    }

    /// Whether the job moves.
    pub fn moves(self) -> bool {
        matches!(self, Way::Across | Way::Home | Way::Away)
    }

    /// Whether it begins on a server.
    pub fn has_source(self) -> bool {
        self != Way::Away
    }

    /// Whether it moves to a server.
    pub fn has_target(self) -> bool {
        matches!(self, Way::Across | Way::Away)
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

    fn exists(&self) -> bool {
        let arriving = ARRIVING.contains(&self.point);
        let working = (Point::Launch..=Point::Load).contains(&self.point);
        let here = match self.way {
            Way::Start => arriving,
            Way::Work => working,
            Way::Across | Way::Away => !working,
            Way::Home => !working && !arriving,
        };
        here && self.victim_exists() && self.action_exists()
    }

    /// Whether the victim is there at that point.
    fn victim_exists(&self) -> bool {
        // A worker that is chosen but has no client yet is known only when it asks itself.
        let known = !matches!(self.point, Point::Connect | Point::Welcome | Point::Handover | Point::Plan);
        match self.victim {
            Victim::Client => true,
            Victim::Server => self.way.has_source(),
            Victim::Worker => self.way.has_source() && (self.way != Way::Start || known),
            Victim::TargetServer => self.way.has_target(),
            Victim::TargetWorker => self.way.has_target() && known,
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
        let aim = |door, lane, toward| Some((door, Aim { lane, toward, harm }));
        let copying = COPYING.contains(&self.point);
        let arriving = ARRIVING.contains(&self.point);
        let either = if seed.is_multiple_of(2) { Toward::Client } else { Toward::Server };
        match (self.victim, self.way) {
            // A daemon speaks only in greetings: of the job's connection and of those for a move's bytes.
            (Victim::Server, Way::Start) if self.point <= Point::Welcome => aim(Door::Source, Lane::Calls, Toward::Client),
            (Victim::Server, Way::Home) if self.point == Point::Wires => aim(Door::Source, Lane::Bulk, Toward::Client),
            (Victim::TargetServer, _) if self.point <= Point::Welcome => aim(Door::Target, Lane::Calls, Toward::Client),
            (Victim::TargetServer, _) if self.point == Point::Wires => aim(Door::Target, Lane::Bulk, Toward::Client),
            (Victim::Server | Victim::TargetServer, _) => None,
            // The last words of a place that is being released are of no use to anybody.
            (Victim::Worker, Way::Across) if copying => aim(Door::Target, Lane::Bulk, Toward::Server),
            (Victim::Worker, Way::Home) if copying => aim(Door::Source, Lane::Bulk, Toward::Client),
            (Victim::Worker, Way::Start) if self.point < Point::Serve => None,
            (Victim::Worker, _) => aim(Door::Source, Lane::Calls, Toward::Client),
            (Victim::TargetWorker, _) if copying => aim(Door::Target, Lane::Bulk, Toward::Client),
            (Victim::TargetWorker, _) if self.point < Point::Serve => None,
            (Victim::TargetWorker, _) => aim(Door::Target, Lane::Calls, either),
            (Victim::Client, Way::Home) if copying => aim(Door::Source, Lane::Bulk, Toward::Server),
            (Victim::Client, Way::Away) if copying => aim(Door::Target, Lane::Bulk, Toward::Server),
            (Victim::Client, Way::Away) if self.point == Point::Plan => None,
            (Victim::Client, Way::Away) => aim(Door::Target, Lane::Calls, Toward::Server),
            // The greeting is over; the job says nothing more before it has its answer.
            (Victim::Client, Way::Start) if !matches!(self.point, Point::Connect | Point::Welcome) => None,
            (Victim::Client, Way::Across) if arriving => None,
            (Victim::Client, _) => aim(Door::Source, Lane::Calls, Toward::Server),
        }
    }

    /// Whether the job may end with a CUDA error. Otherwise its output must be native's: what was harmed was not where it ran, or
    /// not for long.
    pub fn may_fail(&self) -> bool {
        if self.action == Action::Delay {
            return false;
        }
        if self.way == Way::Start {
            return true;
        }
        let committed = self.point >= Point::Committed;
        let daemon = matches!(self.victim, Victim::Server | Victim::TargetServer);
        if daemon && self.action == Action::Stop {
            // It hands connections over and is not needed while the job works.
            return false;
        }
        if self.aim(0).is_some_and(|(_, aim)| aim.lane == Lane::Bulk) {
            // The move fails, and that is all.
            return false;
        }
        match self.victim {
            Victim::Server | Victim::Worker => !committed,
            // A target that is lost at the very instant of the commit is a lost worker.
            Victim::TargetServer | Victim::TargetWorker => self.point >= Point::Commit,
            Victim::Client if self.action.harm().is_none() => false,
            Victim::Client if self.way == Way::Away => self.point >= Point::Commit,
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
