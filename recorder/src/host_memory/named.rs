//! Which pinned memory GPUs use by its address: a place that does not reach the job's memory must have such memory there.

use super::{BLOCKS, Block, CHANGING, Known, around, lands, meant, mirror, pin_everywhere};
use crate::enter::CallContext;
use crate::log::lock;
use crate::place::{Place, Worker};
use cuda_api::code::Code;
use executor::host_mirror::Line;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Blocks that some place may not have though it could need them,
static UNMAPPED: AtomicUsize = AtomicUsize::new(0);
/// those among them that were found,
static FOUND: AtomicUsize = AtomicUsize::new(0);
/// and those that do not lie in the file which places of this machine map.
static UNFILED: AtomicUsize = AtomicUsize::new(0);

/// Blocks that a GPU may use by their addresses.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Counts a block of the table, or with -1 takes it out of the count.
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

/// Puts a block into the table.
pub(super) fn add(at: u64, block: Block) {
    // Before anybody can take it out of the count.
    count(&block, 1);
    lock(&BLOCKS).insert(at, block);
}

/// Notes how a block of the table is used.
pub(super) fn set(b: &mut Block, known: Known) {
    count(b, -1);
    b.known = known;
    count(b, 1);
}

/// Whether a GPU may use the memory at an address by that address.
pub(crate) fn is_mapped(address: u64) -> bool {
    around(&lock(&BLOCKS), address).is_some_and(|(_, b)| !matches!(b.known, Known::Unused | Known::Hidden))
}

/// Whether GPUs may use any pinned memory by its address.
pub(crate) fn any_mapped() -> bool {
    MAPPED.load(Ordering::Acquire) != 0
}

/// Whether nothing has to be done before a call names a block.
fn is_settled(b: &Block) -> bool {
    matches!(b.known, Known::Everywhere | Known::Going | Known::Hidden)
}

/// Notes which pinned memory a GPU is given by 8-byte words, of a kernel's parameters or of what is copied to it: it must be able to use
/// that.
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

/// What was found in memory that one place mirrors may have been handed on to the GPUs of others, which begin work now.
pub(crate) fn note_found(cx: &CallContext) -> Result<(), Code> {
    if FOUND.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let found: Vec<u64> = lock(&BLOCKS).iter().filter(|(_, b)| b.known == Known::Found).map(|(at, _)| *at).collect();
    found.into_iter().try_for_each(|at| note_mapped(cx, at))
}

/// Whether there is memory of which that has to be noted.
pub(crate) fn any_unmapped() -> bool {
    UNMAPPED.load(Ordering::Relaxed) != 0
}

/// Whether all places have all of it now: then no bytes can name what a place does not have.
pub(crate) fn all_have_all(cx: &CallContext) -> bool {
    let has_all = |place: &Place| match place {
        Place::Local { .. } => true,
        near if near.maps_file() => UNFILED.load(Ordering::Relaxed) == 0,
        _ => !any_unmapped(),
    };
    cx.job.devices.iter().all(|d| has_all(cx.place(d)))
}

/// As [`note_words`] for what is copied to a device address: words are where their addresses are multiples of 8.
pub(crate) fn note_copied(cx: &CallContext, to: u64, bytes: &[u8]) -> Result<(), Code> {
    if any_unmapped() && may_be_named_at(to, bytes) { note_words(cx, words_at(to, bytes)) } else { Ok(()) }
}

/// The whole words among bytes that are copied to a device address.
fn words_at(to: u64, bytes: &[u8]) -> &[u8] {
    let skip = (to.next_multiple_of(8) - to) as usize;
    bytes.get(skip..).unwrap_or_default()
}

/// Whether bytes that are copied to a device address may have addresses of pinned memory among their words.
pub(crate) fn may_be_named_at(to: u64, bytes: &[u8]) -> bool {
    may_name(words_at(to, bytes), &lands())
}

/// Whether 8-byte words may be addresses of pinned memory.
pub(crate) fn may_be_named(bytes: &[u8]) -> bool {
    let lands = lands();
    let words = bytes.chunks_exact(8).filter_map(|w| w.first_chunk()).map(|w| u64::from_le_bytes(*w));
    words.into_iter().any(|w| lies_in(&lands, w))
}

fn lies_in(lands: &[Range<u64>; 2], word: u64) -> bool {
    lands.iter().any(|land| land.contains(&word))
}

/// Whether the upper halves of any 8-byte words are those of addresses in one of two ranges. Most of what is copied has none, and
/// a compiler makes this loop go many words at a time.
pub(super) fn may_name(bytes: &[u8], lands: &[Range<u64>; 2]) -> bool {
    let upper = |w: &[u8]| u32::from_le_bytes([w[4], w[5], w[6], w[7]]);
    let halves = |r: &Range<u64>| ((r.start >> 32) as u32, (r.end >> 32) as u32);
    let (base, last) = halves(&lands[0]);
    // None elsewhere: the same once more.
    let (other, end) = if lands[1].is_empty() { (base, last) } else { halves(&lands[1]) };
    let named = |upper: u32| (upper.wrapping_sub(base) <= last - base) | (upper.wrapping_sub(other) <= end - other);
    bytes.chunks_exact(8).fold(false, |any, w| any | named(upper(w)))
}

/// What the job has changed of a worker's memory is about to be told, and may name memory that it does not have yet: makes it have that.
/// True if there was any. Other places get it when something is begun there ([`note_found`]), or when they are told themselves.
pub(crate) fn named_by(lines: &[Line], worker: &Worker<'_>) -> bool {
    named(lines.iter().flat_map(|l| l[2..].iter().copied()), worker)
}

/// As [`named_by`] for bytes that are about to be sent to a worker's GPU, as they lie on the way: of copies of a stream or a graph, which
/// are read outside of any call.
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
        // SAFETY: a block of the table; who frees it says so first, and then waits until this is over.
        any |= unsafe { worker.pin(start, b.bytes, b.flags, b.filed) }.is_ok();
    }
    any
}

/// Notes that the GPU uses the pinned memory at an address by that address. When it returns all places have it, whoever made them.
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
    // Bytes that are on their way to it are told as the program's own changes are, when they are here. What uses them follows their copy,
    // and from now on is held until then (`crate::landing`).
    let pinned = pin_everywhere(cx, start, &block, false);
    let known = if pinned.is_ok() { Known::Everywhere } else { was };
    if let Some(b) = lock(&BLOCKS).get_mut(&start).filter(|b| b.known == Known::Found) {
        set(b, known);
    }
    crate::system_atomics::memory_changed(cx);
    pinned
}
