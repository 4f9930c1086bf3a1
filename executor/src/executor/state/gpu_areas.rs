//! What belongs to staging areas in the GPU's memory.

use crate::gpu_memory::HeldMemory;
use crate::staging::Room;
use std::sync::Arc;

/// The areas of a context.
#[derive(Debug, Default)]
pub(crate) struct GpuAreas {
    /// Where addresses are reserved for them,
    pub(crate) base: Option<u64>,
    /// and how many bytes of them are used.
    pub(crate) used: u64,
    /// The job's account of GPU memory.
    pub(crate) held: Vec<HeldMemory>,
    /// Areas that no connection uses: their words are registered.
    pub(crate) refused: Vec<Arc<Room>>,
}
