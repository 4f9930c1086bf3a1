//! Signals that move the job: the one that `mrcuda run --signal` names, and with `--on-stop` the one that stops it.
//!
//! The handlers only notify threads, which carry out what is asked for. A signal that the program handles itself is left
//! to it.

use crate::base::config;
use crate::base::spawn::spawn;
use crate::job;
use crate::move_error::MoveError;
use crate::mover::{self, parked};
use crate::moves;
use ::control::{Migrate, Park, ReasonCode};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a job that cannot resume waits before it tries again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The recorder's handler of the signal that moves the job; 0 if the program had installed its own before.
static HANDLER: AtomicUsize = AtomicUsize::new(0);
/// The signal that [`HANDLER`] handles.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// The recorder's handler of `SIGTSTP`; 0 if there is none.
static STOP_HANDLER: AtomicUsize = AtomicUsize::new(0);
/// The thread that parks the job before it stops. `SIGTSTP` is blocked there, and stays pending from the time at which the job is asked to stop;
/// whoever has it continue discards it, in the kernel and at any time.
static STOP_THREAD: AtomicI32 = AtomicI32::new(0);

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
pub(crate) fn in_forked_child() {
    let (signal, ours) = (SIGNAL.load(Ordering::Relaxed), HANDLER.load(Ordering::Relaxed));
    if ours != 0 && handler(signal).is_ok_and(|now| now == ours) {
        // SAFETY: plain system call.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let ours = STOP_HANDLER.load(Ordering::Relaxed);
    if ours != 0 && handler(libc::SIGTSTP).is_ok_and(|now| now == ours) {
        // SAFETY: plain system call.
        unsafe { libc::signal(libc::SIGTSTP, libc::SIG_DFL) };
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

/// `SIGTSTP` alone.
fn stop_signals() -> SigSet {
    SigSet::from(Signal::SIGTSTP)
}

/// Whether the job was asked to stop, and has not continued since. Only for the thread that parks it.
fn is_to_stop() -> bool {
    // SAFETY: all-zero is a valid set, which the call fills.
    let mut pending: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above; the second call only reads the set.
    unsafe { libc::sigpending(&raw mut pending) == 0 && libc::sigismember(&raw const pending, libc::SIGTSTP) == 1 }
}

/// Stops the process if [`is_to_stop`]; returns when it continues.
fn stop_if_asked() {
    let (signals, now) = (stop_signals(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: takes a pending signal of the set, if there is one. `raise` stops the process before it returns to this thread.
    unsafe {
        if libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &raw const now) == libc::SIGTSTP {
            libc::raise(libc::SIGSTOP);
        }
    }
}

/// Parks the job when it is asked to stop (`SIGTSTP`: Slurm's suspension, which two seconds later sends `SIGSTOP`, or Ctrl-Z), then stops it,
/// and resumes it when it continues; if `MRCUDA_ON_STOP` is set, and the program does not handle the signal itself.
pub(super) fn watch_stop() -> io::Result<()> {
    let config = config::get().map_err(io::Error::other)?;
    let Some(to) = &config.on_stop else { return Ok(()) };
    if handler(libc::SIGTSTP)? != libc::SIG_DFL {
        tracing::warn!(target: "job", "the program handles or ignores SIGTSTP: it is not parked when it stops");
        return Ok(());
    }
    let event = Event::new()?;
    let (notify, job) = (event.notify(), event.job);
    spawn("mrcuda-stop", move || {
        if stop_signals().thread_block().is_err() {
            return;
        }
        // SAFETY: a system call without arguments.
        STOP_THREAD.store(unsafe { libc::syscall(libc::SYS_gettid) } as i32, Ordering::Release);
        let mut is_parked = false;
        while event.event.read().is_ok() {
            // It may have continued before anything was done.
            if is_to_stop() {
                is_parked |= park(to);
                stop_if_asked();
            }
            is_parked = is_parked && !resume();
        }
    })?;
    let stop = move || {
        let thread = STOP_THREAD.load(Ordering::Acquire);
        if std::process::id() == job && thread != 0 {
            // SAFETY: a system call without pointers; the thread lives as long as the process.
            unsafe { libc::syscall(libc::SYS_tgkill, job, thread, libc::SIGTSTP) };
            notify();
        }
    };
    // SAFETY: the handler makes a system call, and writes eight bytes to a descriptor.
    unsafe { signal_hook::low_level::register(libc::SIGTSTP, stop) }?;
    STOP_HANDLER.store(handler(libc::SIGTSTP)?, Ordering::Relaxed);
    Ok(())
}

/// Parks the job; returns whether it is parked now and was not before.
fn park(to: &str) -> bool {
    let Some(job) = job::opened().filter(|_| parked::home().is_none()) else { return false };
    let wanted = Migrate { queue: true, ..Migrate::to(to) };
    let failure = failure_of(moves::request(job, wanted, "signal", mover::run));
    match failure {
        None => true,
        Some((_, Some(ReasonCode::JobEnded))) => false,
        Some((why, _)) => {
            tracing::warn!(target: "job", "the job keeps its GPU while it is stopped: {why}");
            false
        }
    }
}

/// Waits for the end of a move that was requested. Returns why it has failed, if it has.
fn failure_of(requested: Result<String, MoveError>) -> Option<(String, Option<ReasonCode>)> {
    match requested.and_then(|id| moves::wait_for(&id)) {
        Ok(report) if report.ok => None,
        Ok(report) => Some((report.reason.unwrap_or_default(), report.code)),
        Err(why) => Some((why.to_string(), Some(why.code()))),
    }
}

/// Resumes the job where it was, however long there is no room, unless it is asked to stop again: then returns false.
fn resume() -> bool {
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(job) = job::opened().filter(|_| parked::home().is_some()) else { return true };
        let wanted = Migrate { queue: true, ..Park::to(None).or_to("") };
        let Some((why, _)) = failure_of(moves::request_resume(job, wanted, mover::run)) else { return true };
        if pause == FIRST_PAUSE {
            tracing::warn!(target: "job", "the job stays parked for now, and tries again (mrcuda resume --to PLACE lets it go on elsewhere): {why}");
        }
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if is_to_stop() {
                return false;
            }
            std::thread::sleep(FIRST_PAUSE / 4);
        }
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}
