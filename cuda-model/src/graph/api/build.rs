//! Building and querying graphs.

use super::condition::add_conditional;
use super::memory::{add_alloc, add_free, sweep};
use super::{Done, Host, INVALID, add, check_removal, checked, is_conditional, is_single, kernel, work_of};
use crate::graph::model::Owner;
use crate::graph::raw::{self, AnyParams, RawKernel, give_list, nodes};
use cuda_api::code;
use cuda_api::copy::copy_3d;
use cuda_api::pointer::{give, list};
use cuda_api::sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUcontext, CUevent, CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams, CUgraphNodeType,
};
use cuda_api::work::{Edge, Work};
use std::ffi::{c_uint, c_void};

/// Creates an empty graph.
pub fn cuGraphCreate<H: Host>(h: &mut H, to: *mut CUgraph, flags: c_uint) -> Done {
    if to.is_null() || flags != 0 {
        return Err(INVALID);
    }
    let graph = h.shared().with(|g| g.store.create(Owner::Program));
    give(to, graph as CUgraph)
}

/// Destroys a graph; its instances are not affected.
pub fn cuGraphDestroy<H: Host>(h: &mut H, graph: CUgraph) -> Done {
    h.shared().with(|g| {
        let graph = graph as u64;
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
pub fn cuGraphClone<H: Host>(h: &mut H, to: *mut CUgraph, graph: CUgraph) -> Done {
    if to.is_null() {
        return Err(INVALID);
    }
    let copy = h.shared().with(|g| {
        g.store.graph(graph as u64)?;
        if g.store.any(graph as u64, &is_single) {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        g.copy_graph(graph as u64, Owner::Program)
    })?;
    give(to, copy as CUgraph)
}

/// The node of a copy that was made from a node.
pub fn cuGraphNodeFindInClone<H: Host>(h: &mut H, to: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph) -> Done {
    let found = h.shared().with(|g| {
        g.store.node(original as u64)?;
        let nodes = &g.store.graph(clone as u64)?.nodes;
        let copied = |n: &&u64| g.store.node(**n).is_ok_and(|n| n.origin == original as u64);
        nodes.iter().find(copied).copied().ok_or(INVALID)
    })?;
    give(to, found as CUgraphNode)
}

macro_rules! adds {
    ($($(#[$doc:meta])* $name:ident($($p:ident: $t:ty),*) |$h:ident| $work:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name<H: Host>(
            $h: &mut H, to: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, $($p: $t),*
        ) -> Done {
            let after = nodes(dependencies, std::ptr::null(), count)?;
            let work = $work;
            add($h, to, graph as u64, after, work)
        }
    )*};
}
adds! {
    /// Adds a kernel, in the form of CUDA 10.
    cuGraphAddKernelNode(p: *const c_void) |h| kernel(h, raw::kernel_1(p.cast::<RawKernel>())?, Vec::new())?;
    /// Adds a kernel.
    cuGraphAddKernelNode_v2(p: *const CUDA_KERNEL_NODE_PARAMS) |h| kernel(h, raw::kernel_2(p)?, Vec::new())?;
    /// Adds a copy.
    cuGraphAddMemcpyNode(p: *const CUDA_MEMCPY3D, _context: CUcontext) |h| checked(h, Work::Copy(copy_3d(p)?))?;
    /// Adds a fill.
    cuGraphAddMemsetNode(p: *const CUDA_MEMSET_NODE_PARAMS, _context: CUcontext) |h| checked(h, Work::Fill(raw::fill(p)?))?;
    /// Adds a host function.
    cuGraphAddHostNode(p: *const CUDA_HOST_NODE_PARAMS) |h| checked(h, Work::Host(raw::host(p)?))?;
    /// Adds a node that does nothing.
    cuGraphAddEmptyNode() |h| checked(h, Work::Empty)?;
    /// Adds the recording of an event.
    cuGraphAddEventRecordNode(event: CUevent) |h| checked(h, Work::EventRecord(event as u64))?;
    /// Adds the wait for an event.
    cuGraphAddEventWaitNode(event: CUevent) |h| checked(h, Work::EventWait(event as u64))?;
    /// Adds memory operations.
    cuGraphAddBatchMemOpNode(p: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) |h| checked(h, Work::MemOps(raw::mem_ops(p)?))?;
}

/// Adds a copy of a graph as a node.
pub fn cuGraphAddChildGraphNode<H: Host>(
    h: &mut H,
    to: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    child: CUgraph,
) -> Done {
    let after = nodes(dependencies, std::ptr::null(), count)?;
    add_child(h, to, graph as u64, after, child as u64, false)
}

fn add_child<H: Host>(h: &H, to: *mut CUgraphNode, graph: u64, after: Vec<(u64, Edge)>, child: u64, moved: bool) -> Done {
    give(to, std::ptr::null_mut())?;
    let node = h.shared().with(|g| {
        g.store.graph(graph)?;
        let inside = if moved {
            let own = g.store.graph(child)?.owner == Owner::Program && !g.store.is_captured_into(child);
            if !own || child == graph || g.store.any(child, &is_conditional) {
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
    })?;
    give(to, node as CUgraphNode)
}

/// The graph inside a child graph node.
pub fn cuGraphChildGraphNodeGetGraph<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUgraph) -> Done {
    let graph = work_of(h, node as u64, |w| if let Work::Child(g) = w { Some(*g) } else { None })?;
    give(to, graph as CUgraph)
}

/// Adds a node of any kind.
pub fn cuGraphAddNode<H: Host>(
    h: &mut H,
    to: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    params: *mut CUgraphNodeParams,
) -> Done {
    cuGraphAddNode_v2(h, to, graph, dependencies, std::ptr::null(), count, params)
}

/// Adds a node of any kind with data on its edges.
pub fn cuGraphAddNode_v2<H: Host>(
    h: &mut H,
    to: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    edge_data: *const CUgraphEdgeData,
    count: usize,
    params: *mut CUgraphNodeParams,
) -> Done {
    let after = nodes(dependencies, edge_data, count)?;
    let graph = graph as u64;
    match raw::any(params)? {
        AnyParams::Kernel(args) => {
            let work = kernel(h, args, Vec::new())?;
            add(h, to, graph, after, work)
        }
        AnyParams::Ready(work) => {
            let work = checked(h, work)?;
            add(h, to, graph, after, work)
        }
        AnyParams::Child { graph: child, moved } => add_child(h, to, graph, after, child, moved),
        AnyParams::Alloc => add_alloc(h, to, graph, after, raw::alloc_of_any(params)),
        AnyParams::Free(address) => add_free(h, to, graph, after, address),
        AnyParams::Conditional => add_conditional(h, to, graph, after, raw::conditional_of_any(params)),
    }
}

/// Removes a node.
pub fn cuGraphDestroyNode<H: Host>(h: &mut H, node: CUgraphNode) -> Done {
    h.shared().with(|g| {
        let graph = g.store.node(node as u64)?.graph;
        check_removal(g, graph)?;
        let held = g.store.remove_node(node as u64)?;
        g.release_objects(held);
        Ok(())
    })
}

/// Kind of a node.
pub fn cuGraphNodeGetType<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUgraphNodeType) -> Done {
    let kind = work_of(h, node as u64, |w| Some(w.node_type()))?;
    give(to.cast::<u32>(), kind)
}

fn give_nodes(all: Vec<(u64, Edge)>, to: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData, count: *mut usize) -> Done {
    let lossy = edge_data.is_null() && !to.is_null() && all.iter().any(|(_, e)| *e != Edge::default());
    if lossy {
        return Err(code::ERROR_LOSSY_QUERY);
    }
    let rows: Vec<_> = all.into_iter().map(|(n, e)| ([n], e.into())).collect();
    give_list([to.cast()], edge_data, count, &rows, Edge::default().into())
}

/// The nodes of a graph.
pub fn cuGraphGetNodes<H: Host>(h: &mut H, graph: CUgraph, to: *mut CUgraphNode, count: *mut usize) -> Done {
    let all = h.shared().with(|g| g.store.graph(graph as u64).map(|g| g.nodes.clone()))?;
    give_nodes(all.into_iter().map(|n| (n, Edge::default())).collect(), to, std::ptr::null_mut(), count)
}

/// The nodes without predecessors.
pub fn cuGraphGetRootNodes<H: Host>(h: &mut H, graph: CUgraph, to: *mut CUgraphNode, count: *mut usize) -> Done {
    let roots = h.shared().with(|g| {
        let all = g.store.graph(graph as u64)?.nodes.iter();
        let roots = all.filter(|n| g.store.node(**n).is_ok_and(|n| n.after.is_empty()));
        Ok::<_, code::Code>(roots.map(|n| (*n, Edge::default())).collect())
    })?;
    give_nodes(roots, to, std::ptr::null_mut(), count)
}

/// The edges of a graph.
pub fn cuGraphGetEdges<H: Host>(
    h: &mut H,
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> Done {
    cuGraphGetEdges_v2(h, graph, from, to, std::ptr::null_mut(), count)
}

/// The edges of a graph with their data.
pub fn cuGraphGetEdges_v2<H: Host>(
    h: &mut H,
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    edge_data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Done {
    let all = h.shared().with(|g| g.store.edges(graph as u64))?;
    if from.is_null() != to.is_null() {
        return Err(INVALID);
    }
    if edge_data.is_null() && !from.is_null() && all.iter().any(|(_, _, e)| *e != Edge::default()) {
        return Err(code::ERROR_LOSSY_QUERY);
    }
    let rows: Vec<_> = all.into_iter().map(|(a, b, e)| ([a, b], e.into())).collect();
    give_list([from.cast(), to.cast()], edge_data, count, &rows, Edge::default().into())
}

/// The nodes that a node waits for.
pub fn cuGraphNodeGetDependencies<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUgraphNode, count: *mut usize) -> Done {
    cuGraphNodeGetDependencies_v2(h, node, to, std::ptr::null_mut(), count)
}

/// The nodes that a node waits for, with the data of the edges.
pub fn cuGraphNodeGetDependencies_v2<H: Host>(
    h: &mut H,
    node: CUgraphNode,
    to: *mut CUgraphNode,
    edge_data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Done {
    let all = h.shared().with(|g| g.store.node(node as u64).map(|n| n.after.clone()))?;
    give_nodes(all, to, edge_data, count)
}

/// The nodes that wait for a node.
pub fn cuGraphNodeGetDependentNodes<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUgraphNode, count: *mut usize) -> Done {
    cuGraphNodeGetDependentNodes_v2(h, node, to, std::ptr::null_mut(), count)
}

/// The nodes that wait for a node, with the data of the edges.
pub fn cuGraphNodeGetDependentNodes_v2<H: Host>(
    h: &mut H,
    node: CUgraphNode,
    to: *mut CUgraphNode,
    edge_data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Done {
    let all = h.shared().with(|g| g.store.dependents(node as u64))?;
    give_nodes(all, to, edge_data, count)
}

fn edge_list(
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edge_data: *const CUgraphEdgeData,
    count: usize,
) -> Result<Vec<(u64, u64, Edge)>, code::Code> {
    let ends = nodes(to, edge_data, count)?;
    Ok(list(from, count)?.into_iter().zip(ends).map(|(from, (to, e))| (from as u64, to, e)).collect())
}

/// Adds edges.
pub fn cuGraphAddDependencies<H: Host>(
    h: &mut H,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Done {
    cuGraphAddDependencies_v2(h, graph, from, to, std::ptr::null(), count)
}

/// Adds edges with data.
pub fn cuGraphAddDependencies_v2<H: Host>(
    h: &mut H,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edge_data: *const CUgraphEdgeData,
    count: usize,
) -> Done {
    let edges = edge_list(from, to, edge_data, count)?;
    h.shared().with(|g| g.store.connect(graph as u64, &edges))
}

/// Removes edges.
pub fn cuGraphRemoveDependencies<H: Host>(
    h: &mut H,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Done {
    cuGraphRemoveDependencies_v2(h, graph, from, to, std::ptr::null(), count)
}

/// Removes edges with this data.
pub fn cuGraphRemoveDependencies_v2<H: Host>(
    h: &mut H,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edge_data: *const CUgraphEdgeData,
    count: usize,
) -> Done {
    let edges = edge_list(from, to, edge_data, count)?;
    h.shared().with(|g| {
        check_removal(g, graph as u64)?;
        g.store.disconnect(graph as u64, &edges)
    })
}
