//! The launch functions of CUDA 3, implemented by today's launches.

use crate::calls::launch;
use crate::enter::CallContext;
use cuda_api::arg::Capture;
use cuda_api::code::Code;
use cuda_api::handle::Kind;
use cuda_api::pointer::InPtr;
use cuda_api::sys;
use cuda_model::old_launch;
use std::ffi::{c_int, c_uint, c_void};

/// A function that the program has; kernels of libraries are not accepted.
fn function(cx: &mut CallContext, f: u64) -> Result<u64, Code> {
    cx.device()?;
    cx.use_handle(Kind::Function, Kind::Function, f)
}

pub(crate) fn cuFuncSetBlockShape(cx: &mut CallContext, f: u64, x: c_int, y: c_int, z: c_int) -> Result<(), Code> {
    old_launch::set_block(function(cx, f)?, [x, y, z])
}

pub(crate) fn cuFuncSetSharedSize(cx: &mut CallContext, f: u64, bytes: c_uint) -> Result<(), Code> {
    old_launch::set_shared(function(cx, f)?, bytes);
    Ok(())
}

pub(crate) fn cuParamSetSize(cx: &mut CallContext, f: u64, bytes: c_uint) -> Result<(), Code> {
    old_launch::set_size(function(cx, f)?, bytes)
}

pub(crate) fn cuParamSeti(cx: &mut CallContext, f: u64, offset: c_int, value: c_uint) -> Result<(), Code> {
    old_launch::set_param(function(cx, f)?, offset, &value.to_le_bytes())
}

pub(crate) fn cuParamSetf(cx: &mut CallContext, f: u64, offset: c_int, value: f32) -> Result<(), Code> {
    old_launch::set_param(function(cx, f)?, offset, &value.to_le_bytes())
}

pub(crate) fn cuParamSetv(
    cx: &mut CallContext,
    f: sys::CUfunction,
    offset: c_int,
    value: InPtr<c_void>,
    bytes: c_uint,
) -> Result<(), Code> {
    let f = function(cx, f as u64)?;
    old_launch::set_param(f, offset, value.not_null()?.typed::<u8>().bytes(bytes as usize)?)
}

fn start(cx: &mut CallContext, f: u64, grid: [u32; 3], stream: u64) -> Result<(), Code> {
    let shape = old_launch::shape(function(cx, f)?);
    launch::packed(cx, f, stream, grid, shape)
}

pub(crate) fn cuLaunch(cx: &mut CallContext, f: u64) -> Result<(), Code> {
    start(cx, f, [1; 3], 0)
}

pub(crate) fn cuLaunchGrid(cx: &mut CallContext, f: u64, width: c_int, height: c_int) -> Result<(), Code> {
    cuLaunchGridAsync(cx, f, width, height, 0)
}

pub(crate) fn cuLaunchGridAsync(cx: &mut CallContext, f: u64, width: c_int, height: c_int, stream: u64) -> Result<(), Code> {
    start(cx, f, old_launch::grid(width, height)?, stream)
}
