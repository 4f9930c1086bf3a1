//! Pools at work: allocations and frees in the order of streams, and when freed memory may be used again.

use crate::base::encoding::encode;
use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::allocations::{Allocation, Fence, GRANULE, Home, Memory, STEP};
use crate::objects::pool::{self, NO_STREAM, Pool};
use cuda_api::arg::LEGACY;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, compose};
use cuda_api::ops::{self, Fill};
use std::sync::atomic::{AtomicU32, Ordering};

impl Memory {
    /// Frees the memory of an allocation that is in no table and that nothing uses any more.
    pub(crate) fn release(&mut self, cx: &CallContext, device: &'static Device, address: u64, a: Allocation) {
        crate::device_memory::shared_handles::freed(cx, device, address);
        match a.home {
            Home::Own => self.give_chunk(cx, device, address),
            Home::Shared => {
                self.small.put(address, a.bytes.next_multiple_of(STEP));
                let chunk = address - address % GRANULE;
                if self.small.carve(chunk, GRANULE) {
                    self.shared.remove(&chunk);
                    self.give_chunk(cx, device, chunk);
                }
            }
            Home::Pool(pool) => self.give_to_pool(cx, device, pool, pool::NO_STREAM, address, a.bytes),
            Home::Borrowed(_) => crate::device_memory::shared_memory::close(cx, device, address),
        }
    }
}

impl Memory {
    /// Memory of a pool for work of `stream`; `true` if earlier work of the stream may still use it.
    pub(crate) fn take_from_pool(
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

    pub(crate) fn grow(&mut self, cx: &CallContext, device: &'static Device, pool: u64, room: u64) -> Result<(), Code> {
        let chunk = match self.chunk(cx, device, room.next_multiple_of(pool::GROWTH), true) {
            Err(code::ERROR_OUT_OF_MEMORY) => self.chunk(cx, device, room.next_multiple_of(GRANULE), true),
            other => other,
        }?;
        if let (Some(p), Some(bytes)) = (self.pools.get_mut(&pool), self.chunks.get(&chunk)) {
            p.grow(chunk, *bytes);
        }
        Ok(())
    }

    pub(crate) fn give_to_pool(
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
    pub(crate) fn seal(&mut self) -> u64 {
        let generation = self.generation;
        let late = self.late.iter().any(|(g, ..)| *g == generation);
        if late || self.pools.values().any(|p| p.has_pending(generation)) {
            self.generation += 1;
        }
        self.generation - 1
    }

    /// Requests a completion mark for all current work, unless one is under way already or no free needs it.
    pub(crate) fn begin_fence(&mut self, cx: &CallContext, device: &'static Device) -> Result<(), Code> {
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
    pub(crate) fn look(&mut self, cx: &CallContext, device: &'static Device) {
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
    pub(crate) fn complete(&mut self, cx: &CallContext, device: &'static Device, stream: Option<u64>, generation: u64) {
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
    pub(crate) fn shrink(&mut self, cx: &CallContext, device: &'static Device, pool: u64, keep: u64) {
        let gone = self.pools.get_mut(&pool).map(|p| p.release(keep)).unwrap_or_default();
        for chunk in gone {
            self.give_chunk(cx, device, chunk);
        }
    }

    /// Trims pools to their thresholds, as a synchronisation does.
    pub(crate) fn trim(&mut self, cx: &CallContext, device: &'static Device) {
        let held: Vec<(u64, u64)> =
            self.pools.iter().filter(|(_, p)| p.holds_too_much()).map(|(h, p)| (*h, p.settings.threshold)).collect();
        for (pool, keep) in held {
            self.shrink(cx, device, pool, keep);
        }
    }
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
pub(crate) const FIRST_CREATED: u32 = 32;

pub(crate) static NEXT: AtomicU32 = AtomicU32::new(FIRST_CREATED);

/// Called before a synchronisation is requested; [`after_sync`] takes the result.
pub(crate) fn before_sync(device: &'static Device) -> Option<u64> {
    if device.memory.is_settled() { None } else { Some(device.memory_mut().seal()) }
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
    if device.memory.is_settled() {
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
