//! What a worker and its daemon say to each other about the memory of a stopped job, which the worker evicts from the GPU.

use cuda_api::wire::{Short, Wire};

/// News of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EvictionNews {
    /// It could evict memory, and waits for leave to have it in host memory.
    Wanted(WantedMemory),
    /// It has evicted its job's memory.
    Evicted(EvictedMemory),
    /// It has not, for this reason, unless it has said so already. It needs no leave any more.
    Stays(Option<String>),
    /// Its job goes on, and the GPU has no room for the memory.
    Waits,
    /// The memory is back, after so many milliseconds from the first attempt on.
    Restored(u64),
}

cuda_api::wire_struct! {
    /// What could be evicted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct WantedMemory {
        /// The number of the question, which the answer names.
        pub(crate) number: u64,
        /// Bytes that would be in host memory.
        pub(crate) bytes: u64,
    }
}

cuda_api::wire_struct! {
    /// What was evicted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct EvictedMemory {
        /// Bytes that are in host memory.
        pub(crate) bytes: u64,
        /// Bytes that the job uses and that stay on the GPU, without those of its context.
        pub(crate) rest: u64,
        /// How many milliseconds it took.
        pub(crate) ms: u64,
    }
}

impl Wire for EvictionNews {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            EvictionNews::Wanted(memory) => (0u8, *memory).put(out),
            EvictionNews::Evicted(memory) => (1u8, *memory).put(out),
            EvictionNews::Stays(why) => (2u8, why.clone()).put(out),
            EvictionNews::Waits => 3u8.put(out),
            EvictionNews::Restored(ms) => (4u8, *ms).put(out),
        }
    }

    fn get(src: &mut &[u8]) -> Result<EvictionNews, Short> {
        match u8::get(src)? {
            0 => Ok(EvictionNews::Wanted(Wire::get(src)?)),
            1 => Ok(EvictionNews::Evicted(Wire::get(src)?)),
            2 => Ok(EvictionNews::Stays(Wire::get(src)?)),
            3 => Ok(EvictionNews::Waits),
            4 => Ok(EvictionNews::Restored(Wire::get(src)?)),
            _ => Err(Short),
        }
    }
}
