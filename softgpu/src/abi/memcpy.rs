//! Copies.

use super::{Res, abi};
use crate::gpu::array;
use crate::gpu::context;
use crate::gpu::copy::{Space, copy_3d, copy_all};
use crate::gpu::graph_table::error;
use crate::gpu::stream::{Default, Target, resolve};
use crate::gpu::stream_state::Kind;
use cuda_api::code::{self, Code};
use cuda_api::copy;
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUDA_MEMCPY3D_PEER, CUcontext, CUdeviceptr, CUmemcpyAttributes,
    CUresult, CUstream,
};
use cuda_api::work::{Copy3, CopyEnd};
use cuda_model::batch::{self, Fault, Item};
use std::ffi::{c_ulonglong, c_void};

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
        contexts([to_ctx, from_ctx], size > 0)?;
        linear(&resolve(DEFAULT, default)?, (Space::Device, to), (Space::Device, from), size, true)
    }

    stream fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz(
        to: CUdeviceptr, to_ctx: CUcontext, from: CUdeviceptr, from_ctx: CUcontext, size: usize, stream: CUstream,
    ) |default| {
        contexts([to_ctx, from_ctx], size > 0)?;
        linear(&resolve(stream, default)?, (Space::Device, to), (Space::Device, from), size, false)
    }

    stream fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds(what: InPtr<CUDA_MEMCPY2D> as *const CUDA_MEMCPY2D) |default| {
        copy_3d(&resolve(DEFAULT, default)?, two(what)?, true)
    }

    stream fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds(what: InPtr<CUDA_MEMCPY2D> as *const CUDA_MEMCPY2D) |default| {
        copy_3d(&resolve(DEFAULT, default)?, two(what)?, true)
    }

    stream fn cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz(
        what: InPtr<CUDA_MEMCPY2D> as *const CUDA_MEMCPY2D, stream: CUstream,
    ) |default| {
        copy_3d(&resolve(stream, default)?, two(what)?, false)
    }

    stream fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds(what: InPtr<CUDA_MEMCPY3D> as *const CUDA_MEMCPY3D) |default| {
        copy_3d(&resolve(DEFAULT, default)?, three(what)?, true)
    }

    stream fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz(
        what: InPtr<CUDA_MEMCPY3D> as *const CUDA_MEMCPY3D, stream: CUstream,
    ) |default| {
        copy_3d(&resolve(stream, default)?, three(what)?, false)
    }

    stream fn cuMemcpy3DPeer / cuMemcpy3DPeer_ptds(what: InPtr<CUDA_MEMCPY3D_PEER> as *const CUDA_MEMCPY3D_PEER) |default| {
        copy_3d(&resolve(DEFAULT, default)?, three_peer(what)?, true)
    }

    stream fn cuMemcpy3DPeerAsync / cuMemcpy3DPeerAsync_ptsz(
        what: InPtr<CUDA_MEMCPY3D_PEER> as *const CUDA_MEMCPY3D_PEER, stream: CUstream,
    ) |default| {
        copy_3d(&resolve(stream, default)?, three_peer(what)?, false)
    }

    stream fn cuMemcpyBatchAsync_v2 / cuMemcpyBatchAsync_v2_ptsz(
        dsts: InPtr<CUdeviceptr> as *mut CUdeviceptr, srcs: InPtr<CUdeviceptr> as *mut CUdeviceptr,
        sizes: InPtr<usize> as *mut usize, count: usize, attributes: InPtr<CUmemcpyAttributes> as *mut CUmemcpyAttributes,
        from: InPtr<usize> as *mut usize, n: usize, stream: CUstream,
    ) |default| {
        run(stream, default, || batch::copies((dsts, srcs, sizes, count), (attributes, from, n))).map_err(|f| f.code)
    }

    stream fn cuMemcpyBatchAsync / cuMemcpyBatchAsync_ptsz [gone] (
        dsts: InPtr<CUdeviceptr> as *mut CUdeviceptr, srcs: InPtr<CUdeviceptr> as *mut CUdeviceptr,
        sizes: InPtr<usize> as *mut usize, count: usize, attributes: InPtr<CUmemcpyAttributes> as *mut CUmemcpyAttributes,
        from: InPtr<usize> as *mut usize, n: usize, fail: OutPtr<usize> as *mut usize, stream: CUstream,
    ) |default| {
        run(stream, default, || batch::copies((dsts, srcs, sizes, count), (attributes, from, n))).map_err(|f| f.write_index(fail))
    }

    stream fn cuMemcpy3DBatchAsync_v2 / cuMemcpy3DBatchAsync_v2_ptsz(
        count: usize, ops: InPtr<CUDA_MEMCPY3D_BATCH_OP> as *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream,
    ) |default| {
        run(stream, default, || batch::boxes(ops, count, flags, element)).map_err(|f| f.code)
    }

    stream fn cuMemcpy3DBatchAsync / cuMemcpy3DBatchAsync_ptsz [gone] (
        count: usize, ops: InPtr<CUDA_MEMCPY3D_BATCH_OP> as *mut CUDA_MEMCPY3D_BATCH_OP, fail: OutPtr<usize> as *mut usize,
        flags: c_ulonglong, stream: CUstream,
    ) |default| {
        run(stream, default, || batch::boxes(ops, count, flags, element)).map_err(|f| f.write_index(fail))
    }
}

/// Bytes of an element of an array.
fn element(array: u64) -> Result<u64, Code> {
    array::resolve(array as usize).map_err(|_| code::ERROR_INVALID_VALUE)?.shape.element()
}

/// A batch, on a stream that must not be the legacy one.
fn run(stream: CUstream, default: Default, items: impl FnOnce() -> Result<Vec<Item>, Fault>) -> Result<(), Fault<CUresult>> {
    let target = not_legacy(stream, default)?;
    copy_all(&target, &items().map_err(|f| f.map(error))?)
}

/// The stream of a batch, which must not be the legacy one.
pub(super) fn not_legacy(stream: CUstream, default: Default) -> Res<Target> {
    let target = resolve(stream, default)?;
    if target.stream.kind == Kind::Legacy { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(target) }
}

/// The contexts of a copy between devices must be valid, if anything is copied.
fn contexts(both: [CUcontext; 2], copies: bool) -> Res {
    if !copies {
        return Ok(());
    }
    both.into_iter().try_for_each(|c| match c.is_null() {
        true => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        false => context::resolve(c)?.live().map(drop),
    })
}

/// A plain copy in the form of a described one.
fn linear(target: &Target, to: (Space, u64), from: (Space, u64), size: usize, waits: bool) -> Res {
    let end = |(space, address)| match space {
        Space::Host => CopyEnd { memory: 1, host: address, ..CopyEnd::default() },
        Space::Device => CopyEnd { memory: 2, device: address, ..CopyEnd::default() },
        Space::Unified => CopyEnd { memory: 4, device: address, ..CopyEnd::default() },
    };
    copy_3d(target, Copy3 { src: end(from), dst: end(to), width: size as u64, rows: 1, depth: 1 }, waits)
}

fn two(what: InPtr<CUDA_MEMCPY2D>) -> Res<Copy3> {
    copy::copy_2d(what).map_err(error)
}

fn three(what: InPtr<CUDA_MEMCPY3D>) -> Res<Copy3> {
    copy::copy_3d(what).map_err(error)
}

/// The struct for two devices has the plain one's fields at the same offsets, contexts where that one reserves room. Where memory is
/// its address says.
fn three_peer(p: InPtr<CUDA_MEMCPY3D_PEER>) -> Res<Copy3> {
    let (both, copies) = copy::peer_contexts(p).map_err(error)?;
    contexts(both.map(|context| context as CUcontext), copies)?;
    copy::copy_3d_peer(p).map_err(error)
}
