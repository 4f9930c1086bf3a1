//! Graph nodes that call the job: host functions, and copies from and to the job's memory where the place does not share it.
//!
//! For a host function the driver's node is a host function of the executor. For a copy it is the copy, with page-locked memory of the
//! executor on one side, and memory operations on two words of such memory before or behind it: one signals that the node was reached,
//! the other one is waited for. Copies do not use host functions because those run one after the other, so a host function of the program
//! that waits would hold up the copies of all graphs. Launches of an instance follow each other, so each node has a queue with its
//! actions in the coming launches.

use super::checker::HostEnds;
use super::state::copy_nodes::{CopyCall, CopyNode, Form, NewStaging, Shared, Source, WORDS, Words, packed, span};
use super::state::graphs::{Calls, Node, Turn};
use super::{ContextState, Executor, short};
use crate::gpu::graphs::NodeParams;
use crate::pending::Pending;
use crate::pools::Recorded;
use cuda_api::arg::stage_stream;
use cuda_api::array::DEVICE;
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::lock::lock;
use cuda_api::ops::{DIRECT_COPY, GraphCall};
use cuda_api::wire::Wire;
use cuda_api::work::{At, Copy3, CopyEnd, HOST, Spec};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum size of one copy in bytes: it is sent in one message.
const LARGEST: u64 = 1 << 29;

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

    /// The copy as the driver makes it from or to host memory of the job that this place has.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it does not have it; if it is more than one row, which drivers do not change in an instance; or if both ends are
    /// host memory.
    fn unstaged(&self, c: &Copy3) -> Result<Copy3, Code> {
        let linear = |end: &CopyEnd| matches!(end.memory, HOST | DEVICE);
        if c.rows != 1 || c.depth != 1 || c.src.memory == c.dst.memory || !linear(&c.src) || !linear(&c.dst) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        self.check_copy(c, HostEnds::Pinned)
    }

    /// Gives the driver's nodes of a copy the form that the next launch needs; earlier launches keep theirs.
    fn set_form(&self, instance: u64, at: At, node: &CopyNode, direct: bool) -> Result<(), Code> {
        let mut form = lock(&node.form);
        let wanted = if direct { Form::Direct(self.pinned.ended.load(Ordering::Relaxed)) } else { Form::Staged };
        if *form == wanted {
            return Ok(());
        }
        let copy = {
            let s = lock(&node.staging);
            let c = s.copy.ok_or(code::ERROR_INVALID_VALUE)?;
            let staging = s.now.as_ref().map_or(0, |p| p.bytes().as_ptr() as u64);
            if direct { self.unstaged(&c)? } else { packed(&self.check_copy(&c, HostEnds::Staged)?, staging) }
        };
        let ((live, own), wait, context) = (self.node_at(instance, at)?, self.wait_at(instance, at)?, self.graph_context());
        *form = Form::Mixed;
        self.gpu.change_node(live, own, &mut NodeParams::copy(&copy, context))?;
        self.gpu.change_node(live, wait, &mut node.params(context, !direct))?;
        *form = wanted;
        Ok(())
    }

    /// Changes the copy of a node.
    pub(super) fn change_copy(&self, instance: u64, at: At, node: &CopyNode, c: &Copy3) -> Result<(), Code> {
        let Some((own, new)) = self.staged(node, c)? else { return Ok(()) };
        let ((live, copy), context) = (self.node_at(instance, at)?, self.graph_context());
        let form = lock(&node.form);
        let direct = if *form == Form::Staged { None } else { self.unstaged(c).ok() };
        self.gpu.change_node(live, copy, &mut NodeParams::copy(direct.as_ref().unwrap_or(&own), context))?;
        node.take(new);
        drop(form);
        if direct.is_some() { Ok(()) } else { self.set_form(instance, at, node, false) }
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
        for (at, node) in &calls.nodes {
            let token = u64::get(&mut tokens.next().unwrap_or_default()).map_err(short)?;
            let Some(node) = node else { continue };
            if let (Node::Copy(node), true) = (node, token != 0) {
                self.set_form(instance, *at, node, token == DIRECT_COPY)?;
            }
            let call = match token {
                0 => None,
                DIRECT_COPY if matches!(node, Node::Copy(_)) => None,
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
        if list.iter().all(|(_, call)| call.is_none()) {
            return launched;
        }
        let launched = launched.and_then(|()| Ok(Arc::new(Recorded::new(life.pools.mark(on)?, life.pools.clone()))));
        list.iter().filter_map(|(_, call)| call.as_ref()).for_each(|c| c.launched(launched.clone()));
        *last = Some(launched?);
        Ok(())
    }
}
