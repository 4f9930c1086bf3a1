//! Futexes: sleeping on a word of memory and waking the sleepers, in this process or in another that shares the
//! memory.

use crate::sync::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `value`, for at most `limit`. It may return spuriously.
pub(crate) fn wait(word: &AtomicU32, value: u32, limit: Duration) {
    // In a model there are no timeouts, so that code that relies on them is detected.
    #[cfg(test)]
    if interleave::sleep(word, value) {
        return;
    }
    let t = libc::timespec { tv_sec: limit.as_secs().min(1 << 30) as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // SAFETY: `word` and `t` live across the call; the kernel only reads them.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const t) };
}

/// As [`wait`], for a time so short that no other thread needs to wake the sleeper.
pub(crate) fn nap(word: &AtomicU32, value: u32, limit: Duration) {
    #[cfg(test)]
    if interleave::pause() {
        return;
    }
    wait(word, value, limit);
}

/// Wakes every thread that sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    #[cfg(test)]
    if interleave::wake(word) {
        return;
    }
    // SAFETY: only the address of `word` is used.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(test)]
mod model;
