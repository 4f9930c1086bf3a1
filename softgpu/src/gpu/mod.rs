//! The device side, as plain Rust.
//!
//! * [`process`]: per-process state: initialized or not, forked, exiting.
//! * [`device`], [`context`]: devices with their identity, contexts by handle and thread; [`live`]: what an active context
//!   has, [`wait`]: waits for all its work, [`teardown`]: its end.
//! * [`memory`]: the table of allocations; [`allocation`] makes and frees them. [`pool`] cuts `cuMemAlloc` blocks,
//!   [`physical`] is memory of `cuMemCreate`, which [`vmm`] maps, [`host`] pins, [`place`] places globals and code, [`heap`]
//!   is the device-side `malloc`, [`retire`] unmaps memory under running kernels; [`stream_ordered`] allocates from pools
//!   ([`mempool`]), [`shared_pool`] shares them with processes.
//! * [`mod@array`]: arrays and mipmapped arrays; [`tiles`], [`tile_mapping`]: those without memory; [`texture`]: texture and
//!   surface objects; [`mod@reference`]: references.
//! * [`sched`]: queues of work and the threads that run them, [`mark`]: its completion; [`stream`], [`event`]: what the
//!   program sees of them, [`stream_state`]: what a stream keeps.
//! * [`copy`]: copies and fills; [`memory_op`] writes words and waits for them, [`synchronous`] says which memory calls wait for.
//! * [`graph_table`]: graphs, [`capture`]: their captures, [`graph`]: their instances, [`condition`]: their conditions.
//! * [`module`], [`attributes`], [`launch`]: code and running it; [`code`] finds its PTX; [`output`]: what it prints.

pub(crate) mod allocation;
pub(crate) mod array;
pub(crate) mod attributes;
pub(crate) mod capture;
pub(crate) mod code;
pub(crate) mod condition;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod engines;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod graph_table;
pub(crate) mod heap;
pub(crate) mod host;
pub(crate) mod launch;
pub(crate) mod live;
pub(crate) mod mark;
pub(crate) mod memory;
pub(crate) mod memory_op;
pub(crate) mod mempool;
pub(crate) mod module;
pub(crate) mod os;
pub(crate) mod output;
pub(crate) mod physical;
pub(crate) mod place;
pub(crate) mod pool;
pub(crate) mod process;
pub(crate) mod reference;
pub(crate) mod retire;
pub(crate) mod sched;
pub(crate) mod shared_pool;
pub(crate) mod stream;
pub(crate) mod stream_ordered;
pub(crate) mod stream_state;
pub(crate) mod synchronous;
pub(crate) mod table;
pub(crate) mod teardown;
pub(crate) mod texture;
pub(crate) mod tile_mapping;
pub(crate) mod tiles;
pub(crate) mod vmm;
pub(crate) mod wait;

// Every critical section here leaves valid data.
pub(crate) use cuda_api::lock::lock;
