//! What each function of the driver means: one file for each family. The kinds of objects are in one table ([`registry`]).

// The program's pointers come as types that need no `unsafe` (`cuda_api::pointer`, `HostRows`). Each function that does otherwise says why.
#![deny(unsafe_code)]

pub(crate) mod array;
pub(crate) mod array_copy;
pub(crate) mod context;
pub(crate) mod context_events;
pub(crate) mod copy;
pub(crate) mod cross_device;
pub(crate) mod device;
pub(crate) mod external;
pub(crate) mod graph;
pub(crate) mod green;
pub(crate) mod host_function;
pub(crate) mod ipc;
pub(crate) mod jit_options;
pub(crate) mod launch;
pub(crate) mod linker;
pub(crate) mod logs_and_coredump;
pub(crate) mod managed;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod old_launch;
pub(crate) mod reference;
pub(crate) mod registry;
pub(crate) mod spare_events;
pub(crate) mod stream;
pub(crate) mod stream_attributes;
pub(crate) mod stream_memory;
pub(crate) mod tensor_map;
pub(crate) mod texture;
pub(crate) mod tiles;
pub(crate) mod vmm;
