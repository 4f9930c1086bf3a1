//! Batches of copies: one after the other in their stream, each reading its source as its attributes promise.

use crate::calls::copy::described_copy;
use crate::calls::copy::rect::{HostCopy, Rect, Until, ends, plain, read_plain};
use crate::calls::{host_function, stream_memory};
use crate::enter::CallContext;
use crate::job::array_lookup;
use crate::order::captures;
use crate::pinned::blocks;
use cuda_api::arg::{Capture, LEGACY};
use cuda_api::code::{self, Code};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys;
use cuda_api::work::{Copy3, CopyEnd, HOST};
use cuda_model::batch::{self, Fault, Item, Order};
use std::ffi::c_ulonglong;

/// Carries out the items that `items` returns, on a stream that must not be the legacy one.
fn run(
    cx: &mut CallContext,
    items: impl FnOnce(&CallContext) -> Result<Vec<Item>, Fault>,
    stream: sys::CUstream,
) -> Result<(), Fault> {
    let live = cx.use_stream(stream as u64)?;
    if live == LEGACY {
        return Err(code::ERROR_INVALID_VALUE.into());
    }
    let items = items(cx)?;
    let device = cx.device()?;
    device.check()?;
    captures::refuse_on(cx, device, live)?;
    for (i, item) in items.iter().enumerate() {
        one(cx, item, stream as u64).map_err(|code| Fault { code, at: Some(i) })?;
    }
    Ok(())
}

fn one(cx: &mut CallContext, item: &Item, stream: u64) -> Result<(), Code> {
    let live = cx.use_stream(stream)?;
    let device = cx.device()?;
    let c = &item.copy;
    let ends = ends(c)?;
    if let [Some((dst, _)), Some((src, _))] = ends
        && !dst.device
        && !src.device
        && c.rows == 1
        && c.depth == 1
    {
        let r = Rect { dst, src, width: c.width, rows: 1 };
        // Unlike individual copies (measured).
        if item.order == Order::Stream && src.is_pinned(&r)? && dst.is_pinned(&r)? {
            return host_function::copy_in_order(cx, device, live, HostCopy::new(&r));
        }
    }
    let of_host = ends[1].filter(|(end, _)| !end.device);
    match (item.order, of_host) {
        (Order::Stream, Some((end, span))) if !blocks::is_pinned(end.address, span) => {
            // Usually pageable memory is read at the call: here earlier work in the stream may still write it.
            if stream_memory::waited_here() || host_function::changes_later(cx, device, live, end.address, span) {
                cx.settle_turn(device, live)?;
            }
            described_copy(cx, c, stream, Until::Submitted)
        }
        (Order::DuringCall, Some((end, span))) if blocks::find(end.address).is_some() => {
            if !blocks::is_pinned(end.address, span) {
                return Err(code::ERROR_INVALID_VALUE);
            }
            let c = plain(c);
            let bytes = read_plain(&c);
            let src = CopyEnd { memory: HOST, host: bytes.as_ptr() as u64, ..CopyEnd::default() };
            described_copy(cx, &Copy3 { src, ..c }, stream, Until::Submitted)
        }
        (Order::DuringCall, None) => {
            described_copy(cx, c, stream, Until::Submitted)?;
            cx.settle_stream(device, live)
        }
        _ => described_copy(cx, c, stream, Until::Submitted),
    }
}

pub(crate) fn cuMemcpyBatchAsync_v2(
    cx: &mut CallContext,
    dsts: InPtr<sys::CUdeviceptr>,
    srcs: InPtr<sys::CUdeviceptr>,
    sizes: InPtr<usize>,
    count: usize,
    attributes: InPtr<sys::CUmemcpyAttributes>,
    from: InPtr<usize>,
    n: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    run(cx, |_| batch::copies((dsts, srcs, sizes, count), (attributes, from, n)), stream).map_err(|f| f.code)
}

pub(crate) fn cuMemcpyBatchAsync(
    cx: &mut CallContext,
    dsts: InPtr<sys::CUdeviceptr>,
    srcs: InPtr<sys::CUdeviceptr>,
    sizes: InPtr<usize>,
    count: usize,
    attributes: InPtr<sys::CUmemcpyAttributes>,
    from: InPtr<usize>,
    n: usize,
    fail: OutPtr<usize>,
    stream: sys::CUstream,
) -> Result<(), Code> {
    run(cx, |_| batch::copies((dsts, srcs, sizes, count), (attributes, from, n)), stream).map_err(|f| f.write_index(fail))
}

/// Size of an element of an array.
fn element(cx: &CallContext, array: u64) -> Result<u64, Code> {
    array_lookup::find(cx.job, array).map_err(|_| code::ERROR_INVALID_VALUE)?.shape.element()
}

pub(crate) fn cuMemcpy3DBatchAsync_v2(
    cx: &mut CallContext,
    count: usize,
    ops: InPtr<sys::CUDA_MEMCPY3D_BATCH_OP>,
    flags: c_ulonglong,
    stream: sys::CUstream,
) -> Result<(), Code> {
    run(cx, |cx| batch::boxes(ops, count, flags, |a| element(cx, a)), stream).map_err(|f| f.code)
}

pub(crate) fn cuMemcpy3DBatchAsync(
    cx: &mut CallContext,
    count: usize,
    ops: InPtr<sys::CUDA_MEMCPY3D_BATCH_OP>,
    fail: OutPtr<usize>,
    flags: c_ulonglong,
    stream: sys::CUstream,
) -> Result<(), Code> {
    run(cx, |cx| batch::boxes(ops, count, flags, |a| element(cx, a)), stream).map_err(|f| f.write_index(fail))
}
