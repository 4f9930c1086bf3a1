//! Page-locked host memory: allocated here, or registered memory of the program. The device sees it at its host
//! address.

use super::live::Live;
use super::memory::{self, Kind, Memory};
use super::retire::Then;
use super::{os, wait};
use crate::config;
use crate::result::Res;
use cuda_api::sys::CUresult;

const PAGE: u64 = 4096;
/// Portable, device-mapped, write-combined.
const ALLOC_FLAGS: u32 = 7;
/// Portable, device-mapped, I/O memory, read-only.
const REGISTER_FLAGS: u32 = 15;
const IO_MEMORY: u32 = 4;

/// `cuMemHostAlloc`.
pub(crate) fn allocate(live: &Live, size: u64, flags: u32) -> Res<u64> {
    if flags & !ALLOC_FLAGS != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if size == 0 {
        // A success that gives nothing.
        return Ok(0);
    }
    check_room(&memory::read(), size)?;
    make(Some(live), size, Kind::Pinned(flags))
}

/// Whether this much more memory may be page-locked.
fn check_room(memory: &Memory, size: u64) -> Res {
    let most = config::get().pinned;
    let locked =
        || memory.allocs.values().filter(|a| matches!(a.kind, Kind::Pinned(_) | Kind::Registered)).map(|a| a.size).sum::<u64>();
    if most != u64::MAX && locked().saturating_add(size) > most { Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(()) }
}

fn make(live: Option<&Live>, size: u64, kind: Kind) -> Res<u64> {
    let len = size.checked_next_multiple_of(PAGE).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let address = os::anywhere(len)?;
    memory::write().add(address, size, kind, live.map_or(0, |l| l.device.ordinal as usize), live);
    Ok(address)
}

/// `cuMemAllocManaged`: host memory that kernels use directly.
pub(crate) fn allocate_managed(live: &Live, size: u64) -> Res<u64> {
    if size == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    make(Some(live), size, Kind::Managed)
}

/// A managed variable with this first value; those of libraries belong to no context.
pub(crate) fn allocate_variable(live: Option<&Live>, value: &[u8]) -> Res<u64> {
    let address = make(live, value.len().max(1) as u64, Kind::ManagedVariable)?;
    // SAFETY: memory of so many bytes, just made; nothing refers to it.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), address as *mut u8, value.len()) };
    Ok(address)
}

/// Frees the memory of managed variables, which is no longer in use.
pub(crate) fn release_variables(addresses: &[u64]) {
    let mut memory = memory::write();
    addresses.iter().for_each(|address| release(&mut memory, *address));
}

/// Whether page-locked memory that was allocated here begins at an address.
pub(crate) fn check_pinned(address: u64) -> Res {
    match memory::read().allocs.get(&address).is_some_and(|a| matches!(a.kind, Kind::Pinned(_))) {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Whether registered memory begins at an address; memory that was allocated here is a different error.
pub(crate) fn check_registered(address: u64) -> Res {
    match memory::read().allocs.get(&address).map(|a| &a.kind) {
        Some(Kind::Registered) => Ok(()),
        Some(_) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        None => Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    }
}

/// `cuMemFreeHost`: waits for the work of the context.
pub(crate) fn free(live: &Live, address: u64) -> Res {
    free_if(live, address, |kind| matches!(kind, Kind::Pinned(_)))
}

/// `cuMemFree` of managed memory, likewise.
pub(crate) fn free_managed(live: &Live, address: u64) -> Res {
    free_if(live, address, |kind| matches!(kind, Kind::Managed))
}

fn free_if(live: &Live, address: u64, fits: impl Fn(&Kind) -> bool) -> Res {
    let begins = |memory: &Memory| memory.allocs.get(&address).is_some_and(|a| fits(&a.kind));
    if !begins(&memory::read()) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    wait::synchronise(live)?;
    let mut memory = memory::write();
    // Looked at again: another thread may have freed it meanwhile.
    if !begins(&memory) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    release(&mut memory, address);
    Ok(())
}

/// Frees memory that was allocated here.
pub(crate) fn release(memory: &mut Memory, address: u64) {
    if let Some(alloc) = memory.remove(address) {
        memory.retired.take_away(address, alloc.size.next_multiple_of(PAGE), Then::Unmap);
    }
}

/// `cuMemHostRegister`.
pub(crate) fn register(live: &Live, address: u64, size: u64, flags: u32) -> Res {
    if address == 0 || size == 0 || flags & !REGISTER_FLAGS != 0 || address.checked_add(size).is_none() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if flags & IO_MEMORY != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    let mut memory = memory::write();
    if memory.overlaps(address, size) {
        let ours = memory.find(address).is_some_and(|(_, alloc)| !matches!(alloc.kind, Kind::Registered));
        return Err(if ours { CUresult::CUDA_ERROR_INVALID_VALUE } else { CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED });
    }
    // Whole pages are registered.
    let first = address & !(PAGE - 1);
    if memory.overlaps(first, (address + size).next_multiple_of(PAGE) - first) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    check_room(&memory, size)?;
    memory.add(address, size, Kind::Registered, live.device.ordinal as usize, Some(live));
    Ok(())
}

/// `cuMemHostUnregister`: waits for the work of the context.
pub(crate) fn unregister(live: &Live, address: u64) -> Res {
    let registered = |memory: &Memory| memory.allocs.get(&address).is_some_and(|a| matches!(a.kind, Kind::Registered));
    if !registered(&memory::read()) {
        return Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    wait::synchronise(live)?;
    let mut memory = memory::write();
    if !registered(&memory) {
        return Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    memory.remove(address);
    Ok(())
}

/// Whether an address is in page-locked memory; managed memory does not count.
pub(crate) fn check_page_locked(address: u64) -> Res {
    match memory::read().find(address).map(|(_, alloc)| &alloc.kind) {
        Some(Kind::Pinned(_) | Kind::Registered) => Ok(()),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Flags of a page-locked address: every one is mapped, and only this is reported of the allocation flags; managed
/// memory counts, too (measured).
pub(crate) fn flags(address: u64) -> Res<u32> {
    const DEVICE_MAPPED: u32 = 2;
    const WRITE_COMBINED: u32 = 4;
    match memory::read().find(address).map(|(_, alloc)| &alloc.kind) {
        Some(Kind::Pinned(flags)) => Ok(flags & WRITE_COMBINED | DEVICE_MAPPED),
        Some(Kind::Registered | Kind::Managed | Kind::ManagedVariable) => Ok(DEVICE_MAPPED),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}
