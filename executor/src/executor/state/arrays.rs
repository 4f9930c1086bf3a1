//! The arrays, objects and pools of tiles of a place.

use crate::gpu::Gpu;
use crate::gpu_memory::HeldMemory;
use cuda_api::array::WINDOWS;
use cuda_api::code::Code;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// An array or mipmapped array.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) window: u64,
    pub(crate) live: u64,
    /// The job's handles of the levels of a mipmapped array.
    pub(crate) levels: Vec<u64>,
    /// Its memory, if it has any of its own.
    pub(crate) _held: Option<HeldMemory>,
}

/// The contents of an array, or of memory to which tiles are mapped.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) bytes: u64,
    /// The driver's arrays, one for each level, and their shape: bytes of a row, rows, slices.
    pub(crate) arrays: Vec<u64>,
    pub(crate) shapes: Vec<[u64; 3]>,
}

/// The arrays and objects of a place.
#[derive(Debug, Default)]
pub(crate) struct Arrays {
    pub(crate) made: HashMap<u64, Made>,
    pub(crate) windows: BTreeMap<u64, Window>,
    /// Memory to which tiles are mapped.
    pub(crate) pools: HashMap<u64, Pool>,
    /// Numbers of objects, and whether they are surfaces.
    pub(crate) objects: HashMap<u64, (u64, bool)>,
    /// Deadline of the wait for numbers to become free, if there is such a wait.
    pub(crate) until: Option<Instant>,
}

/// Returns whether a number refers to contents of arrays.
pub(crate) fn is_window(number: u64) -> bool {
    number >= WINDOWS
}

impl Arrays {
    /// Returns whether a window is free.
    pub(crate) fn has_room(&self, window: u64, bytes: u64) -> bool {
        let Some(end) = window.checked_add(bytes).filter(|_| bytes > 0 && is_window(window)) else { return false };
        self.windows.range(..end).next_back().is_none_or(|(at, w)| at + w.bytes <= window)
    }
}

/// Memory to which tiles are mapped.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The driver's handle.
    pub(crate) memory: u64,
    pub(crate) window: u64,
    pub(crate) viewers: Vec<u64>,
    pub(crate) _held: HeldMemory,
}

impl Pool {
    /// Frees everything.
    pub(crate) fn end(self, gpu: &Gpu) -> Result<(), Code> {
        let ended = self.viewers.iter().try_for_each(|viewer| gpu.destroy_array(*viewer, false));
        ended.and(gpu.release_memory(self.memory))
    }
}
