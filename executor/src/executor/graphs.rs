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
use std::collections::hash_map::Entry;
use std::sync::Arc;

impl Executor {
    fn node_params(&self, work: &Work<u32>) -> Result<NodeParams, Code> {
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
        let mut built = Built { graph: self.gpu.new_graph()?, calls: calls.clone(), off: off.clone(), ..Built::default() };
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
        let mut own = Vec::with_capacity(nodes.len());
        for (node, i) in nodes.iter().zip(0..) {
            let at = At { graph: number, node: i };
            let made = match self.fill_node(spec, graph, built, at, &node.work, &mut edges) {
                Err(_) if built.off.contains(&at) && !matches!(node.work, Work::Child(_)) => {
                    built.missing.insert(at);
                    let empty = self.gpu.add_node(graph, &mut NodeParams::empty())?;
                    built.nodes.insert(at, empty);
                    (empty, empty)
                }
                made => made?,
            };
            own.push(made);
        }
        for (node, (to, _)) in nodes.iter().zip(&own) {
            for (before, edge) in &node.after {
                edges.push((own.get(*before as usize).ok_or(code::ERROR_INVALID_VALUE)?.1, *to, *edge));
            }
        }
        if edges.is_empty() { Ok(()) } else { self.gpu.add_edges(graph, &edges) }
    }

    /// Adds a node; returns its first and last driver node.
    fn fill_node(
        &self,
        spec: &Spec,
        graph: u64,
        built: &mut Built,
        at: At,
        work: &Work<u32>,
        edges: &mut Vec<(u64, u64, Edge)>,
    ) -> Result<(u64, u64), Code> {
        if let Some(calling) = built.calls.clone().at(at) {
            return self.add_calling(graph, built, at, work, calling, edges);
        }
        let attributes = match work {
            Work::Kernel(k) => self.attributes_of(k)?,
            _ => Vec::new(),
        };
        let made = match work {
            Work::Child(inner) => {
                let child = self.build_graph(spec, *inner, &built.calls, &built.off)?;
                let added = self.gpu.add_node(graph, &mut NodeParams::child(child.graph));
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
                let (made, bodies) = self.gpu.add_conditional(graph, c, context)?;
                for (inner, body) in c.bodies.iter().zip(bodies) {
                    self.fill_graph(spec, *inner, body, built)?;
                }
                made
            }
            work => self.gpu.add_node(graph, &mut self.node_params(work)?)?,
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
        graph: u64,
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
        // The copy is added first: should it be refused, nothing must wait.
        let copy = match staged {
            Some((node, c, own, new)) => Some((self.gpu.add_node(graph, &mut NodeParams::copy(&own, context))?, node, c, new)),
            None => None,
        };
        let call = self.gpu.add_node(graph, &mut calling.params(context)).inspect_err(|_| {
            // Nor must it copy without its wait; the first error is reported.
            if let Some((made, ..)) = &copy {
                let _ = self.gpu.destroy_node(*made);
            }
        })?;
        if let Node::Copy(_) = calling {
            built.waits.insert(at, call);
        }
        let Some((made, node, c, new)) = copy else {
            built.nodes.insert(at, call);
            return Ok((call, call));
        };
        node.take(new);
        built.nodes.insert(at, made);
        let (first, last) = if c.src.memory == HOST { (call, made) } else { (made, call) };
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
        let op = GraphMake::get(&mut body).map_err(short)?;
        if kind(op.instance) != Some(Kind::GraphExec) {
            return Err(code::ERROR_INVALID_HANDLE);
        }
        op.spec.check().map_err(short)?;
        self.check_conditions(op.home, &op.spec)?;
        // A graph with conditions is built once, so its copies have to be as any launch may need them.
        let direct = |_: At, c: &Copy3| self.is_here() || op.home == 0 && op.direct && self.is_direct(c);
        let calls = self.calls_of(&op.spec, &Calls::default(), direct)?;
        let often = op.spec.conditional();
        if op.spec.calls().any(|(at, _)| often.get(at.graph as usize) == Some(&true) && calls.at(at).is_some()) {
            // The number of calls that such a node would make is known only when it runs.
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        let mut built = if op.home == 0 {
            self.build_graph(&op.spec, 0, &calls, &FxHashSet::default())
        } else {
            self.build_home(op.home, &op.spec, &calls)
        }?;
        // A separate call uploads.
        match self.gpu.instantiate(built.graph, op.flags & !INSTANTIATE_UPLOAD) {
            Ok(live) => {
                self.bindings.bind(op.instance, live);
                let copies = |spec: &Spec| spec.calls().any(|(_, work)| matches!(work, Work::Copy(_)));
                if op.home == 0 && !self.is_here() && copies(&op.spec) {
                    built.source = Some(Box::new(Source { spec: op.spec, flags: op.flags }));
                    self.note_registrations(&mut built);
                }
                lock(&self.graphs).built.insert(op.instance, built);
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
        let graphs = lock(&self.graphs);
        let made = |handle: u64| graphs.homes.get(&home).is_some_and(|h| h.conditions.contains(&handle));
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
        let mut built = Built { graph: home.graph, calls: calls.clone(), ..Built::default() };
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
        let (instance, stream) = (self.bindings.live(Kind::GraphExec, instance)?, stage_stream(stream, &self.bindings)?);
        if upload { self.gpu.upload_graph(instance, stream) } else { self.gpu.launch_graph(instance, stream) }
    }

    pub(super) fn end_graph(&self, instance: u64) -> Result<(), Code> {
        self.gpu.destroy_instance(self.bindings.live(Kind::GraphExec, instance)?)?;
        self.bindings.unbind(instance);
        let built = lock(&self.graphs).built.remove(&instance).ok_or(code::ERROR_INVALID_HANDLE)?;
        self.keep_until_over(built.calls.last().map(|last| (last, built.calls.clone())));
        self.keep_until_over(lock(&built.calls.before).take());
        self.drop_built(&built);
        Ok(())
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
        for graph in homes.into_iter().chain(others) {
            // Fails only if the driver has already destroyed it.
            let _ = self.gpu.destroy_graph(graph);
        }
        graphs.ended.clear();
    }
}
