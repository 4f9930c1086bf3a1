//! Sends copies to a place.

use crate::base::encoding::encoded;
use crate::calls::copy::rect::Rect;
use crate::enter::CallContext;
use crate::job::Device;
use crate::order::landing;
use cuda_api::code::Code;
use executor::Direct;

/// A copy that the device can make by itself.
pub(crate) fn copy_device(cx: &CallContext, device: &'static Device, known: bool, r: Rect, stream: u64) -> Result<(), Code> {
    landing::before_work(cx, device, stream)?;
    operate(cx, device, known, &r.within_reach(stream))
}

/// Sends work on memory that the recorder knows; for other addresses waits for the place's answer, since only the place can tell whether
/// they are valid.
pub(crate) fn submit(cx: &CallContext, device: &'static Device, known: bool, op: u16, parts: &[&[u8]]) -> Result<(), Code> {
    if known { cx.work(device, op, parts) } else { cx.ask(device, op, parts).map(drop) }
}

/// As [`submit`], for an operation that needs no encoding in this process.
pub(crate) fn operate<O: Direct>(cx: &CallContext, device: &'static Device, known: bool, op: &O) -> Result<(), Code> {
    if known || cx.place(device).in_process().is_some() {
        return cx.operate(device, op).map(drop);
    }
    encoded(op, |body| cx.ask(device, O::ID, &[body])).map(drop)
}
