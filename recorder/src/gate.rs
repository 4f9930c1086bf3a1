//! The gate: calls pass it for the price of a store and a load; the mover can close it and knows when nobody is inside.
//!
//! A thread marks itself inside with a plain store and then reads one flag. The mover sets the flag, issues a process-wide
//! barrier (`membarrier`), and waits until no thread is marked: store and load of a passing thread cannot both miss the
//! mover's. Where `membarrier` is refused from the beginning, passing threads pay a fence; where it is refused later, the gate cannot
//! be closed. Threads that wait for the GPU step outside ([`Pass::outside`]): the reply they wait for arrives while the gate is closed.
//!
//! A thread keeps its mark until its last destructors: those of its own thread-local objects and of pthread keys make calls, too.

use crate::log::lock;
use crate::thread::Here;
use std::sync::{Mutex, MutexGuard};
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

/// A slot that no thread has.
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
    /// Takes a slot for this thread. The thread gives it back when it ends; a call after that has one for itself.
    #[cold]
    fn claim(&self) -> &'static Slot {
        let slot = claim();
        self.slot.set(Some(slot));
        self.slot_for_one_call.set(!crate::thread::tidy_at_end());
        slot
    }

    /// Gives the slot back. The thread is outside the gate.
    #[cold]
    pub(crate) fn give_slot_back(&self) {
        if let Some(slot) = self.slot.take() {
            slot.taken.store(false, Ordering::Release);
        }
    }

    #[inline]
    fn mark_inside(&self) {
        let slot = self.slot.get().unwrap_or_else(|| self.claim());
        slot.inside.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if STATE.load(Ordering::Acquire) != 0 {
            pass_slowly(slot);
        }
    }

    #[inline]
    fn mark_outside(&self) {
        if let Some(slot) = self.slot.get() {
            slot.inside.store(0, Ordering::Release);
            if self.slot_for_one_call.get() {
                self.give_slot_back();
            }
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
    _alone: MutexGuard<'static, ()>,
}

/// Why the gate was not closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotClosed {
    /// A thread stays inside, or the attempt was given up.
    Busy,
    /// The kernel refuses the barrier that it has promised, so nothing shows that no thread is inside.
    NoBarrier,
}

/// Held while the gate is closed: who opens it opens it for all.
static CLOSING: Mutex<()> = Mutex::new(());

/// Closes the gate and waits until nobody is inside, at most `limit` and while `go_on` says so; an error leaves it open.
pub(crate) fn close(limit: Duration, mut go_on: impl FnMut() -> bool) -> Result<Closed, NotClosed> {
    let alone = lock(&CLOSING);
    let before = STATE.fetch_or(CLOSED, Ordering::SeqCst);
    let closed = Closed { since: Instant::now(), _alone: alone };
    if before & FENCE != 0 {
        // Passing threads have a fence of their own.
        fence(Ordering::SeqCst);
    } else if !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // A filter of system calls that was installed after `init`. Threads that have passed without a fence may not be seen here.
        return Err(NotClosed::NoBarrier);
    }
    let slots = lock(&SLOTS).clone();
    for s in slots {
        while s.inside.load(Ordering::Acquire) != 0 {
            if closed.since.elapsed() > limit || !go_on() {
                return Err(NotClosed::Busy);
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ok(closed)
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
    use crate::thread::here;
    use std::sync::atomic::AtomicU64;

    /// There is one gate for all tests.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    #[test]
    fn nobody_is_inside_a_closed_gate() {
        let _one = lock(&ONE_AT_A_TIME);
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
        assert_eq!(close(Duration::from_millis(20), || true).err(), Some(NotClosed::Busy), "a thread inside keeps the gate open");
        pass.outside(|| assert!(close(Duration::from_millis(20), || true).is_ok()));
        let asked = std::cell::Cell::new(0);
        let twice = || asked.replace(asked.get() + 1) < 2;
        assert!(close(Duration::from_secs(60), twice).is_err() && asked.get() == 3, "it can be given up");
    }

    /// Makes a call when it is dropped: while the gate is closed it has to wait.
    struct CallAtEnd(&'static AtomicU64);

    impl Drop for CallAtEnd {
        fn drop(&mut self) {
            for _ in 0..200 {
                let _pass = enter(here());
                self.0.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(50));
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    #[test]
    fn calls_of_a_thread_that_ends_are_held() {
        let _one = lock(&ONE_AT_A_TIME);
        init();
        static INSIDE: AtomicU64 = AtomicU64::new(0);
        // One is dropped as thread-locals are, the other after everything that a thread has.
        thread_local!(static LOCAL: CallAtEnd = const { CallAtEnd(&INSIDE) });
        extern "C" fn at_key_end(_: *mut libc::c_void) {
            drop(CallAtEnd(&INSIDE));
        }
        let slots = || lock(&SLOTS).len();
        let ended = || {
            std::thread::spawn(|| {
                LOCAL.with(|_| ());
                let _pass = enter(here());
                // A key that is made after ours: its values are destroyed later in each round.
                let mut key = 0;
                // SAFETY: the key is writable, and the function stays; the value is not null and not looked at.
                unsafe {
                    assert_eq!(libc::pthread_key_create(&raw mut key, Some(at_key_end)), 0);
                    libc::pthread_setspecific(key, (&raw const INSIDE).cast());
                }
                key
            })
        };
        let mut closed_often = 0;
        let mut most = 0;
        for round in 0..20 {
            let thread = ended();
            while !thread.is_finished() {
                if let Ok(closed) = close(Duration::from_secs(60), || true) {
                    closed_often += 1;
                    for _ in 0..50 {
                        assert_eq!(INSIDE.load(Ordering::SeqCst), 0, "a call at the end of a thread passes the closed gate");
                    }
                    drop(closed);
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            let key = thread.join().unwrap();
            // SAFETY: made above; its thread is gone.
            unsafe { libc::pthread_key_delete(key) };
            if round == 0 {
                most = slots();
            }
        }
        assert!(closed_often >= 20, "{closed_often}");
        assert_eq!(slots(), most, "the next thread takes the slot of the one before");
    }

    #[test]
    fn without_the_promised_barrier_it_stays_open() {
        let _one = lock(&ONE_AT_A_TIME);
        init();
        let refused = std::thread::spawn(|| {
            refuse_membarrier();
            close(Duration::from_secs(5), || true).err()
        });
        let expected = if STATE.load(Ordering::SeqCst) & FENCE == 0 { Some(NotClosed::NoBarrier) } else { None };
        assert_eq!(refused.join().unwrap(), expected);
        drop(enter(here()));
        assert!(close(Duration::from_secs(5), || true).is_ok(), "other threads have it still");
    }

    /// From now on `membarrier` fails in this thread.
    fn refuse_membarrier() {
        let jump = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let answer = |k| jump(libc::BPF_RET | libc::BPF_K, 0, 0, k);
        let filter = [
            jump(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_membarrier as u32),
            answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            answer(libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: both only concern the calling thread; the program is as long as it says.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
    }
}
