//! Graphs as the program builds them: nodes, their work, and edges.

use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, compose, slot};
use cuda_api::work::{After, Edge, MAX_DEPTH, Work};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;

/// Objects of one kind, with handles that stay distinct after a slot is reused.
#[derive(Debug)]
pub(super) struct Slab<T> {
    kind: Kind,
    mark: u64,
    cells: Vec<(u32, Option<T>)>,
    free: VecDeque<u32>,
}

/// Freed slots are reused only when this many others are free.
const MIN_FREE_SLOTS: usize = 64;

impl<T> Slab<T> {
    pub(super) fn new(kind: Kind, mark: u64) -> Self {
        Slab { kind, mark, cells: Vec::new(), free: VecDeque::new() }
    }

    pub(super) fn insert(&mut self, value: T) -> u64 {
        let reused = if self.free.len() > MIN_FREE_SLOTS { self.free.pop_front() } else { None };
        let slot = reused.unwrap_or_else(|| {
            self.cells.push((0, None));
            (self.cells.len() - 1) as u32
        });
        let cell = &mut self.cells[slot as usize];
        cell.0 += 1;
        cell.1 = Some(value);
        compose(self.kind, cell.0, slot) ^ self.mark
    }

    fn index(&self, handle: u64) -> Option<usize> {
        let own = handle ^ self.mark;
        let index = slot(own) as usize;
        let generation = self.cells.get(index)?.0;
        (compose(self.kind, generation, index as u32) == own).then_some(index)
    }

    pub(super) fn get(&self, handle: u64) -> Option<&T> {
        self.cells[self.index(handle)?].1.as_ref()
    }

    pub(super) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        let index = self.index(handle)?;
        self.cells[index].1.as_mut()
    }

    pub(super) fn remove(&mut self, handle: u64) -> Option<T> {
        let index = self.index(handle)?;
        let gone = self.cells[index].1.take()?;
        self.free.push_back(index as u32);
        Some(gone)
    }
}

/// The owner of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The program, which may destroy it.
    Program,
    /// A node; the graph is destroyed with it.
    Node(u64),
}

/// Nodes of a graph: small graphs need no memory of their own for the list.
pub(super) type Nodes = SmallVec<[u64; 6]>;

/// A graph.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) owner: Owner,
    /// In creation order.
    pub(super) nodes: Nodes,
    /// User objects that it holds, with the number of references.
    pub(super) objects: Vec<(u64, u32)>,
    /// Number of captures that are adding to it.
    pub(super) captures: u32,
    /// Conditional handles that were created for it, and whether a node uses each.
    pub(super) conditions: Vec<(u64, bool)>,
}

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) graph: u64,
    /// Its position among the nodes of that graph.
    pub(super) number: u32,
    pub(super) work: Work<u64>,
    /// Its context, in the host's numbering; 0 for nodes without a context.
    pub(super) context: u64,
    pub(super) after: After<u64>,
    /// The node that it is a copy of.
    pub(super) origin: u64,
    /// The targets of pointers returned to the program; kept as long as the node.
    pub(super) returned: Vec<Box<[u64]>>,
}

/// All graphs of a process.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) graphs: Slab<Graph>,
    pub(super) nodes: Slab<Node>,
    /// Number of nodes, and of instances with copies of nodes, that allocate at each address.
    allocs: FxHashMap<u64, usize>,
}

const INVALID: Code = code::ERROR_INVALID_VALUE;

impl Store {
    pub(super) fn new(mark: u64) -> Store {
        Store { graphs: Slab::new(Kind::Graph, mark), nodes: Slab::new(Kind::GraphNode, mark), allocs: FxHashMap::default() }
    }

    pub(super) fn create(&mut self, owner: Owner) -> u64 {
        let graph = Graph { owner, nodes: Nodes::new(), objects: Vec::new(), captures: 0, conditions: Vec::new() };
        self.graphs.insert(graph)
    }

    pub(super) fn graph(&self, graph: u64) -> Result<&Graph, Code> {
        self.graphs.get(graph).ok_or(INVALID)
    }

    pub(super) fn graph_mut(&mut self, graph: u64) -> Result<&mut Graph, Code> {
        self.graphs.get_mut(graph).ok_or(INVALID)
    }

    pub(super) fn node(&self, node: u64) -> Result<&Node, Code> {
        self.nodes.get(node).ok_or(INVALID)
    }

    pub(super) fn node_mut(&mut self, node: u64) -> Result<&mut Node, Code> {
        self.nodes.get_mut(node).ok_or(INVALID)
    }

    /// Adds a node after others of the same graph.
    pub(super) fn add(&mut self, graph: u64, after: After<u64>, work: Work<u64>, context: u64) -> Result<u64, Code> {
        let number = self.graph(graph)?.nodes.len() as u32;
        for (before, edge) in &after {
            let from = self.node(*before)?;
            if from.graph != graph {
                return Err(INVALID);
            }
            check_edge(*edge, &from.work, &work)?;
        }
        if !are_distinct(&after) {
            return Err(INVALID);
        }
        if let Work::MemAlloc(m) = &work {
            self.hold_alloc(m.address);
        }
        let node = self.nodes.insert(Node { graph, number, work, context, after, origin: 0, returned: Vec::new() });
        for g in self.nodes.get(node).into_iter().flat_map(|n| n.work.inner()) {
            if let Some(g) = self.graphs.get_mut(*g) {
                g.owner = Owner::Node(node);
            }
        }
        self.graph_mut(graph)?.nodes.push(node);
        Ok(node)
    }

    /// Whether a node or an instance allocates at an address.
    pub(super) fn allocates(&self, address: u64) -> bool {
        self.allocs.contains_key(&address)
    }

    /// Notes that something allocates at an address: a node, or an instance with a copy of one.
    pub(super) fn hold_alloc(&mut self, address: u64) {
        *self.allocs.entry(address).or_default() += 1;
    }

    /// Reverses [`Store::hold_alloc`].
    pub(super) fn forget_alloc(&mut self, address: u64) {
        if let Entry::Occupied(mut left) = self.allocs.entry(address) {
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
            }
        }
    }

    /// Removes a node with its edges and embedded graphs; returns the user objects that are no longer held.
    pub(super) fn remove_node(&mut self, node: u64) -> Result<Vec<(u64, u32)>, Code> {
        let gone = self.nodes.remove(node).ok_or(INVALID)?;
        let mut released = Vec::new();
        self.drop_work(&gone.work, &mut released);
        if let Some(g) = self.graphs.get_mut(gone.graph) {
            g.nodes.remove(gone.number as usize);
            for (other, number) in g.nodes.iter().zip(0..) {
                if let Some(n) = self.nodes.get_mut(*other) {
                    n.number = number;
                    n.after.retain(|(before, _)| *before != node);
                }
            }
        }
        Ok(released)
    }

    /// Removes what the work of a removed node owns.
    fn drop_work(&mut self, work: &Work<u64>, released: &mut Vec<(u64, u32)>) {
        if let Work::MemAlloc(m) = work {
            self.forget_alloc(m.address);
        }
        for inner in work.inner() {
            released.extend(self.drop_graph(*inner));
        }
    }

    /// Removes a graph with all its nodes; returns the user objects that it held.
    pub(super) fn drop_graph(&mut self, graph: u64) -> Vec<(u64, u32)> {
        let Some(gone) = self.graphs.remove(graph) else { return Vec::new() };
        let mut released = gone.objects;
        for node in gone.nodes {
            if let Some(n) = self.nodes.remove(node) {
                self.drop_work(&n.work, &mut released);
            }
        }
        released
    }

    /// Adds edges: all of them or none.
    pub(super) fn connect(&mut self, graph: u64, edges: &[(u64, u64, Edge)]) -> Result<(), Code> {
        self.graph(graph)?;
        let mut fresh = FxHashSet::default();
        for (from, to, edge) in edges {
            let (a, b) = (self.node(*from)?, self.node(*to)?);
            let known = b.after.iter().any(|(n, _)| n == from);
            if a.graph != graph || b.graph != graph || from == to || known || !fresh.insert((*from, *to)) {
                return Err(INVALID);
            }
            check_edge(*edge, &a.work, &b.work)?;
        }
        for (from, to, edge) in edges {
            self.node_mut(*to)?.after.push((*from, *edge));
        }
        Ok(())
    }

    /// Removes edges: all of them or none.
    pub(super) fn disconnect(&mut self, graph: u64, edges: &[(u64, u64, Edge)]) -> Result<(), Code> {
        self.graph(graph)?;
        for (from, to, edge) in edges {
            let known = self.node(*to)?.after.contains(&(*from, *edge));
            if self.node(*to)?.graph != graph || !known {
                return Err(INVALID);
            }
        }
        for (from, to, _) in edges {
            self.node_mut(*to)?.after.retain(|(n, _)| n != from);
        }
        Ok(())
    }

    /// The edges of a graph, in the order of its nodes.
    pub(super) fn edges(&self, graph: u64) -> Result<Vec<(u64, u64, Edge)>, Code> {
        let mut all = Vec::new();
        for to in &self.graph(graph)?.nodes {
            all.extend(self.node(*to)?.after.iter().map(|(from, edge)| (*from, *to, *edge)));
        }
        Ok(all)
    }

    /// The nodes that wait for a node.
    pub(super) fn dependents(&self, node: u64) -> Result<After<u64>, Code> {
        let graph = self.node(node)?.graph;
        let edges = self.graphs.get(graph).ok_or(INVALID)?.nodes.iter().filter_map(|to| {
            let after = &self.nodes.get(*to)?.after;
            after.iter().find(|(from, _)| *from == node).map(|(_, edge)| (*to, *edge))
        });
        Ok(edges.collect())
    }

    /// Whether every one of `nodes` is among `ends` or precedes one of them.
    pub(super) fn all_before(&self, nodes: impl Iterator<Item = u64>, ends: impl Iterator<Item = u64>) -> bool {
        let mut nodes = nodes.peekable();
        if nodes.peek().is_none() {
            return true;
        }
        let mut seen: FxHashSet<u64> = FxHashSet::default();
        let mut open: Vec<u64> = ends.collect();
        while let Some(n) = open.pop() {
            if seen.insert(n)
                && let Some(node) = self.nodes.get(n)
            {
                open.extend(node.after.iter().map(|(before, _)| *before));
            }
        }
        // A removed node is not waited for.
        nodes.all(|n| seen.contains(&n) || self.nodes.get(n).is_none())
    }

    /// The outermost graph that contains a graph.
    pub(super) fn outermost(&self, mut graph: u64) -> Result<u64, Code> {
        for _ in 0..=MAX_DEPTH {
            match self.graph(graph)?.owner {
                Owner::Node(node) => graph = self.node(node)?.graph,
                _ => return Ok(graph),
            }
        }
        Err(INVALID)
    }

    /// The graph for which a condition was created that a node of `graph` may use: this one or one that contains it.
    pub(super) fn condition_owner(&self, mut graph: u64, handle: u64) -> Result<u64, Code> {
        for _ in 0..=MAX_DEPTH {
            let g = self.graph(graph)?;
            if let Some((_, used)) = g.conditions.iter().find(|(own, _)| *own == handle) {
                return if *used { Err(INVALID) } else { Ok(graph) };
            }
            match g.owner {
                Owner::Node(node) => graph = self.node(node)?.graph,
                _ => return Err(INVALID),
            }
        }
        Err(INVALID)
    }

    /// Whether a condition of the graph, or of one embedded in it, is used by no node.
    pub(super) fn has_loose_condition(&self, graph: u64) -> bool {
        self.graphs.get(graph).is_some_and(|g| {
            let inner = g.nodes.iter().filter_map(|n| self.nodes.get(*n)).flat_map(|n| n.work.inner());
            g.conditions.iter().any(|(_, used)| !used) || inner.into_iter().any(|inner| self.has_loose_condition(*inner))
        })
    }

    /// Whether any node in the graph or its embedded graphs satisfies `wanted`.
    pub(super) fn any(&self, graph: u64, wanted: &dyn Fn(&Node) -> bool) -> bool {
        self.graphs.get(graph).is_some_and(|g| {
            g.nodes
                .iter()
                .filter_map(|n| self.nodes.get(*n))
                .any(|n| wanted(n) || n.work.inner().iter().any(|inner| self.any(*inner, wanted)))
        })
    }

    /// Finds a node that is not allowed: graphs of conditional nodes contain only kernels, copies, fills, empty nodes
    /// and graphs of these (CUDA driver API reference, `CUDA_CONDITIONAL_NODE_PARAMS`).
    pub(super) fn unfit(&self, graph: u64, conditional: bool) -> Option<u64> {
        self.graphs.get(graph)?.nodes.iter().find_map(|n| {
            let work = &self.nodes.get(*n)?.work;
            if conditional && !matches!(work.node_type(), 0 | 1 | 2 | 4 | 5 | 13) {
                return Some(*n);
            }
            let inside = conditional || matches!(work, Work::Conditional(_));
            work.inner().iter().find_map(|g| self.unfit(*g, inside))
        })
    }

    /// The user objects that a graph and its embedded graphs hold.
    pub(super) fn held_inside(&self, graph: u64) -> Vec<(u64, u32)> {
        let Some(g) = self.graphs.get(graph) else { return Vec::new() };
        let inner = g.nodes.iter().filter_map(|n| self.nodes.get(*n)).flat_map(|n| n.work.inner());
        g.objects.iter().copied().chain(inner.flat_map(|inner| self.held_inside(*inner))).collect()
    }

    /// Copies a graph with its embedded graphs, without new references to user objects.
    pub(super) fn copy(&mut self, graph: u64, owner: Owner) -> Result<u64, Code> {
        self.copy_inside(graph, owner, 0)
    }

    fn copy_inside(&mut self, graph: u64, owner: Owner, depth: usize) -> Result<u64, Code> {
        if depth > MAX_DEPTH {
            return Err(INVALID);
        }
        let from = self.graphs.get(graph).ok_or(INVALID)?;
        let (nodes, objects) = (from.nodes.clone(), from.objects.clone());
        let copy = self.create(owner);
        if let Some(g) = self.graphs.get_mut(copy) {
            g.objects = objects;
        }
        let mut copies = Nodes::new();
        for old in &nodes {
            let n = self.node(*old)?;
            let (work, context) = (n.work.clone(), n.context);
            let mut inner = FxHashMap::default();
            for g in work.inner() {
                inner.insert(*g, self.copy_inside(*g, Owner::Program, depth + 1)?);
            }
            let work = work.renamed(|g| inner.get(g).copied().unwrap_or_default());
            let new = self.add(copy, After::new(), work, context)?;
            self.node_mut(new)?.origin = *old;
            copies.push(new);
        }
        for (old, new) in nodes.iter().zip(&copies) {
            let before = |n: u64| copies.get(self.node(n)?.number as usize).copied().ok_or(INVALID);
            let after = self.node(*old)?.after.iter().map(|(n, edge)| Ok((before(*n)?, *edge))).collect::<Result<_, Code>>()?;
            self.node_mut(*new)?.after = after;
        }
        Ok(copy)
    }
}

/// Whether no node is named twice.
fn are_distinct(after: &[(u64, Edge)]) -> bool {
    /// So many are compared with each other.
    const FEW: usize = 16;
    if after.len() <= FEW {
        return after.iter().enumerate().all(|(i, (node, _))| after[..i].iter().all(|(other, _)| other != node));
    }
    let mut seen = FxHashSet::default();
    after.iter().all(|(node, _)| seen.insert(*node))
}

/// Whether an edge may join two nodes (CUDA driver API reference, `CUgraphEdgeData`).
fn check_edge(edge: Edge, from: &Work<u64>, to: &Work<u64>) -> Result<(), Code> {
    let kernels = matches!(from, Work::Kernel(_)) && matches!(to, Work::Kernel(_));
    let fine = match edge {
        Edge { from_port: 0, to_port: 0, kind: 0 } => true,
        Edge { from_port: 1 | 2, to_port: 0, kind: 1 } => kernels,
        // A launch-order port without the programmatic kind is an ordinary wait for the start of a kernel.
        Edge { from_port: 1 | 2, to_port: 0, kind: 0 } => matches!(from, Work::Kernel(_)),
        _ => false,
    };
    if fine { Ok(()) } else { Err(INVALID) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(nodes: &[u64]) -> After<u64> {
        nodes.iter().map(|n| (*n, Edge::default())).collect()
    }

    #[test]
    fn numbers_are_positions_also_when_nodes_are_removed() {
        let mut s = Store::new(0);
        let g = s.create(Owner::Program);
        let mut nodes: Vec<u64> = (0..20).map(|_| s.add(g, after(&[]), Work::Empty, 0).unwrap()).collect();
        let last = s.add(g, after(&nodes), Work::Empty, 0).unwrap();
        let twice: Vec<u64> = nodes.iter().copied().chain([nodes[3]]).collect();
        assert_eq!(s.add(g, after(&twice), Work::Empty, 0), Err(INVALID), "many, one of them twice");
        for gone in [19, 7, 0] {
            s.remove_node(nodes.remove(gone)).unwrap();
            assert_eq!(s.graph(g).unwrap().nodes[..nodes.len()], nodes[..]);
            let numbers = s.graph(g).unwrap().nodes.iter().map(|n| s.node(*n).unwrap().number);
            assert!(numbers.eq(0..=nodes.len() as u32));
        }
        assert_eq!(s.node(last).unwrap().after, after(&nodes));
        let copy = s.copy(g, Owner::Program).unwrap();
        assert_eq!(s.freeze(copy).unwrap().spec(), s.freeze(g).unwrap().spec());
    }

    #[test]
    fn copies_have_the_same_shape_and_know_their_origin() {
        let mut s = Store::new(0);
        let g = s.create(Owner::Program);
        let inside = s.create(Owner::Program);
        let deep = s.add(inside, after(&[]), Work::EventWait(5), 1).unwrap();
        let a = s.add(g, after(&[]), Work::Empty, 0).unwrap();
        let b = s.add(g, after(&[a]), Work::Child(inside), 0).unwrap();
        let c = s.add(g, after(&[a, b]), Work::EventRecord(7), 1).unwrap();
        let copy = s.copy(g, Owner::Program).unwrap();
        let spec = |s: &Store, graph| s.freeze(graph).unwrap().spec();
        let one = spec(&s, g);
        assert_eq!(one, spec(&s, copy));
        assert_eq!(one.check(), Ok(()));
        let origins: Vec<u64> = s.graph(copy).unwrap().nodes.iter().map(|n| s.node(*n).unwrap().origin).collect();
        assert_eq!(origins, [a, b, c]);
        s.drop_graph(g);
        assert!(s.node(deep).is_err() && s.graph(inside).is_err());
        assert_eq!(spec(&s, copy), one, "a copy is its own");
    }

    #[test]
    fn conditions_are_for_their_graph_and_those_inside() {
        let mut s = Store::new(0);
        let g = s.create(Owner::Program);
        let body = s.create(Owner::Program);
        let conditional = Work::Conditional(cuda_api::work::Conditional { handle: 1, kind: 0, bodies: vec![body] });
        s.graph_mut(g).unwrap().conditions = vec![(1, true), (2, false)];
        s.add(g, after(&[]), conditional, 1).unwrap();
        s.graph_mut(body).unwrap().conditions = vec![(3, false)];
        assert_eq!((s.condition_owner(body, 2), s.condition_owner(body, 3), s.condition_owner(g, 2)), (Ok(g), Ok(body), Ok(g)));
        assert_eq!(
            (s.condition_owner(g, 3), s.condition_owner(body, 1)),
            (Err(INVALID), Err(INVALID)),
            "inside only; one node each"
        );
        s.graph_mut(g).unwrap().conditions[1].1 = true;
        assert!(s.has_loose_condition(g), "the one inside");
        s.graph_mut(body).unwrap().conditions[0].1 = true;
        assert!(!s.has_loose_condition(g));
    }

    #[test]
    fn edges_are_checked() {
        let mut s = Store::new(0);
        let (g, other) = (s.create(Owner::Program), s.create(Owner::Program));
        let plain = Edge::default();
        let a = s.add(g, after(&[]), Work::Empty, 0).unwrap();
        let b = s.add(g, after(&[]), Work::Empty, 0).unwrap();
        let far = s.add(other, after(&[]), Work::Empty, 0).unwrap();
        assert!(s.add(g, after(&[far]), Work::Empty, 0).is_err());
        assert!(s.add(g, after(&[a, a]), Work::Empty, 0).is_err());
        assert!(s.connect(g, &[(a, a, plain)]).is_err());
        assert!(s.connect(g, &[(a, b, cuda_api::work::PROGRAMMATIC)]).is_err());
        s.connect(g, &[(a, b, plain)]).unwrap();
        assert!(s.connect(g, &[(a, b, plain)]).is_err());
        assert_eq!(s.dependents(a).unwrap().as_slice(), [(b, plain)]);
        assert!(s.all_before([a].into_iter(), [b].into_iter()) && !s.all_before([b].into_iter(), [a].into_iter()));
        s.disconnect(g, &[(a, b, plain)]).unwrap();
        assert!(s.disconnect(g, &[(a, b, plain)]).is_err());
        s.connect(g, &[(b, a, plain), (a, b, plain)]).unwrap();
        assert!(s.freeze(g).unwrap().spec().check().is_err(), "a cycle");
        s.remove_node(b).unwrap();
        assert_eq!(s.edges(g).unwrap(), []);
    }

    #[test]
    fn old_handles_are_dead() {
        let mut s = Store::new(1 << 60);
        let mut old = Vec::new();
        for _ in 0..1000 {
            let g = s.create(Owner::Program);
            assert!(s.graph(g).is_ok() && s.node(g).is_err());
            s.drop_graph(g);
            old.push(g);
        }
        assert!(old.iter().all(|g| s.graph(*g).is_err()));
        assert!(s.graphs.cells.len() < 100, "slots are used again");
    }
}
