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
//! 32 lanes of a warp: `decode` a whole function, `decode_mem`, `decode_ops` and `decode_tex` its instructions, `decoder`
//! their operands. `machine` has the state of warps and CTAs and the code that they run, `lanes` the loops, `warp`
//! divergence, `control` branches and calls, `sync` what lanes and warps wait for, `grid` the scheduling of CTAs over CPU
//! threads, `window` the windows of addresses, `mem` loads and stores with their checks.
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
mod control;
mod cvt;
mod decode;
mod decode_mem;
mod decode_ops;
mod decode_tex;
mod decoder;
mod env;
mod error;
mod falu;
mod float;
mod grid;
mod image;
mod lanes;
mod lex;
mod machine;
mod mem;
mod operand;
mod parse;
mod printf;
mod program;
mod spec;
mod special;
mod symbol;
mod sync;
mod texture;
mod warp;
mod window;

#[cfg(test)]
mod tests;

pub use ast::Reference;
pub use bench::bench_tiled_matmul;
pub use env::{DeviceHeap, Env, Output};
pub use error::{Fault, PtxError};
pub use grid::{Launch, RunStats, run};
pub use image::{FunctionInfo, GlobalVar, Image, ParamInfo, Reloc, Space, unlinkable};
pub use machine::Code;
pub use program::{Placement, Program};
pub use symbol::Target;
pub use texture::{Channel, Level, Object, Objects, Outside, Sampler, Spot, Tiled};
pub use window::Ranges;
