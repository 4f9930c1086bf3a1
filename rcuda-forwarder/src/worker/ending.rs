//! The end of a worker's process.

use crate::conn::Conn;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long a worker that ends waits until its last messages have left it.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long it waits for the end of its job, whose connection is closed a moment before that.
const LAST_MOMENT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a worker may take to release what it has after its job has gone on without it. Then it leaves the rest to the end of the process,
/// well before a daemon would take it for one that hangs (`pool::LEAVING`).
const RELEASING: Duration = Duration::from_secs(20);

/// The job's process, for a helper.
static JOB: OnceLock<Process> = OnceLock::new();
/// The file that is of no use without the job.
static USELESS: OnceLock<PathBuf> = OnceLock::new();
/// The job has taken its leave, so it takes care of its files.
static GOODBYE: AtomicBool = AtomicBool::new(false);

/// The thread that releases everything, although the job no longer waits for it: the process ends when it has done so.
static RELEASES: OnceLock<ThreadId> = OnceLock::new();

/// A process, with a descriptor of it if the system has such descriptors: another process may get its number.
#[derive(Debug)]
struct Process {
    number: u32,
    descriptor: Option<OwnedFd>,
}

/// Notes the job of this helper.
pub(super) fn note_job(number: u32) {
    // SAFETY: a plain system call; a descriptor that it returns is new, and nothing else's.
    let descriptor = unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, number, 0);
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
    };
    // A helper has one job.
    let _ = JOB.set(Process { number, descriptor });
}

/// Removes a file when this process ends because its job has ended. From now on only the end of the connection ends this process, and not
/// what ends others of this user or this terminal.
pub(super) fn remove_with_job(file: PathBuf) {
    // A worker has one store.
    let _ = USELESS.set(file);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Notes that the job releases this worker.
pub(super) fn note_goodbye() {
    GOODBYE.store(true, Ordering::Release);
}

/// From now on this thread ends the process, when it has released everything. Other threads that would end it, because the job or the
/// daemon has closed its connection, leave that to it: a process that ends with memory of a GPU holds up the driver's calls of others longer.
pub(super) fn begin_to_release() {
    // A worker has one job.
    let _ = RELEASES.set(std::thread::current().id());
}

/// Ends the process as soon as the last messages to the client have left it: exit handlers of a driver would wait for running kernels.
pub(super) fn leave(status: i32, client: &Conn) -> ! {
    client.wait_written(LAST_WORDS);
    abandon(status)
}

/// Ends the process at once, there is no client any more; or when another thread has released everything.
pub(super) fn abandon(status: i32) -> ! {
    if RELEASES.get().is_some_and(|releases| *releases != std::thread::current().id()) {
        std::thread::sleep(RELEASING);
    }
    remove_useless();
    // SAFETY: ends the process; nothing is touched after it.
    unsafe { libc::_exit(status) }
}

/// Removes what is of no use if the job has ended.
pub(super) fn remove_useless() {
    if let (Some(file), Some(job)) = (USELESS.get(), JOB.get())
        && !GOODBYE.load(Ordering::Acquire)
        && ends(job)
    {
        let _ = std::fs::remove_file(file);
    }
}

/// Whether a process ends within a moment. One that lives on has lost its connection, and may use the file again.
fn ends(process: &Process) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    if let Some(descriptor) = &process.descriptor {
        let mut fds = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(LAST_MOMENT).unwrap_or(PollTimeout::ZERO);
        return poll(&mut fds, limit).is_ok_and(|ended| ended > 0);
    }
    let (since, process) = (Instant::now(), process.number);
    loop {
        let has_ended = match std::fs::read_to_string(format!("/proc/{process}/stat")) {
            Err(why) => why.kind() == std::io::ErrorKind::NotFound,
            // The state follows the name, which is in parentheses and may contain anything. The first thread of a process may end before
            // others.
            Ok(stat) => {
                stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X'])) && is_alone(process)
            }
        };
        if has_ended || since.elapsed() >= LAST_MOMENT {
            return has_ended;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Whether a process has one thread.
fn is_alone(process: u32) -> bool {
    std::fs::read_dir(format!("/proc/{process}/task")).is_ok_and(|tasks| tasks.take(2).count() < 2)
}
