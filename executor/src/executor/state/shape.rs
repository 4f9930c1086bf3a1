//! The shape of a graph, by which instances are found that can become others.

use cuda_api::work::{At, Spec, Work};
use smallvec::SmallVec;

/// What two graphs have in common whose instances differ only in parameters that a driver can change: kinds, functions, edges; and the code
/// and settings in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    /// How often code or settings had changed.
    pub(crate) changes: u64,
    nodes: SmallVec<[Node; 8]>,
    edges: SmallVec<[(u32, u32); 8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    /// With its function.
    Kernel(u64),
    /// With the kinds of memory of both ends.
    Copy(u32, u32),
    /// With the size of an element.
    Fill(u32),
    Empty,
}

impl Shape {
    pub(crate) fn of(spec: &Spec, changes: u64) -> Option<Shape> {
        let (mut nodes, mut edges) = (SmallVec::new(), SmallVec::new());
        for (node, number) in spec.graphs.first()?.iter().zip(0..) {
            nodes.push(match &node.work {
                Work::Kernel(k) => Node::Kernel(k.function),
                Work::Copy(c) => Node::Copy(c.src.memory, c.dst.memory),
                Work::Fill(f) => Node::Fill(f.element),
                _ => Node::Empty,
            });
            edges.extend(node.after.iter().map(|(before, _)| (*before, number)));
        }
        Some(Shape { changes, nodes, edges })
    }

    /// Whether it still is the shape of an instance of which this node is changed.
    pub(crate) fn remains(&self, at: At, work: &Work<u32>) -> bool {
        match (self.nodes.get(at.node as usize), work) {
            (Some(Node::Kernel(function)), Work::Kernel(k)) => *function == k.function && k.attributes.is_empty(),
            (Some(Node::Copy(src, dst)), Work::Copy(c)) => (*src, *dst) == (c.src.memory, c.dst.memory),
            (Some(Node::Fill(element)), Work::Fill(f)) => *element == f.element && f.rows == 1,
            _ => false,
        }
    }
}
