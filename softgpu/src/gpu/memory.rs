//! The table of all valid memory, and its access rights.
//!
//! One table for the process, under one lock. Calls read it to check pointers, copies hold it while they run (in pieces),
//! kernels take a snapshot. The lock comes after the scheduler's: nothing is submitted while it is held.

use super::live::Live;
use super::physical::{Mapping, Reservation};
use super::pool::{Pool, UNIT};
use super::retire::Retired;
use crate::ptx::Ranges;
use cuda_api::lock::{read_lock, write_lock};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Kind of an allocation.
pub(crate) enum Kind {
    /// Allocated by `cuMemAlloc`.
    Device,
    /// Allocated from the pool of this handle, in stream order.
    Pooled(usize),
    /// Freed in a stream that has not reached the free: earlier work may use it.
    Freed,
    /// Physical memory mapped into a reservation.
    Mapped(Mapping),
    /// Page-locked memory made by `cuMemHostAlloc`, with its flags.
    Pinned(u32),
    /// Managed memory of the host, allocated by `cuMemAllocManaged`.
    Managed,
    /// A managed variable of a module.
    ManagedVariable,
    /// Registered memory of the program.
    Registered,
    /// A module's variable.
    Variable,
    /// The device heap: kernels may use it, calls may not.
    Heap,
}

/// An entry of the table; its address is the key.
pub(crate) struct Alloc {
    pub size: u64,
    pub kind: Kind,
    /// Ordinal of its device.
    pub device: usize,
    /// Number of the context that created it; 0 for mappings, which have none.
    pub owner: u64,
    /// Handle of that context, or 0.
    pub context: usize,
    /// Unique number, `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    pub buffer: u64,
}

impl Alloc {
    /// Whether it is page-locked host memory, or managed memory, which is the same here.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Pinned(_) | Kind::Registered) || self.is_managed()
    }

    /// Whether host and kernels may access it at one address.
    pub fn is_managed(&self) -> bool {
        matches!(self.kind, Kind::Managed | Kind::ManagedVariable)
    }

    fn usable_by(&self, live: &Live, peers: u32) -> bool {
        let device = live.device.ordinal as usize;
        match &self.kind {
            Kind::Device | Kind::Pooled(_) | Kind::Freed | Kind::Variable => {
                self.device == device || peers & (1 << self.device) != 0
            }
            Kind::Heap => self.owner == live.number,
            Kind::Mapped(mapping) => mapping.access.contains(&device),
            Kind::Pinned(_) | Kind::Managed | Kind::ManagedVariable | Kind::Registered => true,
        }
    }
}

/// The memory that a context's kernels may use, with the generation and peers for which it was computed.
struct Snapshot {
    generation: u64,
    peers: u32,
    ranges: Arc<Ranges>,
}

/// The table.
#[derive(Default)]
pub(crate) struct Memory {
    pub allocs: BTreeMap<u64, Alloc>,
    pub reservations: BTreeMap<u64, Reservation>,
    /// The pools of `cuMemAlloc`, by device ordinal.
    pub pools: HashMap<usize, Pool>,
    pub retired: Retired,
    generation: u64,
    buffers: u64,
    /// By number of the context.
    snapshots: HashMap<u64, Snapshot>,
}

static MEMORY: LazyLock<RwLock<Memory>> = LazyLock::new(RwLock::default);

/// The table, for reading.
pub(crate) fn read() -> RwLockReadGuard<'static, Memory> {
    read_lock(&MEMORY)
}

/// The table, for writing.
pub(crate) fn write() -> RwLockWriteGuard<'static, Memory> {
    write_lock(&MEMORY)
}

impl Memory {
    /// Adds an allocation of `live`'s context, or of none.
    pub fn add(&mut self, address: u64, size: u64, kind: Kind, device: usize, live: Option<&Live>) {
        self.generation += 1;
        self.buffers += 1;
        let (owner, context) = live.map_or((0, 0), |live| (live.number, live.context));
        self.allocs.insert(address, Alloc { size, kind, device, owner, context, buffer: self.buffers });
    }

    /// Removes the allocation that begins at `address`.
    pub fn remove(&mut self, address: u64) -> Option<Alloc> {
        self.generation += 1;
        self.allocs.remove(&address)
    }

    /// Must be called when access rights have changed.
    pub fn changed(&mut self) {
        self.generation += 1;
    }

    /// The allocation that contains `address`; the device heap does not count.
    pub fn find(&self, address: u64) -> Option<(u64, &Alloc)> {
        let (base, alloc) = self.allocs.range(..=address).next_back()?;
        (address - base < alloc.size && !matches!(alloc.kind, Kind::Heap)).then_some((*base, alloc))
    }

    /// Whether any byte of a range is allocated.
    pub fn overlaps(&self, address: u64, len: u64) -> bool {
        let end = address.saturating_add(len);
        self.allocs.range(..end).next_back().is_some_and(|(base, alloc)| base + alloc.size > address)
    }

    /// Whether calls may read and write `len` bytes at `address`. A range may span mappings that lie side by side, else it
    /// lies in one allocation.
    pub fn covers(&self, address: u64, len: u64) -> bool {
        let Some(end) = address.checked_add(len) else {
            return false;
        };
        let Some((base, mut alloc)) = self.find(address) else {
            return false;
        };
        let mut reached = base + alloc.size;
        loop {
            if matches!(&alloc.kind, Kind::Mapped(mapping) if mapping.access.is_empty()) {
                return false;
            }
            if reached >= end {
                return true;
            }
            match self.allocs.get(&reached) {
                Some(next) if matches!((&alloc.kind, &next.kind), (Kind::Mapped(_), Kind::Mapped(_))) => {
                    reached += next.size;
                    alloc = next;
                }
                _ => return false,
            }
        }
    }

    /// Whether the whole range is page-locked host memory.
    pub fn is_pinned(&self, address: u64, len: u64) -> bool {
        self.find(address).is_some_and(|(base, alloc)| alloc.is_host() && address - base + len <= alloc.size)
    }

    /// Whether `address` belongs to device memory of any kind.
    pub fn is_device(&self, address: u64) -> bool {
        self.find(address).is_some_and(|(_, alloc)| !alloc.is_host())
    }

    /// What kernels of a context may touch now. Device allocations count in units of the allocator (512 bytes),
    /// the other kinds to the byte.
    pub fn snapshot(&mut self, live: &Live) -> Arc<Ranges> {
        let (generation, peers) = (self.generation, live.peers.load(Ordering::Acquire));
        if let Some(made) = self.snapshots.get(&live.number)
            && (made.generation, made.peers) == (generation, peers)
        {
            return made.ranges.clone();
        }
        let mut list: Vec<(u64, u64)> = Vec::with_capacity(self.allocs.len());
        for (base, alloc) in self.allocs.iter().filter(|(_, alloc)| alloc.usable_by(live, peers)) {
            let size = if matches!(alloc.kind, Kind::Device | Kind::Pooled(_) | Kind::Freed) {
                alloc.size.next_multiple_of(UNIT)
            } else {
                alloc.size
            };
            match list.last_mut() {
                Some((_, end)) if *end == *base => *end = base + size,
                _ => list.push((*base, base + size)),
            }
        }
        let ranges = Arc::new(Ranges::new(list));
        self.snapshots.insert(live.number, Snapshot { generation, peers, ranges: ranges.clone() });
        ranges
    }

    /// Forgets what was computed for a context that was destroyed.
    pub fn forget_context(&mut self, number: u64) {
        self.snapshots.remove(&number);
    }
}
