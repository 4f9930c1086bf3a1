//! Copies.

use super::{In, Res, abi};
use crate::gpu::context;
use crate::gpu::copy::{Shape, Side, Space, copy};
use crate::gpu::stream::{Target, resolve};
use cuda_api::sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUcontext, CUdeviceptr, CUresult, CUstream};
use std::ffi::{c_uint, c_void};

/// The default stream, for functions without a stream parameter.
const DEFAULT: CUstream = std::ptr::null_mut();

abi! {
    stream fn cuMemcpy / cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, size: usize) |default| {
        linear(&resolve(DEFAULT, default)?, (Space::Unified, to), (Space::Unified, from), size, true)
    }

    stream fn cuMemcpyAsync / cuMemcpyAsync_ptsz(
        to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream,
    ) |default| {
        linear(&resolve(stream, default)?, (Space::Unified, to), (Space::Unified, from), size, false)
    }

    stream fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds(to: CUdeviceptr, from: *const c_void, size: usize) |default| {
        linear(&resolve(DEFAULT, default)?, (Space::Device, to), (Space::Host, from as u64), size, true)
    }

    stream fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz(
        to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream,
    ) |default| {
        linear(&resolve(stream, default)?, (Space::Device, to), (Space::Host, from as u64), size, false)
    }

    stream fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: CUdeviceptr, size: usize) |default| {
        linear(&resolve(DEFAULT, default)?, (Space::Host, to as u64), (Space::Device, from), size, true)
    }

    stream fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz(
        to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream,
    ) |default| {
        linear(&resolve(stream, default)?, (Space::Host, to as u64), (Space::Device, from), size, false)
    }

    stream fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds(to: CUdeviceptr, from: CUdeviceptr, size: usize) |default| {
        linear(&resolve(DEFAULT, default)?, (Space::Device, to), (Space::Device, from), size, true)
    }

    stream fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz(
        to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream,
    ) |default| {
        linear(&resolve(stream, default)?, (Space::Device, to), (Space::Device, from), size, false)
    }

    stream fn cuMemcpyPeer / cuMemcpyPeer_ptds(
        to: CUdeviceptr, to_ctx: CUcontext, from: CUdeviceptr, from_ctx: CUcontext, size: usize,
    ) |default| {
        context::resolve(to_ctx)?.live()?;
        context::resolve(from_ctx)?.live()?;
        linear(&resolve(DEFAULT, default)?, (Space::Device, to), (Space::Device, from), size, true)
    }

    stream fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz(
        to: CUdeviceptr, to_ctx: CUcontext, from: CUdeviceptr, from_ctx: CUcontext, size: usize, stream: CUstream,
    ) |default| {
        context::resolve(to_ctx)?.live()?;
        context::resolve(from_ctx)?.live()?;
        linear(&resolve(stream, default)?, (Space::Device, to), (Space::Device, from), size, false)
    }

    stream fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds(what: In<Copy2D> as *const CUDA_MEMCPY2D) |default| {
        what.get()?.run(&resolve(DEFAULT, default)?, true)
    }

    stream fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds(what: In<Copy2D> as *const CUDA_MEMCPY2D) |default| {
        what.get()?.run(&resolve(DEFAULT, default)?, true)
    }

    stream fn cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz(
        what: In<Copy2D> as *const CUDA_MEMCPY2D, stream: CUstream,
    ) |default| {
        what.get()?.run(&resolve(stream, default)?, false)
    }

    stream fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds(what: In<Copy3D> as *const CUDA_MEMCPY3D) |default| {
        what.get()?.run(&resolve(DEFAULT, default)?, true)
    }

    stream fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz(
        what: In<Copy3D> as *const CUDA_MEMCPY3D, stream: CUstream,
    ) |default| {
        what.get()?.run(&resolve(stream, default)?, false)
    }
}

fn linear(target: &Target, to: (Space, u64), from: (Space, u64), size: usize, waits: bool) -> Res {
    let shape = Shape { width: size as u64, height: 1, depth: 1 };
    copy(target, Side::linear(to.0, to.1), Side::linear(from.0, from.1), shape, waits)
}

/// `CUDA_MEMCPY2D` with its enums as plain numbers, since C can put anything there.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy2D {
    src_x: usize,
    src_y: usize,
    src_type: c_uint,
    src_host: usize,
    src_device: u64,
    src_array: usize,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_type: c_uint,
    dst_host: usize,
    dst_device: u64,
    dst_array: usize,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`, likewise.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy3D {
    src_x: usize,
    src_y: usize,
    src_z: usize,
    src_lod: usize,
    src_type: c_uint,
    src_host: usize,
    src_device: u64,
    src_array: usize,
    reserved0: usize,
    src_pitch: usize,
    src_height: usize,
    dst_x: usize,
    dst_y: usize,
    dst_z: usize,
    dst_lod: usize,
    dst_type: c_uint,
    dst_host: usize,
    dst_device: u64,
    dst_array: usize,
    reserved1: usize,
    dst_pitch: usize,
    dst_height: usize,
    width: usize,
    height: usize,
    depth: usize,
}

const _: () = assert!(size_of::<Copy2D>() == size_of::<CUDA_MEMCPY2D>());
const _: () = assert!(size_of::<Copy3D>() == size_of::<CUDA_MEMCPY3D>());

/// One end: where it begins in a block of rows of `pitch` bytes and slices of `height` rows.
struct Corner {
    memory_type: c_uint,
    host: usize,
    device: u64,
    x: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
}

impl Corner {
    fn side(&self, width: usize) -> Res<Side> {
        let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
        let (space, base) = match self.memory_type {
            1 => (Space::Host, self.host as u64),
            2 => (Space::Device, self.device),
            4 => (Space::Unified, self.device),
            // Arrays are never made here, so there is none to copy.
            _ => return Err(bad),
        };
        // A pitch of 0 means rows side by side.
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        if self.x.checked_add(width).is_none_or(|end| end > pitch) {
            return Err(bad);
        }
        let slice = pitch.checked_mul(self.height).ok_or(bad)?;
        let skip = self.z.checked_mul(slice).zip(self.y.checked_mul(pitch));
        let skip = skip.and_then(|(z, y)| z.checked_add(y)?.checked_add(self.x)).ok_or(bad)?;
        let address = base.checked_add(skip as u64).ok_or(bad)?;
        Ok(Side { space, address, pitch: pitch as u64, slice: slice as u64 })
    }
}

impl Copy2D {
    fn run(&self, target: &Target, waits: bool) -> Res {
        let whole = Copy3D {
            src_x: self.src_x,
            src_y: self.src_y,
            src_z: 0,
            src_lod: 0,
            src_type: self.src_type,
            src_host: self.src_host,
            src_device: self.src_device,
            src_array: self.src_array,
            reserved0: 0,
            src_pitch: self.src_pitch,
            src_height: 0,
            dst_x: self.dst_x,
            dst_y: self.dst_y,
            dst_z: 0,
            dst_lod: 0,
            dst_type: self.dst_type,
            dst_host: self.dst_host,
            dst_device: self.dst_device,
            dst_array: self.dst_array,
            reserved1: 0,
            dst_pitch: self.dst_pitch,
            dst_height: 0,
            width: self.width,
            height: self.height,
            depth: 1,
        };
        whole.run(target, waits)
    }
}

impl Copy3D {
    fn run(&self, target: &Target, waits: bool) -> Res {
        if self.src_lod != 0 || self.dst_lod != 0 || self.reserved0 != 0 || self.reserved1 != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let rows = |given: usize| if given == 0 { self.height } else { given };
        let from = Corner {
            memory_type: self.src_type,
            host: self.src_host,
            device: self.src_device,
            x: self.src_x,
            y: self.src_y,
            z: self.src_z,
            pitch: self.src_pitch,
            height: rows(self.src_height),
        };
        let to = Corner {
            memory_type: self.dst_type,
            host: self.dst_host,
            device: self.dst_device,
            x: self.dst_x,
            y: self.dst_y,
            z: self.dst_z,
            pitch: self.dst_pitch,
            height: rows(self.dst_height),
        };
        let shape = Shape { width: self.width as u64, height: self.height as u64, depth: self.depth as u64 };
        copy(target, to.side(self.width)?, from.side(self.width)?, shape, waits)
    }
}
