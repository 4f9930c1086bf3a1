//! The gate: passing it costs a call one store and one load; the mover can close it and detect that no thread is inside.
//!
//! A thread marks itself as inside with a plain store and then reads one flag. The mover sets the flag, issues a process-wide barrier
//! (`membarrier`), and waits until no thread is marked: it is impossible that both the thread misses the mover's flag and the mover
//! misses the thread's mark. If `membarrier` is refused from the beginning, passing threads execute a memory fence; if it is refused
//! later, the gate cannot be closed. Threads that wait for the GPU step outside ([`Pass::outside`]): the answer they wait for arrives
//! while the gate is closed.
//!
//! While the job is parked, the gate is closed for as long as that takes. Calls that need no place then pass by a side door
//! ([`enter_beside`]); before the job moves on, the door is shut and no thread is inside.
//!
//! A thread keeps its mark until its last destructors: those of its own thread-local objects and of pthread keys make calls, too.

use crate::base::log::lock;
use crate::base::sync::{AtomicBool, AtomicI32, fence};
use crate::thread::{After, Here, Slot};
use cuda_api::lock::wait_timeout_while;
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

mod held;

pub(crate) use held::{Held, Traced, held_for};

/// The flag that a passing thread reads: 0 if it may continue at once.
#[unsafe(link_section = "mrcuda_hot")]
static STATE: AtomicI32 = AtomicI32::new(FENCE);
/// The gate is closed.
const CLOSED: i32 = 1;
/// The system has no `membarrier`: passing threads must execute a memory fence.
const FENCE: i32 = 2;
/// The side door is open, though the gate is closed.
const BESIDE: i32 = 4;
/// A move is traced: passing threads note their calls.
const TRACED: i32 = 8;

static SLOTS: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());

/// The name of calls that the program does not make. No trace has them.
pub(crate) const OWN_CALL: &str = "a call of mrcuda itself";

/// Claims a slot that no thread has.
fn claim() -> &'static Slot {
    let mut slots = lock(&SLOTS);
    for s in slots.iter() {
        if s.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return s;
        }
    }
    let s: &'static Slot = Box::leak(Box::new(Slot { taken: AtomicBool::new(true), ..Slot::default() }));
    slots.push(s);
    s
}

const MEMBARRIER_CMD_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(cmd: i32) -> bool {
    #[cfg(test)]
    if let Some(worked) = interleave::barrier() {
        return worked;
    }
    // SAFETY: membarrier takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, cmd, 0, 0) == 0 }
}

/// Registers for `membarrier`; without it every call executes a memory fence.
pub(crate) fn init() {
    if membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        STATE.fetch_and(!FENCE, Ordering::SeqCst);
    }
}

/// Returns whether the gate can be closed now: whether the system still knows the barrier that calls rely on.
pub(crate) fn can_close() -> bool {
    STATE.load(Ordering::Acquire) & FENCE != 0 || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

/// Proof that this thread is inside the gate. Re-entrant: only the outermost one counts.
#[derive(Debug)]
pub(crate) struct Pass {
    here: &'static Here,
    /// By the side door.
    beside: bool,
}

/// Passes the gate, waiting while it is closed. `call` is the name of the call, for traces.
#[inline]
pub(crate) fn enter(here: &'static Here, call: &'static str) -> Pass {
    pass(here, call, false)
}

/// As [`enter`], for a call that needs no place: it does not wait while the job is parked.
#[inline]
pub(crate) fn enter_beside(here: &'static Here, call: &'static str) -> Pass {
    pass(here, call, true)
}

#[inline]
fn pass(here: &'static Here, call: &'static str, beside: bool) -> Pass {
    let depth = here.depth.replace(here.depth.get() + 1);
    let beside = depth == 0 && here.mark_inside(Some(call), beside);
    Pass { here, beside }
}

impl Here {
    /// Claims a slot for this thread. The thread releases it when it ends; a call after that claims one for itself.
    #[cold]
    fn claim(&self) -> &'static Slot {
        let slot = claim();
        self.slot.set(Some(slot));
        self.after.set(self.after.get().with(After::RELEASE, !crate::thread::tidy_at_end()));
        slot
    }

    /// `call`: what the thread calls; `None` if it goes on with a call.
    #[inline]
    fn mark_inside(&self, call: Option<&'static str>, beside: bool) -> bool {
        let slot = self.slot.get().unwrap_or_else(|| self.claim());
        slot.inside.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        STATE.load(Ordering::Acquire) != 0 && pass_slowly(self, slot, call, beside)
    }

    /// `is_over`: the call is, and does not only wait.
    #[inline]
    fn mark_outside(&self, is_over: bool) {
        if let Some(slot) = self.slot.get() {
            slot.inside.store(0, Ordering::Release);
            if self.after.get() != After::NOTHING {
                self.go_outside(slot, is_over);
            }
        }
    }

    #[cold]
    fn go_outside(&self, slot: &Slot, is_over: bool) {
        let after = self.after.get();
        if is_over && after.has(After::TRACE) {
            self.after.set(after.with(After::TRACE, false));
            held::note_call(slot, &self.call);
        }
        if after.has(After::RELEASE) {
            self.release_slot();
        }
    }
}

/// Passes the gate with a memory fence, waiting while it is closed. Returns whether it was passed by the side door.
#[cold]
fn pass_slowly(here: &Here, slot: &Slot, mut call: Option<&'static str>, beside: bool) -> bool {
    let is_open = |state: i32| state & CLOSED == 0 || beside && state & BESIDE != 0;
    let mut waited = None;
    loop {
        slot.inside.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let state = STATE.load(Ordering::Acquire);
        if state & TRACED != 0 && call.is_some() {
            here.after.set(here.after.get().with(After::TRACE, call != Some(OWN_CALL)));
            // It may come here again.
            here.call.note(call.take());
        }
        if is_open(state) {
            return state & CLOSED != 0;
        }
        slot.inside.store(0, Ordering::Release);
        if state & TRACED != 0 && waited.is_none() {
            waited = Some(held::Wait::begin(&here.call));
        }
        loop {
            let state = STATE.load(Ordering::Acquire);
            if is_open(state) {
                break;
            }
            // Each time: the gate may have been opened and closed again before this thread ran.
            held::note();
            wait_on(&STATE, state);
        }
    }
}

impl Pass {
    /// Whether this thread has come by the side door: the job is parked, and its places execute nothing.
    pub(crate) fn is_beside(&self) -> bool {
        self.beside
    }

    /// Runs `wait` outside the gate and re-enters after it. Nothing that depends on the place may be held across this call.
    pub(crate) fn outside<T>(&self, wait: impl FnOnce() -> T) -> T {
        let outermost = self.here.depth.get() == 1;
        if outermost {
            self.here.mark_outside(false);
        }
        let result = wait();
        if outermost {
            self.here.mark_inside(None, false);
        }
        result
    }
}

impl Drop for Pass {
    #[inline]
    fn drop(&mut self) {
        let depth = self.here.depth.get() - 1;
        self.here.depth.set(depth);
        if depth == 0 {
            self.here.mark_outside(true);
        }
    }
}

/// A closed gate; opens when dropped.
#[derive(Debug)]
pub(crate) struct Closed {
    since: Instant,
    _turn: Turn,
}

/// A trace of the calls that pass the gate and that wait there. Without one, a call does nothing for it.
#[derive(Debug)]
pub(crate) struct Tracing(());

/// Begins to note calls. There is one trace at a time.
pub(crate) fn trace() -> Tracing {
    let slots = lock(&SLOTS).clone();
    held::begin_trace(&slots);
    STATE.fetch_or(TRACED, Ordering::SeqCst);
    Tracing(())
}

impl Tracing {
    /// What it has found. The gate is open, or the job is parked.
    pub(crate) fn end(self) -> Traced {
        held::await_calls();
        drop(self);
        // Not locked while the end waits for threads: a new one needs the list.
        held::take(|| lock(&SLOTS).clone())
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        STATE.fetch_and(!TRACED, Ordering::SeqCst);
    }
}

/// Calls that end from now on come after the commit of the move that is traced.
pub(crate) fn trace_commit() {
    held::commit();
}

/// Why the gate was not closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotClosed {
    /// A thread stays inside, or the attempt was abandoned.
    Busy,
    /// Another thread has kept it closed all the time, or the attempt was abandoned while it did.
    Taken,
    /// The kernel refuses the barrier that it supported before, so the mover cannot know that no thread is inside.
    NoBarrier,
}

/// Whether the gate is closed, or about to be, so that only one thread at a time closes it.
static CLOSING: Mutex<bool> = Mutex::new(false);
static TURN: Condvar = Condvar::new();
/// How often a thread that waits for its turn asks whether it should.
const TURN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The right to close the gate. Unlike a lock it can be passed from thread to thread: the gate stays closed while the job is parked.
#[derive(Debug)]
struct Turn;

impl Turn {
    /// Waits for at most `limit`, and while `go_on` returns true.
    fn take(limit: Duration, go_on: &mut impl FnMut() -> bool) -> Option<Turn> {
        let since = Instant::now();
        loop {
            let wait = limit.saturating_sub(since.elapsed()).min(TURN_POLL_INTERVAL);
            let closing = lock(&CLOSING);
            let (mut closing, _) = wait_timeout_while(&TURN, closing, wait, |taken| *taken);
            if !std::mem::replace(&mut *closing, true) {
                return Some(Turn);
            }
            drop(closing);
            if since.elapsed() >= limit || !go_on() {
                return None;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *lock(&CLOSING) = false;
        TURN.notify_one();
    }
}

/// Notes that a call waits for the turn to close the gate: if a move has closed it, the move holds up this call, too.
pub(crate) fn note_held() {
    if STATE.load(Ordering::Relaxed) & CLOSED != 0 {
        held::note();
    }
}

/// Closes the gate and waits until no thread is inside, at most `limit` and while `go_on` returns true; on an error it is open again.
pub(crate) fn close(limit: Duration, mut go_on: impl FnMut() -> bool) -> Result<Closed, NotClosed> {
    let turn = Turn::take(limit, &mut go_on).ok_or(NotClosed::Taken)?;
    held::begin();
    let before = STATE.fetch_or(CLOSED, Ordering::SeqCst);
    let closed = Closed { since: Instant::now(), _turn: turn };
    if before & FENCE != 0 {
        // Passing threads execute a fence themselves.
        fence(Ordering::SeqCst);
    } else if !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // A system-call filter was installed after `init`. Threads that passed without a fence may not be visible here.
        return Err(NotClosed::NoBarrier);
    }
    wait_empty(|| closed.since.elapsed() <= limit && go_on()).then_some(closed).ok_or(NotClosed::Busy)
}

/// Waits until no thread is inside, while `go_on` returns true.
fn wait_empty(mut go_on: impl FnMut() -> bool) -> bool {
    let slots = lock(&SLOTS).clone();
    for s in slots {
        while s.inside.load(Ordering::Acquire) != 0 {
            if !go_on() {
                return false;
            }
            pause();
        }
    }
    true
}

impl Closed {
    /// Opens the side door: the job is parked from now on.
    pub(crate) fn open_side_door(&self) {
        STATE.fetch_or(BESIDE, Ordering::SeqCst);
        wake_all(&STATE);
    }

    /// Shuts the side door and waits until no thread is inside, while `go_on` returns true; otherwise it is open again.
    pub(crate) fn shut_side_door(&self, go_on: impl FnMut() -> bool) -> bool {
        STATE.fetch_and(!BESIDE, Ordering::SeqCst);
        // Threads that find the gate closed execute a fence between their mark and their look at the state.
        fence(Ordering::SeqCst);
        let empty = wait_empty(go_on);
        if !empty {
            self.open_side_door();
        }
        empty
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        STATE.fetch_and(!(CLOSED | BESIDE), Ordering::SeqCst);
        wake_all(&STATE);
    }
}

fn pause() {
    #[cfg(test)]
    if interleave::pause() {
        return;
    }
    std::thread::sleep(Duration::from_micros(20));
}

fn wait_on(word: &AtomicI32, value: i32) {
    #[cfg(test)]
    if interleave::sleep(word, value) {
        return;
    }
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    // SAFETY: the word outlives the call (it is static); FUTEX_WAIT reads it and the timeout only.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value, &raw const timeout)
    };
}

fn wake_all(word: &AtomicI32) {
    #[cfg(test)]
    if interleave::wake(word) {
        return;
    }
    // SAFETY: FUTEX_WAKE does not touch the word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX) };
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests;
