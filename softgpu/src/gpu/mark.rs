//! The completion of work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The completion of a piece of work.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    done: AtomicBool,
    nanoseconds: AtomicU64,
}

impl Mark {
    /// Whether the work has completed.
    pub fn done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// When it ended, in nanoseconds of the process's clock; meaningful once done.
    pub fn nanoseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Acquire)
    }

    /// Records that the work has ended, at this time.
    pub fn complete(&self, nanoseconds: u64) {
        self.nanoseconds.store(nanoseconds, Ordering::Release);
        self.done.store(true, Ordering::Release);
    }
}
