//! Nodes of graphs that call the job: its host functions, and copies from and to its memory where the place does not reach that.
//!
//! The driver's node is a host function of ours, with page-locked memory of ours on one side of the copy. Launches of an instance
//! follow each other, so each node has a queue: what it does in the next launch, in the one after that.

use super::host::{Call, Launched};
use super::transfer::Pinned;
use super::{Executor, Life, short};
use crate::gpu::graphs::NodeParams;
use crate::pending::Pending;
use crate::pools::lock;
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::graph::work::{At, Copy3, CopyEnd, HOST, Spec, Work};
use cuda_api::ops::GraphCall;
use cuda_api::wire::Wire;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// Bytes that one copy can take: they travel in one message.
const LARGEST: u64 = 1 << 29;

/// A node that calls the job.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// What it does in each launch to come, in their order.
    next: Mutex<VecDeque<Turn>>,
    staging: Mutex<Staging>,
    /// The bytes go from the GPU to the job.
    to_host: bool,
}

/// A launch's turn at a node. It keeps the node until then, also when the instance has ended.
#[derive(Debug)]
struct Turn {
    _node: Arc<Node>,
    /// None: it passes by.
    call: Option<Arc<Call>>,
}

/// Memory for the bytes of a copy, packed.
#[derive(Debug, Default)]
struct Staging {
    now: Option<Pinned>,
    bytes: usize,
    /// The copy, as the job has described it.
    copy: Option<Copy3>,
    /// Too small since a change; launches that came before it may still use them.
    before: Vec<Pinned>,
}

/// The nodes of an instance that call the job, in the order in which a launch names their tokens; none for a copy that the driver
/// makes by itself.
#[derive(Debug, Default)]
pub(super) struct Calls {
    nodes: Vec<(At, Option<Arc<Node>>)>,
    /// The last launch; held over a launch, so that the queues are in the driver's order.
    last: Mutex<Option<Arc<Launched>>>,
}

/// Entry of the driver's node.
unsafe extern "C" fn reached(data: *mut c_void) {
    // SAFETY: the node lives as long as the instance, and until every launch has had its turn.
    let node = unsafe { &*data.cast_const().cast::<Node>() };
    let turn = lock(&node.next).pop_front();
    if let Some(call) = turn.as_ref().and_then(|t| t.call.as_ref()) {
        call.run(code::SUCCESS);
    }
}

/// The host's end of a copy, replaced by packed memory of ours.
fn packed(c: &Copy3, at: u64) -> Copy3 {
    let end = CopyEnd { memory: HOST, host: at, pitch: c.width, height: c.rows, ..CopyEnd::default() };
    let mut c = *c;
    *(if c.src.memory == HOST { &mut c.src } else { &mut c.dst }) = end;
    c
}

/// Bytes from the first to the last of where a copy lands.
fn span(c: &Copy3) -> u64 {
    let rows = c.depth.saturating_sub(1).saturating_mul(c.dst.height).saturating_add(c.rows.saturating_sub(1));
    rows.saturating_mul(c.dst.pitch).saturating_add(c.width)
}

impl Node {
    /// Where the bytes of a launch to come are.
    fn room(&self) -> Option<(usize, usize)> {
        let s = lock(&self.staging);
        s.now.as_ref().map(|p| (p.bytes().as_ptr() as usize, s.bytes))
    }

    /// Whether the driver has nothing to do beside the call.
    pub(super) fn is_all_call(&self) -> bool {
        lock(&self.staging).now.is_none()
    }

    pub(super) fn params(self: &Arc<Self>) -> NodeParams {
        NodeParams::host(reached as *const () as u64, Arc::as_ptr(self) as u64)
    }
}

impl Calls {
    /// Makes room for the nodes of a graph that call the job from here.
    pub(super) fn of(spec: &Spec, here: bool) -> Calls {
        let node = |work: &Work<u32>| match work {
            Work::Copy(_) if here => None,
            Work::Copy(c) => Some(Arc::new(Node { to_host: c.dst.memory == HOST, ..Node::default() })),
            _ => Some(Arc::default()),
        };
        Calls { nodes: spec.calls().map(|(at, work)| (at, node(work))).collect(), last: Mutex::default() }
    }

    pub(super) fn at(&self, at: At) -> Option<&Arc<Node>> {
        self.nodes.iter().find(|(a, _)| *a == at)?.1.as_ref()
    }

    /// The last launch that made calls, which may still use what the nodes have.
    pub(super) fn last(&self) -> Option<Arc<Launched>> {
        lock(&self.last).clone()
    }
}

impl Executor {
    /// The copy that the driver makes for a node; none if the job makes it alone.
    pub(super) fn staged(&self, node: &Node, c: &Copy3) -> Result<Option<Copy3>, Code> {
        if c.src.memory == HOST && c.dst.memory == HOST {
            return Ok(None);
        }
        let bytes = c.bytes().filter(|n| *n <= LARGEST).ok_or(code::ERROR_NOT_SUPPORTED)? as usize;
        let mut s = lock(&node.staging);
        s.copy = Some(*c);
        if s.now.as_ref().is_none_or(|p| p.bytes().len() < bytes) {
            let fresh = self.pinned(bytes.next_multiple_of(4096))?;
            let old = s.now.replace(fresh);
            s.before.extend(old);
        }
        s.bytes = bytes;
        let at = s.now.as_ref().map_or(0, |p| p.bytes().as_ptr() as u64);
        Ok(Some(packed(c, at)))
    }

    /// The job says what a node will do in the launch that names the token.
    pub(super) fn graph_call(&self, life: &Life, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = GraphCall::get(&mut body).map_err(short)?;
        let calls = self.graph_calls(op.instance)?;
        let node = calls.at(op.at).ok_or(code::ERROR_INVALID_VALUE)?;
        let lands = lock(&node.staging).copy.filter(|c| node.to_host && c.dst.memory == HOST);
        let lands = lands.filter(|c| self.is_host(c.dst.host, span(c)).unwrap_or(false));
        let call = self.hosts.begin_in_graph(&op, node.room(), lands, node.to_host)?;
        let mut pending = self.pending(life, Vec::new());
        pending.call = Some(call);
        Ok(Some(pending))
    }

    /// Launches an instance that makes calls.
    pub(super) fn launch_calling(&self, life: &Life, instance: u64, stream: u64, tokens: &[u8]) -> Result<(), Code> {
        let calls = self.graph_calls(instance)?;
        let (live, on) = (self.bindings.live(instance)?, stage_stream(stream, &self.bindings)?);
        let mut list = Vec::with_capacity(calls.nodes.len());
        let mut tokens = tokens.chunks_exact(8);
        for (at, node) in &calls.nodes {
            let token = u64::get(&mut tokens.next().unwrap_or_default()).map_err(short)?;
            let Some(node) = node else { continue };
            let call = match token {
                0 => None,
                // In the job's process nobody waits for an answer: the call comes with the launch.
                _ if self.is_here() => {
                    let op = GraphCall { token, stream, instance, at: *at, acknowledged: false };
                    Some(self.hosts.begin_in_graph(&op, None, None, false)?)
                }
                _ => Some(self.hosts.of_graph(token)?),
            };
            list.push((node, call));
        }
        let mut last = lock(&calls.last);
        for (node, call) in &list {
            lock(&node.next).push_back(Turn { _node: (*node).clone(), call: call.clone() });
        }
        let launched = self.gpu.launch_graph(live, on).inspect_err(|_| {
            // The driver will not come: launches before this one have taken theirs from the front.
            list.iter().for_each(|(node, _)| drop(lock(&node.next).pop_back()));
        });
        if self.is_here() {
            if launched.is_err() {
                list.iter().filter_map(|(_, call)| call.as_ref()).for_each(|c| c.give_up());
            }
            return launched;
        }
        let launched = launched.and_then(|()| Ok(Arc::new(Launched::new(life.pools.mark(on)?, life.pools.clone()))));
        list.iter().filter_map(|(_, call)| call.as_ref()).for_each(|c| c.launched(launched.clone()));
        *last = Some(launched?);
        Ok(())
    }
}
