//! Querying and changing the parameters of nodes.

use super::{Done, Host, INVALID, any_work, attributes_of, checked, kernel, set_work, work_of};
use crate::graph::raw::{self, RawKernel};
use cuda_api::code::{self, Code};
use cuda_api::copy::{copy_3d, give_copy_3d};
use cuda_api::ops::ATTRIBUTE_BYTES;
use cuda_api::pointer::{give, read};
use cuda_api::sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUevent, CUgraphNode, CUgraphNodeParams, CUkernelNodeAttrValue,
};
use cuda_api::work::{Attribute, Kernel, Work, attribute_id};
use std::ffi::c_void;

/// The parameters of a kernel node; the targets of their pointers are kept with the node.
fn raw_kernel<H: Host>(h: &mut H, node: CUgraphNode) -> Result<(RawKernel, u64), Code> {
    let k = kernel_of(h, node)?;
    let layout = h.layout(k.function)?;
    let (function, kernel) = h.names(k.function)?;
    let (raw, lent) = raw::raw_kernel(&k, function, &layout);
    h.shared().with(|g| g.store.node_mut(node as u64).map(|n| n.lent = lent))?;
    Ok((raw, kernel))
}

fn kernel_of<H: Host>(h: &H, node: CUgraphNode) -> Result<Kernel, Code> {
    work_of(h, node as u64, |w| if let Work::Kernel(k) = w { Some(k.clone()) } else { None })
}

/// Parameters of a kernel node, in the form of CUDA 10.
pub fn cuGraphKernelNodeGetParams<H: Host>(h: &mut H, node: CUgraphNode, to: *mut c_void) -> Done {
    let (raw, _) = raw_kernel(h, node)?;
    give(to.cast(), raw)
}

/// Parameters of a kernel node.
pub fn cuGraphKernelNodeGetParams_v2<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUDA_KERNEL_NODE_PARAMS) -> Done {
    // The runtime identifies its functions by the kernel.
    let (raw, kernel) = raw_kernel(h, node)?;
    raw::give_kernel_2(to, raw, kernel)
}

/// Changes a kernel node, in the form of CUDA 10.
pub fn cuGraphKernelNodeSetParams<H: Host>(h: &mut H, node: CUgraphNode, p: *const c_void) -> Done {
    let attributes = attributes_of(h, node as u64)?;
    let work = kernel(h, raw::kernel_1(p.cast())?, attributes)?;
    set_work(h, node as u64, work)
}

/// Changes a kernel node.
pub fn cuGraphKernelNodeSetParams_v2<H: Host>(h: &mut H, node: CUgraphNode, p: *const CUDA_KERNEL_NODE_PARAMS) -> Done {
    let attributes = attributes_of(h, node as u64)?;
    let work = kernel(h, raw::kernel_2(p)?, attributes)?;
    set_work(h, node as u64, work)
}

/// Parameters of a copy node.
pub fn cuGraphMemcpyNodeGetParams<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUDA_MEMCPY3D) -> Done {
    let c = work_of(h, node as u64, |w| if let Work::Copy(c) = w { Some(*c) } else { None })?;
    give_copy_3d(to, &c)
}

/// Parameters of a fill node.
pub fn cuGraphMemsetNodeGetParams<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUDA_MEMSET_NODE_PARAMS) -> Done {
    let f = work_of(h, node as u64, |w| if let Work::Fill(f) = w { Some(*f) } else { None })?;
    raw::give_fill(to, &f)
}

/// Parameters of a host node.
pub fn cuGraphHostNodeGetParams<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUDA_HOST_NODE_PARAMS) -> Done {
    let call = work_of(h, node as u64, |w| if let Work::Host(c) = w { Some(*c) } else { None })?;
    raw::give_host(to, &call)
}

/// Event of a record node.
pub fn cuGraphEventRecordNodeGetEvent<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUevent) -> Done {
    give(to, work_of(h, node as u64, |w| if let Work::EventRecord(e) = w { Some(*e) } else { None })? as CUevent)
}

/// Event of a wait node.
pub fn cuGraphEventWaitNodeGetEvent<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUevent) -> Done {
    give(to, work_of(h, node as u64, |w| if let Work::EventWait(e) = w { Some(*e) } else { None })? as CUevent)
}

/// Parameters of a node of memory operations.
pub fn cuGraphBatchMemOpNodeGetParams<H: Host>(h: &mut H, node: CUgraphNode, to: *mut CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Done {
    let ops = work_of(h, node as u64, |w| if let Work::MemOps(m) = w { Some(m.clone()) } else { None })?;
    let lent = raw::give_mem_ops(to, &ops)?;
    h.shared().with(|g| g.store.node_mut(node as u64).map(|n| n.lent = vec![lent]))
}

macro_rules! sets {
    ($($(#[$doc:meta])* $name:ident($($p:ident: $t:ty),*) $work:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name<H: Host>(h: &mut H, node: CUgraphNode, $($p: $t),*) -> Done {
            let work = checked(h, $work)?;
            set_work(h, node as u64, work)
        }
    )*};
}
sets! {
    /// Changes a copy node.
    cuGraphMemcpyNodeSetParams(p: *const CUDA_MEMCPY3D) Work::Copy(copy_3d(p)?);
    /// Changes a fill node.
    cuGraphMemsetNodeSetParams(p: *const CUDA_MEMSET_NODE_PARAMS) Work::Fill(raw::fill(p)?);
    /// Changes a host node.
    cuGraphHostNodeSetParams(p: *const CUDA_HOST_NODE_PARAMS) Work::Host(raw::host(p)?);
    /// Changes the event of a record node.
    cuGraphEventRecordNodeSetEvent(event: CUevent) Work::EventRecord(event as u64);
    /// Changes the event of a wait node.
    cuGraphEventWaitNodeSetEvent(event: CUevent) Work::EventWait(event as u64);
    /// Changes a node of memory operations.
    cuGraphBatchMemOpNodeSetParams(p: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) Work::MemOps(raw::mem_ops(p)?);
}

/// Changes a node of any kind.
pub fn cuGraphNodeSetParams<H: Host>(h: &mut H, node: CUgraphNode, p: *mut CUgraphNodeParams) -> Done {
    let work = any_work(h, node as u64, raw::any(p)?)?;
    set_work(h, node as u64, work)
}

/// Bytes of an attribute's value, which follow its number and padding.
const VALUE: usize = ATTRIBUTE_BYTES - 8;

/// An attribute of a kernel node.
pub fn cuGraphKernelNodeGetAttribute<H: Host>(
    h: &mut H,
    node: CUgraphNode,
    attribute: u32,
    to: *mut CUkernelNodeAttrValue,
) -> Done {
    let known = kernel_of(h, node)?.attributes.iter().find(|a| attribute_id(a) == attribute).copied();
    let mut value = [0u8; VALUE];
    match known {
        Some(a) => value.copy_from_slice(&a[8..]),
        None if attribute == 0 || attribute > LAST_ATTRIBUTE => return Err(INVALID),
        // An attribute that was never set is zero.
        None => {}
    }
    give(to.cast(), value)
}

/// The last attribute of CUDA 13.0's header: `CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING`.
const LAST_ATTRIBUTE: u32 = 16;
/// `CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE`
const DEVICE_UPDATABLE: u32 = 13;

/// Changes an attribute of a kernel node.
pub fn cuGraphKernelNodeSetAttribute<H: Host>(
    h: &mut H,
    node: CUgraphNode,
    attribute: u32,
    p: *const CUkernelNodeAttrValue,
) -> Done {
    let value: [u8; VALUE] = read(p.cast())?;
    match attribute {
        DEVICE_UPDATABLE => return Err(code::ERROR_NOT_SUPPORTED),
        0 => return Err(INVALID),
        n if n > LAST_ATTRIBUTE => return Err(INVALID),
        _ => {}
    }
    let mut k = kernel_of(h, node)?;
    let mut one: Attribute = [0; ATTRIBUTE_BYTES];
    one[..4].copy_from_slice(&attribute.to_le_bytes());
    one[8..].copy_from_slice(&value);
    k.attributes.retain(|a| attribute_id(a) != attribute);
    k.attributes.push(one);
    let work = checked(h, Work::Kernel(k))?;
    set_work(h, node as u64, work)
}

/// Copies the attributes of one kernel node to another.
pub fn cuGraphKernelNodeCopyAttributes<H: Host>(h: &mut H, to: CUgraphNode, from: CUgraphNode) -> Done {
    let (mut k, attributes) = (kernel_of(h, to)?, kernel_of(h, from)?.attributes);
    k.attributes = attributes;
    let work = checked(h, Work::Kernel(k))?;
    set_work(h, to as u64, work)
}
