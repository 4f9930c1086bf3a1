//! Arrays and mipmapped arrays: handles and shapes are known here, the arrays themselves are at the place.

use crate::context::write_out;
use crate::enter::CallContext;
use crate::graph;
use crate::job::{Device, Job};
use crate::ledger::Keep;
use crate::log::lock;
use crate::memory::encode;
use crate::tables::Known;
use crate::tiles;
use cuda_api::arg::{Capture, Edges};
use cuda_api::array::{
    ArrayMake, DEFERRED, Layout, SPARSE, Shape, WINDOW_STEP, WINDOWS, WITHOUT_MEMORY, give_need, give_shape, give_sparse, shape,
    shape_2d,
};
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::wire::Wire;
use cuda_api::{ops, sys};
use std::ffi::c_uint;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The recorder's state of an array.
#[derive(Debug, Clone, Default)]
pub(crate) struct Array {
    pub(crate) shape: Shape,
    /// The mipmapped array that it is a level of, or 0.
    pub(crate) mipmap: u64,
    /// For an array without memory that is not a level.
    layout: Option<Layout>,
}

/// The recorder's data about an array.
#[derive(Debug, Default)]
pub(crate) struct ArrayData(Mutex<Array>);

/// The recorder's state of a mipmapped array.
#[derive(Debug, Clone, Default)]
struct Mipmap {
    levels: Vec<u64>,
    /// For one without memory.
    layout: Option<Layout>,
}

/// The recorder's data about a mipmapped array.
#[derive(Debug, Default)]
pub(crate) struct MipmapData(Mutex<Mipmap>);

impl Known for ArrayData {
    fn forget(&self) {
        *lock(&self.0) = Array::default();
    }
}

impl Known for MipmapData {
    fn forget(&self) {
        *lock(&self.0) = Mipmap::default();
    }
}

/// The state of a live array.
pub(crate) fn find(job: &Job, handle: u64) -> Result<Array, Code> {
    job.tables.arrays.get(handle).map(|slot| lock(&slot.data.0).clone())
}

/// The shape of the first level of a mipmapped array.
pub(crate) fn first_level(job: &Job, mipmap: u64) -> Result<Shape, Code> {
    let first = lock(&job.tables.mipmaps.get(mipmap)?.data.0).levels.first().copied();
    Ok(find(job, first.ok_or(code::ERROR_INVALID_HANDLE)?)?.shape)
}

/// An array without memory of its own.
pub(crate) struct WithoutMemory {
    /// The shape of its first level.
    pub(crate) shape: Shape,
    pub(crate) levels: u32,
    pub(crate) layout: Layout,
    pub(crate) device: u32,
}

/// An array, or mipmapped array, without memory of its own; levels of a mipmapped array do not count.
pub(crate) fn without_memory(job: &Job, handle: u64, mipmapped: bool) -> Result<WithoutMemory, Code> {
    let device = job.tables.device(if mipmapped { Kind::Mipmap } else { Kind::Array }, handle)?;
    let (shape, levels, layout) = if mipmapped {
        let mipmap = lock(&job.tables.mipmaps.get(handle)?.data.0).clone();
        (first_level(job, handle)?, mipmap.levels.len() as u32, mipmap.layout)
    } else {
        let array = find(job, handle)?;
        (array.shape, 1, array.layout)
    };
    Ok(WithoutMemory { shape, levels, layout: layout.ok_or(code::ERROR_INVALID_VALUE)?, device })
}

/// A range of window numbers for this number of bytes of contents.
pub(crate) fn window(bytes: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(WINDOWS);
    NEXT.fetch_add(bytes.next_multiple_of(WINDOW_STEP), Ordering::Relaxed)
}

/// Sets the device of a call to that of an array.
pub(crate) fn use_array(cx: &mut CallContext, array: sys::CUarray) -> Result<Array, Code> {
    cx.use_handle(Kind::Array, Kind::Array, array as u64)?;
    find(cx.job, array as u64)
}

/// Total size of all arrays of a device.
pub(crate) fn bytes(job: &Job, device: u32) -> u64 {
    let plain = job.tables.arrays.all(device).into_iter().map(|(_, slot)| lock(&slot.data.0).shape);
    // Elements are usually padded to rows and tiles: an estimate that is rather too large.
    plain
        .filter(|shape| shape.flags & WITHOUT_MEMORY == 0)
        .map(|shape| shape.bytes().unwrap_or(0).next_multiple_of(WINDOW_STEP))
        .sum()
}

/// Creates an array, or with `levels` a mipmapped array, at the place. Returns its handle.
fn make(cx: &mut CallContext, shape: Shape, levels: Option<u32>) -> Result<u64, Code> {
    graph::forbid_unsafe(cx)?;
    let device = cx.device()?;
    let has_memory = shape.flags & WITHOUT_MEMORY == 0;
    let shapes: Vec<Shape> = match levels {
        None => vec![shape],
        // Zero levels mean one level, and there are no more than lead to the smallest (measured, 580 driver).
        Some(n) => (0..n.clamp(1, shape.most_levels())).map(|n| shape.level(n)).collect(),
    };
    let bytes = shapes.iter().try_fold(0u64, |sum, s| sum.checked_add(s.bytes()?).ok_or(code::ERROR_INVALID_VALUE))?;
    if bytes == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if has_memory && bytes > device.info.total_bytes {
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    let handle = cx.new_handle(if levels.is_some() { Kind::Mipmap } else { Kind::Array })?;
    let mut parts = Vec::new();
    if levels.is_some() {
        for shape in &shapes {
            let level = cx.new_handle(Kind::Array)?;
            *lock(&cx.job.tables.arrays.get(level)?.data.0) = Array { shape: *shape, mipmap: handle, layout: None };
            parts.push(level);
        }
    }
    let window = if has_memory { window(bytes) } else { 0 };
    let creates = std::iter::once(handle).chain(parts.iter().copied()).collect();
    let body = encode(&ArrayMake { handle, window, shape, levels: parts.clone() });
    let reply = cx.build(device, ops::id::ARRAY_MAKE, &body, &Edges { creates, ..Edges::default() }, Keep::PLAIN)?;
    let layout = if has_memory { None } else { Some(Layout::get(&mut &reply[..]).map_err(|_| code::ERROR_UNKNOWN)?) };
    if levels.is_some() {
        *lock(&cx.job.tables.mipmaps.get(handle)?.data.0) = Mipmap { levels: parts, layout };
    } else {
        *lock(&cx.job.tables.arrays.get(handle)?.data.0) = Array { shape, mipmap: 0, layout };
    }
    Ok(handle)
}

/// Destroys an array or mipmapped array at the place.
fn end(cx: &mut CallContext, device: &'static Device, handle: u64) -> Result<(), Code> {
    tiles::array_ends(cx, device, handle)?;
    let edges = Edges { ends: Some(handle), ..Edges::default() };
    cx.build(device, ops::id::ARRAY_END, &handle.to_le_bytes(), &edges, Keep::PLAIN)?;
    if let Ok(slot) = cx.job.tables.mipmaps.get(handle) {
        for level in std::mem::take(&mut lock(&slot.data.0).levels) {
            cx.job.tables.end(level);
        }
    }
    cx.job.tables.end(handle);
    Ok(())
}

/// Destroys the arrays of a context, or all of a device.
pub(crate) fn end_of(cx: &mut CallContext, device: &'static Device, whose: Option<u64>) -> Result<(), Code> {
    let plain = |(handle, slot): (u64, &crate::tables::Slot<ArrayData>)| {
        (slot.ends_with(whose) && lock(&slot.data.0).mipmap == 0).then_some(handle)
    };
    let mut all: Vec<u64> = cx.job.tables.arrays.all(device.index).into_iter().filter_map(plain).collect();
    let mipmaps = cx.job.tables.mipmaps.all(device.index).into_iter();
    all.extend(mipmaps.filter(|(_, slot)| slot.ends_with(whose)).map(|(handle, _)| handle));
    all.into_iter().try_for_each(|handle| end(cx, device, handle))
}

pub(crate) fn cuArrayCreate_v2(
    cx: &mut CallContext,
    out: *mut sys::CUarray,
    what: *const sys::CUDA_ARRAY_DESCRIPTOR,
) -> Result<(), Code> {
    cx.device()?;
    let shape = shape_2d(what)?;
    if out.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    write_out(out, make(cx, shape, None)? as sys::CUarray)
}

pub(crate) fn cuArray3DCreate_v2(
    cx: &mut CallContext,
    out: *mut sys::CUarray,
    what: *const sys::CUDA_ARRAY3D_DESCRIPTOR,
) -> Result<(), Code> {
    cx.device()?;
    let shape = shape(what)?;
    if out.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    write_out(out, make(cx, shape, None)? as sys::CUarray)
}

pub(crate) fn cuMipmappedArrayCreate(
    cx: &mut CallContext,
    out: *mut sys::CUmipmappedArray,
    what: *const sys::CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> Result<(), Code> {
    cx.device()?;
    let shape = shape(what)?;
    if out.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    write_out(out, make(cx, shape, Some(levels))? as sys::CUmipmappedArray)
}

pub(crate) fn cuArrayDestroy(cx: &mut CallContext, array: sys::CUarray) -> Result<(), Code> {
    graph::forbid_unsafe(cx)?;
    // A level exists as long as its mipmapped array; destroying it is not an error (measured, 580 driver).
    if use_array(cx, array)?.mipmap != 0 {
        return Ok(());
    }
    let device = cx.device()?;
    cx.settle(device)?;
    end(cx, device, array as u64)
}

pub(crate) fn cuMipmappedArrayDestroy(cx: &mut CallContext, mipmap: sys::CUmipmappedArray) -> Result<(), Code> {
    graph::forbid_unsafe(cx)?;
    cx.use_handle(Kind::Mipmap, Kind::Mipmap, mipmap as u64)?;
    let device = cx.device()?;
    cx.settle(device)?;
    end(cx, device, mipmap as u64)
}

pub(crate) fn cuMipmappedArrayGetLevel(
    cx: &mut CallContext,
    out: *mut sys::CUarray,
    mipmap: sys::CUmipmappedArray,
    level: c_uint,
) -> Result<(), Code> {
    let known = lock(&cx.job.tables.mipmaps.get(mipmap as u64)?.data.0).clone();
    write_out(out, *known.levels.get(level as usize).ok_or(code::ERROR_INVALID_VALUE)? as sys::CUarray)
}

pub(crate) fn cuArrayGetDescriptor_v2(
    cx: &mut CallContext,
    out: *mut sys::CUDA_ARRAY_DESCRIPTOR,
    array: sys::CUarray,
) -> Result<(), Code> {
    give_shape(std::ptr::null_mut(), out, &find(cx.job, array as u64)?.shape)
}

pub(crate) fn cuArray3DGetDescriptor_v2(
    cx: &mut CallContext,
    out: *mut sys::CUDA_ARRAY3D_DESCRIPTOR,
    array: sys::CUarray,
) -> Result<(), Code> {
    let shape = find(cx.job, array as u64)?.shape;
    if out.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    give_shape(out, std::ptr::null_mut(), &shape)
}

/// The layout of an array that was created with a flag. An array without the flag and an invalid handle give the same error.
fn layout(cx: &CallContext, handle: u64, mipmapped: bool, flag: u32) -> Result<Layout, Code> {
    let found = without_memory(cx.job, handle, mipmapped).ok().filter(|found| found.shape.flags & flag != 0);
    found.map(|found| found.layout).ok_or(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuArrayGetSparseProperties(
    cx: &mut CallContext,
    out: *mut sys::CUDA_ARRAY_SPARSE_PROPERTIES,
    array: sys::CUarray,
) -> Result<(), Code> {
    give_sparse(out, &layout(cx, array as u64, false, SPARSE)?)
}

pub(crate) fn cuMipmappedArrayGetSparseProperties(
    cx: &mut CallContext,
    out: *mut sys::CUDA_ARRAY_SPARSE_PROPERTIES,
    mipmap: sys::CUmipmappedArray,
) -> Result<(), Code> {
    give_sparse(out, &layout(cx, mipmap as u64, true, SPARSE)?)
}

pub(crate) fn cuArrayGetMemoryRequirements(
    cx: &mut CallContext,
    out: *mut sys::CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: sys::CUarray,
    device: sys::CUdevice,
) -> Result<(), Code> {
    let layout = layout(cx, array as u64, false, DEFERRED)?;
    cx.job.device(device)?;
    give_need(out, &layout)
}

pub(crate) fn cuMipmappedArrayGetMemoryRequirements(
    cx: &mut CallContext,
    out: *mut sys::CUDA_ARRAY_MEMORY_REQUIREMENTS,
    mipmap: sys::CUmipmappedArray,
    device: sys::CUdevice,
) -> Result<(), Code> {
    let layout = layout(cx, mipmap as u64, true, DEFERRED)?;
    cx.job.device(device)?;
    give_need(out, &layout)
}

/// No array that is created here has several planes.
pub(crate) fn cuArrayGetPlane(
    cx: &mut CallContext,
    _out: *mut sys::CUarray,
    array: sys::CUarray,
    _plane: c_uint,
) -> Result<(), Code> {
    find(cx.job, array as u64)?;
    Err(code::ERROR_INVALID_VALUE)
}
