//! The device side, as plain Rust.
//!
//! * [`process`]: per-process state: initialized or not, forked, exiting.
//! * [`device`], [`context`]: devices with their identity, contexts with what they own.
//! * [`memory`]: the table of allocations; [`pool`] cuts `cuMemAlloc` blocks, [`vmm`] reserves and maps, [`host`] pins,
//!   [`place`] places globals and code, [`heap`] is the device-side `malloc`, [`retire`] unmaps memory under running
//!   kernels, [`mempool`] allocates in stream order.
//! * [`mod@array`]: arrays and mipmapped arrays; [`texture`]: texture and surface objects; [`mod@reference`]: references.
//! * [`sched`]: queues of work and the threads that run them; [`stream`], [`event`]: what the program sees of them.
//! * [`copy`]: copies and fills; [`memory_op`] writes words and waits for them, [`synchronous`] says which memory calls wait for.
//!   [`graph`]: captures and instances of graphs.
//! * [`module`], [`launch`]: code and running it; [`output`]: what it prints.

pub(crate) mod array;
pub(crate) mod code;
pub(crate) mod condition;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod heap;
pub(crate) mod host;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod memory_op;
pub(crate) mod mempool;
pub(crate) mod module;
pub(crate) mod os;
pub(crate) mod output;
pub(crate) mod place;
pub(crate) mod pool;
pub(crate) mod process;
pub(crate) mod reference;
pub(crate) mod retire;
pub(crate) mod sched;
pub(crate) mod shared_pool;
pub(crate) mod stream;
pub(crate) mod synchronous;
pub(crate) mod table;
pub(crate) mod texture;
pub(crate) mod tiles;
pub(crate) mod vmm;

// Every critical section here leaves valid data.
pub(crate) use cuda_api::lock::lock;
