//! softgpu: a strict CUDA driver on the CPU, a second `libcuda.so.1` for machines without a GPU.
//!
//! It is a test bed, not a product: as strict as hardware, and somewhat more random. Bad pointers and handles fail,
//! asynchronous work starts late, and independent streams interleave at random by seed, so that a missing wait is
//! detected.
//!
//! * [`abi`]: the exported functions, by subject. They check arguments and call the other modules.
//! * [`gpu`]: devices, contexts, streams, memory, modules, launches, as plain Rust.
//! * [`nvml`]: the NVML functions that a place calls, exported as well.
//! * [`ptx`]: parsing and executing PTX.
//!
//! [`abi`] and [`nvml`] use [`gpu`], which uses [`ptx`], and never the other way round. Inside each of them the files lie
//! in layers, too (docs/modules.md).
//!
//! Device memory is memory of this process at the device address; there is no second address space. Settings are
//! environment variables, listed at [`config`].
//!
//! The flags, keys and limits of cuda.h are written down here anew, and not taken from `cuda_api::flags`: a driver does not share them with
//! mrcuda either, and a wrong number in one of the two is then found by the tests. What is in `cuda-model` is shared on purpose.

mod abi;
mod config;
mod gpu;
mod nvml;
pub mod ptx;
mod result;
