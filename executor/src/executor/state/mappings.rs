//! What is mapped at which addresses: chunks, second mappings of them, and memory of other places.

use crate::fork::NotInherited;
use crate::gpu_memory::HeldMemory;
use crate::share;
use cuda_api::address_map::{ARENA, IMPORTS_END, own_base};
use cuda_api::ops::Offer;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A mapped chunk.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) bytes: u64,
    /// The driver's handle of the physical memory.
    pub(crate) memory: u64,
    /// Number of the memory, unique in the process.
    pub(crate) number: u64,
    /// The descriptor from which the memory was imported.
    pub(crate) descriptor: Option<Descriptor>,
    /// While the memory belongs to the source of a move, too: its number there.
    pub(crate) at_source: Option<u64>,
    /// It has been offered to other places. What they have mapped stays when the offer is withdrawn. Not a change of the table: nothing that was
    /// derived from it depends on this.
    pub(crate) lent: AtomicBool,
    /// The memory counts as used as long as it is mapped.
    pub(crate) _held: HeldMemory,
}

impl Mapped {
    /// Memory that this place has created, with a fresh number.
    pub(crate) fn own(bytes: u64, memory: u64, number: u64, held: HeldMemory) -> Mapped {
        Mapped { bytes, memory, number, descriptor: None, at_source: None, lent: AtomicBool::new(false), _held: held }
    }
}

/// The mapped chunks, by address. What was derived from them holds as long as the table has the same version.
#[derive(Debug, Default)]
pub(crate) struct ChunkTable {
    chunks: BTreeMap<u64, Mapped>,
    version: u64,
    /// Their addresses and sizes, as long as they are those of this version.
    ranges: Option<Arc<[(u64, u64)]>>,
}

impl ChunkTable {
    /// A number that changes with every change of the table.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Addresses and sizes, in order.
    pub(crate) fn ranges(&mut self) -> Arc<[(u64, u64)]> {
        let ranges = || self.chunks.iter().map(|(at, chunk)| (*at, chunk.bytes)).collect();
        self.ranges.get_or_insert_with(ranges).clone()
    }
}

impl Deref for ChunkTable {
    type Target = BTreeMap<u64, Mapped>;

    fn deref(&self) -> &BTreeMap<u64, Mapped> {
        &self.chunks
    }
}

impl DerefMut for ChunkTable {
    /// Whoever may change the table counts as having changed it.
    fn deref_mut(&mut self) -> &mut BTreeMap<u64, Mapped> {
        self.version += 1;
        self.ranges = None;
        &mut self.chunks
    }
}

/// The descriptor of imported memory. It is passed on when the memory is offered: nothing says that a driver exports what it has imported.
#[derive(Debug)]
pub(crate) struct Descriptor {
    // Dropped before the descriptor.
    _not_inherited: Option<NotInherited>,
    pub(crate) fd: OwnedFd,
}

impl Descriptor {
    pub(crate) fn new(fd: OwnedFd) -> Descriptor {
        Descriptor { _not_inherited: NotInherited::note(fd.as_raw_fd()), fd }
    }
}

/// Memory of the source of a move that this place has imported and not mapped yet.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) bytes: u64,
    pub(crate) memory: u64,
    pub(crate) descriptor: Descriptor,
    /// Its number at the source.
    pub(crate) number: u64,
}

/// Size of an arena as a power of two: all memory of the job on the device lies in ranges of this size, at multiples of it.
const ARENA_BITS: u32 = ARENA.trailing_zeros();

/// Number of words of [`Arenas`].
const WORDS: usize = 3;
const _: () = assert!(IMPORTS_END <= (64 * WORDS as u64) << ARENA_BITS);

/// The arenas that the job has at this place, a bit for each: addresses up to [`IMPORTS_END`]. It consists of atomics, since every copy
/// reads it.
#[derive(Debug, Default)]
pub(crate) struct Arenas([AtomicU64; WORDS]);

impl Arenas {
    /// The word and the bit of an arena.
    fn bit(&self, number: u64) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get((number / 64) as usize)?, 1 << (number % 64)))
    }

    /// Adds the arena that begins here.
    pub(crate) fn add(&self, address: u64) {
        if let Some((word, bit)) = self.bit(address >> ARENA_BITS) {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Removes the arena that begins here.
    pub(crate) fn remove(&self, address: u64) {
        if let Some((word, bit)) = self.bit(address >> ARENA_BITS) {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Returns whether all of some bytes lie in arenas of the job.
    #[inline]
    pub(crate) fn contain(&self, address: u64, bytes: u64) -> bool {
        let Some(last) = address.checked_add(bytes.saturating_sub(1)) else { return false };
        let has = |number| self.bit(number).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0);
        let (first, end) = (address >> ARENA_BITS, last >> ARENA_BITS);
        // Mostly one; there are no more than the words have bits.
        has(first) && (first == end || (end < 64 * WORDS as u64 && (first..=end).all(has)))
    }
}

/// A mapping in an arena of aliases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AliasMapping {
    pub(crate) bytes: u64,
    /// The chunk whose memory it is; `None`: memory of another place.
    pub(crate) chunk: Option<u64>,
}

/// Reserved arenas and the mappings in them.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    pub(crate) arenas: BTreeSet<u64>,
    pub(crate) mapped: BTreeMap<u64, AliasMapping>,
}

/// The offers, by the first address of the chunk, and the imported memory, by the address of its mapping.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    pub(crate) offers: Mutex<BTreeMap<u64, Offer>>,
    pub(crate) imported: Mutex<BTreeMap<u64, u64>>,
}

/// The mapped memory of another place.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// The offer of that place.
    pub(crate) offer: Option<Offer>,
    /// Base of the range where its memory is mapped.
    pub(crate) base: Option<u64>,
    /// Mapped chunks, by their address in this place.
    pub(crate) chunks: BTreeMap<u64, (u64, u64)>,
    /// From what the mappings were made, if all of it could be mapped, and they have not changed since.
    pub(crate) basis: Option<Basis>,
}

cuda_api::wire_struct! {
    /// A chunk whose memory is offered by descriptor.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Shown {
        /// Its address.
        pub address: u64,
        /// Its size in bytes.
        pub bytes: u64,
        /// Number of its memory: other memory that is mapped there later has another number.
        pub number: u64,
    }
}

/// From what a view was made: from the same it would be made again. Chunks of the source that were mapped anew have other numbers in its
/// list, and those of this place another version of its table.
#[derive(Debug)]
pub(crate) struct Basis {
    pub(crate) shown: Vec<Shown>,
    pub(crate) version: u64,
    /// The addresses of the mapped chunks, in order, and the number of their pages.
    pub(crate) chunks: Vec<u64>,
    pub(crate) pages: u64,
}

/// A file for page hashes that source and target of a move both map.
#[derive(Debug)]
pub(crate) struct HashFile {
    pub(crate) fd: OwnedFd,
    pub(crate) bytes: usize,
    /// Address of its mapping, which the GPU can use.
    pub(crate) at: Option<usize>,
    /// Where it can be had.
    pub(crate) offer: Option<Offer>,
}

impl HashFile {
    /// So many bytes of a file, not mapped.
    pub(crate) fn new(fd: OwnedFd, bytes: usize) -> HashFile {
        HashFile { fd, bytes, at: None, offer: None }
    }

    /// Offers a file of this place.
    pub(crate) fn offer(&mut self) -> io::Result<Offer> {
        match self.offer {
            Some(offer) => Ok(offer),
            None => Ok(*self.offer.insert(share::offer(self.fd.try_clone()?)?)),
        }
    }

    /// Withdraws the offer of a file of this place.
    pub(crate) fn withdraw(&mut self) {
        self.offer.take().iter().for_each(share::withdraw);
    }
}

/// The state of both sides.
#[derive(Debug, Default)]
pub(crate) struct Views {
    pub(crate) shown: Mutex<Option<Offer>>,
    pub(crate) view: Mutex<View>,
    /// By the addresses of the source's chunks.
    pub(crate) to_adopt: Mutex<BTreeMap<u64, Imported>>,
    /// Bytes that rounds have copied to this place.
    pub(crate) moved: AtomicU64,
    /// The table of this place as a source, that of the source of this place, and those that were too small.
    pub(crate) hashes: Mutex<Option<HashFile>>,
    pub(crate) their_hashes: Mutex<Option<HashFile>>,
    pub(crate) old_hashes: Mutex<Vec<HashFile>>,
}

impl View {
    /// The chunks in view and the number of their pages, if the view was made from these lists and nothing has changed since.
    pub(crate) fn kept(&self, offer: &Offer, shown: &[Shown], version: u64) -> Option<(Vec<u64>, u64)> {
        let basis = self.basis.as_ref().filter(|basis| basis.version == version && basis.shown == shown)?;
        (self.offer.as_ref() == Some(offer)).then(|| (basis.chunks.clone(), basis.pages))
    }

    /// The address at which a chunk of the source is mapped.
    pub(crate) fn of(&self, device: u32, address: u64) -> u64 {
        address.wrapping_add(self.distance(device))
    }

    pub(crate) fn distance(&self, device: u32) -> u64 {
        self.base.unwrap_or_default().wrapping_sub(own_base(device))
    }

    /// The end of the mapped chunk that contains an address.
    pub(crate) fn end_of(&self, address: u64) -> Option<u64> {
        let (at, (bytes, _)) = self.chunks.range(..=address).next_back()?;
        Some(at + bytes).filter(|end| address < *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_memory::GpuMemory;

    #[test]
    fn every_change_of_the_chunks_gives_the_table_another_version_and_no_reading_does() {
        let memory = Arc::new(GpuMemory::default());
        let chunk = |number| Mapped::own(0x1000, 5, number, memory.hold(0x1000).unwrap());
        let mut table = ChunkTable::default();
        let mut versions = vec![table.version()];
        let mut changed = |table: &ChunkTable| {
            assert!(!versions.contains(&table.version()));
            versions.push(table.version());
        };
        table.insert(0x1000, chunk(1));
        changed(&table);
        // Other memory at the same address.
        table.insert(0x1000, chunk(2));
        changed(&table);
        table.insert(0x3000, chunk(3));
        changed(&table);
        assert_eq!(*table.ranges(), [(0x1000, 0x1000), (0x3000, 0x1000)]);
        table.values_mut().for_each(|chunk| chunk.at_source = None);
        changed(&table);
        table.remove(&0x1000);
        changed(&table);
        let version = table.version();
        assert_eq!((table.len(), table.get(&0x3000).map(|chunk| chunk.number), table.ranges().len()), (1, Some(3), 1));
        assert_eq!(table.version(), version);
        drop(std::mem::take(&mut *table));
        changed(&table);
        assert!(table.ranges().is_empty());
    }
}
