//! Launches in the style of CUDA 3.

use super::launch::start_packed;
use super::{Res, abi, res};
use crate::gpu::launch::Shape;
use crate::gpu::stream::Default;
use crate::gpu::{context, module};
use cuda_api::sys::{CUfunction, CUstream};
use cuda_model::old_launch;
use std::ffi::{c_int, c_uint, c_void};

fn known(function: CUfunction) -> Res<u64> {
    context::current()?;
    module::resolve_function(function).map(|_| function as u64)
}

fn start(function: CUfunction, grid: [u32; 3], stream: CUstream) -> Res {
    let kept = old_launch::shape(known(function)?);
    let shape = Shape { grid, block: kept.block, shared: kept.shared, cooperative: false };
    start_packed(function, shape, stream, Default::Legacy, kept.params)
}

abi! {
    call fn cuFuncSetBlockShape(function: CUfunction, x: c_int, y: c_int, z: c_int) {
        res(old_launch::set_block(known(function)?, [x, y, z]))
    }

    call fn cuFuncSetSharedSize(function: CUfunction, bytes: c_uint) {
        old_launch::set_shared(known(function)?, bytes);
        Ok(())
    }

    call fn cuParamSetSize(function: CUfunction, bytes: c_uint) {
        res(old_launch::set_size(known(function)?, bytes))
    }

    call fn cuParamSeti(function: CUfunction, offset: c_int, value: c_uint) {
        res(old_launch::set_param(known(function)?, offset, &value.to_le_bytes()))
    }

    call fn cuParamSetf(function: CUfunction, offset: c_int, value: f32) {
        res(old_launch::set_param(known(function)?, offset, &value.to_le_bytes()))
    }

    call fn cuParamSetv(function: CUfunction, offset: c_int, value: *mut c_void, bytes: c_uint) {
        let function = known(function)?;
        let mut own = vec![0; bytes as usize];
        super::edge::get_bytes(value, &mut own)?;
        res(old_launch::set_param(function, offset, &own))
    }

    call fn cuLaunch(function: CUfunction) {
        start(function, [1; 3], std::ptr::null_mut())
    }

    call fn cuLaunchGrid(function: CUfunction, width: c_int, height: c_int) {
        start(function, res(old_launch::grid(width, height))?, std::ptr::null_mut())
    }

    call fn cuLaunchGridAsync(function: CUfunction, width: c_int, height: c_int, stream: CUstream) {
        start(function, res(old_launch::grid(width, height))?, stream)
    }
}
