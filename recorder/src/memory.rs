//! Device memory: the recorder chooses every address, in an arena that is the same in every place.
//!
//! Physical memory is mapped in chunks of 2 MiB and multiples ([`ops::Chunk`], journalled). Allocations of 1 MiB and more have a chunk of
//! their own; smaller ones are parts of shared chunks, in multiples of 512 bytes as in the native driver. Freed chunks stay mapped as
//! spare chunks up to a limit and serve later allocations; they count as free, and are released before an allocation fails.
//!
//! `cuMemFree` waits for the work submitted before it, as the native call was observed to do (docs/driver-facts.md 4.2), so an address is
//! never reused while a kernel can still access it. It makes no round trip if nothing was submitted since everything was last known to be
//! complete. [`pools`] contains stream-ordered allocation, which does not wait.

use crate::context::{self, write_out};
use crate::enter::CallContext;
use crate::job::{Device, Job, PutOff};
use crate::ledger::Keep;
use crate::log::lock;
use crate::place::Waiting;
use crate::{cross_device, peer};
use cuda_api::arg::Edges;
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, Chunk};
use cuda_api::sys;
use cuda_api::wire::Wire;
use pool::Pool;
use ranges::Ranges;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_uint;
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

pub(crate) mod attributes;
mod pool;
pub(crate) mod pools;
pub(crate) mod ranges;
pub(crate) mod shared_pools;

/// First address of the recorder's allocations on device 0; each device has an arena of [`ARENA`] bytes (docs/memory.md, "Addresses").
pub(crate) const OWN: u64 = 0x2000_0000_0000;
/// First address of the driver's own placements.
pub(crate) const PLACED: u64 = 0x3000_0000_0000;
/// Size of an arena in bytes.
pub(crate) const ARENA: u64 = 512 << 30;
/// End of the placements of the drivers of all devices.
pub(crate) const PLACED_END: u64 = PLACED + 32 * ARENA;
/// Granularity of physical memory.
pub(crate) const GRANULE: u64 = 2 << 20;
/// Allocations from this size on have their own chunks.
const LARGE: u64 = 1 << 20;
/// Alignment of small allocations.
const STEP: u64 = 512;
/// The fraction of a device's memory, but at least [`LEAST_SPARE`], that may stay mapped in spare chunks.
const SPARE_PART: u64 = 64;
const LEAST_SPARE: u64 = 64 << 20;
/// Maximum age of the place's figure of free memory.
const FRESH: Duration = Duration::from_millis(50);

/// Where an allocation lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    /// In a shared chunk.
    Shared,
    /// In its own chunk.
    Own,
    /// In a pool.
    Pool(u64),
    /// In a pool of another process; the number is that of the imported pool.
    Borrowed(u64),
}

#[derive(Debug, Clone, Copy)]
struct Allocation {
    /// Size that the program requested.
    bytes: u64,
    /// Number of the allocation in the job (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    id: u64,
    /// The context in which it was allocated.
    context: u64,
    home: Home,
}

/// A live allocation, for other modules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) id: u64,
    /// Pool, or 0.
    pub(crate) pool: u64,
}

/// What the place reported about its memory.
#[derive(Debug, Clone, Copy)]
struct Told {
    at: Instant,
    epoch: u64,
    free: u64,
    total: u64,
    /// Bytes that were mapped here at that time.
    mapped: u64,
}

/// Allocations of one device.
#[derive(Debug)]
pub(crate) struct Memory {
    base: u64,
    /// Addresses of the arena without a chunk.
    bare: Ranges,
    /// Free bytes inside shared chunks.
    small: Ranges,
    /// Shared chunks.
    shared: BTreeSet<u64>,
    /// Size of every chunk.
    chunks: BTreeMap<u64, u64>,
    /// Total size of the chunks.
    mapped: u64,
    /// Spare chunks, with the moment at which they became spare.
    spare: BTreeMap<u64, u64>,
    spare_bytes: u64,
    /// Counts the chunks that became spare.
    moment: u64,
    live: BTreeMap<u64, Allocation>,
    used: u64,
    next_id: u64,
    told: Option<Told>,
    pools: BTreeMap<u64, Pool>,
    current_pool: u64,
    /// Generation of the stream-ordered frees that are made now ([`pool`]).
    generation: u64,
    /// When it has completed, the frees of earlier generations are complete.
    fence: Option<Fence>,
    /// Allocations of `cuMemAlloc` that were freed in a stream.
    late: Vec<(u64, u64, Allocation)>,
}

/// A synchronisation that no thread waits for.
#[derive(Debug)]
struct Fence {
    /// The last generation that it covers.
    generation: u64,
    epoch: u64,
    waiting: Waiting,
}

impl Memory {
    /// An empty arena.
    pub(crate) fn new(device: u32) -> Memory {
        let base = OWN + u64::from(device) * ARENA;
        let mut bare = Ranges::default();
        bare.put(base, ARENA);
        Memory {
            base,
            bare,
            small: Ranges::default(),
            shared: BTreeSet::new(),
            chunks: BTreeMap::new(),
            mapped: 0,
            spare: BTreeMap::new(),
            spare_bytes: 0,
            moment: 0,
            live: BTreeMap::new(),
            used: 0,
            next_id: 0,
            told: None,
            pools: BTreeMap::from([(pools::default_of(device), Pool::new(0))]),
            current_pool: pools::default_of(device),
            generation: 1,
            fence: None,
            late: Vec::new(),
        }
    }

    /// Number of live allocations.
    pub(crate) fn count(&self) -> u64 {
        self.live.len() as u64
    }

    /// Bytes of the device that a move must find free at the target.
    pub(crate) fn needed(&self) -> u64 {
        self.mapped - self.spare_bytes
    }

    /// Bytes that the program has allocated.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The live allocation that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<Found> {
        let (&start, a) = self.live.range(..=address).next_back()?;
        let pool = if let Home::Pool(p) | Home::Borrowed(p) = a.home { p } else { 0 };
        (address - start < a.bytes.max(1)).then_some(Found { start, bytes: a.bytes, id: a.id, pool })
    }

    /// Address of the chunk that contains an address.
    pub(crate) fn chunk_of(&self, address: u64) -> Option<u64> {
        let (&start, &bytes) = self.chunks.range(..=address).next_back()?;
        (address - start < bytes).then_some(start)
    }

    /// All physical memory, by address.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Chunk> + '_ {
        self.chunks.iter().map(|(address, bytes)| Chunk { address: *address, bytes: *bytes })
    }

    /// The physical memory that contains an address.
    pub(crate) fn chunk_around(&self, address: u64) -> Option<Chunk> {
        let (&start, &bytes) = self.chunks.range(..=address).next_back()?;
        (address - start < bytes).then_some(Chunk { address: start, bytes })
    }

    fn in_arena(&self, address: u64) -> bool {
        (self.base..self.base + ARENA).contains(&address)
    }

    /// Returns whether a copy may access these bytes: `Some` for addresses of this arena, `None` if only the place can tell.
    fn allows(&self, address: u64, bytes: u64) -> Option<bool> {
        if !self.in_arena(address) {
            return None;
        }
        let fits = |f: Found| bytes <= f.bytes && address - f.start <= f.bytes - bytes;
        Some(self.find(address).is_some_and(fits))
    }

    fn note(&mut self, address: u64, bytes: u64, home: Home) -> u64 {
        self.next_id += 1;
        self.used += bytes;
        self.live.insert(address, Allocation { bytes, id: self.next_id, context: context::current(), home });
        address
    }

    /// Maps a chunk of `bytes` (a multiple of [`GRANULE`]), or slightly more unless it must be `exact`.
    pub(crate) fn chunk(&mut self, cx: &CallContext, device: &'static Device, bytes: u64, exact: bool) -> Result<u64, Code> {
        let most = if exact { bytes } else { bytes + bytes / 8 };
        let sizes = self.spare.keys().map(|at| (self.chunks[at], *at));
        if let Some((len, at)) = sizes.filter(|(len, _)| (bytes..=most).contains(len)).min() {
            self.spare.remove(&at);
            self.spare_bytes -= len;
            return Ok(at);
        }
        let address = self.bare.take(bytes).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let mut mapped = map(cx, device, address, bytes);
        if mapped == Err(code::ERROR_OUT_OF_MEMORY) && self.spare_bytes > 0 {
            self.drop_spare(cx, device, 0);
            mapped = map(cx, device, address, bytes);
        }
        if let Err(rc) = mapped {
            self.bare.put(address, bytes);
            return Err(rc);
        }
        self.chunks.insert(address, bytes);
        self.mapped += bytes;
        Ok(address)
    }

    /// Frees a chunk that is empty and that nothing uses any more.
    pub(crate) fn give_chunk(&mut self, cx: &CallContext, device: &'static Device, address: u64) {
        let Some(&bytes) = self.chunks.get(&address) else { return };
        self.moment += 1;
        self.spare.insert(address, self.moment);
        self.spare_bytes += bytes;
        self.drop_spare(cx, device, (device.info.total_bytes / SPARE_PART).max(LEAST_SPARE));
    }

    /// Unmaps spare chunks, the oldest first, until at most `keep` bytes are left.
    fn drop_spare(&mut self, cx: &CallContext, device: &'static Device, keep: u64) {
        while self.spare_bytes > keep {
            let Some((&address, _)) = self.spare.iter().min_by_key(|(_, moment)| **moment) else { return };
            self.spare.remove(&address);
            let bytes = self.chunks.remove(&address).unwrap_or(0);
            self.spare_bytes -= bytes;
            self.mapped -= bytes;
            // It fails only if the place is lost; then the device already has that error.
            if unmap(cx, device, address, bytes).is_ok() {
                self.bare.put(address, bytes);
            }
        }
    }

    fn place(&mut self, cx: &CallContext, device: &'static Device, bytes: u64) -> Result<u64, Code> {
        if bytes >= LARGE {
            let address = self.chunk(cx, device, bytes.next_multiple_of(GRANULE), false)?;
            return Ok(self.note(address, bytes, Home::Own));
        }
        let room = bytes.next_multiple_of(STEP);
        let address = match self.small.take(room) {
            Some(address) => address,
            None => {
                let chunk = self.chunk(cx, device, GRANULE, true)?;
                self.shared.insert(chunk);
                self.small.put(chunk + room, GRANULE - room);
                chunk
            }
        };
        Ok(self.note(address, bytes, Home::Shared))
    }

    /// Removes an allocation from the table.
    fn forget(&mut self, address: u64) -> Result<Allocation, Code> {
        let a = self.live.remove(&address).ok_or(code::ERROR_INVALID_VALUE)?;
        self.used -= a.bytes;
        Ok(a)
    }

    /// Frees the memory of an allocation that is in no table and that nothing uses any more.
    fn release(&mut self, cx: &CallContext, device: &'static Device, address: u64, a: Allocation) {
        crate::ipc::freed(cx, device, address);
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
            Home::Borrowed(_) => crate::shared_memory::close(cx, device, address),
        }
    }
}

impl Device {
    /// Locks the allocations for reading.
    pub(crate) fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the allocations for writing. Never held while waiting for the GPU: a thread that waits for the lock may be inside the gate.
    pub(crate) fn memory_mut(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a copy that exceeds its allocation, as the driver does. Returns false for addresses that only the place can check.
    pub(crate) fn check_range(&self, address: u64, bytes: u64) -> Result<bool, Code> {
        let allowed = if crate::vmm::is_reserved(address) {
            Some(crate::vmm::allows(self.index, address, bytes))
        } else {
            self.memory().allows(address, bytes)
        };
        match allowed {
            Some(false) => Err(code::ERROR_INVALID_VALUE),
            Some(true) => Ok(true),
            None => Ok(false),
        }
    }
}

/// The index of the device to which an address belongs, as far as the address shows it: own allocations, the driver's placements, and the
/// program's mappings there.
pub(crate) fn home_index(address: u64) -> Option<u32> {
    let index = match address {
        OWN..PLACED => (address - OWN) / ARENA,
        PLACED..PLACED_END => (address - PLACED) / ARENA,
        _ => return crate::vmm::find(address).map(|found| found.device),
    };
    u32::try_from(index).ok()
}

/// Returns whether an address is another device's memory.
pub(crate) fn is_of_another(device: &Device, address: u64) -> bool {
    home_index(address).is_some_and(|index| index != device.index)
}

/// Returns whether a device's target has the memory at this address only when the job is quiesced: another device's, or the host's.
pub(crate) fn comes_late(device: &Device, address: u64) -> bool {
    !is_device(address) || is_of_another(device, address)
}

/// The device with this index ([`home_index`]).
pub(crate) fn home(job: &'static Job, address: u64) -> Option<&'static Device> {
    job.devices.get(home_index(address)? as usize)
}

/// The journal's names of the physical memory behind some bytes of device memory.
pub(crate) fn behind(job: &'static Job, address: u64, bytes: u64) -> Vec<u64> {
    if crate::vmm::is_reserved(address) {
        return crate::vmm::behind(address, bytes);
    }
    // No allocation spans two chunks.
    home(job, address).and_then(|device| device.memory().chunk_of(address)).into_iter().collect()
}

/// Returns whether an address is device memory (own, reserved by the program, placed by the driver, or the device heap); everything else
/// is host memory.
pub(crate) fn is_device(address: u64) -> bool {
    (OWN..PLACED_END).contains(&address) || crate::vmm::is_reserved(address) || (0x2_0000_0000..0x22_0000_0000).contains(&address)
}

pub(crate) fn encode<T: Wire>(value: &T) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    value.put(&mut body);
    body
}

/// Carries out an operation on physical memory and journals it. With `wait`, waits for its answer.
fn chunk_op(cx: &CallContext, device: &'static Device, op: u16, chunk: &Chunk, edges: &Edges, wait: bool) -> Result<(), Code> {
    device.check()?;
    let body = encode(chunk);
    let mut ledger = lock(&device.ledger);
    let waiting = device.record_error(cx.place(device).begin(op, &[&body]))?;
    // No work can use memory that is not yet, or no longer, known to the program.
    device.still_quiet(waiting.span());
    if wait {
        let (rc, _) = waiting.finish();
        if rc != code::SUCCESS {
            device.note(rc);
            return Err(rc);
        }
    }
    ledger.append(op, &body, &[], edges, Keep::PLAIN)
}

fn map(cx: &CallContext, device: &'static Device, address: u64, bytes: u64) -> Result<(), Code> {
    let edges = Edges { creates: [address].into(), ..Edges::default() };
    let chunk = Chunk { address, bytes };
    chunk_op(cx, device, ops::id::CHUNK_MAP, &chunk, &edges, true)?;
    peer::mapped(cx, device, chunk).inspect_err(|_| {
        // The first error is reported.
        let _later = PutOff::begin();
        let _ = unmap(cx, device, address, bytes);
    })
}

fn unmap(cx: &CallContext, device: &'static Device, address: u64, bytes: u64) -> Result<(), Code> {
    let edges = Edges { ends: Some(address), ..Edges::default() };
    peer::unmapped(cx, device, Chunk { address, bytes });
    chunk_op(cx, device, ops::id::CHUNK_UNMAP, &Chunk { address, bytes }, &edges, false)
}

pub(crate) fn allocate(cx: &CallContext, device: &'static Device, bytes: u64) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if bytes > device.info.total_bytes {
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    device.check()?;
    let first = device.memory_mut().place(cx, device, bytes);
    match first {
        Err(code::ERROR_OUT_OF_MEMORY) if pools::reclaim(cx, device)? => device.memory_mut().place(cx, device, bytes),
        other => other,
    }
}

/// Unmaps spare chunks, so that a move need not transfer them.
pub(crate) fn drop_spare(cx: &CallContext, device: &'static Device) {
    device.memory_mut().drop_spare(cx, device, 0);
}

/// Frees everything that a device has allocated.
pub(crate) fn free_all(cx: &mut CallContext, device: &'static Device) -> Result<(), Code> {
    crate::vmm::forget(cx, device);
    crate::external::forget(device);
    crate::ipc::forget(device);
    crate::shared_memory::forget(device);
    let mut m = device.memory_mut();
    for (address, bytes) in std::mem::take(&mut m.chunks) {
        unmap(cx, device, address, bytes)?;
    }
    *m = Memory::new(device.index);
    Ok(())
}

/// Frees what was allocated in a context that is destroyed; memory of pools belongs to the device.
pub(crate) fn free_of(cx: &CallContext, device: &'static Device, ctx: u64) -> Result<(), Code> {
    let mut m = device.memory_mut();
    let is_of = |a: &Allocation| a.context == ctx && matches!(a.home, Home::Own | Home::Shared);
    let mine: Vec<u64> = m.live.iter().filter(|(_, a)| is_of(a)).map(|(at, _)| *at).collect();
    for at in mine {
        let a = m.forget(at)?;
        m.release(cx, device, at, a);
    }
    Ok(())
}

pub(crate) fn cuMemAlloc_v2(cx: &mut CallContext, dptr: *mut sys::CUdeviceptr, bytesize: usize) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    let device = cx.device()?;
    if dptr.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    write_out(dptr, allocate(cx, device, bytesize as u64)?)
}

pub(crate) fn cuMemAllocPitch_v2(
    cx: &mut CallContext,
    dptr: *mut sys::CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    let device = cx.device()?;
    if dptr.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(STEP as usize).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    let bytes = row.checked_mul(height).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    write_out(dptr, allocate(cx, device, bytes as u64)?)?;
    write_out(pitch, row)
}

/// The device with an allocation that starts at `address`, and whether it is in a pool.
fn owner(cx: &CallContext, address: u64) -> Result<(&'static Device, bool), Code> {
    let found = |d: &'static Device| {
        let a = d.memory().live.get(&address).copied()?;
        Some((d, matches!(a.home, Home::Pool(_))))
    };
    cx.job.devices.iter().find_map(found).ok_or(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuMemFree_v2(cx: &mut CallContext, dptr: sys::CUdeviceptr) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    if dptr == 0 {
        return Ok(());
    }
    if let Some(freed) = crate::host_memory::free_managed(cx, dptr) {
        return freed;
    }
    if let Some(freed) = crate::external::free(cx, dptr) {
        return freed;
    }
    let (device, pooled) = owner(cx, dptr)?;
    // For memory of pools the call does not wait (CUDA driver API reference): the program guarantees that it is not in use.
    if !pooled {
        cx.settle(device)?;
        cross_device::settle(cx, device);
    }
    device.check()?;
    if crate::graph::free_of_graph(cx, dptr)? {
        return Ok(());
    }
    let mut m = device.memory_mut();
    let a = m.forget(dptr)?;
    m.release(cx, device, dptr, a);
    Ok(())
}

pub(crate) fn cuMemGetInfo_v2(cx: &mut CallContext, free: *mut usize, total: *mut usize) -> Result<(), Code> {
    let device = cx.device()?;
    device.check()?;
    let epoch = device.epoch.load(std::sync::atomic::Ordering::Relaxed);
    let told = device.memory().told.filter(|t| t.epoch == epoch && t.at.elapsed() < FRESH);
    let told = match told {
        Some(t) => t,
        None => {
            let mapped = device.memory().mapped;
            let bytes = cx.ask(device, ops::id::MEMORY_INFO, &[])?;
            let (free, total) = <(u64, u64)>::get(&mut &bytes[..]).map_err(|_| code::ERROR_UNKNOWN)?;
            let told = Told { at: Instant::now(), epoch, free, total, mapped };
            device.memory_mut().told = Some(told);
            told
        }
    };
    let m = device.memory();
    let now = (told.free + told.mapped + m.spare_bytes).saturating_sub(m.mapped).min(told.total);
    for (to, value) in [(free, now), (total, told.total)] {
        if !to.is_null() {
            write_out(to, value as usize)?;
        }
    }
    Ok(())
}

pub(crate) fn cuMemGetAddressRange_v2(
    cx: &mut CallContext,
    base: *mut sys::CUdeviceptr,
    size: *mut usize,
    ptr: sys::CUdeviceptr,
) -> Result<(), Code> {
    cx.device()?;
    let allocated = cx.job.devices.iter().find_map(|d| d.memory().find(ptr)).map(|f| (f.start, f.bytes));
    let of_host = || crate::host_memory::find(ptr).map(|f| (f.start, f.bytes));
    let found = allocated.or_else(|| crate::vmm::find(ptr).map(|f| (f.start, f.bytes))).or_else(of_host);
    let variable = || crate::variables::find(cx, ptr).map(|v| (v.start, v.bytes));
    let (start, bytes) = found.or_else(variable).ok_or(code::ERROR_NOT_FOUND)?;
    if !base.is_null() {
        write_out(base, start)?;
    }
    if size.is_null() { Ok(()) } else { write_out(size, bytes as usize) }
}

#[cfg(test)]
mod tests;
