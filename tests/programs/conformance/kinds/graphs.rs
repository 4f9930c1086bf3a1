//! Nodes of graphs that copy, fill, and write words; made by hand, changed, and captured.

use super::{
    BYTES, Memory, ROW, World, all, case, end, is_used, line, one_is_used, pairs, raw_2d, raw_3d, rows, slices, world,
    world_of_used, zeroed,
};
use crate::tell::Tell;
use cuda_api::array::UNIFIED;
use cuda_api::sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphNode, CUgraphNodeParams,
};
use cuda_api::work::Copy3;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// `CUgraphNodeParams`: type, three reserved words, the union.
type AnyNode = [u64; size_of::<CUgraphNodeParams>() / 8];
const UNION: usize = 2;

/// Of a node that copies: flags, context, the copy.
fn any_copy(w: &World, c: &Copy3) -> AnyNode {
    let mut p: AnyNode = [0; _];
    (p[0], p[UNION + 1]) = (1, w.context as u64);
    let raw = raw_3d(c);
    // SAFETY: the copy has as many whole words as are there behind flags and context (the length is the struct's).
    unsafe {
        std::ptr::copy_nonoverlapping(raw.as_ptr().cast::<u64>(), p[UNION + 2..].as_mut_ptr(), size_of::<CUDA_MEMCPY3D>() / 8)
    };
    p
}

/// Of a node that fills: the fill, the context.
fn any_fill(w: &World, f: &CUDA_MEMSET_NODE_PARAMS) -> AnyNode {
    let mut p: AnyNode = [0; _];
    p[0] = 2;
    let words = [f.dst, f.pitch as u64, u64::from(f.value) | u64::from(f.elementSize) << 32, f.width as u64, f.height as u64];
    p[UNION..UNION + 5].copy_from_slice(&words);
    p[UNION + 5] = w.context as u64;
    p
}

/// Launches an instance: twice, since what a node has for one launch it must have for the next.
fn launch(t: &Tell, w: &World, instance: CUgraphExec) -> i32 {
    let first = call!(t, graph.cuGraphLaunch(instance, w.stream));
    let second = call!(t, graph.cuGraphLaunch(instance, w.stream));
    call!(t, context.cuCtxSynchronize());
    first.max(second)
}

/// Makes a graph, lets it be filled, makes an instance of it, lets that be changed, launches it, and takes both away. The code of the first
/// call that fails.
fn changed(t: &Tell, w: &World, add: impl FnOnce(CUgraph) -> i32, change: impl FnOnce(CUgraphExec) -> i32) -> i32 {
    let (mut graph, mut instance) = (null_mut(), null_mut());
    call!(t, graph.cuGraphCreate(&raw mut graph, 0));
    let mut code = add(graph);
    if code == 0 {
        code = call!(t, graph.cuGraphInstantiateWithFlags(&raw mut instance, graph, 0));
    }
    if code == 0 {
        code = change(instance);
        if code == 0 {
            code = launch(t, w, instance);
        }
        call!(t, graph.cuGraphExecDestroy(instance));
    }
    call!(t, graph.cuGraphDestroy(graph));
    code
}

fn graph(t: &Tell, w: &World, add: impl FnOnce(CUgraph) -> i32) -> i32 {
    changed(t, w, add, |_| 0)
}

fn copy_node(t: &Tell, w: &World, graph: CUgraph, c: &Copy3) -> (i32, CUgraphNode) {
    let (mut node, raw) = (null_mut(), raw_3d(c));
    (call!(t, graph.cuGraphAddMemcpyNode(&raw mut node, graph, null(), 0, raw.as_ptr(), w.context)), node)
}

fn fill_node(t: &Tell, w: &World, graph: CUgraph, f: &CUDA_MEMSET_NODE_PARAMS) -> (i32, CUgraphNode) {
    let mut node = null_mut();
    (call!(t, graph.cuGraphAddMemsetNode(&raw mut node, graph, null(), 0, &raw const *f, w.context)), node)
}

/// A node of any type by its parameters.
fn any_node(t: &Tell, graph: CUgraph, p: &mut AnyNode) -> i32 {
    let mut node = null_mut();
    call!(t, graph.cuGraphAddNode_v2(&raw mut node, graph, null(), null(), 0, p.as_mut_ptr().cast()))
}

/// Nodes that copy.
pub fn copying_nodes(t: &Tell) {
    let w = world(t);
    pairs(t, &w, all, |from, to| copying(t, &w, from, to));
}

fn copying(t: &Tell, w: &World, from: &Memory, to: &Memory) {
    let copy = slices(end(UNIFIED, from.at), end(UNIFIED, to.at));
    case(t, "cuGraphAddMemcpyNode", to, || graph(t, w, |g| copy_node(t, w, g, &copy).0));
    let one = line(end(UNIFIED, from.at), end(UNIFIED, to.at), BYTES as u64);
    case(t, "cuGraphAddMemcpyNode of one row", to, || graph(t, w, |g| copy_node(t, w, g, &one).0));
    let mut any = any_copy(w, &copy);
    case(t, "cuGraphAddNode_v2 that copies", to, || graph(t, w, |g| any_node(t, g, &mut any)));
}

/// Nodes that fill and write words.
pub fn writing_nodes(t: &Tell) {
    let w = world(t);
    for m in &w.memory {
        t.about(m.name);
        writing(t, &w, m);
    }
}

fn writing(t: &Tell, w: &World, m: &Memory) {
    let fill = CUDA_MEMSET_NODE_PARAMS { dst: m.at, pitch: ROW, value: 0x1234, elementSize: 2, width: 7, height: 3 };
    case(t, "cuGraphAddMemsetNode", m, || graph(t, w, |g| fill_node(t, w, g, &fill).0));
    let flat = CUDA_MEMSET_NODE_PARAMS { dst: m.at, pitch: 0, value: 0x5678_9abc, elementSize: 4, width: 9, height: 1 };
    case(t, "cuGraphAddMemsetNode of one row", m, || graph(t, w, |g| fill_node(t, w, g, &flat).0));
    let mut any = any_fill(w, &fill);
    case(t, "cuGraphAddNode_v2 that fills", m, || graph(t, w, |g| any_node(t, g, &mut any)));
    let (mut node, mut write) = (null_mut(), [[2u64, m.at + 4, 0x5678, 0, 0, 0]]);
    let words: [u64; 4] = [w.context as u64, 1, write.as_mut_ptr() as u64, 0];
    let params = (&raw const words).cast::<CUDA_BATCH_MEM_OP_NODE_PARAMS>();
    case(t, "cuGraphAddBatchMemOpNode", m, || {
        graph(t, w, |g| call!(t, graph.cuGraphAddBatchMemOpNode(&raw mut node, g, null(), 0, params)))
    });
    let mut any: AnyNode = [0; _];
    any[0] = 12;
    any[UNION..UNION + 4].copy_from_slice(&words);
    case(t, "cuGraphAddNode_v2 that writes a word", m, || graph(t, w, |g| any_node(t, g, &mut any)));
}

/// The same of memory of the host's that a GPU uses by its address.
pub fn nodes_of_used(t: &Tell) {
    let w = world_of_used(t);
    pairs(t, &w, one_is_used, |from, to| {
        copying(t, &w, from, to);
        capture(t, &w, from, to);
    });
    for m in w.memory.iter().filter(|m| is_used(m)) {
        t.about(m.name);
        writing(t, &w, m);
    }
}

/// Instances whose nodes get other parameters: of the same memory, and of memory of another kind.
pub fn updates(t: &Tell) {
    let w = world(t);
    let Some(device) = w.memory.first() else { return };
    let ends = |from: u64, to: u64, bytes| line(end(UNIFIED, from), end(UNIFIED, to), bytes);
    // A driver 580 takes pageable memory as a new source, and the GPU fails with an illegal address then.
    let is_known = |m: &Memory| m.name != "pageable";
    pairs(
        t,
        &w,
        |from, _| is_known(from),
        |from, to| {
            let (before, after) = (ends(from.at + 8, to.at, 16), ends(from.at, to.at + 4, 40));
            case(t, "cuGraphExecMemcpyNodeSetParams", to, || copy_update(t, &w, &before, &after));
            let node = Cell::new(null_mut());
            case(t, "cuGraphExecNodeSetParams that copies", to, || {
                let mut any = any_copy(&w, &after);
                let set = |i| call!(t, graph.cuGraphExecNodeSetParams(i, node.get(), any.as_mut_ptr().cast()));
                changed(t, &w, |g| noted(copy_node(t, &w, g, &before), &node), set)
            });
            case(t, "cuGraphExecUpdate_v2 of a copy", to, || {
                let set = |i| whole_update(t, i, |g| copy_node(t, &w, g, &after).0);
                changed(t, &w, |g| copy_node(t, &w, g, &before).0, set)
            });
            if from.at != device.at && to.at != device.at {
                let before = ends(device.at, to.at, 16);
                case(t, "cuGraphExecMemcpyNodeSetParams to another source", to, || copy_update(t, &w, &before, &after));
            }
        },
    );
    for m in w.memory.iter().filter(|m| is_known(m)) {
        t.about(m.name);
        let fill = |dst, value| CUDA_MEMSET_NODE_PARAMS { dst, pitch: 0, value, elementSize: 4, width: 9, height: 1 };
        let (before, after) = (fill(m.at, 0x1111_2222), fill(m.at + 4, 0x3333_4444));
        case(t, "cuGraphExecMemsetNodeSetParams", m, || fill_update(t, &w, &before, &after));
        case(t, "cuGraphExecUpdate_v2 of a fill", m, || {
            let set = |i| whole_update(t, i, |g| fill_node(t, &w, g, &after).0);
            changed(t, &w, |g| fill_node(t, &w, g, &before).0, set)
        });
        if m.at != device.at {
            let before = fill(device.at, 0x5555_6666);
            case(t, "cuGraphExecMemsetNodeSetParams to other memory", m, || fill_update(t, &w, &before, &after));
        }
    }
}

/// Keeps the node for later; the code.
fn noted((code, made): (i32, CUgraphNode), node: &Cell<CUgraphNode>) -> i32 {
    node.set(made);
    code
}

fn copy_update(t: &Tell, w: &World, before: &Copy3, after: &Copy3) -> i32 {
    let (node, after) = (Cell::new(null_mut()), raw_3d(after));
    let set = |i| call!(t, graph.cuGraphExecMemcpyNodeSetParams(i, node.get(), after.as_ptr(), w.context));
    changed(t, w, |g| noted(copy_node(t, w, g, before), &node), set)
}

fn fill_update(t: &Tell, w: &World, before: &CUDA_MEMSET_NODE_PARAMS, after: &CUDA_MEMSET_NODE_PARAMS) -> i32 {
    let node = Cell::new(null_mut());
    let set = |i| call!(t, graph.cuGraphExecMemsetNodeSetParams(i, node.get(), &raw const *after, w.context));
    changed(t, w, |g| noted(fill_node(t, w, g, before), &node), set)
}

/// Makes an instance like another graph.
fn whole_update(t: &Tell, instance: CUgraphExec, add: impl FnOnce(CUgraph) -> i32) -> i32 {
    let (mut other, mut info) = (null_mut(), zeroed());
    call!(t, graph.cuGraphCreate(&raw mut other, 0));
    let mut code = add(other);
    if code == 0 {
        code = call!(t, graph.cuGraphExecUpdate_v2(instance, other, info.as_mut_ptr()));
    }
    call!(t, graph.cuGraphDestroy(other));
    code
}

/// Captured copies, fills and words.
pub fn captures(t: &Tell) {
    let w = world(t);
    pairs(t, &w, all, |from, to| capture(t, &w, from, to));
    for m in &w.memory {
        let (at, s) = (m.at, w.stream);
        t.about(m.name);
        let run = || call!(t, memory.cuMemsetD32Async(at, 0x9192_9394, 9, s));
        case(t, "captured cuMemsetD32Async", m, || captured(t, &w, run));
        let run = || call!(t, memory.cuMemsetD2D8Async(at, ROW, 0xb1, 5, 3, s));
        case(t, "captured cuMemsetD2D8Async", m, || captured(t, &w, run));
        let run = || call!(t, stream.cuStreamWriteValue32_v2(s, at + 4, 0x1357_9bdf, 0));
        case(t, "captured cuStreamWriteValue32_v2", m, || captured(t, &w, run));
    }
}

/// Copies by a graph of one node.
pub(super) fn copied(t: &Tell, w: &World, copy: &Copy3) -> i32 {
    graph(t, w, |g| copy_node(t, w, g, copy).0)
}

/// Captures a call in a stream and launches that. The code of the first call that fails.
pub(super) fn captured(t: &Tell, w: &World, run: impl FnOnce() -> i32) -> i32 {
    // `CU_STREAM_CAPTURE_MODE_RELAXED`
    const RELAXED: u32 = 2;
    let (mut graph, mut instance) = (null_mut(), null_mut());
    call!(t, graph.cuStreamBeginCapture_v2(w.stream, RELAXED));
    let mut code = run();
    let ended = call!(t, graph.cuStreamEndCapture(w.stream, &raw mut graph));
    if code == 0 {
        code = ended;
    }
    if code == 0 {
        code = call!(t, graph.cuGraphInstantiateWithFlags(&raw mut instance, graph, 0));
    }
    if code == 0 {
        code = launch(t, w, instance);
        call!(t, graph.cuGraphExecDestroy(instance));
    }
    if !graph.is_null() {
        call!(t, graph.cuGraphDestroy(graph));
    }
    code
}

fn capture(t: &Tell, w: &World, from: &Memory, to: &Memory) {
    let (src, dst, s) = (from.at, to.at, w.stream);
    case(t, "captured cuMemcpyAsync", to, || captured(t, w, || call!(t, memory.cuMemcpyAsync(dst, src, BYTES, s))));
    let flat = raw_2d(&rows(end(UNIFIED, src), end(UNIFIED, dst)));
    case(t, "captured cuMemcpy2DAsync_v2", to, || captured(t, w, || call!(t, memory.cuMemcpy2DAsync_v2(flat.as_ptr(), s))));
    if from.host {
        let run = || call!(t, memory.cuMemcpyHtoDAsync_v2(dst, src as *const c_void, BYTES, s));
        case(t, "captured cuMemcpyHtoDAsync_v2", to, || captured(t, w, run));
    }
    if to.host {
        let run = || call!(t, memory.cuMemcpyDtoHAsync_v2(dst as *mut c_void, src, BYTES, s));
        case(t, "captured cuMemcpyDtoHAsync_v2", to, || captured(t, w, run));
    }
}
