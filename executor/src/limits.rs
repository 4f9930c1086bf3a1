//! Limits on the use of the machine's memory by the job of an executor, where the machine is not the job's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Limits, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For stored module images; also for the decompressed code of one image.
    pub images: u64,
    /// For the host memory that is kept pinned ([`Budget`]).
    pub pinned: u64,
    /// For the GPU memory of the job.
    pub memory: u64,
}

impl Limits {
    /// For an executor in the job's own process.
    pub(crate) const NONE: Limits = Limits { images: u64::MAX, pinned: u64::MAX, memory: u64::MAX };
}

/// The host memory that is kept pinned for a job: mirrored memory, staging areas, and the rings of connections over RDMA.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
}

impl Budget {
    /// Creates a budget of so many bytes.
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { limit: AtomicU64::new(limit), used: AtomicU64::new(0) })
    }

    /// Bytes that may be used at a time.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Uses bytes until the result is dropped. `None` if that is more than may be used.
    pub fn hold(self: &Arc<Self>, bytes: u64) -> Option<Held> {
        self.hold_beside(bytes, 0)
    }

    /// As [`Budget::hold`], but so many other bytes must be free afterwards.
    pub fn hold_beside(self: &Arc<Self>, bytes: u64, others: u64) -> Option<Held> {
        let limit = self.limit();
        let more = |used: u64| used.checked_add(bytes).filter(|used| used.checked_add(others).is_some_and(|all| all <= limit));
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Held { budget: self.clone(), bytes })
    }

    /// What was [kept](Held::keep) is not used any more.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes of a [`Budget`] that are used as long as this exists.
#[derive(Debug)]
pub struct Held {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Held {
    /// They are used until [`Budget::give_back`].
    pub(crate) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// Maximum number of images, however small: a job that compiles at run time has thousands.
pub(crate) const MAX_IMAGES: usize = 1 << 20;
/// Maximum number of blocks of host memory: a process cannot have more mappings.
pub(crate) const MAX_PINNED_BLOCKS: usize = 1 << 16;

/// Reports once on the job's standard error (which a worker inherits) that a limit was reached: the error code that the program gets does
/// not show it.
pub(crate) fn report_once(reported: &AtomicBool, what: &str, limit: u64, option: &str) {
    if !reported.swap(true, Ordering::Relaxed) {
        eprintln!("mrcuda: this server keeps at most {} MiB of {what} for a job (mrcuda serve {option})", limit >> 20);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_exceeded_and_what_is_dropped_can_be_used_again() {
        let budget = Budget::new(100);
        let (a, b) = (budget.hold(60).unwrap(), budget.hold(40).unwrap());
        assert!(budget.hold(1).is_none() && budget.hold(u64::MAX).is_none());
        drop(a);
        assert!(budget.hold(61).is_none());
        budget.hold(60).unwrap().keep();
        assert!(budget.hold(1).is_none());
        drop(b);
        budget.give_back(60);
        assert!(budget.hold_beside(60, 41).is_none() && budget.hold_beside(1, u64::MAX).is_none());
        assert!(budget.hold_beside(60, 40).is_some());
        assert!(budget.hold(100).is_some());
    }
}
