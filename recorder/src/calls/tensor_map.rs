//! Descriptors for the tensor memory accelerator: 128 bytes that the place's driver computes, since only it knows their format. An
//! address in them is the same in every place, so they stay valid after moves.

use crate::enter::CallContext;
use crate::host_memory;
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, TensorMapIm2col, TensorMapTiled};
use cuda_api::sys;
use cuda_api::wire::Wire;
use std::ffi::{c_int, c_void};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

const _: () = assert!(size_of::<sys::CUtensorMap>() == ops::TENSOR_MAP_BYTES);

/// Reads `n` elements to which the program points.
fn elements<T: Copy>(from: *const T, n: usize) -> Result<Vec<T>, Code> {
    if from.is_null() && n > 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if n == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: not null; the program guarantees that there are this many.
    Ok((0..n).map(|i| unsafe { from.add(i).read_unaligned() }).collect())
}

/// Checks the parameters of a new descriptor: `to` must not be null, and the rank must be valid. Returns the number of dimensions.
fn rank_of(cx: &CallContext, to: *const sys::CUtensorMap, rank: u32, exist: RangeInclusive<u32>) -> Result<usize, Code> {
    cx.device()?;
    if to.is_null() || !exist.contains(&rank) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    Ok(rank as usize)
}

/// Ranks of im2col descriptors: channels and images are two of the dimensions.
const IM2COL: RangeInclusive<u32> = 3..=5;

/// Requests a descriptor of the memory at an address and writes it for the program.
fn encode(cx: &mut CallContext, to: *mut sys::CUtensorMap, op: u16, what: &impl Wire, address: *mut c_void) -> Result<(), Code> {
    let device = cx.device()?;
    host_memory::note_words(cx, &(address as u64).to_le_bytes())?;
    let mut body = Vec::new();
    what.put(&mut body);
    let bytes = cx.ask(device, op, &[&body])?;
    if bytes.len() != ops::TENSOR_MAP_BYTES {
        return Err(code::ERROR_UNKNOWN);
    }
    cx.job.made_tensor_maps.store(true, Ordering::Relaxed);
    // SAFETY: the callers have checked that it is not null, and the program's output has this size; bytes are copied, so alignment does
    // not matter.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast::<u8>(), bytes.len()) };
    Ok(())
}

pub(crate) fn cuTensorMapEncodeTiled(
    cx: &mut CallContext,
    to: *mut sys::CUtensorMap,
    data_type: u32,
    rank: sys::cuuint32_t,
    address: *mut c_void,
    dims: *const sys::cuuint64_t,
    strides: *const sys::cuuint64_t,
    box_dims: *const sys::cuuint32_t,
    element_strides: *const sys::cuuint32_t,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    fill: u32,
) -> Result<(), Code> {
    // CUDA driver API reference.
    let n = rank_of(cx, to, rank, 1..=5)?;
    let op = TensorMapTiled {
        data_type,
        address: address as u64,
        dims: elements(dims, n)?,
        strides: elements(strides, n - 1)?,
        box_dims: elements(box_dims, n)?,
        element_strides: elements(element_strides, n)?,
        modes: [interleave, swizzle, l2_promotion, fill],
    };
    encode(cx, to, ops::id::TENSOR_MAP_TILED, &op, address)
}

pub(crate) fn cuTensorMapEncodeIm2col(
    cx: &mut CallContext,
    to: *mut sys::CUtensorMap,
    data_type: u32,
    rank: sys::cuuint32_t,
    address: *mut c_void,
    dims: *const sys::cuuint64_t,
    strides: *const sys::cuuint64_t,
    lower: *const c_int,
    upper: *const c_int,
    channels: sys::cuuint32_t,
    pixels: sys::cuuint32_t,
    element_strides: *const sys::cuuint32_t,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    fill: u32,
) -> Result<(), Code> {
    let n = rank_of(cx, to, rank, IM2COL)?;
    let op = TensorMapIm2col {
        data_type,
        address: address as u64,
        dims: elements(dims, n)?,
        strides: elements(strides, n - 1)?,
        lower: elements(lower, n - 2)?,
        upper: elements(upper, n - 2)?,
        channels,
        pixels,
        element_strides: elements(element_strides, n)?,
        modes: [interleave, swizzle, l2_promotion, fill],
        wide: None,
    };
    encode(cx, to, ops::id::TENSOR_MAP_IM2COL, &op, address)
}

pub(crate) fn cuTensorMapEncodeIm2colWide(
    cx: &mut CallContext,
    to: *mut sys::CUtensorMap,
    data_type: u32,
    rank: sys::cuuint32_t,
    address: *mut c_void,
    dims: *const sys::cuuint64_t,
    strides: *const sys::cuuint64_t,
    lower: c_int,
    upper: c_int,
    channels: sys::cuuint32_t,
    pixels: sys::cuuint32_t,
    element_strides: *const sys::cuuint32_t,
    interleave: u32,
    mode: u32,
    swizzle: u32,
    l2_promotion: u32,
    fill: u32,
) -> Result<(), Code> {
    let n = rank_of(cx, to, rank, IM2COL)?;
    let op = TensorMapIm2col {
        data_type,
        address: address as u64,
        dims: elements(dims, n)?,
        strides: elements(strides, n - 1)?,
        lower: vec![lower],
        upper: vec![upper],
        channels,
        pixels,
        element_strides: elements(element_strides, n)?,
        modes: [interleave, swizzle, l2_promotion, fill],
        wide: Some(mode),
    };
    encode(cx, to, ops::id::TENSOR_MAP_IM2COL, &op, address)
}

pub(crate) fn cuTensorMapReplaceAddress(
    cx: &mut CallContext,
    map: *mut sys::CUtensorMap,
    address: *mut c_void,
) -> Result<(), Code> {
    cx.device()?;
    if map.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let words: Vec<u64> = elements(map.cast::<u64>(), ops::TENSOR_MAP_BYTES / 8)?;
    let words: [u64; ops::TENSOR_MAP_BYTES / 8] = words.try_into().map_err(|_| code::ERROR_UNKNOWN)?;
    encode(cx, map, ops::id::TENSOR_MAP_ADDRESS, &(words, address as u64), address)
}
