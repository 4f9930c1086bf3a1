//! Allocations of `cuMemAlloc`: how they begin and end.

use crate::device_memory::{chunks, stream_ordered};
use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::chunks::Request;
use cuda_api::code::{self, Code};

pub(crate) fn allocate(cx: &CallContext, device: &'static Device, bytes: u64) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if bytes > device.info.total_bytes {
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    device.check()?;
    take(cx, device, Request::Allocation(bytes))
}

/// Serves a request; if there is no memory, waits for frees in streams first.
pub(crate) fn take(cx: &CallContext, device: &'static Device, request: Request) -> Result<u64, Code> {
    stream_ordered::with_reclaim(cx, device, || chunks::take(cx, device, request)).map(|found| found.address)
}

/// Frees what was allocated in a context that is destroyed.
pub(crate) fn free_of(cx: &CallContext, device: &'static Device, ctx: u64) -> Result<(), Code> {
    let mine = device.memory_mut().forget_context(ctx)?;
    stream_ordered::release(cx, device, mine);
    Ok(())
}
