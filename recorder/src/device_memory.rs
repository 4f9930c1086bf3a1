//! Device memory: allocations, chunks and pools of each device, and memory that devices and processes share.

pub(crate) mod chunks;
pub(crate) mod imports;
pub(crate) mod mappings;
pub(crate) mod peer;
pub(crate) mod regions;
pub(crate) mod shared_handles;
pub(crate) mod shared_memory;
pub(crate) mod stream_ordered;
pub(crate) mod supply;
pub(crate) mod variables;
