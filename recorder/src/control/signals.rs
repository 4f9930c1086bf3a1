//! Signals that move the job: the one that `mrcuda run --signal` names, and with `--on-stop` the one that stops it.
//!
//! The handlers only write to an eventfd or set a flag; threads carry out what they ask for. A signal that the program handles itself is left
//! to it.

use crate::base::config;
use crate::base::spawn::spawn;
use crate::job;
use crate::mover::{self, parked};
use crate::moves;
use ::control::{Migrate, Park};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// The recorder's handler of the signal that moves the job; 0 if the program had installed its own before.
static HANDLER: AtomicUsize = AtomicUsize::new(0);
/// The signal that [`HANDLER`] handles.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Whether the recorder handles `SIGTSTP` and `SIGCONT`.
static HANDLES_STOP: AtomicBool = AtomicBool::new(false);
/// The process was told to stop, and not to continue since.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// The current handler of a signal in this process.
fn handler(signal: i32) -> io::Result<usize> {
    // SAFETY: all-zero is a valid sigaction.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the disposition.
    match unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) } {
        0 => Ok(now.sa_sigaction),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the signal moves the job.
pub(super) fn is_watched(signal: i32) -> bool {
    handler(signal).is_ok_and(|now| now == HANDLER.load(Ordering::Relaxed))
}

/// Ignores the signal in a forked child, as the job's process did before it had a handler: a program that the child executes
/// inherits this disposition, so a signal to the whole process group does not kill it.
pub(super) fn in_forked_child() {
    let (signal, ours) = (SIGNAL.load(Ordering::Relaxed), HANDLER.load(Ordering::Relaxed));
    if ours != 0 && handler(signal).is_ok_and(|now| now == ours) {
        // SAFETY: plain system call.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    if HANDLES_STOP.load(Ordering::Relaxed) {
        for signal in [libc::SIGTSTP, libc::SIGCONT] {
            // SAFETY: plain system call.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// What a handler notifies.
struct Event {
    event: &'static EventFd,
    job: u32,
}

impl Event {
    fn new() -> io::Result<Event> {
        let event = Box::leak(Box::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?));
        Ok(Event { event, job: std::process::id() })
    }

    /// A function for handlers. In a forked child, which shares the descriptor, it does nothing: the signal was sent to the child only.
    fn notify(&self) -> impl Fn() + Sync + Send + use<> {
        let (fd, job) = (self.event.as_raw_fd(), self.job);
        move || {
            if std::process::id() == job {
                // SAFETY: the eventfd is never closed; write is async-signal-safe.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                let _ = nix::unistd::write(fd, &1u64.to_ne_bytes());
            }
        }
    }
}

/// Moves the job when the signal arrives, unless the program handles the signal itself: `mrcuda run` sets it to be ignored, and
/// only if it still is, a handler is installed.
pub(super) fn watch_signal() -> io::Result<()> {
    let config = config::get().map_err(io::Error::other)?;
    if handler(config.signal)? != libc::SIG_IGN {
        return Ok(());
    }
    let event = Event::new()?;
    // SAFETY: the handler only writes eight bytes to a descriptor.
    unsafe { signal_hook::low_level::register(config.signal, event.notify()) }?;
    SIGNAL.store(config.signal, Ordering::Relaxed);
    HANDLER.store(handler(config.signal)?, Ordering::Relaxed);
    spawn("mrcuda-signal", move || {
        while event.event.read().is_ok() {
            let Some(job) = job::opened() else { continue };
            // Signals that arrive while a move is under way are coalesced into one further move.
            let wanted = Migrate { queue: true, ..Migrate::to(&config.on_signal) };
            match moves::request(job, wanted, "signal", mover::run) {
                Ok(id) => drop(moves::wait_for(&id)),
                Err(why) => tracing::warn!(target: "job", "the signal moves nothing: {why}"),
            }
        }
    })
}

/// Parks the job when it is asked to stop (`SIGTSTP`: Slurm's suspension, which two seconds later sends `SIGSTOP`, or Ctrl-Z), then stops it,
/// and resumes it when it continues; if `MRCUDA_ON_STOP` is set, and the program handles neither signal itself.
pub(super) fn watch_stop() -> io::Result<()> {
    let config = config::get().map_err(io::Error::other)?;
    let Some(to) = &config.on_stop else { return Ok(()) };
    if handler(libc::SIGTSTP)? != libc::SIG_DFL || handler(libc::SIGCONT)? != libc::SIG_DFL {
        tracing::warn!(target: "job", "the program handles SIGTSTP or SIGCONT itself: it is not parked when it stops");
        return Ok(());
    }
    let event = Event::new()?;
    let notify = event.notify();
    let stop = move || {
        STOPPING.store(true, Ordering::Release);
        notify();
    };
    // SAFETY: the handlers only write to a static, and eight bytes to a descriptor.
    unsafe {
        signal_hook::low_level::register(libc::SIGCONT, || STOPPING.store(false, Ordering::Release))?;
        signal_hook::low_level::register(libc::SIGTSTP, stop)?;
    }
    HANDLES_STOP.store(true, Ordering::Relaxed);
    spawn("mrcuda-stop", move || {
        while event.event.read().is_ok() {
            let parked = park(to);
            // It may have been stopped by SIGSTOP meanwhile, and have continued since: then it must not stop again.
            if STOPPING.swap(false, Ordering::AcqRel) {
                // SAFETY: plain system call. It returns when the process continues.
                unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
            }
            if parked {
                resume();
            }
        }
    })
}

/// Parks the job; returns whether it is parked now and was not before.
fn park(to: &str) -> bool {
    let Some(job) = job::opened().filter(|_| parked::home().is_none()) else { return false };
    let wanted = Migrate { queue: true, ..Migrate::to(to) };
    let outcome = moves::request(job, wanted, "signal", mover::run).and_then(|id| moves::wait_for(&id));
    match outcome {
        Ok(report) if report.ok => true,
        Ok(report) => {
            let why = report.reason.unwrap_or_default();
            tracing::warn!(target: "job", "the job keeps its GPU while it is stopped: {why}");
            false
        }
        Err(why) => {
            tracing::warn!(target: "job", "the job keeps its GPU while it is stopped: {why}");
            false
        }
    }
}

fn resume() {
    let Some(job) = job::opened().filter(|_| parked::home().is_some()) else { return };
    let wanted = Migrate { queue: true, ..Park::to(None).or_to("") };
    match moves::request_resume(job, wanted, mover::run) {
        Ok(id) => drop(moves::wait_for(&id)),
        Err(why) => tracing::warn!(target: "job", "the job stays parked (mrcuda resume lets it go on): {why}"),
    }
}
