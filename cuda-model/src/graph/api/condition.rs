//! Conditions, and the nodes that run one of their graphs, none, or one repeatedly.

use super::{Done, Host, INVALID};
use crate::graph::model::Owner;
use crate::graph::tables::Graphs;
use cuda_api::code::Code;
use cuda_api::graph::RawConditional;
use cuda_api::pointer::{InOutPtr, OutPtr};
use cuda_api::sys::{CUgraphConditionalHandle, CUgraphNode};
use cuda_api::work::{After, Conditional, Work};
use std::ffi::c_uint;

/// Maximum number of graphs in a node.
const MAX_GRAPHS: u32 = 1 << 12;

/// Creates a condition for a node of a graph.
pub fn cuGraphConditionalHandleCreate<H: Host>(
    h: &mut H,
    graph: u64,
    _context: u64,
    default: c_uint,
    flags: c_uint,
) -> Result<CUgraphConditionalHandle, Code> {
    // `CU_GRAPH_COND_ASSIGN_DEFAULT`
    if flags > 1 {
        return Err(INVALID);
    }
    let home = h.shared().with(|g| g.store.outermost(graph))?;
    let (handle, context) = h.condition(home, default, flags)?;
    h.shared().with(|g| {
        let own = g.conditions.entry(home).or_default();
        own.context = context;
        own.handles.push(handle);
        own.defaults.insert(handle, (default, flags));
        g.store.graph_mut(graph).map(|g| g.conditions.push((handle, false)))
    })?;
    Ok(handle)
}

pub(super) fn add_conditional<H: Host>(
    h: &mut H,
    to: OutPtr<CUgraphNode>,
    graph: u64,
    after: After<u64>,
    params: InOutPtr<RawConditional>,
) -> Done {
    let p = params.read()?;
    // If: one graph or two; while: one; switch: any number.
    let fits = matches!((p.kind, p.size), (0, 1 | 2) | (1, 1) | (2, 1..=MAX_GRAPHS));
    if !fits || to.is_null() {
        return Err(INVALID);
    }
    let context = h.context()?;
    let (node, graphs) = h.shared().with(|g| g.add_conditional(graph, after, &p, context))?;
    params.write(RawConditional { graphs, ..p })?;
    to.write(node as CUgraphNode)
}

impl Graphs {
    /// Adds the node with empty embedded graphs; returns a list of these that is kept as long as the node.
    fn add_conditional(
        &mut self,
        graph: u64,
        after: After<u64>,
        p: &RawConditional,
        context: u64,
    ) -> Result<(u64, *const u64), Code> {
        let owner = self.store.condition_owner(graph, p.handle)?;
        let bodies: Vec<u64> = (0..p.size).map(|_| self.store.create(Owner::Program)).collect();
        let work = Work::Conditional(Conditional { handle: p.handle, kind: p.kind, bodies: bodies.clone() });
        let node = self.store.add(graph, after, work, context).inspect_err(|_| {
            for body in &bodies {
                self.store.drop_graph(*body);
            }
        })?;
        let list = bodies.into_boxed_slice();
        let graphs = list.as_ptr();
        self.store.node_mut(node)?.returned = vec![list];
        if let Some((_, used)) = self.store.graph_mut(owner)?.conditions.iter_mut().find(|(handle, _)| *handle == p.handle) {
            *used = true;
        }
        Ok((node, graphs))
    }
}
