//! Operands of instructions that have many: the rows of the side tables of a function.

use super::ast::Ty;
use super::float::Round;
use super::operand::Src;

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

/// New value from the old one and two operands, as bits.
pub(crate) type Update = fn(u64, u64, u64) -> u64;

/// What an atomic instruction does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomSpec {
    pub(crate) update: Update,
    /// Bytes of the operand: 2, 4 or 8.
    pub(crate) size: u32,
    /// The address is in shared space.
    pub(crate) shared: bool,
}

/// A conversion: everything its modifiers say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CvtSpec {
    pub(crate) to: Ty,
    pub(crate) from: Ty,
    pub(crate) round: Round,
    /// Round a float to an integral value (`.rni` and the like).
    pub(crate) integral: bool,
    pub(crate) sat: bool,
    pub(crate) relu: bool,
    pub(crate) ftz: bool,
    /// Rows of source and destination hold 64 bits.
    pub(crate) wide_src: bool,
    pub(crate) wide_dst: bool,
}

/// Kind of an operation across lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncKind {
    ShflUp,
    ShflDown,
    ShflBfly,
    ShflIdx,
    VoteAll,
    VoteAny,
    VoteUni,
    Ballot,
    MatchAny,
    MatchAll,
    ReduxAdd,
    ReduxMinU,
    ReduxMinS,
    ReduxMaxU,
    ReduxMaxS,
    ReduxAnd,
    ReduxOr,
    ReduxXor,
    Elect,
    WarpBarrier,
    ActiveMask,
}

/// Operands of an operation across lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncSpec {
    pub(crate) kind: SyncKind,
    /// Member mask; `None` for operations on whatever lanes are active.
    pub(crate) members: Option<Src>,
    /// Value: a register, 64-bit if `wide`, or a predicate if `pred`.
    pub(crate) a: Src,
    pub(crate) wide: bool,
    pub(crate) pred: bool,
    /// Lane or distance, and clamp with segment mask, of a shuffle.
    pub(crate) b: Src,
    pub(crate) c: Src,
    /// Destination register and predicate; `NONE` if absent.
    pub(crate) d: u32,
    pub(crate) p: u32,
}

/// What a CTA barrier instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarKind {
    Sync,
    Arrive,
    Popc,
    And,
    Or,
}

/// Operands of a CTA barrier instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarSpec {
    pub(crate) kind: BarKind,
    pub(crate) id: Src,
    /// Threads that take part; `None` for all.
    pub(crate) count: Option<Src>,
    /// Predicate to reduce.
    pub(crate) pred: u32,
    /// Destination: a register for `Popc`, else a predicate.
    pub(crate) d: u32,
}

/// What a texture instruction does.
#[derive(Clone, Debug)]
pub(crate) struct TexSpec {
    pub(crate) kind: TexKind,
    /// Whether the coordinates are a direction from the middle of a cube.
    pub(crate) cube: bool,
    /// Coordinates without the layer.
    pub(crate) at: Vec<Src>,
    pub(crate) layer: Option<Src>,
    /// Four destinations.
    pub(crate) to: [u32; 4],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum TexKind {
    Sample {
        lod: Option<Src>,
    },
    /// Integer coordinates.
    Fetch,
    /// Of so many channels.
    Gather(usize),
    /// Width, height, depth, layers or levels.
    Query(Query),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    Width,
    Height,
    Depth,
    Layers,
    Levels,
}

/// What a surface instruction does.
#[derive(Clone, Debug)]
pub(crate) struct SurfSpec {
    pub(crate) at: Vec<Src>,
    pub(crate) layer: Option<Src>,
    pub(crate) outside: Beyond,
    /// Bytes of a register's value: 1, 2, 4 or 8.
    pub(crate) bytes: u64,
    /// What registers are loaded or stored.
    pub(crate) registers: Vec<u32>,
    pub(crate) stores: bool,
}

/// What happens beyond the edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    Trap,
    Clamp,
    Zero,
}
