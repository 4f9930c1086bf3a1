//! Cancellation of the program's threads (`pthread_cancel`), which must not take effect inside a call.

use std::ffi::c_int;

unsafe extern "C" {
    /// Part of POSIX; the crate `libc` lacks it for Linux.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Disables cancellation (`pthread_cancel`) of the calling thread until dropped: cancellation unwinds the stack, which would abort the
/// process in Rust code that catches panics, and would leave shared state inconsistent.
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    #[inline]
    /// Disables it, until the value returned is dropped.
    #[must_use]
    pub fn begin() -> Uncancelled {
        /// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: `before` is writable.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: as above; the state is one that the thread had.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}
