//! `libnvidia-ml.so.1` for the processes of a job: it reports the GPUs that the job sees, at any place, consistently
//! with the recorder.
//!
//! It must not start the job in the calling process: programs call NVML first and fork then, and CUDA must still work
//! in the children. Until the process itself has started CUDA, a separate process (`mrcuda facts`) therefore queries
//! the GPUs; then the recorder of this process does. What neither knows (temperatures, power, links) is
//! `NVML_ERROR_NOT_SUPPORTED`, which NVML also returns where a GPU lacks a feature, so tools must handle it.
//!
//! * [`session`]: start and end, and the facts.
//! * [`exports`]: the functions that are supported; [`unsupported`]: those that are not.
//! * [`code`]: result codes and structures.

// Exported functions carry the names that NVML gives them.
#![allow(non_snake_case)]

mod code;
mod exports;
mod session;
mod unsupported;
