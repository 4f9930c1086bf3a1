//! The structures of cuda.h that graph calls use, with enums as plain numbers, since a C program can store any value,
//! and access to them through pointers.

use crate::answer::structs;
use crate::code::{self, Code};
use crate::copy::{copy_3d, write_copy_3d};
use crate::launch_args::{ExtraParams, KernelParams};
use crate::ops::MAX_PARAM_BYTES;
use crate::pointer::{InOutPtr, InPtr, OutPtr, Plain};
use crate::sys;
use crate::work::{After, Attribute, Copy3, Edge, Fill, HostCall, Kernel, MemAlloc, Params, STREAM_ATTRIBUTE_BYTES, Work};
use std::ffi::c_void;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// Nodes with their edges; without edge data they are plain edges.
pub fn with_edges(nodes: Vec<u64>, edges: Option<Vec<Edge>>) -> After<u64> {
    match edges {
        Some(edges) => nodes.into_iter().zip(edges).collect(),
        None => nodes.into_iter().map(|node| (node, Edge::default())).collect(),
    }
}

/// Nodes with their edges; without an array of edge data they are plain edges.
///
/// # Errors
/// `INVALID_VALUE` for null, and for edge data that is not valid.
pub fn nodes(nodes: InPtr<sys::CUgraphNode>, data: InPtr<sys::CUgraphEdgeData>, count: usize) -> Result<After<u64>, Code> {
    let nodes = nodes.elements(count)?.map(|n| n as u64);
    if data.is_null() {
        return Ok(nodes.map(|node| (node, Edge::default())).collect());
    }
    nodes.zip(data.elements(count)?).map(|(node, e)| Ok((node, edge(e)?))).collect()
}

/// An array of edge data.
///
/// # Errors
/// `INVALID_VALUE` for null, and for edge data that is not valid.
pub fn edges(from: InPtr<sys::CUgraphEdgeData>, count: usize) -> Result<Vec<Edge>, Code> {
    from.elements(count)?.map(edge).collect()
}

fn edge(e: sys::CUgraphEdgeData) -> Result<Edge, Code> {
    let fine = e.reserved == [0; 5];
    fine.then_some(Edge { from_port: e.from_port, to_port: e.to_port, kind: e.type_ }).ok_or(INVALID)
}

/// `CUDA_KERNEL_NODE_PARAMS` in both versions: the first one ends before `kern`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawKernel {
    func: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
}

/// What follows in the second version.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawKernel2 {
    first: RawKernel,
    kernel: u64,
    context: u64,
}

// SAFETY: numbers and pointers.
unsafe impl Plain for RawKernel {}
// SAFETY: as above.
unsafe impl Plain for RawKernel2 {}

const _: () = assert!(size_of::<RawKernel>() == size_of::<sys::CUDA_KERNEL_NODE_PARAMS_v1>());
const _: () = assert!(size_of::<RawKernel2>() == size_of::<sys::CUDA_KERNEL_NODE_PARAMS>());

/// The program's arguments for a kernel node; reading the parameters needs the function's layout.
#[derive(Debug)]
pub struct KernelArgs {
    /// The function, or the kernel that replaces it.
    pub function: u64,
    raw: RawKernel,
}

/// Reads the first version.
fn kernel_1(p: InPtr<sys::CUDA_KERNEL_NODE_PARAMS_v1>) -> Result<KernelArgs, Code> {
    let raw = p.cast::<RawKernel>().read()?;
    Ok(KernelArgs { function: raw.func, raw })
}

/// Reads the second version, in which a kernel of a library may replace the function.
fn kernel_2(p: InPtr<sys::CUDA_KERNEL_NODE_PARAMS>) -> Result<KernelArgs, Code> {
    let raw = p.cast::<RawKernel2>().read()?;
    let function = if raw.first.func == 0 { raw.kernel } else { raw.first.func };
    Ok(KernelArgs { function, raw: raw.first })
}

impl KernelArgs {
    /// The kernel with its parameters by value.
    pub fn kernel(&self, layout: &[(u32, u32)], attributes: Vec<Attribute>) -> Result<Kernel, Code> {
        // SAFETY: what the program has passed for this function, by the call that has read it and uses it now.
        let (params, extra) = unsafe { (KernelParams::new(self.raw.params), ExtraParams::new(self.raw.extra)) };
        let params = pack(layout, params, extra)?;
        let (grid, block, shared) = (self.raw.grid, self.raw.block, self.raw.shared);
        Ok(Kernel { function: self.function, grid, block, shared, attributes, params })
    }
}

/// Copies the parameters of a kernel, each to its offset: from an array of pointers, or from the one buffer of `extra`.
fn pack(layout: &[(u32, u32)], params: KernelParams, extra: ExtraParams) -> Result<Params, Code> {
    if !extra.is_null() {
        if !params.is_null() {
            return Err(INVALID);
        }
        let (buffer, size) = extra.buffer()?;
        if size > MAX_PARAM_BYTES {
            return Err(INVALID);
        }
        return buffer.bytes(size).map(Params::from_slice);
    }
    let mut bytes = Params::new();
    if !layout.is_empty() && params.is_null() {
        return Err(INVALID);
    }
    for ((offset, _), value) in layout.iter().zip(params.values(layout)) {
        let (from, to) = (*offset as usize, *offset as usize + value.len());
        if to > MAX_PARAM_BYTES {
            return Err(INVALID);
        }
        if bytes.len() < to {
            bytes.resize(to, 0);
        }
        bytes[from..to].copy_from_slice(value);
    }
    Ok(bytes)
}

/// A kernel node's parameters for the program: the structure, and the targets of its pointers, which must be kept as
/// long as the node.
pub fn raw_kernel(k: &Kernel, function: u64, layout: &[(u32, u32)]) -> (RawKernel, Vec<Box<[u64]>>) {
    let mut values = vec![0u64; k.params.len().div_ceil(8)].into_boxed_slice();
    for (word, bytes) in values.iter_mut().zip(k.params.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(eight);
    }
    let pointers: Box<[u64]> = layout.iter().map(|(offset, _)| values.as_ptr() as u64 + u64::from(*offset)).collect();
    let params = if pointers.is_empty() { std::ptr::null_mut() } else { pointers.as_ptr().cast_mut().cast() };
    let raw = RawKernel { func: function, grid: k.grid, block: k.block, shared: k.shared, params, extra: std::ptr::null_mut() };
    (raw, vec![values, pointers])
}

/// `CUDA_MEMSET_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawFill {
    dst: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

// SAFETY: numbers.
unsafe impl Plain for RawFill {}
const _: () = assert!(size_of::<RawFill>() == size_of::<sys::CUDA_MEMSET_NODE_PARAMS>());

/// Reads a fill.
fn fill(p: InPtr<sys::CUDA_MEMSET_NODE_PARAMS>) -> Result<Fill, Code> {
    let f = p.cast::<RawFill>().read()?;
    if !matches!(f.element, 1 | 2 | 4) || f.width == 0 || f.height == 0 {
        return Err(INVALID);
    }
    Ok(Fill {
        dst: f.dst,
        pitch: f.pitch as u64,
        value: f.value,
        element: f.element,
        width: f.width as u64,
        rows: f.height as u64,
    })
}

/// Writes a fill.
fn write_fill(to: OutPtr<sys::CUDA_MEMSET_NODE_PARAMS>, f: &Fill) -> Result<(), Code> {
    let (pitch, width, height) = (f.pitch as usize, f.width as usize, f.rows as usize);
    to.cast().write(RawFill { dst: f.dst, pitch, value: f.value, element: f.element, width, height })
}

/// Reads a host function.
fn host(p: InPtr<sys::CUDA_HOST_NODE_PARAMS>) -> Result<HostCall, Code> {
    let [function, data] = p.cast::<[u64; 2]>().read()?;
    if function == 0 { Err(INVALID) } else { Ok(HostCall { function, data }) }
}

/// Writes a host function.
fn write_host(to: OutPtr<sys::CUDA_HOST_NODE_PARAMS>, h: &HostCall) -> Result<(), Code> {
    to.cast().write([h.function, h.data])
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawMemOps {
    context: u64,
    count: u32,
    array: *const [u64; 6],
    flags: u32,
}

// SAFETY: numbers and a pointer.
unsafe impl Plain for RawMemOps {}
const _: () = assert!(size_of::<RawMemOps>() == size_of::<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>());
const _: () = assert!(size_of::<[u64; 6]>() == size_of::<sys::CUstreamBatchMemOpParams>());

/// Reads a batch of memory operations.
fn mem_ops(p: InPtr<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>) -> Result<Vec<[u64; 6]>, Code> {
    /// Maximum number of operations in one batch (CUDA driver API reference, `cuStreamBatchMemOp`).
    const MAX_OPERATIONS: u32 = 256;
    let raw = p.cast::<RawMemOps>().read()?;
    if raw.flags != 0 || raw.count > MAX_OPERATIONS {
        return Err(INVALID);
    }
    // SAFETY: by CUDA's contract the program's structure points to so many operations.
    unsafe { InPtr::new(raw.array) }.read_list(raw.count as usize)
}

impl RawMemOps {
    /// The parameters for the program, and the target of their pointer, which must be kept as long as the node.
    pub fn of(ops: &[[u64; 6]]) -> (RawMemOps, Box<[u64]>) {
        let words: Box<[u64]> = ops.concat().into_boxed_slice();
        (RawMemOps { context: 0, count: ops.len() as u32, array: words.as_ptr().cast(), flags: 0 }, words)
    }
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS` with its enums as numbers; both versions are the same.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawAlloc {
    /// `CUmemAllocationType`
    pub kind: u32,
    /// `CUmemAllocationHandleType`, a set of bits.
    pub handle_types: u32,
    /// `CUmemLocationType`
    pub location: u32,
    /// The device.
    pub device: i32,
    /// Security attributes of Windows.
    pub win32: usize,
    /// Maximum size of a pool: not used.
    pub most: usize,
    /// Reserved.
    pub rest: [u64; 7],
    /// Array of `CUmemAccessDesc`.
    access: *const [u32; 3],
    /// Its length.
    access_count: usize,
    /// Bytes to allocate.
    pub bytes: usize,
    /// The address, which is returned.
    pub address: u64,
}

const _: () = assert!(size_of::<RawAlloc>() == size_of::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>());

// SAFETY: numbers and a pointer.
unsafe impl Plain for RawAlloc {}

impl RawAlloc {
    /// What may access the memory: type and number of each location, and how.
    pub fn access(&self) -> Result<Vec<[u32; 3]>, Code> {
        // SAFETY: by CUDA's contract the program's structure points to so many descriptions, during the call that has read it.
        unsafe { InPtr::new(self.access) }.read_list(self.access_count)
    }

    /// The same with the address that is returned.
    pub fn at(self, address: u64) -> RawAlloc {
        RawAlloc { address, ..self }
    }
}

/// The parameters of an allocation, for the program.
fn raw_alloc(m: &MemAlloc) -> RawAlloc {
    RawAlloc {
        kind: 1,
        handle_types: 0,
        location: 1,
        device: m.device,
        win32: 0,
        most: 0,
        rest: [0; 7],
        access: std::ptr::null(),
        access_count: 0,
        bytes: m.bytes as usize,
        address: m.address,
    }
}

/// `CUDA_CONDITIONAL_NODE_PARAMS` with its enum as a number.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawConditional {
    /// Handle of the condition.
    pub handle: u64,
    /// `CUgraphConditionalNodeType`
    pub kind: u32,
    /// Number of graphs.
    pub size: u32,
    /// The graphs, which are returned.
    pub graphs: *const u64,
    /// The context.
    pub context: u64,
}

// SAFETY: numbers and a pointer.
unsafe impl Plain for RawConditional {}
const _: () = assert!(size_of::<RawConditional>() == size_of::<sys::CUDA_CONDITIONAL_NODE_PARAMS>());

/// The parameters of a condition within those of a node of any kind.
pub fn conditional_of_any(p: InOutPtr<sys::CUgraphNodeParams>) -> InOutPtr<RawConditional> {
    p.part::<_, UNION>()
}

/// The parameters of an allocation within those of a node of any kind.
pub fn alloc_of_any(p: InOutPtr<sys::CUgraphNodeParams>) -> InOutPtr<RawAlloc> {
    p.part::<_, UNION>()
}

/// Where the parts of `CUgraphNodeParams` are: type, three reserved words, then the union.
const UNION: usize = 16;

/// Parameters of a node of any kind.
#[derive(Debug)]
pub enum AnyParams {
    /// A kernel.
    Kernel(KernelArgs),
    /// A graph to embed.
    Child {
        /// The graph.
        graph: u64,
        /// Whether the node takes the graph itself, not a copy.
        moved: bool,
    },
    /// An allocation, whose parameters are read and written in place.
    Alloc,
    /// Frees an allocation.
    Free(u64),
    /// A condition with graphs, whose parameters are read and written in place.
    Conditional,
    /// Other work.
    Ready(Work<u64>),
}

/// Reads the parameters of a node of any kind.
pub fn any(p: InPtr<sys::CUgraphNodeParams>) -> Result<AnyParams, Code> {
    let [kind, a, b, c] = p.cast::<[u32; 4]>().read()?;
    if [a, b, c] != [0; 3] {
        return Err(INVALID);
    }
    let handle = || p.part::<u64, UNION>().read();
    Ok(match kind {
        0 => AnyParams::Kernel(kernel_2(p.part::<_, UNION>())?),
        1 => {
            let [flags, _] = p.part::<[u32; 2], UNION>().read()?;
            // After flags and context.
            let copy = copy_3d(p.part::<_, { UNION + 16 }>())?;
            if flags != 0 {
                return Err(INVALID);
            }
            AnyParams::Ready(Work::Copy(copy))
        }
        2 => AnyParams::Ready(Work::Fill(fill(p.part::<_, UNION>())?)),
        3 => AnyParams::Ready(Work::Host(host(p.part::<_, UNION>())?)),
        4 => {
            let ownership = p.part::<u32, { UNION + 8 }>().read()?;
            if ownership > 1 {
                return Err(INVALID);
            }
            AnyParams::Child { graph: handle()?, moved: ownership == 1 }
        }
        5 => AnyParams::Ready(Work::Empty),
        6 => AnyParams::Ready(Work::EventWait(handle()?)),
        7 => AnyParams::Ready(Work::EventRecord(handle()?)),
        10 => AnyParams::Alloc,
        11 => AnyParams::Free(handle()?),
        13 => AnyParams::Conditional,
        12 => AnyParams::Ready(Work::MemOps(mem_ops(p.part::<_, UNION>())?)),
        // Semaphores.
        8 | 9 => return Err(code::ERROR_NOT_SUPPORTED),
        _ => return Err(INVALID),
    })
}

/// The value of a launch attribute.
pub type AttributeValue = [u8; STREAM_ATTRIBUTE_BYTES];

structs! { read
    CUDA_KERNEL_NODE_PARAMS_v1 as KernelArgs = kernel_1;
    CUDA_KERNEL_NODE_PARAMS as KernelArgs = kernel_2;
    CUDA_MEMCPY3D as Copy3 = copy_3d;
    CUDA_MEMSET_NODE_PARAMS as Fill = fill;
    CUDA_HOST_NODE_PARAMS as HostCall = host;
    CUDA_BATCH_MEM_OP_NODE_PARAMS as Vec<[u64; 6]> = mem_ops;
    CUgraphNodeParams as AnyParams = any;
    CUgraphEdgeData as Edge = |p: InPtr<Self>| p.read().and_then(edge);
    CUkernelNodeAttrValue as AttributeValue = |p: InPtr<Self>| p.cast().read();
    CUstreamCaptureMode as u32 = |p: InPtr<Self>| p.cast().read();
}
structs! { write
    CUDA_KERNEL_NODE_PARAMS_v1 as RawKernel = |to: OutPtr<Self>, raw: &RawKernel| to.cast().write(*raw);
    CUDA_KERNEL_NODE_PARAMS as (RawKernel, u64) = |to: OutPtr<Self>, (first, kernel): &(RawKernel, u64)| {
        to.cast().write(RawKernel2 { first: *first, kernel: *kernel, context: 0 })
    };
    CUDA_MEMCPY3D as Copy3 = write_copy_3d;
    CUDA_MEMSET_NODE_PARAMS as Fill = write_fill;
    CUDA_HOST_NODE_PARAMS as HostCall = write_host;
    CUDA_BATCH_MEM_OP_NODE_PARAMS as RawMemOps = |to: OutPtr<Self>, raw: &RawMemOps| to.cast().write(*raw);
    CUDA_MEM_ALLOC_NODE_PARAMS as MemAlloc = |to: OutPtr<Self>, alloc: &MemAlloc| to.cast().write(raw_alloc(alloc));
    CUkernelNodeAttrValue as AttributeValue = |to: OutPtr<Self>, value: &AttributeValue| to.cast().write(*value);
    CUstreamCaptureMode as u32 = |to: OutPtr<Self>, mode: &u32| to.cast().write(*mode);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;

    #[test]
    fn an_empty_buffer_of_a_node_may_be_none() {
        let key = |n: usize| std::ptr::without_provenance_mut::<c_void>(n);
        let mut size = 0usize;
        let none = std::ptr::null_mut();
        for list in [vec![key(1), none, key(2), (&raw mut size).cast(), key(0)], vec![key(2), (&raw mut size).cast(), key(0)]] {
            let mut list = list;
            // SAFETY: keys and values alternate until the key that ends them; a null array of parameters.
            let (params, extra) = unsafe { (KernelParams::new(std::ptr::null_mut()), ExtraParams::new(list.as_mut_ptr())) };
            assert_eq!(pack(&[], params, extra), Ok(Params::new()));
        }
        size = 4;
        let mut list = [key(1), none, key(2), (&raw mut size).cast(), key(0)];
        // SAFETY: as above.
        let (params, extra) = unsafe { (KernelParams::new(std::ptr::null_mut()), ExtraParams::new(list.as_mut_ptr())) };
        assert_eq!(pack(&[], params, extra), Err(INVALID));
    }
}
