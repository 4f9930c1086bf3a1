//! `libnvidia-ml.so.1` for the processes of a job: it tells of the GPUs that the job sees, wherever they are, as the shim does.
//!
//! It must not start the job in the process that asks: programs look at NVML first and fork then, and CUDA must still work in the
//! children. So until the process itself has started CUDA, a process of ours asks (`mrcuda facts`); then the shim of this process
//! does. What neither knows (temperatures, power, links) is `NVML_ERROR_NOT_SUPPORTED`, which NVML answers, too, where a GPU lacks
//! something; tools must be prepared for it.
//!
//! * [`session`]: start and end, and the facts.
//! * [`exports`]: the functions that have an answer; [`unsupported`] those that have none.
//! * [`code`]: result codes and structures.

// Exported functions carry the names that NVML gives them.
#![allow(non_snake_case)]

mod code;
mod exports;
mod session;
mod unsupported;
