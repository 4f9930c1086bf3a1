//! Atomic words and locks for code whose interleavings are modelled: in tests each access is a step at which other threads
//! may run (`interleave`).

#[cfg(not(test))]
pub(crate) use cuda_api::lock::lock;
#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

#[cfg(test)]
pub(crate) use interleave::{AtomicBool, AtomicU32, AtomicU64, lock};

use std::time::{Duration, Instant};

/// Whether this time has passed; in a model, which has no time, both results are tried.
pub(crate) fn has_passed(since: Instant, time: Duration) -> bool {
    #[cfg(test)]
    if let Some(over) = interleave::is_over() {
        return over;
    }
    since.elapsed() >= time
}
