//! Allocations of device memory: made, freed, and what becomes of them when their context ends.

use super::heap::Heap;
use super::live::Live;
use super::memory::{Kind, Memory, read, write};
use super::retire::Then;
use super::{device, host, lock, mempool, os, shared_pool, wait};
use crate::result::Res;
use cuda_api::sys::CUresult;
use std::sync::Arc;

/// `cuMemAlloc` in `live`'s context.
pub(crate) fn allocate(live: &Live, size: u64) -> Res<u64> {
    if size == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    allocate_as(live, size, live.device.ordinal as usize, Kind::Device)
}

/// Device memory of some kind.
pub(crate) fn allocate_as(live: &Live, size: u64, device: usize, kind: Kind) -> Res<u64> {
    let owner = device::all().get(device).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    let mut memory = write();
    let address = memory.pools.entry(device).or_default().allocate(owner, size)?;
    memory.add(address, size, kind, device, Some(live));
    Ok(address)
}

/// Marks an allocation as freed in a stream: it cannot be freed again, and work before the free may still use it.
pub(crate) fn mark_freed(address: u64) -> Res {
    let mut memory = write();
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    let alloc = memory.allocs.get_mut(&address).ok_or(bad)?;
    let pool = match alloc.kind {
        Kind::Pooled(pool) => Some((pool, alloc.size)),
        Kind::Device => None,
        _ => return Err(bad),
    };
    alloc.kind = Kind::Freed;
    // The lock of a pool comes before this one.
    drop(memory);
    if let Some((pool, size)) = pool {
        mempool::freed(pool, size);
    }
    Ok(())
}

/// `cuMemFree`: the address must be the start of a `cuMemAlloc` allocation. Waits for the work of its device, as the real
/// one does.
pub(crate) fn free(live: &Live, address: u64) -> Res {
    if matches!(read().allocs.get(&address).map(|alloc| &alloc.kind), Some(Kind::Pooled(_))) {
        // Of pools the program has to make sure itself that nothing uses the memory.
        mark_freed(address)?;
        release_device(&mut write(), address);
        return Ok(());
    }
    if matches!(read().allocs.get(&address).map(|alloc| &alloc.kind), Some(Kind::Managed)) {
        return host::free_managed(live, address);
    }
    let device = device_of_start(&read(), address)?;
    wait::for_device(device);
    live.check()?;
    let mut memory = write();
    // Looked at again: another thread may have freed it meanwhile.
    device_of_start(&memory, address)?;
    release_device(&mut memory, address);
    Ok(())
}

/// Device of the `cuMemAlloc` allocation that starts at `address`.
fn device_of_start(memory: &Memory, address: u64) -> Res<usize> {
    let alloc = memory.allocs.get(&address).filter(|alloc| matches!(alloc.kind, Kind::Device));
    alloc.map(|alloc| alloc.device).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Frees device memory.
pub(crate) fn release_device(memory: &mut Memory, address: u64) {
    let Some(alloc) = memory.remove(address) else {
        return;
    };
    let Some(device) = device::all().get(alloc.device) else {
        return;
    };
    let gone = match shared_pool::forget(device, address) {
        Some(len) => Some((address, len)),
        None => memory.pools.entry(alloc.device).or_default().free(device, address, alloc.size),
    };
    if let Some((at, len)) = gone {
        memory.retired.take_away(at, len, Then::Unmap);
    }
}

/// Frees the memory of a context that was destroyed.
pub(crate) fn end_context(live: &Live) {
    let mut memory = write();
    let mine: Vec<u64> = memory.allocs.iter().filter(|(_, a)| a.owner == live.number).map(|(base, _)| *base).collect();
    for base in mine {
        match memory.allocs.get(&base).map(|alloc| &alloc.kind) {
            Some(Kind::Device | Kind::Pooled(_) | Kind::Freed) => release_device(&mut memory, base),
            Some(Kind::Pinned(_) | Kind::Managed | Kind::ManagedVariable) => host::release(&mut memory, base),
            Some(Kind::Heap) => {
                if let Some(alloc) = memory.remove(base) {
                    // At once, for the next context may want the place: only this one's kernels could use it.
                    os::unmap(base, alloc.size);
                    live.device.release(alloc.size);
                }
            }
            _ => drop(memory.remove(base)),
        }
    }
    memory.forget_context(live.number);
    drop(memory);
    lock(&live.place).end(&live.device, &mut write().retired);
}

/// The device heap of a context, placed on the first call.
pub(crate) fn heap(live: &Live) -> Res<Arc<Heap>> {
    // Under the lock of the limits, so that the size cannot change while the heap is made.
    let limits = lock(&live.limits);
    if let Some(heap) = live.heap.get() {
        return Ok(heap.clone());
    }
    let heap = Heap::place(&live.device, live.slot, limits.heap as u64)?;
    let (base, size) = heap.range();
    write().add(base, size, Kind::Heap, live.device.ordinal as usize, Some(live));
    Ok(live.heap.get_or_init(|| Arc::new(heap)).clone())
}
