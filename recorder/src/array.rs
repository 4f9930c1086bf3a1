//! Arrays and mipmapped arrays: handles and shapes are known here, the arrays themselves live in the place.

use crate::context::give;
use crate::enter::Entered;
use crate::graph;
use crate::job::{Device, Job};
use crate::log::lock;
use crate::memory::encode;
use crate::tables::Known;
use cuda_api::arg::{Capture, Edges};
use cuda_api::array::{ArrayMake, Shape, WINDOW_STEP, WINDOWS, WITHOUT_MEMORY, give_shape, shape, shape_2d};
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::{ops, sys};
use std::ffi::c_uint;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the shim knows of an array.
#[derive(Debug, Clone, Default)]
pub(crate) struct Array {
    pub(crate) shape: Shape,
    /// The mipmapped array that it is a level of, or 0.
    pub(crate) mipmap: u64,
}

/// What is known of an array.
#[derive(Debug, Default)]
pub(crate) struct ArrayData(Mutex<Array>);

/// What is known of a mipmapped array: its levels.
#[derive(Debug, Default)]
pub(crate) struct MipmapData(Mutex<Vec<u64>>);

impl Known for ArrayData {
    fn forget(&self) {
        *lock(&self.0) = Array::default();
    }
}

impl Known for MipmapData {
    fn forget(&self) {
        lock(&self.0).clear();
    }
}

/// What is known of a live array.
pub(crate) fn find(job: &Job, handle: u64) -> Result<Array, Code> {
    job.tables.arrays.get(handle).map(|slot| lock(&slot.data.0).clone())
}

/// The shape of the first level of a mipmapped array.
pub(crate) fn first_level(job: &Job, mipmap: u64) -> Result<Shape, Code> {
    let first = lock(&job.tables.mipmaps.get(mipmap)?.data.0).first().copied();
    Ok(find(job, first.ok_or(code::ERROR_INVALID_HANDLE)?)?.shape)
}

/// Chooses the device of a call by an array.
pub(crate) fn use_array(cx: &mut Entered, array: sys::CUarray) -> Result<Array, Code> {
    cx.use_handle(Kind::Array, Kind::Array, array as u64)?;
    find(cx.job, array as u64)
}

/// Bytes of all arrays of a device.
pub(crate) fn bytes(job: &Job, device: u32) -> u64 {
    let plain = job.tables.arrays.all(device).into_iter().map(|(_, slot)| lock(&slot.data.0).shape);
    // As a rule elements are padded to rows and tiles: a guess that is rather too large.
    plain.map(|shape| shape.bytes().unwrap_or(0).next_multiple_of(WINDOW_STEP)).sum()
}

/// Makes an array, or with `levels` a mipmapped one, in the place. Gives its handle.
fn make(cx: &mut Entered, shape: Shape, levels: Option<u32>) -> Result<u64, Code> {
    static NEXT: AtomicU64 = AtomicU64::new(WINDOWS);
    graph::forbid_unsafe(cx)?;
    let device = cx.device()?;
    if shape.flags & WITHOUT_MEMORY != 0 {
        crate::log::missed("arrays without memory of their own".to_owned());
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    let shapes: Vec<Shape> = match levels {
        None => vec![shape],
        // No level is one level, and there are no more than lead to the smallest (measured, 580 driver).
        Some(n) => (0..n.clamp(1, shape.most_levels())).map(|n| shape.level(n)).collect(),
    };
    let bytes = shapes.iter().try_fold(0u64, |sum, s| sum.checked_add(s.bytes()?).ok_or(code::ERROR_INVALID_VALUE))?;
    if bytes == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if bytes > device.info.total_bytes {
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    let handle = cx.new_handle(if levels.is_some() { Kind::Mipmap } else { Kind::Array })?;
    let mut parts = Vec::new();
    if levels.is_some() {
        for shape in &shapes {
            let level = cx.new_handle(Kind::Array)?;
            *lock(&cx.job.tables.arrays.get(level)?.data.0) = Array { shape: *shape, mipmap: handle };
            parts.push(level);
        }
        *lock(&cx.job.tables.mipmaps.get(handle)?.data.0) = parts.clone();
    } else {
        *lock(&cx.job.tables.arrays.get(handle)?.data.0) = Array { shape, mipmap: 0 };
    }
    let window = NEXT.fetch_add(bytes.next_multiple_of(WINDOW_STEP), Ordering::Relaxed);
    let creates = std::iter::once(handle).chain(parts.iter().copied()).collect();
    let body = encode(&ArrayMake { handle, window, shape, levels: parts });
    cx.build(device, ops::id::ARRAY_MAKE, &body, &Edges { creates, ..Edges::default() }, false)?;
    Ok(handle)
}

/// Ends an array or mipmapped array in the place.
fn end(cx: &mut Entered, device: &'static Device, handle: u64) -> Result<(), Code> {
    let edges = Edges { ends: Some(handle), ..Edges::default() };
    cx.build(device, ops::id::ARRAY_END, &handle.to_le_bytes(), &edges, false)?;
    if let Ok(slot) = cx.job.tables.mipmaps.get(handle) {
        for level in std::mem::take(&mut *lock(&slot.data.0)) {
            cx.job.tables.end(level);
        }
    }
    cx.job.tables.end(handle);
    Ok(())
}

/// Ends all arrays of a device.
pub(crate) fn end_of(cx: &mut Entered, device: &'static Device, whose: Option<u64>) -> Result<(), Code> {
    let plain = |(handle, slot): (u64, &crate::tables::Slot<ArrayData>)| {
        (slot.ends_with(whose) && lock(&slot.data.0).mipmap == 0).then_some(handle)
    };
    let mut all: Vec<u64> = cx.job.tables.arrays.all(device.index).into_iter().filter_map(plain).collect();
    let mipmaps = cx.job.tables.mipmaps.all(device.index).into_iter();
    all.extend(mipmaps.filter(|(_, slot)| slot.ends_with(whose)).map(|(handle, _)| handle));
    all.into_iter().try_for_each(|handle| end(cx, device, handle))
}

pub(crate) fn cuArrayCreate_v2(
    cx: &mut Entered,
    out: *mut sys::CUarray,
    what: *const sys::CUDA_ARRAY_DESCRIPTOR,
) -> Result<(), Code> {
    cx.device()?;
    let shape = shape_2d(what)?;
    if out.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    give(out, make(cx, shape, None)? as sys::CUarray)
}

pub(crate) fn cuArray3DCreate_v2(
    cx: &mut Entered,
    out: *mut sys::CUarray,
    what: *const sys::CUDA_ARRAY3D_DESCRIPTOR,
) -> Result<(), Code> {
    cx.device()?;
    let shape = shape(what)?;
    if out.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    give(out, make(cx, shape, None)? as sys::CUarray)
}

pub(crate) fn cuMipmappedArrayCreate(
    cx: &mut Entered,
    out: *mut sys::CUmipmappedArray,
    what: *const sys::CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> Result<(), Code> {
    cx.device()?;
    let shape = shape(what)?;
    if out.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    give(out, make(cx, shape, Some(levels))? as sys::CUmipmappedArray)
}

pub(crate) fn cuArrayDestroy(cx: &mut Entered, array: sys::CUarray) -> Result<(), Code> {
    graph::forbid_unsafe(cx)?;
    // A level stays as long as its mipmapped array, and nothing is wrong with asking (measured, 580 driver).
    if use_array(cx, array)?.mipmap != 0 {
        return Ok(());
    }
    let device = cx.device()?;
    cx.settle(device)?;
    end(cx, device, array as u64)
}

pub(crate) fn cuMipmappedArrayDestroy(cx: &mut Entered, mipmap: sys::CUmipmappedArray) -> Result<(), Code> {
    graph::forbid_unsafe(cx)?;
    cx.use_handle(Kind::Mipmap, Kind::Mipmap, mipmap as u64)?;
    let device = cx.device()?;
    cx.settle(device)?;
    end(cx, device, mipmap as u64)
}

pub(crate) fn cuMipmappedArrayGetLevel(
    cx: &mut Entered,
    out: *mut sys::CUarray,
    mipmap: sys::CUmipmappedArray,
    level: c_uint,
) -> Result<(), Code> {
    let levels = lock(&cx.job.tables.mipmaps.get(mipmap as u64)?.data.0).clone();
    give(out, *levels.get(level as usize).ok_or(code::ERROR_INVALID_VALUE)? as sys::CUarray)
}

pub(crate) fn cuArrayGetDescriptor_v2(
    cx: &mut Entered,
    out: *mut sys::CUDA_ARRAY_DESCRIPTOR,
    array: sys::CUarray,
) -> Result<(), Code> {
    give_shape(std::ptr::null_mut(), out, &find(cx.job, array as u64)?.shape)
}

pub(crate) fn cuArray3DGetDescriptor_v2(
    cx: &mut Entered,
    out: *mut sys::CUDA_ARRAY3D_DESCRIPTOR,
    array: sys::CUarray,
) -> Result<(), Code> {
    let shape = find(cx.job, array as u64)?.shape;
    if out.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    give_shape(out, std::ptr::null_mut(), &shape)
}

// What is only so for arrays that are sparse or mapped later is an error for all that are made here, and for what is no array.

pub(crate) fn cuArrayGetSparseProperties(
    _cx: &mut Entered,
    _out: *mut sys::CUDA_ARRAY_SPARSE_PROPERTIES,
    _array: sys::CUarray,
) -> Result<(), Code> {
    Err(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuMipmappedArrayGetSparseProperties(
    _cx: &mut Entered,
    _out: *mut sys::CUDA_ARRAY_SPARSE_PROPERTIES,
    _mipmap: sys::CUmipmappedArray,
) -> Result<(), Code> {
    Err(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuArrayGetMemoryRequirements(
    _cx: &mut Entered,
    _out: *mut sys::CUDA_ARRAY_MEMORY_REQUIREMENTS,
    _array: sys::CUarray,
    _device: sys::CUdevice,
) -> Result<(), Code> {
    Err(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuMipmappedArrayGetMemoryRequirements(
    _cx: &mut Entered,
    _out: *mut sys::CUDA_ARRAY_MEMORY_REQUIREMENTS,
    _mipmap: sys::CUmipmappedArray,
    _device: sys::CUdevice,
) -> Result<(), Code> {
    Err(code::ERROR_INVALID_VALUE)
}

/// No array that is made here has several planes.
pub(crate) fn cuArrayGetPlane(
    cx: &mut Entered,
    _out: *mut sys::CUarray,
    array: sys::CUarray,
    _plane: c_uint,
) -> Result<(), Code> {
    find(cx.job, array as u64)?;
    Err(code::ERROR_INVALID_VALUE)
}
