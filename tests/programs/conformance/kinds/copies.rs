//! Copies between memory of all kinds.

use super::{
    BYTES, MUCH, Memory, World, all, case, case_of, end, one_is_used, pairs, raw_2d, raw_3d, rows, slices, world, world_of_used,
    zeroed,
};
use crate::tell::Tell;
use cuda_api::array::{DEVICE, HOST, UNIFIED};
use cuda_api::sys::{CUDA_MEMCPY3D_PEER, CUdeviceptr, CUmemcpyAttributes};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Copies between all kinds.
pub fn copies(t: &Tell) {
    let w = world(t);
    pairs(t, &w, all, |from, to| pair(t, &w, from, to));
}

/// Copies and batches from or to memory of the host's that a GPU uses by its address.
pub fn copies_of_used(t: &Tell) {
    let w = world_of_used(t);
    pairs(t, &w, one_is_used, |from, to| {
        pair(t, &w, from, to);
        batch(t, &w, from, to);
    });
}

fn pair(t: &Tell, w: &World, from: &Memory, to: &Memory) {
    let (src, dst, s) = (from.at, to.at, w.stream);
    case(t, "cuMemcpy", to, || call!(t, memory.cuMemcpy(dst, src, BYTES)));
    case(t, "cuMemcpyAsync", to, || call!(t, memory.cuMemcpyAsync(dst, src, BYTES, s)));
    case(t, "cuMemcpyAsync of an odd part", to, || call!(t, memory.cuMemcpyAsync(dst + 3, src + 1, 41, s)));
    // What overlaps has no defined result.
    if from.bytes >= MUCH && to.bytes >= MUCH && from.at.abs_diff(to.at) >= MUCH as u64 {
        case_of(t, "cuMemcpy of much", to, MUCH, || call!(t, memory.cuMemcpy(dst, src, MUCH)));
        case_of(t, "cuMemcpyAsync of much", to, MUCH, || call!(t, memory.cuMemcpyAsync(dst, src, MUCH, s)));
    }
    case(t, "cuMemcpyDtoD_v2", to, || call!(t, memory.cuMemcpyDtoD_v2(dst, src, BYTES)));
    case(t, "cuMemcpyDtoDAsync_v2", to, || call!(t, memory.cuMemcpyDtoDAsync_v2(dst, src, BYTES, s)));
    case(t, "cuMemcpyPeer", to, || call!(t, memory.cuMemcpyPeer(dst, w.context, src, w.context, BYTES)));
    case(t, "cuMemcpyPeerAsync", to, || call!(t, memory.cuMemcpyPeerAsync(dst, w.context, src, w.context, BYTES, s)));
    if from.host {
        let src = src as *const c_void;
        case(t, "cuMemcpyHtoD_v2", to, || call!(t, memory.cuMemcpyHtoD_v2(dst, src, BYTES)));
        case(t, "cuMemcpyHtoDAsync_v2", to, || call!(t, memory.cuMemcpyHtoDAsync_v2(dst, src, BYTES, s)));
    }
    if to.host {
        let dst = dst as *mut c_void;
        case(t, "cuMemcpyDtoH_v2", to, || call!(t, memory.cuMemcpyDtoH_v2(dst, src, BYTES)));
        case(t, "cuMemcpyDtoHAsync_v2", to, || call!(t, memory.cuMemcpyDtoHAsync_v2(dst, src, BYTES, s)));
    }
    let named = |m: &Memory| if m.host { HOST } else { DEVICE };
    for (how, from_type, to_type) in [("by address", UNIFIED, UNIFIED), ("by name", named(from), named(to))] {
        let flat = raw_2d(&rows(end(from_type, src), end(to_type, dst)));
        case(t, &format!("cuMemcpy2D_v2 {how}"), to, || call!(t, memory.cuMemcpy2D_v2(flat.as_ptr())));
        case(t, &format!("cuMemcpy2DUnaligned_v2 {how}"), to, || call!(t, memory.cuMemcpy2DUnaligned_v2(flat.as_ptr())));
        case(t, &format!("cuMemcpy2DAsync_v2 {how}"), to, || call!(t, memory.cuMemcpy2DAsync_v2(flat.as_ptr(), s)));
        let deep = raw_3d(&slices(end(from_type, src), end(to_type, dst)));
        case(t, &format!("cuMemcpy3D_v2 {how}"), to, || call!(t, memory.cuMemcpy3D_v2(deep.as_ptr())));
        case(t, &format!("cuMemcpy3DAsync_v2 {how}"), to, || call!(t, memory.cuMemcpy3DAsync_v2(deep.as_ptr(), s)));
        let mut peer: MaybeUninit<CUDA_MEMCPY3D_PEER> = zeroed();
        let p = peer.as_mut_ptr();
        // SAFETY: both structs are as long and have the same fields, but for the contexts, which are reserved words in the plain one.
        unsafe {
            std::ptr::copy_nonoverlapping(deep.as_ptr().cast::<u8>(), p.cast(), size_of::<CUDA_MEMCPY3D_PEER>());
            (&raw mut (*p).srcContext).write(w.context);
            (&raw mut (*p).dstContext).write(w.context);
        }
        case(t, &format!("cuMemcpy3DPeer {how}"), to, || call!(t, memory.cuMemcpy3DPeer(p)));
        case(t, &format!("cuMemcpy3DPeerAsync {how}"), to, || call!(t, memory.cuMemcpy3DPeerAsync(p, s)));
    }
}

/// Batches of copies, with each promise about their sources.
pub fn batches(t: &Tell) {
    let w = world(t);
    pairs(t, &w, all, |from, to| batch(t, &w, from, to));
}

fn batch(t: &Tell, w: &World, from: &Memory, to: &Memory) {
    // `CUmemcpySrcAccessOrder`: none, in the stream's order, during the call, at any time.
    for order in 0..4u32 {
        let half = BYTES / 2;
        let mut dsts: [CUdeviceptr; 2] = [to.at, to.at + half as u64];
        let mut srcs: [CUdeviceptr; 2] = [from.at, from.at + half as u64];
        let (mut sizes, mut first, mut fail) = ([half; 2], 0usize, 77usize);
        let mut attributes: MaybeUninit<CUmemcpyAttributes> = zeroed();
        // SAFETY: the first field, an enum of as many bytes.
        unsafe { attributes.as_mut_ptr().cast::<u32>().write(order) };
        let (d, s, n, first, fail) = (dsts.as_mut_ptr(), srcs.as_mut_ptr(), sizes.as_mut_ptr(), &raw mut first, &raw mut fail);
        let a = attributes.as_mut_ptr();
        case(t, &format!("cuMemcpyBatchAsync_v2, order {order}"), to, || {
            call!(t, memory.cuMemcpyBatchAsync_v2(d, s, n, 2, a, first, 1, w.stream))
        });
        case(t, &format!("cuMemcpyBatchAsync, order {order}"), to, || {
            call!(t, memory.cuMemcpyBatchAsync(d, s, n, 2, a, first, 1, fail, w.stream))
        });
        let mut op = operation(&[1, from.at, 0, 0, 0], &[1, to.at, 0, 0, 0], order);
        case(t, &format!("cuMemcpy3DBatchAsync_v2, order {order}"), to, || {
            call!(t, memory.cuMemcpy3DBatchAsync_v2(1, op.as_mut_ptr().cast(), 0, w.stream))
        });
        case(t, &format!("cuMemcpy3DBatchAsync, order {order}"), to, || {
            call!(t, memory.cuMemcpy3DBatchAsync(1, op.as_mut_ptr().cast(), fail, 0, w.stream))
        });
    }
}

/// `CUDA_MEMCPY3D_BATCH_OP`: two operands (1: an address with a row's length and a layer's height; 2: an array with an offset), the extent, the
/// source's order.
pub(super) fn operation(src: &[u64; 5], dst: &[u64; 5], order: u32) -> [u64; 14] {
    let extent = [super::ROW as u64, (BYTES / super::ROW) as u64, 1];
    let mut op = [0; 14];
    op[..5].copy_from_slice(src);
    op[5..10].copy_from_slice(dst);
    op[10..13].copy_from_slice(&extent);
    op[13] = order.into();
    op
}
