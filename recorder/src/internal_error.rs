//! Panics of this library. The program never sees them, but the state that they leave behind must not be trusted.
//!
//! The first panic is stored with its source location. From then on the job does not move, so that corrupted state is not copied to
//! another place. If it occurred in a call of the program, or in a thread on which calls depend, all calls return `CUDA_ERROR_UNKNOWN`.

use crate::base::log::lock;
use crate::move_error::MoveError;
use nix::unistd::gettid;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, OnceLock};

/// The first panic.
#[derive(Debug)]
struct InternalError {
    /// The call, or the thread.
    during: Option<String>,
    /// File and line.
    at: String,
    /// The thread, because the name of its call is recorded later.
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
const APART: [&str; 14] = [
    "mrcuda-mover",
    "mrcuda-gpu-move",
    "mrcuda-round",
    "mrcuda-apart",
    "mrcuda-limits",
    "mrcuda-control",
    "mrcuda-client",
    "mrcuda-signal",
    "mrcuda-warm",
    "mrcuda-child",
    "mrcuda-history",
    "mrcuda-plan",
    "mrcuda-progress",
    "mrcuda-copy",
];

static FIRST: Mutex<Option<InternalError>> = Mutex::new(None);
/// Makes all calls fail.
static FAIL_CALLS: OnceLock<fn()> = OnceLock::new();
/// Whether there was a panic; read without the lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// Installs the panic hook. `fail_calls` makes all calls of the job fail.
pub(crate) fn watch(fail_calls: fn()) {
    let _ = FAIL_CALLS.set(fail_calls);
    static ONCE: Once = Once::new();
    // This library has its own copy of the Rust runtime, so the hook does not replace one of the program.
    ONCE.call_once(|| std::panic::set_hook(Box::new(note)));
}

fn this_thread() -> i32 {
    gettid().as_raw()
}

fn note(info: &PanicHookInfo<'_>) {
    let at = info.location().map_or_else(|| "an unknown place".to_owned(), |l| format!("{}:{}", l.file(), l.line()));
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    tracing::error!(target: "job", "internal error at {at}: {}", text.unwrap_or("no message"));
    // Only if `RUST_BACKTRACE` is set.
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        trace.to_string().lines().for_each(|frame| tracing::error!(target: "job", "{frame}"));
    }
    // Threads of the program have names given by the program, or none.
    let ours = std::thread::current().name().filter(|name| name.starts_with("mrcuda-")).map(str::to_owned);
    lock(&FIRST).get_or_insert_with(|| InternalError {
        during: ours.as_ref().map(|name| format!("thread {name}")),
        at,
        thread: this_thread(),
    });
    ANY.store(true, Ordering::Release);
    // Some of the recorder's threads are not needed by calls. A move that fails leaves the job where it was.
    if ours.is_some_and(|name| !APART.contains(&name.as_str())) {
        fail_calls();
    }
}

/// Makes all calls fail from now on.
fn fail_calls() {
    if let Some(fail) = FAIL_CALLS.get() {
        fail();
    }
}

/// Calls `f` for the C library, which no panic may reach: it is noted instead. `what` names the callback.
pub(crate) fn guard(what: &str, f: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err() {
        caught(what);
    }
}

/// Notes a panic that was caught at the end of a call.
#[cold]
pub(crate) fn caught(call: &str) {
    let mut first = lock(&FIRST);
    let known = first.as_mut().filter(|e| e.during.is_none() && e.thread == this_thread());
    if let Some(error) = known {
        error.during = Some(call.to_owned());
        let what = error.describe();
        drop(first);
        tracing::error!(target: "job", "{what}: CUDA calls return CUDA_ERROR_UNKNOWN from now on, and the job cannot move; please report it");
    }
    fail_calls();
}

/// Returns the blocker that results from a panic, if there was one.
pub(crate) fn blocker() -> Option<MoveError> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    lock(&FIRST).as_ref().map(|error| MoveError::InternalError(error.describe()))
}

/// The error for a thread of a move that ended early because of a panic, which was noted.
pub(crate) fn of_thread() -> MoveError {
    blocker().unwrap_or_else(|| MoveError::InternalError("a thread of the move has failed".to_owned()))
}
