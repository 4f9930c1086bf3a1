//! Limits on the use of the machine's memory by the job of an executor, where the machine is not the job's own.

use std::sync::atomic::{AtomicBool, Ordering};

/// Limits, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For stored module images; also for the decompressed code of one image.
    pub images: u64,
    /// For the executor's copies of mirrored host memory.
    pub pinned: u64,
}

impl Limits {
    /// For an executor in the job's own process.
    pub(crate) const NONE: Limits = Limits { images: u64::MAX, pinned: u64::MAX };
}

/// Maximum number of images, however small: a job that compiles at run time has thousands.
pub(crate) const MOST_IMAGES: usize = 1 << 20;
/// Maximum number of blocks of host memory: a process cannot have more mappings.
pub(crate) const MOST_PINNED: usize = 1 << 16;

/// Reports once on the job's standard error (which a worker inherits) that a limit was reached: the error code that the program gets does
/// not show it.
pub(crate) fn tell_once(told: &AtomicBool, what: &str, limit: u64, option: &str) {
    if !told.swap(true, Ordering::Relaxed) {
        eprintln!("mrcuda: this server keeps at most {} MiB of {what} for a job (mrcuda serve {option})", limit >> 20);
    }
}
