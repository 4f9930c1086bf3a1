//! Registers as rows of 32 lanes, and where the operands of instructions come from.

/// Threads in a warp.
pub(crate) const LANES: usize = 32;
/// `Instr::guard`: executed unconditionally. `Instr::d` and others: no register.
pub(crate) const NONE: u32 = u32::MAX;
/// `Instr::guard`: set if the predicate is negated.
pub(crate) const NEGATED: u32 = 1 << 31;

/// One register of all lanes.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Row<T>(pub(crate) [T; LANES]);

/// Where a source operand comes from: the two high bits tell the kind, the rest is an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Src(pub(crate) u32);

impl Src {
    pub(crate) const CONST: u32 = 1 << 30;
    pub(crate) const SPECIAL: u32 = 2 << 30;
    pub(crate) const SHARED: u32 = 3 << 30;
    /// Mask of the index.
    pub(crate) const INDEX: u32 = (1 << 30) - 1;
    pub(crate) const NONE: Src = Src(0);

    pub(crate) fn constant(index: u32) -> Src {
        Src(index | Src::CONST)
    }

    pub(crate) fn special(index: u32) -> Src {
        Src(index | Src::SPECIAL)
    }

    pub(crate) fn shared(index: u32) -> Src {
        Src(index | Src::SHARED)
    }
}

/// How the address of a memory access is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// 64-bit row `s[0]` plus `imm`.
    Wide,
    /// 32-bit row `s[0]`, zero-extended, plus `imm`.
    Narrow,
    /// `imm` bytes into the local frame of the running function.
    Frame,
}

/// The lanes of a mask, lowest first.
#[inline(always)]
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(lane)
    })
}
