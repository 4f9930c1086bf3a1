//! What the closed gate holds up: for how long, and in a trace which calls; and the other calls of a trace.

use crate::base::log::lock;
use crate::base::traced_calls::{Call, Calls};
use crate::thread::{Noted, Slot};
use nix::unistd::gettid;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// When the first call was held up since the gate was closed, in nanoseconds after [`start`] and plus one; 0: none.
static SINCE: AtomicU64 = AtomicU64::new(0);

/// What times in [`SINCE`] count from.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// How long the gate has been holding up a call; `None` if no call has come since it was closed, for example because all threads wait for
/// the GPU.
pub(crate) fn held_for() -> Option<Duration> {
    let since = SINCE.load(Ordering::Acquire).checked_sub(1)?;
    Some(start().elapsed().saturating_sub(Duration::from_nanos(since)))
}

/// The gate is being closed.
pub(super) fn begin() {
    SINCE.store(0, Ordering::Release);
}

/// A call is held up.
pub(super) fn note() {
    if SINCE.load(Ordering::Relaxed) == 0 {
        let now = u64::try_from(start().elapsed().as_nanos()).unwrap_or(u64::MAX - 1) + 1;
        // The first one counts.
        let _ = SINCE.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(super) fn waiting() -> u32 {
    WAITING.load(Ordering::Acquire)
}

/// A call that waited at the gate during a traced move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// The thread.
    pub(crate) thread: i32,
    /// The call; `None`: it had begun before the trace, and its wait for the GPU ended while the gate was closed.
    pub(crate) call: Option<&'static str>,
    /// When it came to the gate.
    pub(crate) since: Instant,
    /// How long it waited.
    pub(crate) took: Duration,
}

/// Maximum number of waits that a trace has.
const MAX_WAITS: usize = 10_000;
/// How long the end of a trace waits for threads that have not run since the gate was opened.
const TRACE_TIMEOUT: Duration = Duration::from_millis(200);

/// The waits of the trace, and how many more there were.
static TRACE: Mutex<(Vec<Held>, u64)> = Mutex::new((Vec::new(), 0));
/// Number of threads that wait at the gate and will note it.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// A wait at the gate, noted at its end.
pub(super) struct Wait {
    call: Option<&'static str>,
    since: Instant,
}

impl Wait {
    pub(super) fn begin(noted: &Noted) -> Wait {
        WAITING.fetch_add(1, Ordering::AcqRel);
        Wait { call: noted.call(), since: Instant::now() }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let held = Held { thread: gettid().as_raw(), call: self.call, since: self.since, took: self.since.elapsed() };
        {
            let mut trace = lock(&TRACE);
            if trace.0.len() < MAX_WAITS { trace.0.push(held) } else { trace.1 += 1 }
        }
        WAITING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether the traced move is committed.
static IS_COMMITTED: AtomicBool = AtomicBool::new(false);
/// How long the trace of a move that is committed goes on, so that it has calls that were made afterwards.
const TRACE_AFTER: Duration = Duration::from_millis(20);

/// Adds a call that has ended to the trace during which it began, if that is not over.
pub(super) fn note_call(slot: &Slot, noted: &Noted) {
    let Some((name, since)) = noted.call().zip(noted.since()) else { return };
    let call = Call { thread: gettid().as_raw(), name, since, took: since.elapsed() };
    // Held only by the end of the trace, or by the call that a signal handler of the program has interrupted.
    if let Ok(mut calls) = slot.calls.try_lock() {
        calls.add(call, IS_COMMITTED.load(Ordering::Relaxed));
    }
}

/// The traced move is committed.
pub(super) fn commit() {
    IS_COMMITTED.store(true, Ordering::Relaxed);
}

/// Begins a trace. There is one at a time.
pub(super) fn begin_trace(slots: &[&'static Slot]) {
    Noted::begin_trace();
    IS_COMMITTED.store(false, Ordering::Relaxed);
    *lock(&TRACE) = (Vec::new(), 0);
    // Of a call that ended together with the last trace.
    slots.iter().for_each(|slot| *lock(&slot.calls) = Calls::default());
}

/// Gives the program time for calls after a commit.
pub(super) fn await_calls() {
    if IS_COMMITTED.load(Ordering::Relaxed) {
        std::thread::sleep(TRACE_AFTER);
    }
}

/// The calls that a trace has.
#[derive(Debug, Default)]
pub(crate) struct Traced {
    /// Those that waited at the gate, and how many more there were than it can have.
    pub(crate) held: (Vec<Held>, u64),
    /// Those that have ended, and how many more there were.
    pub(crate) calls: (Vec<Call>, u64),
}

/// What the trace has so far. The gate is open, or the job is parked, and no further call is noted.
pub(super) fn take(slots: impl FnOnce() -> Vec<&'static Slot>) -> Traced {
    let since = Instant::now();
    while WAITING.load(Ordering::Acquire) != 0 && since.elapsed() < TRACE_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    // A call that ends later is of no trace.
    Noted::begin_trace();
    let mut calls = Vec::new();
    let left_out = slots().iter().map(|slot| std::mem::take(&mut *lock(&slot.calls)).gather(&mut calls)).sum();
    Traced { held: std::mem::take(&mut *lock(&TRACE)), calls: (calls, left_out) }
}
