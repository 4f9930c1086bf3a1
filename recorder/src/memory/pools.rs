//! Stream-ordered allocation: `cuMemAllocAsync`, `cuMemFreeAsync` and pools, without the driver's pools, whose addresses cannot be
//! chosen.
//!
//! Both calls are only book-keeping: an allocation returns memory that work of its stream may use from now on, a free determines from
//! which point of the stream on others may have it. Neither is an operation in the place, so there is no message unless physical memory
//! is short, and only an allocation that would otherwise fail waits for the GPU.

use super::pool::{self, Level, NO_STREAM, Pool};
use super::{Allocation, Fence, GRANULE, Home, Memory, encode, owner};
use crate::context::write_out;
use crate::enter::CallContext;
use crate::graph;
use crate::job::Device;
use cuda_api::arg::{Capture, LEGACY};
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, compose};
use cuda_api::ops::{self, Fill};
use cuda_api::sys;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

/// Lower slots are for the devices' default pools.
const FIRST_CREATED: u32 = 32;
static NEXT: AtomicU32 = AtomicU32::new(FIRST_CREATED);

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: u32 = 3;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub(super) const DESCRIPTOR: u32 = 1;

/// The default pool of a device.
pub(super) fn default_of(device: u32) -> u64 {
    compose(Kind::Pool, 1, device)
}

impl Memory {
    /// Memory of a pool for work of `stream`; `true` if earlier work of the stream may still use it.
    fn take_from_pool(
        &mut self,
        cx: &CallContext,
        device: &'static Device,
        pool: u64,
        stream: u64,
        bytes: u64,
    ) -> Result<(u64, bool), Code> {
        let room = Pool::room(bytes).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let find = |m: &mut Memory| match m.pools.get_mut(&pool) {
            // A pool of another process only serves to import pointers of that process.
            Some(p) if p.lender.is_some() => Err(code::ERROR_INVALID_VALUE),
            Some(p) if !p.allows(room) => Err(code::ERROR_OUT_OF_MEMORY),
            Some(p) => Ok(p.take(stream, bytes)),
            None => Err(code::ERROR_INVALID_VALUE),
        };
        let mut found = find(self)?;
        if found.is_none() {
            self.look(cx, device);
            found = find(self)?;
        }
        if found.is_none() {
            self.begin_fence(cx, device)?;
            self.grow(cx, device, pool, room)?;
            found = find(self)?;
        }
        let found = found.ok_or(code::ERROR_OUT_OF_MEMORY)?;
        self.note(found.address, bytes, Home::Pool(pool));
        Ok((found.address, found.pending))
    }

    fn grow(&mut self, cx: &CallContext, device: &'static Device, pool: u64, room: u64) -> Result<(), Code> {
        let chunk = match self.chunk(cx, device, room.next_multiple_of(pool::GROWTH), true) {
            Err(code::ERROR_OUT_OF_MEMORY) => self.chunk(cx, device, room.next_multiple_of(GRANULE), true),
            other => other,
        }?;
        if let (Some(p), Some(bytes)) = (self.pools.get_mut(&pool), self.chunks.get(&chunk)) {
            p.grow(chunk, *bytes);
        }
        Ok(())
    }

    pub(super) fn give_to_pool(
        &mut self,
        cx: &CallContext,
        device: &'static Device,
        pool: u64,
        stream: u64,
        address: u64,
        bytes: u64,
    ) {
        let generation = self.generation;
        let Some(p) = self.pools.get_mut(&pool) else { return };
        p.give_back(stream, generation, address, bytes);
        if p.doomed && p.used.now == 0 {
            // It is released by a later call, when the work before this free is complete.
            let _ = self.begin_fence(cx, device);
        }
    }

    /// Begins a new generation if there are frees in this one. Returns the last one that has ended: it is complete when all current work
    /// is.
    fn seal(&mut self) -> u64 {
        let generation = self.generation;
        let late = self.late.iter().any(|(g, ..)| *g == generation);
        if late || self.pools.values().any(|p| p.has_pending(generation)) {
            self.generation += 1;
        }
        self.generation - 1
    }

    /// Requests a completion mark for all current work, unless one is under way already or no free needs it.
    pub(super) fn begin_fence(&mut self, cx: &CallContext, device: &'static Device) -> Result<(), Code> {
        let wanted = !self.late.is_empty() || self.pools.values().any(Pool::is_waiting);
        if self.fence.is_some() || !wanted {
            return Ok(());
        }
        let generation = self.seal();
        let epoch = device.epoch.load(Ordering::Relaxed);
        let waiting = device.record_error(cx.place(device).begin(ops::id::CONTEXT_SYNC, &[]))?;
        self.fence = Some(Fence { generation, epoch, waiting });
        Ok(())
    }

    /// Checks whether the fence is complete. A move waits until all work is complete, so a fence of an earlier place is.
    pub(super) fn look(&mut self, cx: &CallContext, device: &'static Device) {
        let epoch = device.epoch.load(Ordering::Relaxed);
        if let Some(f) = &mut self.fence
            && (f.epoch != epoch || f.waiting.is_done())
        {
            let generation = f.generation;
            self.fence = None;
            self.complete(cx, device, None, generation);
        }
    }

    /// Completes the frees up to a generation: of one stream, or all.
    pub(super) fn complete(&mut self, cx: &CallContext, device: &'static Device, stream: Option<u64>, generation: u64) {
        for p in self.pools.values_mut() {
            p.complete(stream, generation);
        }
        if stream.is_none() {
            let gone: Vec<_> = self.late.extract_if(.., |(g, ..)| *g <= generation).collect();
            for (_, address, a) in gone {
                self.release(cx, device, address, a);
            }
        }
        let doomed = |p: &Pool| p.doomed && p.used.now == 0 && !p.is_waiting();
        let ended: Vec<u64> = self.pools.iter().filter(|(_, p)| doomed(p)).map(|(h, _)| *h).collect();
        for pool in ended {
            self.shrink(cx, device, pool, 0);
            self.pools.remove(&pool);
        }
    }

    /// Releases free chunks of a pool until it has no more than `keep` bytes.
    fn shrink(&mut self, cx: &CallContext, device: &'static Device, pool: u64, keep: u64) {
        let gone = self.pools.get_mut(&pool).map(|p| p.release(keep)).unwrap_or_default();
        for chunk in gone {
            self.give_chunk(cx, device, chunk);
        }
    }

    /// Trims pools to their thresholds, as a synchronisation does.
    fn trim(&mut self, cx: &CallContext, device: &'static Device) {
        let held: Vec<(u64, u64)> =
            self.pools.iter().filter(|(_, p)| p.holds_too_much()).map(|(h, p)| (*h, p.settings.threshold)).collect();
        for (pool, keep) in held {
            self.shrink(cx, device, pool, keep);
        }
    }

    fn is_settled(&self) -> bool {
        self.late.is_empty() && !self.pools.values().any(|p| p.is_waiting() || p.holds_too_much())
    }
}

/// Called before a synchronisation is requested; [`after_sync`] takes the result.
pub(crate) fn before_sync(device: &'static Device) -> Option<u64> {
    if device.memory().is_settled() { None } else { Some(device.memory_mut().seal()) }
}

/// A synchronisation that began at `mark` has completed: of one stream, or of everything.
pub(crate) fn after_sync(cx: &CallContext, device: &'static Device, stream: Option<u64>, mark: Option<u64>) {
    let Some(generation) = mark else { return };
    let mut m = device.memory_mut();
    m.complete(cx, device, stream, generation);
    m.trim(cx, device);
}

/// Checks for completed frees when some work is known to be complete.
pub(crate) fn after_event(cx: &CallContext, device: &'static Device) {
    if device.memory().is_settled() {
        return;
    }
    let mut m = device.memory_mut();
    m.look(cx, device);
    m.trim(cx, device);
    // It fails only if the place is lost, which the next call reports.
    let _ = m.begin_fence(cx, device);
}

/// Waits for all work and releases the pools' free memory. Returns false if nothing could be released.
pub(crate) fn reclaim(cx: &CallContext, device: &'static Device) -> Result<bool, Code> {
    let generation = {
        let mut m = device.memory_mut();
        if m.late.is_empty() && m.pools.values().all(Pool::is_empty) {
            return Ok(false);
        }
        m.seal()
    };
    cx.wait(device, ops::id::CONTEXT_SYNC, &[])?;
    let mut m = device.memory_mut();
    m.complete(cx, device, None, generation);
    let pools: Vec<u64> = m.pools.keys().copied().collect();
    for pool in pools {
        m.shrink(cx, device, pool, 0);
    }
    Ok(true)
}

/// Allocates from a pool, for work of a stream.
pub(crate) fn allocate(cx: &CallContext, device: &'static Device, pool: u64, stream: u64, bytes: u64) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if bytes > device.info.total_bytes {
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    device.check()?;
    let take = || device.memory_mut().take_from_pool(cx, device, pool, stream, bytes);
    let (address, pending) = match take() {
        Err(code::ERROR_OUT_OF_MEMORY) if reclaim(cx, device)? => take(),
        other => other,
    }?;
    if pending && stream == LEGACY {
        // Other streams implicitly follow the default stream, but only if it has work. The allocation must count as work: otherwise a
        // stream could use the block concurrently with the stream that used it before the default stream freed it.
        let op = Fill { dst: address, pitch: 0, value: 0, element: 1, width: 1, rows: 1, stream };
        cx.work(device, ops::id::FILL, &[&encode(&op)])?;
    }
    Ok(address)
}

/// Frees an allocation behind the work of a stream; `on` is the stream's device.
pub(crate) fn free(cx: &CallContext, on: &'static Device, stream: u64, address: u64) -> Result<(), Code> {
    let (device, _) = owner(cx, address)?;
    device.check()?;
    let stream = if on.index == device.index {
        stream
    } else {
        // The device's own marks do not cover another device's work.
        cx.settle_turn(on, stream)?;
        NO_STREAM
    };
    let mut m = device.memory_mut();
    let a: Allocation = m.forget(address)?;
    match a.home {
        Home::Pool(pool) => m.give_to_pool(cx, device, pool, stream, address, a.bytes),
        Home::Own | Home::Shared | Home::Borrowed(_) => {
            let generation = m.generation;
            m.late.push((generation, address, a));
        }
    }
    Ok(())
}

/// Frees an allocation of `cuMemAlloc` that earlier submitted work may still use.
pub(crate) fn free_later(cx: &CallContext, address: u64) -> Result<(), Code> {
    let (device, _) = owner(cx, address)?;
    let mut m = device.memory_mut();
    let a = m.forget(address)?;
    let generation = m.generation;
    m.late.push((generation, address, a));
    Ok(())
}

/// A pool that the program may use, and its device.
pub(super) fn known(cx: &CallContext, pool: sys::CUmemoryPool) -> Result<(&'static Device, u64), Code> {
    let pool = pool as u64;
    let has = |d: &&'static Device| d.memory().pools.get(&pool).is_some_and(|p| !p.doomed);
    let device = cx.job.devices.iter().find(has).ok_or(code::ERROR_INVALID_VALUE)?;
    Ok((device, pool))
}

pub(super) fn with_pool<T>(
    cx: &CallContext,
    pool: sys::CUmemoryPool,
    f: impl FnOnce(&mut Pool) -> Result<T, Code>,
) -> Result<T, Code> {
    let (device, pool) = known(cx, pool)?;
    f(device.memory_mut().pools.get_mut(&pool).ok_or(code::ERROR_INVALID_VALUE)?)
}

pub(crate) fn cuMemAllocAsync(
    cx: &mut CallContext,
    dptr: *mut sys::CUdeviceptr,
    bytes: usize,
    stream: sys::CUstream,
) -> Result<(), Code> {
    if dptr.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let stream = cx.use_stream(stream as u64)?;
    let device = cx.device()?;
    if let Some(address) = graph::take_alloc(cx, device, stream, bytes as u64)? {
        return write_out(dptr, address);
    }
    if bytes == 0 {
        return write_out(dptr, 0);
    }
    let pool = device.memory().current_pool;
    write_out(dptr, allocate(cx, device, pool, stream, bytes as u64)?)
}

pub(crate) fn cuMemAllocFromPoolAsync(
    cx: &mut CallContext,
    dptr: *mut sys::CUdeviceptr,
    bytes: usize,
    pool: sys::CUmemoryPool,
    stream: sys::CUstream,
) -> Result<(), Code> {
    if dptr.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (device, pool) = known(cx, pool)?;
    let stream = cx.use_stream(stream as u64)?;
    let on = cx.device()?;
    if let Some(address) = graph::take_alloc(cx, on, stream, bytes as u64)? {
        return write_out(dptr, address);
    }
    // Work of another device's stream does not order this device's.
    let stream = if cx.device()?.index == device.index { stream } else { NO_STREAM };
    write_out(dptr, allocate(cx, device, pool, stream, bytes as u64)?)
}

pub(crate) fn cuMemFreeAsync(cx: &mut CallContext, dptr: sys::CUdeviceptr, stream: sys::CUstream) -> Result<(), Code> {
    let stream = cx.use_stream(stream as u64)?;
    let on = cx.device()?;
    if dptr == 0 {
        return Ok(());
    }
    if graph::take_free(cx, on, stream, dptr)? || graph::free_of_graph(cx, dptr)? {
        return Ok(());
    }
    free(cx, on, stream, dptr)
}

/// The beginning of `CUmemPoolProps`, with enums as the integers that they are in C.
#[repr(C)]
#[derive(Clone, Copy)]
struct Props {
    kind: u32,
    handle_types: u32,
    location: u32,
    ordinal: i32,
    win32: usize,
    most: usize,
}
const _: () = assert!(size_of::<Props>() <= size_of::<sys::CUmemPoolProps>());

/// Adds a pool and returns its handle.
pub(super) fn add(device: &'static Device, pool: Pool) -> u64 {
    let number = compose(Kind::Pool, 1, NEXT.fetch_add(1, Ordering::Relaxed));
    device.memory_mut().pools.insert(number, pool);
    number
}

pub(crate) fn cuMemPoolCreate(
    cx: &mut CallContext,
    to: *mut sys::CUmemoryPool,
    props: *const sys::CUmemPoolProps,
) -> Result<(), Code> {
    if to.is_null() || props.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so by CUDA's contract such a struct; any bits are valid for these fields.
    let p = unsafe { props.cast::<Props>().read() };
    if p.kind != PINNED || p.win32 != 0 || !(1..=4).contains(&p.location) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if p.location != ON_DEVICE || p.handle_types & !DESCRIPTOR != 0 {
        // Memory of the host, and handles that only fabrics know.
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    let device = cx.job.device(p.ordinal)?;
    let mut pool = Pool::new(p.most as u64);
    pool.is_exportable = p.handle_types == DESCRIPTOR;
    write_out(to, add(device, pool) as sys::CUmemoryPool)
}

pub(crate) fn cuMemPoolDestroy(cx: &mut CallContext, pool: sys::CUmemoryPool) -> Result<(), Code> {
    let (device, pool) = known(cx, pool)?;
    let default = default_of(device.index);
    if pool == default {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let mut m = device.memory_mut();
    if m.current_pool == pool {
        m.current_pool = default;
    }
    if let Some(p) = m.pools.get_mut(&pool) {
        p.doomed = true;
    }
    m.look(cx, device);
    // Generation 0 has no frees: this only removes empty pools.
    m.complete(cx, device, None, 0);
    m.begin_fence(cx, device)
}

pub(crate) fn cuMemPoolTrimTo(cx: &mut CallContext, pool: sys::CUmemoryPool, keep: usize) -> Result<(), Code> {
    let (device, pool) = known(cx, pool)?;
    let mut m = device.memory_mut();
    m.look(cx, device);
    m.shrink(cx, device, pool, keep as u64);
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
    value: *mut c_void,
) -> Result<(), Code> {
    with_pool(cx, pool, |p| {
        if let Some((level, high)) = level(p, attribute) {
            return write_out(value.cast::<u64>(), if high { level.high } else { level.now });
        }
        match attribute {
            1..=3 => write_out(value.cast::<i32>(), p.settings.reuse[attribute as usize - 1]),
            RELEASE_THRESHOLD => write_out(value.cast::<u64>(), p.settings.threshold),
            _ => Err(code::ERROR_INVALID_VALUE),
        }
    })
}

pub(crate) fn cuMemPoolSetAttribute(
    cx: &mut CallContext,
    pool: sys::CUmemoryPool,
    attribute: u32,
    value: *mut c_void,
) -> Result<(), Code> {
    with_pool(cx, pool, |p| {
        if value.is_null() {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if let 1..=3 = attribute {
            // SAFETY: not null; the width is the documented one of the attribute.
            p.settings.reuse[attribute as usize - 1] = i32::from(unsafe { value.cast::<i32>().read() } != 0);
            return Ok(());
        }
        // SAFETY: as above.
        let wide = || unsafe { value.cast::<u64>().read() };
        if attribute == RELEASE_THRESHOLD {
            p.settings.threshold = wide();
            return Ok(());
        }
        match level(p, attribute) {
            // The maximum can be reset to the current value by setting it to zero.
            Some((level, true)) if wide() == 0 => {
                level.high = level.now;
                Ok(())
            }
            _ => Err(code::ERROR_INVALID_VALUE),
        }
    })
}

/// `CUmemLocation`, with its enum as an integer.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: u32,
    ordinal: i32,
}
const _: () = assert!(size_of::<Location>() == size_of::<sys::CUmemLocation>());

fn location(at: *const sys::CUmemLocation) -> Result<Location, Code> {
    if at.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so by CUDA's contract such a struct; any bits are valid for the integers.
    Ok(unsafe { at.cast::<Location>().read() })
}

pub(crate) fn cuMemPoolSetAccess(
    cx: &mut CallContext,
    pool: sys::CUmemoryPool,
    map: *const sys::CUmemAccessDesc,
    count: usize,
) -> Result<(), Code> {
    let (device, _) = known(cx, pool)?;
    if map.is_null() || count == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    for i in 0..count {
        // SAFETY: the program guarantees that the array has `count` elements; a description is a location and its flags.
        let [kind, ordinal, flags] = unsafe { map.add(i).cast::<[u32; 3]>().read() };
        if kind != ON_DEVICE {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let other = cx.job.device(ordinal as i32)?;
        match (other.index == device.index, flags) {
            (true, READ_WRITE) | (false, 0) => {}
            // A device always has access to its own pool.
            (true, _) => return Err(code::ERROR_INVALID_VALUE),
            (false, _) => return Err(code::ERROR_PEER_ACCESS_UNSUPPORTED),
        }
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAccess(
    cx: &mut CallContext,
    flags: *mut sys::CUmemAccess_flags,
    pool: sys::CUmemoryPool,
    at: *mut sys::CUmemLocation,
) -> Result<(), Code> {
    let (device, _) = known(cx, pool)?;
    let at = location(at)?;
    if at.kind != ON_DEVICE {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let own = cx.job.device(at.ordinal)?.index == device.index;
    write_out(flags.cast::<u32>(), if own { READ_WRITE } else { 0 })
}

/// The device of a location that has pools.
fn pool_device(cx: &CallContext, at: *const sys::CUmemLocation, kind: u32) -> Result<&'static Device, Code> {
    let at = location(at)?;
    if at.kind == 0 || kind == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if at.kind != ON_DEVICE || kind != PINNED {
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    cx.job.device(at.ordinal)
}

fn set_current(cx: &CallContext, device: &'static Device, pool: sys::CUmemoryPool) -> Result<(), Code> {
    let (owner, pool) = known(cx, pool)?;
    if owner.index != device.index || owner.memory().pools.get(&pool).is_none_or(|p| p.lender.is_some()) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    device.memory_mut().current_pool = pool;
    Ok(())
}

pub(crate) fn cuDeviceGetDefaultMemPool(
    cx: &mut CallContext,
    to: *mut sys::CUmemoryPool,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    write_out(to, default_of(cx.job.device(dev)?.index) as sys::CUmemoryPool)
}

pub(crate) fn cuDeviceGetMemPool(cx: &mut CallContext, to: *mut sys::CUmemoryPool, dev: sys::CUdevice) -> Result<(), Code> {
    // Unlike for the default pool, an invalid device number is an invalid value.
    let device = cx.job.device(dev).map_err(|_| code::ERROR_INVALID_VALUE)?;
    write_out(to, device.memory().current_pool as sys::CUmemoryPool)
}

pub(crate) fn cuDeviceSetMemPool(cx: &mut CallContext, dev: sys::CUdevice, pool: sys::CUmemoryPool) -> Result<(), Code> {
    set_current(cx, cx.job.device(dev).map_err(|_| code::ERROR_INVALID_VALUE)?, pool)
}

pub(crate) fn cuMemGetDefaultMemPool(
    cx: &mut CallContext,
    to: *mut sys::CUmemoryPool,
    at: *mut sys::CUmemLocation,
    kind: u32,
) -> Result<(), Code> {
    write_out(to, default_of(pool_device(cx, at, kind)?.index) as sys::CUmemoryPool)
}

pub(crate) fn cuMemGetMemPool(
    cx: &mut CallContext,
    to: *mut sys::CUmemoryPool,
    at: *mut sys::CUmemLocation,
    kind: u32,
) -> Result<(), Code> {
    write_out(to, pool_device(cx, at, kind)?.memory().current_pool as sys::CUmemoryPool)
}

pub(crate) fn cuMemSetMemPool(
    cx: &mut CallContext,
    at: *mut sys::CUmemLocation,
    kind: u32,
    pool: sys::CUmemoryPool,
) -> Result<(), Code> {
    set_current(cx, pool_device(cx, at, kind)?, pool)
}

#[cfg(test)]
mod tests;
