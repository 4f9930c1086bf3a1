//! Instances that are built again, because a launch needs another choice of the copies that the driver makes by itself.
//!
//! In the job's process the driver makes all copies of graphs. In a worker it makes those from and to pinned memory that the worker has,
//! unless the job must see their bytes. What a launch needs may change from one launch to the next, and the two kinds of node differ, so
//! the graph is kept with all its changes (docs/execution.md, "Nodes that call the job").

use super::Executor;
use super::checker::HostEnds;
use super::graph_calls::LARGEST;
use super::state::graphs::{Built, Calls};
use cuda_api::code::{self, Code};
use cuda_api::flags::INSTANTIATE_UPLOAD;
use cuda_api::handle::Kind;
use cuda_api::lock::lock;
use cuda_api::ops::GraphChange;
use cuda_api::work::{At, Copy3, HOST, Work};
use std::sync::atomic::Ordering;

/// The address of a copy's end in the job's memory.
fn host_address(c: &Copy3) -> u64 {
    if c.src.memory == HOST { c.src.host } else { c.dst.host }
}

impl Executor {
    /// Returns whether the driver can make a copy from or to the job's memory by itself: this place has that memory.
    pub(super) fn is_direct(&self, c: &Copy3) -> bool {
        let host = if c.src.memory == HOST { &c.src } else { &c.dst };
        (c.src.memory == HOST) != (c.dst.memory == HOST)
            // As the job describes them: its address is the whole place in the host's memory.
            && (host.x, host.y, host.z) == (0, 0, 0)
            && c.bytes().is_some_and(|n| n <= LARGEST)
            && self.check_copy(c, HostEnds::Pinned).is_ok()
    }

    /// Takes a change that is carried out when the instance is built again: of a copy that the driver makes by itself and no longer can,
    /// or of a node that is not there. Returns false if it is to be carried out now.
    ///
    /// # Errors
    /// `INVALID_VALUE`: not the same kind of work, or no memory of the job.
    pub(super) fn changes_when_built(&self, calls: &Calls, op: &GraphChange) -> Result<bool, Code> {
        let bad = code::ERROR_INVALID_VALUE;
        let is_there = {
            let graphs = lock(&self.graphs);
            let Some(built) = graphs.built.get(&op.instance) else { return Ok(false) };
            let Some(source) = &built.source else { return Ok(false) };
            let nodes = source.spec.graphs.get(op.at.graph as usize).ok_or(bad)?;
            let was = &nodes.get(op.at.node as usize).ok_or(bad)?.work;
            let ends = |work: &Work<u32>| match work {
                Work::Copy(c) => [c.src.memory == HOST, c.dst.memory == HOST],
                _ => [false; 2],
            };
            // What is in the source is built without further checks.
            if was.node_type() != op.work.node_type() || ends(was) != ends(&op.work) || !op.work.inner().is_empty() {
                return Err(bad);
            }
            !built.stale.contains(&op.at) && !built.missing.contains(&op.at)
        };
        match &op.work {
            Work::Copy(c) if !is_there || c.calls() && calls.at(op.at).is_none() && !self.is_direct(c) => {
                self.check_copy(c, HostEnds::Staged)?;
                if c.calls() && c.bytes().is_none_or(|n| n > LARGEST) {
                    return Err(code::ERROR_NOT_SUPPORTED);
                }
            }
            _ if !is_there => {}
            _ => return Ok(false),
        }
        self.change_source(op.instance, op.at, op.work.clone(), true);
        Ok(true)
    }

    /// Notes a change of an instance that can be built again; `stale`: the driver does not have it yet.
    pub(super) fn change_source(&self, instance: u64, at: At, work: Work<u32>, stale: bool) {
        let mut graphs = lock(&self.graphs);
        let Some(built) = graphs.built.get_mut(&instance) else { return };
        let Some(source) = &mut built.source else { return };
        if let Some(node) = source.spec.graphs.get_mut(at.graph as usize).and_then(|nodes| nodes.get_mut(at.node as usize)) {
            if let (Work::Copy(c), Some(known)) = (&work, built.registrations.get_mut(&at)) {
                *known = self.registration(host_address(c));
            }
            node.work = work;
        }
        if stale && !built.missing.contains(&at) {
            built.stale.insert(at);
        }
    }

    /// The present registration of the memory of a copy that the driver makes by itself.
    fn present(&self, built: &Built, at: At) -> Option<u64> {
        match &built.source.as_ref()?.spec.graphs.get(at.graph as usize)?.get(at.node as usize)?.work {
            Work::Copy(c) => self.registration(host_address(c)),
            _ => None,
        }
    }

    /// Notes how the driver has registered the job's memory.
    pub(super) fn note_registrations(&self, built: &mut Built) {
        built.ended = self.pinned.ended.load(Ordering::Relaxed);
        let direct = built.calls.nodes.iter().filter(|(_, node)| node.is_none());
        built.registrations = direct.map(|(at, _)| (*at, self.present(built, *at))).collect();
    }

    /// Builds an instance again for a call of the node at `at`. A second call of the same launch finds all copies calling: those that are
    /// not change back together, with the launch.
    pub(super) fn rebuild_for_call(&self, instance: u64, at: At) -> Result<(), Code> {
        let again = lock(&self.graphs).built.get(&instance).is_some_and(|b| b.for_call);
        self.rebuild(instance, |other, was| was && other != at && !again)?;
        if let Some(built) = lock(&self.graphs).built.get_mut(&instance) {
            built.for_call = true;
        }
        Ok(())
    }

    /// Returns whether an instance has to be built again before it is launched: a node has changed, or memory of a copy that the driver
    /// makes by itself has ended. A driver may have noted more about that memory than its address. `launches`: this is that launch.
    pub(super) fn is_out_of_date(&self, instance: u64, launches: bool) -> bool {
        let mut graphs = lock(&self.graphs);
        let Some(built) = graphs.built.get_mut(&instance) else { return false };
        built.for_call &= !launches;
        if built.stale.iter().chain(&built.missing).any(|at| !built.off.contains(at)) {
            return true;
        }
        let ended = self.pinned.ended.load(Ordering::Relaxed);
        if built.ended == ended {
            return false;
        }
        let is_other = built.registrations.iter().any(|(at, then)| self.present(built, *at) != *then);
        built.ended = if is_other { built.ended } else { ended };
        is_other
    }

    /// Builds an instance again, with another choice of the copies that the driver makes by itself: `direct` gets the present one. Copies
    /// whose memory the place does not have, or has no longer, are none of them. The next launch is ordered behind those of the present
    /// instance.
    ///
    /// # Errors
    /// The driver's errors; the instance is then what it was.
    pub(super) fn rebuild(&self, instance: u64, direct: impl Fn(At, bool) -> bool) -> Result<(), Code> {
        let old = lock(&self.graphs).built.get(&instance).cloned().ok_or(code::ERROR_INVALID_HANDLE)?;
        let source = old.source.as_ref().ok_or(code::ERROR_INVALID_VALUE)?;
        let still = |at: At, c: &Copy3| direct(at, old.calls.at(at).is_none()) && self.is_direct(c);
        let calls = self.calls_of(&source.spec, &old.calls, still)?;
        let mut built = self.build_graph(&source.spec, 0, &calls, &old.off)?;
        let made = self.gpu.instantiate(built.graph, source.flags & !INSTANTIATE_UPLOAD).and_then(|live| {
            let switched = old.off.difference(&built.missing).try_for_each(|at| self.switch_node(live, &built, *at, false));
            switched.map(|()| live).inspect_err(|_| {
                // The first error is reported.
                let _ = self.gpu.destroy_instance(live);
            })
        });
        let live = made.inspect_err(|_| self.drop_built(&built))?;
        *lock(&calls.before) = match old.calls.last() {
            Some(last) => Some((last, old.calls.clone())),
            None => lock(&old.calls.before).take(),
        };
        built.source.clone_from(&old.source);
        self.note_registrations(&mut built);
        let before = self.bindings.live(Kind::GraphExec, instance)?;
        self.bindings.bind(instance, live);
        lock(&self.graphs).built.insert(instance, built);
        self.drop_built(&old);
        self.gpu.destroy_instance(before)
    }
}
