//! The virtual-memory functions (`cuMem…`) for the program.
//!
//! The recorder alone manages reservations: it chooses addresses in a range of its own. Physical memory that the program creates has a
//! chunk of the device's arena as its home, where it is always mapped: so memory that the program has not mapped at the moment, has
//! mapped twice, or without access is copied once in a move, like any other chunk. The program's mappings are aliases of it
//! ([`ops::Alias`], journalled). Memory only for tiles of arrays has no addresses at all ([`crate::calls::tiles`]).

use crate::base::encoding::encode;
use crate::base::log::{self, lock};
use crate::calls::vmm::tile_pools::{collect, end_pools, make_pool};
use crate::device_memory::mappings::{FOREIGN, Mapping, Physical, Vmm, find, is_reserved, read, write};
use crate::device_memory::{peer, shared_memory, stream_ordered, supply};
use crate::enter::CallContext;
use crate::job::{Device, PutOff};
use crate::ledger::Keep;
use crate::objects::chunks::Request;
use cuda_api::address_map::GRANULE;
use cuda_api::arg::Edges;
use cuda_api::array::TILE_POOL;
use cuda_api::code::{self, Code};
use cuda_api::flags::{ACCESS_READ_WRITE, ALLOCATION_PINNED, HANDLE_FILE_DESCRIPTOR, LOCATION_DEVICE};
use cuda_api::memory::{AllocationProp, Location};
use cuda_api::ops::{self, Alias, Chunk, Offer};
use cuda_api::pointer::InPtr;
use cuda_api::sys;
use std::ffi::{c_int, c_ulonglong};

pub(crate) mod share;
pub(crate) mod tile_pools;

/// Higher counts of locations than any machine has are refused.
const MAX_LOCATIONS: usize = 4096;

fn alias_op(cx: &CallContext, device: &'static Device, op: u16, alias: &Alias, edges: &Edges) -> Result<(), Code> {
    device.check()?;
    let body = encode(alias);
    let mut ledger = lock(&device.ledger);
    let (rc, bytes) = device.record_error(cx.place(device).begin(op, &[&body]))?.finish();
    if rc != code::SUCCESS {
        tracing::debug!(target: "memory", "{op:#06x} failed with {rc}: {}", String::from_utf8_lossy(&bytes));
        device.note(rc);
        return Err(rc);
    }
    ledger.append(op, &body, &[], edges, Keep::PLAIN)
}

/// Removes mappings and memory of a device whose context is destroyed; its chunks are freed by their owner.
pub(crate) fn forget(cx: &CallContext, device: &'static Device) {
    let _later = PutOff::begin();
    let mut v = write();
    let mine: Vec<u64> = v.mappings.iter().filter(|(_, m)| m.device == device.index).map(|(at, _)| *at).collect();
    for at in mine {
        // It fails only if the context is destroyed, and the mapping with it.
        let _ = unmap(cx, &mut v, at);
    }
    let gone = v.physical.extract_if(|_, p| p.device.index == device.index);
    let pools = gone.filter(|(_, p)| p.prop.is_for_tiles()).map(|(handle, p)| (p.device, handle)).collect();
    drop(v);
    // As above.
    let _ = end_pools(cx, pools);
}

/// Allows or forbids a device to use a mapping of imported memory. It is mapped at the place of one device at a time.
fn allow_borrowed(
    cx: &CallContext,
    m: &mut Mapping,
    at: u64,
    offer: Offer,
    device: &'static Device,
    access: u32,
) -> Result<(), Code> {
    let here = Chunk { address: at, bytes: m.bytes };
    match (m.access, access) {
        (0, ACCESS_READ_WRITE) => shared_memory::map(cx, device, here, offer)?,
        (ACCESS_READ_WRITE, 0) if m.device == device.index => shared_memory::unmap(cx, device, here)?,
        (_, 0) => return Ok(()),
        (ACCESS_READ_WRITE, ACCESS_READ_WRITE) if m.device == device.index => return Ok(()),
        _ => {
            log::missed("memory of another process that several GPUs use, or that is only read (not supported)".to_owned());
            return Err(code::ERROR_NOT_SUPPORTED);
        }
    }
    (m.device, m.access) = (device.index, access);
    Ok(())
}

fn unmap(cx: &CallContext, v: &mut Vmm, at: u64) -> Result<(), Code> {
    let Some(m) = v.mappings.remove(&at) else { return Err(code::ERROR_INVALID_VALUE) };
    if m.physical == FOREIGN {
        v.room.put(at, m.bytes);
        let device = cx.job.devices.get(m.device as usize).ok_or(code::ERROR_INVALID_DEVICE)?;
        return cx.work(device, ops::id::PEER_UNMAP, &[&encode(&Chunk { address: at, bytes: m.bytes })]);
    }
    peer::unshare_alias(cx, None, at);
    let Some(p) = v.physical.get_mut(&m.physical) else { return Err(code::ERROR_INVALID_VALUE) };
    p.mappings -= 1;
    if p.loan.is_some() {
        let device = cx.job.devices.get(m.device as usize).ok_or(code::ERROR_INVALID_DEVICE)?;
        return if m.access == 0 { Ok(()) } else { shared_memory::unmap(cx, device, Chunk { address: at, bytes: m.bytes }) };
    }
    let alias = Alias { address: at, bytes: m.bytes, chunk: p.chunk, access: 0 };
    alias_op(cx, p.device, ops::id::ALIAS_UNMAP, &alias, &Edges { ends: Some(at), ..Edges::default() })
}

pub(crate) fn cuMemAddressReserve(
    _cx: &mut CallContext,
    size: usize,
    alignment: usize,
    addr: u64,
    flags: c_ulonglong,
) -> Result<sys::CUdeviceptr, Code> {
    let (bytes, align) = (size as u64, (alignment as u64).max(GRANULE));
    if flags != 0 || bytes == 0 || bytes % GRANULE != 0 || !(alignment == 0 || alignment.is_power_of_two()) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let mut v = write();
    // The requested address is a hint. Merged free ranges end where arenas do, so it cannot span two.
    let wish = addr.is_multiple_of(align) && is_reserved(addr) && v.room.carve(addr, bytes);
    let address = if wish { Some(addr) } else { v.room.take_aligned(bytes, align) }.ok_or(code::ERROR_OUT_OF_MEMORY)?;
    v.reserved.insert(address, bytes);
    Ok(address)
}

pub(crate) fn cuMemAddressFree(_cx: &mut CallContext, ptr: u64, size: usize) -> Result<(), Code> {
    unreserve(ptr, size as u64)
}

/// Releases a reservation in which nothing is mapped.
pub(crate) fn unreserve(at: u64, bytes: u64) -> Result<(), Code> {
    let mut v = write();
    if v.reserved.get(&at) != Some(&bytes) || v.overlaps(at, bytes) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    v.reserved.remove(&at);
    v.room.put(at, bytes);
    Ok(())
}

/// Checks the requested properties of memory; returns its device.
fn check_properties(cx: &CallContext, p: &AllocationProp) -> Result<&'static Device, Code> {
    if p.kind != ALLOCATION_PINNED || p.win32 != 0 || p.location == 0 || p.location > 4 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if p.location != LOCATION_DEVICE || p.handle_types & !HANDLE_FILE_DESCRIPTOR != 0 {
        // Memory of the host, and handles that only fabrics know.
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    cx.job.device(p.ordinal)
}

pub(crate) fn cuMemCreate(cx: &mut CallContext, size: usize, prop: AllocationProp, flags: c_ulonglong) -> Result<u64, Code> {
    let bytes = size as u64;
    if flags != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let device = check_properties(cx, &prop)?;
    // Memory for tiles stays in its process, and cannot be used by network cards (measured, 580 driver).
    let tiles_elsewhere = prop.is_for_tiles() && (prop.handle_types != 0 || prop.rdma != 0);
    if bytes == 0 || !bytes.is_multiple_of(GRANULE) || tiles_elsewhere {
        return Err(code::ERROR_INVALID_VALUE);
    }
    device.check()?;
    collect(cx)?;
    let number = write().number();
    let chunk = if prop.is_for_tiles() {
        stream_ordered::with_room(cx, device, bytes, || make_pool(cx, device, number, bytes))?;
        0
    } else {
        supply::take(cx, device, Request::Chunk(bytes))?
    };
    let mut v = write();
    // Compression is a hint, which is never granted.
    let prop = AllocationProp { compression: 0, ..prop };
    v.physical.insert(number, Physical { device, bytes, chunk, loan: None, handles: 1, mappings: 0, exported: Vec::new(), prop });
    Ok(number)
}

pub(crate) fn cuMemRelease(cx: &mut CallContext, handle: u64) -> Result<(), Code> {
    write().known(handle)?.handles -= 1;
    collect(cx)
}

pub(crate) fn cuMemMap(
    cx: &mut CallContext,
    ptr: u64,
    size: usize,
    offset: usize,
    handle: u64,
    flags: c_ulonglong,
) -> Result<(), Code> {
    let bytes = size as u64;
    if flags != 0 || offset != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULE) || !ptr.is_multiple_of(GRANULE) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let mut v = write();
    let end = ptr.checked_add(bytes).ok_or(code::ERROR_INVALID_VALUE)?;
    let inside = v.reserved.range(..=ptr).next_back().is_some_and(|(at, len)| end <= at + len);
    if !inside || v.overlaps(ptr, bytes) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let p = v.known(handle)?;
    if bytes > p.bytes || p.prop.is_for_tiles() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if p.loan.is_none() {
        let edges = Edges { creates: [ptr].into(), uses: [p.chunk].into(), ..Edges::default() };
        alias_op(cx, p.device, ops::id::ALIAS_MAP, &Alias { address: ptr, bytes, chunk: p.chunk, access: 0 }, &edges)?;
    }
    p.mappings += 1;
    let device = p.device.index;
    v.next_id += 1;
    let id = v.next_id;
    v.mappings.insert(ptr, Mapping { bytes, physical: handle, device, access: 0, id });
    Ok(())
}

pub(crate) fn cuMemUnmap(cx: &mut CallContext, ptr: u64, size: usize) -> Result<(), Code> {
    let mut v = write();
    for at in v.mappings_of(ptr, size as u64)? {
        unmap(cx, &mut v, at)?;
    }
    drop(v);
    collect(cx)
}

/// `CUmemAccessDesc` and `CUmemLocation`, likewise.
type Access = [u32; 3];
const _: () = assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());

pub(crate) fn cuMemSetAccess(
    cx: &mut CallContext,
    ptr: sys::CUdeviceptr,
    size: usize,
    desc: InPtr<sys::CUmemAccessDesc>,
    count: usize,
) -> Result<(), Code> {
    if desc.is_null() || count == 0 || count > MAX_LOCATIONS {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let mut changes = Vec::with_capacity(count);
    for [kind, ordinal, access] in desc.cast::<Access>().elements(count)? {
        match kind {
            LOCATION_DEVICE => changes.push((cx.job.device(ordinal as c_int)?.index, access)),
            2..=4 => return Err(code::ERROR_NOT_SUPPORTED),
            _ => return Err(code::ERROR_INVALID_VALUE),
        }
        if !matches!(access, 0 | 1 | ACCESS_READ_WRITE) {
            return Err(code::ERROR_INVALID_VALUE);
        }
    }
    let mut v = write();
    let all = v.mappings_of(ptr, size as u64)?;
    for at in all {
        let Some((m, p)) = v.mappings.get(&at).and_then(|m| Some((*m, v.physical.get(&m.physical)?))) else { continue };
        let (device, chunk) = (p.device, p.chunk);
        let whole = Chunk { address: chunk, bytes: p.bytes };
        let offer =
            p.loan.as_ref().map(|(_, loan)| loan.pieces.first().map(|(offer, _)| *offer).ok_or(code::ERROR_INVALID_VALUE));
        for (index, access) in &changes {
            if let Some(offer) = offer {
                let user = cx.job.devices.get(*index as usize).ok_or(code::ERROR_INVALID_DEVICE)?;
                let mapping = v.mappings.get_mut(&at).ok_or(code::ERROR_INVALID_VALUE)?;
                allow_borrowed(cx, mapping, at, offer?, user, *access)?;
                continue;
            }
            if *index != m.device {
                let user = cx.job.devices.get(*index as usize).ok_or(code::ERROR_INVALID_DEVICE)?;
                match *access {
                    0 => peer::unshare_alias(cx, Some(*index), at),
                    ACCESS_READ_WRITE => peer::share_alias(cx, user, device, whole, Chunk { address: at, bytes: m.bytes })?,
                    _ => {
                        log::missed("read-only access of one GPU to the memory of another (not supported)".to_owned());
                        return Err(code::ERROR_NOT_SUPPORTED);
                    }
                }
                continue;
            }
            let alias = Alias { address: at, bytes: m.bytes, chunk, access: *access };
            let edges = Edges { uses: [at].into(), ..Edges::default() };
            alias_op(cx, device, ops::id::ALIAS_ACCESS, &alias, &edges)?;
            if let Some(m) = v.mappings.get_mut(&at) {
                m.access = *access;
            }
        }
    }
    Ok(())
}

pub(crate) fn cuMemGetAccess(cx: &mut CallContext, location: Location, ptr: u64) -> Result<c_ulonglong, Code> {
    let device = match location.kind {
        LOCATION_DEVICE => cx.job.device(location.ordinal)?.index,
        2..=4 => return Err(code::ERROR_NOT_SUPPORTED),
        _ => return Err(code::ERROR_INVALID_DEVICE),
    };
    let found = find(ptr).ok_or(code::ERROR_INVALID_VALUE)?;
    let own = read().mappings.get(&found.start).filter(|m| m.device == device).map_or(0, |m| m.access);
    let access = if peer::shares_alias(device, found.start) { ACCESS_READ_WRITE } else { own };
    Ok(c_ulonglong::from(access))
}

pub(crate) fn cuMemGetAllocationGranularity(cx: &mut CallContext, _: AllocationProp, option: u32) -> Result<usize, Code> {
    cx.job.device(0)?;
    // Minimum and recommended are the same, and the driver ignores the other properties (measured).
    if option > 1 { Err(code::ERROR_INVALID_VALUE) } else { Ok(GRANULE as usize) }
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(_cx: &mut CallContext, handle: u64) -> Result<AllocationProp, Code> {
    let known = write().known(handle)?.prop;
    // Memory for tiles is not distinguished (measured, 580 driver).
    Ok(AllocationProp { usage: known.usage & !TILE_POOL, ..known })
}

pub(crate) fn cuMemRetainAllocationHandle(_cx: &mut CallContext, addr: u64) -> Result<u64, Code> {
    let mut v = write();
    let (_, m) = v.mappings.range(..=addr).next_back().ok_or(code::ERROR_INVALID_VALUE)?;
    let (start, number) = (m.bytes, m.physical);
    let inside = v.mappings.range(..=addr).next_back().is_some_and(|(at, _)| addr - at < start);
    let p = v.physical.get_mut(&number).filter(|_| inside).ok_or(code::ERROR_INVALID_VALUE)?;
    p.handles += 1;
    Ok(number)
}

/// Maps all of it for a device, at a free address.
pub(crate) fn map_anywhere(cx: &mut CallContext, handle: u64, bytes: u64, device: &Device) -> Result<u64, Code> {
    let size = bytes as usize;
    let at = cuMemAddressReserve(cx, size, 0, 0, 0)?;
    let access: Access = [LOCATION_DEVICE, device.index, ACCESS_READ_WRITE];
    let mapped = cuMemMap(cx, at, size, 0, handle, 0).and_then(|()| {
        cuMemSetAccess(cx, at, size, InPtr::of(&access).cast(), 1).inspect_err(|_| {
            // The first error is reported.
            let _later = PutOff::begin();
            let _ = cuMemUnmap(cx, at, size);
        })
    });
    if let Err(rc) = mapped {
        unreserve(at, bytes)?;
        return Err(rc);
    }
    Ok(at)
}
