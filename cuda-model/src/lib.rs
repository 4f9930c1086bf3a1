//! What a CUDA driver answers without a GPU. The recorder and softgpu answer programs with the same code.
//!
//! * [`graph`]: CUDA graphs and stream capture.
//! * [`error_precedence`]: which of several errors a call returns.
//! * [`mod@reference`]: texture and surface references of modules.
//! * [`batch`], [`advice`]: batches of copies and prefetches; advice about managed memory.
//! * [`parts`]: how multiprocessors are divided among green contexts.
//! * [`external`], [`notify`], [`logs`], [`coredump`]: imports of external memory, callbacks, the error log, settings of dumps.
//! * [`old_launch`]: launches in the style of CUDA 3.
//! * [`cudart`]: the private tables that NVIDIA's runtime libraries want from a libcuda.

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
