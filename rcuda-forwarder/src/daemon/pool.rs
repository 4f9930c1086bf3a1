//! Worker processes: starting them, keeping one ready for each GPU, noticing their end.

use super::{ServeError, env, lent};
use crate::channel::{Channel, Message, Start};
use crate::conn::Conn;
use crate::greet::JobHello;
use crate::link::lock;
use crate::{threads, worker};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a worker may take to open its GPU.
const OPENING: Duration = Duration::from_secs(100);
/// How long a worker may take to end once its channel is closed.
const ENDING: Duration = Duration::from_secs(2);
/// Longest line of a worker that is passed on in one piece.
const LINE: u64 = 16 << 10;

/// How a worker is started.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
}

impl Command {
    fn prepare(&self) -> std::process::Command {
        let mut c = std::process::Command::new(&self.program);
        c.args(&self.arguments);
        // SAFETY: between fork and exec only these system calls are made.
        unsafe {
            c.pre_exec(|| {
                // The daemon's threads block signals; a worker must die of them.
                let none = nix::sys::signal::SigSet::empty();
                none.thread_set_mask()?;
                Ok(())
            });
        }
        c
    }
}

/// Counts the GPUs of a driver in a process of its own, and chooses those to lend.
pub(super) fn count(command: &Command, driver: &Path, wanted: Option<u32>) -> Result<Vec<u32>, ServeError> {
    let failed = |why: String| ServeError::Driver { driver: driver.into(), why };
    let out =
        command.prepare().arg(worker::PROBE).arg(driver).stdin(Stdio::null()).output().map_err(|e| failed(e.to_string()))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let there = text.trim().lines().last().and_then(|n| n.parse::<u32>().ok()).filter(|_| out.status.success());
    let there = there.ok_or_else(|| failed(String::from_utf8_lossy(&out.stderr).trim().to_owned()))?;
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    lent(there, visible.as_deref(), wanted)
}

/// What a worker must be like for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Profile {
    /// Number among the GPUs that are lent.
    pub(super) gpu: u32,
    pub(super) virtual_device: u32,
    pub(super) env: Vec<(String, String)>,
}

#[derive(Debug)]
enum Phase {
    Opening,
    Ready,
    Refused(String),
    Ended,
}

/// A worker process.
#[derive(Debug)]
pub(crate) struct Worker {
    pid: u32,
    profile: Profile,
    channel: Channel,
    /// Process of its job, once it has one.
    job: OnceLock<u32>,
    phase: Mutex<Phase>,
    changed: Condvar,
}

impl Worker {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    fn set(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.changed.notify_all();
    }

    /// Waits until the worker has opened its GPU.
    pub(super) fn wait_ready(&self) -> Result<(), String> {
        let until = Instant::now() + OPENING;
        let mut phase = lock(&self.phase);
        loop {
            match &*phase {
                Phase::Ready => return Ok(()),
                Phase::Refused(why) => return Err(why.clone()),
                Phase::Ended => return Err("its worker ended while it opened the GPU".into()),
                Phase::Opening => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.end();
                return Err(format!("its worker could not open the GPU within {OPENING:?}"));
            }
            phase = self.changed.wait_timeout(phase, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives the worker its client.
    pub(super) fn serve(&self, hello: JobHello, conn: &Conn) -> io::Result<()> {
        let job = hello.pid;
        self.channel.send(&Message::Job(hello), Some(conn.as_fd()))?;
        self.job.get_or_init(|| job);
        Ok(())
    }

    pub(super) fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.channel.send(message, fd)
    }

    /// Ends the worker: it sees its channel closed.
    fn end(&self) {
        self.channel.close();
    }
}

#[derive(Debug, Default)]
struct Workers {
    /// All that live.
    all: Vec<Arc<Worker>>,
    /// Those without a client: one for each GPU.
    warm: Vec<Arc<Worker>>,
}

/// The workers of a daemon.
#[derive(Debug)]
pub(super) struct Pool {
    command: Command,
    driver: PathBuf,
    /// Number for the driver of each GPU that is lent.
    gpus: Vec<u32>,
    workers: Arc<Mutex<Workers>>,
    log: fn(&str),
}

impl Pool {
    pub(super) fn new(command: Command, driver: PathBuf, gpus: Vec<u32>, log: fn(&str)) -> Pool {
        Pool { command, driver, gpus, workers: Arc::default(), log }
    }

    /// Number of GPUs that are lent.
    pub(super) fn gpus(&self) -> u32 {
        self.gpus.len() as u32
    }

    /// Starts a worker. `heard` gets what it says later; it ends when the worker does.
    pub(super) fn start(
        &self,
        profile: Profile,
        heard: impl Fn(&Arc<Worker>, Message) + Send + 'static,
    ) -> Result<Arc<Worker>, String> {
        let failed = |e: io::Error| format!("a worker cannot be started: {e}");
        let gpu = *self.gpus.get(profile.gpu as usize).ok_or("there is no such GPU")?;
        let driver = self.driver.to_str().ok_or("the path of the driver is not UTF-8")?.to_owned();
        let (channel, theirs) = Channel::pair().map_err(failed)?;
        let (output, input) = io::pipe().map_err(failed)?;
        let mut command = self.command.prepare();
        command.stdin(theirs).stdout(input.try_clone().map_err(failed)?).stderr(input);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|n| env::is_jobs(n) || n == "CUDA_VISIBLE_DEVICES") {
                command.env_remove(name);
            }
        }
        command.envs(profile.env.iter().map(|(n, v)| (n, v)));
        let child = command.spawn().map_err(failed)?;
        // The command holds our copies of the worker's ends: while they are open, its end cannot be seen.
        drop(command);
        let start = Start { driver, gpu, virtual_device: profile.virtual_device };
        let worker = Arc::new(Worker {
            pid: child.id(),
            profile,
            channel,
            job: OnceLock::new(),
            phase: Mutex::new(Phase::Opening),
            changed: Condvar::new(),
        });
        lock(&self.workers).all.push(worker.clone());
        let (log, pid) = (self.log, worker.pid);
        let pass_on = move || pass_on(output, &|line| log(&format!("worker {pid}: {line}")));
        let output_thread = threads::spawn("output", pass_on).map_err(failed);
        let (watched, workers) = (worker.clone(), self.workers.clone());
        let watch_thread = threads::spawn("worker", move || watch(&watched, child, &workers, log, heard)).map_err(failed);
        let begun = output_thread.and(watch_thread).and(worker.send(&Message::Start(start), None).map_err(failed));
        match begun {
            Ok(()) => Ok(worker),
            Err(why) => {
                worker.end();
                Err(why)
            }
        }
    }

    /// Takes the ready worker of this profile, if there is one.
    pub(super) fn take_warm(&self, profile: &Profile) -> Option<Arc<Worker>> {
        let mut w = lock(&self.workers);
        let i = w.warm.iter().position(|w| w.profile == *profile)?;
        Some(w.warm.swap_remove(i))
    }

    /// The worker that is kept for clients of this profile, be it still being made ready.
    pub(super) fn warm(&self, profile: &Profile) -> Option<Arc<Worker>> {
        lock(&self.workers).warm.iter().find(|w| w.profile == *profile).cloned()
    }

    /// Keeps a worker for a client to come, instead of the one that was kept for this GPU.
    pub(super) fn keep_warm(&self, worker: Arc<Worker>) {
        let mut w = lock(&self.workers);
        let (old, mut kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut w.warm).into_iter().partition(|o| o.profile.gpu == worker.profile.gpu);
        kept.push(worker);
        w.warm = kept;
        old.iter().for_each(|o| o.end());
    }

    /// Ends all workers and waits for that, but not long.
    pub(super) fn end_all(&self) {
        let until = Instant::now() + 2 * ENDING;
        lock(&self.workers).all.iter().for_each(|w| w.end());
        while !lock(&self.workers).all.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Listens to a worker until it ends.
fn watch(worker: &Arc<Worker>, mut child: Child, workers: &Mutex<Workers>, log: fn(&str), heard: impl Fn(&Arc<Worker>, Message)) {
    loop {
        match worker.channel.receive() {
            Ok(Some((Message::Ready(why), None))) if why.is_empty() => worker.set(Phase::Ready),
            Ok(Some((Message::Ready(why), None))) => worker.set(Phase::Refused(why)),
            Ok(Some((message, None))) => heard(worker, message),
            Ok(None) => break,
            Ok(Some((_, Some(_)))) | Err(_) => {
                log(&format!("worker {} said something that makes no sense", worker.pid));
                break;
            }
        }
    }
    worker.end();
    let status = reap(&mut child);
    if !matches!(*lock(&worker.phase), Phase::Refused(_)) {
        worker.set(Phase::Ended);
    }
    {
        let mut w = lock(workers);
        w.all.retain(|o| !Arc::ptr_eq(o, worker));
        w.warm.retain(|o| !Arc::ptr_eq(o, worker));
    }
    match status {
        Ok(status) if status.success() => {
            if let Some(job) = worker.job.get() {
                log(&format!("job {job} has left GPU {}", worker.profile.gpu));
            }
        }
        // A terminal's or a launcher's signal is for the daemon, too; one that serves nobody takes nothing with it.
        Ok(status) if worker.job.get().is_none() && matches!(status.signal(), Some(libc::SIGINT | libc::SIGTERM)) => {}
        Ok(status) => log(&format!("worker {} of GPU {} ended: {status}", worker.pid, worker.profile.gpu)),
        Err(e) => log(&format!("worker {} of GPU {} ended, nobody knows how: {e}", worker.pid, worker.profile.gpu)),
    }
}

/// Waits for the end of a worker whose channel is closed; helps if it takes long.
fn reap(child: &mut Child) -> io::Result<ExitStatus> {
    let until = Instant::now() + ENDING;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill()?;
    child.wait()
}

/// Passes a worker's output on, line by line.
fn pass_on(output: PipeReader, line: &dyn Fn(&str)) {
    let mut lines = BufReader::new(output);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match lines.by_ref().take(LINE).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => line(String::from_utf8_lossy(&bytes).trim_end()),
        }
    }
}
