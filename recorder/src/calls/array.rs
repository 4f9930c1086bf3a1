//! Arrays and mipmapped arrays: handles and shapes are known here, the arrays themselves are at the place.

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::calls::tiles;
use crate::device_memory::stream_ordered;
use crate::enter::CallContext;
use crate::job::Device;
use crate::job::array_lookup::{find, window, without_memory};
use crate::ledger::Keep;
use crate::objects::arrays::{Array, ArrayData, Mipmap};
use crate::order::captures;
use crate::order::concerned::WaitingCall;
use cuda_api::arg::{Capture, Edges};
use cuda_api::array::{ArrayMake, DEFERRED, Layout, SPARSE, Shape, WITHOUT_MEMORY};
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::wire::Wire;
use cuda_api::{ops, sys};
use std::ffi::c_uint;

/// Sets the device of a call to that of an array.
pub(crate) fn use_array(cx: &mut CallContext, array: u64) -> Result<Array, Code> {
    cx.use_handle(Kind::Array, Kind::Array, array)?;
    find(cx.job, array)
}

/// Creates an array, or with `levels` a mipmapped array, at the place. Returns its handle.
fn make(cx: &mut CallContext, shape: Shape, levels: Option<u32>) -> Result<u64, Code> {
    captures::forbid_unsafe(cx)?;
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
    let (body, edges) =
        (encode(&ArrayMake { handle, window, shape, levels: parts.clone() }), Edges { creates, ..Edges::default() });
    let reply =
        stream_ordered::with_room(cx, device, bytes, || cx.build(device, ops::id::ARRAY_MAKE, &body, &edges, Keep::PLAIN))?;
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
    let waits = WaitingCall::begin(device);
    cx.build(device, ops::id::ARRAY_END, &handle.to_le_bytes(), &edges, Keep::PLAIN)?;
    drop(waits);
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
    let plain = |(handle, slot): (u64, &crate::objects::table::Slot<ArrayData>)| {
        (slot.ends_with(whose) && lock(&slot.data.0).mipmap == 0).then_some(handle)
    };
    let mut all: Vec<u64> = cx.job.tables.arrays.all(device.index).into_iter().filter_map(plain).collect();
    let mipmaps = cx.job.tables.mipmaps.all(device.index).into_iter();
    all.extend(mipmaps.filter(|(_, slot)| slot.ends_with(whose)).map(|(handle, _)| handle));
    all.into_iter().try_for_each(|handle| end(cx, device, handle))
}

pub(crate) fn cuArrayCreate_v2(cx: &mut CallContext, shape: Shape) -> Result<u64, Code> {
    make(cx, shape, None)
}

pub(crate) fn cuArray3DCreate_v2(cx: &mut CallContext, shape: Shape) -> Result<u64, Code> {
    make(cx, shape, None)
}

pub(crate) fn cuMipmappedArrayCreate(cx: &mut CallContext, shape: Shape, levels: c_uint) -> Result<u64, Code> {
    make(cx, shape, Some(levels))
}

pub(crate) fn cuArrayDestroy(cx: &mut CallContext, array: u64) -> Result<(), Code> {
    captures::forbid_unsafe(cx)?;
    // A level exists as long as its mipmapped array; destroying it is not an error (measured, 580 driver).
    if use_array(cx, array)?.mipmap != 0 {
        return Ok(());
    }
    let device = cx.device()?;
    cx.settle(device)?;
    end(cx, device, array)
}

pub(crate) fn cuMipmappedArrayDestroy(cx: &mut CallContext, mipmap: u64) -> Result<(), Code> {
    captures::forbid_unsafe(cx)?;
    cx.use_handle(Kind::Mipmap, Kind::Mipmap, mipmap)?;
    let device = cx.device()?;
    cx.settle(device)?;
    end(cx, device, mipmap)
}

pub(crate) fn cuMipmappedArrayGetLevel(cx: &mut CallContext, mipmap: u64, level: c_uint) -> Result<u64, Code> {
    let known = lock(&cx.job.tables.mipmaps.get(mipmap)?.data.0).clone();
    known.levels.get(level as usize).copied().ok_or(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuArrayGetDescriptor_v2(cx: &mut CallContext, array: u64) -> Result<Shape, Code> {
    Ok(find(cx.job, array)?.shape)
}

pub(crate) fn cuArray3DGetDescriptor_v2(cx: &mut CallContext, array: u64) -> Result<Shape, Code> {
    Ok(find(cx.job, array)?.shape)
}

/// The layout of an array that was created with a flag. An array without the flag and an invalid handle give the same error.
fn layout(cx: &CallContext, handle: u64, mipmapped: bool, flag: u32) -> Result<Layout, Code> {
    let found = without_memory(cx.job, handle, mipmapped).ok().filter(|found| found.shape.flags & flag != 0);
    found.map(|found| found.layout).ok_or(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuArrayGetSparseProperties(cx: &mut CallContext, array: u64) -> Result<Layout, Code> {
    layout(cx, array, false, SPARSE)
}

pub(crate) fn cuMipmappedArrayGetSparseProperties(cx: &mut CallContext, mipmap: u64) -> Result<Layout, Code> {
    layout(cx, mipmap, true, SPARSE)
}

pub(crate) fn cuArrayGetMemoryRequirements(cx: &mut CallContext, array: u64, device: sys::CUdevice) -> Result<Layout, Code> {
    let layout = layout(cx, array, false, DEFERRED)?;
    cx.job.device(device)?;
    Ok(layout)
}

pub(crate) fn cuMipmappedArrayGetMemoryRequirements(
    cx: &mut CallContext,
    mipmap: u64,
    device: sys::CUdevice,
) -> Result<Layout, Code> {
    let layout = layout(cx, mipmap, true, DEFERRED)?;
    cx.job.device(device)?;
    Ok(layout)
}

/// No array that is created here has several planes.
pub(crate) fn cuArrayGetPlane(cx: &mut CallContext, array: u64, _plane: c_uint) -> Result<u64, Code> {
    find(cx.job, array)?;
    Err(code::ERROR_INVALID_VALUE)
}
