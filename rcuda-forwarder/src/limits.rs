//! Resource limits for the clients of a server.

use cuda_api::wire_struct;
use faults::Faults;
use std::time::Duration;

/// How long a job may acknowledge no data before its worker ends: its user may stop it for a while, but a machine that
/// is gone must not keep a GPU.
pub(crate) const JOB_UNACKNOWLEDGED: Duration = Duration::from_secs(300);

const GIB: u64 = 1 << 30;

/// Limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum number of workers with a client.
    pub(crate) workers: u32,
    /// Maximum for one client address over TCP.
    pub(crate) client_workers: u32,
    /// Limits of each client and GPU.
    pub(crate) clients: ClientLimits,
    /// Workers without a client that are kept warm for each GPU; at least 1.
    pub(crate) warm: u32,
    /// Limits of each worker.
    pub(crate) of_worker: WorkerLimits,
    /// When the memory of stopped jobs is evicted; `None`: it is not.
    pub(crate) evict_stopped: Option<EvictStopped>,
}

/// When the memory of jobs that are stopped is evicted from GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictStopped {
    /// After how many seconds in which a job gives no sign of life, and so leaves as many heartbeats unanswered.
    pub after: u32,
    /// Bytes of host memory for it, for all jobs together.
    pub memory: u64,
}

impl EvictStopped {
    /// The fewest seconds for `after`: a job that bears the silence of its server for 10 s must not be taken for stopped sooner.
    pub fn shortest() -> u32 {
        if Faults::from_env().short_silence { 2 } else { 15 }
    }
}

/// Limits of what clients use together; `None`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientLimits {
    /// Bytes of GPU memory of all jobs of one client.
    pub memory: Option<u64>,
    /// Workers that one client address may start in a minute over TCP.
    pub rate: Option<u32>,
    /// Workers with a client for each GPU; 1: GPUs are exclusive.
    pub gpu_jobs: Option<u32>,
}

wire_struct! {
    /// Limits of one worker, in bytes of host memory, except for that of the GPU.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct WorkerLimits {
        /// Module images that it keeps; also the maximum decompressed size of the code of one image.
        pub images: u64,
        /// Queued calls that wait for the job to complete its part of an earlier one.
        pub queue: u64,
        /// Host memory that mirrors the job's.
        pub pinned: u64,
        /// Memory of a parked device; pages of zeros take none.
        pub parked: u64,
        /// Memory of the GPU.
        pub memory: u64,
    }
}

impl Limits {
    /// The limits of a server with this number of GPUs; defaults depend on that number.
    pub(crate) fn new(
        gpus: u32,
        workers: Option<u32>,
        client_workers: Option<u32>,
        clients: ClientLimits,
        warm: u32,
        of_worker: WorkerLimits,
        evict_stopped: Option<EvictStopped>,
    ) -> Limits {
        let usual = gpus.saturating_mul(16).max(32);
        let (workers, client_workers) = (workers.unwrap_or(4 * usual), client_workers.unwrap_or(usual));
        Limits { workers, client_workers, clients, warm: warm.max(1), of_worker, evict_stopped }
    }
}

impl WorkerLimits {
    /// The default limits of a server: pinned memory, and memory of a parked device, up to half of the machine's; all memory of the GPU.
    pub fn of_machine() -> WorkerLimits {
        // SAFETY: plain questions without pointers.
        let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        let memory = u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(page).unwrap_or(0));
        let half = (memory / 2).max(GIB);
        WorkerLimits { images: 8 * GIB, queue: 2 * GIB, pinned: half, parked: half, memory: u64::MAX }
    }

    /// The default limits of a server whose workers have so much host memory: each kind of it up to half, so that a job that needs more than
    /// that is refused before the kernel ends its worker.
    pub fn within(host_memory: Option<u64>) -> WorkerLimits {
        let (usual, half) = (WorkerLimits::of_machine(), host_memory.map_or(u64::MAX, |all| all / 2));
        WorkerLimits {
            images: usual.images.min(half),
            queue: usual.queue.min(half),
            pinned: usual.pinned.min(half),
            parked: usual.parked.min(half),
            ..usual
        }
    }

    /// The limits of a helper: none, except for the memory of a parked device.
    pub(crate) const NONE: WorkerLimits =
        WorkerLimits { images: u64::MAX, queue: u64::MAX, pinned: u64::MAX, parked: u64::MAX, memory: u64::MAX };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_host_memory_fits_into_the_whole() {
        let usual = WorkerLimits::of_machine();
        assert_eq!([WorkerLimits::within(None), WorkerLimits::within(Some(u64::MAX))], [usual; 2]);
        let WorkerLimits { images, queue, pinned, parked, memory } = WorkerLimits::within(Some(3 * GIB));
        let half = 3 * GIB / 2;
        assert_eq!((images, queue, pinned.max(parked) <= half, memory), (half, half, true, u64::MAX));
        // A limit that is tighter already stays.
        assert_eq!((WorkerLimits::within(Some(8 * GIB)).queue, WorkerLimits::within(Some(8 * GIB)).images), (2 * GIB, 4 * GIB));
    }
}
