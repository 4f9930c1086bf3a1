//! The copy functions, from their parameters to a rectangle.

use super::{End, Rect, Until, check_ends, copy, described};
use crate::enter::Entered;
use crate::{array_copy, context, graph};
use cuda_api::arg::Capture;
use cuda_api::array::ARRAY;
use cuda_api::code::{self, Code};
use cuda_api::graph::work::{Copy3, CopyEnd, Work};
use cuda_api::sys;
use std::ffi::c_void;

fn linear(cx: &mut Entered, dst: End, src: End, bytes: usize, stream: u64, until: Until) -> Result<(), Code> {
    copy(cx, Rect { dst, src, width: bytes as u64, rows: 1 }, stream, until)
}

pub(crate) fn cuMemcpy(cx: &mut Entered, dst: sys::CUdeviceptr, src: sys::CUdeviceptr, n: usize) -> Result<(), Code> {
    linear(cx, End::at(dst, 0), End::at(src, 0), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyAsync(
    cx: &mut Entered,
    dst: sys::CUdeviceptr,
    src: sys::CUdeviceptr,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    linear(cx, End::at(dst, 0), End::at(src, 0), n, stream as u64, Until::Submitted)
}

pub(crate) fn cuMemcpyHtoD_v2(cx: &mut Entered, dst: sys::CUdeviceptr, src: *const c_void, n: usize) -> Result<(), Code> {
    linear(cx, End::device(dst, 0), End::host(src, 0), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyHtoDAsync_v2(
    cx: &mut Entered,
    dst: sys::CUdeviceptr,
    src: *const c_void,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    linear(cx, End::device(dst, 0), End::host(src, 0), n, stream as u64, Until::Submitted)
}

pub(crate) fn cuMemcpyDtoH_v2(cx: &mut Entered, dst: *mut c_void, src: sys::CUdeviceptr, n: usize) -> Result<(), Code> {
    linear(cx, End::host(dst, 0), End::device(src, 0), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyDtoHAsync_v2(
    cx: &mut Entered,
    dst: *mut c_void,
    src: sys::CUdeviceptr,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    linear(cx, End::host(dst, 0), End::device(src, 0), n, stream as u64, Until::Submitted)
}

pub(crate) fn cuMemcpyDtoD_v2(cx: &mut Entered, dst: sys::CUdeviceptr, src: sys::CUdeviceptr, n: usize) -> Result<(), Code> {
    linear(cx, End::device(dst, 0), End::device(src, 0), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyDtoDAsync_v2(
    cx: &mut Entered,
    dst: sys::CUdeviceptr,
    src: sys::CUdeviceptr,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    linear(cx, End::device(dst, 0), End::device(src, 0), n, stream as u64, Until::Submitted)
}

/// Reads a field of a C struct that the program filled, enums as integers.
macro_rules! raw_enum {
    ($s:expr, $field:ident) => {
        // SAFETY: the pointer was checked for null and the program says that it is such a struct.
        unsafe { (&raw const (*$s).$field).cast::<u32>().read() }
    };
}

fn copy_2d(cx: &mut Entered, p: *const sys::CUDA_MEMCPY2D, stream: u64, until: Until) -> Result<(), Code> {
    if p.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (src_kind, dst_kind) = (raw_enum!(p, srcMemoryType), raw_enum!(p, dstMemoryType));
    // SAFETY: not null; every field but the enums read above is valid for any bits.
    let c = unsafe { (&raw const (*p)).cast::<std::mem::MaybeUninit<sys::CUDA_MEMCPY2D>>().read() };
    let c = c.as_ptr();
    // SAFETY: `c` is a copy of the program's struct; only integer and pointer fields are read.
    let (sx, sy, sh, sd, sp) = unsafe { ((*c).srcXInBytes, (*c).srcY, (*c).srcHost, (*c).srcDevice, (*c).srcPitch) };
    // SAFETY: as above.
    if unsafe { (*c).WidthInBytes == 0 || (*c).Height == 0 } && (src_kind == 0 || dst_kind == 0) {
        // Where nothing is copied nobody asks what kind of memory it is.
        cx.use_stream(stream)?;
        return cx.device()?.check();
    }
    if src_kind == ARRAY || dst_kind == ARRAY {
        // SAFETY: as above.
        let copy = unsafe { flat(c, src_kind, dst_kind) };
        return array_copy::copy(cx, &copy, stream, until);
    }
    // SAFETY: as above.
    let (dx, dy, dh, dd, dp, w, h) =
        unsafe { ((*c).dstXInBytes, (*c).dstY, (*c).dstHost, (*c).dstDevice, (*c).dstPitch, (*c).WidthInBytes, (*c).Height) };
    let offset = |x: usize, y: usize, pitch: usize| {
        y.checked_mul(pitch).and_then(|b| b.checked_add(x)).map(|b| b as u64).ok_or(code::ERROR_INVALID_VALUE)
    };
    let (sp, dp) = (if sp == 0 { w } else { sp }, if dp == 0 { w } else { dp });
    let src = described(src_kind, sh, sd, sp, offset(sx, sy, sp)?)?;
    let dst = described(dst_kind, dh, dd, dp, offset(dx, dy, dp)?)?;
    copy(cx, Rect { dst, src, width: w as u64, rows: h as u64 }, stream, until)
}

/// A rectangle as a box.
///
/// # Safety
/// `c` points at the struct; nothing but its enums may hold any bits.
unsafe fn flat(c: *const sys::CUDA_MEMCPY2D, src_kind: u32, dst_kind: u32) -> Copy3 {
    let end = |x: usize, y: usize, memory, host: u64, device, array: sys::CUarray, pitch: usize| CopyEnd {
        x: x as u64,
        y: y as u64,
        memory,
        host,
        device,
        array: array as u64,
        pitch: pitch as u64,
        ..CopyEnd::default()
    };
    // SAFETY: as the caller says; only integer and pointer fields are read.
    unsafe {
        let host = (*c).srcHost as u64;
        let src = end((*c).srcXInBytes, (*c).srcY, src_kind, host, (*c).srcDevice, (*c).srcArray, (*c).srcPitch);
        let host = (*c).dstHost as u64;
        let dst = end((*c).dstXInBytes, (*c).dstY, dst_kind, host, (*c).dstDevice, (*c).dstArray, (*c).dstPitch);
        Copy3 { src, dst, width: (*c).WidthInBytes as u64, rows: (*c).Height as u64, depth: 1 }
    }
}

pub(crate) fn cuMemcpy2D_v2(cx: &mut Entered, p: *const sys::CUDA_MEMCPY2D) -> Result<(), Code> {
    copy_2d(cx, p, 0, Until::Done)
}

pub(crate) fn cuMemcpy2DUnaligned_v2(cx: &mut Entered, p: *const sys::CUDA_MEMCPY2D) -> Result<(), Code> {
    copy_2d(cx, p, 0, Until::Done)
}

pub(crate) fn cuMemcpy2DAsync_v2(cx: &mut Entered, p: *const sys::CUDA_MEMCPY2D, stream: sys::CUstream) -> Result<(), Code> {
    copy_2d(cx, p, stream as u64, Until::Submitted)
}

fn copy_3d(cx: &mut Entered, p: *const sys::CUDA_MEMCPY3D, stream: u64, until: Until) -> Result<(), Code> {
    if p.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (src_kind, dst_kind) = (raw_enum!(p, srcMemoryType), raw_enum!(p, dstMemoryType));
    // SAFETY: not null; only integer and pointer fields are read.
    let (w, h, depth, slod, dlod) = unsafe { ((*p).WidthInBytes, (*p).Height, (*p).Depth, (*p).srcLOD, (*p).dstLOD) };
    if slod != 0 || dlod != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if w == 0 || h == 0 || depth == 0 {
        // Also where nothing is copied there must be a context.
        cx.use_stream(stream)?;
        cx.device()?;
    }
    // SAFETY: as above.
    let (sx, sy, sz, sh, sd, sp, sheight) =
        unsafe { ((*p).srcXInBytes, (*p).srcY, (*p).srcZ, (*p).srcHost, (*p).srcDevice, (*p).srcPitch, (*p).srcHeight) };
    // SAFETY: as above.
    let (dx, dy, dz, dh, dd, dp, dheight) =
        unsafe { ((*p).dstXInBytes, (*p).dstY, (*p).dstZ, (*p).dstHost, (*p).dstDevice, (*p).dstPitch, (*p).dstHeight) };
    let offset = |x: usize, y: usize, z: usize, pitch: usize, height: usize| {
        let rows = z.checked_mul(height).and_then(|r| r.checked_add(y));
        rows.and_then(|r| r.checked_mul(pitch)).and_then(|b| b.checked_add(x)).map(|b| b as u64).ok_or(code::ERROR_INVALID_VALUE)
    };
    if src_kind == ARRAY || dst_kind == ARRAY {
        return array_copy::copy(cx, &cuda_api::graph::copy_3d(p)?, stream, until);
    }
    if cx.job.graphs.capturing() {
        let described = cuda_api::graph::copy_3d(p)?;
        let stream = cx.use_stream(stream)?;
        let device = cx.device()?;
        let node = || check_ends(device, &described).map(|()| Work::Copy(described));
        if graph::take(cx, device, stream, until == Until::Done, node)? {
            return Ok(());
        }
    }
    let (sp, dp) = (if sp == 0 { w } else { sp }, if dp == 0 { w } else { dp });
    let (sheight, dheight) = (if sheight == 0 { h } else { sheight }, if dheight == 0 { h } else { dheight });
    for z in 0..depth {
        let src = described(src_kind, sh, sd, sp, offset(sx, sy, sz + z, sp, sheight)?)?;
        let dst = described(dst_kind, dh, dd, dp, offset(dx, dy, dz + z, dp, dheight)?)?;
        copy(cx, Rect { dst, src, width: w as u64, rows: h as u64 }, stream, until)?;
    }
    Ok(())
}

pub(crate) fn cuMemcpy3D_v2(cx: &mut Entered, p: *const sys::CUDA_MEMCPY3D) -> Result<(), Code> {
    copy_3d(cx, p, 0, Until::Done)
}

pub(crate) fn cuMemcpy3DAsync_v2(cx: &mut Entered, p: *const sys::CUDA_MEMCPY3D, stream: sys::CUstream) -> Result<(), Code> {
    copy_3d(cx, p, stream as u64, Until::Submitted)
}

pub(crate) fn cuMemcpyPeer(
    cx: &mut Entered,
    dst: sys::CUdeviceptr,
    to: sys::CUcontext,
    src: sys::CUdeviceptr,
    from: sys::CUcontext,
    n: usize,
) -> Result<(), Code> {
    contexts(cx, [to, from], n)?;
    linear(cx, End::device(dst, 0), End::device(src, 0), n, 0, Until::Done)
}

pub(crate) fn cuMemcpyPeerAsync(
    cx: &mut Entered,
    dst: sys::CUdeviceptr,
    to: sys::CUcontext,
    src: sys::CUdeviceptr,
    from: sys::CUcontext,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    contexts(cx, [to, from], n)?;
    linear(cx, End::device(dst, 0), End::device(src, 0), n, stream as u64, Until::Submitted)
}

/// The contexts of a copy between devices must be some, if anything is copied; where the memory is, its address says.
fn contexts(cx: &Entered, both: [sys::CUcontext; 2], bytes: usize) -> Result<(), Code> {
    if bytes == 0 {
        return cx.device().map(drop);
    }
    both.into_iter().try_for_each(|c| match c.is_null() {
        true => Err(code::ERROR_INVALID_VALUE),
        false => context::device_of(cx.job, c as u64).map(drop),
    })
}

fn copy_3d_peer(cx: &mut Entered, p: *const sys::CUDA_MEMCPY3D_PEER, stream: u64, until: Until) -> Result<(), Code> {
    if p.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null; only pointer fields are read.
    let (both, size) = unsafe { ([(*p).dstContext, (*p).srcContext], [(*p).WidthInBytes, (*p).Height, (*p).Depth]) };
    contexts(cx, both, usize::from(!size.contains(&0)))?;
    // The plain struct has the same fields at the same offsets, and reserves those of the contexts.
    copy_3d(cx, p.cast(), stream, until)
}
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<sys::CUDA_MEMCPY3D_PEER>() == size_of::<sys::CUDA_MEMCPY3D>());
    assert!(offset_of!(sys::CUDA_MEMCPY3D_PEER, srcPitch) == offset_of!(sys::CUDA_MEMCPY3D, srcPitch));
    assert!(offset_of!(sys::CUDA_MEMCPY3D_PEER, dstXInBytes) == offset_of!(sys::CUDA_MEMCPY3D, dstXInBytes));
    assert!(offset_of!(sys::CUDA_MEMCPY3D_PEER, Depth) == offset_of!(sys::CUDA_MEMCPY3D, Depth));
};

pub(crate) fn cuMemcpy3DPeer(cx: &mut Entered, p: *const sys::CUDA_MEMCPY3D_PEER) -> Result<(), Code> {
    copy_3d_peer(cx, p, 0, Until::Done)
}

pub(crate) fn cuMemcpy3DPeerAsync(
    cx: &mut Entered,
    p: *const sys::CUDA_MEMCPY3D_PEER,
    stream: sys::CUstream,
) -> Result<(), Code> {
    copy_3d_peer(cx, p, stream as u64, Until::Submitted)
}
