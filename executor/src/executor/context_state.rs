//! State with the lifetime of a context: the executor's own code, transfer streams and reference event.

use super::own::{Own, warm_up};
use crate::gpu::Gpu;
use crate::pools::Pools;
use cuda_api::address_map::{GRANULE, own_base};
use cuda_api::code::Code;
use std::sync::Arc;

/// Number of transfer streams, for copies besides the work on the job's streams.
const LANES: usize = 8;

/// As the number of a transfer stream: the one for copies between GPUs of the job.
pub const LANE_OF_JOB: usize = usize::MAX;

/// State of a context from its creation to its destruction.
#[derive(Debug)]
pub(crate) struct ContextState {
    /// Unique in the process.
    pub(crate) number: u64,
    pub(crate) pools: Arc<Pools>,
    pub(crate) own: Own,
    /// The transfer streams. The last one is for copies of the job, see [`ContextState::lane_of_job`].
    pub(crate) lanes: [u64; LANES],
    /// A blocking stream without work of its own: an event in it comes behind all present work of the legacy default stream.
    pub(crate) follower: u64,
    /// The event relative to which event times are measured.
    pub(crate) reference: u64,
    /// An event that is recorded where a stream needs some work.
    pub(crate) turn: u64,
}

impl ContextState {
    /// Initializes a context that was just created and is current; the arena is reserved and empty. The order is that of
    /// docs/migration.md, "Preparing a place", so that what the job loads later is at the same addresses in every place.
    pub(crate) fn begin(gpu: &Gpu, virtual_device: u32, number: u64) -> Result<ContextState, (&'static str, Code)> {
        let priorities = gpu.priorities().map_err(|rc| ("cuCtxGetStreamPriorityRange", rc))?;
        let room = own_base(virtual_device);
        let warm = (|| {
            let memory = gpu.create_memory(GRANULE, false)?;
            let used = gpu.map(room, GRANULE, memory).and_then(|()| {
                let warm = gpu.allow(room, GRANULE).and_then(|()| warm_up(gpu, priorities, room));
                warm.and(gpu.unmap(room, GRANULE))
            });
            used.and(gpu.release_memory(memory))
        })();
        warm.map_err(|rc| ("preparing the context", rc))?;
        let own = Own::load(gpu, virtual_device).map_err(|rc| ("loading the executor's own code", rc))?;
        let mut lanes = [0; LANES];
        for lane in &mut lanes {
            *lane = gpu.new_stream().map_err(|rc| ("cuStreamCreate", rc))?;
        }
        let follower = gpu.new_stream_with_priority(true, 0).map_err(|rc| ("cuStreamCreate", rc))?;
        let reference = gpu
            .new_event(true)
            .and_then(|e| gpu.record(e, lanes[0]).map(|()| e))
            .and_then(|e| gpu.synchronize_stream(lanes[0]).map(|()| e))
            .map_err(|rc| ("recording the reference event", rc))?;
        let turn = gpu.new_event(true).map_err(|rc| ("cuEventCreate", rc))?;
        Ok(ContextState { number, pools: Arc::new(Pools::new(gpu.clone())), own, lanes, follower, reference, turn })
    }

    /// The transfer stream with this number, for the executor's own copies and kernels, which those of a move are.
    pub(crate) fn lane(&self, number: usize) -> u64 {
        if number == LANE_OF_JOB { self.lane_of_job() } else { self.lanes[number % (LANES - 1)] }
    }

    /// The transfer stream for copies between GPUs of the job. It has nothing else to do: a kernel of a move may be queued behind a kernel
    /// of the job that waits for such a copy.
    pub(crate) fn lane_of_job(&self) -> u64 {
        self.lanes[LANES - 1]
    }

    /// Releases what is not released by destroying the context.
    pub(crate) fn end(&self, gpu: &Gpu) {
        self.pools.clear();
        // Errors mean that the context was already destroyed with all of this.
        for stream in self.lanes.into_iter().chain([self.follower]) {
            let _ = gpu.destroy_stream(stream);
        }
        let _ = gpu.destroy_event(self.reference);
        let _ = gpu.destroy_event(self.turn);
        self.own.unload(gpu);
    }
}
