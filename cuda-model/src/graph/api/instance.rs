//! Instances: creation, changes, launches, destruction.

use super::memory::sweep;
use super::{Done, Host, INVALID, any_work, checked, kernel};
use crate::graph::instance::{Change, DEVICE_LAUNCH, Refusal, UPLOAD};
use crate::graph::model::Owner;
use crate::graph::raw::{self, KernelArgs};
use cuda_api::code::{self, Code};
use cuda_api::copy::copy_3d;
use cuda_api::pointer::{give, give_if_wanted, read};
use cuda_api::sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphNode,
    CUgraphNodeParams, CUstream,
};
use cuda_api::work::Work;
use std::ffi::{c_char, c_uint, c_ulonglong, c_void};

/// Creates an instance; on failure returns `CUgraphInstantiateResult` and the node.
fn instantiate<H: Host>(h: &mut H, to: *mut CUgraphExec, graph: u64, flags: u64) -> Result<u64, Refusal> {
    let failed = |code| Refusal { code, result: 1, node: 0 };
    let current = h.context().map_err(failed)?;
    if to.is_null() {
        return Err(failed(INVALID));
    }
    let prepared = h.shared().with(|g| g.prepare(graph, flags, current))?;
    if flags & DEVICE_LAUNCH != 0 {
        h.shared().with(|g| g.not_made(prepared));
        return Err(failed(code::ERROR_NOT_SUPPORTED));
    }
    match h.instantiate(prepared.context, flags, prepared.home, &prepared.spec) {
        Ok(instance) => {
            h.shared().with(|g| g.made(instance, prepared));
            give(to, instance as CUgraphExec).map_err(failed)?;
            Ok(instance)
        }
        Err(code) => {
            h.shared().with(|g| g.not_made(prepared));
            Err(failed(code))
        }
    }
}

/// Creates an instance, in the form of CUDA 10.
pub fn cuGraphInstantiate<H: Host>(
    h: &mut H,
    to: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    log: *mut c_char,
    size: usize,
) -> Done {
    if size > 0 {
        give_if_wanted(log, 0);
    }
    instantiate(h, to, graph as u64, 0).map(drop).map_err(|why| {
        give_if_wanted(node, why.node as CUgraphNode);
        why.code
    })
}

/// Creates an instance, in the form of CUDA 11.
pub fn cuGraphInstantiate_v2<H: Host>(
    h: &mut H,
    to: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    log: *mut c_char,
    size: usize,
) -> Done {
    cuGraphInstantiate(h, to, graph, node, log, size)
}

/// Creates an instance.
pub fn cuGraphInstantiateWithFlags<H: Host>(h: &mut H, to: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) -> Done {
    // Uploading needs a stream, which only the next form has.
    if flags & UPLOAD != 0 {
        return Err(INVALID);
    }
    instantiate(h, to, graph as u64, flags).map(drop).map_err(|why| why.code)
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS` with its enum as a number.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    flags: u64,
    stream: u64,
    node: u64,
    result: u32,
}

const _: () = assert!(size_of::<Params>() == size_of::<CUDA_GRAPH_INSTANTIATE_PARAMS>());

/// Creates an instance, and returns the reason if it cannot.
pub fn cuGraphInstantiateWithParams<H: Host>(
    h: &mut H,
    to: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> Done {
    let p = read(params.cast::<Params>())?;
    let (outcome, answer) = match instantiate(h, to, graph as u64, p.flags) {
        Ok(instance) if p.flags & UPLOAD != 0 => (h.upload(instance, p.stream), Params { node: 0, result: 0, ..p }),
        Ok(_) => (Ok(()), Params { node: 0, result: 0, ..p }),
        Err(why) => (Err(why.code), Params { node: why.node, result: why.result, ..p }),
    };
    give(params.cast(), answer)?;
    outcome
}

/// Flags that an instance was created with.
pub fn cuGraphExecGetFlags<H: Host>(h: &mut H, instance: CUgraphExec, to: *mut u64) -> Done {
    let flags = h.shared().with(|g| g.instance(instance as u64).map(|i| i.flags))?;
    give(to, flags)
}

/// Applies changes in order.
fn change<H: Host>(h: &mut H, instance: u64, changes: Vec<Change>) -> Done {
    for change in changes {
        h.change(instance, change.at, &change.travels(), change.plain)?;
        h.shared().with(|g| g.changed(change));
    }
    Ok(())
}

fn set<H: Host>(h: &mut H, instance: CUgraphExec, node: CUgraphNode, (work, context): (Work<u64>, u64)) -> Done {
    let changes = h.shared().with(|g| g.change_one(instance as u64, node as u64, work, context))?;
    change(h, instance as u64, changes)
}

fn set_kernel<H: Host>(h: &mut H, instance: CUgraphExec, node: CUgraphNode, args: KernelArgs) -> Done {
    let attributes = h.shared().with(|g| match g.work_of(instance as u64, node as u64)? {
        Work::Kernel(k) => Ok(k.attributes.clone()),
        _ => Err(INVALID),
    })?;
    let work = kernel(h, args, attributes)?;
    set(h, instance, node, work)
}

/// Changes a kernel of an instance, in the form of CUDA 10.
pub fn cuGraphExecKernelNodeSetParams<H: Host>(h: &mut H, instance: CUgraphExec, node: CUgraphNode, p: *const c_void) -> Done {
    set_kernel(h, instance, node, raw::kernel_1(p.cast())?)
}

/// Changes a kernel of an instance.
pub fn cuGraphExecKernelNodeSetParams_v2<H: Host>(
    h: &mut H,
    instance: CUgraphExec,
    node: CUgraphNode,
    p: *const CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    set_kernel(h, instance, node, raw::kernel_2(p)?)
}

macro_rules! sets {
    ($($(#[$doc:meta])* $name:ident($($p:ident: $t:ty),*) $work:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name<H: Host>(h: &mut H, instance: CUgraphExec, node: CUgraphNode, $($p: $t),*) -> Done {
            let work = checked(h, $work)?;
            set(h, instance, node, work)
        }
    )*};
}
sets! {
    /// Changes a copy of an instance.
    cuGraphExecMemcpyNodeSetParams(p: *const CUDA_MEMCPY3D, _context: CUcontext) Work::Copy(copy_3d(p)?);
    /// Changes a fill of an instance.
    cuGraphExecMemsetNodeSetParams(p: *const CUDA_MEMSET_NODE_PARAMS, _context: CUcontext) Work::Fill(raw::fill(p)?);
    /// Changes a host function of an instance.
    cuGraphExecHostNodeSetParams(p: *const CUDA_HOST_NODE_PARAMS) Work::Host(raw::host(p)?);
    /// Changes the event that an instance records.
    cuGraphExecEventRecordNodeSetEvent(event: CUevent) Work::EventRecord(event as u64);
    /// Changes the event that an instance waits for.
    cuGraphExecEventWaitNodeSetEvent(event: CUevent) Work::EventWait(event as u64);
    /// Changes memory operations of an instance.
    cuGraphExecBatchMemOpNodeSetParams(p: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) Work::MemOps(raw::mem_ops(p)?);
}

/// Changes everything in a child graph of an instance.
pub fn cuGraphExecChildGraphNodeSetParams<H: Host>(h: &mut H, instance: CUgraphExec, node: CUgraphNode, child: CUgraph) -> Done {
    let changes = h.shared().with(|g| {
        g.store.graph(child as u64)?;
        g.change_child(instance as u64, node as u64, child as u64)
    })?;
    change(h, instance as u64, changes)
}

/// Changes a node of any kind of an instance.
pub fn cuGraphExecNodeSetParams<H: Host>(h: &mut H, instance: CUgraphExec, node: CUgraphNode, p: *mut CUgraphNodeParams) -> Done {
    match raw::any(p)? {
        raw::AnyParams::Kernel(args) => set_kernel(h, instance, node, args),
        raw::AnyParams::Child { graph, .. } => cuGraphExecChildGraphNodeSetParams(h, instance, node, graph as CUgraph),
        other => {
            let work = any_work(h, node as u64, other)?;
            set(h, instance, node, work)
        }
    }
}

/// Enables or disables a node of an instance.
pub fn cuGraphNodeSetEnabled<H: Host>(h: &mut H, instance: CUgraphExec, node: CUgraphNode, on: c_uint) -> Done {
    let (instance, node, on) = (instance as u64, node as u64, on != 0);
    let (at, was_on) = h.shared().with(|g| g.switch(instance, node))?;
    if was_on != on {
        h.enable(instance, at, on)?;
        h.shared().with(|g| g.switched(instance, node, on));
    }
    Ok(())
}

/// Whether an instance runs a node.
pub fn cuGraphNodeGetEnabled<H: Host>(h: &mut H, instance: CUgraphExec, node: CUgraphNode, to: *mut c_uint) -> Done {
    let (_, on) = h.shared().with(|g| g.switch(instance as u64, node as u64))?;
    give(to, c_uint::from(on))
}

fn update<H: Host>(h: &mut H, instance: CUgraphExec, graph: CUgraph) -> Result<(), Refusal> {
    let changes = h.shared().with(|g| g.change_all(instance as u64, graph as u64))?;
    change(h, instance as u64, changes).map_err(|code| Refusal { code, result: 1, node: 0 })
}

/// Updates an instance from a graph, in the form before CUDA 12.
pub fn cuGraphExecUpdate<H: Host>(
    h: &mut H,
    instance: CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    result: *mut u32,
) -> Done {
    let outcome = update(h, instance, graph);
    let why = outcome.err();
    give_if_wanted(node, why.map_or(0, |w| w.node) as CUgraphNode);
    give(result, why.map_or(0, |w| w.result))?;
    why.map_or(Ok(()), |w| Err(w.code))
}

/// `CUgraphExecUpdateResultInfo` with its enum as a number.
#[repr(C)]
struct ResultInfo {
    result: u32,
    node: u64,
    from: u64,
}

const _: () = assert!(size_of::<ResultInfo>() == size_of::<CUgraphExecUpdateResultInfo>());

/// Updates an instance from a graph of the same shape.
pub fn cuGraphExecUpdate_v2<H: Host>(
    h: &mut H,
    instance: CUgraphExec,
    graph: CUgraph,
    info: *mut CUgraphExecUpdateResultInfo,
) -> Done {
    if info.is_null() {
        return Err(INVALID);
    }
    let why = update(h, instance, graph).err();
    give(info.cast(), ResultInfo { result: why.map_or(0, |w| w.result), node: why.map_or(0, |w| w.node), from: 0 })?;
    why.map_or(Ok(()), |w| Err(w.code))
}

/// Prepares the next launch of an instance.
pub fn cuGraphUpload<H: Host>(h: &mut H, instance: CUgraphExec, stream: CUstream) -> Done {
    h.shared().with(|g| g.instance(instance as u64).map(drop))?;
    let s = h.stream(stream as u64)?;
    if h.shared().capturing() {
        h.shared().forbid_on(&s)?;
    }
    h.upload(instance as u64, stream as u64)
}

/// Launches an instance.
pub fn cuGraphLaunch<H: Host>(h: &mut H, instance: CUgraphExec, stream: CUstream) -> Done {
    if h.shared().capturing() {
        let s = h.stream(stream as u64)?;
        if h.shared().in_capture(&s)? {
            return capture(h, &s, instance as u64);
        }
    }
    if !h.shared().allocating() {
        return h.launch(instance as u64, stream as u64);
    }
    h.shared().with(|g| g.check_launch(instance as u64))?;
    h.launch(instance as u64, stream as u64)?;
    h.shared().with(|g| g.launched(instance as u64));
    Ok(())
}

/// A launch in a capturing stream becomes a child graph.
fn capture<H: Host>(h: &H, stream: &crate::graph::Stream, instance: u64) -> Done {
    h.shared().with(|g| {
        let graph = g.instance(instance)?.graph;
        if g.store.has_memory(graph) {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        let copy = g.copy_graph(graph, Owner::Program)?;
        let taken = g.add_captured(stream, Work::Child(copy));
        if taken != Ok(true) {
            g.drop_graph(copy);
        }
        taken.map(drop)
    })
}

/// Destroys an instance; a running launch continues.
pub fn cuGraphExecDestroy<H: Host>(h: &mut H, instance: CUgraphExec) -> Done {
    let instance = instance as u64;
    let (context, holds) = h.shared().with(|g| Ok::<_, Code>((g.instance(instance)?.context, g.holds_objects(instance))))?;
    h.end_instance(instance)?;
    let held = h.shared().with(|g| g.drop_instance(instance));
    if holds {
        // What a running launch uses is released when the launch has ended.
        let (shared, fence) = (h.shared(), h.fence(context));
        let later = move || {
            fence();
            shared.with(|g| g.release_objects(held));
        };
        // Without a thread the objects stay until the process ends.
        let _ = std::thread::Builder::new().name("cuda-objects".into()).spawn(later);
    }
    sweep(h);
    Ok(())
}

/// The instances of a context that is destroyed.
pub fn instances_in<H: Host>(h: &H, context: u64) -> Vec<u64> {
    h.shared().with(|g| g.instances_in(context))
}
