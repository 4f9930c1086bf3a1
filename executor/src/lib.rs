//! The executor: applies calls to a real CUDA driver, in a separate process or in the job's.
//!
//! * [`Executor`]: opens a driver for one GPU and carries out encoded calls without waiting for the GPU ([`Pending`]).
//! * [`steer`]: makes the driver use the job's addresses, the same in every place.
//! * [`batch`]: several calls in one message.
//! * [`bulk`]: large copies of pageable memory by several threads.
//! * [`staging`]: large copies whose bytes travel over connections of their own.
//! * [`memory_file`]: memory that a job and its worker both map.
//! * [`fork`]: descriptors that forked children do not keep.
//! * [`host_rows`]: rows of a program's memory that copies and fills use.
//! * [`host_mirror`]: host memory of which job and place each have a copy.
//! * [`Sensors`]: what NVML measures of GPUs, without a context.
//! * [`Executor::copy_from_gpu`], [`Executor::copy_to_gpu`], [`Executor::hash`]: used to move memory between places.

pub mod batch;
mod board;
pub mod bulk;
mod device;
mod executor;
pub mod fork;
mod gpu;
mod gpu_memory;
pub mod host_mirror;
pub mod host_rows;
mod limits;
pub mod memory_file;
mod open;
mod page_hash;
mod pending;
mod pools;
pub mod share;
pub mod staging;
pub mod steer;
mod turns;

pub use board::{MOST_PROCESSES, NvmlFacts, Sensors, SensorsError, Usage};
pub use device::{DeviceInfo, processors};
pub use executor::{
    Busy, Difference, Direct, Evictable, Executor, Flight, Global, Hashes, LANE_OF_JOB, NotEvicted, Piece, Pinned, Runner, Shown,
    SourceMemoryError, Span, Theirs, compare_globals, joined,
};
pub use gpu_memory::{Account, GpuMemory};
pub use limits::{Budget, Held, Limits};
pub use open::{OpenError, Options, bound, preload};
pub use page_hash::{NO_HASH, PAGE_BYTES, PageHash, PageKey, ProofKeys};
pub use pending::{Applied, Pending};
