//! Stream-ordered allocation: `cuMemAllocAsync`, `cuMemFreeAsync` and pools, without the driver's pools, whose addresses cannot be
//! chosen.
//!
//! Both calls are only book-keeping: an allocation returns memory that work of its stream may use from now on, a free determines from
//! which point of the stream on others may have it. Neither is an operation in the place, so there is no message unless physical memory
//! is short, and only an allocation that would otherwise fail waits for the GPU.

use crate::calls::graph;
use crate::device_memory::stream_ordered::{self, add, allocate, free, known, with_pool};
use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::allocations::default_of;
use crate::objects::pool::{Level, NO_STREAM, Pool};
use cuda_api::arg::Capture;
use cuda_api::code::{self, Code};
use cuda_api::flags::{ACCESS_READ_WRITE, ALLOCATION_PINNED, HANDLE_FILE_DESCRIPTOR, LOCATION_DEVICE};
use cuda_api::memory::{Access, Location, PoolProps};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys;
use std::ffi::c_void;

pub(crate) fn cuMemAllocAsync(cx: &mut CallContext, bytes: usize, stream: u64) -> Result<sys::CUdeviceptr, Code> {
    let device = cx.device()?;
    if let Some(address) = graph::take_alloc(cx, device, stream, bytes as u64)? {
        return Ok(address);
    }
    if bytes == 0 {
        return Ok(0);
    }
    let pool = device.memory().current_pool;
    allocate(cx, device, pool, stream, bytes as u64)
}

pub(crate) fn cuMemAllocFromPoolAsync(
    cx: &mut CallContext,
    bytes: usize,
    pool: u64,
    stream: u64,
) -> Result<sys::CUdeviceptr, Code> {
    let (device, pool) = known(cx, pool)?;
    let stream = cx.use_stream(stream)?;
    let on = cx.device()?;
    if let Some(address) = graph::take_alloc(cx, on, stream, bytes as u64)? {
        return Ok(address);
    }
    // Work of another device's stream does not order this device's.
    let stream = if cx.device()?.index == device.index { stream } else { NO_STREAM };
    allocate(cx, device, pool, stream, bytes as u64)
}

pub(crate) fn cuMemFreeAsync(cx: &mut CallContext, dptr: u64, stream: u64) -> Result<(), Code> {
    let on = cx.device()?;
    if dptr == 0 {
        return Ok(());
    }
    if graph::take_free(cx, on, stream, dptr)? || graph::free_of_graph(cx, dptr)? {
        return Ok(());
    }
    free(cx, on, stream, dptr)
}

pub(crate) fn cuMemPoolCreate(cx: &mut CallContext, p: PoolProps) -> Result<u64, Code> {
    if p.kind != ALLOCATION_PINNED || p.win32 != 0 || !(1..=4).contains(&p.location.kind) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if p.location.kind != LOCATION_DEVICE || p.handle_types & !HANDLE_FILE_DESCRIPTOR != 0 {
        // Memory of the host, and handles that only fabrics know.
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    let device = cx.job.device(p.location.ordinal)?;
    let mut pool = Pool::new(p.most as u64);
    pool.is_exportable = p.handle_types == HANDLE_FILE_DESCRIPTOR;
    Ok(add(device, pool))
}

pub(crate) fn cuMemPoolDestroy(cx: &mut CallContext, pool: u64) -> Result<(), Code> {
    let (device, pool) = known(cx, pool)?;
    let default = default_of(device.index);
    if pool == default {
        return Err(code::ERROR_INVALID_VALUE);
    }
    {
        let mut m = device.memory_mut();
        if m.current_pool == pool {
            m.current_pool = default;
        }
        if let Some(p) = m.pools.get_mut(&pool) {
            p.doomed = true;
        }
    }
    stream_ordered::check_fence(cx, device);
    // Generation 0 has no frees: this only removes empty pools.
    stream_ordered::complete(cx, device, None, 0);
    stream_ordered::begin_fence(cx, device)
}

pub(crate) fn cuMemPoolTrimTo(cx: &mut CallContext, pool: u64, keep: usize) -> Result<(), Code> {
    let (device, pool) = known(cx, pool)?;
    stream_ordered::check_fence(cx, device);
    stream_ordered::shrink(cx, device, pool, keep as u64);
    Ok(())
}

/// Where the value of an attribute is stored.
fn level(p: &mut Pool, attribute: u32) -> Option<(&mut Level, bool)> {
    use sys::CUmemPool_attribute_enum as A;
    let is = |a: A| attribute == a as u32;
    if is(A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) {
        Some((&mut p.reserved, false))
    } else if is(A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
        Some((&mut p.reserved, true))
    } else if is(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) {
        Some((&mut p.used, false))
    } else if is(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
        Some((&mut p.used, true))
    } else {
        None
    }
}

const RELEASE_THRESHOLD: u32 = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as u32;

pub(crate) fn cuMemPoolGetAttribute(
    cx: &mut CallContext,
    pool: sys::CUmemoryPool,
    attribute: u32,
    value: OutPtr<c_void>,
) -> Result<(), Code> {
    with_pool(cx, pool as u64, |p| {
        if let Some((level, high)) = level(p, attribute) {
            return value.typed::<u64>().write(if high { level.high } else { level.now });
        }
        match attribute {
            1..=3 => value.typed::<i32>().write(p.settings.reuse[attribute as usize - 1]),
            RELEASE_THRESHOLD => value.typed::<u64>().write(p.settings.threshold),
            _ => Err(code::ERROR_INVALID_VALUE),
        }
    })
}

pub(crate) fn cuMemPoolSetAttribute(
    cx: &mut CallContext,
    pool: sys::CUmemoryPool,
    attribute: u32,
    value: InPtr<c_void>,
) -> Result<(), Code> {
    with_pool(cx, pool as u64, |p| {
        if value.is_null() {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if let 1..=3 = attribute {
            p.settings.reuse[attribute as usize - 1] = i32::from(value.typed::<i32>().read()? != 0);
            return Ok(());
        }
        let wide = || value.typed::<u64>().read();
        if attribute == RELEASE_THRESHOLD {
            p.settings.threshold = wide()?;
            return Ok(());
        }
        match level(p, attribute) {
            // The maximum can be reset to the current value by setting it to zero.
            Some((level, true)) if wide()? == 0 => {
                level.high = level.now;
                Ok(())
            }
            _ => Err(code::ERROR_INVALID_VALUE),
        }
    })
}

pub(crate) fn cuMemPoolSetAccess(cx: &mut CallContext, pool: u64, map: Vec<Access>) -> Result<(), Code> {
    let (device, _) = known(cx, pool)?;
    if map.is_empty() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    for [kind, ordinal, flags] in map {
        if kind != LOCATION_DEVICE {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let other = cx.job.device(ordinal as i32)?;
        match (other.index == device.index, flags) {
            (true, ACCESS_READ_WRITE) | (false, 0) => {}
            // A device always has access to its own pool.
            (true, _) => return Err(code::ERROR_INVALID_VALUE),
            (false, _) => return Err(code::ERROR_PEER_ACCESS_UNSUPPORTED),
        }
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAccess(cx: &mut CallContext, pool: u64, at: Location) -> Result<u32, Code> {
    let (device, _) = known(cx, pool)?;
    if at.kind != LOCATION_DEVICE {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let own = cx.job.device(at.ordinal)?.index == device.index;
    Ok(if own { ACCESS_READ_WRITE } else { 0 })
}

/// The device of a location that has pools.
fn pool_device(cx: &CallContext, at: Location, kind: u32) -> Result<&'static Device, Code> {
    if at.kind == 0 || kind == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if at.kind != LOCATION_DEVICE || kind != ALLOCATION_PINNED {
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    cx.job.device(at.ordinal)
}

fn set_current(cx: &CallContext, device: &'static Device, pool: u64) -> Result<(), Code> {
    let (owner, pool) = known(cx, pool)?;
    if owner.index != device.index || owner.memory().pools.get(&pool).is_none_or(|p| p.lender.is_some()) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    device.memory_mut().current_pool = pool;
    Ok(())
}

pub(crate) fn cuDeviceGetDefaultMemPool(_cx: &mut CallContext, device: &Device) -> Result<u64, Code> {
    Ok(default_of(device.index))
}

pub(crate) fn cuDeviceGetMemPool(cx: &mut CallContext, dev: sys::CUdevice) -> Result<u64, Code> {
    // Unlike for the default pool, an invalid device number is an invalid value.
    let device = cx.job.device(dev).map_err(|_| code::ERROR_INVALID_VALUE)?;
    Ok(device.memory().current_pool)
}

pub(crate) fn cuDeviceSetMemPool(cx: &mut CallContext, dev: sys::CUdevice, pool: u64) -> Result<(), Code> {
    set_current(cx, cx.job.device(dev).map_err(|_| code::ERROR_INVALID_VALUE)?, pool)
}

pub(crate) fn cuMemGetDefaultMemPool(cx: &mut CallContext, at: Location, kind: u32) -> Result<u64, Code> {
    Ok(default_of(pool_device(cx, at, kind)?.index))
}

pub(crate) fn cuMemGetMemPool(cx: &mut CallContext, at: Location, kind: u32) -> Result<u64, Code> {
    Ok(pool_device(cx, at, kind)?.memory().current_pool)
}

pub(crate) fn cuMemSetMemPool(cx: &mut CallContext, at: Location, kind: u32, pool: u64) -> Result<(), Code> {
    set_current(cx, pool_device(cx, at, kind)?, pool)
}

#[cfg(test)]
mod tests;
