//! The CUDA driver API as data: each function is one row, and everything else is derived from the rows.
//!
//! * [`calls`]: the rows, by family. A row gives an id, a class, how it is executed and an argument kind per parameter.
//! * [`arg`]: the argument kinds, which define the meaning of C parameters.
//! * [`mod@answer`]: what the argument kinds of functions mean that the job's process answers.
//! * [`precedence`]: the order of the driver's checks, of which a row lists the first.
//! * [`mod@pointer`]: the program's pointers, as types through which irregular calls read and write.
//! * [`copy`]: descriptions of copies as plain values.
//! * [`ops`]: operations, a few common forms into which irregular functions are turned before they are sent.
//! * [`wire`]: the byte encoding shared by the connection and the journal.
//! * [`work`]: the work of graph nodes, and whole graphs, in their encoded form.
//! * [`graph`]: the structures of cuda.h that describe nodes of graphs, as plain values.
//! * [`mod@array`]: shapes of arrays, textures and surfaces as plain values.
//! * [`memory`]: descriptions of memory as plain values.
//! * [`mod@reference`]: encoded settings of texture and surface references.
//! * [`handle`]: the numbers that identify streams, events, modules, … in every place.
//! * [`launch_args`]: parameters of kernels, and launch configurations.
//! * [`driver`]: a loaded libcuda: a table of entry points, with gaps where a symbol is missing.
//! * [`board`]: properties of a GPU that only NVML reports.
//! * [`facts`]: all properties of a driver's GPUs.
//! * [`mod@cancellation`]: no cancellation of the program's threads inside a call, for both libraries that a program loads.
//! * [`mod@lock`]: locks that outlive a panic of their holder, for all crates.
//! * [`mod@spin`]: waiting without sleeping, as long as that is cheaper.
//! * [`flags`]: flags and keys of cuda.h.
//! * [`address_map`]: which addresses the job's memory has in every place, and the limits that follow from it.
//! * [`versions`]: which symbol `cuGetProcAddress` selects for a base name and a version.
//!
//! What a driver answers without a GPU is in the crate `cuda-model`; module images are in `cuda-image`.

#[macro_use]
pub mod precedence;

pub mod address_map;
pub mod answer;
pub mod arg;
pub mod array;
pub mod board;
pub mod calls;
pub mod cancellation;
pub mod class;
pub mod clock;
pub mod code;
pub mod copy;
pub mod driver;
pub mod facts;
pub mod few;
pub mod flags;
#[cfg(test)]
mod fuzz;
pub mod graph;
pub mod handle;
pub mod hex;
pub mod launch_args;
pub mod lock;
pub mod memory;
pub mod ops;
pub mod pci;
pub mod pointer;
pub mod reference;
pub mod spin;
pub mod versions;
pub mod wire;
pub mod work;

pub use class::{Class, How};
pub use cudarc::driver::sys;
