//! Device memory: the recorder chooses every address, in an arena that is the same in every place.
//!
//! Physical memory is mapped in chunks of 2 MiB and multiples ([`ops::Chunk`], journalled). Allocations of 1 MiB and more have a chunk of
//! their own; smaller ones are parts of shared chunks, in multiples of 512 bytes as in the native driver. Freed chunks stay mapped as
//! spare chunks up to a limit and serve later allocations; they count as free, and are released before an allocation fails.
//!
//! `cuMemFree` waits for the work submitted before it, as the native call was observed to do (docs/driver-facts.md 4.2), so an address is
//! never reused while a kernel can still access it. It makes no round trip if nothing was submitted since everything was last known to be
//! complete. [`pools`] contains stream-ordered allocation, which does not wait.

use crate::base::log::lock;
use crate::calls::cross_device;
use crate::device_memory::stream_ordered::{owner, release};
use crate::device_memory::supply::allocate;
use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::allocations::MemoryReport;
use crate::objects::pool::STEP;
use cuda_api::code::{self, Code};
use cuda_api::pointer::OutPtr;
use cuda_api::wire::Wire;
use cuda_api::{ops, sys};
use std::ffi::c_uint;
use std::time::{Duration, Instant};

pub(crate) mod attributes;
pub(crate) mod pools;
pub(crate) mod shared_pools;

/// Maximum age of the place's figure of free memory.
const FRESH: Duration = Duration::from_millis(50);

pub(crate) fn cuMemAlloc_v2(cx: &mut CallContext, dptr: OutPtr<sys::CUdeviceptr>, bytesize: usize) -> Result<(), Code> {
    crate::order::captures::forbid_unsafe(cx)?;
    let device = cx.device()?;
    let dptr = dptr.not_null()?;
    dptr.write(allocate(cx, device, bytesize as u64)?)
}

pub(crate) fn cuMemAllocPitch_v2(
    cx: &mut CallContext,
    dptr: OutPtr<sys::CUdeviceptr>,
    pitch: OutPtr<usize>,
    width: usize,
    height: usize,
    element: c_uint,
) -> Result<(), Code> {
    crate::order::captures::forbid_unsafe(cx)?;
    let device = cx.device()?;
    if dptr.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(STEP as usize).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    let bytes = row.checked_mul(height).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    dptr.write(allocate(cx, device, bytes as u64)?)?;
    pitch.write(row)
}

pub(crate) fn cuMemFree_v2(cx: &mut CallContext, dptr: u64) -> Result<(), Code> {
    crate::order::captures::forbid_unsafe(cx)?;
    if dptr == 0 {
        return Ok(());
    }
    if let Some(freed) = crate::host_memory::free_managed(cx, dptr) {
        return freed;
    }
    if let Some(freed) = crate::calls::external::free(cx, dptr) {
        return freed;
    }
    let (device, pooled) = owner(cx, dptr)?;
    // For memory of pools the call does not wait (CUDA driver API reference): the program guarantees that it is not in use.
    if !pooled {
        cx.settle(device)?;
        cross_device::settle(cx, device);
    }
    device.check()?;
    if crate::calls::graph::free_of_graph(cx, dptr)? {
        return Ok(());
    }
    let a = device.memory_mut().forget(dptr)?;
    release(cx, device, [(dptr, a)]);
    Ok(())
}

pub(crate) fn cuMemGetInfo_v2(cx: &mut CallContext) -> Result<(usize, usize), Code> {
    memory_info(cx, cx.device()?)
}

/// Free and total memory of a device.
pub(crate) fn memory_info(cx: &CallContext, device: &'static Device) -> Result<(usize, usize), Code> {
    device.check()?;
    let epoch = device.epoch.load(std::sync::atomic::Ordering::Relaxed);
    let report = device.memory().report.filter(|t| t.epoch == epoch && t.at.elapsed() < FRESH);
    let report = match report {
        Some(t) => t,
        None => {
            // What is mapped does not change between the answer and this count of it.
            let _mapping = lock(&device.mapping);
            let mapped = device.memory().mapped;
            let bytes = cx.ask(device, ops::id::MEMORY_INFO, &[])?;
            let (free, total) = <(u64, u64)>::get(&mut &bytes[..]).map_err(|_| code::ERROR_UNKNOWN)?;
            let report = MemoryReport { at: Instant::now(), epoch, free, total, mapped };
            device.memory_mut().report = Some(report);
            report
        }
    };
    let m = device.memory();
    let now = (report.free + report.mapped + m.spare_bytes).saturating_sub(m.mapped).min(report.total);
    Ok((now as usize, report.total as usize))
}

pub(crate) fn cuMemGetAddressRange_v2(cx: &mut CallContext, ptr: u64) -> Result<(sys::CUdeviceptr, usize), Code> {
    cx.device()?;
    let allocated = cx.job.devices.iter().find_map(|d| d.memory().find(ptr)).map(|f| (f.start, f.bytes));
    let of_host = || crate::pinned::blocks::find(ptr).map(|f| (f.start, f.bytes));
    let found = allocated.or_else(|| crate::device_memory::mappings::find(ptr).map(|f| (f.start, f.bytes))).or_else(of_host);
    let variable = || crate::device_memory::variables::find(cx, ptr).map(|v| (v.start, v.bytes));
    let (start, bytes) = found.or_else(variable).ok_or(code::ERROR_NOT_FOUND)?;
    Ok((start, bytes as usize))
}
