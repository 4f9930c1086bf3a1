//! PTX on the CPU: parse, link, run.
//!
//! ```text
//! text --lex--> tokens --parse--> RawModule --decode--> Image --link--> Program --run--> effects on memory
//! ```
//!
//! This module sees device memory only as ranges of addresses of this process. The driver places globals and code,
//! writes initial values, and passes an `Env` with each launch.
//!
//! Decoding turns each function into an array of instructions, each with a pointer to the loop that executes it for the
//! 32 lanes of a warp. `lanes` has those loops, `warp` divergence and calls, `sync` what lanes and warps wait for,
//! `grid` the scheduling of CTAs over CPU threads, `mem` the address windows and checks.
//!
//! `texture` is what texture and surface objects see, `decode_tex` the instructions that use them.
//!
//! What a module uses but the interpreter lacks does not stop it from loading: the function concerned fails when it
//! runs, with `Fault::IllegalInstruction` naming the cause.

mod alu;
mod ast;
mod atomics;
mod bench;
mod builtin;
mod code;
mod cvt;
mod decode;
mod decode_mem;
mod decode_ops;
mod decode_tex;
mod falu;
mod float;
mod grid;
mod image;
mod lanes;
mod lex;
mod mem;
mod parse;
mod printf;
mod program;
mod special;
mod sync;
mod texture;
mod warp;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use ast::Reference;
pub use bench::bench_tiled_matmul;
pub use code::Target;
pub use grid::run;
pub use image::{FunctionInfo, GlobalVar, Image, ParamInfo, Reloc, Space, unlinkable};
pub use mem::Ranges;
pub use program::{CodeMap, Program};
pub use texture::{Channel, Level, Object, Objects, Outside, Sampler, Spot, Tiled};

/// Why a text is not a PTX module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxError {
    /// Line of the text, from 1.
    pub line: usize,
    /// The expected and the found text.
    pub message: String,
}

impl PtxError {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> PtxError {
        PtxError { line, message: message.into() }
    }
}

impl std::fmt::Display for PtxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ptx line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for PtxError {}

/// Addresses chosen by the driver.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// Address of each of `Image::globals`.
    pub globals: Vec<u64>,
    /// Address of the first function; function `i` lies at `code_base + 16 * i`, so that function pointers stay equal
    /// where placement is equal. The addresses need not be mapped.
    pub code_base: u64,
}

/// The memory and services of a launch. Cheap to create for every launch.
pub struct Env {
    /// Accessible memory. Every byte must stay mapped until the launch ends.
    pub ranges: Arc<Ranges>,
    /// Functions of all loaded modules, for indirect calls.
    pub code: Arc<CodeMap>,
    /// Texture and surface objects.
    pub objects: Arc<Objects>,
    /// What texture and surface references were bound to when the kernel was launched, by their address.
    pub references: Arc<Objects>,
    /// Device `malloc` and `free`; its memory must lie within `ranges` from the start.
    pub heap: Arc<dyn DeviceHeap>,
    /// Receives the text of each device `printf` in one piece.
    pub output: Arc<Output>,
    /// Sets a condition of a graph; false: there is none with this handle.
    pub set_condition: fn(handle: u64, value: u32) -> bool,
    /// The launch ends with `Fault::Cancelled` soon after this turns true.
    pub cancel: Arc<AtomicBool>,
    /// Number of CPU threads for the CTAs, including the calling one.
    pub threads: usize,
    /// Frequency of `%clock` and `%clock64` (Hz).
    pub clock_hz: u64,
}

impl Env {
    /// The texture of a number.
    pub(crate) fn texture(&self, number: u64) -> Option<&Arc<Object>> {
        self.objects.textures.get(&number).or_else(|| self.references.textures.get(&number))
    }

    /// The surface of a number.
    pub(crate) fn surface(&self, number: u64) -> Option<&Arc<Object>> {
        self.objects.surfaces.get(&number).or_else(|| self.references.surfaces.get(&number))
    }
}

/// Receives the text of a device `printf`.
pub type Output = dyn Fn(&[u8]) + Send + Sync;

/// Memory for device `malloc`.
pub trait DeviceHeap: Send + Sync {
    /// Allocates `size` bytes, aligned to 16; returns 0 if there is no room.
    fn malloc(&self, size: u64) -> u64;
    /// Frees memory of `malloc`; false if `addr` is not such an address.
    fn free(&self, addr: u64) -> bool;
}

/// A kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The module of the kernel.
    pub program: &'a Arc<Program>,
    /// Index into `Image::functions`.
    pub function: usize,
    /// CTAs in x, y and z.
    pub grid: [u32; 3],
    /// Threads in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory (bytes).
    pub dynamic_shared: u32,
    /// Parameter buffer, with the layout of `FunctionInfo::params`.
    pub params: &'a [u8],
    /// Whether grid-wide synchronization is allowed (a cooperative launch).
    pub cooperative: bool,
}

/// Statistics of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Instructions executed, counted per thread.
    pub thread_instructions: u64,
    /// Instructions issued, each for up to 32 threads.
    pub warp_instructions: u64,
}

/// How a launch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An access outside the memory the kernel may touch.
    IllegalAddress(u64),
    /// An access to an address that is not a multiple of its size.
    MisalignedAddress(u64),
    /// An instruction that the interpreter does not support, named by the text.
    IllegalInstruction(String),
    /// A failed device `assert`, with the text as CUDA prints it.
    Assert(String),
    /// `trap`
    Trap,
    /// A call or branch to an address where no function begins.
    InvalidPc(u64),
    /// All threads of a CTA wait for each other (deadlock).
    Timeout,
    /// `Env::cancel` was set.
    Cancelled,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::IllegalAddress(address) => write!(f, "illegal address {address:#x}"),
            Fault::MisalignedAddress(address) => write!(f, "misaligned address {address:#x}"),
            Fault::IllegalInstruction(what) => write!(f, "illegal instruction: {what}"),
            Fault::Assert(text) => write!(f, "device assertion: {text}"),
            Fault::Trap => write!(f, "trap"),
            Fault::InvalidPc(address) => write!(f, "no function at code address {address:#x}"),
            Fault::Timeout => write!(f, "all threads of a block wait for each other"),
            Fault::Cancelled => write!(f, "cancelled"),
        }
    }
}

impl std::error::Error for Fault {}
