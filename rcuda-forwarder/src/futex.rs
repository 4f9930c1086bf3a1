//! Sleeping on a word of memory and waking who sleeps there, in this process or in another that shares the memory.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `value`, at most for `limit`. May return early for no reason.
pub(crate) fn wait(word: &AtomicU32, value: u32, limit: Duration) {
    let t = libc::timespec { tv_sec: limit.as_secs().min(1 << 30) as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // SAFETY: `word` and `t` live across the call; the kernel only reads them.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const t) };
}

/// Wakes every thread that sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: only the address of `word` is used.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
