//! Copies.

use super::{In, Res, abi};
use crate::gpu::context;
use crate::gpu::copy::{Space, copy_3d};
use crate::gpu::graph::error;
use crate::gpu::stream::{Target, resolve};
use cuda_api::graph;
use cuda_api::graph::work::{Copy3, CopyEnd};
use cuda_api::sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUcontext, CUdeviceptr, CUresult, CUstream};
use std::ffi::{c_uint, c_void};

/// The default stream, for functions without a stream parameter.
pub(super) const DEFAULT: CUstream = std::ptr::null_mut();

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
        contexts([to_ctx, from_ctx], size)?;
        linear(&resolve(DEFAULT, default)?, (Space::Device, to), (Space::Device, from), size, true)
    }

    stream fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz(
        to: CUdeviceptr, to_ctx: CUcontext, from: CUdeviceptr, from_ctx: CUcontext, size: usize, stream: CUstream,
    ) |default| {
        contexts([to_ctx, from_ctx], size)?;
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

    stream fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds(what: *const CUDA_MEMCPY3D) |default| {
        copy_3d(&resolve(DEFAULT, default)?, three(what)?, true)
    }

    stream fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz(
        what: *const CUDA_MEMCPY3D, stream: CUstream,
    ) |default| {
        copy_3d(&resolve(stream, default)?, three(what)?, false)
    }

    stream fn cuMemcpy3DPeer / cuMemcpy3DPeer_ptds(what: *const CUDA_MEMCPY3D_PEER) |default| {
        copy_3d(&resolve(DEFAULT, default)?, three_peer(what)?, true)
    }

    stream fn cuMemcpy3DPeerAsync / cuMemcpy3DPeerAsync_ptsz(
        what: *const CUDA_MEMCPY3D_PEER, stream: CUstream,
    ) |default| {
        copy_3d(&resolve(stream, default)?, three_peer(what)?, false)
    }
}

/// The contexts of a copy between devices must be some, if anything is copied.
fn contexts(both: [CUcontext; 2], size: usize) -> Res {
    if size == 0 {
        return Ok(());
    }
    both.into_iter().try_for_each(|c| match c.is_null() {
        true => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        false => context::resolve(c)?.live().map(drop),
    })
}

/// A plain copy, as a described one.
fn linear(target: &Target, to: (Space, u64), from: (Space, u64), size: usize, waits: bool) -> Res {
    let end = |(space, address)| match space {
        Space::Host => CopyEnd { memory: 1, host: address, ..CopyEnd::default() },
        Space::Device => CopyEnd { memory: 2, device: address, ..CopyEnd::default() },
        Space::Unified => CopyEnd { memory: 4, device: address, ..CopyEnd::default() },
    };
    copy_3d(target, Copy3 { src: end(from), dst: end(to), width: size as u64, rows: 1, depth: 1 }, waits)
}

fn three(what: *const CUDA_MEMCPY3D) -> Res<Copy3> {
    graph::copy_3d(what).map_err(error)
}

/// The struct for two devices has the plain one's fields at the same offsets, contexts where that one reserves room. Where memory is
/// its address says.
fn three_peer(p: *const CUDA_MEMCPY3D_PEER) -> Res<Copy3> {
    if p.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null; only pointer fields are read.
    let (both, size) = unsafe { ([(*p).dstContext, (*p).srcContext], [(*p).WidthInBytes, (*p).Height, (*p).Depth]) };
    contexts(both, usize::from(!size.contains(&0)))?;
    graph::copy_3d_peer(p).map_err(error)
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

const _: () = assert!(size_of::<Copy2D>() == size_of::<CUDA_MEMCPY2D>());

impl Copy2D {
    fn run(&self, target: &Target, waits: bool) -> Res {
        let src = CopyEnd {
            x: self.src_x as u64,
            y: self.src_y as u64,
            memory: self.src_type,
            host: self.src_host as u64,
            device: self.src_device,
            array: self.src_array as u64,
            pitch: self.src_pitch as u64,
            ..CopyEnd::default()
        };
        let dst = CopyEnd {
            x: self.dst_x as u64,
            y: self.dst_y as u64,
            memory: self.dst_type,
            host: self.dst_host as u64,
            device: self.dst_device,
            array: self.dst_array as u64,
            pitch: self.dst_pitch as u64,
            ..CopyEnd::default()
        };
        copy_3d(target, Copy3 { src, dst, width: self.width as u64, rows: self.height as u64, depth: 1 }, waits)
    }
}
