//! Graph nodes that call the job: host functions, and copies from and to the job's memory where the place does not share it.
//!
//! For a host function the driver's node is a host function of the executor. For a copy it is the copy, with page-locked memory of the
//! executor on one side, and memory operations on two words of such memory before or behind it: one signals that the node was reached,
//! the other one is waited for. Copies do not use host functions because those run one after the other, so a host function of the program
//! that waits would hold up the copies of all graphs. Launches of an instance follow each other, so each node has a queue with its
//! actions in the coming launches.

use super::checker::HostEnds;
use super::state::copy_nodes::{CopyCall, CopyNode, NewStaging, Shared, Source, WORDS, Words, packed, span};
use super::state::graphs::{Calls, Node, Turn};
use super::{ContextState, Executor, short};
use crate::pending::Pending;
use crate::pools::Recorded;
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::lock::lock;
use cuda_api::ops::{DIRECT_COPY, GraphCall};
use cuda_api::wire::Wire;
use cuda_api::work::{At, Copy3, CopyEnd, HOST, Spec};
use std::sync::Arc;

/// Maximum size of one copy in bytes: it is sent in one message.
pub(super) const LARGEST: u64 = 1 << 29;

impl Executor {
    /// Creates the calling nodes of a graph, with their words; the arguments are those of [`Calls::of`].
    pub(super) fn calls_of(&self, spec: &Spec, earlier: &Calls, direct: impl Fn(At, &Copy3) -> bool) -> Result<Arc<Calls>, Code> {
        let calls = Calls::of(spec, earlier, direct);
        let count = calls.copies().filter(|node| node.words.get().is_none()).count();
        if count > 0 {
            let mut page = self.pinned((count * WORDS).next_multiple_of(4096))?;
            page.bytes_mut().fill(0);
            let (mut at, page) = (page.bytes().as_ptr() as usize, Arc::new(page));
            for node in calls.copies() {
                if node.words.set(Words { reached: at, go: at + 4, idle: at + 8 }).is_ok() {
                    let _ = node.page.set(page.clone());
                    at += WORDS;
                }
            }
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
        let mut calls = self.graph_calls(op.instance)?;
        let node = calls.nodes.iter().find(|(at, _)| *at == op.at).ok_or(code::ERROR_INVALID_VALUE)?;
        // Its staging memory must be that of the coming launch.
        if node.1.is_none() || self.is_out_of_date(op.instance, false) {
            self.rebuild_for_call(op.instance, op.at)?;
            calls = self.graph_calls(op.instance)?;
        }
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

    /// Launches an instance that may make calls.
    pub(super) fn launch_calling(&self, life: &ContextState, instance: u64, stream: u64, tokens: &[u8]) -> Result<(), Code> {
        let tokens: Vec<u64> = tokens.as_chunks::<8>().0.iter().map(|token| u64::from_le_bytes(*token)).collect();
        self.launch_with_calls(life, instance, stream, &tokens).inspect_err(|rc| {
            // What was announced for this launch will not happen.
            for call in tokens.iter().filter_map(|token| self.hosts.of_graph(*token).ok()) {
                call.launched(Err(*rc));
            }
        })
    }

    fn launch_with_calls(&self, life: &ContextState, instance: u64, stream: u64, tokens: &[u64]) -> Result<(), Code> {
        let mut calls = self.graph_calls(instance)?;
        if tokens.len() < calls.nodes.len() {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let is_fresh = |node: &Option<Node>, token| matches!(node, Some(Node::Copy(_))) && token == DIRECT_COPY;
        let both = calls.nodes.iter().zip(tokens);
        let fresh: Vec<At> = both.filter(|((_, node), token)| is_fresh(node, **token)).map(|((at, _), _)| *at).collect();
        if !fresh.is_empty() || self.is_out_of_date(instance, true) {
            self.rebuild(instance, |at, was| was || fresh.contains(&at))?;
            calls = self.graph_calls(instance)?;
        }
        let (live, on) = (self.bindings.live(Kind::GraphExec, instance)?, stage_stream(stream, &self.bindings)?);
        let mut list = Vec::with_capacity(calls.nodes.len());
        for ((_, node), token) in calls.nodes.iter().zip(tokens.iter().copied()) {
            let Some(node) = node else {
                if !matches!(token, 0 | DIRECT_COPY) {
                    return Err(code::ERROR_INVALID_VALUE);
                }
                continue;
            };
            let call = match token {
                0 => None,
                // In the job's process no thread waits for an answer: the call comes with the launch.
                _ if self.is_here() => Some(self.hosts.begin_in_graph(token, stream, None)?),
                _ => Some(self.hosts.of_graph(token)?),
            };
            list.push((node, call));
        }
        let mut last = lock(&calls.last);
        if let Some((before, _)) = &*lock(&calls.before) {
            self.gpu.wait_event(on, before.event())?;
        }
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
        drop(last);
        self.keep_until_over(lock(&calls.before).take());
        Ok(())
    }
}
