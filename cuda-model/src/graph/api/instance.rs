//! Instances: creation, changes, launches, destruction.

use super::memory::sweep;
use super::{Done, Host, INVALID, any_work, checked, kernel};
use crate::graph::instance::{Change, DEVICE_LAUNCH, OTHER, Refusal, Update};
use cuda_api::code::{self, Code};
use cuda_api::flags::INSTANTIATE_UPLOAD;
use cuda_api::graph::{AnyParams, KernelArgs};
use cuda_api::pointer::{InOutPtr, OutPtr, Plain};
use cuda_api::sys::{CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphNode};
use cuda_api::work::{Copy3, Fill, HostCall, Work};
use std::ffi::{c_char, c_uint, c_ulonglong};

/// Creates an instance; on failure returns `CUgraphInstantiateResult` and the node.
fn instantiate<H: Host>(h: &mut H, graph: u64, flags: u64) -> Result<u64, Refusal> {
    let current = h.context().map_err(failed)?;
    let mut prepared = h.shared().with(|g| g.prepare(graph, flags, current))?;
    if flags & DEVICE_LAUNCH != 0 {
        h.shared().with(|g| g.not_made(prepared));
        return Err(failed(code::ERROR_NOT_SUPPORTED));
    }
    match h.instantiate(prepared.context, flags, prepared.home, std::mem::take(&mut prepared.spec)) {
        Ok(instance) => {
            h.shared().with(|g| g.made(instance, prepared));
            Ok(instance)
        }
        Err(code) => {
            h.shared().with(|g| g.not_made(prepared));
            Err(failed(code))
        }
    }
}

fn failed(code: Code) -> Refusal {
    Refusal { code, result: 1, node: 0, from: 0 }
}

/// As [`instantiate`], for functions that also answer when they fail; writes the instance, and returns it.
fn instantiate_to<H: Host>(h: &mut H, to: OutPtr<CUgraphExec>, graph: u64, flags: u64) -> Result<u64, Refusal> {
    h.context().map_err(failed)?;
    if to.is_null() {
        return Err(failed(INVALID));
    }
    let instance = instantiate(h, graph, flags)?;
    to.write(instance as CUgraphExec).map_err(failed)?;
    Ok(instance)
}

/// Creates an instance, in the form of CUDA 10.
pub fn cuGraphInstantiate<H: Host>(
    h: &mut H,
    to: OutPtr<CUgraphExec>,
    graph: CUgraph,
    node: OutPtr<CUgraphNode>,
    log: OutPtr<c_char>,
    size: usize,
) -> Done {
    if size > 0 {
        log.write_if_wanted(0);
    }
    instantiate_to(h, to, graph as u64, 0).map(drop).map_err(|why| {
        node.write_if_wanted(why.node as CUgraphNode);
        why.code
    })
}

/// Creates an instance, in the form of CUDA 11.
pub fn cuGraphInstantiate_v2<H: Host>(
    h: &mut H,
    to: OutPtr<CUgraphExec>,
    graph: CUgraph,
    node: OutPtr<CUgraphNode>,
    log: OutPtr<c_char>,
    size: usize,
) -> Done {
    cuGraphInstantiate(h, to, graph, node, log, size)
}

/// Creates an instance.
pub fn cuGraphInstantiateWithFlags<H: Host>(h: &mut H, graph: u64, flags: c_ulonglong) -> Result<u64, Code> {
    // Uploading needs a stream, which only the next form has.
    if flags & INSTANTIATE_UPLOAD != 0 {
        return Err(INVALID);
    }
    instantiate(h, graph, flags).map_err(|why| why.code)
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

// SAFETY: numbers.
unsafe impl Plain for Params {}
const _: () = assert!(size_of::<Params>() == size_of::<CUDA_GRAPH_INSTANTIATE_PARAMS>());

/// Creates an instance, and returns the reason if it cannot.
pub fn cuGraphInstantiateWithParams<H: Host>(
    h: &mut H,
    to: OutPtr<CUgraphExec>,
    graph: CUgraph,
    params: InOutPtr<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> Done {
    let p = params.cast::<Params>().read()?;
    let (outcome, answer) = match instantiate_to(h, to, graph as u64, p.flags) {
        Ok(instance) if p.flags & INSTANTIATE_UPLOAD != 0 => (h.upload(instance, p.stream), Params { node: 0, result: 0, ..p }),
        Ok(_) => (Ok(()), Params { node: 0, result: 0, ..p }),
        Err(why) => (Err(why.code), Params { node: why.node, result: why.result, ..p }),
    };
    params.cast().write(answer)?;
    outcome
}

/// Flags that an instance was created with.
pub fn cuGraphExecGetFlags<H: Host>(h: &mut H, instance: u64) -> Result<u64, Code> {
    h.shared().with(|g| g.instance(instance).map(|i| i.flags))
}

/// Makes a change; returns what reverses it.
fn change<H: Host>(h: &mut H, instance: u64, change: Change) -> Result<Option<Change>, Refusal> {
    h.change(instance, change.at, change.work.clone(), change.plain).map_err(|rc| change.refused(rc))?;
    Ok(h.shared().with(|g| g.changed(instance, change)))
}

/// Makes all changes, or none if the host refuses one.
fn make_all<H: Host>(h: &mut H, instance: u64, changes: Vec<Change>) -> Result<(), Refusal> {
    changes.iter().try_for_each(|c| h.check_change(instance, c.at, &c.work).map_err(|rc| c.refused(rc)))?;
    let mut back = Vec::with_capacity(changes.len());
    for one in changes {
        match change(h, instance, one) {
            Ok(reverse) => back.extend(reverse),
            Err(why) => {
                for one in back.into_iter().rev() {
                    // The place has accepted the same before; the first error is reported.
                    let _ = change(h, instance, one);
                }
                return Err(why);
            }
        }
    }
    Ok(())
}

/// Carries out an update, user objects included: all of it, or nothing if the host refuses a part.
fn carry_out<H: Host>(h: &mut H, instance: u64, mut update: Update) -> Result<(), Refusal> {
    let done = make_all(h, instance, std::mem::take(&mut update.changes));
    if let Err(why) = done {
        h.shared().with(|g| g.not_updated(update));
        return Err(if why.result == OTHER { why } else { Refusal { code: code::ERROR_GRAPH_EXEC_UPDATE_FAILURE, ..why } });
    }
    let (held, context) = h.shared().with(|g| (g.updated(instance, update), g.instance(instance).map_or(0, |i| i.context)));
    release_later(h, context, held);
    Ok(())
}

/// Releases user objects that running launches in a context may use, when these have ended.
fn release_later<H: Host>(h: &mut H, context: u64, held: Vec<(u64, u32)>) {
    if held.is_empty() {
        return;
    }
    let (shared, fence) = (h.shared(), h.fence(context));
    let later = move || {
        fence();
        shared.with(|g| g.release_objects(held));
    };
    // Without a thread the objects stay until the process ends.
    let _ = std::thread::Builder::new().name("cuda-objects".into()).spawn(later);
}

fn set<H: Host>(h: &mut H, instance: u64, node: u64, (work, context): (Work<u64>, u64)) -> Done {
    match h.shared().with(|g| g.change_one(instance, node, &work, context))? {
        Some(found) => change(h, instance, found).map(drop).map_err(|why| why.code),
        None => Ok(()),
    }
}

fn set_kernel<H: Host>(h: &mut H, instance: u64, node: u64, args: KernelArgs) -> Done {
    let attributes = h.shared().with(|g| match g.work_of(instance, node)? {
        Work::Kernel(k) => Ok(k.attributes.clone()),
        _ => Err(INVALID),
    })?;
    let work = kernel(h, args, attributes)?;
    set(h, instance, node, work)
}

/// Changes a kernel of an instance, in the form of CUDA 10.
pub fn cuGraphExecKernelNodeSetParams<H: Host>(h: &mut H, instance: u64, node: u64, p: KernelArgs) -> Result<(), Code> {
    set_kernel(h, instance, node, p)
}

/// Changes a kernel of an instance.
pub fn cuGraphExecKernelNodeSetParams_v2<H: Host>(h: &mut H, instance: u64, node: u64, p: KernelArgs) -> Result<(), Code> {
    set_kernel(h, instance, node, p)
}

macro_rules! sets {
    ($($(#[$doc:meta])* $name:ident($($p:ident: $t:ty),*) $work:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name<H: Host>(h: &mut H, instance: u64, node: u64, $($p: $t),*) -> Result<(), Code> {
            let work = checked(h, $work)?;
            set(h, instance, node, work)
        }
    )*};
}
sets! {
    /// Changes a copy of an instance.
    cuGraphExecMemcpyNodeSetParams(p: Copy3, _context: u64) Work::Copy(p);
    /// Changes a fill of an instance.
    cuGraphExecMemsetNodeSetParams(p: Fill, _context: u64) Work::Fill(p);
    /// Changes a host function of an instance.
    cuGraphExecHostNodeSetParams(p: HostCall) Work::Host(p);
    /// Changes the event that an instance records.
    cuGraphExecEventRecordNodeSetEvent(event: u64) Work::EventRecord(event);
    /// Changes the event that an instance waits for.
    cuGraphExecEventWaitNodeSetEvent(event: u64) Work::EventWait(event);
    /// Changes memory operations of an instance.
    cuGraphExecBatchMemOpNodeSetParams(p: Vec<[u64; 6]>) Work::MemOps(p);
}

/// Changes everything in a child graph of an instance.
pub fn cuGraphExecChildGraphNodeSetParams<H: Host>(h: &mut H, instance: u64, node: u64, child: u64) -> Result<(), Code> {
    let update = h.shared().with(|g| {
        g.store.graph(child)?;
        g.change_child(instance, node, child)
    })?;
    carry_out(h, instance, update).map_err(|why| why.code)
}

/// Changes a node of any kind of an instance.
pub fn cuGraphExecNodeSetParams<H: Host>(h: &mut H, instance: u64, node: u64, p: AnyParams) -> Result<(), Code> {
    match p {
        AnyParams::Kernel(args) => set_kernel(h, instance, node, args),
        AnyParams::Child { graph, .. } => cuGraphExecChildGraphNodeSetParams(h, instance, node, graph),
        other => {
            let work = any_work(h, node, other)?;
            set(h, instance, node, work)
        }
    }
}

/// Enables or disables a node of an instance.
pub fn cuGraphNodeSetEnabled<H: Host>(h: &mut H, instance: u64, node: u64, on: c_uint) -> Result<(), Code> {
    let on = on != 0;
    let (at, was_on) = h.shared().with(|g| g.switch(instance, node))?;
    if was_on != on {
        h.enable(instance, at, on)?;
        h.shared().with(|g| g.switched(instance, at, on));
    }
    Ok(())
}

/// Whether an instance runs a node.
pub fn cuGraphNodeGetEnabled<H: Host>(h: &mut H, instance: u64, node: u64) -> Result<c_uint, Code> {
    let (_, on) = h.shared().with(|g| g.switch(instance, node))?;
    Ok(c_uint::from(on))
}

fn update<H: Host>(h: &mut H, instance: CUgraphExec, graph: CUgraph) -> Result<(), Refusal> {
    let update = h.shared().with(|g| g.change_all(instance as u64, graph as u64))?;
    carry_out(h, instance as u64, update)
}

/// Updates an instance from a graph, in the form before CUDA 12.
pub fn cuGraphExecUpdate<H: Host>(
    h: &mut H,
    instance: CUgraphExec,
    graph: CUgraph,
    node: OutPtr<CUgraphNode>,
    result: OutPtr<u32>,
) -> Done {
    let outcome = update(h, instance, graph);
    let why = outcome.err();
    node.write_if_wanted(why.map_or(0, |w| w.node) as CUgraphNode);
    result.write(why.map_or(0, |w| w.result))?;
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
    info: OutPtr<CUgraphExecUpdateResultInfo>,
) -> Done {
    if info.is_null() {
        return Err(INVALID);
    }
    let why = update(h, instance, graph).err();
    let (result, node, from) = why.map_or((0, 0, 0), |w| (w.result, w.node, w.from));
    info.cast().write(ResultInfo { result, node, from })?;
    why.map_or(Ok(()), |w| Err(w.code))
}

/// Prepares the next launch of an instance.
pub fn cuGraphUpload<H: Host>(h: &mut H, instance: u64, stream: u64) -> Result<(), Code> {
    h.shared().with(|g| g.instance(instance).map(drop))?;
    let s = h.stream(stream)?;
    if h.shared().capturing() {
        h.shared().forbid_on(&s)?;
    }
    h.upload(instance, stream)
}

/// Launches an instance.
pub fn cuGraphLaunch<H: Host>(h: &mut H, instance: u64, stream: u64) -> Result<(), Code> {
    if h.shared().capturing() {
        let s = h.stream(stream)?;
        if h.shared().in_capture(&s)? {
            return capture(h, &s, instance);
        }
    }
    if !h.shared().allocating() {
        return h.launch(instance, stream);
    }
    h.shared().with(|g| g.check_launch(instance))?;
    h.launch(instance, stream)?;
    h.shared().with(|g| g.launched(instance));
    Ok(())
}

/// A launch in a capturing stream becomes a child graph.
fn capture<H: Host>(h: &H, stream: &crate::graph::Stream, instance: u64) -> Done {
    h.shared().with(|g| {
        if g.instance(instance)?.effect.is_memory() {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        let copy = g.copy_instance(instance)?;
        let taken = g.add_captured(stream, Work::Child(copy));
        if taken != Ok(true) {
            g.drop_graph(copy);
        }
        taken.map(drop)
    })
}

/// Destroys an instance; a running launch continues.
pub fn cuGraphExecDestroy<H: Host>(h: &mut H, instance: u64) -> Result<(), Code> {
    let context = h.shared().with(|g| g.instance(instance).map(|i| i.context))?;
    h.end_instance(instance)?;
    let held = h.shared().with(|g| g.drop_instance(instance));
    release_later(h, context, held);
    sweep(h);
    Ok(())
}

/// The instances of a context that is destroyed.
pub fn instances_in<H: Host>(h: &H, context: u64) -> Vec<u64> {
    h.shared().with(|g| g.instances_in(context))
}
