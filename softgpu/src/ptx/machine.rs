//! The machine that executes instructions: the state of warps and CTAs, and the code that they run.
//!
//! These types name each other: an instruction holds the function that executes it on a warp, a warp runs functions, and
//! functions are made of instructions.

use super::env::Env;
use super::error::Fault;
use super::operand::{Base, LANES, NEGATED, NONE, Row, Src};
use super::spec::{AtomSpec, BarSpec, CallSite, CvtSpec, Slot, SurfSpec, SyncSpec, TexSpec};
use super::special;
use super::symbol::Target;
use super::window::Ranges;

/// Difference of the pointers to two functions that follow each other in a module.
const POINTER_STRIDE: u64 = 8;

/// Barriers of a CTA.
pub(crate) const BARRIERS: usize = 16;

/// What happens after an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// Go on with the next instruction.
    Next,
    /// The handler set `Warp::pc`.
    Jump,
    /// The running group changed; choose again.
    Reschedule,
    /// `Warp::fault` says why.
    Fault,
}

/// Executes one decoded instruction for the lanes of `Warp::mask`.
///
/// # Safety
/// The processor must have the features the function was compiled for, which `handler` sees to.
pub(crate) type Handler = for<'a> unsafe fn(&mut Warp<'a>, &mut Cta<'a>, &Instr) -> Flow;

/// A decoded instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instr {
    pub(crate) exec: Handler,
    /// Predicate register, with `NEGATED`, or `NONE`.
    pub(crate) guard: u32,
    /// Destination register.
    pub(crate) d: u32,
    pub(crate) s: [Src; 4],
    /// Immediate: address offset, branch target, or what the operation says.
    pub(crate) imm: i64,
    /// Second destination or index into a side table of the function.
    pub(crate) x: u32,
    pub(crate) base: Base,
}

/// Code and the tables its instructions refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    pub(crate) is_kernel: bool,
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

/// The code of a linked module.
pub struct Code {
    pub(crate) functions: Vec<Function>,
}

impl Code {
    /// The value of a pointer to a function. It is a small number, the same wherever the module lies, and means a
    /// function of the module whose code calls it (docs/driver-facts.md 8.22).
    pub(crate) fn pointer_to(index: usize) -> u64 {
        POINTER_STRIDE * (index as u64 + 1)
    }

    /// The device function that a pointer means; kernels have none.
    pub(crate) fn pointed_to(&self, pointer: u64) -> Option<&Function> {
        let index = (pointer / POINTER_STRIDE).checked_sub(1).filter(|_| pointer.is_multiple_of(POINTER_STRIDE))?;
        self.functions.get(usize::try_from(index).ok()?).filter(|function| !function.is_kernel)
    }

    /// Size of a function's code on the GPU. An instruction of PTX becomes one or two of 16 bytes.
    pub(crate) fn bytes_of(&self, index: usize) -> u64 {
        32 * self.functions[index].code.len() as u64
    }
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Code").field("functions", &self.functions.len()).finish()
    }
}

/// State of one barrier of a CTA.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Barrier {
    pub(crate) arrived: u32,
    /// Threads that take part, if the instruction said so.
    pub(crate) count: Option<u32>,
    /// Predicates reduced so far: how many were true, and of how many.
    pub(crate) truths: u32,
    pub(crate) votes: u32,
}

/// What the warps of a CTA share.
pub(crate) struct Cta<'a> {
    pub(crate) env: &'a Env,
    /// The module of the kernel.
    pub(crate) module: &'a Code,
    pub(crate) params: &'a [u8],
    pub(crate) shared: Vec<u8>,
    pub(crate) barriers: [Barrier; BARRIERS],
    /// Some thread arrived or exited since barriers were last looked at.
    pub(crate) barrier_changed: bool,
    /// Threads that have not exited.
    pub(crate) live: u32,
    pub(crate) number: [u32; 3],
    pub(crate) workspace: (u64, u64),
}

impl Cta<'_> {
    /// The accessible range that holds `address`.
    pub(crate) fn find_range(&self, address: u64) -> Option<(u64, u64)> {
        let ranges: &Ranges = &self.env.ranges;
        ranges.find(address).or((self.workspace.0 <= address && address < self.workspace.1).then_some(self.workspace))
    }

    pub(crate) fn exited(&mut self, threads: u32) {
        self.live -= threads;
        self.barrier_changed = true;
    }
}

/// An activation of a function, common to the lanes of a group.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) func: &'a Function,
    /// First 32-bit, 64-bit and predicate register.
    pub(crate) r32: u32,
    pub(crate) r64: u32,
    pub(crate) preds: u32,
    /// First byte of the local frame.
    pub(crate) local: u32,
    /// Number of callers.
    pub(crate) depth: u32,
}

impl PartialEq for Frame<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.func, other.func)
            && (self.r32, self.r64, self.preds, self.local, self.depth)
                == (other.r32, other.r64, other.preds, other.local, other.depth)
    }
}

/// What a group is doing while it does not run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum State {
    Ready,
    /// At a `.sync` instruction, until all lanes of the member mask are.
    Sync(u32),
    /// At barrier `n` of the CTA.
    Barrier(u32),
}

/// Lanes at one place.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    pub(crate) mask: u32,
    pub(crate) pc: u32,
    pub(crate) frame: Frame<'a>,
    pub(crate) state: State,
    /// When it stopped running, on the clock `Warp::turns`.
    pub(crate) since: u64,
}

/// Where a lane goes on after a return.
#[derive(Clone, Copy)]
pub(crate) struct Return<'a> {
    pub(crate) frame: Frame<'a>,
    pub(crate) pc: u32,
}

/// Addresses of the shared variables of a program in one launch, as rows.
pub(crate) struct SharedSymbols {
    pub(crate) narrow: Vec<Row<u32>>,
    pub(crate) wide: Vec<Row<u64>>,
}

/// A warp; `super::warp` says how its groups of lanes run.
pub(crate) struct Warp<'a> {
    /// Lanes that execute the current instruction: those of the group whose guard holds.
    pub(crate) mask: u32,
    /// Lanes of the running group.
    pub(crate) active: u32,
    pub(crate) frame: Frame<'a>,
    pub(crate) pc: u32,
    /// The running group stops here to join or let pass another one.
    pub(crate) limit: u32,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    /// Carry flag of each lane.
    pub(crate) carry: u32,
    /// Start and length of the global range that was used last.
    pub(crate) window: (u64, u64),
    pub(crate) fault: Option<Fault>,
    pub(crate) groups: Vec<Group<'a>>,
    /// Set by `nanosleep`: let others run.
    pub(crate) rest: bool,
    /// Thread-level instructions executed.
    pub(crate) executed: u64,
    /// Instructions issued, each for all lanes of a group.
    pub(crate) issued: u64,
    pub(crate) r32: Vec<Row<u32>>,
    pub(crate) r64: Vec<Row<u64>>,
    pub(crate) preds: Vec<u32>,
    pub(crate) special: Vec<Row<u32>>,
    pub(crate) shared: &'a SharedSymbols,
    pub(crate) local: Vec<u8>,
    pub(crate) local_cap: u32,
    /// Where each lane goes on, for each depth of calls.
    pub(crate) returns: Vec<[Return<'a>; LANES]>,
    pub(crate) rotate: bool,
    pub(crate) turns: u64,
}

impl Warp<'_> {
    #[inline(always)]
    pub(crate) fn row32(&self, s: Src) -> &[u32; LANES] {
        let index = (s.0 & Src::INDEX) as usize;
        match s.0 & !Src::INDEX {
            0 => &self.r32[self.frame.r32 as usize + index].0,
            Src::CONST => &self.frame.func.consts32[index].0,
            Src::SPECIAL => &self.special[index].0,
            _ => &self.shared.narrow[index].0,
        }
    }

    #[inline(always)]
    pub(crate) fn row64(&self, s: Src) -> &[u64; LANES] {
        let index = (s.0 & Src::INDEX) as usize;
        match s.0 & !Src::INDEX {
            0 => &self.r64[self.frame.r64 as usize + index].0,
            Src::CONST => &self.frame.func.consts64[index].0,
            _ => &self.shared.wide[index].0,
        }
    }

    #[inline(always)]
    pub(crate) fn row32_mut(&mut self, d: u32) -> &mut [u32; LANES] {
        &mut self.r32[(self.frame.r32 + d) as usize].0
    }

    #[inline(always)]
    pub(crate) fn row64_mut(&mut self, d: u32) -> &mut [u64; LANES] {
        &mut self.r64[(self.frame.r64 + d) as usize].0
    }

    /// A predicate of all lanes, negated if so encoded.
    #[inline(always)]
    pub(crate) fn pred_value(&self, code: u32) -> u32 {
        let bits = self.preds[(self.frame.preds + (code & !NEGATED)) as usize];
        if code & NEGATED == 0 { bits } else { !bits }
    }

    /// Sets a predicate for the lanes of `mask`; `NONE` is no predicate.
    #[inline(always)]
    pub(crate) fn set_pred(&mut self, d: u32, bits: u32) {
        if d != NONE {
            let p = &mut self.preds[(self.frame.preds + d) as usize];
            *p = *p & !self.mask | bits & self.mask;
        }
    }

    /// Local memory of a lane up to the end of the running frame.
    #[inline(always)]
    pub(crate) fn local_of(&self, lane: usize) -> &[u8] {
        let start = lane * self.local_cap as usize;
        &self.local[start..start + (self.frame.local + self.frame.func.frame_bytes) as usize]
    }

    /// See `local_of`.
    #[inline(always)]
    pub(crate) fn local_of_mut(&mut self, lane: usize) -> &mut [u8] {
        let start = lane * self.local_cap as usize;
        &mut self.local[start..start + (self.frame.local + self.frame.func.frame_bytes) as usize]
    }

    /// A special register of one lane; 0 if there is none of that name.
    pub(crate) fn special(&self, name: &str, lane: usize) -> u32 {
        special::index(name).map_or(0, |n| self.special[n as usize].0[lane])
    }

    /// A parameter of at most 8 bytes at byte `offset` of the running frame; zero-extended.
    pub(crate) fn frame_word(&self, lane: usize, offset: u32, size: u32) -> u64 {
        let at = (self.frame.local + offset) as usize;
        let mut bytes = [0; 8];
        let size = size.min(8) as usize;
        bytes[..size].copy_from_slice(&self.local_of(lane)[at..at + size]);
        u64::from_le_bytes(bytes)
    }

    /// Stores the low `size` bytes of `value` at byte `offset` of the running frame.
    pub(crate) fn set_frame_word(&mut self, lane: usize, offset: u32, size: u32, value: u64) {
        let at = (self.frame.local + offset) as usize;
        let size = size.min(8) as usize;
        self.local_of_mut(lane)[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }

    /// Records a fault.
    #[cold]
    pub(crate) fn fail(&mut self, fault: Fault) -> Flow {
        self.fault = Some(fault);
        Flow::Fault
    }
}
