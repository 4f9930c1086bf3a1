//! The copy functions, from their parameters to a rectangle.

use crate::calls::array_copy;
use crate::calls::copy::checks::check_ends;
use crate::calls::copy::copy;
use crate::calls::copy::rect::{End, Rect, Until, ends};
use crate::enter::CallContext;
use crate::job::contexts;
use crate::order::captures;
use cuda_api::arg::Capture;
use cuda_api::code::{self, Code};
use cuda_api::pointer::InPtr;
use cuda_api::sys;
use cuda_api::work::{Copy3, Work};
use std::ffi::c_void;

fn linear(cx: &mut CallContext, dst: End, src: End, bytes: usize, stream: u64, until: Until) -> Result<(), Code> {
    copy(cx, Rect { dst, src, width: bytes as u64, rows: 1 }, stream, until)
}

pub(crate) fn cuMemcpy(cx: &mut CallContext, dst: sys::CUdeviceptr, src: sys::CUdeviceptr, n: usize) -> Result<(), Code> {
    linear(cx, End::at(dst, 0), End::at(src, 0), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyAsync(
    cx: &mut CallContext,
    dst: sys::CUdeviceptr,
    src: sys::CUdeviceptr,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    linear(cx, End::at(dst, 0), End::at(src, 0), n, stream as u64, Until::Submitted)
}

pub(crate) fn cuMemcpyHtoD_v2(cx: &mut CallContext, dst: sys::CUdeviceptr, src: *const c_void, n: usize) -> Result<(), Code> {
    linear(cx, End::device(dst, 0), End::host(src, 0), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyHtoDAsync_v2(
    cx: &mut CallContext,
    dst: sys::CUdeviceptr,
    src: *const c_void,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    linear(cx, End::device(dst, 0), End::host(src, 0), n, stream as u64, Until::Submitted)
}

pub(crate) fn cuMemcpyDtoH_v2(cx: &mut CallContext, dst: *mut c_void, src: sys::CUdeviceptr, n: usize) -> Result<(), Code> {
    linear(cx, End::host(dst, 0), End::device(src, 0), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyDtoHAsync_v2(
    cx: &mut CallContext,
    dst: *mut c_void,
    src: sys::CUdeviceptr,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    linear(cx, End::host(dst, 0), End::device(src, 0), n, stream as u64, Until::Submitted)
}

pub(crate) fn cuMemcpyDtoD_v2(cx: &mut CallContext, dst: sys::CUdeviceptr, src: sys::CUdeviceptr, n: usize) -> Result<(), Code> {
    linear(cx, End::device(dst, 0), End::device(src, 0), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyDtoDAsync_v2(
    cx: &mut CallContext,
    dst: sys::CUdeviceptr,
    src: sys::CUdeviceptr,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    linear(cx, End::device(dst, 0), End::device(src, 0), n, stream as u64, Until::Submitted)
}

/// A described copy, slice by slice, unless it contains arrays.
pub(super) fn described_copy(cx: &mut CallContext, c: &Copy3, stream: u64, until: Until) -> Result<(), Code> {
    if [c.width, c.rows, c.depth].contains(&0) {
        // A context is required even if nothing is copied.
        cx.use_stream(stream)?;
        cx.device()?.check()?;
        if c.src.memory == 0 || c.dst.memory == 0 {
            // But the kind of memory is not checked.
            return Ok(());
        }
    }
    let [Some((dst, _)), Some((src, _))] = ends(c)? else { return array_copy::copy(cx, c, stream, until) };
    let slice = |e: End, height: u64, z: u64| {
        let height = if height == 0 { c.rows } else { height };
        End { address: e.address + z * height * e.pitch, ..e }
    };
    (0..c.depth).try_for_each(|z| {
        let (dst, src) = (slice(dst, c.dst.height, z), slice(src, c.src.height, z));
        copy(cx, Rect { dst, src, width: c.width, rows: c.rows }, stream, until)
    })
}

pub(crate) fn cuMemcpy2D_v2(cx: &mut CallContext, p: InPtr<sys::CUDA_MEMCPY2D>) -> Result<(), Code> {
    described_copy(cx, &cuda_api::copy::copy_2d(p)?, 0, Until::Done)
}

pub(crate) fn cuMemcpy2DUnaligned_v2(cx: &mut CallContext, p: InPtr<sys::CUDA_MEMCPY2D>) -> Result<(), Code> {
    described_copy(cx, &cuda_api::copy::copy_2d(p)?, 0, Until::Done)
}

pub(crate) fn cuMemcpy2DAsync_v2(cx: &mut CallContext, p: InPtr<sys::CUDA_MEMCPY2D>, stream: sys::CUstream) -> Result<(), Code> {
    described_copy(cx, &cuda_api::copy::copy_2d(p)?, stream as u64, Until::Submitted)
}

fn copy_3d(cx: &mut CallContext, c: &Copy3, stream: u64, until: Until) -> Result<(), Code> {
    if cx.job.graphs.capturing() {
        let stream = cx.use_stream(stream)?;
        let device = cx.device()?;
        if captures::take(cx, device, stream, until == Until::Done, || check_ends(device, c).map(|()| Work::Copy(*c)))? {
            return Ok(());
        }
    }
    described_copy(cx, c, stream, until)
}

pub(crate) fn cuMemcpy3D_v2(cx: &mut CallContext, p: InPtr<sys::CUDA_MEMCPY3D>) -> Result<(), Code> {
    copy_3d(cx, &cuda_api::copy::copy_3d(p)?, 0, Until::Done)
}

pub(crate) fn cuMemcpy3DAsync_v2(cx: &mut CallContext, p: InPtr<sys::CUDA_MEMCPY3D>, stream: sys::CUstream) -> Result<(), Code> {
    copy_3d(cx, &cuda_api::copy::copy_3d(p)?, stream as u64, Until::Submitted)
}

pub(crate) fn cuMemcpyPeer(
    cx: &mut CallContext,
    dst: sys::CUdeviceptr,
    to: sys::CUcontext,
    src: sys::CUdeviceptr,
    from: sys::CUcontext,
    n: usize,
) -> Result<(), Code> {
    contexts(cx, [to as u64, from as u64], n > 0)?;
    linear(cx, End::device(dst, 0), End::device(src, 0), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyPeerAsync(
    cx: &mut CallContext,
    dst: sys::CUdeviceptr,
    to: sys::CUcontext,
    src: sys::CUdeviceptr,
    from: sys::CUcontext,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    contexts(cx, [to as u64, from as u64], n > 0)?;
    linear(cx, End::device(dst, 0), End::device(src, 0), n, stream as u64, Until::Submitted)
}

/// Checks the contexts of a copy between devices: they must be valid if anything is copied; the addresses determine where the memory is.
fn contexts(cx: &CallContext, both: [u64; 2], copies: bool) -> Result<(), Code> {
    if !copies {
        return cx.device().map(drop);
    }
    both.into_iter().try_for_each(|c| match c {
        0 => Err(code::ERROR_INVALID_VALUE),
        c => contexts::device_of(cx.job, c).map(drop),
    })
}

fn copy_3d_peer(cx: &mut CallContext, p: InPtr<sys::CUDA_MEMCPY3D_PEER>, stream: u64, until: Until) -> Result<(), Code> {
    let (both, copies) = cuda_api::copy::peer_contexts(p)?;
    contexts(cx, both, copies)?;
    copy_3d(cx, &cuda_api::copy::copy_3d_peer(p)?, stream, until)
}

pub(crate) fn cuMemcpy3DPeer(cx: &mut CallContext, p: InPtr<sys::CUDA_MEMCPY3D_PEER>) -> Result<(), Code> {
    copy_3d_peer(cx, p, 0, Until::Done)
}

pub(crate) fn cuMemcpy3DPeerAsync(
    cx: &mut CallContext,
    p: InPtr<sys::CUDA_MEMCPY3D_PEER>,
    stream: sys::CUstream,
) -> Result<(), Code> {
    copy_3d_peer(cx, p, stream as u64, Until::Submitted)
}
