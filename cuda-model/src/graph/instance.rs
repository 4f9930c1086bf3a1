//! Instances: a frozen copy of each instantiated graph, and the changes that are allowed.

use super::frozen::FrozenNode;
use super::model::{Node, Store};
use super::tables::{Conditions, Graphs, Instance};
use cuda_api::code::{self, Code};
use cuda_api::flags::INSTANTIATE_UPLOAD;
use cuda_api::work::{At, Copy3, Edge, Fill, Spec, Work};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

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
    /// The start of the edge to that node, if an edge is the reason.
    pub(super) from: u64,
}

fn refuse(code: Code, result: u32, node: u64) -> Refusal {
    Refusal { code, result, node, from: 0 }
}

/// As [`refuse`], of an update.
fn differs(result: u32, node: u64) -> Refusal {
    refuse(code::ERROR_GRAPH_EXEC_UPDATE_FAILURE, result, node)
}

/// Something else has failed than what an update may change.
fn lost(code: Code) -> Refusal {
    refuse(code, OTHER, 0)
}

/// A node of an instance with its new work.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) at: At,
    pub(super) work: Work<u32>,
    pub(super) plain: bool,
    /// The node of another graph whose work it is, if there is one.
    node: u64,
    /// Whether it is another kernel.
    is_other_function: bool,
}

impl Change {
    /// `new` embeds no graph: those do not change.
    fn new(at: At, old: &Work<u32>, new: &Work<u64>, node: u64) -> Change {
        let is_other_function = matches!((old, new), (Work::Kernel(a), Work::Kernel(b)) if a.function != b.function);
        Change { at, plain: plain(old, new), work: new.renamed(|_| 0), node, is_other_function }
    }

    /// What reverses a change that has replaced `old`.
    fn back(at: At, old: Work<u32>) -> Change {
        Change { at, work: old, plain: false, node: 0, is_other_function: false }
    }

    /// Why the host does not make the change: whether it refuses it, or something else has failed.
    pub(super) fn refused(&self, rc: Code) -> Refusal {
        let result =
            match rc {
                code::ERROR_NOT_SUPPORTED => NOT_SUPPORTED,
                code::ERROR_INVALID_VALUE | code::ERROR_INVALID_HANDLE | code::ERROR_INVALID_CONTEXT => {
                    if self.is_other_function { FUNCTION } else { PARAMETERS }
                }
                _ => return refuse(rc, OTHER, 0),
            };
        refuse(rc, result, self.node)
    }
}

/// What makes an instance, or a graph in it, like another graph.
#[derive(Debug, Default)]
pub(super) struct Update {
    pub(super) changes: Vec<Change>,
    /// The graphs of the instance that are to hold other user objects, and those, with references for them.
    objects: Vec<(u32, Vec<(u64, u32)>)>,
}

impl Update {
    fn references(self) -> Vec<(u64, u32)> {
        self.objects.into_iter().flat_map(|(_, objects)| objects).collect()
    }
}

/// `CUgraphExecUpdateResult`; this one says that something else has failed than what an update may change.
pub(super) const OTHER: u32 = 1;
const TOPOLOGY: u32 = 2;
const TYPE: u32 = 3;
const PARAMETERS: u32 = 5;
const NOT_SUPPORTED: u32 = 6;
const FUNCTION: u32 = 7;
const ATTRIBUTES: u32 = 8;

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
        if self.store.any(graph, &single) && self.instances.values().any(|i| i.source == graph) {
            // Of memory: docs/driver-facts.md, 7.3.
            return Err(invalid(if self.store.has_memory(graph) { code::ERROR_NOT_SUPPORTED } else { INVALID }));
        }
        if let Some(node) = self.store.unfit(graph, false) {
            return Err(refuse(INVALID, 3, node));
        }
        let frozen = self.store.freeze(graph).map_err(invalid)?;
        let spec = frozen.spec();
        if spec.check().is_err() {
            return Err(refuse(INVALID, 2, 0));
        }
        let mut context = 0;
        for node in frozen.all().filter(|n| n.context != 0) {
            if context != 0 && node.context != context {
                return Err(refuse(code::ERROR_NOT_SUPPORTED, 1, node.origin));
            }
            context = node.context;
        }
        for (object, count) in frozen.objects() {
            // It exists, because the graph holds it.
            let _ = self.retain_object(object, count);
        }
        let effect = self.store.effect(graph);
        effect.allocs().for_each(|address| self.store.hold_alloc(address));
        let context = if context == 0 { current } else { context };
        let instance = Instance { frozen, source: graph, flags, context, off: FxHashSet::default(), effect };
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
        let held = self.undo(&prepared.instance);
        self.release_objects(held);
    }

    /// Releases the allocations of an instance that is dropped; returns the user objects that it held.
    fn undo(&mut self, gone: &Instance) -> Vec<(u64, u32)> {
        gone.effect.allocs().for_each(|address| self.store.forget_alloc(address));
        gone.frozen.objects().collect()
    }

    pub(super) fn instance(&self, handle: u64) -> Result<&Instance, Code> {
        self.instances.get(&handle).ok_or(INVALID)
    }

    /// Removes an instance; returns the user objects that it held.
    pub(super) fn drop_instance(&mut self, handle: u64) -> Vec<(u64, u32)> {
        let Some(gone) = self.instances.remove(&handle) else { return Vec::new() };
        self.undo(&gone)
    }

    /// A copy of an instance as a graph of the program.
    pub(super) fn copy_instance(&mut self, handle: u64) -> Result<u64, Code> {
        let i = self.instances.get(&handle).ok_or(INVALID)?;
        let copy = self.store.thaw(&i.frozen)?;
        for (object, count) in self.store.held_inside(copy) {
            // It exists, because the instance holds it.
            let _ = self.retain_object(object, count);
        }
        Ok(copy)
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
    fn node_of(&self, instance: u64, node: u64) -> Result<(At, &FrozenNode), Code> {
        let number = self.store.node(node)?.number;
        let frozen = &self.instance(instance)?.frozen;
        let at = frozen.copy_of(node, number)?;
        Ok((at, frozen.node(at)?))
    }

    /// The work of a node of an instance.
    pub(super) fn work_of(&self, instance: u64, node: u64) -> Result<&Work<u32>, Code> {
        Ok(&self.node_of(instance, node)?.1.work)
    }

    /// A checked change of one node.
    pub(super) fn change_one(&self, instance: u64, node: u64, work: &Work<u64>, context: u64) -> Result<Option<Change>, Code> {
        let (at, old) = self.node_of(instance, node)?;
        if old.context != 0 && context != 0 && old.context != context {
            return Err(INVALID);
        }
        allowed(&old.work, work).map_err(|_| INVALID)?;
        Ok((!is_same(&old.work, work)).then(|| Change::new(at, &old.work, work, 0)))
    }

    /// What makes a child graph node equal to another graph. Must be followed by [`Graphs::updated`] or [`Graphs::not_updated`].
    pub(super) fn change_child(&mut self, instance: u64, node: u64, graph: u64) -> Result<Update, Code> {
        let (_, own) = self.node_of(instance, node)?;
        let Work::Child(inner) = own.work else { return Err(INVALID) };
        // docs/driver-facts.md, 7.12
        self.plan(instance, inner, graph).map_err(|why| why.code)
    }

    /// What makes an instance equal to another graph. Must be followed by [`Graphs::updated`] or [`Graphs::not_updated`].
    pub(super) fn change_all(&mut self, instance: u64, graph: u64) -> Result<Update, Refusal> {
        self.plan(instance, 0, graph)
    }

    fn plan(&mut self, instance: u64, old: u32, graph: u64) -> Result<Update, Refusal> {
        let i = self.instance(instance).map_err(lost)?;
        self.store.graph(graph).map_err(lost)?;
        let mut update = Update::default();
        self.compare(i, old, graph, &mut update)?;
        for (object, count) in update.objects.iter().flat_map(|(_, objects)| objects) {
            // It exists, because the graph holds it.
            let _ = self.retain_object(*object, *count);
        }
        Ok(update)
    }

    /// The host has made the changes of an update. Returns the references to user objects that the instance had instead of its new ones:
    /// its running launches need them.
    pub(super) fn updated(&mut self, instance: u64, update: Update) -> Vec<(u64, u32)> {
        let Some(i) = self.instances.get_mut(&instance) else { return update.references() };
        update.objects.into_iter().flat_map(|(graph, objects)| i.frozen.hold(graph, objects)).collect()
    }

    /// The host has not made the changes of an update.
    pub(super) fn not_updated(&mut self, update: Update) {
        self.release_objects(update.references());
    }

    /// Notes what differs between the nodes of a graph of an instance and those of another graph that are paired with them. All nodes are
    /// paired before any are compared; which of several differences a driver reports is not measured.
    fn compare(&self, instance: &Instance, old: u32, new: u64, update: &mut Update) -> Result<(), Refusal> {
        let frozen = &instance.frozen;
        let (a, b) = (frozen.nodes(old).map_err(lost)?, self.store.graph(new).map_err(lost)?);
        let pairs = pairs(&self.store, a, &b.nodes)?;
        if frozen.held(old) != b.objects {
            update.objects.push((old, b.objects.clone()));
        }
        for (x, number) in a.iter().zip(0..) {
            let partner = pairs.as_ref().map_or(number, |of| of[number as usize]);
            let theirs = b.nodes[partner as usize];
            let y = self.store.node(theirs).map_err(lost)?;
            if x.work.node_type() != y.work.node_type() {
                return Err(differs(TYPE, theirs));
            }
            match (&x.work, &y.work) {
                (Work::Child(old), Work::Child(new)) => self.compare(instance, *old, *new, update)?,
                (Work::Conditional(c), Work::Conditional(d)) => {
                    if (c.handle, c.kind, c.bodies.len()) != (d.handle, d.kind, d.bodies.len()) {
                        return Err(differs(PARAMETERS, theirs));
                    }
                    // A driver takes over the new default value (docs/driver-facts.md, 7.14), which places cannot set.
                    let home = self.store.outermost(new).map_err(lost)?;
                    if self.default_of(instance.source, c.handle) != self.default_of(home, d.handle) {
                        return Err(differs(PARAMETERS, theirs));
                    }
                    for (old, new) in c.bodies.iter().zip(&d.bodies) {
                        self.compare(instance, *old, *new, update)?;
                    }
                }
                (old_work, new_work) => {
                    if x.context != y.context {
                        return Err(differs(PARAMETERS, theirs));
                    }
                    allowed(old_work, new_work).map_err(|result| differs(result, theirs))?;
                    if !is_same(old_work, new_work) {
                        update.changes.push(Change::new(At { graph: old, node: number }, old_work, new_work, theirs));
                    }
                }
            }
        }
        Ok(())
    }

    /// The default value and the flags of a condition of a graph.
    fn default_of(&self, home: u64, condition: u64) -> Option<(u32, u32)> {
        self.conditions.get(&home)?.defaults.get(&condition).copied()
    }

    /// Applies a change that the host has made; returns what reverses it.
    pub(super) fn changed(&mut self, instance: u64, change: Change) -> Option<Change> {
        let node = self.instances.get_mut(&instance).and_then(|i| i.frozen.node_mut(change.at).ok())?;
        Some(Change::back(change.at, std::mem::replace(&mut node.work, change.work)))
    }

    /// Position of a node that can be enabled and disabled: kernels, copies and fills.
    pub(super) fn switch(&self, instance: u64, node: u64) -> Result<(At, bool), Code> {
        let (at, own) = self.node_of(instance, node)?;
        match own.work {
            Work::Kernel(_) | Work::Copy(_) | Work::Fill(_) => Ok((at, !self.instance(instance)?.off.contains(&at))),
            _ => Err(INVALID),
        }
    }

    /// A node was switched on or off.
    pub(super) fn switched(&mut self, instance: u64, at: At, on: bool) {
        if let Some(i) = self.instances.get_mut(&instance) {
            if on {
                i.off.remove(&at)
            } else {
                i.off.insert(at)
            };
        }
    }
}

/// Positions of nodes in one of two graphs, by those of their partners in the other one: short for small graphs.
type Partners = SmallVec<[u32; 32]>;

/// No partner yet.
const ALONE: u32 = u32::MAX;

/// The nodes of a graph that are paired with those of an instance: nothing if each is paired with that of the same position.
///
/// Nodes are paired from those that nothing waits for backwards, along the edges of each node in the order of its list (docs/driver-facts.md,
/// 7.11; CUDA driver API reference, `cuGraphExecUpdate`). Those that nothing waits for are taken in creation order; a driver may order
/// them by the call that made them so, which is the same unless edges or nodes were removed or captures have several ends (not measured).
fn pairs(store: &Store, old: &[FrozenNode], new: &[u64]) -> Result<Option<Partners>, Refusal> {
    if old.len() != new.len() {
        // No node is named then (docs/driver-facts.md, 7.12).
        return Err(differs(TOPOLOGY, 0));
    }
    // Graphs that are made by the same calls have the same edges at the same positions, so each step of the walk below would pair equal
    // positions.
    let is_same = |((m, e), (n, f)): (&(u32, Edge), &(u64, Edge))| e == f && new.get(*m as usize) == Some(n);
    for (x, y) in old.iter().zip(new) {
        let after = &store.node(*y).map_err(lost)?.after;
        if x.after.len() != after.len() || !x.after.iter().zip(after).all(is_same) {
            return walk(store, old, new).map(Some);
        }
    }
    Ok(None)
}

/// The pairs so far.
struct Pairs {
    of_old: Partners,
    of_new: Partners,
    /// Those whose edges have not been followed.
    open: SmallVec<[(u32, u32); 32]>,
}

impl Pairs {
    /// Pairs two nodes; returns false if one of them has another partner.
    fn join(&mut self, old: u32, new: u32) -> bool {
        let (to, from) = (&mut self.of_old[old as usize], &mut self.of_new[new as usize]);
        if *to == ALONE && *from == ALONE {
            (*to, *from) = (new, old);
            self.open.push((old, new));
        }
        (*to, *from) == (new, old)
    }
}

/// As [`pairs`], for graphs whose edges are not at the same positions.
fn walk(store: &Store, old: &[FrozenNode], new: &[u64]) -> Result<Partners, Refusal> {
    let number = |node: u64| store.node(node).map(|n| n.number).map_err(lost);
    let (mut old_inner, mut new_inner) = (Flags::from_elem(false, old.len()), Flags::from_elem(false, new.len()));
    for (x, y) in old.iter().zip(new) {
        x.after.iter().for_each(|(before, _)| old_inner[*before as usize] = true);
        for (before, _) in &store.node(*y).map_err(lost)?.after {
            new_inner[number(*before)? as usize] = true;
        }
    }
    let (mut old_ends, mut new_ends) = (ends(&old_inner), ends(&new_inner));
    let alone = Partners::from_elem(ALONE, old.len());
    let mut pairs = Pairs { of_old: alone.clone(), of_new: alone, open: SmallVec::new() };
    if new_ends.clone().count() > old_ends.clone().count() {
        // docs/driver-facts.md, 7.12
        return Err(differs(TOPOLOGY, new_ends.next().map_or(0, |n| new[n as usize])));
    }
    while let (Some(x), Some(y)) = (old_ends.next(), new_ends.next()) {
        pairs.join(x, y);
    }
    while let Some((x, y)) = pairs.open.pop() {
        let theirs = new[y as usize];
        let (a, b) = (&old[x as usize].after, &store.node(theirs).map_err(lost)?.after);
        if a.len() != b.len() {
            return Err(differs(TOPOLOGY, theirs));
        }
        for ((m, e), (n, f)) in a.iter().zip(b) {
            if e != f || !pairs.join(*m, number(*n)?) {
                return Err(Refusal { from: *n, ..differs(TOPOLOGY, theirs) });
            }
        }
    }
    // A graph that has never been instantiated may be a circle.
    if pairs.of_old.contains(&ALONE) { Err(differs(TOPOLOGY, 0)) } else { Ok(pairs.of_old) }
}

/// Whether anything waits for each node.
type Flags = SmallVec<[bool; 32]>;

/// The nodes that nothing waits for.
fn ends(inner: &Flags) -> impl Iterator<Item = u32> + Clone {
    inner.iter().zip(0..).filter(|(inner, _)| !**inner).map(|(_, number)| number)
}

/// Whether two nodes do the same; those that embed graphs are compared by their graphs.
fn is_same(old: &Work<u32>, new: &Work<u64>) -> bool {
    match (old, new) {
        (Work::Kernel(a), Work::Kernel(b)) => a == b,
        (Work::Copy(a), Work::Copy(b)) => a == b,
        (Work::Fill(a), Work::Fill(b)) => a == b,
        (Work::Host(a), Work::Host(b)) => a == b,
        (Work::Empty, Work::Empty) => true,
        (Work::EventWait(a), Work::EventWait(b)) | (Work::EventRecord(a), Work::EventRecord(b)) => a == b,
        (Work::MemAlloc(a), Work::MemAlloc(b)) => a == b,
        (Work::MemFree(a), Work::MemFree(b)) => a == b,
        (Work::MemOps(a), Work::MemOps(b)) => a == b,
        _ => false,
    }
}

/// Checks whether a node of an instance may change like this; otherwise returns the `CUgraphExecUpdateResult`.
fn allowed(old: &Work<u32>, new: &Work<u64>) -> Result<(), u32> {
    match (old, new) {
        (Work::Kernel(a), Work::Kernel(b)) if a.attributes != b.attributes => Err(ATTRIBUTES),
        (Work::Copy(a), Work::Copy(b)) if a != b && !(flat(a) && flat(b) && kinds(a) == kinds(b)) => Err(PARAMETERS),
        (Work::Fill(a), Work::Fill(b)) if !may_fill(a, b) => Err(PARAMETERS),
        (Work::MemAlloc(_), Work::MemAlloc(_)) | (Work::MemFree(_), Work::MemFree(_)) if !is_same(old, new) => Err(PARAMETERS),
        (Work::Child(_), Work::Child(_)) | (Work::Conditional(_), Work::Conditional(_)) => Err(PARAMETERS),
        _ if old.node_type() != new.node_type() => Err(TYPE),
        _ => Ok(()),
    }
}

/// Only copies of one row can be changed (CUDA driver API reference).
fn flat(c: &Copy3) -> bool {
    c.rows <= 1 && c.depth <= 1
}

fn flat_fill(f: &Fill) -> bool {
    f.rows <= 1
}

/// A fill of one row can become any other one of one row; of a larger one, address and value can change (docs/driver-facts.md, 7.10).
fn may_fill(old: &Fill, new: &Fill) -> bool {
    Fill { dst: old.dst, value: old.value, ..*new } == *old || flat_fill(old) && flat_fill(new)
}

/// Kinds of memory of both ends, which must not change.
fn kinds(c: &Copy3) -> (u32, u32, bool, bool) {
    (c.src.memory, c.dst.memory, c.src.array != 0, c.dst.array != 0)
}

/// Whether only values change that every driver accepts, so that it need not check them.
fn plain(old: &Work<u32>, new: &Work<u64>) -> bool {
    match (old, new) {
        (Work::Kernel(a), Work::Kernel(b)) => a.function == b.function,
        (Work::Host(_), Work::Host(_)) => true,
        // The same memory. Older drivers may refuse every change of several rows.
        (Work::Fill(a), Work::Fill(b)) => flat_fill(b) && Fill { value: a.value, ..*b } == *a && fits(b),
        _ => false,
    }
}

/// Whether the value of a fill fits into its element size.
fn fits(f: &Fill) -> bool {
    f.value.checked_shr(8 * f.element).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests;
