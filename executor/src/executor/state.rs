//! What an executor knows, by subject. The functions on it are in the files of the same subjects beside this one.

pub(crate) mod arrays;
pub(crate) mod at_rest;
pub(crate) mod buffers;
pub(crate) mod copy_nodes;
pub(crate) mod evicted;
pub(crate) mod gpu_areas;
pub(crate) mod gpu_blocks;
pub(crate) mod graphs;
pub(crate) mod holds;
pub(crate) mod host_calls;
pub(crate) mod mappings;
pub(crate) mod modules;
pub(crate) mod pinned;
pub(crate) mod shape;
