//! The instances of graphs of a place, and their nodes that call the job.

use super::copy_nodes::CopyNode;
use super::host_calls::Call;
use super::shape::Shape;
use crate::gpu::graphs::NodeParams;
use crate::pools::Recorded;
use cuda_api::code;
use cuda_api::lock::lock;
use cuda_api::work::{At, Copy3, HOST, Spec, Work};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// A node that calls the job.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    /// It runs a host function.
    Function(Arc<FunctionNode>),
    /// It copies from or to the job's memory, or inside it.
    Copy(Arc<CopyNode>),
}

/// A node with a host function of the program.
#[derive(Debug, Default)]
pub(crate) struct FunctionNode {
    /// Its actions in the coming launches, in their order.
    pub(crate) next: Mutex<VecDeque<Turn>>,
}

/// The action of such a node in one launch. It keeps the node alive until then, even if the instance was destroyed.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) _node: Arc<FunctionNode>,
    /// `None`: the node is skipped.
    pub(crate) call: Option<Arc<Call>>,
}

/// The nodes of an instance that may call the job, in the order in which a launch lists their tokens; none for a copy that the driver
/// makes by itself.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) nodes: Vec<(At, Option<Node>)>,
    /// What this instance replaces, with its last launch, until the first launch of this one is ordered behind that.
    pub(crate) before: Mutex<Option<(Arc<Recorded>, Arc<Calls>)>>,
    /// The last launch; locked during a launch, so that the queues are in the driver's order.
    pub(crate) last: Mutex<Option<Arc<Recorded>>>,
}

/// Entry point of the driver's node of a host function.
unsafe extern "C" fn reached(data: *mut c_void) {
    // SAFETY: the node lives as long as the instance, and until its action in every launch is over.
    let node = unsafe { &*data.cast_const().cast::<FunctionNode>() };
    let turn = lock(&node.next).pop_front();
    if let Some(call) = turn.as_ref().and_then(|t| t.call.as_ref()) {
        call.run(code::SUCCESS);
    }
}

impl Node {
    /// Parameters of the driver's node that makes the call.
    pub(crate) fn params(&self, context: u64) -> NodeParams<'static> {
        match self {
            Node::Function(node) => NodeParams::host(reached as *const () as u64, Arc::as_ptr(node) as u64),
            Node::Copy(node) => node.params(context, true),
        }
    }
}

impl Calls {
    /// Creates the list of a graph's nodes that call the job; `direct`: which copies the driver makes by itself. Nodes that remain as
    /// they were are those of `earlier`, with what they do in launches under way.
    pub(crate) fn of(spec: &Spec, earlier: &Calls, direct: impl Fn(At, &Copy3) -> bool) -> Calls {
        let node = |at: At, work: &Work<u32>| match work {
            Work::Copy(c) if direct(at, c) => None,
            _ if earlier.at(at).is_some() => earlier.at(at).cloned(),
            Work::Copy(c) => Some(Node::Copy(Arc::new(CopyNode {
                to_host: c.dst.memory == HOST && c.src.memory != HOST,
                ..CopyNode::default()
            }))),
            _ => Some(Node::Function(Arc::default())),
        };
        Calls { nodes: spec.calls().map(|(at, work)| (at, node(at, work))).collect(), ..Calls::default() }
    }

    pub(crate) fn copies(&self) -> impl Iterator<Item = &Arc<CopyNode>> {
        self.nodes.iter().filter_map(|(_, node)| if let Some(Node::Copy(node)) = node { Some(node) } else { None })
    }

    pub(crate) fn at(&self, at: At) -> Option<&Node> {
        // They are in the order of a spec.
        let number = |at: At| (at.graph, at.node);
        let found = self.nodes.binary_search_by_key(&number(at), |(at, _)| number(*at)).ok()?;
        self.nodes[found].1.as_ref()
    }

    /// The nodes that call the job.
    pub(crate) fn calling(&self) -> impl Iterator<Item = At> {
        self.nodes.iter().filter(|(_, node)| node.is_some()).map(|(at, _)| *at)
    }

    /// The node of a copy that calls the job.
    pub(crate) fn copy_at(&self, at: At) -> Option<&Arc<CopyNode>> {
        if let Some(Node::Copy(node)) = self.at(at) { Some(node) } else { None }
    }

    /// The last launch that made calls, which may still use the nodes' resources.
    pub(crate) fn last(&self) -> Option<Arc<Recorded>> {
        lock(&self.last).clone()
    }
}

/// An instance with the graph from which it was instantiated: changes refer to the nodes of that graph.
#[derive(Debug, Clone)]
pub(crate) struct Built {
    pub(crate) graph: u64,
    pub(crate) nodes: FxHashMap<At, u64>,
    /// For copies from and to the job: the nodes that wait for it.
    pub(crate) waits: FxHashMap<At, u64>,
    pub(crate) calls: Arc<Calls>,
    /// What it can be built from again, in another process than the job's, if it has copies from or to the job's memory.
    pub(crate) source: Option<Box<Source>>,
    /// Nodes that are switched off, if it can be built again.
    pub(crate) off: FxHashSet<At>,
    /// Copies that the driver made by itself and no longer can, changed since: they have to be built again before they are used.
    pub(crate) stale: FxHashSet<At>,
    /// Nodes that were off and could not be made, because what they use has gone: empty ones are in their place.
    pub(crate) missing: FxHashSet<At>,
    /// Whether it was built again for a call of the coming launch.
    pub(crate) for_call: bool,
    /// For copies that the driver makes by itself: the registration of the job's memory at the driver.
    pub(crate) registrations: FxHashMap<At, Option<u64>>,
    /// [`PinnedMemory::ended`](super::pinned::PinnedMemory::ended) when these were the present ones.
    pub(crate) ended: u64,
    /// If it can become another instance when the job destroys it: which ones.
    pub(crate) shape: Option<Shape>,
}

impl Built {
    /// A graph in which there is nothing yet.
    pub(crate) fn new(graph: u64, calls: Arc<Calls>) -> Built {
        Built {
            graph,
            nodes: FxHashMap::default(),
            waits: FxHashMap::default(),
            calls,
            source: None,
            off: FxHashSet::default(),
            stale: FxHashSet::default(),
            missing: FxHashSet::default(),
            for_call: false,
            registrations: FxHashMap::default(),
            ended: 0,
            shape: None,
        }
    }
}

/// What an instance is at present.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) spec: Spec,
    pub(crate) flags: u64,
}

/// A graph for which conditions were created: only this graph can have their nodes.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) graph: u64,
    pub(crate) made: Made,
    /// The driver's handles of its conditions.
    pub(crate) conditions: FxHashSet<u64>,
}

/// What such a graph contains.
#[derive(Debug)]
pub(crate) enum Made {
    Nothing,
    /// All nodes; it can be instantiated again.
    Whole(Box<(Spec, Built)>),
    /// Only some of its nodes, because building it failed.
    Part,
}

/// An instance that the job has destroyed, and that can become another one.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) shape: Shape,
    /// The driver's handle.
    pub(crate) live: u64,
    pub(crate) built: Built,
    /// The job's handle of the stream of its last launch, or 0.
    pub(crate) last_stream: u64,
}

/// The instances of a place.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    pub(crate) homes: FxHashMap<u64, Home>,
    pub(crate) built: FxHashMap<u64, Built>,
    /// Instances that the job has destroyed, the oldest first.
    pub(crate) spares: VecDeque<Spare>,
    /// Resources of destroyed instances, kept until their last launches are complete.
    pub(crate) ended: Vec<(Arc<Recorded>, Arc<Calls>)>,
}
