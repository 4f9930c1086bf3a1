//! The atomic words of code whose order of steps has a model: in the tests each access is a step that other threads may come before
//! (`interleave`), else the standard library's.

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

#[cfg(test)]
pub(crate) use interleave::{AtomicBool, AtomicU32, AtomicU64};

use std::time::{Duration, Instant};

/// Whether so much time has passed; in a model, where none does, both are tried.
pub(crate) fn has_passed(since: Instant, time: Duration) -> bool {
    #[cfg(test)]
    if let Some(over) = interleave::is_over() {
        return over;
    }
    since.elapsed() >= time
}
