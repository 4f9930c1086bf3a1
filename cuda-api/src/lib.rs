//! The CUDA driver API as data: each function is one row, everything else follows from the rows.
//!
//! * [`calls`]: the rows, by family. A row gives an id, a class, how it is executed and an argument kind per parameter.
//! * [`arg`]: the argument kinds: the only place that knows what a C parameter means.
//! * [`ops`]: the few operations that peculiar functions are turned into before they travel.
//! * [`wire`]: the byte encoding shared by the connection and the journal.
//! * [`mod@array`]: shapes of arrays, textures and surfaces as plain values.
//! * [`mod@reference`]: texture and surface references of modules.
//! * [`handle`]: the numbers that stand for streams, events, modules, … in every place.
//! * [`driver`]: a loaded libcuda, a table of entry points with holes where a symbol is missing.
//! * [`board`]: what only NVML tells of a GPU.
//! * [`facts`]: what a driver says of its GPUs, all at once.
//! * [`versions`]: which symbol `cuGetProcAddress` means by a base name and a version.
//! * [`image`]: module images: sizes, entries, names in them.
//! * [`graph`]: CUDA graphs and stream capture, as far as they need no GPU.
//! * [`cudart`]: the private tables that NVIDIA's runtime libraries want from a libcuda.

pub mod advice;
pub mod arg;
pub mod array;
pub mod batch;
pub mod board;
pub mod calls;
pub mod class;
pub mod code;
pub mod coredump;
pub mod cudart;
pub mod driver;
pub mod error_precedence;
pub mod external;
pub mod facts;
pub mod few;
#[cfg(test)]
mod fuzz;
pub mod graph;
pub mod handle;
pub mod image;
pub mod logs;
pub mod notify;
pub mod old_launch;
pub mod ops;
pub mod parts;
pub mod pci;
pub mod reference;
pub mod versions;
pub mod wire;

pub use class::{Class, How};
pub use cudarc::driver::sys;
