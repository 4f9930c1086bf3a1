//! Device memory: the shim chooses every address, in an arena that is the same in every place.
//!
//! Physical memory is mapped in chunks of 2 MiB and multiples ([`ops::Chunk`], journalled). Allocations of 1 MiB and more have a
//! chunk of their own; smaller ones are cut out of shared chunks in steps of 512 bytes, the step of the native driver. A free
//! waits for the work submitted before it, as the native one does (driver-abi 9), so an address is never given out while a
//! kernel can still use it.

use crate::context::give;
use crate::enter::Entered;
use crate::job::Device;
use cuda_api::arg::Edges;
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, Chunk};
use cuda_api::sys;
use cuda_api::wire::Wire;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_uint, c_void};
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

/// First address of own allocations of device 0; each device has an arena of [`ARENA`] bytes (docs/design.md, "Addresses").
pub(crate) const OWN: u64 = 0x2000_0000_0000;
/// First address of what the driver places itself.
pub(crate) const PLACED: u64 = 0x3000_0000_0000;
/// Bytes of an arena.
pub(crate) const ARENA: u64 = 512 << 30;
/// Granularity of physical memory.
const GRANULE: u64 = 2 << 20;
/// Allocations from this size on have chunks of their own.
const LARGE: u64 = 1 << 20;
/// Alignment of small allocations.
const STEP: u64 = 512;

/// Free ranges, found by address and by size.
#[derive(Debug, Default)]
struct Ranges {
    by_address: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Ranges {
    fn put(&mut self, mut address: u64, mut bytes: u64) {
        if let Some((&before, &len)) = self.by_address.range(..address).next_back()
            && before + len == address
        {
            self.remove(before, len);
            (address, bytes) = (before, bytes + len);
        }
        if let Some(&len) = self.by_address.get(&(address + bytes)) {
            self.remove(address + bytes, len);
            bytes += len;
        }
        self.by_address.insert(address, bytes);
        self.by_size.insert((bytes, address));
    }

    fn remove(&mut self, address: u64, bytes: u64) {
        self.by_address.remove(&address);
        self.by_size.remove(&(bytes, address));
    }

    /// The smallest range that fits, lowest address first.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(len, address) = self.by_size.range((bytes, 0)..).next()?;
        self.remove(address, len);
        if len > bytes {
            self.put(address + bytes, len - bytes);
        }
        Some(address)
    }
}

#[derive(Debug, Clone, Copy)]
struct Allocation {
    /// Bytes that the program asked for.
    bytes: u64,
    /// Number of the allocation in the job (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    id: u64,
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
    live: BTreeMap<u64, Allocation>,
    used: u64,
    next_id: u64,
}

impl Memory {
    /// An empty arena.
    pub(crate) fn new(device: u32) -> Memory {
        let base = OWN + u64::from(device) * ARENA;
        let mut bare = Ranges::default();
        bare.put(base, ARENA);
        Memory { base, bare, small: Ranges::default(), shared: BTreeSet::new(), live: BTreeMap::new(), used: 0, next_id: 0 }
    }

    /// Number of live allocations.
    pub(crate) fn count(&self) -> u64 {
        self.live.len() as u64
    }

    /// Bytes that the program has allocated.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The live allocation that contains `address`: start, bytes, number.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, u64, u64)> {
        let (&start, a) = self.live.range(..=address).next_back()?;
        (address - start < a.bytes.max(1)).then_some((start, a.bytes, a.id))
    }

    fn in_arena(&self, address: u64) -> bool {
        (self.base..self.base + ARENA).contains(&address)
    }

    /// Whether a copy may touch these bytes: `Some` for addresses of this arena, `None` if only the place can tell.
    fn allows(&self, address: u64, bytes: u64) -> Option<bool> {
        if !self.in_arena(address) {
            return None;
        }
        let fits = |(start, len, _)| bytes <= len && address - start <= len - bytes;
        Some(self.find(address).is_some_and(fits))
    }

    fn note(&mut self, address: u64, bytes: u64) -> u64 {
        self.next_id += 1;
        self.used += bytes;
        self.live.insert(address, Allocation { bytes, id: self.next_id });
        address
    }
}

impl Device {
    /// The allocations, for reading.
    pub(crate) fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory_mut(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a copy that leaves its allocation, as the driver does. False for addresses of which only the place can tell.
    pub(crate) fn check_range(&self, address: u64, bytes: u64) -> Result<bool, Code> {
        match self.memory().allows(address, bytes) {
            Some(false) => Err(code::ERROR_INVALID_VALUE),
            Some(true) => Ok(true),
            None => Ok(false),
        }
    }
}

/// Whether an address is device memory (own, driver-placed, or the device heap); everything else is the host's.
pub(crate) fn is_device(address: u64) -> bool {
    (OWN..PLACED + 32 * ARENA).contains(&address) || (0x2_0000_0000..0x22_0000_0000).contains(&address)
}

fn encode<T: Wire>(value: &T) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    value.put(&mut body);
    body
}

fn map(cx: &Entered, device: &'static Device, address: u64, bytes: u64) -> Result<(), Code> {
    let edges = Edges { creates: vec![address], ..Edges::default() };
    cx.build(device, ops::id::CHUNK_MAP, &encode(&Chunk { address, bytes }), &edges, false).map(drop)
}

fn unmap(cx: &Entered, device: &'static Device, address: u64, bytes: u64) -> Result<(), Code> {
    let edges = Edges { ends: Some(address), ..Edges::default() };
    cx.build(device, ops::id::CHUNK_UNMAP, &encode(&Chunk { address, bytes }), &edges, false).map(drop)
}

fn allocate(cx: &mut Entered, device: &'static Device, bytes: u64) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if bytes > device.info.total_bytes {
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    device.check()?;
    let mut m = device.memory_mut();
    if bytes >= LARGE {
        let len = bytes.next_multiple_of(GRANULE);
        let address = m.bare.take(len).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        if let Err(rc) = map(cx, device, address, len) {
            m.bare.put(address, len);
            return Err(rc);
        }
        return Ok(m.note(address, bytes));
    }
    let len = bytes.next_multiple_of(STEP);
    if let Some(address) = m.small.take(len) {
        return Ok(m.note(address, bytes));
    }
    let chunk = m.bare.take(GRANULE).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    if let Err(rc) = map(cx, device, chunk, GRANULE) {
        m.bare.put(chunk, GRANULE);
        return Err(rc);
    }
    m.shared.insert(chunk);
    m.small.put(chunk + len, GRANULE - len);
    Ok(m.note(chunk, bytes))
}

/// Gives the memory of an allocation back. Nothing uses it any more.
fn release(cx: &Entered, device: &'static Device, m: &mut Memory, address: u64) -> Result<(), Code> {
    let a = m.live.remove(&address).ok_or(code::ERROR_INVALID_VALUE)?;
    m.used -= a.bytes;
    if a.bytes >= LARGE {
        let len = a.bytes.next_multiple_of(GRANULE);
        unmap(cx, device, address, len)?;
        m.bare.put(address, len);
    } else {
        m.small.put(address, a.bytes.next_multiple_of(STEP));
    }
    Ok(())
}

/// Frees everything that a device has allocated.
pub(crate) fn free_all(cx: &mut Entered, device: &'static Device) -> Result<(), Code> {
    let mut m = device.memory_mut();
    let all: Vec<u64> = m.live.keys().copied().collect();
    for address in all {
        release(cx, device, &mut m, address)?;
    }
    for chunk in std::mem::take(&mut m.shared) {
        unmap(cx, device, chunk, GRANULE)?;
    }
    *m = Memory::new(device.index);
    Ok(())
}

pub(crate) fn cuMemAlloc_v2(cx: &mut Entered, dptr: *mut sys::CUdeviceptr, bytesize: usize) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    if dptr.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let device = cx.device()?;
    give(dptr, allocate(cx, device, bytesize as u64)?)
}

pub(crate) fn cuMemAllocPitch_v2(
    cx: &mut Entered,
    dptr: *mut sys::CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    if dptr.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let device = cx.device()?;
    let row = width.checked_next_multiple_of(STEP as usize).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    let bytes = row.checked_mul(height).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    give(dptr, allocate(cx, device, bytes as u64)?)?;
    give(pitch, row)
}

pub(crate) fn cuMemFree_v2(cx: &mut Entered, dptr: sys::CUdeviceptr) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    if dptr == 0 {
        cx.device()?;
        return Ok(());
    }
    let owner = cx.job.devices.iter().find(|d| d.memory().live.contains_key(&dptr));
    let device = owner.ok_or(code::ERROR_INVALID_VALUE)?;
    cx.wait(device, ops::id::CONTEXT_SYNC, &[])?;
    release(cx, device, &mut device.memory_mut(), dptr)
}

pub(crate) fn cuMemGetAddressRange_v2(cx: &mut Entered, base: *mut sys::CUdeviceptr, size: *mut usize, ptr: sys::CUdeviceptr) -> Result<(), Code> {
    let (start, bytes, _) =
        cx.job.devices.iter().find_map(|d| d.memory().find(ptr)).ok_or(code::ERROR_NOT_FOUND)?;
    if !base.is_null() {
        give(base, start)?;
    }
    if size.is_null() { Ok(()) } else { give(size, bytes as usize) }
}

/// Answers one pointer attribute: `Ok(None)` leaves the output as it is.
fn pointer_attribute(cx: &Entered, attribute: u32, ptr: u64, to: *mut c_void) -> Result<(), Code> {
    use sys::CUpointer_attribute_enum as A;
    if to.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let found = cx.job.devices.iter().find_map(|d| d.memory().find(ptr).map(|f| (d, f)));
    let host = crate::host_memory::find(ptr);
    let is = |a: A| attribute == a as u32;
    // SAFETY (of each write below): the width is the documented one of the attribute, and the program's output has it.
    let put32 = |v: u32| unsafe { to.cast::<u32>().write(v) };
    // SAFETY: as above.
    let put64 = |v: u64| unsafe { to.cast::<u64>().write(v) };
    if let Some((device, (start, bytes, id))) = found {
        if is(A::CU_POINTER_ATTRIBUTE_CONTEXT) {
            put64(crate::context::primary(device.index));
        } else if is(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            put32(sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32);
        } else if is(A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
            put64(ptr);
        } else if is(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            put32(device.index);
        } else if is(A::CU_POINTER_ATTRIBUTE_BUFFER_ID) {
            put64(id);
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
            put64(start);
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
            put64(bytes);
        } else if is(A::CU_POINTER_ATTRIBUTE_MAPPED) {
            put32(1);
        } else if is(A::CU_POINTER_ATTRIBUTE_IS_MANAGED)
            || is(A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
            || is(A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
            || is(A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
        {
            put32(0);
        } else if is(A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
            put64(0);
        } else {
            return Err(code::ERROR_INVALID_VALUE);
        }
        return Ok(());
    }
    if let Some(block) = host {
        // Without an address on the device there is nothing to say of it.
        let mapped = crate::host_memory::is_mapped_here(cx);
        if is(A::CU_POINTER_ATTRIBUTE_CONTEXT) {
            put64(crate::context::primary(block.device));
        } else if is(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            put32(sys::CUmemorytype_enum::CU_MEMORYTYPE_HOST as u32);
        } else if is(A::CU_POINTER_ATTRIBUTE_HOST_POINTER) || (is(A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER) && mapped) {
            put64(ptr);
        } else if is(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            put32(block.device);
        } else if is(A::CU_POINTER_ATTRIBUTE_BUFFER_ID) {
            put64(block.id);
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) && mapped {
            put64(block.start);
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
            put64(block.bytes);
        } else if is(A::CU_POINTER_ATTRIBUTE_MAPPED) && mapped {
            put32(1);
        } else if is(A::CU_POINTER_ATTRIBUTE_IS_MANAGED)
            || is(A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
            || is(A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        {
            put32(0);
        } else if is(A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) || is(A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
            put64(0);
        } else {
            return Err(code::ERROR_INVALID_VALUE);
        }
        return Ok(());
    }
    Err(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuPointerGetAttribute(cx: &mut Entered, data: *mut c_void, attribute: u32, ptr: sys::CUdeviceptr) -> Result<(), Code> {
    pointer_attribute(cx, attribute, ptr, data)
}

pub(crate) fn cuPointerGetAttributes(
    cx: &mut Entered,
    count: c_uint,
    attributes: *mut sys::CUpointer_attribute,
    data: *mut *mut c_void,
    ptr: sys::CUdeviceptr,
) -> Result<(), Code> {
    // A thread without a context may ask as well: PyTorch's pinning thread does.
    if count == 0 || attributes.is_null() || data.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    for i in 0..count as usize {
        // SAFETY: the program says that both arrays have `count` elements; the enum is read as the integer that it is in C.
        let (attribute, to) = unsafe { (attributes.cast::<u32>().add(i).read(), data.add(i).read()) };
        if to.is_null() {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if pointer_attribute(cx, attribute, ptr, to).is_err() {
            unknown_pointer(attribute, ptr, to);
        }
    }
    Ok(())
}

/// What `cuPointerGetAttributes` says of an address that CUDA does not know: no error, and these values (as a 580 driver on an
/// H200 answered; booleans are four bytes wide there).
fn unknown_pointer(attribute: u32, ptr: u64, to: *mut c_void) {
    use sys::CUpointer_attribute_enum as A;
    let among = |list: &[A]| list.iter().any(|a| *a as u32 == attribute);
    let untouched = [A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, A::CU_POINTER_ATTRIBUTE_RANGE_SIZE];
    let wide = [
        A::CU_POINTER_ATTRIBUTE_CONTEXT,
        A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        A::CU_POINTER_ATTRIBUTE_BUFFER_ID,
        A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
    ];
    if among(&untouched) {
        return;
    }
    if among(&[A::CU_POINTER_ATTRIBUTE_HOST_POINTER]) {
        // SAFETY: the width of each write is the attribute's, and the program's output has it.
        unsafe { to.cast::<u64>().write(ptr) }
    } else if among(&[A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL]) {
        // SAFETY: as above.
        unsafe { to.cast::<i32>().write(-2) }
    } else if among(&wide) {
        // SAFETY: as above.
        unsafe { to.cast::<u64>().write(0) }
    } else {
        // SAFETY: as above.
        unsafe { to.cast::<u32>().write(0) }
    }
}

pub(crate) fn cuPointerSetAttribute(cx: &mut Entered, value: *const c_void, attribute: u32, ptr: sys::CUdeviceptr) -> Result<(), Code> {
    let sync_memops = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as u32;
    if value.is_null() || !cx.job.devices.iter().any(|d| d.memory().find(ptr).is_some()) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // Copies of this memory already complete in the order that the flag asks for.
    if attribute == sync_memops { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_fit() {
        let mut r = Ranges::default();
        r.put(0, 4096);
        let (a, b, c) = (r.take(512).unwrap(), r.take(1024).unwrap(), r.take(512).unwrap());
        assert_eq!((a, b, c), (0, 512, 1536));
        r.put(a, 512);
        r.put(c, 512);
        assert_eq!(r.take(512), Some(0), "the tightest fit, lowest address");
        r.put(0, 512);
        r.put(b, 1024);
        assert_eq!(r.by_address, BTreeMap::from([(0, 4096)]));
        assert_eq!(r.take(8192), None);
    }

    #[test]
    fn copies_stay_inside_allocations() {
        let mut m = Memory::new(1);
        let a = m.base + 512;
        m.note(a, 100);
        assert_eq!(m.allows(a, 100), Some(true));
        assert_eq!(m.allows(a + 99, 1), Some(true));
        assert_eq!(m.allows(a + 99, 2), Some(false));
        assert_eq!(m.allows(a - 1, 1), Some(false));
        assert_eq!(m.allows(a, u64::MAX), Some(false));
        assert_eq!(m.allows(PLACED, 4), None);
    }
}
