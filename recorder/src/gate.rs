//! The gate: calls pass it for the price of a store and a load; the mover can close it and knows when nobody is inside.
//!
//! A thread marks itself inside with a plain store and then reads one flag. The mover sets the flag, issues a process-wide
//! barrier (`membarrier`), and waits until no thread is marked: store and load of a passing thread cannot both miss the
//! mover's. Where `membarrier` is refused, passing threads pay a fence. Threads that wait for the GPU step outside
//! ([`Pass::outside`]): the reply they wait for arrives while the gate is closed.

use crate::log::lock;
use crate::thread::{Here, here};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};

/// The mark of a thread, alone in its cache lines: the thread writes to it twice in each call.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Slot {
    inside: AtomicU32,
    taken: AtomicBool,
}

/// What a passing thread looks at: 0 where it may go on at once.
static STATE: AtomicI32 = AtomicI32::new(FENCE);
/// The gate is closed.
const CLOSED: i32 = 1;
/// The system has no `membarrier`: who passes must fence.
const FENCE: i32 = 2;

static SLOTS: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());

struct Mine(&'static Slot);

impl Drop for Mine {
    fn drop(&mut self) {
        let here = here();
        here.slot.set(None);
        self.0.taken.store(false, Ordering::Release);
    }
}

thread_local! {
    static MINE: Mine = Mine(claim());
}

fn claim() -> &'static Slot {
    let mut slots = lock(&SLOTS);
    for s in slots.iter() {
        if s.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return s;
        }
    }
    let s: &'static Slot = Box::leak(Box::new(Slot { inside: AtomicU32::new(0), taken: AtomicBool::new(true) }));
    slots.push(s);
    s
}

const MEMBARRIER_CMD_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(cmd: i32) -> bool {
    // SAFETY: membarrier takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, cmd, 0, 0) == 0 }
}

/// Prepares the cheap form; without it every call fences.
pub(crate) fn init() {
    if membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        STATE.fetch_and(!FENCE, Ordering::SeqCst);
    }
}

/// Proof of being inside, on the thread that has passed. Re-entrant: only the outermost one counts.
#[derive(Debug)]
pub(crate) struct Pass(&'static Here);

/// Passes the gate, waiting while it is closed.
#[inline]
pub(crate) fn enter(here: &'static Here) -> Pass {
    let depth = here.depth.replace(here.depth.get() + 1);
    if depth == 0 {
        here.mark_inside();
    }
    Pass(here)
}

impl Here {
    #[inline]
    fn slot(&self) -> Option<&'static Slot> {
        self.slot.get().or_else(|| self.claim())
    }

    #[cold]
    fn claim(&self) -> Option<&'static Slot> {
        // At thread exit it may be gone: such late calls go unmarked; they have no context.
        self.slot.set(MINE.try_with(|m| m.0).ok());
        self.slot.get()
    }

    #[inline]
    fn mark_inside(&self) {
        let Some(slot) = self.slot() else { return };
        slot.inside.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if STATE.load(Ordering::Acquire) != 0 {
            pass_slowly(slot);
        }
    }

    #[inline]
    fn mark_outside(&self) {
        if let Some(slot) = self.slot() {
            slot.inside.store(0, Ordering::Release);
        }
    }
}

/// As a passing thread does, fenced, and waiting while the gate is closed.
#[cold]
fn pass_slowly(slot: &Slot) {
    loop {
        slot.inside.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if STATE.load(Ordering::Acquire) & CLOSED == 0 {
            return;
        }
        slot.inside.store(0, Ordering::Release);
        loop {
            let state = STATE.load(Ordering::Acquire);
            if state & CLOSED == 0 {
                break;
            }
            wait_on(&STATE, state);
        }
    }
}

impl Pass {
    /// Steps outside for the time of `wait`, and in again after it. Nothing that depends on the place may be held across.
    pub(crate) fn outside<T>(&self, wait: impl FnOnce() -> T) -> T {
        let outermost = self.0.depth.get() == 1;
        if outermost {
            self.0.mark_outside();
        }
        let result = wait();
        if outermost {
            self.0.mark_inside();
        }
        result
    }
}

impl Drop for Pass {
    #[inline]
    fn drop(&mut self) {
        let depth = self.0.depth.get() - 1;
        self.0.depth.set(depth);
        if depth == 0 {
            self.0.mark_outside();
        }
    }
}

/// A closed gate; opens when dropped.
#[derive(Debug)]
pub(crate) struct Closed {
    since: Instant,
}

/// Closes the gate and waits until nobody is inside, at most `limit` and while `go_on` says so; `None` leaves it open.
pub(crate) fn close(limit: Duration, mut go_on: impl FnMut() -> bool) -> Option<Closed> {
    STATE.fetch_or(CLOSED, Ordering::SeqCst);
    if !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        fence(Ordering::SeqCst);
    }
    let closed = Closed { since: Instant::now() };
    let slots = lock(&SLOTS).clone();
    for s in slots {
        while s.inside.load(Ordering::Acquire) != 0 {
            if closed.since.elapsed() > limit || !go_on() {
                return None;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Some(closed)
}

impl Drop for Closed {
    fn drop(&mut self) {
        STATE.fetch_and(!CLOSED, Ordering::SeqCst);
        wake_all(&STATE);
    }
}

fn wait_on(word: &AtomicI32, value: i32) {
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    // SAFETY: the word outlives the call (it is static); FUTEX_WAIT reads it and the timeout only.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value, &raw const timeout)
    };
}

fn wake_all(word: &AtomicI32) {
    // SAFETY: FUTEX_WAKE does not touch the word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn nobody_is_inside_a_closed_gate() {
        init();
        static INSIDE: AtomicU64 = AtomicU64::new(0);
        static STOP: AtomicBool = AtomicBool::new(false);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    while !STOP.load(Ordering::Relaxed) {
                        let _pass = enter(here());
                        INSIDE.fetch_add(1, Ordering::SeqCst);
                        std::hint::spin_loop();
                        INSIDE.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for _ in 0..300 {
            let closed = close(Duration::from_secs(5), || true).expect("threads come out");
            for _ in 0..100 {
                assert_eq!(INSIDE.load(Ordering::SeqCst), 0);
            }
            drop(closed);
        }
        STOP.store(true, Ordering::Relaxed);
        for t in threads {
            t.join().unwrap();
        }
        let pass = enter(here());
        assert!(close(Duration::from_millis(20), || true).is_none(), "a thread inside keeps the gate from closing");
        pass.outside(|| assert!(close(Duration::from_millis(20), || true).is_some()));
        let asked = std::cell::Cell::new(0);
        let twice = || asked.replace(asked.get() + 1) < 2;
        assert!(close(Duration::from_secs(60), twice).is_none() && asked.get() == 3, "it can be given up");
    }
}
