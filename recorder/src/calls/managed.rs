//! Managed memory: memory of the arena that host and kernels use at one address. It is host memory, or mirrored on both machines if the
//! place does not share it; advice and prefetches are checked and stored for queries, without any other effect.

use crate::base::log::lock;
use crate::enter::CallContext;
use crate::host_memory;
use crate::host_memory::managed_variables::find;
use crate::pinned::blocks::{self, Kind};
use cuda_api::arg::{Capture, LEGACY};
use cuda_api::code::{self, Code};
use cuda_api::flags::{LOCATION_DEVICE, LOCATION_HOST, LOCATION_HOST_NUMA, LOCATION_HOST_NUMA_CURRENT};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::{handle, sys};
use cuda_model::advice::{self, Advice};
use cuda_model::batch::{self, Location};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::Mutex;

/// `CU_MEM_ATTACH_GLOBAL`, `CU_MEM_ATTACH_HOST`, `CU_MEM_ATTACH_SINGLE`
const GLOBAL: u32 = 1;
const HOST: u32 = 2;
const SINGLE: u32 = 4;
/// `CU_DEVICE_CPU`
const CPU: c_int = -1;

/// The advice given, stored in the job.
static ADVICE: Mutex<Advice> = Mutex::new(Advice::new());

pub(crate) fn cuMemAllocManaged(
    cx: &mut CallContext,
    dptr: OutPtr<sys::CUdeviceptr>,
    bytesize: usize,
    flags: c_uint,
) -> Result<(), Code> {
    crate::order::captures::forbid_unsafe(cx)?;
    let device = cx.device()?;
    device.check()?;
    if dptr.is_null() || bytesize == 0 || !matches!(flags, GLOBAL | HOST) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let at = host_memory::make(cx, device, bytesize as u64, 0, Kind::Managed)?;
    lock(&ADVICE).forget(at, bytesize as u64);
    dptr.write(at)
}

/// Checks that all of a range is managed memory of one allocation.
fn check_range(at: u64, bytes: u64) -> Result<(), Code> {
    let found = blocks::find(at).filter(|f| f.managed && bytes > 0 && bytes <= f.bytes - (at - f.start));
    found.map(drop).ok_or(code::ERROR_INVALID_VALUE)
}

/// Checks that a location for memory exists.
fn check_location(cx: &CallContext, kind: u32, ordinal: c_int) -> Result<(), Code> {
    match kind {
        LOCATION_DEVICE => cx.job.device(ordinal).map(drop),
        LOCATION_HOST | LOCATION_HOST_NUMA | LOCATION_HOST_NUMA_CURRENT => Ok(()),
        _ => Err(code::ERROR_INVALID_VALUE),
    }
}

/// A `CUmemLocation` as it is passed by value: its kind and its number.
fn parts(location: u64) -> (u32, c_int) {
    (location as u32, (location >> 32) as c_int)
}

/// The older functions identify a device, or the processor.
fn named(device: c_int) -> (u32, c_int) {
    if device == CPU { (LOCATION_HOST, 0) } else { (LOCATION_DEVICE, device) }
}

fn advise(cx: &CallContext, at: u64, bytes: usize, advice: u32, location: (u32, c_int)) -> Result<(), Code> {
    cx.device()?.check()?;
    let range = check_range(at, bytes as u64);
    let exists = |(kind, ordinal): (u32, c_int)| check_location(cx, kind, ordinal).is_ok();
    if advice::check(advice, range, location, exists)? {
        lock(&ADVICE).advise(at, bytes as u64, advice, location);
    }
    Ok(())
}

pub(crate) fn cuMemAdvise(cx: &mut CallContext, at: u64, count: usize, advice: u32, device: c_int) -> Result<(), Code> {
    advise(cx, at, count, advice, named(device))
}

pub(crate) fn cuMemAdvise_v2(cx: &mut CallContext, at: u64, count: usize, advice: u32, location: u64) -> Result<(), Code> {
    advise(cx, at, count, advice, parts(location))
}

fn prefetch(cx: &mut CallContext, at: u64, bytes: usize, (kind, ordinal): (u32, c_int), stream: u64) -> Result<(), Code> {
    let stream = cx.use_stream(stream)?;
    let device = cx.device()?;
    device.check()?;
    check_range(at, bytes as u64)?;
    check_location(cx, kind, ordinal)?;
    crate::order::captures::forbid_on(cx, device, stream)?;
    lock(&ADVICE).prefetch(at, bytes as u64, (kind, ordinal));
    Ok(())
}

pub(crate) fn cuMemPrefetchAsync(cx: &mut CallContext, at: u64, count: usize, device: c_int, stream: u64) -> Result<(), Code> {
    prefetch(cx, at, count, named(device), stream)
}

pub(crate) fn cuMemPrefetchAsync_v2(
    cx: &mut CallContext,
    at: u64,
    count: usize,
    location: u64,
    flags: c_uint,
    stream: u64,
) -> Result<(), Code> {
    if flags != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    prefetch(cx, at, count, parts(location), stream)
}

/// Checks prefetches of ranges to a location, or to any, in stream order.
fn prefetch_all(
    cx: &mut CallContext,
    ranges: impl FnOnce() -> Result<Vec<(u64, usize, Option<Location>)>, Code>,
    stream: sys::CUstream,
) -> Result<(), Code> {
    let stream = cx.use_stream(stream as u64)?;
    if stream == LEGACY {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let ranges = ranges()?;
    let device = cx.device()?;
    device.check()?;
    for (at, bytes, to) in &ranges {
        check_range(*at, *bytes as u64)?;
        to.map_or(Ok(()), |(kind, ordinal)| check_location(cx, kind, ordinal))?;
    }
    crate::order::captures::forbid_on(cx, device, stream)?;
    let mut advice = lock(&ADVICE);
    for (at, bytes, to) in ranges {
        if let Some(to) = to {
            advice.prefetch(at, bytes as u64, to);
        }
    }
    Ok(())
}

pub(crate) fn cuMemRangeGetAttribute(
    cx: &mut CallContext,
    to: OutPtr<c_void>,
    size: usize,
    attribute: u32,
    at: sys::CUdeviceptr,
    bytes: usize,
) -> Result<(), Code> {
    cx.device()?.check()?;
    check_range(at, bytes as u64)?;
    lock(&ADVICE).write_attribute(to, attribute, size, at, bytes as u64)
}

pub(crate) fn cuMemRangeGetAttributes(
    cx: &mut CallContext,
    to: InPtr<*mut c_void>,
    sizes: InPtr<usize>,
    attributes: InPtr<sys::CUmem_range_attribute>,
    n: usize,
    at: sys::CUdeviceptr,
    bytes: usize,
) -> Result<(), Code> {
    cx.device()?.check()?;
    check_range(at, bytes as u64)?;
    lock(&ADVICE).write_attributes((to, sizes, attributes.cast(), n), at, bytes as u64)
}

pub(crate) fn cuMemPrefetchBatchAsync(
    cx: &mut CallContext,
    at: InPtr<sys::CUdeviceptr>,
    sizes: InPtr<usize>,
    count: usize,
    locations: InPtr<sys::CUmemLocation>,
    from: InPtr<usize>,
    n: usize,
    flags: c_ulonglong,
    stream: sys::CUstream,
) -> Result<(), Code> {
    prefetch_all(cx, || batch::ranges((at, sizes, count), Some((locations, from, n)), flags), stream)
}

pub(crate) fn cuMemDiscardBatchAsync(
    cx: &mut CallContext,
    at: InPtr<sys::CUdeviceptr>,
    sizes: InPtr<usize>,
    count: usize,
    flags: c_ulonglong,
    stream: sys::CUstream,
) -> Result<(), Code> {
    prefetch_all(cx, || batch::ranges((at, sizes, count), None, flags), stream)
}

pub(crate) use cuMemPrefetchBatchAsync as cuMemDiscardAndPrefetchBatchAsync;

pub(crate) fn cuStreamAttachMemAsync(
    cx: &mut CallContext,
    stream: u64,
    at: u64,
    length: usize,
    flags: c_uint,
) -> Result<(), Code> {
    // Memory can be attached only to a stream that the program has created.
    if !matches!(flags, GLOBAL | HOST | SINGLE) || (flags == SINGLE && stream == 0) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let stream = cx.use_stream(stream)?;
    let device = cx.device()?;
    device.check()?;
    let found = blocks::find(at).filter(|f| f.managed && f.start == at);
    if found.is_none_or(|f| length != 0 && length as u64 != f.bytes) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    crate::order::captures::forbid_on(cx, device, stream)
}

pub(crate) fn cuLibraryGetManaged(
    cx: &mut CallContext,
    dptr: OutPtr<sys::CUdeviceptr>,
    bytes: OutPtr<usize>,
    library: sys::CUlibrary,
    name: InPtr<c_char>,
) -> Result<(), Code> {
    let library = cx.use_handle(handle::Kind::Library, handle::Kind::Library, library as u64)?;
    if name.is_null() || dptr.is_null() && bytes.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (at, size) = find(cx, library, name.c_str()?.to_bytes()).ok_or(code::ERROR_NOT_FOUND)?;
    dptr.write_if_wanted(at);
    bytes.write_if_wanted(size as usize);
    Ok(())
}

#[cfg(test)]
mod tests;
