//! Finds addresses of pinned memory among bytes, for places that do not share the job's memory and must have a copy of what GPUs use.

use crate::base::log::lock;
use crate::pinned::blocks::{BLOCKS, Block, Known, around, lands, meant};
use cuda_api::code::Code;
use executor::host_mirror::Line;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of blocks that some place may lack although it could need them,
#[unsafe(link_section = "mrcuda_hot")]
static UNMAPPED: AtomicUsize = AtomicUsize::new(0);

/// of those among them that were found,
#[unsafe(link_section = "mrcuda_hot")]
pub(crate) static FOUND: AtomicUsize = AtomicUsize::new(0);

/// and of those that are not in the file which places of this machine map.
pub(crate) static UNFILED: AtomicUsize = AtomicUsize::new(0);

/// Number of blocks that a GPU may use by their addresses.
pub(crate) static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Adds a block of the table to the counts, or with -1 subtracts it.
pub(crate) fn count(b: &Block, by: isize) {
    let add = |to: &AtomicUsize, counts: bool| {
        if counts {
            to.fetch_add(by as usize, Ordering::Relaxed);
        }
    };
    add(&UNMAPPED, matches!(b.known, Known::Unused | Known::Found));
    add(&FOUND, b.known == Known::Found);
    add(&UNFILED, !b.filed && matches!(b.known, Known::Unused | Known::Found));
    add(&MAPPED, matches!(b.known, Known::Found | Known::Everywhere));
}

/// Adds a block to the table.
pub(crate) fn add(at: u64, block: Block) {
    // Counted before another thread can subtract it.
    count(&block, 1);
    lock(&BLOCKS).insert(at, block);
}

/// Sets what is known about the use of a block.
pub(crate) fn set(b: &mut Block, known: Known) {
    count(b, -1);
    b.known = known;
    count(b, 1);
}

/// Returns whether a GPU may use the memory at an address by that address.
pub(crate) fn is_mapped(address: u64) -> bool {
    around(&lock(&BLOCKS), address).is_some_and(|(_, b)| !matches!(b.known, Known::Unused | Known::Hidden))
}

/// Returns whether GPUs may use any pinned memory by its address.
pub(crate) fn any_mapped() -> bool {
    MAPPED.load(Ordering::Acquire) != 0
}

/// Returns whether there is memory that must be tracked in this way.
pub(crate) fn any_unmapped() -> bool {
    UNMAPPED.load(Ordering::Relaxed) != 0
}

/// The whole words among bytes that are copied to a device address.
pub(crate) fn words_at(to: u64, bytes: &[u8]) -> &[u8] {
    let skip = (to.next_multiple_of(8) - to) as usize;
    bytes.get(skip..).unwrap_or_default()
}

/// Returns whether bytes that are copied to a device address may contain addresses of pinned memory.
pub(crate) fn may_be_named_at(to: u64, bytes: &[u8]) -> bool {
    may_name(words_at(to, bytes), &lands())
}

/// Returns whether 8-byte words may be addresses of pinned memory.
pub(crate) fn may_be_named(bytes: &[u8]) -> bool {
    let lands = lands();
    if !may_name(bytes, &lands) {
        return false;
    }
    let words = bytes.chunks_exact(8).filter_map(|w| w.first_chunk()).map(|w| u64::from_le_bytes(*w));
    words.into_iter().any(|w| lies_in(&lands, w))
}

pub(crate) fn lies_in(lands: &[Range<u64>; 2], word: u64) -> bool {
    lands.iter().any(|land| land.contains(&word))
}

/// Returns whether the upper halves of any 8-byte words are those of addresses in one of two ranges, as hardly any copied bytes have. All
/// bytes of copies to a device are searched so, and a thread that sends 4 GB/s must not wait for it.
pub(crate) fn may_name(bytes: &[u8], lands: &[Range<u64>; 2]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[expect(unsafe_code, reason = "instructions that not every processor has")]
        // SAFETY: this one has them.
        return unsafe { search_with_avx2(bytes, lands) };
    }
    search(bytes, lands)
}

/// [`search`], for a compiler that may use AVX2: 20 GB/s in the cache on the build machine, 10 without.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn search_with_avx2(bytes: &[u8], lands: &[Range<u64>; 2]) -> bool {
    search(bytes, lands)
}

/// Compares all halves of words, the lower ones as well, in a form that a compiler vectorizes.
#[inline(always)]
fn search(bytes: &[u8], lands: &[Range<u64>; 2]) -> bool {
    /// Halves of words that are compared at a time.
    const HALVES: usize = 32;
    let bounds = |r: &Range<u64>| ((r.start >> 32) as u32, (r.end >> 32) as u32);
    let (base, last) = bounds(&lands[0]);
    // If there is no second range, compares with the first one twice.
    let (other, end) = if lands[1].is_empty() { (base, last) } else { bounds(&lands[1]) };
    let named = |half: u32| (half.wrapping_sub(base) <= last - base) | (half.wrapping_sub(other) <= end - other);
    let (blocks, rest) = bytes.as_chunks::<{ 4 * HALVES }>();
    let mut found = [0; HALVES];
    for block in blocks {
        for (found, half) in found.iter_mut().zip(block.as_chunks().0) {
            *found |= u32::from(named(u32::from_le_bytes(*half)));
        }
    }
    let upper = |halves: &[[u8; 4]]| halves.iter().skip(1).step_by(2).any(|half| named(u32::from_le_bytes(*half)));
    found.iter().skip(1).step_by(2).any(|found| *found != 0) || upper(rest.as_chunks().0)
}

/// What can hold host memory of the job: a worker.
pub(crate) trait Holder {
    /// Returns whether it has the memory that begins at an address.
    fn has(&self, at: u64) -> bool;

    /// Returns whether a device of the job executes there. What is found for the target of a move is noted only after its commit: a move
    /// that fails must not change how the job uses its memory.
    fn executes(&self) -> bool;

    /// Gives it the memory. Returns the position of that call in the place's order.
    ///
    /// # Safety
    /// The memory stays mapped until it is unpinned, or until [`crate::place::give_up_memory`] was called before it is freed.
    unsafe fn pin(&self, at: u64, block: &Block) -> Result<Option<Range<u64>>, Code>;
}

/// Called before the job's changes of a worker's memory are sent, which may contain addresses of memory that the worker lacks: gives it
/// that memory. Returns true if there was any. Other places get it when work begins there (`note_found`), or when changes are sent to
/// them.
pub(crate) fn named_by(lines: &[Line], worker: &impl Holder) -> bool {
    named(lines.iter().flat_map(|l| l[2..].iter().copied()), worker)
}

/// As [`named_by`], for encoded bytes that are about to be sent to a worker's GPU: those of copies of a stream or a graph, which are read
/// outside of any call.
pub(crate) fn named_in(bytes: &[u8], worker: &impl Holder) -> bool {
    if !any_unmapped() || !may_name(bytes, &lands()) {
        return false;
    }
    named(bytes.chunks_exact(8).filter_map(|w| w.first_chunk()).map(|w| u64::from_le_bytes(*w)), worker)
}

pub(crate) fn named(words: impl Iterator<Item = u64>, worker: &impl Holder) -> bool {
    let lands = lands();
    let lacking: Vec<(u64, Block)> = {
        let (mut blocks, mut lacking, mut last) = (lock(&BLOCKS), Vec::new(), 0..0);
        for word in words.filter(|w| lies_in(&lands, *w)) {
            if last.contains(&word) {
                continue;
            }
            let Some(start) = meant(&blocks, word) else { continue };
            let Some(b) = blocks.get_mut(&start) else { continue };
            last = start..start + b.bytes;
            if !b.can_be_given() || worker.has(start) {
                continue;
            }
            if worker.executes() {
                found(b);
            }
            lacking.push((start, *b));
        }
        lacking
    };
    let mut any = false;
    for (start, b) in &lacking {
        // SAFETY: a block of the table; a thread that frees it marks it first, and then waits until this is over.
        any |= unsafe { worker.pin(*start, b) }.is_ok();
    }
    // The commit may have come meanwhile, before the worker had the memory.
    if any && worker.executes() {
        note_found(&lacking.iter().map(|(start, _)| *start).collect::<Vec<_>>());
    }
    any
}

/// Notes that the addresses of these blocks were found in memory that a place of the job mirrors.
pub(crate) fn note_found(starts: &[u64]) {
    let mut blocks = lock(&BLOCKS);
    starts.iter().for_each(|start| blocks.get_mut(start).into_iter().for_each(found));
}

fn found(b: &mut Block) {
    if b.known == Known::Unused {
        set(b, Known::Found);
    }
}

#[cfg(test)]
mod tests;
