//! Allocations and frees in the order of streams: finds out what work is complete, and carries out what the core decides
//! ([`crate::objects::stream_frees`], [`crate::objects::chunks`]).

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::device_memory::{chunks, shared_handles, shared_memory};
use crate::enter::CallContext;
use crate::job::{Device, PutOff};
use crate::objects::allocations::{Allocation, Home};
use crate::objects::chunks::Request;
use crate::objects::memory_lock::Fence;
use crate::objects::pool::{Found, NO_STREAM, Pool};
use cuda_api::address_map::DEVICES;
use cuda_api::arg::LEGACY;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, compose};
use cuda_api::ops::{self, Fill};
use std::sync::atomic::{AtomicU32, Ordering};

/// Frees the memory of allocations that are in no table and that nothing uses any more.
pub(crate) fn release(cx: &CallContext, device: &'static Device, gone: impl IntoIterator<Item = (u64, Allocation)>) {
    put_back(cx, device, gone);
    chunks::drop_surplus(cx, device);
}

fn put_back(cx: &CallContext, device: &'static Device, gone: impl IntoIterator<Item = (u64, Allocation)>) {
    let mut ends = false;
    for (address, a) in gone {
        // Before another allocation can have the address. After a reset one may have it already.
        if !device.memory().is_gone(&a) {
            shared_handles::freed(cx, device, address);
        }
        if matches!(a.home, Home::Borrowed(_)) {
            shared_memory::close(cx, device, address);
        }
        ends |= device.memory_mut().put_back(address, a);
    }
    if ends {
        // The pool ends in a later call, when the work before this free is complete.
        let _ = begin_fence(cx, device);
    }
}

/// Requests a completion mark for all current work, unless one is under way already or no free needs it.
pub(crate) fn begin_fence(cx: &CallContext, device: &'static Device) -> Result<(), Code> {
    let mut fence = lock(&device.fence);
    if fence.is_some() {
        return Ok(());
    }
    // Frees of these generations are in the table already, so the work before them was submitted before the mark.
    let Some(generation) = device.memory_mut().seal_if_waiting() else { return Ok(()) };
    let epoch = device.epoch.load(Ordering::Relaxed);
    let waiting = device.record_error(cx.place(device).begin(ops::id::CONTEXT_SYNC, &[]))?;
    *fence = Some(Fence { generation, epoch, waiting });
    Ok(())
}

/// Checks whether the fence is complete. A move waits until all work is complete, so a fence of an earlier place is.
pub(crate) fn check_fence(cx: &CallContext, device: &'static Device) {
    let epoch = device.epoch.load(Ordering::Relaxed);
    let done = lock(&device.fence).take_if(|f| f.epoch != epoch || f.waiting.is_done());
    if let Some(f) = done {
        complete(cx, device, None, f.generation);
    }
}

/// Completes the frees up to a generation: of one stream, or all.
pub(crate) fn complete(cx: &CallContext, device: &'static Device, stream: Option<u64>, generation: u64) {
    {
        let _releasing = lock(&device.releasing);
        let gone = device.memory_mut().complete(stream, generation);
        put_back(cx, device, gone);
    }
    chunks::drop_surplus(cx, device);
}

/// Serves a request with `take`; if there is no memory, waits for frees in streams first, also for those that another thread releases.
pub(crate) fn with_reclaim<T>(cx: &CallContext, device: &'static Device, take: impl Fn() -> Result<T, Code>) -> Result<T, Code> {
    let before = device.memory().moment;
    match take() {
        Err(code::ERROR_OUT_OF_MEMORY) => {
            let reclaimed = reclaim(cx, device)?;
            drop(lock(&device.releasing));
            if reclaimed || device.memory().moment != before { take() } else { Err(code::ERROR_OUT_OF_MEMORY) }
        }
        other => other,
    }
}

/// As [`with_reclaim`], for so much memory that the place allocates itself, beside the chunks: spare chunks are given up for it.
pub(crate) fn with_room<T>(
    cx: &CallContext,
    device: &'static Device,
    bytes: u64,
    make: impl Fn() -> Result<T, Code>,
) -> Result<T, Code> {
    // A pending error of the program's work says nothing about the memory.
    let _later = PutOff::begin();
    with_reclaim(cx, device, || match make() {
        Err(code::ERROR_OUT_OF_MEMORY) => {
            chunks::drop_spare(cx, device, 0);
            make().inspect_err(|_| cx.note_shortage(device, bytes))
        }
        other => other,
    })
}

/// Releases free chunks of a pool until it has no more than `keep` bytes.
pub(crate) fn shrink(cx: &CallContext, device: &'static Device, pool: u64, keep: u64) {
    device.memory_mut().shrink(pool, keep);
    chunks::drop_surplus(cx, device);
}

/// Trims pools to their thresholds, as a synchronisation does.
fn trim(cx: &CallContext, device: &'static Device) {
    device.memory_mut().trim();
    chunks::drop_surplus(cx, device);
}

/// Memory of a pool. Physical memory is mapped only if no free is known to be complete now.
fn take(cx: &CallContext, device: &'static Device, request: Request) -> Result<Found, Code> {
    if let Some(found) = device.memory_mut().take(request)? {
        return Ok(found);
    }
    check_fence(cx, device);
    if let Some(found) = device.memory_mut().take(request)? {
        return Ok(found);
    }
    begin_fence(cx, device)?;
    chunks::grow(cx, device, request)
}

/// The device with an allocation that starts at `address`, and whether it is in a pool.
pub(crate) fn owner(cx: &CallContext, address: u64) -> Result<(&'static Device, bool), Code> {
    let found = |d: &'static Device| {
        let a = d.memory().live.get(&address).copied()?;
        Some((d, matches!(a.home, Home::Pool(_))))
    };
    cx.job.devices.iter().find_map(found).ok_or(code::ERROR_INVALID_VALUE)
}

/// Lower slots are for the devices' default pools.
pub(crate) const FIRST_CREATED: u32 = DEVICES;

pub(crate) static NEXT: AtomicU32 = AtomicU32::new(FIRST_CREATED);

/// Called before a synchronisation is requested; [`after_sync`] takes the result.
pub(crate) fn before_sync(device: &'static Device) -> Option<u64> {
    if device.memory.is_settled() { None } else { Some(device.memory_mut().seal()) }
}

/// A synchronisation that began at `mark` has completed: of one stream, or of everything.
pub(crate) fn after_sync(cx: &CallContext, device: &'static Device, stream: Option<u64>, mark: Option<u64>) {
    let Some(generation) = mark else { return };
    complete(cx, device, stream, generation);
    trim(cx, device);
}

/// Checks for completed frees when some work is known to be complete.
pub(crate) fn after_event(cx: &CallContext, device: &'static Device) {
    if device.memory.is_settled() {
        return;
    }
    check_fence(cx, device);
    trim(cx, device);
    // It fails only if the place is lost, which the next call reports.
    let _ = begin_fence(cx, device);
}

/// Waits for all work and releases the pools' free memory. Returns false if nothing could be released.
fn reclaim(cx: &CallContext, device: &'static Device) -> Result<bool, Code> {
    let generation = {
        let mut m = device.memory_mut();
        if !m.can_reclaim() {
            return Ok(false);
        }
        m.seal()
    };
    cx.wait(device, ops::id::CONTEXT_SYNC, &[])?;
    complete(cx, device, None, generation);
    device.memory_mut().shrink_all();
    chunks::drop_surplus(cx, device);
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
    let request = Request::FromPool { pool, stream, bytes };
    let Found { address, pending } = with_reclaim(cx, device, || take(cx, device, request))?;
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
    if device.memory_mut().free_in(stream, address)? {
        // The pool ends in a later call, when the work before this free is complete.
        let _ = begin_fence(cx, device);
    }
    Ok(())
}

/// Frees an allocation of `cuMemAlloc` that earlier submitted work may still use.
pub(crate) fn free_later(cx: &CallContext, address: u64) -> Result<(), Code> {
    let (device, _) = owner(cx, address)?;
    let mut m = device.memory_mut();
    let a = m.forget(address)?;
    m.free_late(address, a);
    Ok(())
}

/// A pool that the program may use, and its device.
pub(crate) fn known(cx: &CallContext, pool: u64) -> Result<(&'static Device, u64), Code> {
    let has = |d: &&'static Device| d.memory().pools.get(&pool).is_some_and(|p| !p.doomed);
    let device = cx.job.devices.iter().find(has).ok_or(code::ERROR_INVALID_VALUE)?;
    Ok((device, pool))
}

pub(crate) fn with_pool<T>(cx: &CallContext, pool: u64, f: impl FnOnce(&mut Pool) -> Result<T, Code>) -> Result<T, Code> {
    let (device, pool) = known(cx, pool)?;
    f(device.memory_mut().pools.get_mut(&pool).ok_or(code::ERROR_INVALID_VALUE)?)
}

/// Adds a pool and returns its handle.
pub(crate) fn add(device: &'static Device, pool: Pool) -> u64 {
    let number = compose(Kind::Pool, 1, NEXT.fetch_add(1, Ordering::Relaxed));
    device.memory_mut().pools.insert(number, pool);
    number
}
