//! The structures of cuda.h that graph calls use, with enums as plain numbers, since a C program can store any value,
//! and access to them through pointers.
//!
//! This relies on CUDA's contract: a pointer that is not null points to what the header specifies.

use cuda_api::code::{self, Code};
use cuda_api::copy::copy_3d;
use cuda_api::ops::MAX_PARAM_BYTES;
use cuda_api::pointer::{give, list, read};
use cuda_api::sys;
use cuda_api::work::{Attribute, Edge, Fill, HostCall, Kernel, MemAlloc, Work};
use std::ffi::c_void;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// Returns a list as graph queries do: without an array only the number, otherwise as many elements as fit, the rest
/// null.
pub(super) fn give_list<T: Copy, const N: usize>(
    to: [*mut u64; N],
    edges: *mut T,
    count: *mut usize,
    all: &[([u64; N], T)],
    nothing: T,
) -> Result<(), Code> {
    let room = read(count)?;
    if to.iter().all(|t| t.is_null()) {
        return give(count, all.len());
    }
    for i in 0..room {
        let (row, edge) = all.get(i).copied().unwrap_or(([0; N], nothing));
        for (to, value) in to.iter().zip(row) {
            if !to.is_null() {
                // SAFETY: the program says that there is room for `room` elements.
                unsafe { to.add(i).write_unaligned(value) };
            }
        }
        if !edges.is_null() {
            // SAFETY: as above.
            unsafe { edges.add(i).write_unaligned(edge) };
        }
    }
    give(count, all.len().min(room))
}

/// Nodes with their edges; without an array of edge data they are plain edges.
pub(super) fn nodes(
    nodes: *const sys::CUgraphNode,
    edges: *const sys::CUgraphEdgeData,
    count: usize,
) -> Result<Vec<(u64, Edge)>, Code> {
    let nodes = list(nodes, count)?;
    let edges = if edges.is_null() { vec![Edge::default(); nodes.len()] } else { self::edges(edges, count)? };
    Ok(nodes.into_iter().map(|n| n as u64).zip(edges).collect())
}

/// An array of edge data.
pub(super) fn edges(from: *const sys::CUgraphEdgeData, count: usize) -> Result<Vec<Edge>, Code> {
    let edge = |e: sys::CUgraphEdgeData| {
        let fine = e.reserved == [0; 5];
        fine.then_some(Edge { from_port: e.from_port, to_port: e.to_port, kind: e.type_ }).ok_or(INVALID)
    };
    list(from, count)?.into_iter().map(edge).collect()
}

/// `CUDA_KERNEL_NODE_PARAMS` in both versions: the first one ends before `kern`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawKernel {
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
pub(super) struct KernelArgs {
    pub(super) function: u64,
    raw: RawKernel,
}

/// Reads the first version.
pub(super) fn kernel_1(p: *const RawKernel) -> Result<KernelArgs, Code> {
    let raw = read(p)?;
    Ok(KernelArgs { function: raw.func, raw })
}

/// Reads the second version, in which a kernel of a library may replace the function.
pub(super) fn kernel_2(p: *const sys::CUDA_KERNEL_NODE_PARAMS) -> Result<KernelArgs, Code> {
    let raw = read(p.cast::<RawKernel2>())?;
    let function = if raw.first.func == 0 { raw.kernel } else { raw.first.func };
    Ok(KernelArgs { function, raw: raw.first })
}

impl KernelArgs {
    /// The kernel with its parameters by value.
    pub(super) fn kernel(&self, layout: &[(u32, u32)], attributes: Vec<Attribute>) -> Result<Kernel, Code> {
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
pub(super) fn raw_kernel(k: &Kernel, function: u64, layout: &[(u32, u32)]) -> (RawKernel, Vec<Box<[u64]>>) {
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

/// Writes the second version.
pub(super) fn give_kernel_2(to: *mut sys::CUDA_KERNEL_NODE_PARAMS, first: RawKernel, kernel: u64) -> Result<(), Code> {
    give(to.cast(), RawKernel2 { first, kernel, context: 0 })
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
pub(super) fn fill(p: *const sys::CUDA_MEMSET_NODE_PARAMS) -> Result<Fill, Code> {
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
pub(super) fn give_fill(to: *mut sys::CUDA_MEMSET_NODE_PARAMS, f: &Fill) -> Result<(), Code> {
    let (pitch, width, height) = (f.pitch as usize, f.width as usize, f.rows as usize);
    give(to.cast(), RawFill { dst: f.dst, pitch, value: f.value, element: f.element, width, height })
}

/// Reads a host function.
pub(super) fn host(p: *const sys::CUDA_HOST_NODE_PARAMS) -> Result<HostCall, Code> {
    let [function, data] = read(p.cast::<[u64; 2]>())?;
    if function == 0 { Err(INVALID) } else { Ok(HostCall { function, data }) }
}

/// Writes a host function.
pub(super) fn give_host(to: *mut sys::CUDA_HOST_NODE_PARAMS, h: &HostCall) -> Result<(), Code> {
    give(to.cast(), [h.function, h.data])
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
struct RawMemOps {
    context: u64,
    count: u32,
    array: *const [u64; 6],
    flags: u32,
}

const _: () = assert!(size_of::<RawMemOps>() == size_of::<sys::CUDA_BATCH_MEM_OP_NODE_PARAMS>());
const _: () = assert!(size_of::<[u64; 6]>() == size_of::<sys::CUstreamBatchMemOpParams>());

/// Reads a batch of memory operations.
pub(super) fn mem_ops(p: *const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Result<Vec<[u64; 6]>, Code> {
    /// Maximum number of operations in one batch (CUDA driver API reference, `cuStreamBatchMemOp`).
    const MOST: u32 = 256;
    let raw = read(p.cast::<RawMemOps>())?;
    if raw.flags != 0 || raw.count > MOST {
        return Err(INVALID);
    }
    list(raw.array, raw.count as usize)
}

/// Writes a batch; `lent` is the target of its pointer.
pub(super) fn give_mem_ops(to: *mut sys::CUDA_BATCH_MEM_OP_NODE_PARAMS, ops: &[[u64; 6]]) -> Result<Box<[u64]>, Code> {
    let words: Box<[u64]> = ops.concat().into_boxed_slice();
    give(to.cast(), RawMemOps { context: 0, count: ops.len() as u32, array: words.as_ptr().cast(), flags: 0 })?;
    Ok(words)
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS` with its enums as numbers; both versions are the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawAlloc {
    pub(super) kind: u32,
    pub(super) handle_types: u32,
    pub(super) location: u32,
    pub(super) device: i32,
    pub(super) win32: usize,
    pub(super) most: usize,
    pub(super) rest: [u64; 7],
    pub(super) access: *const c_void,
    pub(super) access_count: usize,
    pub(super) bytes: usize,
    pub(super) address: u64,
}

const _: () = assert!(size_of::<RawAlloc>() == size_of::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>());

/// The parameters of an allocation, for the program.
pub(super) fn raw_alloc(m: &MemAlloc) -> RawAlloc {
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
#[derive(Clone, Copy)]
pub(super) struct RawConditional {
    pub(super) handle: u64,
    pub(super) kind: u32,
    pub(super) size: u32,
    pub(super) graphs: *const u64,
    pub(super) context: u64,
}

const _: () = assert!(size_of::<RawConditional>() == size_of::<sys::CUDA_CONDITIONAL_NODE_PARAMS>());

/// The parameters of a condition within those of a node of any kind.
pub(super) fn conditional_of_any(p: *mut sys::CUgraphNodeParams) -> *mut RawConditional {
    p.cast::<u8>().wrapping_add(UNION).cast()
}

/// The parameters of an allocation within those of a node of any kind.
pub(super) fn alloc_of_any(p: *mut sys::CUgraphNodeParams) -> *mut RawAlloc {
    p.cast::<u8>().wrapping_add(UNION).cast()
}

/// Where the parts of `CUgraphNodeParams` are: type, three reserved words, then the union.
const UNION: usize = 16;

/// Parameters of a node of any kind.
pub(super) enum AnyParams {
    Kernel(KernelArgs),
    /// A graph to embed.
    Child {
        graph: u64,
        moved: bool,
    },
    /// An allocation, whose parameters are read and written in place.
    Alloc,
    /// Frees an allocation.
    Free(u64),
    /// A condition with graphs, whose parameters are read and written in place.
    Conditional,
    Ready(Work<u64>),
}

/// Reads the parameters of a node of any kind.
pub(super) fn any(p: *const sys::CUgraphNodeParams) -> Result<AnyParams, Code> {
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
