//! Graph instances: built node by node from what the job's process sends, since only that has the program's graphs.

use super::checker::{AttributeWords, HostEnds, attribute_words};
use super::state::graphs::{Built, Calls, Home, Made, Node, Source};
use super::{ContextState, Executor, short};
use crate::gpu::graphs::NodeParams;
use crate::pools::Recorded;
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::flags::INSTANTIATE_UPLOAD;
use cuda_api::handle::{Kind, kind};
use cuda_api::lock::lock;
use cuda_api::ops::{GraphChange, GraphCondition, GraphMake, GraphSwitch};
use cuda_api::wire::Wire;
use cuda_api::work::{At, Attribute, Copy3, Edge, HOST, Kernel, Spec, Work, attribute_id};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::sync::Arc;

impl Executor {
    pub(super) fn node_params<'w>(&self, work: &'w Work<u32>) -> Result<NodeParams<'w>, Code> {
        let context = self.graph_context();
        Ok(match work {
            Work::Kernel(k) => {
                self.launches(k.function);
                self.kernel_params(k)?
            }
            // Host memory is left to the driver where the place has it.
            Work::Copy(c) => NodeParams::copy(&self.check_copy(c, HostEnds::Pinned)?, context),
            Work::Fill(f) => self.check_fill(f).map(|()| NodeParams::fill(f, context))?,
            Work::Empty => NodeParams::empty(),
            Work::EventWait(e) => NodeParams::event(self.bindings.live(Kind::Event, *e)?, false),
            Work::EventRecord(e) => NodeParams::event(self.bindings.live(Kind::Event, *e)?, true),
            Work::MemOps(m) => NodeParams::mem_ops(&self.check_memory_nodes(m)?, context),
            // The job does not send memory nodes, which a place does not need.
            Work::Host(_) | Work::Child(_) | Work::Conditional(_) | Work::MemAlloc(_) | Work::MemFree(_) => {
                return Err(code::ERROR_NOT_SUPPORTED);
            }
        })
    }

    /// The attributes of a kernel's node, checked, with the driver's handles.
    fn attributes_of(&self, k: &Kernel) -> Result<Vec<(u32, AttributeWords)>, Code> {
        let one = |a: &Attribute| {
            let mut value = attribute_words(&a[8..])?;
            self.check_attribute(attribute_id(a), &mut value).map(|()| (attribute_id(a), value))
        };
        k.attributes.iter().map(one).collect()
    }

    /// The context for the nodes.
    fn graph_context(&self) -> u64 {
        self.context.load(std::sync::atomic::Ordering::Acquire) as u64
    }

    /// Returns whether this process is the job's.
    pub(super) fn is_here(&self) -> bool {
        self.hosts.runs_here()
    }

    /// Builds one graph of a spec with its inner graphs; on failure nothing remains. Nodes that will be off and cannot be made, because
    /// what they use has gone, are empty ones.
    pub(super) fn build_graph(&self, spec: &Spec, number: u32, calls: &Arc<Calls>, off: &FxHashSet<At>) -> Result<Built, Code> {
        let mut built = Built { off: off.clone(), ..Built::new(self.gpu.new_graph()?, calls.clone()) };
        built.nodes.reserve(spec.graphs.iter().map(Vec::len).sum());
        match self.fill_graph(spec, number, built.graph, &mut built) {
            Ok(()) => Ok(built),
            Err(rc) => {
                // The first error is reported.
                let _ = self.gpu.destroy_graph(built.graph);
                Err(rc)
            }
        }
    }

    fn fill_graph(&self, spec: &Spec, number: u32, graph: u64, built: &mut Built) -> Result<(), Code> {
        let nodes = spec.graphs.get(number as usize).ok_or(code::ERROR_INVALID_VALUE)?;
        let mut edges = Vec::new();
        // For each node, its first and last driver node.
        let mut own: SmallVec<[(u64, u64); 8]> = SmallVec::with_capacity(nodes.len());
        // A node is added with those of its edges that are plain and begin at nodes that are there: nearly always all of them.
        let comes_along = |(before, edge): &(u32, Edge), node: u32| *before < node && *edge == Edge::default();
        let mut after: SmallVec<[u64; 8]> = SmallVec::new();
        for (node, i) in nodes.iter().zip(0..) {
            let at = At { graph: number, node: i };
            after.clear();
            after.extend(node.after.iter().filter(|e| comes_along(e, i)).filter_map(|(n, _)| Some(own.get(*n as usize)?.1)));
            let made = match self.fill_node(spec, (graph, &after), built, at, &node.work, &mut edges) {
                Err(_) if built.off.contains(&at) && !matches!(node.work, Work::Child(_)) => {
                    built.missing.insert(at);
                    let empty = self.gpu.add_node(graph, &after, &mut NodeParams::empty())?;
                    built.nodes.insert(at, empty);
                    (empty, empty)
                }
                made => made?,
            };
            own.push(made);
        }
        for ((node, i), (to, _)) in nodes.iter().zip(0..).zip(&own) {
            for (before, edge) in node.after.iter().filter(|e| !comes_along(e, i)) {
                edges.push((own.get(*before as usize).ok_or(code::ERROR_INVALID_VALUE)?.1, *to, *edge));
            }
        }
        if edges.is_empty() { Ok(()) } else { self.gpu.add_edges(graph, &edges) }
    }

    /// Adds a node to a graph behind nodes of the driver; returns its first and last driver node.
    fn fill_node(
        &self,
        spec: &Spec,
        (graph, after): (u64, &[u64]),
        built: &mut Built,
        at: At,
        work: &Work<u32>,
        edges: &mut Vec<(u64, u64, Edge)>,
    ) -> Result<(u64, u64), Code> {
        if let Some(calling) = built.calls.at(at).cloned() {
            return self.add_calling((graph, after), built, at, work, &calling, edges);
        }
        let attributes = match work {
            Work::Kernel(k) => self.attributes_of(k)?,
            _ => Vec::new(),
        };
        let made = match work {
            Work::Child(inner) => {
                let child = self.build_graph(spec, *inner, &built.calls, &built.off)?;
                let added = self.gpu.add_node(graph, after, &mut NodeParams::child(child.graph));
                let copied = added.and_then(|made| {
                    let copy = self.gpu.child_graph(made)?;
                    self.copied(spec, *inner, copy, &child, built).map(|()| made)
                });
                self.gpu.destroy_graph(child.graph)?;
                built.missing.extend(&child.missing);
                copied?
            }
            Work::Conditional(c) => {
                let context = self.graph_context();
                let (made, bodies) = self.gpu.add_conditional(graph, after, c, context)?;
                for (inner, body) in c.bodies.iter().zip(bodies) {
                    self.fill_graph(spec, *inner, body, built)?;
                }
                made
            }
            work => self.gpu.add_node(graph, after, &mut self.node_params(work)?)?,
        };
        let set = attributes.iter().try_for_each(|(id, value)| self.gpu.set_node_attribute(made, *id, value));
        if set.is_err() {
            // Nothing may run in its place; the first error is reported.
            let _ = self.gpu.destroy_node(made);
        }
        set?;
        built.nodes.insert(at, made);
        Ok((made, made))
    }

    /// Adds a node that calls the job: the call, and for a copy the driver's copy before or behind it.
    fn add_calling(
        &self,
        (graph, after): (u64, &[u64]),
        built: &mut Built,
        at: At,
        work: &Work<u32>,
        calling: &Node,
        edges: &mut Vec<(u64, u64, Edge)>,
    ) -> Result<(u64, u64), Code> {
        let staged = match (calling, work) {
            (Node::Copy(node), Work::Copy(c)) => self.staged(node, c)?.map(|(own, new)| (node, c, own, new)),
            _ => None,
        };
        let context = self.graph_context();
        let copy_is_first = staged.as_ref().is_some_and(|(_, c, ..)| c.src.memory != HOST);
        let (after_copy, after_call) = if copy_is_first { (after, &[][..]) } else { (&[][..], after) };
        // The copy is added first: should it be refused, nothing must wait.
        let copy = match staged {
            Some((node, _, own, new)) => {
                Some((self.gpu.add_node(graph, after_copy, &mut NodeParams::copy(&own, context))?, node, new))
            }
            None => None,
        };
        let call = self.gpu.add_node(graph, after_call, &mut calling.params(context)).inspect_err(|_| {
            // Nor must it copy without its wait; the first error is reported.
            if let Some((made, ..)) = &copy {
                let _ = self.gpu.destroy_node(*made);
            }
        })?;
        if let Node::Copy(_) = calling {
            built.waits.insert(at, call);
        }
        let Some((made, node, new)) = copy else {
            built.nodes.insert(at, call);
            return Ok((call, call));
        };
        node.take(new);
        built.nodes.insert(at, made);
        let (first, last) = if copy_is_first { (made, call) } else { (call, made) };
        edges.push((first, last, Edge::default()));
        Ok((first, last))
    }

    /// Maps the nodes of graph `number`, which the driver has copied into a node, to their copies, also in inner graphs.
    fn copied(&self, spec: &Spec, number: u32, copy: u64, from: &Built, to: &mut Built) -> Result<(), Code> {
        let nodes = spec.graphs.get(number as usize).ok_or(code::ERROR_INVALID_VALUE)?;
        for (node, i) in nodes.iter().zip(0..) {
            let at = At { graph: number, node: i };
            let original = *from.nodes.get(&at).ok_or(code::ERROR_INVALID_VALUE)?;
            let found = self.gpu.node_in_clone(original, copy)?;
            to.nodes.insert(at, found);
            if let Some(wait) = from.waits.get(&at) {
                to.waits.insert(at, self.gpu.node_in_clone(*wait, copy)?);
            }
            if let Work::Child(inner) = node.work {
                self.copied(spec, inner, self.gpu.child_graph(found)?, from, to)?;
            }
        }
        Ok(())
    }

    pub(super) fn make_graph(&self, mut body: &[u8]) -> Result<(), Code> {
        self.make(Cow::Owned(GraphMake::get(&mut body).map_err(short)?))
    }

    /// Makes a graph instance, as [`Executor::apply`] does with the encoded form.
    ///
    /// # Errors
    /// The driver's error, or `DEINITIALIZED` if the executor is closed.
    pub fn make_instance(&self, op: &GraphMake) -> Result<(), Code> {
        self.make_current()?;
        let _life = self.life();
        self.make(Cow::Borrowed(op))
    }

    fn make(&self, op: Cow<GraphMake>) -> Result<(), Code> {
        if kind(op.instance) != Some(Kind::GraphExec) {
            return Err(code::ERROR_INVALID_HANDLE);
        }
        op.spec.check().map_err(short)?;
        self.check_conditions(op.home, &op.spec)?;
        // A graph with conditions is built once, so its copies have to be as any launch may need them.
        let direct = |_: At, c: &Copy3| self.is_here() || op.home == 0 && op.direct && self.is_direct(c);
        let calls = self.calls_of(&op.spec, &Calls::default(), direct)?;
        if calls.calling().next().is_some() {
            let often = op.spec.conditional();
            if calls.calling().any(|at| often.get(at.graph as usize) == Some(&true)) {
                // The number of calls that such a node would make is known only when it runs.
                return Err(code::ERROR_NOT_SUPPORTED);
            }
        }
        let shape = self.shape_of(&op);
        self.note_instance_launch(op.instance, 0);
        if let Some(shape) = &shape
            && let Some((live, built)) = self.reuse_instance(shape, &op.spec, &calls)
        {
            self.bindings.bind(op.instance, live);
            lock(&self.graphs).built.insert(op.instance, built);
            return Ok(());
        }
        let mut built = if op.home == 0 {
            self.build_graph(&op.spec, 0, &calls, &FxHashSet::default())
        } else {
            self.build_home(op.home, &op.spec, &calls)
        }?;
        // A separate call uploads.
        match self.with_room(|| self.gpu.instantiate(built.graph, op.flags & !INSTANTIATE_UPLOAD)) {
            Ok(live) => {
                let instance = op.instance;
                self.bindings.bind(instance, live);
                let copies = |spec: &Spec| spec.calls().any(|(_, work)| matches!(work, Work::Copy(_)));
                if op.home == 0 && !self.is_here() && copies(&op.spec) {
                    let GraphMake { spec, flags, .. } = op.into_owned();
                    built.source = Some(Box::new(Source { spec, flags }));
                    self.note_registrations(&mut built);
                }
                built.shape = shape;
                lock(&self.graphs).built.insert(instance, built);
                Ok(())
            }
            Err(rc) => {
                self.drop_built(&built);
                Err(rc)
            }
        }
    }

    /// A driver follows any number that is passed as a condition, so only those that were created for the graph are accepted.
    fn check_conditions(&self, home: u64, spec: &Spec) -> Result<(), Code> {
        let made = |handle: u64| lock(&self.graphs).homes.get(&home).is_some_and(|h| h.conditions.contains(&handle));
        let known = |work: &Work<u32>| if let Work::Conditional(c) = work { made(c.handle) } else { true };
        if spec.graphs.iter().flatten().all(|node| known(&node.work)) { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
    }

    /// Builds a graph with conditions: once, in the driver's graph for which they were created.
    fn build_home(&self, home: u64, spec: &Spec, calls: &Arc<Calls>) -> Result<Built, Code> {
        let mut graphs = lock(&self.graphs);
        let home = graphs.homes.get_mut(&home).ok_or(code::ERROR_INVALID_HANDLE)?;
        match &home.made {
            Made::Whole(known) if known.0 == *spec => return Ok(known.1.clone()),
            Made::Nothing => {}
            // The driver cannot remove a conditional node from a graph.
            _ => return Err(code::ERROR_NOT_SUPPORTED),
        }
        home.made = Made::Part;
        let mut built = Built::new(home.graph, calls.clone());
        self.fill_graph(spec, 0, home.graph, &mut built)?;
        home.made = Made::Whole(Box::new((spec.clone(), built.clone())));
        Ok(built)
    }

    /// Destroys the graph of an instance, unless conditions need it.
    pub(super) fn drop_built(&self, built: &Built) {
        if !lock(&self.graphs).homes.values().any(|h| h.graph == built.graph) {
            // Fails only if the context was destroyed, and the graph with it.
            let _ = self.gpu.destroy_graph(built.graph);
        }
    }

    /// Creates a condition. Kernels contain its handle: if a certain handle is requested, conditions are created until it appears.
    pub(super) fn new_condition(&self, mut body: &[u8]) -> Result<u64, Code> {
        /// Maximum number of attempts.
        const TRIES: usize = 64;
        let op = GraphCondition::get(&mut body).map_err(short)?;
        let mut graphs = lock(&self.graphs);
        let home = match graphs.homes.entry(op.home) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                free.insert(Home { graph: self.gpu.new_graph()?, made: Made::Nothing, conditions: FxHashSet::default() })
            }
        };
        let context = self.graph_context();
        let mut others = Vec::new();
        while op.wanted != 0 && others.len() < TRIES {
            // In a separate graph, so that it can be destroyed.
            let other = self.gpu.new_graph()?;
            let next = self.gpu.new_condition(other, context, 0, 0);
            if next == Ok(op.wanted) || next.is_err() {
                self.gpu.destroy_graph(other)?;
                break;
            }
            others.push(other);
        }
        let made = self.gpu.new_condition(home.graph, context, op.default, op.flags);
        home.conditions.extend(made);
        for other in others {
            // These conditions were never used: they only hold memory of the driver.
            let _ = self.gpu.destroy_graph(other);
        }
        made
    }

    /// Releases the conditions of a graph.
    pub(super) fn end_conditions(&self, home: u64) -> Result<(), Code> {
        let home = lock(&self.graphs).homes.remove(&home).ok_or(code::ERROR_INVALID_HANDLE)?;
        self.gpu.destroy_graph(home.graph)
    }

    fn node_at(&self, instance: u64, at: At) -> Result<(u64, u64), Code> {
        let live = self.bindings.live(Kind::GraphExec, instance)?;
        let graphs = lock(&self.graphs);
        let built = graphs.built.get(&instance).ok_or(code::ERROR_INVALID_HANDLE)?;
        Ok((live, *built.nodes.get(&at).ok_or(code::ERROR_INVALID_VALUE)?))
    }

    pub(super) fn change_graph(&self, mut body: &[u8]) -> Result<(), Code> {
        let op = GraphChange::get(&mut body).map_err(short)?;
        let (instance, node) = self.node_at(op.instance, op.at)?;
        let calls = self.graph_calls(op.instance)?;
        if self.changes_when_built(&calls, &op)? {
            return Ok(());
        }
        match (calls.at(op.at), &op.work) {
            // A host function is changed by the job alone.
            (_, Work::Host(_)) => return Ok(()),
            (Some(Node::Copy(calling)), Work::Copy(c)) => {
                let Some((own, new)) = self.staged(calling, c)? else { return Ok(()) };
                self.gpu.change_node(instance, node, &mut NodeParams::copy(&own, self.graph_context()))?;
                calling.take(new);
            }
            (_, work) => self.gpu.change_node(instance, node, &mut self.node_params(work)?)?,
        }
        if let Some(built) = lock(&self.graphs).built.get_mut(&op.instance)
            && !built.shape.as_ref().is_some_and(|shape| shape.remains(op.at, &op.work))
        {
            built.shape = None;
        }
        self.change_source(op.instance, op.at, op.work, false);
        Ok(())
    }

    pub(super) fn graph_calls(&self, instance: u64) -> Result<Arc<Calls>, Code> {
        let graphs = lock(&self.graphs);
        graphs.built.get(&instance).map(|b| b.calls.clone()).ok_or(code::ERROR_INVALID_HANDLE)
    }

    pub(super) fn switch_graph(&self, mut body: &[u8]) -> Result<(), Code> {
        let op = GraphSwitch::get(&mut body).map_err(short)?;
        let live = self.bindings.live(Kind::GraphExec, op.instance)?;
        let mut graphs = lock(&self.graphs);
        let built = graphs.built.get_mut(&op.instance).ok_or(code::ERROR_INVALID_HANDLE)?;
        // Nodes of a spare instance are on.
        built.shape = None;
        // A node that could not be made is built when it is needed.
        if !built.missing.contains(&op.at) {
            self.switch_node(live, built, op.at, op.on)?;
        }
        if built.source.is_some() {
            if op.on {
                built.off.remove(&op.at)
            } else {
                built.off.insert(op.at)
            };
        }
        Ok(())
    }

    pub(super) fn switch_node(&self, live: u64, built: &Built, at: At, on: bool) -> Result<(), Code> {
        let node = *built.nodes.get(&at).ok_or(code::ERROR_INVALID_VALUE)?;
        // The job skips the calls of such a node in its launches. A wait for the job cannot be switched off, so it gets nothing to wait
        // for.
        if let Some(copy) = built.calls.copy_at(at) {
            let wait = *built.waits.get(&at).ok_or(code::ERROR_INVALID_VALUE)?;
            self.gpu.change_node(live, wait, &mut copy.params(self.graph_context(), on))?;
            if copy.is_all_call() {
                return Ok(());
            }
        }
        self.gpu.switch_node(live, node, on)
    }

    /// Launches an instance, or uploads it.
    pub(super) fn launch_graph(&self, life: &ContextState, mut body: &[u8], upload: bool) -> Result<(), Code> {
        let (instance, stream) = <(u64, u64)>::get(&mut body).map_err(short)?;
        // The recorder in this process names all nodes that call it; another process is not trusted to.
        let is_calling = !body.is_empty() || !self.is_here() && !upload && !self.graph_calls(instance)?.nodes.is_empty();
        if !upload && is_calling {
            return self.launch_calling(life, instance, stream, body);
        }
        self.note_instance_launch(instance, stream);
        let (instance, stream) = (self.bindings.live(Kind::GraphExec, instance)?, stage_stream(stream, &self.bindings)?);
        if upload { self.gpu.upload_graph(instance, stream) } else { self.gpu.launch_graph(instance, stream) }
    }

    pub(super) fn end_graph(&self, instance: u64) -> Result<(), Code> {
        let live = self.bindings.live(Kind::GraphExec, instance)?;
        let built = lock(&self.graphs).built.remove(&instance).ok_or(code::ERROR_INVALID_HANDLE)?;
        self.bindings.unbind(instance);
        self.keep_until_over(built.calls.last().map(|last| (last, built.calls.clone())));
        self.keep_until_over(lock(&built.calls.before).take());
        if self.spare_instance(instance, live, &built) {
            return Ok(());
        }
        self.drop_built(&built);
        self.gpu.destroy_instance(live)
    }

    /// Keeps what launches of an instance that has ended use, until the last of them is over.
    pub(super) fn keep_until_over(&self, used: Option<(Arc<Recorded>, Arc<Calls>)>) {
        let mut graphs = lock(&self.graphs);
        graphs.ended.retain(|(last, _)| last.is_ahead(&self.gpu));
        graphs.ended.extend(used.filter(|(last, _)| last.is_ahead(&self.gpu)));
    }

    /// Notes that the instances were destroyed with the context; the graphs from which they were instantiated are the driver's own
    /// memory.
    pub(super) fn graphs_ended(&self) {
        let mut graphs = lock(&self.graphs);
        let homes: Vec<u64> = graphs.homes.drain().map(|(_, h)| h.graph).collect();
        let others: Vec<u64> = graphs.built.drain().map(|(_, b)| b.graph).filter(|g| !homes.contains(g)).collect();
        let spares: Vec<u64> = graphs.spares.drain(..).map(|spare| spare.built.graph).collect();
        for graph in homes.into_iter().chain(others).chain(spares) {
            // Fails only if the driver has already destroyed it.
            let _ = self.gpu.destroy_graph(graph);
        }
        graphs.ended.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Applied;
    use crate::executor::checker::tests::{Job, body};
    use cuda_api::arg::LEGACY;
    use cuda_api::array::DEVICE;
    use cuda_api::handle::compose;
    use cuda_api::ops::{CopyOut, id};
    use cuda_api::work::{CopyEnd, Fill, SpecNode};

    const BYTES: u64 = 64;

    fn apply(e: &Executor, call: u16, body: &[u8]) -> Vec<u8> {
        let mut reply = Vec::new();
        let rc = match e.apply(call, body, &mut reply) {
            Applied::Done(rc) => rc,
            Applied::Pending(pending) => pending.wait(e, &mut reply),
        };
        assert_eq!(rc, code::SUCCESS, "{call:#x}");
        reply
    }

    #[test]
    fn nodes_follow_their_predecessors_whatever_the_order_of_both() {
        let job = Job::open();
        let e = &job.exec;
        let at = |n: u64| job.memory + n * 4096;
        let fill = |n, value| Work::Fill(Fill { dst: at(n), pitch: 0, value, element: 1, width: BYTES, rows: 1 });
        let end = |n| CopyEnd { memory: DEVICE, device: at(n), ..CopyEnd::default() };
        let copy = |from, to| Work::Copy(Copy3 { src: end(from), dst: end(to), width: BYTES, rows: 1, depth: 1 });
        let node = |work, after: &[u32]| SpecNode { work, after: after.iter().map(|n| (*n, Edge::default())).collect() };
        // 5 goes from the first memory to the fourth, before 6 comes. Some predecessors stand before, some behind.
        let nodes = vec![
            node(copy(1, 2), &[3]),
            node(fill(0, 5), &[]),
            node(copy(2, 3), &[0]),
            node(copy(0, 1), &[1]),
            node(Work::Empty, &[2, 3]),
            node(fill(0, 6), &[4, 3, 0]),
        ];
        let instance = compose(Kind::GraphExec, 3, 8);
        let make = GraphMake { instance, flags: 0, home: 0, direct: false, spec: Spec { graphs: vec![nodes] } };
        apply(e, id::GRAPH_MAKE, &body(&make, &[]));
        // Nodes that need not wait for each other run in a random order.
        for _ in 0..10 {
            for n in 0..4 {
                let op =
                    cuda_api::ops::Fill { dst: at(n), pitch: 0, value: 0, element: 1, width: BYTES, rows: 1, stream: LEGACY };
                apply(e, id::FILL, &body(&op, &[]));
            }
            apply(e, id::GRAPH_LAUNCH, &body(&(instance, LEGACY), &[]));
            for (n, value) in [(0, 6), (1, 5), (2, 5), (3, 5)] {
                let op = CopyOut { src: at(n), pitch: BYTES, width: BYTES, rows: 1, stream: LEGACY };
                assert!(apply(e, id::COPY_OUT, &body(&op, &[])).iter().all(|b| *b == value), "memory {n}");
            }
        }
    }

    #[test]
    fn calls_are_found_by_position() {
        let copy = |memory| {
            let end = CopyEnd { memory, ..CopyEnd::default() };
            SpecNode {
                work: Work::Copy(Copy3 { src: end, dst: end, width: 1, rows: 1, depth: 1 }),
                after: [].into_iter().collect(),
            }
        };
        let nodes = || vec![copy(DEVICE), copy(HOST), copy(DEVICE), copy(HOST)];
        let spec = Spec { graphs: vec![nodes(), nodes()] };
        let calls = Calls::of(&spec, &Calls::default(), |at, _| at.node == 1 && at.graph == 1);
        let expected = [(0, 1), (0, 3), (1, 3)].map(|(graph, node)| At { graph, node });
        assert!(calls.calling().eq(expected));
        let all = (0..3).flat_map(|graph| (0..5).map(move |node| At { graph, node }));
        assert!(all.filter(|at| calls.at(*at).is_some()).eq(expected));
    }
}
