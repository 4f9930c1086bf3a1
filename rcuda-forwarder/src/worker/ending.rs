//! The end of a worker's process.

use crate::conn::Conn;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a worker that ends waits until its last messages have left it.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long it waits for the end of its job, whose connection is closed a moment before that.
const LAST_MOMENT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The file that is of no use without the job, and the job's process.
static USELESS: OnceLock<(PathBuf, u32)> = OnceLock::new();
/// The job has taken its leave, so it takes care of its files.
static GOODBYE: AtomicBool = AtomicBool::new(false);

/// Removes a file when this process ends because its job has ended.
pub(crate) fn remove_with_job(file: PathBuf, job: u32) {
    // A worker has one store.
    let _ = USELESS.set((file, job));
}

/// Notes that the job releases this worker.
pub(super) fn note_goodbye() {
    GOODBYE.store(true, Ordering::Release);
}

/// Ends the process as soon as the last messages to the client have left it: exit handlers of a driver would wait for running kernels.
pub(super) fn leave(status: i32, client: &Conn) -> ! {
    client.wait_written(LAST_WORDS);
    abandon(status)
}

/// Ends the process at once: there is no client any more.
pub(super) fn abandon(status: i32) -> ! {
    if let Some((file, job)) = USELESS.get()
        && !GOODBYE.load(Ordering::Acquire)
        && ends(*job)
    {
        let _ = std::fs::remove_file(file);
    }
    // SAFETY: ends the process; nothing is touched after it.
    unsafe { libc::_exit(status) }
}

/// Whether a process ends within a moment. One that lives on has lost its connection, and may use the file again.
fn ends(process: u32) -> bool {
    let since = Instant::now();
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
