//! The fill functions.

use crate::calls::copy::rect::{End, HostFill};
use crate::calls::copy::sending::operate;
use crate::calls::{host_function, memory};
use crate::device_memory::peer;
use crate::device_memory::regions::{self, is_device};
use crate::enter::CallContext;
use crate::host_memory::places;
use crate::order::{captures, landing};
use crate::pinned::blocks;
use cuda_api::arg::{Capture, LEGACY};
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, Fill};
use cuda_api::sys;
use cuda_api::work::{self, Work};
use std::ffi::{c_uchar, c_uint, c_ushort};

fn fill(
    cx: &mut CallContext,
    dst: u64,
    pitch: usize,
    value: u32,
    element: u8,
    width: usize,
    rows: usize,
    stream: u64,
    waits: bool,
) -> Result<(), Code> {
    let stream = cx.use_stream(stream)?;
    let device = cx.device()?;
    device.check()?;
    let bytes = width.checked_mul(element.into()).ok_or(code::ERROR_INVALID_VALUE)? as u64;
    if bytes == 0 || rows == 0 {
        return Ok(());
    }
    let size = u64::from(element);
    if !dst.is_multiple_of(size) || (rows > 1 && (!(pitch as u64).is_multiple_of(size) || (pitch as u64) < bytes)) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let home = if cx.job.devices.len() > 1 { regions::home(cx.job, dst) } else { None }.unwrap_or(device);
    let span = End::device(dst, pitch as u64).span(bytes, rows as u64)?;
    let known = home.check_range(dst, span)?;
    if home.index != device.index && !peer::reaches(device, home) {
        // On a device whose context is not current: begins in stream order, and is complete when the call returns.
        captures::forbid_on(cx, device, stream)?;
        cx.wait(device, ops::id::STREAM_SYNC, &stream.to_le_bytes())?;
        cx.on(home);
        fill(cx, dst, pitch, value, element, width, rows, LEGACY, true)?;
        return cx.wait(home, ops::id::STREAM_SYNC, &LEGACY.to_le_bytes()).map(drop);
    }
    if cx.job.graphs.capturing() {
        let (pitch, width, rows) = (pitch as u64, width as u64, rows as u64);
        let node = || Ok(Work::Fill(work::Fill { dst, pitch, value, element: element.into(), width, rows }));
        if captures::take(cx, device, stream, waits, node)? {
            return Ok(());
        }
    }
    let op = Fill { dst, pitch: pitch as u64, value, element, width: width as u64, rows: rows as u64, stream };
    landing::before_work(cx, device, stream)?;
    if !is_device(dst) && blocks::is_pinned(dst, span) && !places::is_reached(cx.place(device), dst, span) {
        // The place does not have this memory, and a fill is no reason to mirror it there from now on.
        host_function::fill_in_order(cx, device, stream, HostFill(op))?;
    } else {
        operate(cx, device, known, &op)?;
    }
    // Fills of memory that the host can read are complete when the call returns, as CUDA's reference documents.
    let is_seen = || !is_device(dst) && blocks::find(dst).is_some();
    if waits && (memory::attributes::waits(cx, dst) || is_seen()) { cx.settle_stream(device, stream) } else { Ok(()) }
}

macro_rules! fills {
    ($($plain:ident $plain_async:ident $pitched:ident $pitched_async:ident $t:ty, $size:literal;)*) => {$(
        pub(crate) fn $plain(cx: &mut CallContext, dst: sys::CUdeviceptr, v: $t, n: usize) -> Result<(), Code> {
            fill(cx, dst, 0, v.into(), $size, n, 1, 0, true)
        }
        pub(crate) fn $plain_async(cx: &mut CallContext, dst: sys::CUdeviceptr, v: $t, n: usize, stream: sys::CUstream) -> Result<(), Code> {
            fill(cx, dst, 0, v.into(), $size, n, 1, stream as u64, false)
        }
        pub(crate) fn $pitched(cx: &mut CallContext, dst: sys::CUdeviceptr, pitch: usize, v: $t, w: usize, h: usize) -> Result<(), Code> {
            fill(cx, dst, pitch, v.into(), $size, w, h, 0, true)
        }
        pub(crate) fn $pitched_async(cx: &mut CallContext, dst: sys::CUdeviceptr, pitch: usize, v: $t, w: usize, h: usize, stream: sys::CUstream) -> Result<(), Code> {
            fill(cx, dst, pitch, v.into(), $size, w, h, stream as u64, false)
        }
    )*};
}
fills! {
    cuMemsetD8_v2 cuMemsetD8Async cuMemsetD2D8_v2 cuMemsetD2D8Async c_uchar, 1;
    cuMemsetD16_v2 cuMemsetD16Async cuMemsetD2D16_v2 cuMemsetD2D16Async c_ushort, 2;
    cuMemsetD32_v2 cuMemsetD32Async cuMemsetD2D32_v2 cuMemsetD2D32Async c_uint, 4;
}
