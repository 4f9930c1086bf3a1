//! What the clients of a server may take of its machine.

use cuda_api::wire_struct;

const GIB: u64 = 1 << 30;

/// Limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Workers with a client at one time, in all.
    pub(crate) workers: u32,
    /// Of one client over TCP: one address.
    pub(crate) client_workers: u32,
    /// What each worker may take.
    pub(crate) of_worker: WorkerLimits,
}

wire_struct! {
    /// What one worker may take, in bytes of the machine's memory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct WorkerLimits {
        /// Module images that it keeps; also the code of one image, decompressed.
        pub images: u64,
        /// Calls that wait until the job has done its part of an earlier one.
        pub queue: u64,
        /// Host memory that it keeps like the job's.
        pub pinned: u64,
    }
}

impl Limits {
    /// Of a server with so many GPUs; what is not said depends on their number.
    pub(crate) fn new(gpus: u32, workers: Option<u32>, client_workers: Option<u32>, of_worker: WorkerLimits) -> Limits {
        let usual = gpus.saturating_mul(16).max(32);
        let (workers, client_workers) = (workers.unwrap_or(4 * usual), client_workers.unwrap_or(usual));
        Limits { workers, client_workers, of_worker }
    }
}

impl WorkerLimits {
    /// What a server allows that is not told otherwise: pinned memory up to half of the machine's.
    pub fn of_machine() -> WorkerLimits {
        // SAFETY: plain questions without pointers.
        let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        let memory = u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(page).unwrap_or(0));
        WorkerLimits { images: 8 * GIB, queue: 2 * GIB, pinned: (memory / 2).max(GIB) }
    }

    /// Of a worker that the job itself has started.
    pub(crate) const NONE: WorkerLimits = WorkerLimits { images: u64::MAX, queue: u64::MAX, pinned: u64::MAX };
}
