//! Querying and changing the parameters of nodes.

use super::{Host, INVALID, any_work, attributes_of, checked, kernel, set_work, work_of};
use cuda_api::code::{self, Code};
use cuda_api::flags::LAST_LAUNCH_ATTRIBUTE;
use cuda_api::graph::{self, AnyParams, AttributeValue, KernelArgs, RawKernel, RawMemOps};
use cuda_api::work::{ATTRIBUTE_BYTES, Attribute, Copy3, Fill, HostCall, Kernel, STREAM_ATTRIBUTE_BYTES, Work, attribute_id};

/// The parameters of a kernel node; the targets of their pointers are kept with the node.
fn raw_kernel<H: Host>(h: &mut H, node: u64) -> Result<(RawKernel, u64), Code> {
    let k = kernel_of(h, node)?;
    let layout = h.layout(k.function, |layout| Ok(layout.to_vec()))?;
    let (function, kernel) = h.names(k.function)?;
    let (raw, returned) = graph::raw_kernel(&k, function, &layout);
    h.shared().with(|g| g.store.node_mut(node).map(|n| n.returned = returned))?;
    Ok((raw, kernel))
}

fn kernel_of<H: Host>(h: &H, node: u64) -> Result<Kernel, Code> {
    work_of(h, node, |w| if let Work::Kernel(k) = w { Some(k.clone()) } else { None })
}

/// Parameters of a kernel node, in the form of CUDA 10.
pub fn cuGraphKernelNodeGetParams<H: Host>(h: &mut H, node: u64) -> Result<RawKernel, Code> {
    raw_kernel(h, node).map(|(raw, _)| raw)
}

/// Parameters of a kernel node.
pub fn cuGraphKernelNodeGetParams_v2<H: Host>(h: &mut H, node: u64) -> Result<(RawKernel, u64), Code> {
    // The runtime identifies its functions by the kernel.
    raw_kernel(h, node)
}

/// Changes a kernel node, in the form of CUDA 10.
pub fn cuGraphKernelNodeSetParams<H: Host>(h: &mut H, node: u64, p: KernelArgs) -> Result<(), Code> {
    let attributes = attributes_of(h, node)?;
    let work = kernel(h, p, attributes)?;
    set_work(h, node, work)
}

/// Changes a kernel node.
pub fn cuGraphKernelNodeSetParams_v2<H: Host>(h: &mut H, node: u64, p: KernelArgs) -> Result<(), Code> {
    let attributes = attributes_of(h, node)?;
    let work = kernel(h, p, attributes)?;
    set_work(h, node, work)
}

/// Parameters of a copy node.
pub fn cuGraphMemcpyNodeGetParams<H: Host>(h: &mut H, node: u64) -> Result<Copy3, Code> {
    work_of(h, node, |w| if let Work::Copy(c) = w { Some(*c) } else { None })
}

/// Parameters of a fill node.
pub fn cuGraphMemsetNodeGetParams<H: Host>(h: &mut H, node: u64) -> Result<Fill, Code> {
    work_of(h, node, |w| if let Work::Fill(f) = w { Some(*f) } else { None })
}

/// Parameters of a host node.
pub fn cuGraphHostNodeGetParams<H: Host>(h: &mut H, node: u64) -> Result<HostCall, Code> {
    work_of(h, node, |w| if let Work::Host(c) = w { Some(*c) } else { None })
}

/// Event of a record node.
pub fn cuGraphEventRecordNodeGetEvent<H: Host>(h: &mut H, node: u64) -> Result<u64, Code> {
    work_of(h, node, |w| if let Work::EventRecord(e) = w { Some(*e) } else { None })
}

/// Event of a wait node.
pub fn cuGraphEventWaitNodeGetEvent<H: Host>(h: &mut H, node: u64) -> Result<u64, Code> {
    work_of(h, node, |w| if let Work::EventWait(e) = w { Some(*e) } else { None })
}

/// Parameters of a node of memory operations.
pub fn cuGraphBatchMemOpNodeGetParams<H: Host>(h: &mut H, node: u64) -> Result<RawMemOps, Code> {
    let ops = work_of(h, node, |w| if let Work::MemOps(m) = w { Some(m.clone()) } else { None })?;
    let (raw, returned) = RawMemOps::of(&ops);
    h.shared().with(|g| g.store.node_mut(node).map(|n| n.returned = vec![returned]))?;
    Ok(raw)
}

macro_rules! sets {
    ($($(#[$doc:meta])* $name:ident($p:ident: $t:ty) $work:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name<H: Host>(h: &mut H, node: u64, $p: $t) -> Result<(), Code> {
            let work = checked(h, $work)?;
            set_work(h, node, work)
        }
    )*};
}
sets! {
    /// Changes a copy node.
    cuGraphMemcpyNodeSetParams(p: Copy3) Work::Copy(p);
    /// Changes a fill node.
    cuGraphMemsetNodeSetParams(p: Fill) Work::Fill(p);
    /// Changes a host node.
    cuGraphHostNodeSetParams(p: HostCall) Work::Host(p);
    /// Changes the event of a record node.
    cuGraphEventRecordNodeSetEvent(event: u64) Work::EventRecord(event);
    /// Changes the event of a wait node.
    cuGraphEventWaitNodeSetEvent(event: u64) Work::EventWait(event);
    /// Changes a node of memory operations.
    cuGraphBatchMemOpNodeSetParams(p: Vec<[u64; 6]>) Work::MemOps(p);
}

/// Changes a node of any kind.
pub fn cuGraphNodeSetParams<H: Host>(h: &mut H, node: u64, p: AnyParams) -> Result<(), Code> {
    let work = any_work(h, node, p)?;
    set_work(h, node, work)
}

/// An attribute of a kernel node.
pub fn cuGraphKernelNodeGetAttribute<H: Host>(h: &mut H, node: u64, attribute: u32) -> Result<AttributeValue, Code> {
    let known = kernel_of(h, node)?.attributes.iter().find(|a| attribute_id(a) == attribute).copied();
    let mut value = [0u8; STREAM_ATTRIBUTE_BYTES];
    match known {
        Some(a) => value.copy_from_slice(&a[8..]),
        None if attribute == 0 || attribute > LAST_LAUNCH_ATTRIBUTE => return Err(INVALID),
        // An attribute that was never set is zero.
        None => {}
    }
    Ok(value)
}

/// `CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE`
const DEVICE_UPDATABLE: u32 = 13;

/// Changes an attribute of a kernel node.
pub fn cuGraphKernelNodeSetAttribute<H: Host>(h: &mut H, node: u64, attribute: u32, value: AttributeValue) -> Result<(), Code> {
    match attribute {
        DEVICE_UPDATABLE => return Err(code::ERROR_NOT_SUPPORTED),
        0 => return Err(INVALID),
        n if n > LAST_LAUNCH_ATTRIBUTE => return Err(INVALID),
        _ => {}
    }
    let mut k = kernel_of(h, node)?;
    let mut one: Attribute = [0; ATTRIBUTE_BYTES];
    one[..4].copy_from_slice(&attribute.to_le_bytes());
    one[8..].copy_from_slice(&value);
    k.attributes.retain(|a| attribute_id(a) != attribute);
    k.attributes.push(one);
    let work = checked(h, Work::Kernel(k))?;
    set_work(h, node, work)
}

/// Copies the attributes of one kernel node to another.
pub fn cuGraphKernelNodeCopyAttributes<H: Host>(h: &mut H, to: u64, from: u64) -> Result<(), Code> {
    let (mut k, attributes) = (kernel_of(h, to)?, kernel_of(h, from)?.attributes);
    k.attributes = attributes;
    let work = checked(h, Work::Kernel(k))?;
    set_work(h, to, work)
}
