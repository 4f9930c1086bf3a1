//! What the job of an executor may take of the memory of the machine, where that is not the job's own.

use std::sync::atomic::{AtomicBool, Ordering};

/// Limits, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Module images that are kept; also the code of one image, decompressed.
    pub images: u64,
    /// Host memory of the executor's own that is kept like the job's.
    pub pinned: u64,
}

impl Limits {
    /// Of an executor in the job's own process.
    pub(crate) const NONE: Limits = Limits { images: u64::MAX, pinned: u64::MAX };
}

/// Most images, however small: a job that compiles as it goes has thousands.
pub(crate) const MOST_IMAGES: usize = 1 << 20;
/// Most pieces of host memory: a process has no more mappings.
pub(crate) const MOST_PINNED: usize = 1 << 16;

/// Says once on the job's standard error (which a worker's is) that a limit has been met: the error that the program gets does not.
pub(crate) fn tell_once(told: &AtomicBool, what: &str, limit: u64, option: &str) {
    if !told.swap(true, Ordering::Relaxed) {
        eprintln!("mrcuda: this server keeps at most {} MiB of {what} for a job (mrcuda serve {option})", limit >> 20);
    }
}
