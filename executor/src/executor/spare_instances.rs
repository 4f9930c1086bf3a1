//! Instances of small graphs that the job has destroyed, kept to become other instances: programs that make a graph for each step make the
//! same shape again and again, and changing the parameters of a few nodes costs the driver a fraction of what it takes to instantiate a
//! graph and to destroy it (docs/measurements.md, "Small graphs and short-lived streams").
//!
//! An instance whose last stream has work is not used: two instances can run at the same time, two launches of one cannot. Nor is one used
//! across anything that changes code or settings: what a driver notes of them when it instantiates a graph is not known, and a replay, which
//! has no spare instances, must find the same memory free when it loads code.

use super::Executor;
use super::state::graphs::{Built, Calls, Spare};
use super::state::shape::Shape;
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::handle::slot;
use cuda_api::lock::lock;
use cuda_api::ops::GraphMake;
use cuda_api::work::{At, CopyEnd, HOST, Spec, Work};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum number of spare instances: each holds some memory of the driver.
const MAX_SPARES: usize = 8;
/// Maximum number of nodes of one.
const MAX_NODES: usize = 16;

impl Executor {
    /// The shape of a graph, if its instance can be a spare one later and be made of one now.
    pub(super) fn shape_of(&self, op: &GraphMake) -> Option<Shape> {
        if op.home != 0 || op.flags != 0 || !op.spec.is_simple(MAX_NODES) {
            return None;
        }
        // A driver accepts any address as a new parameter (driver-facts 7.7), so each is checked here. At another process than the job's,
        // copies of its memory are more than the driver's node.
        let end = |end: &CopyEnd, bytes: u64| match end.memory {
            HOST => self.is_here() && self.is_host(end.host, bytes) == Ok(true),
            _ => self.arenas.contain(end.device, bytes),
        };
        let known = |work: &Work<u32>| match work {
            Work::Copy(c) => end(&c.src, c.width) && end(&c.dst, c.width),
            Work::Fill(f) => f.width.checked_mul(f.element.into()).is_some_and(|bytes| self.arenas.contain(f.dst, bytes)),
            _ => true,
        };
        let changes = self.code_changes.load(Ordering::Acquire);
        if op.spec.graphs.iter().flatten().all(|node| known(&node.work)) { Shape::of(&op.spec, changes) } else { None }
    }

    /// Makes an instance of a spare one, if there is one of its shape.
    pub(super) fn reuse_instance(&self, shape: &Shape, spec: &Spec, calls: &Arc<Calls>) -> Option<(u64, Built)> {
        let mut graphs = lock(&self.graphs);
        let found = graphs.spares.iter().position(|spare| spare.shape == *shape && self.is_over(spare))?;
        let Spare { live, mut built, .. } = graphs.spares.remove(found)?;
        drop(graphs);
        let set = spec.graphs.iter().flatten().zip(0..).try_for_each(|(node, number)| {
            let at = built.nodes.get(&At { graph: 0, node: number }).ok_or(code::ERROR_INVALID_VALUE)?;
            match node.work {
                Work::Empty => Ok(()),
                _ => self.gpu.change_node(live, *at, &mut self.node_params(&node.work)?),
            }
        });
        if set.is_err() {
            // It is built from nothing instead, which gives the program the error, if it is one.
            self.destroy_spare(live, &built);
            return None;
        }
        built.calls = calls.clone();
        Some((live, built))
    }

    /// Whether nothing is under way in the stream of its last launch. Asking the stream orders nothing, which an event in it would.
    fn is_over(&self, spare: &Spare) -> bool {
        let query = |stream| self.gpu.query_stream(stage_stream(stream, &self.bindings)?);
        spare.last_stream == 0 || query(spare.last_stream) == Ok(())
    }

    /// Keeps an instance that the job has destroyed; returns whether that was possible.
    pub(super) fn spare_instance(&self, instance: u64, live: u64, built: &Built) -> bool {
        let Some(shape) = built.shape.clone() else { return false };
        let last_stream = self.last_streams.at(slot(instance)).load(Ordering::Relaxed);
        let mut graphs = lock(&self.graphs);
        // Checked under the lock under which they end.
        if shape.changes != self.code_changes.load(Ordering::Acquire) {
            return false;
        }
        graphs.spares.push_back(Spare { shape, live, built: built.clone(), last_stream });
        let oldest = if graphs.spares.len() > MAX_SPARES { graphs.spares.pop_front() } else { None };
        drop(graphs);
        if let Some(spare) = oldest {
            self.destroy_spare(spare.live, &spare.built);
        }
        true
    }

    /// Called before anything that changes code or settings, and when memory is short: no instance made before is used again. Returns
    /// whether there were any.
    pub(super) fn end_spare_instances(&self) -> bool {
        let mut graphs = lock(&self.graphs);
        self.code_changes.fetch_add(1, Ordering::AcqRel);
        let spares = std::mem::take(&mut graphs.spares);
        drop(graphs);
        spares.iter().for_each(|spare| self.destroy_spare(spare.live, &spare.built));
        !spares.is_empty()
    }

    fn destroy_spare(&self, live: u64, built: &Built) {
        // Fails only if the context has failed, which the job learns otherwise.
        let _ = self.gpu.destroy_instance(live);
        self.drop_built(built);
    }

    /// Notes in which stream an instance is launched.
    pub(super) fn note_instance_launch(&self, instance: u64, stream: u64) {
        self.last_streams.at(slot(instance)).store(stream, Ordering::Relaxed);
    }

    /// Does something that needs memory of the driver once more without the spare instances, if there was not enough.
    pub(super) fn with_room<T>(&self, attempt: impl Fn() -> Result<T, Code>) -> Result<T, Code> {
        match attempt() {
            Err(code::ERROR_OUT_OF_MEMORY) if self.end_spare_instances() => attempt(),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests;
