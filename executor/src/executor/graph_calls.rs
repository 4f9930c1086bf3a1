//! Graph nodes that call the job: host functions, and copies from and to the job's memory where the place does not share it.
//!
//! For a host function the driver's node is a host function of the executor. For a copy it is the copy, with page-locked memory of the
//! executor on one side, and memory operations on two words of such memory before or behind it: one signals that the node was reached,
//! the other one is waited for. Copies do not use host functions because those run one after the other, so a host function of the program
//! that waits would hold up the copies of all graphs. Launches of an instance follow each other, so each node has a queue with its
//! actions in the coming launches.

use super::checker::HostEnds;
use super::host::Call;
use super::pinned::PinnedMemory;
use super::transfer::Pinned;
use super::{ContextState, Executor, short};
use crate::gpu::graphs::NodeParams;
use crate::pending::Pending;
use crate::pools::{Recorded, lock};
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::ops::GraphCall;
use cuda_api::wire::Wire;
use cuda_api::work::{At, Copy3, CopyEnd, HOST, Spec, Work};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Maximum size of one copy in bytes: it is sent in one message.
const LARGEST: u64 = 1 << 29;

/// `CU_STREAM_MEM_OP_WAIT_VALUE_32` and `CU_STREAM_MEM_OP_WRITE_VALUE_32`. A plain wait is for a value that is greater or equal.
const WAIT: u64 = 1;
const WRITE: u64 = 2;

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
    next: Mutex<VecDeque<Turn>>,
}

/// The action of such a node in one launch. It keeps the node alive until then, even if the instance was destroyed.
#[derive(Debug)]
struct Turn {
    _node: Arc<FunctionNode>,
    /// `None`: the node is skipped.
    call: Option<Arc<Call>>,
}

/// A node with a copy from or to the job.
#[derive(Debug, Default)]
pub(crate) struct CopyNode {
    /// Tokens of the coming launches, in their order; none for launches that skip the node.
    next: Mutex<VecDeque<u64>>,
    staging: Mutex<Staging>,
    /// Whether the bytes go from the GPU to the job.
    to_host: bool,
    words: OnceLock<Words>,
}

/// Words of page-locked memory, which the instance owns.
#[derive(Debug, Clone, Copy)]
struct Words {
    /// The GPU sets it to one when it reaches the node; the executor resets it to zero when it has seen this.
    reached: usize,
    /// The executor sets it to one when the node may continue; the GPU resets it to zero when it does.
    go: usize,
    /// Always zero: used by a node that is switched off.
    idle: usize,
}

/// Size of the three words in bytes.
const WORDS: usize = 3 * size_of::<u32>();

/// Memory for the packed bytes of a copy.
#[derive(Debug, Default)]
struct Staging {
    now: Option<Pinned>,
    bytes: usize,
    /// The copy as described by the job.
    copy: Option<Copy3>,
    /// Buffers that became too small after a change; earlier launches may still use them.
    before: Vec<Pinned>,
}

/// The staging memory that a node will use once the driver has accepted its copy: a refused copy changes nothing.
#[derive(Debug)]
pub(super) struct NewStaging {
    fresh: Option<Pinned>,
    bytes: usize,
    copy: Copy3,
}

/// What such a node does in one launch.
#[derive(Debug)]
pub(crate) struct CopyCall {
    node: Arc<CopyNode>,
    /// Page-locked memory for the bytes in this launch: address and size.
    room: Option<(usize, usize)>,
    /// The destination in host memory that this place shares, for later nodes of the graph that read the bytes there.
    lands: Option<Shared>,
    /// Where the bytes of a copy from the job come from.
    source: Source,
    /// Whether the node continues only when the job has confirmed that the bytes are in its memory, instead of when they were sent.
    acknowledged: bool,
}

/// Where the bytes of a copy from the job come from.
#[derive(Debug)]
enum Source {
    /// The job sends them when it is told that the node was reached.
    Job,
    /// They were sent with the call.
    Call(Vec<u8>),
    /// They are read here when the node is reached.
    Here(Box<Shared>),
}

/// The nodes of an instance that call the job, in the order in which a launch lists their tokens; none for a copy that the driver makes
/// by itself.
#[derive(Debug, Default)]
pub(super) struct Calls {
    nodes: Vec<(At, Option<Node>)>,
    /// The memory of their words.
    _words: Option<Pinned>,
    /// The last launch; locked during a launch, so that the queues are in the driver's order.
    last: Mutex<Option<Arc<Recorded>>>,
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

/// The copy with its host end replaced by packed memory of the executor.
fn packed(c: &Copy3, at: u64) -> Copy3 {
    let end = CopyEnd { memory: HOST, host: at, pitch: c.width, height: c.rows, ..CopyEnd::default() };
    let mut c = *c;
    *(if c.src.memory == HOST { &mut c.src } else { &mut c.dst }) = end;
    c
}

/// Number of bytes from the first to the last byte of one end of a copy.
fn span(c: &Copy3, end: &CopyEnd) -> u64 {
    let rows = c.depth.saturating_sub(1).saturating_mul(end.height).saturating_add(c.rows.saturating_sub(1));
    rows.saturating_mul(end.pitch).saturating_add(c.width)
}

/// Host memory of the job that this place shares, at one end of a copy.
#[derive(Debug)]
struct Shared {
    copy: Copy3,
    end: CopyEnd,
    memory: Arc<PinnedMemory>,
}

impl Shared {
    /// Addresses of the rows.
    fn rows(&self) -> impl Iterator<Item = u64> {
        let (c, end) = (&self.copy, self.end);
        let rows = c.rows;
        (0..c.depth).flat_map(move |z| (0..rows).map(move |y| end.host + (z * end.height + y) * end.pitch))
    }

    /// Writes packed rows.
    fn write(&self, bytes: &[u8]) {
        for (row, bytes) in self.rows().zip(bytes.chunks_exact(self.copy.width.max(1) as usize)) {
            self.memory.write(row, bytes);
        }
    }

    /// Reads packed rows; returns false if not all of them are mapped.
    fn read(&self, bytes: &mut [u8]) -> bool {
        self.rows().zip(bytes.chunks_exact_mut(self.copy.width.max(1) as usize)).all(|(row, bytes)| self.memory.read(row, bytes))
    }
}

/// A word that is shared with the GPU.
fn word<'a>(at: usize) -> &'a AtomicU32 {
    // SAFETY: aligned words of page-locked memory of the instance's, which lives while a launch of it may be under way; only atomics
    // and the GPU touch it.
    unsafe { AtomicU32::from_ptr(at as *mut u32) }
}

impl Node {
    /// Parameters of the driver's node that makes the call.
    pub(super) fn params(&self, context: u64) -> NodeParams {
        match self {
            Node::Function(node) => NodeParams::host(reached as *const () as u64, Arc::as_ptr(node) as u64),
            Node::Copy(node) => node.params(context, true),
        }
    }
}

impl CopyNode {
    /// The memory operations around the copy: on the same words in each launch, or on an idle word while the node is switched off.
    pub(super) fn params(&self, context: u64, on: bool) -> NodeParams {
        let Words { reached, go, idle } = self.words.get().copied().unwrap_or(Words { reached: 0, go: 0, idle: 0 });
        let value = u64::from(on);
        let (reached, go) = if on { (reached as u64, go as u64) } else { (idle as u64, idle as u64) };
        NodeParams::mem_ops(&[[WRITE, reached, value, 0, 0, 0], [WAIT, go, value, 0, 0, 0], [WRITE, go, 0, 0, 0, 0]], context)
    }

    /// Takes the staging memory for a copy that the driver has accepted.
    pub(super) fn take(&self, new: NewStaging) {
        let mut s = lock(&self.staging);
        if let Some(fresh) = new.fresh {
            let old = s.now.replace(fresh);
            s.before.extend(old);
        }
        (s.bytes, s.copy) = (new.bytes, Some(new.copy));
    }

    /// Returns whether the call is all that the node does.
    pub(super) fn is_all_call(&self) -> bool {
        lock(&self.staging).now.is_none()
    }

    /// Removes the launch with this token, which will not reach the node.
    fn passes_by(&self, token: u64) {
        lock(&self.next).retain(|t| *t != token);
    }

    /// Lets the node continue.
    fn let_go(&self) {
        self.words.get().into_iter().for_each(|w| word(w.go).store(1, Ordering::Release));
    }
}

impl CopyCall {
    /// Returns whether the bytes go from the GPU to the job.
    pub(super) fn is_to_host(&self) -> bool {
        self.node.to_host
    }

    /// Returns, once, whether the GPU has reached the node in the launch with this token.
    pub(super) fn has_come_to(&self, token: u64) -> bool {
        let node = &self.node;
        let (mut next, Some(words)) = (lock(&node.next), node.words.get()) else { return false };
        let here = next.front() == Some(&token) && word(words.reached).swap(0, Ordering::AcqRel) != 0;
        if here {
            next.pop_front();
        }
        here
    }

    /// Removes the launch with this token, which will not reach the node.
    pub(super) fn passes_by(&self, token: u64) {
        self.node.passes_by(token);
    }

    /// Returns whether the node continues only when the job has confirmed it.
    pub(super) fn awaits_job(&self) -> bool {
        if self.is_to_host() { self.acknowledged } else { matches!(self.source, Source::Job) }
    }

    /// Number of bytes that are stored until the node is reached.
    pub(super) fn kept(&self) -> usize {
        if let Source::Call(bytes) = &self.source { bytes.len() } else { 0 }
    }

    /// Called when the node is reached: appends the bytes that the copy has brought, or takes those that it is to bring, and lets the
    /// node continue, unless that is up to the job.
    pub(super) fn at_node(&self, reply: &mut Vec<u8>) -> Result<(), Code> {
        if self.is_to_host() {
            self.take_bytes(reply);
            return Ok(());
        }
        match &self.source {
            Source::Job => Ok(()),
            Source::Call(bytes) => self.put_bytes(bytes),
            Source::Here(memory) => {
                let (at, len) = self.room.unwrap_or((std::ptr::dangling::<u8>() as usize, 0));
                // SAFETY: the buffer is owned by this launch until its copy, which begins when the node continues.
                let read = memory.read(unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) });
                self.let_go();
                if read { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
            }
        }
    }

    fn take_bytes(&self, reply: &mut Vec<u8>) {
        if let Some((at, len)) = self.room {
            // SAFETY: the driver's copy has filled the buffer; the next launch's copy fills it only after the node has continued.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
            if let Some(landing) = &self.lands {
                landing.write(bytes);
            }
            reply.extend_from_slice(bytes);
        }
        if !self.acknowledged {
            self.let_go();
        }
    }

    /// Takes the bytes that the copy is to bring, and lets the node continue.
    pub(super) fn put_bytes(&self, bytes: &[u8]) -> Result<(), Code> {
        let (at, len) = self.room.filter(|_| !self.is_to_host()).unwrap_or_default();
        // SAFETY: the buffer is owned by this launch until its copy, which begins when the node continues.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, len.min(bytes.len())) };
        self.let_go();
        if bytes.len() == len { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
    }

    /// Lets the node continue.
    pub(super) fn let_go(&self) {
        self.node.let_go();
    }
}

impl Calls {
    /// Creates the list of a graph's nodes that call the job; `here`: in the job's own process.
    fn of(spec: &Spec, here: bool) -> Calls {
        let node = |work: &Work<u32>| match work {
            Work::Copy(_) if here => None,
            Work::Copy(c) => Some(Node::Copy(Arc::new(CopyNode {
                to_host: c.dst.memory == HOST && c.src.memory != HOST,
                ..CopyNode::default()
            }))),
            _ => Some(Node::Function(Arc::default())),
        };
        Calls { nodes: spec.calls().map(|(at, work)| (at, node(work))).collect(), ..Calls::default() }
    }

    fn copies(&self) -> impl Iterator<Item = &Arc<CopyNode>> {
        self.nodes.iter().filter_map(|(_, node)| if let Some(Node::Copy(node)) = node { Some(node) } else { None })
    }

    pub(super) fn at(&self, at: At) -> Option<&Node> {
        self.nodes.iter().find(|(a, _)| *a == at)?.1.as_ref()
    }

    /// The node of a copy that calls the job.
    pub(super) fn copy_at(&self, at: At) -> Option<&Arc<CopyNode>> {
        if let Some(Node::Copy(node)) = self.at(at) { Some(node) } else { None }
    }

    /// The last launch that made calls, which may still use the nodes' resources.
    pub(super) fn last(&self) -> Option<Arc<Recorded>> {
        lock(&self.last).clone()
    }
}

impl Executor {
    /// Creates the calling nodes of a graph, with their words.
    pub(super) fn calls_of(&self, spec: &Spec) -> Result<Arc<Calls>, Code> {
        let mut calls = Calls::of(spec, self.is_here());
        let count = calls.copies().count();
        if count > 0 {
            let mut page = self.pinned((count * WORDS).next_multiple_of(4096))?;
            page.bytes_mut().fill(0);
            let mut at = page.bytes().as_ptr() as usize;
            for node in calls.copies() {
                let _ = node.words.set(Words { reached: at, go: at + 4, idle: at + 8 });
                at += WORDS;
            }
            calls._words = Some(page);
        }
        Ok(Arc::new(calls))
    }

    /// The copy that the driver makes for a node, and what the node [takes](CopyNode::take) once the driver has accepted it; `None` if
    /// the job makes the copy alone.
    pub(super) fn staged(&self, node: &CopyNode, c: &Copy3) -> Result<Option<(Copy3, NewStaging)>, Code> {
        if c.src.memory == HOST && c.dst.memory == HOST {
            return Ok(None);
        }
        let bytes = c.bytes().filter(|n| *n <= LARGEST).ok_or(code::ERROR_NOT_SUPPORTED)? as usize;
        let live = self.check_copy(c, HostEnds::Staged)?;
        let s = lock(&node.staging);
        let large_enough = s.now.as_ref().filter(|p| p.bytes().len() >= bytes);
        let fresh = if large_enough.is_some() { None } else { Some(self.pinned(bytes.next_multiple_of(4096))?) };
        let at = fresh.as_ref().or(large_enough).map_or(0, |p| p.bytes().as_ptr() as u64);
        Ok(Some((packed(&live, at), NewStaging { fresh, bytes, copy: *c })))
    }

    /// Queues what a node will do in the launch with the given token.
    pub(super) fn graph_call(&self, life: &ContextState, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = GraphCall::get(&mut body).map_err(short)?;
        let calls = self.graph_calls(op.instance)?;
        let copy = match calls.at(op.at).ok_or(code::ERROR_INVALID_VALUE)? {
            Node::Function(_) => None,
            Node::Copy(node) => {
                let s = lock(&node.staging);
                let room = s.now.as_ref().map(|p| (p.bytes().as_ptr() as usize, s.bytes));
                let shared = |copy: Copy3, end: CopyEnd| {
                    let has = self.is_host(end.host, span(&copy, &end)).unwrap_or(false);
                    has.then(|| Shared { copy, end, memory: self.pinned.clone() })
                };
                let lands = s.copy.filter(|_| node.to_host).and_then(|c| shared(c, c.dst));
                let source = match s.copy.filter(|_| !node.to_host) {
                    Some(c) if op.own => Source::Here(Box::new(shared(c, c.src).ok_or(code::ERROR_INVALID_VALUE)?)),
                    Some(_) if body.len() == s.bytes => Source::Call(body.to_vec()),
                    _ if op.own || !body.is_empty() => return Err(code::ERROR_INVALID_VALUE),
                    _ => Source::Job,
                };
                Some(CopyCall { node: node.clone(), room, lands, source, acknowledged: op.acknowledged })
            }
        };
        let call = self.hosts.begin_in_graph(op.token, op.stream, copy)?;
        let mut pending = self.pending(life, Vec::new());
        pending.call = Some(call);
        Ok(Some(pending))
    }

    /// Launches an instance that makes calls.
    pub(super) fn launch_calling(&self, life: &ContextState, instance: u64, stream: u64, tokens: &[u8]) -> Result<(), Code> {
        let calls = self.graph_calls(instance)?;
        let (live, on) = (self.bindings.live(Kind::GraphExec, instance)?, stage_stream(stream, &self.bindings)?);
        let mut list = Vec::with_capacity(calls.nodes.len());
        let mut tokens = tokens.chunks_exact(8);
        for (_, node) in &calls.nodes {
            let token = u64::get(&mut tokens.next().unwrap_or_default()).map_err(short)?;
            let Some(node) = node else { continue };
            let call = match token {
                0 => None,
                // In the job's process no thread waits for an answer: the call comes with the launch.
                _ if self.is_here() => Some(self.hosts.begin_in_graph(token, stream, None)?),
                _ => Some(self.hosts.of_graph(token)?),
            };
            list.push((node, call));
        }
        let mut last = lock(&calls.last);
        for (node, call) in &list {
            match node {
                Node::Function(node) => lock(&node.next).push_back(Turn { _node: node.clone(), call: call.clone() }),
                Node::Copy(node) => lock(&node.next).extend(call.iter().map(|c| c.token())),
            }
        }
        let launched = self.gpu.launch_graph(live, on).inspect_err(|_| {
            // The driver did not accept the launch; earlier launches have taken their entries from the front.
            list.iter().for_each(|(node, call)| match (node, call) {
                (Node::Function(node), _) => drop(lock(&node.next).pop_back()),
                (Node::Copy(node), Some(call)) => node.passes_by(call.token()),
                (Node::Copy(_), None) => {}
            });
        });
        if self.is_here() {
            if launched.is_err() {
                list.iter().filter_map(|(_, call)| call.as_ref()).for_each(|c| c.give_up());
            }
            return launched;
        }
        let launched = launched.and_then(|()| Ok(Arc::new(Recorded::new(life.pools.mark(on)?, life.pools.clone()))));
        list.iter().filter_map(|(_, call)| call.as_ref()).for_each(|c| c.launched(launched.clone()));
        *last = Some(launched?);
        Ok(())
    }
}
