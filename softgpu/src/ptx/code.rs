//! A decoded function.

use super::atomics::AtomSpec;
use super::cvt::CvtSpec;
use super::decode_tex::{SurfSpec, TexSpec};
use super::lanes::{Instr, Row};
use super::sync::{BarSpec, SyncSpec};

/// A parameter or result in the local frame of a function (bytes).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slot {
    pub(crate) offset: u32,
    pub(crate) size: u32,
}

/// Arguments and results of a call in the frame of the caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallSite {
    pub(crate) args: Vec<Slot>,
    pub(crate) rets: Vec<Slot>,
}

/// Where an address in code or data points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Index into `Image::globals`.
    Global(usize),
    /// Index into `Image::functions`.
    Function(usize),
}

/// Code and the tables its instructions refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) code: Vec<Instr>,
    /// Registers of each kind; at least one, so that operand 0 always exists.
    pub(crate) n32: u32,
    pub(crate) n64: u32,
    pub(crate) npred: u32,
    pub(crate) consts32: Vec<Row<u32>>,
    pub(crate) consts64: Vec<Row<u64>>,
    /// Constants of `consts64` that are addresses: index, target, addend.
    pub(crate) relocs: Vec<(usize, Target, i64)>,
    /// Local memory of an activation: parameters, results, variables, arguments of calls. Multiple of 16.
    pub(crate) frame_bytes: u32,
    pub(crate) params: Vec<Slot>,
    pub(crate) rets: Vec<Slot>,
    /// Whether it refers to shared variables by name.
    pub(crate) shared_vars: bool,
    pub(crate) calls: Vec<CallSite>,
    pub(crate) lists: Vec<u32>,
    pub(crate) cvts: Vec<CvtSpec>,
    pub(crate) atoms: Vec<AtomSpec>,
    pub(crate) syncs: Vec<SyncSpec>,
    pub(crate) bars: Vec<BarSpec>,
    pub(crate) texs: Vec<TexSpec>,
    pub(crate) surfs: Vec<SurfSpec>,
    pub(crate) messages: Vec<String>,
}
