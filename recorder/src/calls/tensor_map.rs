//! Descriptors for the tensor memory accelerator: 128 bytes that the place's driver computes, since only it knows their format. An
//! address in them is the same in every place, so they stay valid after moves.

use crate::enter::CallContext;
use crate::host_memory;
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, TensorMapIm2col, TensorMapTiled};
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys;
use cuda_api::wire::Wire;
use std::ffi::{c_int, c_void};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

const _: () = assert!(size_of::<sys::CUtensorMap>() == ops::TENSOR_MAP_BYTES);

/// Checks the parameters of a new descriptor: `to` must not be null, and the rank must be valid. Returns the number of dimensions.
fn rank_of(cx: &CallContext, to: OutPtr<sys::CUtensorMap>, rank: u32, exist: RangeInclusive<u32>) -> Result<usize, Code> {
    cx.device()?;
    if to.is_null() || !exist.contains(&rank) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    Ok(rank as usize)
}

/// Ranks of im2col descriptors: channels and images are two of the dimensions.
const IM2COL: RangeInclusive<u32> = 3..=5;

/// Requests a descriptor of the memory at an address and writes it for the program.
fn encode(
    cx: &mut CallContext,
    to: OutPtr<sys::CUtensorMap>,
    op: u16,
    what: &impl Wire,
    address: *mut c_void,
) -> Result<(), Code> {
    let device = cx.device()?;
    host_memory::note_words(cx, &(address as u64).to_le_bytes())?;
    let mut body = Vec::new();
    what.put(&mut body);
    // A descriptor depends on its parameters alone, and libraries make the same one for each launch.
    let bytes = cx.ask_about(&cx.job.tensor_maps, device, op, &body)?;
    let map: [u8; ops::TENSOR_MAP_BYTES] = bytes.try_into().map_err(|_| code::ERROR_UNKNOWN)?;
    cx.job.made_tensor_maps.store(true, Ordering::Relaxed);
    to.cast().write(map)
}

pub(crate) fn cuTensorMapEncodeTiled(
    cx: &mut CallContext,
    to: OutPtr<sys::CUtensorMap>,
    data_type: u32,
    rank: sys::cuuint32_t,
    address: *mut c_void,
    dims: InPtr<sys::cuuint64_t>,
    strides: InPtr<sys::cuuint64_t>,
    box_dims: InPtr<sys::cuuint32_t>,
    element_strides: InPtr<sys::cuuint32_t>,
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
        dims: dims.read_list(n)?,
        strides: strides.read_list(n - 1)?,
        box_dims: box_dims.read_list(n)?,
        element_strides: element_strides.read_list(n)?,
        modes: [interleave, swizzle, l2_promotion, fill],
    };
    encode(cx, to, ops::id::TENSOR_MAP_TILED, &op, address)
}

pub(crate) fn cuTensorMapEncodeIm2col(
    cx: &mut CallContext,
    to: OutPtr<sys::CUtensorMap>,
    data_type: u32,
    rank: sys::cuuint32_t,
    address: *mut c_void,
    dims: InPtr<sys::cuuint64_t>,
    strides: InPtr<sys::cuuint64_t>,
    lower: InPtr<c_int>,
    upper: InPtr<c_int>,
    channels: sys::cuuint32_t,
    pixels: sys::cuuint32_t,
    element_strides: InPtr<sys::cuuint32_t>,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    fill: u32,
) -> Result<(), Code> {
    let n = rank_of(cx, to, rank, IM2COL)?;
    let op = TensorMapIm2col {
        data_type,
        address: address as u64,
        dims: dims.read_list(n)?,
        strides: strides.read_list(n - 1)?,
        lower: lower.read_list(n - 2)?,
        upper: upper.read_list(n - 2)?,
        channels,
        pixels,
        element_strides: element_strides.read_list(n)?,
        modes: [interleave, swizzle, l2_promotion, fill],
        wide: None,
    };
    encode(cx, to, ops::id::TENSOR_MAP_IM2COL, &op, address)
}

pub(crate) fn cuTensorMapEncodeIm2colWide(
    cx: &mut CallContext,
    to: OutPtr<sys::CUtensorMap>,
    data_type: u32,
    rank: sys::cuuint32_t,
    address: *mut c_void,
    dims: InPtr<sys::cuuint64_t>,
    strides: InPtr<sys::cuuint64_t>,
    lower: c_int,
    upper: c_int,
    channels: sys::cuuint32_t,
    pixels: sys::cuuint32_t,
    element_strides: InPtr<sys::cuuint32_t>,
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
        dims: dims.read_list(n)?,
        strides: strides.read_list(n - 1)?,
        lower: vec![lower],
        upper: vec![upper],
        channels,
        pixels,
        element_strides: element_strides.read_list(n)?,
        modes: [interleave, swizzle, l2_promotion, fill],
        wide: Some(mode),
    };
    encode(cx, to, ops::id::TENSOR_MAP_IM2COL, &op, address)
}

pub(crate) fn cuTensorMapReplaceAddress(
    cx: &mut CallContext,
    map: InOutPtr<sys::CUtensorMap>,
    address: *mut c_void,
) -> Result<(), Code> {
    cx.device()?;
    let words: [u64; ops::TENSOR_MAP_BYTES / 8] = map.cast().read()?;
    encode(cx, map.output(), ops::id::TENSOR_MAP_ADDRESS, &(words, address as u64), address)
}
