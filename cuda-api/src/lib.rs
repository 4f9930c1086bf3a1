//! The CUDA driver API as data: each function is one row, everything else follows from the rows.
//!
//! * [`calls`]: the rows, by family. A row gives an id, a class, how it is executed and an argument kind per parameter.
//! * [`arg`]: the argument kinds: the only place that knows what a C parameter means.
//! * [`mod@pointer`], [`copy`]: C pointers and structures that calls without a row of argument kinds read and write.
//! * [`ops`]: the few operations that peculiar functions are turned into before they travel.
//! * [`wire`]: the byte encoding shared by the connection and the journal.
//! * [`work`]: what nodes of graphs do, and whole graphs, as they travel.
//! * [`mod@array`]: shapes of arrays, textures and surfaces as plain values.
//! * [`mod@reference`]: settings of texture and surface references as they travel.
//! * [`handle`]: the numbers that stand for streams, events, modules, … in every place.
//! * [`driver`]: a loaded libcuda, a table of entry points with holes where a symbol is missing.
//! * [`board`]: what only NVML tells of a GPU.
//! * [`facts`]: what a driver says of its GPUs, all at once.
//! * [`versions`]: which symbol `cuGetProcAddress` means by a base name and a version.
//!
//! What a driver answers by rules alone, without a GPU, is in the crate `cuda-model`; module images are in `cuda-image`.

pub mod arg;
pub mod array;
pub mod board;
pub mod calls;
pub mod class;
pub mod code;
pub mod copy;
pub mod driver;
pub mod facts;
pub mod few;
#[cfg(test)]
mod fuzz;
pub mod handle;
pub mod ops;
pub mod pci;
pub mod pointer;
pub mod reference;
pub mod versions;
pub mod wire;
pub mod work;

pub use class::{Class, How};
pub use cudarc::driver::sys;
