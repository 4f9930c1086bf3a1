//! Virtual memory management: reservations, and mappings of physical memory into them.

use super::memory::{self, Kind};
use super::os::{self, Protection};
use super::physical::{GRANULARITY, Mapping, Reservation, duplicate, resolve, retain, whole_granules};
use super::retire::Then;
use crate::result::Res;
use cuda_api::sys::CUresult;

/// Smaller reservations do not get the requested address, as on hardware.
const HONOURED: u64 = 128 << 20;
/// `cuMemRetainAllocationHandle`: another reference to the handle of what is mapped at `address`.
pub(crate) fn retain_at(address: u64) -> Res<u64> {
    let physical = match memory::read().find(address).map(|(_, alloc)| &alloc.kind) {
        Some(Kind::Mapped(mapping)) => mapping.physical.clone(),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    Ok(retain(physical))
}

/// `cuMemGetHandleForAddressRange`: a descriptor of the memory file in place of a dma-buf, of all that was mapped at once.
pub(crate) fn dma_buf(address: u64, size: u64) -> Res<i32> {
    let memory = memory::read();
    match memory.find(address) {
        Some((base, alloc)) if base == address && alloc.size == size => match &alloc.kind {
            Kind::Mapped(mapping) if mapping.physical.size == size => duplicate(&mapping.physical),
            _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        },
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// `cuMemAddressReserve`.
pub(crate) fn reserve(size: u64, alignment: u64, hint: u64) -> Res<u64> {
    if !whole_granules(size) || (alignment != 0 && !alignment.is_power_of_two()) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let hint = if size < HONOURED { 0 } else { hint };
    let address = os::reserve(hint, size, alignment.max(GRANULARITY))?;
    memory::write().reservations.insert(address, Reservation { size });
    Ok(address)
}

/// `cuMemAddressFree`: the whole reservation, with nothing mapped in it.
pub(crate) fn unreserve(address: u64, size: u64) -> Res {
    let mut memory = memory::write();
    if memory.reservations.get(&address).is_none_or(|r| r.size != size) || memory.overlaps(address, size) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    memory.reservations.remove(&address);
    memory.retired.drop_space(address, size);
    Ok(())
}

/// `cuMemMap`: not accessible before [`set_access`].
pub(crate) fn map(address: u64, size: u64, offset: u64, handle: u64) -> Res {
    let physical = resolve(handle)?;
    if offset != 0
        || !whole_granules(size)
        || !address.is_multiple_of(GRANULARITY)
        || size > physical.size
        || physical.is_for_tiles
    {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let end = address.checked_add(size).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let mut memory = memory::write();
    let inside = memory.reservations.range(..=address).next_back().is_some_and(|(base, r)| end <= base + r.size);
    if !inside || memory.overlaps(address, size) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    memory.retired.reuse(address, size);
    os::map_file(address, size, &physical.fd)?;
    let device = physical.device.ordinal as usize;
    memory.add(address, size, Kind::Mapped(Mapping { physical, access: Vec::new() }), device, None);
    Ok(())
}

/// Addresses of the mappings that make up a range exactly.
fn mappings(memory: &memory::Memory, address: u64, size: u64) -> Res<Vec<u64>> {
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    let end = address.checked_add(size).filter(|_| size != 0).ok_or(bad)?;
    let mut found = Vec::new();
    let mut at = address;
    while at < end {
        let alloc = memory.allocs.get(&at).filter(|a| matches!(a.kind, Kind::Mapped(_))).ok_or(bad)?;
        found.push(at);
        at += alloc.size;
    }
    if at == end { Ok(found) } else { Err(bad) }
}

/// `cuMemUnmap`: whole mappings. Does not wait for kernels.
pub(crate) fn unmap(address: u64, size: u64) -> Res {
    let mut memory = memory::write();
    let gone: Vec<_> = mappings(&memory, address, size)?.into_iter().map(|at| (at, memory.remove(at))).collect();
    for (at, alloc) in &gone {
        if let Some(alloc) = alloc {
            memory.retired.take_away(*at, alloc.size, Then::Reserve);
        }
    }
    drop(memory);
    // The last reference to physical memory may go here, outside the table's lock.
    drop(gone);
    Ok(())
}

/// `cuMemSetAccess`: whether `device` may use a range of whole mappings.
pub(crate) fn set_access(address: u64, size: u64, device: usize, allowed: bool) -> Res {
    let mut memory = memory::write();
    for at in mappings(&memory, address, size)? {
        let Some(alloc) = memory.allocs.get_mut(&at) else {
            continue;
        };
        let Kind::Mapped(mapping) = &mut alloc.kind else {
            continue;
        };
        mapping.access.retain(|d| *d != device);
        if allowed {
            mapping.access.push(device);
        }
        let protection = if mapping.access.is_empty() { Protection::None } else { Protection::ReadWrite };
        os::protect(at, alloc.size, protection)?;
    }
    memory.changed();
    Ok(())
}

/// `cuMemGetAccess`: whether `device` may use what is mapped at `address`.
pub(crate) fn access(address: u64, device: usize) -> Res<bool> {
    match memory::read().find(address).map(|(_, alloc)| &alloc.kind) {
        Some(Kind::Mapped(mapping)) => Ok(mapping.access.contains(&device)),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}
