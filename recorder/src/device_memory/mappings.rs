//! The program's own physical memory, reservations and mappings.

use crate::job::Device;
use crate::objects::ranges::Ranges;
use crate::objects::ticket::{Loan, Ticket};
use cuda_api::address_map::{ARENA, GRANULE, VMM, VMM_END};
use cuda_api::code::{self, Code};
use cuda_api::few::Few;
use cuda_api::flags::ACCESS_READ_WRITE;
use cuda_api::handle::{Kind, compose};
use cuda_api::lock::{read_lock, write_lock};
use cuda_api::memory::AllocationProp;
use cuda_api::ops::Chunk;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::net::UnixStream;
use std::sync::{LazyLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What an owner offers of its memory.
pub(crate) struct Lendable {
    pub(crate) device: &'static Device,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// In place of a handle: the memory belongs to another process.
pub(crate) const FOREIGN: u64 = 0;

/// Physical memory of the program.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: &'static Device,
    pub(crate) bytes: u64,
    /// Address where it is always mapped; 0 for imported memory, and for memory for tiles.
    pub(crate) chunk: u64,
    /// The memory of another process, and its ticket.
    pub(crate) loan: Option<(Ticket, Loan)>,
    /// Number of the program's handles.
    pub(crate) handles: u64,
    pub(crate) mappings: u64,
    /// This process's ends of exported descriptors: open other ends keep the memory alive.
    pub(crate) exported: Vec<UnixStream>,
    pub(crate) prop: AllocationProp,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(crate) physical: u64,
    pub(crate) device: u32,
    /// `CUmemAccess_flags` of the device.
    pub(crate) access: u32,
    pub(crate) id: u64,
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
pub(crate) struct Vmm {
    pub(crate) room: Ranges,
    pub(crate) reserved: BTreeMap<u64, u64>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) physical: HashMap<u64, Physical>,
    pub(crate) next: u32,
    pub(crate) next_id: u64,
}

pub(crate) static STATE: LazyLock<RwLock<Vmm>> = LazyLock::new(|| {
    // A place reserves whole arenas, so no reservation spans two of them.
    let mut room = Ranges::in_units(ARENA);
    (VMM..VMM_END).step_by(ARENA as usize).for_each(|at| room.put(at, ARENA));
    let (reserved, mappings, physical) = (BTreeMap::new(), BTreeMap::new(), HashMap::new());
    RwLock::new(Vmm { room, reserved, mappings, physical, next: 1, next_id: 1 << 48 })
});

pub(crate) fn read() -> RwLockReadGuard<'static, Vmm> {
    read_lock(&STATE)
}

pub(crate) fn write() -> RwLockWriteGuard<'static, Vmm> {
    write_lock(&STATE)
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

/// The address, in the chunk that always has the memory behind a mapping, of the byte at an address; and the number of bytes from there to
/// the mapping's end. `None` for memory of other processes.
pub(crate) fn chunk_behind(address: u64) -> Option<(u64, u64)> {
    let v = read();
    let (start, m) = v.mappings.range(..=address).next_back()?;
    let offset = address - start;
    let chunk = v.physical.get(&m.physical).filter(|p| p.loan.is_none())?.chunk;
    (offset < m.bytes && chunk != 0).then(|| (chunk + offset, m.bytes - offset))
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
pub(crate) fn behind(address: u64, bytes: u64) -> Few {
    let v = read();
    let first = v.mappings.range(..=address).next_back().map_or(address, |(at, _)| *at);
    v.mappings.range(first..address.saturating_add(bytes)).map(|(at, _)| *at).collect()
}

impl Vmm {
    /// Addresses of the mappings that make up a range exactly.
    pub(crate) fn mappings_of(&self, address: u64, bytes: u64) -> Result<Vec<u64>, Code> {
        let end = address.checked_add(bytes).filter(|_| bytes != 0).ok_or(code::ERROR_INVALID_VALUE)?;
        let (mut at, mut all) = (address, Vec::new());
        while at < end {
            let m = self.mappings.get(&at).filter(|m| m.physical != FOREIGN).ok_or(code::ERROR_INVALID_VALUE)?;
            all.push(at);
            at += m.bytes;
        }
        if at == end { Ok(all) } else { Err(code::ERROR_INVALID_VALUE) }
    }

    pub(crate) fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.mappings.range(..address + bytes).next_back().is_some_and(|(at, m)| at + m.bytes > address)
    }

    /// Returns a new handle.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        compose(Kind::Physical, self.next >> 24, self.next)
    }

    /// The memory of a handle that the program has.
    pub(crate) fn known(&mut self, handle: u64) -> Result<&mut Physical, Code> {
        self.physical.get_mut(&handle).filter(|p| p.handles > 0).ok_or(code::ERROR_INVALID_VALUE)
    }
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

/// Reserves addresses for memory of another process.
pub(crate) fn reserve_addresses(bytes: u64) -> Option<u64> {
    write().room.take_aligned(bytes, GRANULE)
}

/// Undoes [`reserve_addresses`].
pub(crate) fn release_addresses(address: u64, bytes: u64) {
    write().room.put(address, bytes);
}

/// Notes that memory of another process is mapped there for a device: the program can use it, but not unmap it.
pub(crate) fn note_foreign(address: u64, bytes: u64, device: &Device) {
    let mut v = write();
    v.next_id += 1;
    let id = v.next_id;
    v.mappings.insert(address, Mapping { bytes, physical: FOREIGN, device: device.index, access: ACCESS_READ_WRITE, id });
}

/// Undoes [`note_foreign`].
pub(crate) fn forget_foreign(address: u64) {
    write().mappings.remove(&address);
}

/// Size of the physical memory of a handle of the program.
pub(crate) fn bytes_of(handle: u64) -> Result<u64, Code> {
    write().known(handle).map(|p| p.bytes)
}

#[cfg(test)]
mod tests;
