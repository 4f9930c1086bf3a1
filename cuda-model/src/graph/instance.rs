//! Instances: a frozen copy of each instantiated graph, and the changes that are allowed.

use super::model::{Node, Owner};
use super::tables::{Conditions, Graphs, Instance};
use cuda_api::code::{self, Code};
use cuda_api::flags::INSTANTIATE_UPLOAD;
use cuda_api::work::{At, Copy3, Fill, Spec, Work};
use rustc_hash::{FxHashMap, FxHashSet};

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_*`
const AUTO_FREE: u64 = 1;
/// Launchable by device code.
pub(super) const DEVICE_LAUNCH: u64 = 4;
/// Nodes have individual priorities.
const NODE_PRIORITY: u64 = 8;

/// A graph that is ready to be instantiated.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) spec: Spec,
    pub(super) context: u64,
    /// The graph, if it has conditions.
    pub(super) home: u64,
    instance: Instance,
}

/// Why an instance cannot be created or changed: the call's result, `CUgraphInstantiateResult` or
/// `CUgraphExecUpdateResult`, and the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) result: u32,
    pub(super) node: u64,
}

fn refuse(code: Code, result: u32, node: u64) -> Refusal {
    Refusal { code, result, node }
}

/// A node of an instance with its new work.
#[derive(Debug)]
pub(super) struct Change {
    node: u64,
    pub(super) at: At,
    work: Work<u64>,
    pub(super) plain: bool,
}

impl Change {
    /// The work in encoded form.
    pub(super) fn travels(&self) -> Work<u32> {
        self.work.renamed(|_| 0)
    }
}

impl Graphs {
    /// Checks a graph and copies it for an instance.
    pub(super) fn prepare(&mut self, graph: u64, flags: u64, current: u64) -> Result<Prepared, Refusal> {
        let invalid = |rc: Code| refuse(rc, 1, 0);
        self.store.graph(graph).map_err(invalid)?;
        if flags & !(AUTO_FREE | INSTANTIATE_UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY) != 0 {
            return Err(invalid(INVALID));
        }
        if flags & DEVICE_LAUNCH != 0 && flags & AUTO_FREE != 0 {
            return Err(invalid(INVALID));
        }
        if self.store.is_captured_into(graph) {
            return Err(invalid(code::ERROR_ILLEGAL_STATE));
        }
        if self.store.has_loose_condition(graph) {
            return Err(refuse(INVALID, 5, 0));
        }
        let single = |n: &Node| matches!(n.work, Work::Conditional(_) | Work::MemAlloc(_) | Work::MemFree(_));
        if self.instances.values().any(|i| i.source == graph) && self.store.any(graph, &single) {
            return Err(invalid(INVALID));
        }
        if let Some(node) = self.store.unfit(graph, false) {
            return Err(refuse(INVALID, 3, node));
        }
        let (spec, at) = self.store.spec(graph).map_err(invalid)?;
        if spec.check().is_err() {
            return Err(refuse(INVALID, 2, 0));
        }
        let mut context = 0;
        for node in at.keys() {
            let other = self.store.node(*node).map_err(invalid)?.context;
            if other != 0 && context != 0 && other != context {
                return Err(refuse(code::ERROR_NOT_SUPPORTED, 1, *node));
            }
            context = context.max(other);
        }
        let copy = self.copy_graph(graph, Owner::Instance).map_err(invalid)?;
        let places = self.store.positions(copy).map_err(invalid)?;
        let effect = self.store.effect(copy);
        let of = places.keys().filter_map(|n| Some((self.store.node(*n).ok()?.origin, *n))).collect();
        let context = if context == 0 { current } else { context };
        let instance = Instance { graph: copy, source: graph, flags, context, of, places, off: FxHashSet::default(), effect };
        let home = if self.conditions.contains_key(&graph) { graph } else { 0 };
        Ok(Prepared { spec, context, home, instance })
    }

    /// Removes and returns conditions that are no longer needed.
    pub(super) fn unused_conditions(&mut self) -> Vec<(u64, Conditions)> {
        let (store, instances) = (&self.store, &self.instances);
        let gone = |home: &u64| store.graphs.get(*home).is_none() && !instances.values().any(|i| i.source == *home);
        self.conditions.extract_if(|home, _| gone(home)).collect()
    }

    /// Registers an instance that the host has created.
    pub(super) fn made(&mut self, handle: u64, prepared: Prepared) {
        self.instances.insert(handle, prepared.instance);
    }

    /// Undoes the preparation of an instance that could not be created.
    pub(super) fn not_made(&mut self, prepared: Prepared) {
        self.drop_graph(prepared.instance.graph);
    }

    pub(super) fn instance(&self, handle: u64) -> Result<&Instance, Code> {
        self.instances.get(&handle).ok_or(INVALID)
    }

    /// Whether an instance holds user objects, which its running launches need.
    pub(super) fn holds_objects(&self, handle: u64) -> bool {
        self.instances.get(&handle).is_some_and(|i| !self.store.held_inside(i.graph).is_empty())
    }

    /// Removes an instance; returns the user objects that it held.
    pub(super) fn drop_instance(&mut self, handle: u64) -> Vec<(u64, u32)> {
        let Some(gone) = self.instances.remove(&handle) else { return Vec::new() };
        self.store.drop_graph(gone.graph)
    }

    /// All instances of a context.
    pub(super) fn instances_in(&self, context: u64) -> Vec<u64> {
        self.instances.iter().filter(|(_, i)| i.context == context).map(|(h, _)| *h).collect()
    }

    /// Checks whether an instance may be launched now, as far as memory of graphs is concerned.
    pub(super) fn check_launch(&self, handle: u64) -> Result<(), Code> {
        let i = self.instance(handle)?;
        self.memories.check(&i.effect, i.flags & AUTO_FREE != 0)
    }

    /// Records a launch.
    pub(super) fn launched(&mut self, handle: u64) {
        if let Some(i) = self.instances.get(&handle) {
            self.memories.launched(&i.effect);
        }
    }

    /// The node of an instance that was copied from `node`.
    fn node_of(&self, instance: u64, node: u64) -> Result<(u64, At), Code> {
        self.store.node(node)?;
        let i = self.instance(instance)?;
        let own = *i.of.get(&node).ok_or(INVALID)?;
        Ok((own, *i.places.get(&own).ok_or(INVALID)?))
    }

    /// The work of a node of an instance.
    pub(super) fn work_of(&self, instance: u64, node: u64) -> Result<&Work<u64>, Code> {
        let (own, _) = self.node_of(instance, node)?;
        Ok(&self.store.node(own)?.work)
    }

    /// A checked change of one node.
    pub(super) fn change_one(&self, instance: u64, node: u64, work: Work<u64>, context: u64) -> Result<Vec<Change>, Code> {
        let (own, at) = self.node_of(instance, node)?;
        let old = self.store.node(own)?;
        if old.context != 0 && context != 0 && old.context != context {
            return Err(INVALID);
        }
        allowed(&old.work, &work).map_err(|_| INVALID)?;
        Ok(if old.work == work { Vec::new() } else { vec![Change { node: own, at, plain: plain(&old.work, &work), work }] })
    }

    /// The changes that make a child graph node equal to another graph.
    pub(super) fn change_child(&self, instance: u64, node: u64, graph: u64) -> Result<Vec<Change>, Code> {
        let (own, _) = self.node_of(instance, node)?;
        let Work::Child(inner) = &self.store.node(own)?.work else { return Err(INVALID) };
        let mut changes = Vec::new();
        self.compare(self.instance(instance)?, *inner, graph, &mut changes).map_err(|_| INVALID)?;
        Ok(changes)
    }

    /// The changes that make an instance equal to another graph.
    pub(super) fn change_all(&self, instance: u64, graph: u64) -> Result<Vec<Change>, Refusal> {
        let i = self.instance(instance).map_err(|rc| refuse(rc, 1, 0))?;
        self.store.graph(graph).map_err(|rc| refuse(rc, 1, 0))?;
        let mut changes = Vec::new();
        self.compare(i, i.graph, graph, &mut changes)?;
        Ok(changes)
    }

    /// Pairs the nodes of two graphs in creation order, which is the same for the same calls.
    fn compare(&self, i: &Instance, old: u64, new: u64, changes: &mut Vec<Change>) -> Result<(), Refusal> {
        let failed = |result, node| refuse(code::ERROR_GRAPH_EXEC_UPDATE_FAILURE, result, node);
        let lost = |rc| refuse(rc, 1, 0);
        let topology = |node| failed(2, node);
        let (a, b) = (self.store.graphs.get(old).ok_or(lost(INVALID))?, self.store.graphs.get(new).ok_or(lost(INVALID))?);
        let numbers: FxHashMap<u64, u64> = b.nodes.iter().copied().zip(a.nodes.iter().copied()).collect();
        for (own, theirs) in a.nodes.iter().zip(&b.nodes) {
            let (x, y) = (self.store.node(*own).map_err(lost)?, self.store.node(*theirs).map_err(lost)?);
            let mapped: FxHashSet<_> = y.after.iter().filter_map(|(n, edge)| Some((*numbers.get(n)?, *edge))).collect();
            if mapped.len() != y.after.len() || mapped != x.after.iter().copied().collect() {
                return Err(topology(*theirs));
            }
            if x.work.node_type() != y.work.node_type() {
                return Err(failed(3, *theirs));
            }
            match (&x.work, &y.work) {
                (Work::Child(old), Work::Child(new)) => self.compare(i, *old, *new, changes)?,
                (Work::Conditional(c), Work::Conditional(d)) => {
                    if (c.handle, c.kind, c.bodies.len()) != (d.handle, d.kind, d.bodies.len()) {
                        return Err(failed(5, *theirs));
                    }
                    for (old, new) in c.bodies.iter().zip(&d.bodies) {
                        self.compare(i, *old, *new, changes)?;
                    }
                }
                (old, new) => {
                    if x.context != y.context {
                        return Err(failed(5, *theirs));
                    }
                    allowed(old, new).map_err(|result| failed(result, *theirs))?;
                    if old != new {
                        let at = *i.places.get(own).ok_or(lost(INVALID))?;
                        changes.push(Change { node: *own, at, plain: plain(old, new), work: new.clone() });
                    }
                }
            }
        }
        if a.nodes.len() != b.nodes.len() {
            return Err(topology(b.nodes.get(a.nodes.len()).copied().unwrap_or_default()));
        }
        Ok(())
    }

    /// Applies a change that the host has made.
    pub(super) fn changed(&mut self, change: Change) {
        if let Some(n) = self.store.nodes.get_mut(change.node) {
            n.work = change.work;
        }
    }

    /// Position of a node that can be enabled and disabled: kernels, copies and fills.
    pub(super) fn switch(&self, instance: u64, node: u64) -> Result<(At, bool), Code> {
        let (own, at) = self.node_of(instance, node)?;
        match self.store.node(own)?.work {
            Work::Kernel(_) | Work::Copy(_) | Work::Fill(_) => Ok((at, !self.instance(instance)?.off.contains(&own))),
            _ => Err(INVALID),
        }
    }

    /// A node was switched on or off.
    pub(super) fn switched(&mut self, instance: u64, node: u64, on: bool) {
        let Ok((own, _)) = self.node_of(instance, node) else { return };
        if let Some(i) = self.instances.get_mut(&instance) {
            if on {
                i.off.remove(&own)
            } else {
                i.off.insert(own)
            };
        }
    }
}

/// Checks whether a node of an instance may change like this; otherwise returns the `CUgraphExecUpdateResult`.
fn allowed(old: &Work<u64>, new: &Work<u64>) -> Result<(), u32> {
    const TYPE: u32 = 3;
    const PARAMETERS: u32 = 5;
    const ATTRIBUTES: u32 = 8;
    match (old, new) {
        (Work::Kernel(a), Work::Kernel(b)) if a.attributes != b.attributes => Err(ATTRIBUTES),
        (Work::Copy(a), Work::Copy(b)) if a != b && !(flat(a) && flat(b) && ends(a) == ends(b)) => Err(PARAMETERS),
        (Work::Fill(a), Work::Fill(b)) if a != b && !(flat_fill(a) && flat_fill(b)) => Err(PARAMETERS),
        (Work::Child(a), Work::Child(b)) if a != b => Err(PARAMETERS),
        (Work::MemAlloc(_), Work::MemAlloc(_)) | (Work::MemFree(_), Work::MemFree(_)) if old != new => Err(PARAMETERS),
        (Work::Conditional(a), Work::Conditional(b)) if a != b => Err(PARAMETERS),
        _ if old.node_type() != new.node_type() => Err(TYPE),
        _ => Ok(()),
    }
}

/// Only copies and fills of one row can be changed (CUDA driver API reference).
fn flat(c: &Copy3) -> bool {
    c.rows <= 1 && c.depth <= 1
}

fn flat_fill(f: &Fill) -> bool {
    f.rows <= 1
}

/// Kinds of memory of both ends, which must not change.
fn ends(c: &Copy3) -> (u32, u32, bool, bool) {
    (c.src.memory, c.dst.memory, c.src.array != 0, c.dst.array != 0)
}

/// Whether only values change that every driver accepts, so that it need not check them.
fn plain(old: &Work<u64>, new: &Work<u64>) -> bool {
    match (old, new) {
        (Work::Kernel(a), Work::Kernel(b)) => a.function == b.function,
        (Work::Host(_), Work::Host(_)) => true,
        // The same memory.
        (Work::Fill(a), Work::Fill(b)) => Fill { value: a.value, ..*b } == *a && fits(b),
        _ => false,
    }
}

/// Whether the value of a fill fits into its element size.
fn fits(f: &Fill) -> bool {
    f.value.checked_shr(8 * f.element).unwrap_or(0) == 0
}
