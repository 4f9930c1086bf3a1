//! The injector: processes ask it at the armed point, and it then applies the action.

use super::cell::{Action, Cell, Door, Spot, Victim};
use super::left;
use crate::proxy::Proxy;
use crate::scene::wait_for;
use crate::server::{self, Server, children, helpers, signal};
use crate::transport::Transport;
use cuda_api::lock::lock;
use faults::Point;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Why the action could not be applied.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StrikeError {
    /// The point was passed before the servers ran.
    #[error("the servers are not known")]
    NoServers,
    /// The way has no server there.
    #[error("there is no {0:?}")]
    NoServer(Door),
    /// No message can be harmed.
    #[error("there is no proxy")]
    NoProxy,
    /// The point was passed before the job ran.
    #[error("there is no job")]
    NoJob,
    /// The victim is a helper that does not run.
    #[error("the job has no helper")]
    NoHelper,
    /// The victim is a worker that does not run.
    #[error("{0:?} has no worker")]
    NoWorker(Door),
    /// A killed process still runs.
    #[error("{0} does not end")]
    Lives(u32),
    /// The action is for messages and the point is none.
    #[error("it has no message to harm")]
    NoMessage,
}

/// How long a stopped process stays so.
const STOP: Duration = Duration::from_secs(15);
/// How long it may take until a process is known or dead.
const SOON: Duration = Duration::from_secs(5);

/// A server as the injector knows it.
#[derive(Debug)]
pub(super) struct Host {
    pid: u32,
    log: PathBuf,
    pub(super) address: SocketAddr,
    unix: String,
    by: Transport,
    /// Before it, where messages are to be harmed.
    door: Option<Proxy>,
}

impl Host {
    pub(super) fn new(server: &Server, by: Transport, harmed: bool) -> io::Result<Host> {
        let door = harmed.then(|| Proxy::start(server.address)).transpose()?;
        Ok(Host { pid: server.pid(), log: server.log.clone(), address: server.address, unix: server.unix_place(0), by, door })
    }

    /// Its GPU or its memory as a place.
    pub(super) fn place(&self, spot: Spot) -> String {
        if spot == Spot::Unix {
            return self.unix.clone();
        }
        let address = self.door.as_ref().map_or(self.address, |d| d.address);
        let what = if spot == Spot::ServerMemory { "memory" } else { "0" };
        if self.by == Transport::Nearest { format!("{address}/{what}") } else { format!("{}://{address}/{what}", self.by) }
    }

    /// Workers that it has given to the job, whether they live or not.
    pub(super) fn workers_of(&self, job: u32) -> Vec<u32> {
        server::workers_of(&self.log, job)
    }
}

#[derive(Debug)]
struct Shared {
    cell: Cell,
    seed: u64,
    /// Source and target, once they run.
    hosts: OnceLock<[Option<Host>; 2]>,
    job: AtomicU32,
    asked: AtomicU32,
    armed: AtomicBool,
    skip: AtomicU32,
    struck: Mutex<Option<Result<(), StrikeError>>>,
    stopped: AtomicBool,
    over: AtomicBool,
}

/// The injector of one cell.
#[derive(Debug)]
pub(super) struct Injector {
    shared: Arc<Shared>,
    socket: PathBuf,
}

impl Injector {
    /// Listens on a socket in this directory.
    pub(super) fn start(cell: Cell, seed: u64, directory: &Path) -> io::Result<Injector> {
        let socket = directory.join("ask");
        let listener = UnixListener::bind(&socket)?;
        let shared = Arc::new(Shared {
            cell,
            seed,
            hosts: OnceLock::new(),
            job: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            skip: AtomicU32::new(0),
            struck: Mutex::new(None),
            stopped: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if theirs.over.load(Ordering::SeqCst) {
                    return;
                }
                let shared = theirs.clone();
                // A process that is stopped while it asks holds up only itself.
                std::thread::spawn(move || shared.answer(stream));
            }
        });
        Ok(Injector { shared, socket })
    }

    /// What `MRCUDA_FAULT` must be.
    pub(super) fn variable(&self) -> String {
        format!("{}@{}", self.shared.cell.point.name(), self.socket.display())
    }

    /// The servers are there.
    pub(super) fn hosts(&self, hosts: [Option<Host>; 2]) -> &[Option<Host>; 2] {
        self.shared.hosts.get_or_init(|| hosts)
    }

    /// The job is there.
    pub(super) fn job(&self, pid: u32) {
        self.shared.job.store(pid, Ordering::SeqCst);
    }

    /// How many have asked so far.
    pub(super) fn asked(&self) -> u32 {
        self.shared.asked.load(Ordering::SeqCst)
    }

    /// From now on the point counts, after so many have passed it.
    pub(super) fn arm(&self, skip: u32) {
        self.shared.skip.store(skip, Ordering::SeqCst);
        self.shared.armed.store(true, Ordering::SeqCst);
    }

    /// Whether the blow has fallen; the error is why it could not.
    pub(super) fn struck(&self) -> Option<Result<(), StrikeError>> {
        let struck = lock(&self.shared.struck).clone();
        let harmed = |host: &Option<Host>| host.as_ref().and_then(|h| h.door.as_ref()).is_none_or(Proxy::has_struck);
        // A message that is to be harmed must have come.
        struck.filter(|s| s.is_err() || self.shared.hosts.get().is_none_or(|h| h.iter().all(harmed)))
    }

    /// Whether a process is stopped now.
    pub(super) fn has_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::SeqCst)
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes the listener; if that fails it has ended already.
        let _ = UnixStream::connect(&self.socket);
    }
}

impl Shared {
    fn answer(self: &Arc<Self>, stream: UnixStream) {
        let mut line = String::new();
        let asker = BufReader::new(&stream).read_line(&mut line).ok().and_then(|_| line.trim().rsplit(' ').next()?.parse().ok());
        if let Some(asker) = asker {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let now = self.armed.load(Ordering::SeqCst)
                && self.counts(asker)
                && self.skip.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_err()
                && self.armed.swap(false, Ordering::SeqCst);
            if now {
                let r = self.strike(asker);
                *lock(&self.struck) = Some(r);
            }
        }
        // It may be the victim.
        let _ = (&stream).write_all(&[1]);
    }

    /// Whether it is the process that is meant: a server opens its GPU again for the next client, too.
    fn counts(&self, asker: u32) -> bool {
        if !matches!(self.cell.point, Point::Open | Point::Serve) {
            return true;
        }
        let (door, spot) = match self.cell.way.to() {
            Some(to) => (Door::Target, to),
            None => (Door::Source, self.cell.way.from()),
        };
        match (spot, self.host(door)) {
            // While it opens its GPU the job may not be known yet.
            (spot, _) if spot.has_helper() => {
                self.cell.way.to().is_none() || helpers(self.job.load(Ordering::SeqCst)).contains(&asker)
            }
            (_, Ok(host)) => children(host.pid).contains(&asker),
            (_, Err(_)) => false,
        }
    }

    fn host(&self, door: Door) -> Result<&Host, StrikeError> {
        let hosts = self.hosts.get().ok_or(StrikeError::NoServers)?;
        hosts[usize::from(door == Door::Target)].as_ref().ok_or(StrikeError::NoServer(door))
    }

    fn strike(self: &Arc<Self>, asker: u32) -> Result<(), StrikeError> {
        if let Some((door, aim)) = self.cell.aim(self.seed) {
            let door = self.host(door)?.door.as_ref().ok_or(StrikeError::NoProxy)?;
            door.aim(aim);
            return Ok(());
        }
        let job = wait_for(SOON, || Some(self.job.load(Ordering::SeqCst)).filter(|p| *p != 0)).ok_or(StrikeError::NoJob)?;
        let worker = |door| -> Result<u32, StrikeError> {
            let arrives = if self.cell.way.to().is_some() { Door::Target } else { Door::Source };
            if matches!(self.cell.point, Point::Open | Point::Serve) && door == arrives {
                return Ok(asker);
            }
            let spot = if door == Door::Source { Some(self.cell.way.from()) } else { self.cell.way.to() };
            if spot.is_some_and(Spot::has_helper) {
                return helpers(job).pop().ok_or(StrikeError::NoHelper);
            }
            let host = self.host(door)?;
            // The daemon writes it when the job goes on already.
            wait_for(SOON, || host.workers_of(job).pop()).ok_or(StrikeError::NoWorker(door))
        };
        let victim = match self.cell.victim {
            Victim::Client => job,
            Victim::Server => self.host(Door::Source)?.pid,
            Victim::TargetServer => self.host(Door::Target)?.pid,
            Victim::Worker => worker(Door::Source)?,
            Victim::TargetWorker => worker(Door::Target)?,
        };
        let dies = |pid: u32| wait_for(SOON, || (!left::lives(pid)).then_some(())).ok_or(StrikeError::Lives(pid));
        // A worker ends with its daemon, and that is waited for: a target that dies just after the commit is another matter.
        let its_worker = |door| self.host(door).ok().and_then(|h| h.workers_of(job).pop());
        let worker = match self.cell.victim {
            Victim::Server => its_worker(Door::Source),
            Victim::TargetServer => its_worker(Door::Target),
            _ => None,
        };
        // One that waits for our answer notices nothing.
        let worker = worker.filter(|w| *w != asker);
        match self.cell.action {
            Action::Kill => {
                signal(victim, libc::SIGKILL);
                [Some(victim), worker].into_iter().flatten().try_for_each(dies)?;
            }
            Action::Term => {
                signal(victim, libc::SIGTERM);
                worker.map_or(Ok(()), dies)?;
            }
            Action::Stop => {
                self.stopped.store(true, Ordering::SeqCst);
                signal(victim, libc::SIGSTOP);
                let shared = self.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(STOP);
                    // Nobody else waits for it, or it is our child: its number is not used again.
                    if left::lives(victim) {
                        signal(victim, libc::SIGCONT);
                    }
                    shared.stopped.store(false, Ordering::SeqCst);
                });
            }
            Action::Cut | Action::Delay | Action::Truncate => return Err(StrikeError::NoMessage),
        }
        Ok(())
    }
}
