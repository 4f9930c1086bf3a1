//! Attributes of addresses (`cuPointerGetAttribute` and related functions).

use crate::base::log::lock;
use crate::enter::CallContext;
use cuda_api::code::{self, Code};
use cuda_api::sys;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Device memory of the program, with what attributes report about it.
struct Known {
    start: u64,
    bytes: u64,
    id: u64,
    device: u32,
    /// Only memory of `cuMemAlloc` belongs to a context.
    context: u64,
    pool: u64,
    handle_types: u32,
}

impl Known {
    fn of_allocation(device: u32, f: crate::objects::allocations::Found) -> Known {
        let context = if f.pool == 0 { crate::job::contexts::primary(device) } else { 0 };
        Known { start: f.start, bytes: f.bytes, id: f.id, device, context, pool: f.pool, handle_types: 0 }
    }

    fn of_variable(v: crate::device_memory::variables::Found) -> Known {
        let id = crate::device_memory::variables::number(&v);
        Known { start: v.start, bytes: v.bytes, id, device: v.device, context: v.context, pool: 0, handle_types: 0 }
    }

    fn of_mapping(f: crate::device_memory::mappings::Found) -> Known {
        let crate::device_memory::mappings::Found { start, bytes, device, id, handle_types } = f;
        Known { start, bytes, id, device, context: 0, pool: 0, handle_types }
    }
}

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: u32 = 3;

/// Returns whether an attribute allows network cards or decompression units to use memory: they could not follow it to another place.
fn of_other_devices(attribute: u32) -> bool {
    use sys::CUpointer_attribute_enum as A;
    [A::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, A::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE]
        .iter()
        .any(|a| *a as u32 == attribute)
}

/// The device memory that contains an address.
fn find(cx: &CallContext, ptr: u64) -> Option<Known> {
    let allocated = cx.job.devices.iter().find_map(|d| d.memory().find(ptr).map(|f| Known::of_allocation(d.index, f)));
    let mapped = || crate::device_memory::mappings::find(ptr).map(Known::of_mapping);
    allocated.or_else(mapped).or_else(|| crate::device_memory::variables::find(cx, ptr).map(Known::of_variable))
}

/// Memory with `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, with an address in it. Freed memory is removed only when the list has become long.
#[derive(Debug)]
struct Synchronous {
    /// By the number of the memory, which is never reused.
    all: BTreeMap<u64, u64>,
    /// Length from which on freed memory is removed.
    many: usize,
}

static SYNCHRONOUS: Mutex<Synchronous> = Mutex::new(Synchronous { all: BTreeMap::new(), many: Synchronous::FEW });

impl Synchronous {
    const FEW: usize = 64;

    fn has(&self, id: u64) -> bool {
        self.all.contains_key(&id)
    }

    /// Sets the attribute of the memory at an address. `lies_at` returns the memory that is at an address now.
    fn set(&mut self, id: u64, ptr: u64, on: bool, lies_at: impl Fn(u64) -> Option<u64>) {
        if !on {
            self.all.remove(&id);
            return;
        }
        self.all.insert(id, ptr);
        if self.all.len() >= self.many {
            self.all.retain(|id, ptr| lies_at(*ptr) == Some(*id));
            self.many = Synchronous::FEW.max(2 * self.all.len());
        }
    }
}

/// Whether the attribute was ever set.
static ANY_WAITING: AtomicBool = AtomicBool::new(false);

/// Returns whether synchronous calls with this memory must wait for completion, including those that natively need not.
pub(crate) fn waits(cx: &CallContext, ptr: u64) -> bool {
    ANY_WAITING.load(Ordering::Relaxed) && find(cx, ptr).is_some_and(|k| lock(&SYNCHRONOUS).has(k.id))
}

/// Answers one pointer attribute: `Ok(None)` leaves the output unchanged.
fn pointer_attribute(cx: &CallContext, attribute: u32, ptr: u64, to: *mut c_void) -> Result<(), Code> {
    use sys::CUpointer_attribute_enum as A;
    if to.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let found = find(cx, ptr);
    let host = crate::pinned::blocks::find(ptr);
    let is = |a: A| attribute == a as u32;
    // SAFETY: the width is the documented one of the attribute, and the program's output has it.
    let put32 = |v: u32| unsafe { to.cast::<u32>().write(v) };
    // SAFETY: as above.
    let put64 = |v: u64| unsafe { to.cast::<u64>().write(v) };
    if let Some(k) = found {
        if is(A::CU_POINTER_ATTRIBUTE_CONTEXT) {
            put64(k.context);
        } else if is(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            put32(sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32);
        } else if is(A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
            put64(ptr);
        } else if is(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            put32(k.device);
        } else if is(A::CU_POINTER_ATTRIBUTE_BUFFER_ID) {
            put64(k.id);
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
            put64(k.start);
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
            put64(k.bytes);
        } else if is(A::CU_POINTER_ATTRIBUTE_MAPPED) {
            put32(1);
        } else if is(A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) {
            put32(READ_WRITE);
        } else if is(A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
            put64(k.handle_types.into());
        } else if is(A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
            put32(lock(&SYNCHRONOUS).has(k.id).into());
        } else if is(A::CU_POINTER_ATTRIBUTE_IS_MANAGED)
            || is(A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
            || of_other_devices(attribute)
        {
            put32(0);
        } else if is(A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
            put64(k.pool);
        } else {
            return Err(code::ERROR_INVALID_VALUE);
        }
        return Ok(());
    }
    if let Some(block) = host {
        if is(A::CU_POINTER_ATTRIBUTE_CONTEXT) {
            put64(if block.variable { 0 } else { crate::job::contexts::primary(block.device) });
        } else if is(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            use sys::CUmemorytype_enum as M;
            // Managed memory counts as a device's (cuPointerGetAttribute, with IS_MANAGED).
            put32(if block.managed { M::CU_MEMORYTYPE_DEVICE } else { M::CU_MEMORYTYPE_HOST } as u32);
        } else if is(A::CU_POINTER_ATTRIBUTE_IS_MANAGED) {
            put32(block.managed.into());
        } else if is(A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
            // Calls about managed memory always wait (measured).
            put32((block.managed || lock(&SYNCHRONOUS).has(block.id)).into());
        } else if is(A::CU_POINTER_ATTRIBUTE_HOST_POINTER) || is(A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
            put64(ptr);
        } else if is(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            put32(block.device);
        } else if is(A::CU_POINTER_ATTRIBUTE_BUFFER_ID) {
            put64(block.id);
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
            put64(block.start);
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
            put64(block.bytes);
        } else if is(A::CU_POINTER_ATTRIBUTE_MAPPED) {
            put32(1);
        } else if is(A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) {
            put32(READ_WRITE);
        } else if is(A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) || of_other_devices(attribute) {
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

pub(crate) fn cuPointerGetAttribute(
    cx: &mut CallContext,
    data: *mut c_void,
    attribute: u32,
    ptr: sys::CUdeviceptr,
) -> Result<(), Code> {
    pointer_attribute(cx, attribute, ptr, data)
}

pub(crate) fn cuPointerGetAttributes(
    cx: &mut CallContext,
    count: c_uint,
    attributes: *mut sys::CUpointer_attribute,
    data: *mut *mut c_void,
    ptr: sys::CUdeviceptr,
) -> Result<(), Code> {
    // A thread without a context may query too: PyTorch's pinning thread does.
    if count == 0 || attributes.is_null() || data.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    for i in 0..count as usize {
        // SAFETY: the program guarantees that both arrays have `count` elements; the enum is read as the integer that it is in C.
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

/// The values that `cuPointerGetAttributes` returns, without an error, for an address that CUDA does not know (as a 580 driver on an H200
/// answered; booleans are four bytes wide there).
fn unknown_pointer(attribute: u32, ptr: u64, to: *mut c_void) {
    use sys::CUpointer_attribute_enum as A;
    let among = |list: &[A]| list.iter().any(|a| *a as u32 == attribute);
    let untouched = [A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, A::CU_POINTER_ATTRIBUTE_RANGE_SIZE];
    let wide = [
        A::CU_POINTER_ATTRIBUTE_CONTEXT,
        A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        A::CU_POINTER_ATTRIBUTE_BUFFER_ID,
        A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
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

pub(crate) fn cuPointerSetAttribute(
    cx: &mut CallContext,
    value: *const c_void,
    attribute: u32,
    ptr: sys::CUdeviceptr,
) -> Result<(), Code> {
    let sync_memops = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as u32;
    let bad = code::ERROR_INVALID_VALUE;
    if value.is_null() || attribute != sync_memops {
        return Err(bad);
    }
    if crate::device_memory::mappings::find(ptr).is_some() {
        // Measured: not supported for memory that the program maps.
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    let number = |ptr: u64| {
        let host = || crate::pinned::blocks::find(ptr).map(|block| block.id);
        find(cx, ptr).map(|memory| memory.id).or_else(host)
    };
    let this = number(ptr).ok_or(bad)?;
    // SAFETY: not null, so by CUDA's contract a value of this attribute.
    let on = unsafe { value.cast::<u32>().read_unaligned() };
    if on > 1 {
        return Err(bad);
    }
    lock(&SYNCHRONOUS).set(this, ptr, on == 1, number);
    ANY_WAITING.fetch_or(on == 1, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn memory_that_is_freed_is_forgotten() {
        let mut all = Synchronous { all: BTreeMap::new(), many: Synchronous::FEW };
        // The memory at each address: the same piece at one, successive pieces at another.
        let mut lies = HashMap::from([(0x1000, 1)]);
        all.set(1, 0x1000, true, |ptr| lies.get(&ptr).copied());
        for id in 2..100_000 {
            lies.insert(0x2000 + id % 3, id);
            all.set(id, 0x2000 + id % 3, true, |ptr| lies.get(&ptr).copied());
            assert!(all.all.len() <= Synchronous::FEW, "{} pieces of memory of which all but four are gone", all.all.len());
        }
        assert!(all.has(1) && all.has(99_999));
        all.set(1, 0x1000, false, |_| None);
        assert!(!all.has(1));
    }

    #[test]
    fn much_memory_is_kept_and_looked_at_seldom() {
        let mut all = Synchronous { all: BTreeMap::new(), many: Synchronous::FEW };
        let looks = std::cell::Cell::new(0u64);
        for id in 0..10_000 {
            all.set(id, id, true, |ptr| {
                looks.set(looks.get() + 1);
                Some(ptr)
            });
        }
        assert_eq!(all.all.len(), 10_000);
        assert!(looks.get() < 40_000, "{} looks", looks.get());
    }
}
