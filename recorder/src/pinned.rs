//! The job's pinned host memory: its blocks, and their addresses among other bytes.

/// Host memory is mapped and registered in pages of this size.
pub(crate) const PAGE: u64 = 4096;

pub(crate) mod blocks;
pub(crate) mod naming;
pub(crate) mod slabs;
