//! Frozen graphs: what an instance runs, as the graph was when it was instantiated, with the changes made to the instance since. Nodes
//! have no handles there: they are named by their positions.

use super::model::{Owner, Store};
use cuda_api::code::{self, Code};
use cuda_api::work::{After, At, Spec, SpecNode, Work};
use smallvec::SmallVec;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// A node of a frozen graph.
#[derive(Debug)]
pub(super) struct FrozenNode {
    pub(super) work: Work<u32>,
    pub(super) after: After<u32>,
    /// As that of [`Node`](super::model::Node).
    pub(super) context: u64,
    /// The node that it is a copy of, which may be gone.
    pub(super) origin: u64,
}

/// One graph of a [`Frozen`].
#[derive(Debug)]
struct FrozenGraph {
    nodes: Vec<FrozenNode>,
    /// The user objects that it holds.
    objects: Vec<(u64, u32)>,
}

/// A graph with its embedded graphs, numbered as in a [`Spec`].
#[derive(Debug)]
pub(super) struct Frozen {
    graphs: SmallVec<[FrozenGraph; 1]>,
}

impl Frozen {
    /// The graph in encoded form, for a place.
    pub(super) fn spec(&self) -> Spec {
        let node = |n: &FrozenNode| {
            let work = match &n.work {
                // Book-keeping of the job.
                Work::MemAlloc(_) | Work::MemFree(_) => Work::Empty,
                work => work.clone(),
            };
            SpecNode { work, after: After::from_slice(&n.after) }
        };
        Spec { graphs: self.graphs.iter().map(|g| g.nodes.iter().map(node).collect()).collect() }
    }

    /// The nodes of a graph, by their positions.
    pub(super) fn nodes(&self, graph: u32) -> Result<&[FrozenNode], Code> {
        self.graphs.get(graph as usize).map(|g| &g.nodes[..]).ok_or(INVALID)
    }

    /// All nodes.
    pub(super) fn all(&self) -> impl Iterator<Item = &FrozenNode> {
        self.graphs.iter().flat_map(|g| &g.nodes)
    }

    /// The user objects that one graph holds.
    pub(super) fn held(&self, graph: u32) -> &[(u64, u32)] {
        self.graphs.get(graph as usize).map_or(&[], |g| &g.objects)
    }

    /// Makes a graph hold other user objects; returns those that it held.
    pub(super) fn hold(&mut self, graph: u32, objects: Vec<(u64, u32)>) -> Vec<(u64, u32)> {
        match self.graphs.get_mut(graph as usize) {
            Some(g) => std::mem::replace(&mut g.objects, objects),
            None => objects,
        }
    }

    /// The user objects that the graphs hold.
    pub(super) fn objects(&self) -> impl Iterator<Item = (u64, u32)> {
        self.graphs.iter().flat_map(|g| g.objects.iter().copied())
    }

    pub(super) fn node(&self, at: At) -> Result<&FrozenNode, Code> {
        self.nodes(at.graph)?.get(at.node as usize).ok_or(INVALID)
    }

    pub(super) fn node_mut(&mut self, at: At) -> Result<&mut FrozenNode, Code> {
        let nodes = self.graphs.get_mut(at.graph as usize).map(|g| &mut g.nodes).ok_or(INVALID)?;
        nodes.get_mut(at.node as usize).ok_or(INVALID)
    }

    /// The copy of a node, whose position in its graph is now `number`.
    pub(super) fn copy_of(&self, node: u64, number: u32) -> Result<At, Code> {
        let graphs = || self.graphs.iter().zip(0..);
        // Where it was, unless nodes before it have been removed.
        let there = graphs().find(|(g, _)| g.nodes.get(number as usize).is_some_and(|n| n.origin == node));
        if let Some((_, graph)) = there {
            return Ok(At { graph, node: number });
        }
        let elsewhere = graphs().find_map(|(g, graph)| {
            let at = g.nodes.iter().position(|n| n.origin == node)?;
            Some(At { graph, node: at as u32 })
        });
        elsewhere.ok_or(INVALID)
    }
}

impl Store {
    /// A frozen copy of a graph, without new references to user objects.
    pub(super) fn freeze(&self, graph: u64) -> Result<Frozen, Code> {
        let mut graphs = SmallVec::new();
        let mut open: SmallVec<[u64; 4]> = SmallVec::from_slice(&[graph]);
        while let Some(graph) = open.get(graphs.len()).copied() {
            let g = self.graph(graph)?;
            let mut nodes = Vec::with_capacity(g.nodes.len());
            for node in &g.nodes {
                let n = self.node(*node)?;
                let work = n.work.renamed(|inner| {
                    open.push(*inner);
                    (open.len() - 1) as u32
                });
                let after = n.after.iter().map(|(before, edge)| Ok((self.node(*before)?.number, *edge)));
                nodes.push(FrozenNode { work, after: after.collect::<Result<_, Code>>()?, context: n.context, origin: *node });
            }
            graphs.push(FrozenGraph { nodes, objects: g.objects.clone() });
        }
        Ok(Frozen { graphs })
    }

    /// A graph for the program like a frozen one, without new references to user objects.
    pub(super) fn thaw(&mut self, frozen: &Frozen) -> Result<u64, Code> {
        let mut made = vec![0; frozen.graphs.len()];
        // Embedded graphs have larger numbers.
        for (number, g) in frozen.graphs.iter().enumerate().rev() {
            let graph = self.create(Owner::Program);
            made[number] = graph;
            self.graph_mut(graph)?.objects.clone_from(&g.objects);
            for n in &g.nodes {
                let work = n.work.renamed(|inner| made.get(*inner as usize).copied().unwrap_or_default());
                self.add(graph, After::new(), work, n.context)?;
            }
            let nodes = self.graph(graph)?.nodes.clone();
            for (n, node) in g.nodes.iter().zip(&nodes) {
                let before = |n: u32| nodes.get(n as usize).copied().ok_or(INVALID);
                let after = n.after.iter().map(|(n, edge)| Ok((before(*n)?, *edge))).collect::<Result<_, Code>>()?;
                self.node_mut(*node)?.after = after;
            }
        }
        made.first().copied().ok_or(INVALID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_api::work::Edge;

    fn after(nodes: &[u64]) -> After<u64> {
        nodes.iter().map(|n| (*n, Edge::default())).collect()
    }

    #[test]
    fn what_is_frozen_stays_and_can_become_a_graph_again() {
        let mut s = Store::new(0);
        let (g, inside) = (s.create(Owner::Program), s.create(Owner::Program));
        let deep = s.add(inside, after(&[]), Work::EventWait(5), 1).unwrap();
        let a = s.add(g, after(&[]), Work::Empty, 0).unwrap();
        let b = s.add(g, after(&[a]), Work::Child(inside), 0).unwrap();
        let c = s.add(g, after(&[a, b]), Work::EventRecord(7), 1).unwrap();
        s.graph_mut(inside).unwrap().objects = vec![(9, 2)];
        let mut frozen = s.freeze(g).unwrap();
        let number = |s: &Store, node| s.node(node).unwrap().number;
        let at = |graph, node| Ok(At { graph, node });
        assert_eq!([a, b, c].map(|n| frozen.copy_of(n, number(&s, n))), [at(0, 0), at(0, 1), at(0, 2)]);
        assert_eq!(frozen.copy_of(deep, number(&s, deep)), at(1, 0));
        assert_eq!(frozen.objects().collect::<Vec<_>>(), [(9, 2)]);

        // Changes of the graph, its end, and changes of what is frozen do not concern each other.
        s.node_mut(c).unwrap().work = Work::EventRecord(8);
        s.remove_node(a).unwrap();
        assert_eq!(frozen.copy_of(c, number(&s, c)), at(0, 2), "it has moved in its graph");
        let late = s.add(g, after(&[]), Work::Empty, 0).unwrap();
        assert_eq!(frozen.copy_of(late, number(&s, late)), Err(INVALID), "it came later");
        assert_eq!(frozen.node(At { graph: 0, node: 2 }).unwrap().work, Work::EventRecord(7));
        frozen.node_mut(At { graph: 1, node: 0 }).unwrap().work = Work::EventWait(6);
        assert_eq!(s.node(deep).unwrap().work, Work::EventWait(5));
        s.drop_graph(g);
        let spec = frozen.spec();
        assert_eq!(spec.graphs[1][0].work, Work::EventWait(6));
        assert_eq!(spec.graphs[0][2].after.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 1]);

        let thawed = s.thaw(&frozen).unwrap();
        let again = s.freeze(thawed).unwrap();
        assert_eq!(again.spec(), spec);
        assert_eq!(again.objects().collect::<Vec<_>>(), [(9, 2)]);
        assert!(again.all().map(|n| n.context).eq([0, 0, 1, 1]));
        let child = s.graph(thawed).unwrap().nodes[1];
        let inner = s.node(child).unwrap().work.inner()[0];
        assert_eq!(s.graph(inner).unwrap().owner, Owner::Node(child));
    }
}
