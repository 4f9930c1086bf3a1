//! The structures of cuda.h that graph calls use, with enums as plain numbers, since a C program can store any value,
//! and access to them through pointers.
//!
//! This relies on CUDA's contract: a pointer that is not null points to what the header specifies.

use crate::answer::structs;
use crate::code::{self, Code};
use crate::copy::{copy_3d, give_copy_3d};
use crate::ops::MAX_PARAM_BYTES;
use crate::pointer::{give, list, read};
use crate::sys;
use crate::work::{Attribute, Copy3, Edge, Fill, HostCall, Kernel, MemAlloc, STREAM_ATTRIBUTE_BYTES, Work};
use std::ffi::c_void;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// Nodes with their edges; without edge data they are plain edges.
pub fn with_edges(nodes: Vec<u64>, edges: Option<Vec<Edge>>) -> Vec<(u64, Edge)> {
    match edges {
        Some(edges) => nodes.into_iter().zip(edges).collect(),
        None => nodes.into_iter().map(|node| (node, Edge::default())).collect(),
    }
}

/// Nodes with their edges; without an array of edge data they are plain edges.
///
/// # Errors
/// `INVALID_VALUE` for null, and for edge data that is not valid.
pub fn nodes(nodes: *const sys::CUgraphNode, data: *const sys::CUgraphEdgeData, count: usize) -> Result<Vec<(u64, Edge)>, Code> {
    let nodes = list(nodes, count)?.into_iter().map(|n| n as u64).collect();
    let data = if data.is_null() { None } else { Some(edges(data, count)?) };
    Ok(with_edges(nodes, data))
}

/// An array of edge data.
///
/// # Errors
/// `INVALID_VALUE` for null, and for edge data that is not valid.
pub fn edges(from: *const sys::CUgraphEdgeData, count: usize) -> Result<Vec<Edge>, Code> {
    list(from, count)?.into_iter().map(edge).collect()
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
    params: *const *const u8,
    extra: *const usize,
}

/// What follows in the second version.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawKernel2 {
    first: RawKernel,
    kernel: u64,
    context: u64,
}

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
fn kernel_1(p: *const sys::CUDA_KERNEL_NODE_PARAMS_v1) -> Result<KernelArgs, Code> {
    let raw = read(p.cast::<RawKernel>())?;
    Ok(KernelArgs { function: raw.func, raw })
}

/// Reads the second version, in which a kernel of a library may replace the function.
fn kernel_2(p: *const sys::CUDA_KERNEL_NODE_PARAMS) -> Result<KernelArgs, Code> {
    let raw = read(p.cast::<RawKernel2>())?;
    let function = if raw.first.func == 0 { raw.kernel } else { raw.first.func };
    Ok(KernelArgs { function, raw: raw.first })
}

impl KernelArgs {
    /// The kernel with its parameters by value.
    pub fn kernel(&self, layout: &[(u32, u32)], attributes: Vec<Attribute>) -> Result<Kernel, Code> {
        // SAFETY: what the program gave for this function.
        let params = unsafe { pack(layout, self.raw.params, self.raw.extra) }?;
        let (grid, block, shared) = (self.raw.grid, self.raw.block, self.raw.shared);
        Ok(Kernel { function: self.function, grid, block, shared, attributes, params })
    }
}

/// Copies the parameters of a kernel, each to its offset: from an array of pointers, or from the one buffer of `extra`.
///
/// # Safety
/// One of the two is what a program gave for a function with this layout, the other null.
pub unsafe fn pack(layout: &[(u32, u32)], params: *const *const u8, extra: *const usize) -> Result<Vec<u8>, Code> {
    /// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER`, `_BUFFER_SIZE`: keys of the `extra` array.
    const END: usize = 0;
    const POINTER: usize = 1;
    const SIZE: usize = 2;
    if !extra.is_null() {
        if !params.is_null() {
            return Err(INVALID);
        }
        let (mut buffer, mut size, mut at) = (std::ptr::null::<u8>(), std::ptr::null::<usize>(), 0);
        loop {
            // SAFETY: keys and values alternate until the end key (contract).
            match unsafe { extra.add(at).read() } {
                END => break,
                // SAFETY: as above.
                POINTER => buffer = unsafe { extra.add(at + 1).read() } as *const u8,
                // SAFETY: as above.
                SIZE => size = unsafe { extra.add(at + 1).read() } as *const usize,
                _ => return Err(INVALID),
            }
            at += 2;
        }
        let size = read(size)?;
        if size > MAX_PARAM_BYTES {
            return Err(INVALID);
        }
        return list(buffer, size);
    }
    let mut bytes = Vec::new();
    if !layout.is_empty() && params.is_null() {
        return Err(INVALID);
    }
    for (i, (offset, size)) in layout.iter().enumerate() {
        let (offset, size) = (*offset as usize, *size as usize);
        if offset + size > MAX_PARAM_BYTES {
            return Err(INVALID);
        }
        if bytes.len() < offset + size {
            bytes.resize(offset + size, 0);
        }
        // SAFETY: the array has a pointer for each parameter, and each points at the parameter's bytes.
        let value = unsafe { std::slice::from_raw_parts(params.add(i).read(), size) };
        bytes[offset..offset + size].copy_from_slice(value);
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
    let params = if pointers.is_empty() { std::ptr::null() } else { pointers.as_ptr().cast() };
    let raw = RawKernel { func: function, grid: k.grid, block: k.block, shared: k.shared, params, extra: std::ptr::null() };
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

const _: () = assert!(size_of::<RawFill>() == size_of::<sys::CUDA_MEMSET_NODE_PARAMS>());

/// Reads a fill.
fn fill(p: *const sys::CUDA_MEMSET_NODE_PARAMS) -> Result<Fill, Code> {
    let f = read(p.cast::<RawFill>())?;
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
fn give_fill(to: *mut sys::CUDA_MEMSET_NODE_PARAMS, f: &Fill) -> Result<(), Code> {
    let (pitch, width, height) = (f.pitch as usize, f.width as usize, f.rows as usize);
    give(to.cast(), RawFill { dst: f.dst, pitch, value: f.value, element: f.element, width, height })
}

/// Reads a host function.
fn host(p: *const sys::CUDA_HOST_NODE_PARAMS) -> Result<HostCall, Code> {
    let [function, data] = read(p.cast::<[u64; 2]>())?;
    if function == 0 { Err(INVALID) } else { Ok(HostCall { function, data }) }
}

/// Writes a host function.
fn give_host(to: *mut sys::CUDA_HOST_NODE_PARAMS, h: &HostCall) -> Result<(), Code> {
    give(to.cast(), [h.function, h.data])
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

const _: () = assert!(size_of::<RawMemOps>() == size_of::<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>());
const _: () = assert!(size_of::<[u64; 6]>() == size_of::<sys::CUstreamBatchMemOpParams>());

/// Reads a batch of memory operations.
fn mem_ops(p: *const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Result<Vec<[u64; 6]>, Code> {
    /// Maximum number of operations in one batch (CUDA driver API reference, `cuStreamBatchMemOp`).
    const MAX_OPERATIONS: u32 = 256;
    let raw = read(p.cast::<RawMemOps>())?;
    if raw.flags != 0 || raw.count > MAX_OPERATIONS {
        return Err(INVALID);
    }
    list(raw.array, raw.count as usize)
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
    pub access: *const c_void,
    /// Its length.
    pub access_count: usize,
    /// Bytes to allocate.
    pub bytes: usize,
    /// The address, which is returned.
    pub address: u64,
}

const _: () = assert!(size_of::<RawAlloc>() == size_of::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>());

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

const _: () = assert!(size_of::<RawConditional>() == size_of::<sys::CUDA_CONDITIONAL_NODE_PARAMS>());

/// The parameters of a condition within those of a node of any kind.
pub fn conditional_of_any(p: *mut sys::CUgraphNodeParams) -> *mut RawConditional {
    p.cast::<u8>().wrapping_add(UNION).cast()
}

/// The parameters of an allocation within those of a node of any kind.
pub fn alloc_of_any(p: *mut sys::CUgraphNodeParams) -> *mut RawAlloc {
    p.cast::<u8>().wrapping_add(UNION).cast()
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
pub fn any(p: *const sys::CUgraphNodeParams) -> Result<AnyParams, Code> {
    let [kind, a, b, c] = read(p.cast::<[u32; 4]>())?;
    if [a, b, c] != [0; 3] {
        return Err(INVALID);
    }
    let at: *const c_void = p.cast::<u8>().wrapping_add(UNION).cast();
    let handle = || read(at.cast::<u64>());
    Ok(match kind {
        0 => AnyParams::Kernel(kernel_2(at.cast())?),
        1 => {
            let [flags, _] = read(at.cast::<[u32; 2]>())?;
            // After flags and context.
            let copy = copy_3d(at.cast::<u8>().wrapping_add(16).cast())?;
            if flags != 0 {
                return Err(INVALID);
            }
            AnyParams::Ready(Work::Copy(copy))
        }
        2 => AnyParams::Ready(Work::Fill(fill(at.cast())?)),
        3 => AnyParams::Ready(Work::Host(host(at.cast())?)),
        4 => {
            let ownership = read(at.cast::<u8>().wrapping_add(8).cast::<u32>())?;
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
        12 => AnyParams::Ready(Work::MemOps(mem_ops(at.cast())?)),
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
    CUgraphEdgeData as Edge = |p| read(p).and_then(edge);
    CUkernelNodeAttrValue as AttributeValue = |p: *const Self| read(p.cast());
    CUstreamCaptureMode as u32 = |p: *const Self| read(p.cast());
}
structs! { write
    CUDA_KERNEL_NODE_PARAMS_v1 as RawKernel = |to: *mut Self, raw: &RawKernel| give(to.cast(), *raw);
    CUDA_KERNEL_NODE_PARAMS as (RawKernel, u64) = |to: *mut Self, (first, kernel): &(RawKernel, u64)| {
        give(to.cast(), RawKernel2 { first: *first, kernel: *kernel, context: 0 })
    };
    CUDA_MEMCPY3D as Copy3 = give_copy_3d;
    CUDA_MEMSET_NODE_PARAMS as Fill = give_fill;
    CUDA_HOST_NODE_PARAMS as HostCall = give_host;
    CUDA_BATCH_MEM_OP_NODE_PARAMS as RawMemOps = |to: *mut Self, raw: &RawMemOps| give(to.cast(), *raw);
    CUDA_MEM_ALLOC_NODE_PARAMS as MemAlloc = |to: *mut Self, alloc: &MemAlloc| give(to.cast(), raw_alloc(alloc));
    CUkernelNodeAttrValue as AttributeValue = |to: *mut Self, value: &AttributeValue| give(to.cast(), *value);
    CUstreamCaptureMode as u32 = |to: *mut Self, mode: &u32| give(to.cast(), *mode);
}
