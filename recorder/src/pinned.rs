//! The job's pinned host memory: its blocks, and their addresses among other bytes.

pub(crate) use cuda_api::address_map::PAGE;

pub(crate) mod blocks;
pub(crate) mod naming;
pub(crate) mod slabs;
