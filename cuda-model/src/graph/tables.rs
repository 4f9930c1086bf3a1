//! The tables of a process's graphs: captures, instances, user objects, conditions. Their functions are in the files of
//! these subjects.

use super::frozen::Frozen;
use super::memory::{Effect, Memories};
use super::model::{Slab, Store};
use cuda_api::code::{self, Code};
use cuda_api::work::{After, At};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ffi::c_void;

/// A stream as captures see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Unique among the streams of the process, except for legacy streams, which cannot be captured.
    pub key: u64,
    /// Its context, in the host's numbering; never 0.
    pub context: u64,
    /// The legacy default stream of that context.
    pub legacy: bool,
    /// It waits for the legacy stream, and that for it.
    pub blocking: bool,
}

/// `CUstreamCaptureMode`: which calls of which threads a capture forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Unsafe calls of every thread.
    Global,
    /// Those of the thread that began.
    ThreadLocal,
    /// No calls.
    Relaxed,
}

impl Mode {
    /// The mode with this number.
    pub fn from_number(n: u32) -> Result<Mode, Code> {
        [Mode::Global, Mode::ThreadLocal, Mode::Relaxed].get(n as usize).copied().ok_or(code::ERROR_INVALID_VALUE)
    }
}

/// A capture, from begin to end.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) graph: u64,
    /// Whether the graph was created by the capture.
    pub(super) own_graph: bool,
    /// The stream in which it began and must end.
    pub(super) origin: u64,
    pub(super) thread: u64,
    pub(super) mode: Mode,
    pub(super) invalid: bool,
}

/// A stream that is part of a capture.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) capture: u64,
    /// The predecessors of the next node.
    pub(super) after: After<u64>,
    pub(super) context: u64,
    pub(super) blocking: bool,
    /// The targets of pointers returned to the program.
    pub(super) returned: Vec<Box<[u64]>>,
}

/// An event that was last recorded in a capture.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) capture: u64,
    pub(super) after: After<u64>,
}

/// All captures of a process.
#[derive(Debug, Default)]
pub(super) struct Captures {
    pub(super) open: FxHashMap<u64, Capture>,
    pub(super) parts: FxHashMap<u64, Part>,
    pub(super) events: FxHashMap<u64, Point>,
    pub(super) next: u64,
}

/// An instantiated graph.
#[derive(Debug)]
pub(super) struct Instance {
    /// What it runs.
    pub(super) frozen: Frozen,
    /// The graph that it was instantiated from.
    pub(super) source: u64,
    pub(super) flags: u64,
    pub(super) context: u64,
    /// Nodes that are switched off.
    pub(super) off: FxHashSet<At>,
    /// The allocations and frees of its launches.
    pub(super) effect: Effect,
}

/// The destructor, called when the last reference is released.
#[derive(Debug, Clone, Copy)]
pub(super) struct Destructor {
    pub(super) function: unsafe extern "C" fn(*mut c_void),
    /// Its argument.
    pub(super) data: u64,
}

/// A user object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) references: u64,
    pub(super) destructor: Destructor,
}

/// The conditions of a graph, with their context.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    pub(super) context: u64,
    pub(super) handles: Vec<u64>,
    /// The default value and the flags that each was created with.
    pub(super) defaults: FxHashMap<u64, (u32, u32)>,
}

/// The graphs of a process.
#[derive(Debug)]
pub(super) struct Graphs {
    pub(super) store: Store,
    pub(super) captures: Captures,
    pub(super) instances: FxHashMap<u64, Instance>,
    pub(super) objects: Slab<Object>,
    pub(super) memories: Memories,
    /// Conditions by the graph that is instantiated with them.
    pub(super) conditions: FxHashMap<u64, Conditions>,
    /// Destructors that are due.
    pub(super) due: Vec<Destructor>,
}

impl Graphs {
    pub(super) fn new(mark: u64) -> Graphs {
        Graphs {
            store: Store::new(mark),
            captures: Captures::default(),
            instances: FxHashMap::default(),
            objects: Slab::new(cuda_api::handle::Kind::UserObject, mark),
            memories: Memories::default(),
            conditions: FxHashMap::default(),
            due: Vec::new(),
        }
    }
}
