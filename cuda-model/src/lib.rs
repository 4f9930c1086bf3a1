//! The answers of a CUDA driver that need no GPU. The recorder and softgpu share this code.
//!
//! * [`graph`]: CUDA graphs and stream capture.
//! * [`error_precedence`]: which of several errors a call returns.
//! * [`mod@reference`]: texture and surface references of modules.
//! * [`batch`], [`advice`]: batches of copies and prefetches; advice about managed memory.
//! * [`parts`]: partitions of multiprocessors for green contexts.
//! * [`external`], [`notify`], [`logs`], [`coredump`]: imports of external memory, callbacks, the error log, settings
//!   of core dumps.
//! * [`old_launch`]: launches in the style of CUDA 3.
//! * [`cudart`]: the private tables that NVIDIA's runtime libraries request from a libcuda.

pub mod advice;
pub mod batch;
pub mod coredump;
pub mod cudart;
pub mod error_precedence;
pub mod external;
pub mod graph;
pub mod logs;
pub mod notify;
pub mod old_launch;
pub mod parts;
pub mod reference;
