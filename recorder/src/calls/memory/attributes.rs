//! Attributes of addresses (`cuPointerGetAttribute` and related functions).

use crate::base::log::lock;
use crate::enter::CallContext;
use cuda_api::code::{self, Code};
use cuda_api::flags::ACCESS_READ_WRITE;
use cuda_api::pointer::{InPtr, OutPtr};
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
fn pointer_attribute(cx: &CallContext, attribute: u32, ptr: u64, to: OutPtr<c_void>) -> Result<(), Code> {
    use sys::CUpointer_attribute_enum as A;
    if to.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let found = find(cx, ptr);
    let host = crate::pinned::blocks::find(ptr);
    let is = |a: A| attribute == a as u32;
    // The width is the documented one of the attribute.
    let (to32, to64) = (to.typed::<u32>(), to.typed::<u64>());
    if let Some(k) = found {
        if is(A::CU_POINTER_ATTRIBUTE_CONTEXT) {
            to64.write(k.context)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            to32.write(sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
            to64.write(ptr)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            to32.write(k.device)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_BUFFER_ID) {
            to64.write(k.id)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
            to64.write(k.start)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
            to64.write(k.bytes)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_MAPPED) {
            to32.write(1)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) {
            to32.write(ACCESS_READ_WRITE)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
            to64.write(k.handle_types.into())?;
        } else if is(A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
            to32.write(lock(&SYNCHRONOUS).has(k.id).into())?;
        } else if is(A::CU_POINTER_ATTRIBUTE_IS_MANAGED)
            || is(A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
            || of_other_devices(attribute)
        {
            to32.write(0)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
            to64.write(k.pool)?;
        } else {
            return Err(code::ERROR_INVALID_VALUE);
        }
        return Ok(());
    }
    if let Some(block) = host {
        if is(A::CU_POINTER_ATTRIBUTE_CONTEXT) {
            to64.write(if block.variable { 0 } else { crate::job::contexts::primary(block.device) })?;
        } else if is(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            use sys::CUmemorytype_enum as M;
            // Managed memory counts as a device's (cuPointerGetAttribute, with IS_MANAGED).
            to32.write(if block.managed { M::CU_MEMORYTYPE_DEVICE } else { M::CU_MEMORYTYPE_HOST } as u32)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_IS_MANAGED) {
            to32.write(block.managed.into())?;
        } else if is(A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
            // Calls about managed memory always wait (measured).
            to32.write((block.managed || lock(&SYNCHRONOUS).has(block.id)).into())?;
        } else if is(A::CU_POINTER_ATTRIBUTE_HOST_POINTER) || is(A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
            to64.write(ptr)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            to32.write(block.device)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_BUFFER_ID) {
            to64.write(block.id)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
            to64.write(block.start)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
            to64.write(block.bytes)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_MAPPED) {
            to32.write(1)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) {
            to32.write(ACCESS_READ_WRITE)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) || of_other_devices(attribute) {
            to32.write(0)?;
        } else if is(A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) || is(A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
            to64.write(0)?;
        } else {
            return Err(code::ERROR_INVALID_VALUE);
        }
        return Ok(());
    }
    Err(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuPointerGetAttribute(
    cx: &mut CallContext,
    data: OutPtr<c_void>,
    attribute: u32,
    ptr: sys::CUdeviceptr,
) -> Result<(), Code> {
    pointer_attribute(cx, attribute, ptr, data)
}

pub(crate) fn cuPointerGetAttributes(
    cx: &mut CallContext,
    count: c_uint,
    attributes: InPtr<sys::CUpointer_attribute>,
    data: InPtr<*mut c_void>,
    ptr: sys::CUdeviceptr,
) -> Result<(), Code> {
    // A thread without a context may query too: PyTorch's pinning thread does.
    if count == 0 || attributes.is_null() || data.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let count = count as usize;
    for (attribute, to) in attributes.cast::<u32>().elements(count)?.zip(data.outputs(count)?) {
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
fn unknown_pointer(attribute: u32, ptr: u64, to: OutPtr<c_void>) {
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
        to.typed::<u64>().write_if_wanted(ptr);
    } else if among(&[A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL]) {
        to.typed::<i32>().write_if_wanted(-2);
    } else if among(&wide) {
        to.typed::<u64>().write_if_wanted(0);
    } else {
        to.typed::<u32>().write_if_wanted(0);
    }
}

pub(crate) fn cuPointerSetAttribute(
    cx: &mut CallContext,
    value: InPtr<c_void>,
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
    let on = value.typed::<u32>().read()?;
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
