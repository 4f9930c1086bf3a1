//! Building and querying graphs.

use super::condition::add_conditional;
use super::memory::{add_alloc, add_free, check_free, sweep};
use super::{Done, Host, INVALID, add, check_removal, checked, is_conditional, is_single, kernel, work_of};
use crate::graph::model::Owner;
use cuda_api::code::{self, Code};
use cuda_api::graph::{self, AnyParams, KernelArgs, nodes, with_edges};
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys::{CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams};
use cuda_api::work::{After, Copy3, Edge, Fill, HostCall, Work};
use std::ffi::c_uint;

/// Creates an empty graph.
pub fn cuGraphCreate<H: Host>(h: &mut H, flags: c_uint) -> Result<u64, Code> {
    if flags != 0 {
        return Err(INVALID);
    }
    Ok(h.shared().with(|g| g.store.create(Owner::Program)))
}

/// Destroys a graph; its instances are not affected.
pub fn cuGraphDestroy<H: Host>(h: &mut H, graph: u64) -> Result<(), Code> {
    h.shared().with(|g| {
        if g.store.graph(graph)?.owner != Owner::Program || g.store.is_captured_into(graph) {
            return Err(INVALID);
        }
        g.drop_graph(graph);
        Ok(())
    })?;
    sweep(h);
    Ok(())
}

/// Copies a graph.
pub fn cuGraphClone<H: Host>(h: &mut H, graph: u64) -> Result<u64, Code> {
    h.shared().with(|g| {
        g.store.graph(graph)?;
        if g.store.any(graph, &is_single) {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        g.copy_graph(graph, Owner::Program)
    })
}

/// The node of a copy that was made from a node.
pub fn cuGraphNodeFindInClone<H: Host>(h: &mut H, original: u64, clone: u64) -> Result<u64, Code> {
    h.shared().with(|g| {
        g.store.node(original)?;
        let nodes = &g.store.graph(clone)?.nodes;
        let copied = |n: &&u64| g.store.node(**n).is_ok_and(|n| n.origin == original);
        nodes.iter().find(copied).copied().ok_or(INVALID)
    })
}

macro_rules! adds {
    ($($(#[$doc:meta])* $name:ident($($p:ident: $t:ty),*) |$h:ident| $work:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name<H: Host>($h: &mut H, graph: u64, after: Vec<u64>, $($p: $t),*) -> Result<u64, Code> {
            let work = $work?;
            add($h, graph, with_edges(after, None), work)
        }
    )*};
}
adds! {
    /// Adds a kernel, in the form of CUDA 10.
    cuGraphAddKernelNode(p: KernelArgs) |h| kernel(h, p, Vec::new());
    /// Adds a kernel.
    cuGraphAddKernelNode_v2(p: KernelArgs) |h| kernel(h, p, Vec::new());
    /// Adds a copy.
    cuGraphAddMemcpyNode(p: Copy3, _context: u64) |h| checked(h, Work::Copy(p));
    /// Adds a fill.
    cuGraphAddMemsetNode(p: Fill, _context: u64) |h| checked(h, Work::Fill(p));
    /// Adds a host function.
    cuGraphAddHostNode(p: HostCall) |h| checked(h, Work::Host(p));
    /// Adds a node that does nothing.
    cuGraphAddEmptyNode() |h| checked(h, Work::Empty);
    /// Adds the recording of an event.
    cuGraphAddEventRecordNode(event: u64) |h| checked(h, Work::EventRecord(event));
    /// Adds the wait for an event.
    cuGraphAddEventWaitNode(event: u64) |h| checked(h, Work::EventWait(event));
    /// Adds memory operations.
    cuGraphAddBatchMemOpNode(p: Vec<[u64; 6]>) |h| checked(h, Work::MemOps(p));
}

/// Adds a copy of a graph as a node.
pub fn cuGraphAddChildGraphNode<H: Host>(h: &mut H, graph: u64, after: Vec<u64>, child: u64) -> Result<u64, Code> {
    add_child(h, graph, with_edges(after, None), child, false)
}

pub(super) fn add_child<H: Host>(h: &H, graph: u64, after: After<u64>, child: u64, moved: bool) -> Result<u64, Code> {
    h.shared().with(|g| {
        g.store.graph(graph)?;
        let inside = if moved {
            let own = g.store.graph(child)?.owner == Owner::Program && !g.store.is_captured_into(child);
            // A graph cannot be inside itself.
            if !own || g.store.outermost(graph)? == child || g.store.any(child, &is_conditional) {
                return Err(INVALID);
            }
            child
        } else {
            g.copy_for_child(child, graph)?
        };
        let added = g.store.add(graph, after, Work::Child(inside), 0);
        if added.is_err() && !moved {
            g.drop_graph(inside);
        }
        added
    })
}

/// The graph inside a child graph node.
pub fn cuGraphChildGraphNodeGetGraph<H: Host>(h: &mut H, node: u64) -> Result<u64, Code> {
    work_of(h, node, |w| if let Work::Child(g) = w { Some(*g) } else { None })
}

/// Adds a node of any kind.
pub fn cuGraphAddNode<H: Host>(
    h: &mut H,
    to: OutPtr<CUgraphNode>,
    graph: CUgraph,
    dependencies: InPtr<CUgraphNode>,
    count: usize,
    params: InOutPtr<CUgraphNodeParams>,
) -> Done {
    cuGraphAddNode_v2(h, to, graph, dependencies, InPtr::null(), count, params)
}

/// Adds a node of any kind with data on its edges.
pub fn cuGraphAddNode_v2<H: Host>(
    h: &mut H,
    to: OutPtr<CUgraphNode>,
    graph: CUgraph,
    dependencies: InPtr<CUgraphNode>,
    edge_data: InPtr<CUgraphEdgeData>,
    count: usize,
    params: InOutPtr<CUgraphNodeParams>,
) -> Done {
    let after = nodes(dependencies, edge_data, count)?;
    let graph = graph as u64;
    let node = match graph::any(params.input())? {
        AnyParams::Kernel(args) => {
            let work = kernel(h, args, Vec::new())?;
            to.write(std::ptr::null_mut())?;
            add(h, graph, after, work)
        }
        AnyParams::Ready(work) => {
            let work = checked(h, work)?;
            to.write(std::ptr::null_mut())?;
            add(h, graph, after, work)
        }
        AnyParams::Child { graph: child, moved } => {
            to.write(std::ptr::null_mut())?;
            add_child(h, graph, after, child, moved)
        }
        AnyParams::Alloc => return add_alloc(h, to, graph, after, graph::alloc_of_any(params)),
        AnyParams::Free(address) => {
            check_free(h, graph, address)?;
            to.write(std::ptr::null_mut())?;
            add_free(h, graph, after, address)
        }
        AnyParams::Conditional => return add_conditional(h, to, graph, after, graph::conditional_of_any(params)),
    }?;
    to.write(node as CUgraphNode)
}

/// Removes a node.
pub fn cuGraphDestroyNode<H: Host>(h: &mut H, node: u64) -> Result<(), Code> {
    h.shared().with(|g| {
        let graph = g.store.node(node)?.graph;
        check_removal(g, graph)?;
        let held = g.store.remove_node(node)?;
        g.release_objects(held);
        Ok(())
    })
}

/// Kind of a node.
pub fn cuGraphNodeGetType<H: Host>(h: &mut H, node: u64) -> Result<u32, Code> {
    work_of(h, node, |w| Some(w.node_type()))
}

/// Returns a list as graph queries do: without an array only the number, otherwise as many elements as fit, the rest
/// null.
fn write_list<T: Copy, const N: usize>(
    to: [OutPtr<u64>; N],
    edges: OutPtr<T>,
    count: InOutPtr<usize>,
    all: &[([u64; N], T)],
    nothing: T,
) -> Result<(), Code> {
    let room = count.read()?;
    if to.iter().all(|t| t.is_null()) {
        return count.write(all.len());
    }
    for i in 0..room {
        let (row, edge) = all.get(i).copied().unwrap_or(([0; N], nothing));
        for (to, value) in to.iter().zip(row) {
            to.element(i).write_if_wanted(value);
        }
        edges.element(i).write_if_wanted(edge);
    }
    count.write(all.len().min(room))
}

fn write_nodes(all: After<u64>, to: OutPtr<CUgraphNode>, edge_data: OutPtr<CUgraphEdgeData>, count: InOutPtr<usize>) -> Done {
    let lossy = edge_data.is_null() && !to.is_null() && all.iter().any(|(_, e)| *e != Edge::default());
    if lossy {
        return Err(code::ERROR_LOSSY_QUERY);
    }
    let rows: Vec<_> = all.into_iter().map(|(n, e)| ([n], e.into())).collect();
    write_list([to.cast()], edge_data, count, &rows, Edge::default().into())
}

/// The nodes of a graph.
pub fn cuGraphGetNodes<H: Host>(h: &mut H, graph: CUgraph, to: OutPtr<CUgraphNode>, count: InOutPtr<usize>) -> Done {
    let all = h.shared().with(|g| g.store.graph(graph as u64).map(|g| g.nodes.clone()))?;
    write_nodes(all.into_iter().map(|n| (n, Edge::default())).collect(), to, OutPtr::null(), count)
}

/// The nodes without predecessors.
pub fn cuGraphGetRootNodes<H: Host>(h: &mut H, graph: CUgraph, to: OutPtr<CUgraphNode>, count: InOutPtr<usize>) -> Done {
    let roots = h.shared().with(|g| {
        let all = g.store.graph(graph as u64)?.nodes.iter();
        let roots = all.filter(|n| g.store.node(**n).is_ok_and(|n| n.after.is_empty()));
        Ok::<_, code::Code>(roots.map(|n| (*n, Edge::default())).collect())
    })?;
    write_nodes(roots, to, OutPtr::null(), count)
}

/// The edges of a graph.
pub fn cuGraphGetEdges<H: Host>(
    h: &mut H,
    graph: CUgraph,
    from: OutPtr<CUgraphNode>,
    to: OutPtr<CUgraphNode>,
    count: InOutPtr<usize>,
) -> Done {
    cuGraphGetEdges_v2(h, graph, from, to, OutPtr::null(), count)
}

/// The edges of a graph with their data.
pub fn cuGraphGetEdges_v2<H: Host>(
    h: &mut H,
    graph: CUgraph,
    from: OutPtr<CUgraphNode>,
    to: OutPtr<CUgraphNode>,
    edge_data: OutPtr<CUgraphEdgeData>,
    count: InOutPtr<usize>,
) -> Done {
    let all = h.shared().with(|g| g.store.edges(graph as u64))?;
    if from.is_null() != to.is_null() {
        return Err(INVALID);
    }
    if edge_data.is_null() && !from.is_null() && all.iter().any(|(_, _, e)| *e != Edge::default()) {
        return Err(code::ERROR_LOSSY_QUERY);
    }
    let rows: Vec<_> = all.into_iter().map(|(a, b, e)| ([a, b], e.into())).collect();
    write_list([from.cast(), to.cast()], edge_data, count, &rows, Edge::default().into())
}

/// The nodes that a node waits for.
pub fn cuGraphNodeGetDependencies<H: Host>(
    h: &mut H,
    node: CUgraphNode,
    to: OutPtr<CUgraphNode>,
    count: InOutPtr<usize>,
) -> Done {
    cuGraphNodeGetDependencies_v2(h, node, to, OutPtr::null(), count)
}

/// The nodes that a node waits for, with the data of the edges.
pub fn cuGraphNodeGetDependencies_v2<H: Host>(
    h: &mut H,
    node: CUgraphNode,
    to: OutPtr<CUgraphNode>,
    edge_data: OutPtr<CUgraphEdgeData>,
    count: InOutPtr<usize>,
) -> Done {
    let all = h.shared().with(|g| g.store.node(node as u64).map(|n| n.after.clone()))?;
    write_nodes(all, to, edge_data, count)
}

/// The nodes that wait for a node.
pub fn cuGraphNodeGetDependentNodes<H: Host>(
    h: &mut H,
    node: CUgraphNode,
    to: OutPtr<CUgraphNode>,
    count: InOutPtr<usize>,
) -> Done {
    cuGraphNodeGetDependentNodes_v2(h, node, to, OutPtr::null(), count)
}

/// The nodes that wait for a node, with the data of the edges.
pub fn cuGraphNodeGetDependentNodes_v2<H: Host>(
    h: &mut H,
    node: CUgraphNode,
    to: OutPtr<CUgraphNode>,
    edge_data: OutPtr<CUgraphEdgeData>,
    count: InOutPtr<usize>,
) -> Done {
    let all = h.shared().with(|g| g.store.dependents(node as u64))?;
    write_nodes(all, to, edge_data, count)
}

fn edge_list(from: Vec<u64>, to: Vec<u64>, edges: Option<Vec<Edge>>) -> Vec<(u64, u64, Edge)> {
    from.into_iter().zip(with_edges(to, edges)).map(|(from, (to, e))| (from, to, e)).collect()
}

/// Adds edges.
pub fn cuGraphAddDependencies<H: Host>(h: &mut H, graph: u64, from: Vec<u64>, to: Vec<u64>) -> Result<(), Code> {
    cuGraphAddDependencies_v2(h, graph, from, to, None)
}

/// Adds edges with data.
pub fn cuGraphAddDependencies_v2<H: Host>(
    h: &mut H,
    graph: u64,
    from: Vec<u64>,
    to: Vec<u64>,
    edges: Option<Vec<Edge>>,
) -> Result<(), Code> {
    let edges = edge_list(from, to, edges);
    h.shared().with(|g| g.store.connect(graph, &edges))
}

/// Removes edges.
pub fn cuGraphRemoveDependencies<H: Host>(h: &mut H, graph: u64, from: Vec<u64>, to: Vec<u64>) -> Result<(), Code> {
    cuGraphRemoveDependencies_v2(h, graph, from, to, None)
}

/// Removes edges with this data.
pub fn cuGraphRemoveDependencies_v2<H: Host>(
    h: &mut H,
    graph: u64,
    from: Vec<u64>,
    to: Vec<u64>,
    edges: Option<Vec<Edge>>,
) -> Result<(), Code> {
    let edges = edge_list(from, to, edges);
    h.shared().with(|g| {
        check_removal(g, graph)?;
        g.store.disconnect(graph, &edges)
    })
}
