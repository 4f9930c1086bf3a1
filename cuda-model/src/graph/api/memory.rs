//! Memory of graphs.

use super::{Done, Host, INVALID, work_of};
use crate::graph::{Graphs, Stream};
use cuda_api::code::{self, Code};
use cuda_api::flags::{ACCESS_READ_WRITE, ALLOCATION_PINNED, LOCATION_DEVICE};
use cuda_api::graph::{RawAlloc, nodes, with_edges};
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys::{CUDA_MEM_ALLOC_NODE_PARAMS, CUdevice, CUdeviceptr, CUgraph, CUgraphNode};
use cuda_api::work::{After, MemAlloc, Work};

/// Frees what can no longer be used.
pub(super) fn sweep<H: Host>(h: &mut H) {
    if !h.shared().allocating() {
        return;
    }
    for address in h.shared().with(|g| g.memories.unused(&g.store)) {
        // Fails only if the context has been destroyed or has failed, and the memory with it.
        let _ = h.release(address);
    }
    for (home, conditions) in h.shared().with(Graphs::unused_conditions) {
        // As above.
        let _ = h.end_conditions(conditions.context, home, &conditions.handles);
    }
}

/// Allocates memory, and frees it again unless `used` succeeds.
fn allocate<H: Host>(h: &mut H, device: i32, bytes: u64, used: impl FnOnce(&mut H, MemAlloc, u64) -> Done) -> Result<u64, Code> {
    let (address, context) = h.allocate(device, bytes)?;
    let alloc = MemAlloc { address, bytes, device };
    h.shared().with(|g| g.memories.made(alloc, context));
    let outcome = used(h, alloc, context);
    h.shared().with(|g| g.memories.arrived(address));
    if outcome.is_err() {
        sweep(h);
    }
    outcome.map(|()| address)
}

pub(super) fn add_alloc<H: Host>(
    h: &mut H,
    to: OutPtr<CUgraphNode>,
    graph: u64,
    after: After<u64>,
    params: InOutPtr<RawAlloc>,
) -> Done {
    let p: RawAlloc = params.read()?;
    h.shared().with(|g| g.store.graph(graph).map(drop))?;
    // Only memory of a device that is not exported.
    if p.kind != ALLOCATION_PINNED || p.location != LOCATION_DEVICE || p.handle_types != 0 || p.win32 != 0 || p.bytes == 0 {
        return Err(INVALID);
    }
    for access in p.access()? {
        if access != [LOCATION_DEVICE, p.device as u32, ACCESS_READ_WRITE] {
            return Err(cuda_api::code::ERROR_NOT_SUPPORTED);
        }
    }
    let address = allocate(h, p.device, p.bytes as u64, |h, alloc, context| {
        to.write(std::ptr::null_mut())?;
        to.write(super::add(h, graph, after, (Work::MemAlloc(alloc), context))? as CUgraphNode)
    })?;
    params.write(p.at(address))
}

/// Checks that a graph may free an address.
pub(super) fn check_free<H: Host>(h: &mut H, graph: u64, address: u64) -> Done {
    h.shared().with(|g| g.can_free(graph, address))
}

pub(super) fn add_free<H: Host>(h: &mut H, graph: u64, after: After<u64>, address: u64) -> Result<u64, Code> {
    super::add(h, graph, after, (Work::MemFree(address), 0))
}

impl Graphs {
    /// Checks whether a graph may free an address: one allocated by a graph that it does not free already.
    fn can_free(&self, graph: u64, address: u64) -> Result<(), Code> {
        let twice = |n: &super::Node| n.work == Work::MemFree(address);
        if !self.memories.knows(address) || self.store.any(graph, &twice) {
            return Err(INVALID);
        }
        Ok(())
    }
}

/// Adds memory that the graph allocates.
pub fn cuGraphAddMemAllocNode<H: Host>(
    h: &mut H,
    to: OutPtr<CUgraphNode>,
    graph: CUgraph,
    dependencies: InPtr<CUgraphNode>,
    count: usize,
    params: InOutPtr<CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> Done {
    let after = nodes(dependencies, InPtr::null(), count)?;
    add_alloc(h, to, graph as u64, after, params.cast())
}

/// Parameters of a node that allocates.
pub fn cuGraphMemAllocNodeGetParams<H: Host>(h: &mut H, node: u64) -> Result<MemAlloc, Code> {
    work_of(h, node, |w| if let Work::MemAlloc(m) = w { Some(*m) } else { None })
}

/// Adds a free of memory that a graph allocates.
pub fn cuGraphAddMemFreeNode<H: Host>(h: &mut H, graph: u64, after: Vec<u64>, address: u64) -> Result<u64, Code> {
    h.shared().with(|g| g.store.graph(graph).map(drop))?;
    check_free(h, graph, address)?;
    add_free(h, graph, with_edges(after, None), address)
}

/// The address that a node frees.
pub fn cuGraphMemFreeNodeGetParams<H: Host>(h: &mut H, node: u64) -> Result<CUdeviceptr, Code> {
    work_of(h, node, |w| if let Work::MemFree(a) = w { Some(*a) } else { None })
}

fn check_device<H: Host>(h: &mut H, device: CUdevice) -> Done {
    if h.is_device(device) { Ok(()) } else { Err(code::ERROR_INVALID_DEVICE) }
}

/// Does nothing: unused memory is never reserved.
pub fn cuDeviceGraphMemTrim<H: Host>(h: &mut H, device: CUdevice) -> Result<(), Code> {
    check_device(h, device)?;
    sweep(h);
    Ok(())
}

/// How much memory graphs have on a device.
pub fn cuDeviceGetGraphMemAttribute<H: Host>(h: &mut H, device: CUdevice, attribute: u32) -> Result<u64, Code> {
    check_device(h, device)?;
    h.shared().with(|g| g.memories.level(device, attribute))
}

/// Resets a high watermark, with the value zero.
pub fn cuDeviceSetGraphMemAttribute<H: Host>(h: &mut H, device: CUdevice, attribute: u32, value: u64) -> Result<(), Code> {
    check_device(h, device)?;
    if value != 0 {
        return Err(INVALID);
    }
    h.shared().with(|g| g.memories.reset(device, attribute))
}

/// Captures an allocation in a stream; `None`: the stream is not being captured.
pub fn capture_alloc<H: Host>(h: &mut H, stream: &Stream, bytes: u64) -> Result<Option<u64>, Code> {
    if !h.shared().in_capture(stream)? {
        return Ok(None);
    }
    if bytes == 0 {
        return Err(INVALID);
    }
    let device = h.ordinal(stream.context);
    allocate(h, device, bytes, |h, alloc, _| h.shared().captured(stream, Work::MemAlloc(alloc)).map(drop)).map(Some)
}

/// Captures a free in a stream; false: the stream is not being captured.
pub fn capture_free<H: Host>(h: &mut H, stream: &Stream, address: u64) -> Result<bool, Code> {
    h.shared().with(|g| {
        let Some(graph) = g.capture_graph(stream)? else { return Ok(false) };
        g.can_free(graph, address)?;
        g.add_captured(stream, Work::MemFree(address))
    })
}

/// Frees an address outside of graphs; false: it was not allocated by a graph.
pub fn free_of_graph<H: Host>(h: &mut H, address: u64) -> Result<bool, Code> {
    if !h.shared().allocating() {
        return Ok(false);
    }
    let ours = h.shared().with(|g| g.memories.free(address))?;
    sweep(h);
    Ok(ours)
}
