//! The virtual-memory functions (`cuMem…`) for the program.
//!
//! The recorder alone manages reservations: it chooses addresses in a range of its own. Physical memory that the program creates has a
//! chunk of the device's arena as its home, where it is always mapped: so memory that the program has not mapped at the moment, has
//! mapped twice, or without access is copied once in a move, like any other chunk. The program's mappings are aliases of it
//! ([`ops::Alias`], journalled). Memory only for tiles of arrays has no addresses at all ([`crate::tiles`]).

use crate::context::write_out;
use crate::enter::CallContext;
use crate::job::{Device, PutOff};
use crate::ledger::Keep;
use crate::log::{self, lock};
use crate::memory::ranges::Ranges;
use crate::memory::{ARENA, GRANULE, encode, pools};
use crate::peer;
use crate::shared_memory::{self, Lendable, Loan, Ticket};
use cuda_api::arg::Edges;
use cuda_api::array::TILE_POOL;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, compose};
use cuda_api::ops::{self, Alias, Chunk, Offer, VMM, VMM_END};
use cuda_api::sys;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::unix::net::UnixStream;
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) mod share;
pub(crate) mod tile_pools;

use tile_pools::{Pool, collect, end_pools, make_pool};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const DESCRIPTOR: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: u32 = 3;
/// Higher counts of locations than any machine has are refused.
const MOST_LOCATIONS: usize = 4096;
/// In place of a handle: the memory belongs to another process.
const FOREIGN: u64 = 0;

/// Physical memory of the program.
#[derive(Debug)]
struct Physical {
    device: &'static Device,
    bytes: u64,
    /// Address where it is always mapped; 0 for imported memory, and for memory for tiles.
    chunk: u64,
    /// The memory of another process, and its ticket.
    loan: Option<(Ticket, Loan)>,
    /// Number of the program's handles.
    handles: u64,
    mappings: u64,
    /// This process's ends of exported descriptors: open other ends keep the memory alive.
    exported: Vec<UnixStream>,
    prop: Prop,
}

#[derive(Debug, Clone, Copy)]
struct Mapping {
    bytes: u64,
    physical: u64,
    device: u32,
    /// `CUmemAccess_flags` of the device.
    access: u32,
    id: u64,
}

/// A mapping, for other modules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) device: u32,
    pub(crate) id: u64,
    /// Types of handle as which the memory may be exported.
    pub(crate) handle_types: u32,
}

#[derive(Debug)]
struct Vmm {
    room: Ranges,
    reserved: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    physical: HashMap<u64, Physical>,
    next: u32,
    next_id: u64,
}

static STATE: LazyLock<RwLock<Vmm>> = LazyLock::new(|| {
    // A place reserves whole arenas, so no reservation spans two of them.
    let mut room = Ranges::in_units(ARENA);
    (VMM..VMM_END).step_by(ARENA as usize).for_each(|at| room.put(at, ARENA));
    let (reserved, mappings, physical) = (BTreeMap::new(), BTreeMap::new(), HashMap::new());
    RwLock::new(Vmm { room, reserved, mappings, physical, next: 1, next_id: 1 << 48 })
});

fn read() -> RwLockReadGuard<'static, Vmm> {
    STATE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Vmm> {
    STATE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether an address is one that the program can reserve.
pub(crate) fn is_reserved(address: u64) -> bool {
    (VMM..VMM_END).contains(&address)
}

/// The mapping that contains an address.
pub(crate) fn find(address: u64) -> Option<Found> {
    if !is_reserved(address) {
        return None;
    }
    let v = read();
    let (&start, m) = v.mappings.range(..=address).next_back()?;
    let handle_types = v.physical.get(&m.physical).map_or(0, |p| p.prop.handle_types);
    (address - start < m.bytes).then_some(Found { start, bytes: m.bytes, device: m.device, id: m.id, handle_types })
}

/// Returns whether copies of a device may use these bytes, which may span adjacent mappings.
pub(crate) fn allows(device: u32, address: u64, bytes: u64) -> bool {
    let v = read();
    let Some(end) = address.checked_add(bytes) else { return false };
    let Some((&start, _)) = v.mappings.range(..=address).next_back() else { return false };
    let mut reached = start;
    for (at, m) in v.mappings.range(start..) {
        if *at != reached || m.access == 0 || m.device != device {
            return false;
        }
        reached = at + m.bytes;
        if reached <= address {
            return false;
        }
        if reached >= end {
            return true;
        }
    }
    false
}

/// Addresses of the mappings behind some bytes.
pub(crate) fn behind(address: u64, bytes: u64) -> Vec<u64> {
    let v = read();
    let first = v.mappings.range(..=address).next_back().map_or(address, |(at, _)| *at);
    v.mappings.range(first..address.saturating_add(bytes)).map(|(at, _)| *at).collect()
}

impl Vmm {
    /// Addresses of the mappings that make up a range exactly.
    fn whole(&self, address: u64, bytes: u64) -> Result<Vec<u64>, Code> {
        let end = address.checked_add(bytes).filter(|_| bytes != 0).ok_or(code::ERROR_INVALID_VALUE)?;
        let (mut at, mut all) = (address, Vec::new());
        while at < end {
            let m = self.mappings.get(&at).filter(|m| m.physical != FOREIGN).ok_or(code::ERROR_INVALID_VALUE)?;
            all.push(at);
            at += m.bytes;
        }
        if at == end { Ok(all) } else { Err(code::ERROR_INVALID_VALUE) }
    }

    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.mappings.range(..address + bytes).next_back().is_some_and(|(at, m)| at + m.bytes > address)
    }

    /// Returns a new handle.
    fn number(&mut self) -> u64 {
        self.next += 1;
        compose(Kind::Physical, self.next >> 24, self.next)
    }

    /// The memory of a handle that the program has.
    fn known(&mut self, handle: u64) -> Result<&mut Physical, Code> {
        self.physical.get_mut(&handle).filter(|p| p.handles > 0).ok_or(code::ERROR_INVALID_VALUE)
    }

    /// Frees physical memory that is no longer accessible. Returns memory for tiles, which the place has to free.
    #[must_use]
    fn collect(&mut self, cx: &CallContext) -> Vec<Pool> {
        let unreachable = |p: &mut Physical| {
            if p.handles > 0 || p.mappings > 0 {
                return false;
            }
            p.exported.retain(shared_memory::is_open);
            p.exported.is_empty() && (p.loan.is_some() || !shared_memory::is_lent(p.device, p.chunk))
        };
        let mut pools = Vec::new();
        for (handle, p) in self.physical.extract_if(|_, p| unreachable(p)).filter(|(_, p)| p.loan.is_none()) {
            if p.prop.is_for_tiles() {
                pools.push((p.device, handle));
            } else {
                p.device.memory_mut().give_chunk(cx, p.device, p.chunk);
            }
        }
        pools
    }
}

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

/// What another process may import of the program's memory.
pub(crate) fn lendable(handle: u64) -> Result<Lendable, Code> {
    let v = read();
    // Its handles may be gone: the descriptor keeps it alive.
    let p = v.physical.get(&handle).filter(|p| p.loan.is_none() && !p.prop.is_for_tiles()).ok_or(code::ERROR_INVALID_VALUE)?;
    Ok(Lendable { device: p.device, chunks: vec![Chunk { address: p.chunk, bytes: p.bytes }], offset: 0, bytes: p.bytes })
}

/// Number of mappings of imported memory that a device may use.
pub(crate) fn borrowed(device: &Device) -> usize {
    let v = read();
    let is_borrowed =
        |m: &&Mapping| m.access != 0 && m.device == device.index && v.physical.get(&m.physical).is_some_and(|p| p.loan.is_some());
    v.mappings.values().filter(is_borrowed).count()
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
        (0, READ_WRITE) => shared_memory::map(cx, device, here, offer)?,
        (READ_WRITE, 0) if m.device == device.index => shared_memory::unmap(cx, device, here)?,
        (_, 0) => return Ok(()),
        (READ_WRITE, READ_WRITE) if m.device == device.index => return Ok(()),
        _ => {
            log::missed("memory of another process that several GPUs use, or that is only read (not supported)".to_owned());
            return Err(code::ERROR_NOT_SUPPORTED);
        }
    }
    (m.device, m.access) = (device.index, access);
    Ok(())
}

/// Reserves addresses for memory of another process.
pub(crate) fn take_room(bytes: u64) -> Option<u64> {
    write().room.take_aligned(bytes, GRANULE)
}

/// Undoes [`take_room`].
pub(crate) fn give_room(address: u64, bytes: u64) {
    write().room.put(address, bytes);
}

/// Notes that memory of another process is mapped there for a device: the program can use it, but not unmap it.
pub(crate) fn note_foreign(address: u64, bytes: u64, device: &Device) {
    let mut v = write();
    v.next_id += 1;
    let id = v.next_id;
    v.mappings.insert(address, Mapping { bytes, physical: FOREIGN, device: device.index, access: READ_WRITE, id });
}

/// Undoes [`note_foreign`].
pub(crate) fn forget_foreign(address: u64) {
    write().mappings.remove(&address);
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
    ptr: *mut sys::CUdeviceptr,
    size: usize,
    alignment: usize,
    addr: sys::CUdeviceptr,
    flags: c_ulonglong,
) -> Result<(), Code> {
    let (bytes, align) = (size as u64, (alignment as u64).max(GRANULE));
    if ptr.is_null() || flags != 0 || bytes == 0 || bytes % GRANULE != 0 || !(alignment == 0 || alignment.is_power_of_two()) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let mut v = write();
    // The requested address is a hint. Merged free ranges end where arenas do, so it cannot span two.
    let wish = addr.is_multiple_of(align) && is_reserved(addr) && v.room.carve(addr, bytes);
    let address = if wish { Some(addr) } else { v.room.take_aligned(bytes, align) }.ok_or(code::ERROR_OUT_OF_MEMORY)?;
    v.reserved.insert(address, bytes);
    write_out(ptr, address)
}

pub(crate) fn cuMemAddressFree(_cx: &mut CallContext, ptr: sys::CUdeviceptr, size: usize) -> Result<(), Code> {
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

/// `CUmemAllocationProp`, with enums as the integers that they are in C.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prop {
    kind: u32,
    handle_types: u32,
    location: u32,
    ordinal: i32,
    win32: usize,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}
const _: () = assert!(size_of::<Prop>() == size_of::<sys::CUmemAllocationProp>());

impl Prop {
    /// Returns whether the memory is for tiles of arrays.
    fn is_for_tiles(&self) -> bool {
        self.usage & TILE_POOL != 0
    }
}

/// Reads and checks the requested properties of memory; returns its device.
fn properties(cx: &CallContext, prop: *const sys::CUmemAllocationProp) -> Result<(Prop, &'static Device), Code> {
    if prop.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so by CUDA's contract such a struct; any bits are valid for the integers.
    let p = unsafe { prop.cast::<Prop>().read() };
    if p.kind != PINNED || p.win32 != 0 || p.location == 0 || p.location > 4 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if p.location != ON_DEVICE || p.handle_types & !DESCRIPTOR != 0 {
        // Memory of the host, and handles that only fabrics know.
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    Ok((p, cx.job.device(p.ordinal)?))
}

pub(crate) fn cuMemCreate(
    cx: &mut CallContext,
    handle: *mut sys::CUmemGenericAllocationHandle,
    size: usize,
    prop: *const sys::CUmemAllocationProp,
    flags: c_ulonglong,
) -> Result<(), Code> {
    let bytes = size as u64;
    if handle.is_null() || flags != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (prop, device) = properties(cx, prop)?;
    // Memory for tiles stays in its process, and cannot be used by network cards (measured, 580 driver).
    let tiles_elsewhere = prop.is_for_tiles() && (prop.handle_types != 0 || prop.rdma != 0);
    if bytes == 0 || !bytes.is_multiple_of(GRANULE) || tiles_elsewhere {
        return Err(code::ERROR_INVALID_VALUE);
    }
    device.check()?;
    collect(cx)?;
    let number = write().number();
    let make = || match prop.is_for_tiles() {
        true => make_pool(cx, device, number, bytes).map(|()| 0),
        false => device.memory_mut().chunk(cx, device, bytes, true),
    };
    let chunk = match make() {
        Err(code::ERROR_OUT_OF_MEMORY) if pools::reclaim(cx, device)? => make(),
        other => other,
    }?;
    let mut v = write();
    // Compression is a hint, which is never granted.
    let prop = Prop { compression: 0, ..prop };
    v.physical.insert(number, Physical { device, bytes, chunk, loan: None, handles: 1, mappings: 0, exported: Vec::new(), prop });
    write_out(handle, number)
}

pub(crate) fn cuMemRelease(cx: &mut CallContext, handle: sys::CUmemGenericAllocationHandle) -> Result<(), Code> {
    write().known(handle)?.handles -= 1;
    collect(cx)
}

pub(crate) fn cuMemMap(
    cx: &mut CallContext,
    ptr: sys::CUdeviceptr,
    size: usize,
    offset: usize,
    handle: sys::CUmemGenericAllocationHandle,
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

pub(crate) fn cuMemUnmap(cx: &mut CallContext, ptr: sys::CUdeviceptr, size: usize) -> Result<(), Code> {
    let mut v = write();
    for at in v.whole(ptr, size as u64)? {
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
    desc: *const sys::CUmemAccessDesc,
    count: usize,
) -> Result<(), Code> {
    if desc.is_null() || count == 0 || count > MOST_LOCATIONS {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let mut changes = Vec::with_capacity(count);
    for i in 0..count {
        // SAFETY: the program guarantees that the array has `count` elements.
        let [kind, ordinal, access] = unsafe { desc.cast::<Access>().add(i).read() };
        match kind {
            ON_DEVICE => changes.push((cx.job.device(ordinal as c_int)?.index, access)),
            2..=4 => return Err(code::ERROR_NOT_SUPPORTED),
            _ => return Err(code::ERROR_INVALID_VALUE),
        }
        if !matches!(access, 0 | 1 | READ_WRITE) {
            return Err(code::ERROR_INVALID_VALUE);
        }
    }
    let mut v = write();
    let all = v.whole(ptr, size as u64)?;
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
                    READ_WRITE => peer::share_alias(cx, user, device, whole, Chunk { address: at, bytes: m.bytes })?,
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

pub(crate) fn cuMemGetAccess(
    cx: &mut CallContext,
    flags: *mut c_ulonglong,
    location: *const sys::CUmemLocation,
    ptr: sys::CUdeviceptr,
) -> Result<(), Code> {
    if location.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so by CUDA's contract such a struct.
    let [kind, ordinal] = unsafe { location.cast::<[u32; 2]>().read() };
    let device = match kind {
        ON_DEVICE => cx.job.device(ordinal as c_int)?.index,
        2..=4 => return Err(code::ERROR_NOT_SUPPORTED),
        _ => return Err(code::ERROR_INVALID_DEVICE),
    };
    let found = find(ptr).ok_or(code::ERROR_INVALID_VALUE)?;
    let own = read().mappings.get(&found.start).filter(|m| m.device == device).map_or(0, |m| m.access);
    let access = if peer::shares_alias(device, found.start) { READ_WRITE } else { own };
    write_out(flags, c_ulonglong::from(access))
}

pub(crate) fn cuMemGetAllocationGranularity(
    cx: &mut CallContext,
    granularity: *mut usize,
    prop: *const sys::CUmemAllocationProp,
    option: u32,
) -> Result<(), Code> {
    cx.job.device(0)?;
    // Minimum and recommended are the same, and the driver ignores the other properties (measured).
    if prop.is_null() || option > 1 { Err(code::ERROR_INVALID_VALUE) } else { write_out(granularity, GRANULE as usize) }
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    _cx: &mut CallContext,
    prop: *mut sys::CUmemAllocationProp,
    handle: sys::CUmemGenericAllocationHandle,
) -> Result<(), Code> {
    let known = write().known(handle)?.prop;
    // Memory for tiles is not distinguished (measured, 580 driver).
    write_out(prop.cast::<Prop>(), Prop { usage: known.usage & !TILE_POOL, ..known })
}

pub(crate) fn cuMemRetainAllocationHandle(
    _cx: &mut CallContext,
    handle: *mut sys::CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> Result<(), Code> {
    if handle.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let mut v = write();
    let (_, m) = v.mappings.range(..=addr as u64).next_back().ok_or(code::ERROR_INVALID_VALUE)?;
    let (start, number) = (m.bytes, m.physical);
    let inside = v.mappings.range(..=addr as u64).next_back().is_some_and(|(at, _)| addr as u64 - at < start);
    let p = v.physical.get_mut(&number).filter(|_| inside).ok_or(code::ERROR_INVALID_VALUE)?;
    p.handles += 1;
    write_out(handle, number)
}

/// Size of the physical memory of a handle of the program.
pub(crate) fn bytes_of(handle: u64) -> Result<u64, Code> {
    write().known(handle).map(|p| p.bytes)
}

/// Maps all of it for a device, at a free address.
pub(crate) fn map_anywhere(cx: &mut CallContext, handle: u64, bytes: u64, device: &Device) -> Result<u64, Code> {
    let (mut at, size) = (0, bytes as usize);
    cuMemAddressReserve(cx, &raw mut at, size, 0, 0, 0)?;
    let access: Access = [ON_DEVICE, device.index, READ_WRITE];
    let mapped = cuMemMap(cx, at, size, 0, handle, 0).and_then(|()| {
        cuMemSetAccess(cx, at, size, access.as_ptr().cast(), 1).inspect_err(|_| {
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

#[cfg(test)]
mod tests;
