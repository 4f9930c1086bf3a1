//! Panics of this library: the program never sees them, but whatever they have left half done must not be trusted any more.
//!
//! The first one is kept with its place in the source. From then on the job does not move, so that what is broken is not copied to
//! another place; and if it was in a call of the program, or in a thread on which calls depend, all calls return `CUDA_ERROR_UNKNOWN`.

use crate::job;
use crate::log::{self, lock};
use crate::mover::error::MoveError;
use cuda_api::code;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

/// What happened.
#[derive(Debug)]
struct InternalError {
    /// The call, or the thread.
    during: Option<String>,
    /// File and line.
    at: String,
    /// The thread, since it takes note of the call's name later.
    thread: i32,
}

impl InternalError {
    fn describe(&self) -> String {
        match &self.during {
            Some(during) => format!("internal error in {during} at {}", self.at),
            None => format!("internal error at {}", self.at),
        }
    }
}

/// Threads on which no call depends.
const APART: [&str; 8] = [
    "mrcuda-mover",
    "mrcuda-apart",
    "mrcuda-limits",
    "mrcuda-control",
    "mrcuda-visitor",
    "mrcuda-signal",
    "mrcuda-warm",
    "mrcuda-child",
];

static FIRST: Mutex<Option<InternalError>> = Mutex::new(None);
/// There is a first one: what is looked at without the lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// Begins to take note of panics.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    // This library has a Rust runtime of its own: a program's hook is another one.
    ONCE.call_once(|| std::panic::set_hook(Box::new(note)));
}

fn this_thread() -> i32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::gettid() }
}

fn note(info: &PanicHookInfo<'_>) {
    let at = info.location().map_or_else(|| "an unknown place".to_owned(), |l| format!("{}:{}", l.file(), l.line()));
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    log::tell(&format!("internal error at {at}: {}", text.unwrap_or("no message")));
    // Threads of the program have names of the program's, or none.
    let ours = std::thread::current().name().filter(|name| name.starts_with("mrcuda-")).map(str::to_owned);
    lock(&FIRST).get_or_insert_with(|| InternalError {
        during: ours.as_ref().map(|name| format!("thread {name}")),
        at,
        thread: this_thread(),
    });
    ANY.store(true, Ordering::Release);
    // Calls of the program do not depend on some of our threads. A move that fails leaves the job where it was.
    if ours.is_some_and(|name| !APART.contains(&name.as_str())) {
        fail_calls();
    }
}

/// All calls fail from now on.
fn fail_calls() {
    if let Some(job) = job::opened() {
        job.devices.iter().for_each(|device| device.note(code::ERROR_UNKNOWN));
    }
}

/// A panic was caught at the end of a call.
#[cold]
pub(crate) fn caught(call: &str) {
    let mut first = lock(&FIRST);
    let known = first.as_mut().filter(|e| e.during.is_none() && e.thread == this_thread());
    if let Some(error) = known {
        error.during = Some(call.to_owned());
        let what = error.describe();
        drop(first);
        log::tell(&format!(
            "{what}: CUDA calls return CUDA_ERROR_UNKNOWN from now on, and the job cannot move; please report it"
        ));
    }
    fail_calls();
}

/// Why the job cannot move, if it cannot for such an error.
pub(crate) fn blocker() -> Option<MoveError> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    lock(&FIRST).as_ref().map(|error| MoveError::InternalError(error.describe()))
}

/// Why a thread of a move has ended before its time: a panic, which was noted.
pub(crate) fn of_thread() -> MoveError {
    blocker().unwrap_or_else(|| MoveError::InternalError("a thread of the move has failed".to_owned()))
}
