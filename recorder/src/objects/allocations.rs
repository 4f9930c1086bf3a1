//! The allocations of one device, its arena, and its pools: tables without I/O. [`super::chunks`] and [`super::stream_frees`] change them.

use crate::objects::pool::Pool;
use crate::objects::ranges::Ranges;
use crate::thread::here;
use cuda_api::address_map::{ARENA, GRANULE, OWN};
use cuda_api::code::{self, Code};
use cuda_api::few::Few;
use cuda_api::handle::{Kind, compose};
use cuda_api::ops::Chunk;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Allocations from this size on have their own chunks.
pub(crate) const LARGE: u64 = 1 << 20;

/// Each device numbers its allocations from a multiple of this power of two on, so that a number is that of one piece of memory in the
/// job. Below the first one are the numbers of host memory, above the last one those of mappings and variables.
const ID_BITS: u32 = 40;

/// Where an allocation lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// In a shared chunk.
    Shared,
    /// In its own chunk.
    Own,
    /// In a pool.
    Pool(u64),
    /// In a pool of another process; the number is that of the imported pool.
    Borrowed(u64),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocation {
    /// Size that the program requested.
    pub(crate) bytes: u64,
    /// Number of the allocation in the job (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub(crate) id: u64,
    /// The context in which it was allocated.
    pub(crate) context: u64,
    pub(crate) home: Home,
}

/// A live allocation, for other modules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) id: u64,
    /// Pool, or 0.
    pub(crate) pool: u64,
}

/// What the place reported about its memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryReport {
    pub(crate) at: Instant,
    pub(crate) epoch: u64,
    pub(crate) free: u64,
    pub(crate) total: u64,
    /// Bytes that were mapped here at that time.
    pub(crate) mapped: u64,
}

/// Allocations of one device.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) base: u64,
    /// Addresses of the arena without a chunk.
    pub(crate) bare: Ranges,
    /// Free bytes inside shared chunks. A range lies in one chunk, so an allocation does.
    pub(crate) small: Ranges,
    /// Shared chunks.
    pub(crate) shared: BTreeSet<u64>,
    /// Size of every chunk.
    pub(crate) chunks: BTreeMap<u64, u64>,
    /// Total size of the chunks.
    pub(crate) mapped: u64,
    /// Spare chunks, with the moment at which they became spare.
    pub(crate) spare: BTreeMap<u64, u64>,
    pub(crate) spare_bytes: u64,
    /// Total size of the chunks that are being unmapped.
    pub(crate) unmapping: u64,
    /// Counts what was freed, chunks that became spare, and resets.
    pub(crate) moment: u64,
    pub(crate) live: BTreeMap<u64, Allocation>,
    pub(crate) used: u64,
    pub(crate) next_id: u64,
    /// Number of the last allocation, or of none, before the last reset.
    pub(crate) last_reset: u64,
    pub(crate) report: Option<MemoryReport>,
    pub(crate) pools: BTreeMap<u64, Pool>,
    pub(crate) current_pool: u64,
    /// Generation of the stream-ordered frees that are made now ([`super::pool`]).
    pub(crate) generation: u64,
    /// Allocations of `cuMemAlloc` that were freed in a stream.
    pub(crate) late: Vec<(u64, u64, Allocation)>,
}

/// The default pool of a device.
pub(crate) fn default_of(device: u32) -> u64 {
    compose(Kind::Pool, 1, device)
}

impl Memory {
    /// An empty arena.
    pub(crate) fn new(device: u32) -> Memory {
        let base = OWN + u64::from(device) * ARENA;
        let first_id = (u64::from(device) + 1) << ID_BITS;
        let mut bare = Ranges::default();
        bare.put(base, ARENA);
        Memory {
            base,
            bare,
            small: Ranges::in_units(GRANULE),
            shared: BTreeSet::new(),
            chunks: BTreeMap::new(),
            mapped: 0,
            spare: BTreeMap::new(),
            spare_bytes: 0,
            moment: 0,
            live: BTreeMap::new(),
            used: 0,
            next_id: first_id,
            last_reset: first_id,
            unmapping: 0,
            report: None,
            pools: BTreeMap::from([(default_of(device), Pool::new(0))]),
            current_pool: default_of(device),
            generation: 1,
            late: Vec::new(),
        }
    }

    /// Number of live allocations.
    pub(crate) fn count(&self) -> u64 {
        self.live.len() as u64
    }

    /// Bytes of the device that a move must find free at the target.
    pub(crate) fn needed(&self) -> u64 {
        self.mapped - self.spare_bytes
    }

    /// Bytes that the program has allocated.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The live allocation that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<Found> {
        let (&start, a) = self.live.range(..=address).next_back()?;
        let pool = if let Home::Pool(p) | Home::Borrowed(p) = a.home { p } else { 0 };
        (address - start < a.bytes.max(1)).then_some(Found { start, bytes: a.bytes, id: a.id, pool })
    }

    /// Address of the chunk that contains an address.
    pub(crate) fn chunk_of(&self, address: u64) -> Option<u64> {
        let (&start, &bytes) = self.chunks.range(..=address).next_back()?;
        (address - start < bytes).then_some(start)
    }

    /// Addresses of the chunks that contain these bytes. A block of a pool may lie in several.
    pub(crate) fn chunks_behind(&self, address: u64, bytes: u64) -> Few {
        let first = self.chunk_of(address).unwrap_or(address);
        self.chunks.range(first..address.saturating_add(bytes.max(1))).map(|(at, _)| *at).collect()
    }

    /// All physical memory, by address.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Chunk> + '_ {
        self.chunks.iter().map(|(address, bytes)| Chunk { address: *address, bytes: *bytes })
    }

    /// The physical memory that contains an address.
    pub(crate) fn chunk_around(&self, address: u64) -> Option<Chunk> {
        let (&start, &bytes) = self.chunks.range(..=address).next_back()?;
        (address - start < bytes).then_some(Chunk { address: start, bytes })
    }

    pub(crate) fn in_arena(&self, address: u64) -> bool {
        (self.base..self.base + ARENA).contains(&address)
    }

    /// Returns whether a copy may access these bytes: `Some` for addresses of this arena, `None` if only the place can tell.
    pub(crate) fn allows(&self, address: u64, bytes: u64) -> Option<bool> {
        if !self.in_arena(address) {
            return None;
        }
        let fits = |f: Found| bytes <= f.bytes && address - f.start <= f.bytes - bytes;
        Some(self.find(address).is_some_and(fits))
    }

    /// Returns whether no pool has anything to do when work is complete: all frees in streams are, and none keeps more than it may.
    pub(crate) fn is_settled(&self) -> bool {
        self.late.is_empty() && !self.pools.values().any(|p| p.is_waiting() || p.holds_too_much())
    }

    pub(crate) fn note(&mut self, address: u64, bytes: u64, home: Home) -> u64 {
        self.next_id += 1;
        self.used += bytes;
        self.live.insert(address, Allocation { bytes, id: self.next_id, context: here().context.get(), home });
        address
    }

    /// Removes an allocation from the table.
    pub(crate) fn forget(&mut self, address: u64) -> Result<Allocation, Code> {
        let a = self.live.remove(&address).ok_or(code::ERROR_INVALID_VALUE)?;
        self.used -= a.bytes;
        Ok(a)
    }
}

#[cfg(test)]
mod tests;
