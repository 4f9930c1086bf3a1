//! Tracks which pinned memory GPUs use by its address: a place that does not share the job's memory must have a copy of it.

use super::{BLOCKS, Block, CHANGING, Known, around, lands, meant, mirror, pin_everywhere};
use crate::enter::CallContext;
use crate::log::lock;
use crate::place::{Place, Worker};
use cuda_api::code::Code;
use executor::host_mirror::Line;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of blocks that some place may lack although it could need them,
static UNMAPPED: AtomicUsize = AtomicUsize::new(0);
/// of those among them that were found,
static FOUND: AtomicUsize = AtomicUsize::new(0);
/// and of those that are not in the file which places of this machine map.
static UNFILED: AtomicUsize = AtomicUsize::new(0);

/// Number of blocks that a GPU may use by their addresses.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Adds a block of the table to the counts, or with -1 subtracts it.
fn count(b: &Block, by: isize) {
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
pub(super) fn add(at: u64, block: Block) {
    // Counted before another thread can subtract it.
    count(&block, 1);
    lock(&BLOCKS).insert(at, block);
}

/// Sets what is known about the use of a block.
pub(super) fn set(b: &mut Block, known: Known) {
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

/// Returns whether a call may refer to a block without further preparation.
fn is_settled(b: &Block) -> bool {
    matches!(b.known, Known::Everywhere | Known::Going | Known::Hidden)
}

/// Notes the pinned memory whose addresses are among 8-byte words for a GPU, in a kernel's parameters or in copied bytes, and makes it
/// accessible to the GPU.
pub(crate) fn note_words(cx: &CallContext, bytes: &[u8]) -> Result<(), Code> {
    if !any_unmapped() {
        return Ok(());
    }
    note_found(cx)?;
    let lands = lands();
    let words = bytes.chunks_exact(8).filter_map(|w| w.first_chunk()).map(|w| u64::from_le_bytes(*w));
    for word in words.filter(|w| lies_in(&lands, *w)) {
        let at = meant(&lock(&BLOCKS), word);
        at.map_or(Ok(()), |at| note_mapped(cx, at))?;
    }
    Ok(())
}

/// Memory that was found in mirrored memory of one place may have been passed on to the GPUs of others, which begin work now: makes it
/// accessible to them.
pub(crate) fn note_found(cx: &CallContext) -> Result<(), Code> {
    if FOUND.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let found: Vec<u64> = lock(&BLOCKS).iter().filter(|(_, b)| b.known == Known::Found).map(|(at, _)| *at).collect();
    found.into_iter().try_for_each(|at| note_mapped(cx, at))
}

/// Returns whether there is memory that must be tracked in this way.
pub(crate) fn any_unmapped() -> bool {
    UNMAPPED.load(Ordering::Relaxed) != 0
}

/// Returns whether all places have all of it now: then no bytes can refer to memory that a place lacks.
pub(crate) fn all_have_all(cx: &CallContext) -> bool {
    let has_all = |place: &Place| match place {
        Place::Local { .. } => true,
        near if near.maps_file() => UNFILED.load(Ordering::Relaxed) == 0,
        _ => !any_unmapped(),
    };
    cx.job.devices.iter().all(|d| has_all(cx.place(d)))
}

/// As [`note_words`], for bytes that are copied to a device address: words are aligned to 8 bytes there.
pub(crate) fn note_copied(cx: &CallContext, to: u64, bytes: &[u8]) -> Result<(), Code> {
    if any_unmapped() && may_be_named_at(to, bytes) { note_words(cx, words_at(to, bytes)) } else { Ok(()) }
}

/// The whole words among bytes that are copied to a device address.
fn words_at(to: u64, bytes: &[u8]) -> &[u8] {
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
    let words = bytes.chunks_exact(8).filter_map(|w| w.first_chunk()).map(|w| u64::from_le_bytes(*w));
    words.into_iter().any(|w| lies_in(&lands, w))
}

fn lies_in(lands: &[Range<u64>; 2], word: u64) -> bool {
    lands.iter().any(|land| land.contains(&word))
}

/// Returns whether the upper halves of any 8-byte words are those of addresses in one of two ranges. Most copied bytes have none, and a
/// compiler vectorizes this loop.
pub(super) fn may_name(bytes: &[u8], lands: &[Range<u64>; 2]) -> bool {
    let upper = |w: &[u8]| u32::from_le_bytes([w[4], w[5], w[6], w[7]]);
    let halves = |r: &Range<u64>| ((r.start >> 32) as u32, (r.end >> 32) as u32);
    let (base, last) = halves(&lands[0]);
    // If there is no second range, checks the first one twice.
    let (other, end) = if lands[1].is_empty() { (base, last) } else { halves(&lands[1]) };
    let named = |upper: u32| (upper.wrapping_sub(base) <= last - base) | (upper.wrapping_sub(other) <= end - other);
    bytes.chunks_exact(8).fold(false, |any, w| any | named(upper(w)))
}

/// Called before the job's changes of a worker's memory are sent, which may contain addresses of memory that the worker lacks: gives it
/// that memory. Returns true if there was any. Other places get it when work begins there ([`note_found`]), or when changes are sent to
/// them.
pub(crate) fn named_by(lines: &[Line], worker: &Worker<'_>) -> bool {
    named(lines.iter().flat_map(|l| l[2..].iter().copied()), worker)
}

/// As [`named_by`], for encoded bytes that are about to be sent to a worker's GPU: those of copies of a stream or a graph, which are read
/// outside of any call.
pub(crate) fn named_in(bytes: &[u8], worker: &Worker<'_>) -> bool {
    if !any_unmapped() || !may_name(bytes, &lands()) {
        return false;
    }
    named(bytes.chunks_exact(8).filter_map(|w| w.first_chunk()).map(|w| u64::from_le_bytes(*w)), worker)
}

fn named(words: impl Iterator<Item = u64>, worker: &Worker<'_>) -> bool {
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
            if matches!(b.known, Known::Going | Known::Hidden) || worker.has(start) {
                continue;
            }
            if b.known == Known::Unused {
                set(b, Known::Found);
            }
            lacking.push((start, *b));
        }
        lacking
    };
    let mut any = false;
    for (start, b) in lacking {
        // SAFETY: a block of the table; a thread that frees it marks it first, and then waits until this is over.
        any |= unsafe { worker.pin(start, b.bytes, b.flags, b.filed) }.is_ok();
    }
    any
}

/// Notes that the GPU uses the pinned memory at an address by that address. On return all places have it, whichever call requested this
/// first.
pub(crate) fn note_mapped(cx: &CallContext, address: u64) -> Result<(), Code> {
    let settled = |blocks: &BTreeMap<u64, Block>| around(blocks, address).is_none_or(|(_, b)| is_settled(b));
    if settled(&lock(&BLOCKS)) {
        return Ok(());
    }
    mirror::prepare(cx, address)?;
    let _changing = lock(&CHANGING);
    let (start, block, was) = {
        let mut blocks = lock(&BLOCKS);
        if settled(&blocks) {
            return Ok(());
        }
        let Some((start, b)) = blocks.range_mut(..=address).next_back() else { return Ok(()) };
        let was = b.known;
        set(b, Known::Found);
        (*start, *b, was)
    };
    // Bytes of copies to it that are under way are sent as the program's own changes when they have arrived. Work that uses them follows
    // their copy, and from now on is held until then (`crate::landing`).
    let pinned = pin_everywhere(cx, start, &block, false);
    let known = if pinned.is_ok() { Known::Everywhere } else { was };
    if let Some(b) = lock(&BLOCKS).get_mut(&start).filter(|b| b.known == Known::Found) {
        set(b, known);
    }
    crate::system_atomics::memory_changed(cx);
    pinned
}

#[cfg(test)]
mod tests;
