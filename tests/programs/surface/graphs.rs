//! Graphs: what nodes, instances and captures refuse, and what they answer.

use crate::driver::{Surface, bad_handle};
use cuda_api::sys::{CUevent, CUgraph, CUgraphExec, CUgraphNode, CUgraphNodeParams, CUstream};
use std::ffi::c_void;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`: kind, types of handle, location, device; the rest of the pool's properties; access; bytes; address.
#[repr(C, align(8))]
struct Memory([u32; 4], [u64; 9], [u64; 2], [u64; 2]);

/// `CUgraphNodeParams`: type, three reserved words, the union.
type AnyNode = [u64; size_of::<CUgraphNodeParams>() / 8];

fn graph(s: &Surface) -> CUgraph {
    let mut made: CUgraph = std::ptr::null_mut();
    tell!(s, graph.cuGraphCreate(&raw mut made, 0));
    made
}

fn node_type(s: &Surface, node: CUgraphNode) {
    let mut kind = 99u32;
    show!(s, graph.cuGraphNodeGetType(node, (&raw mut kind).cast()) => kind);
}

fn levels(s: &Surface) -> [u64; 4] {
    let mut all = [0; 4];
    for (attribute, level) in (0..).zip(&mut all) {
        tell!(s, graph.cuDeviceGetGraphMemAttribute(0, attribute, (&raw mut *level).cast()));
    }
    all
}

/// Memory that belongs to graphs.
fn memory(s: &Surface, stream: CUstream, other_memory: u64) {
    let (own, second) = (graph(s), graph(s));
    let mut node: CUgraphNode = std::ptr::null_mut();
    let none = std::ptr::null();
    let params = |kind, location, device, bytes| Memory([kind, 0, location, device], [0; 9], [0; 2], [bytes, 0]);
    for mut p in [params(0, 1, 0, 64), params(1, 0, 0, 64), params(1, 1, 9, 64), params(1, 1, 0, 0)] {
        tell!(s, graph.cuGraphAddMemAllocNode(&raw mut node, own, none, 0, (&raw mut p).cast()));
    }
    tell!(s, graph.cuGraphAddMemAllocNode(&raw mut node, own, none, 0, std::ptr::null_mut()));
    let mut p = params(1, 1, 0, 5000);
    tell!(s, graph.cuGraphAddMemAllocNode(&raw mut node, own, none, 0, (&raw mut p).cast()));
    node_type(s, node);
    let address = p.3[1];
    let mut asked = params(0, 0, 0, 0);
    show!(s, graph.cuGraphMemAllocNodeGetParams(node, (&raw mut asked).cast()) => asked.3 == [5000, address]);
    let (mut free, mut freed) = (std::ptr::null_mut(), 0u64);
    tell!(s, graph.cuGraphAddMemFreeNode(&raw mut free, own, none, 0, other_memory));
    tell!(s, graph.cuGraphAddMemFreeNode(&raw mut free, own, &raw const node, 1, address));
    node_type(s, free);
    tell!(s, graph.cuGraphAddMemFreeNode(&raw mut free, own, none, 0, address));
    show!(s, graph.cuGraphMemFreeNodeGetParams(free, &raw mut freed) => freed == address);
    tell!(s, graph.cuGraphMemFreeNodeGetParams(node, &raw mut freed));
    // Such a graph is nobody's to copy, and loses nothing.
    let mut copy: CUgraph = std::ptr::null_mut();
    tell!(s, graph.cuGraphClone(&raw mut copy, own));
    tell!(s, graph.cuGraphAddChildGraphNode(&raw mut node, second, none, 0, own));
    tell!(s, graph.cuGraphDestroyNode(free));
    tell!(s, memory.cuMemFree_v2(address));
    let mut exec: CUgraphExec = std::ptr::null_mut();
    let mut again: CUgraphExec = std::ptr::null_mut();
    tell!(s, graph.cuGraphInstantiateWithFlags(&raw mut exec, own, 0));
    tell!(s, graph.cuGraphInstantiateWithFlags(&raw mut again, own, 0));
    for _ in 0..2 {
        tell!(s, graph.cuGraphLaunch(exec, stream));
    }
    tell!(s, stream.cuStreamSynchronize(stream));
    let [used, high, held, held_high] = levels(s);
    println!("graph memory {:?}", [used == 0, high >= 5000, held_high >= high, held_high >= held]);
    let mut zero = 0u64;
    let value: *mut c_void = (&raw mut zero).cast();
    for attribute in 0..5 {
        tell!(s, graph.cuDeviceSetGraphMemAttribute(0, attribute, value));
    }
    tell!(s, graph.cuGraphExecDestroy(exec));
    tell!(s, graph.cuGraphDestroy(own));
    tell!(s, graph.cuDeviceGraphMemTrim(0));
    println!("graph memory at the end {:?}", levels(s));
    tell!(s, graph.cuGraphDestroy(second));
}

fn conditional(handle: u64, kind: u64, size: u64) -> AnyNode {
    let mut p: AnyNode = [0; _];
    p[0] = 13;
    (p[2], p[3]) = (handle, kind | size << 32);
    p
}

/// Conditions and the nodes that look at them.
fn conditions(s: &Surface, event: CUevent) {
    let own = graph(s);
    let none = std::ptr::null();
    let (mut node, mut exec): (CUgraphNode, CUgraphExec) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut handle = 0u64;
    tell!(s, graph.cuGraphConditionalHandleCreate(&raw mut handle, bad_handle(), std::ptr::null_mut(), 0, 0));
    tell!(s, graph.cuGraphConditionalHandleCreate(&raw mut handle, own, std::ptr::null_mut(), 0, 7));
    show!(s, graph.cuGraphConditionalHandleCreate(&raw mut handle, own, std::ptr::null_mut(), 1, 1) => handle != 0);
    // A condition that no node has.
    tell!(s, graph.cuGraphInstantiateWithFlags(&raw mut exec, own, 0));
    for mut p in [conditional(handle + 1, 0, 1), conditional(handle, 1, 2), conditional(handle, 0, 3), conditional(handle, 7, 1)]
    {
        tell!(s, graph.cuGraphAddNode_v2(&raw mut node, own, none, none.cast(), 0, p.as_mut_ptr().cast()));
    }
    let mut p = conditional(handle, 0, 2);
    tell!(s, graph.cuGraphAddNode_v2(&raw mut node, own, none, none.cast(), 0, p.as_mut_ptr().cast()));
    node_type(s, node);
    // One node for one condition.
    let mut other = conditional(handle, 0, 2);
    tell!(s, graph.cuGraphAddNode_v2(&raw mut node, own, none, none.cast(), 0, other.as_mut_ptr().cast()));
    let mut copy: CUgraph = std::ptr::null_mut();
    tell!(s, graph.cuGraphClone(&raw mut copy, own));
    // SAFETY: the driver's list of the two graphs in the node.
    let bodies = unsafe { std::slice::from_raw_parts(p[4] as *const CUgraph, 2) };
    tell!(s, graph.cuGraphDestroy(bodies[0]));
    // What must not be in there.
    tell!(s, graph.cuGraphAddEventRecordNode(&raw mut node, bodies[1], none, 0, event));
    tell!(s, graph.cuGraphInstantiateWithFlags(&raw mut exec, own, 0));
    tell!(s, graph.cuGraphDestroyNode(node));
    tell!(s, graph.cuGraphAddEmptyNode(&raw mut node, bodies[1], none, 0));
    tell!(s, graph.cuGraphInstantiateWithFlags(&raw mut exec, own, 0));
    tell!(s, graph.cuGraphExecDestroy(exec));
    tell!(s, graph.cuGraphDestroy(own));
}

/// Words of memory that a graph writes and waits for, built and captured.
fn words(s: &Surface, stream: CUstream, at: u64) {
    let own = graph(s);
    let none = std::ptr::null();
    let (mut node, mut exec): (CUgraphNode, CUgraphExec) = (std::ptr::null_mut(), std::ptr::null_mut());
    // `CUDA_BATCH_MEM_OP_NODE_PARAMS`: context, count, operations, flags.
    let batch = |parts: &mut [[u64; 6]]| [0, parts.len() as u64, parts.as_mut_ptr() as u64, 0];
    let mut wrong = [[2, at + 1, 5, 0, 0, 0]];
    let p = batch(&mut wrong);
    tell!(s, graph.cuGraphAddBatchMemOpNode(&raw mut node, own, none, 0, p.as_ptr().cast()));
    let mut parts = [[2, at, 5, 0, 0, 0], [1, at, 5, 1, 0, 0], [5, at + 8, 6, 0, 0, 0]];
    let p = batch(&mut parts);
    tell!(s, graph.cuGraphAddBatchMemOpNode(&raw mut node, own, none, 0, p.as_ptr().cast()));
    node_type(s, node);
    let mut asked = [9u64; 4];
    show!(s, graph.cuGraphBatchMemOpNodeGetParams(node, asked.as_mut_ptr().cast()) => asked[1] as u32);
    tell!(s, graph.cuGraphInstantiateWithFlags(&raw mut exec, own, 0));
    tell!(s, graph.cuGraphLaunch(exec, stream));
    parts[2][2] = 7;
    let p = batch(&mut parts);
    tell!(s, graph.cuGraphExecBatchMemOpNodeSetParams(exec, node, p.as_ptr().cast()));
    tell!(s, graph.cuGraphLaunch(exec, stream));
    let mut got = [0u64; 2];
    let to: *mut c_void = got.as_mut_ptr().cast();
    tell!(s, memory.cuMemcpyDtoHAsync_v2(to, at, 16, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    println!("words of a graph {} {}", got[0] as u32, got[1]);
    let mut captured: CUgraph = std::ptr::null_mut();
    tell!(s, graph.cuStreamBeginCapture_v2(stream, 2));
    tell!(s, stream.cuStreamWriteValue32_v2(stream, at, 8, 0));
    tell!(s, stream.cuStreamWaitValue32_v2(stream, at, 8, 0));
    tell!(s, graph.cuStreamEndCapture(stream, &raw mut captured));
    let mut count = 0usize;
    show!(s, graph.cuGraphGetNodes(captured, std::ptr::null_mut(), &raw mut count) => count);
    tell!(s, graph.cuGraphExecDestroy(exec));
    tell!(s, graph.cuGraphInstantiateWithFlags(&raw mut exec, captured, 0));
    tell!(s, graph.cuGraphLaunch(exec, stream));
    tell!(s, memory.cuMemcpyDtoHAsync_v2(to, at, 16, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    println!("captured words {}", got[0] as u32);
    tell!(s, graph.cuGraphExecDestroy(exec));
    tell!(s, graph.cuGraphDestroy(captured));
    tell!(s, graph.cuGraphDestroy(own));
}

/// Everything, in a stream; `device` are 16 bytes of device memory.
pub fn all(s: &Surface, stream: CUstream, event: CUevent, device: u64) {
    memory(s, stream, device);
    conditions(s, event);
    words(s, stream, device);
}
