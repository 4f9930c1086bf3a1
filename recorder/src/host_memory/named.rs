//! Tracks which pinned memory GPUs use by its address: a place that does not share the job's memory must have a copy of it.

use super::mirror;
use crate::base::log::lock;
use crate::enter::CallContext;
use crate::host_memory::places::pin_everywhere;
use crate::job::Device;
use crate::pinned::blocks::{BLOCKS, Block, CHANGING, Known, around, lands, meant};
use crate::pinned::naming::{FOUND, UNFILED, any_unmapped, lies_in, may_be_named_at, may_name, set, words_at};
use crate::place::Place;
use cuda_api::code::Code;
use executor::bulk::search_memory;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Returns whether a call may refer to a block without further preparation.
fn is_settled(b: &Block) -> bool {
    matches!(b.known, Known::Everywhere | Known::Going | Known::Hidden)
}

/// Notes the pinned memory whose addresses are among 8-byte words for a GPU, in a kernel's parameters or in copied bytes, and makes it
/// accessible to the GPU.
pub(crate) fn note_words(cx: &CallContext, bytes: &[u8]) -> Result<(), Code> {
    if any_unmapped() { note_all(cx, std::iter::once(bytes)) } else { Ok(()) }
}

/// As [`note_words`], for several values, while there is memory that must be tracked.
#[inline]
pub(crate) fn note_all<'b>(cx: &CallContext, values: impl Iterator<Item = &'b [u8]>) -> Result<(), Code> {
    note_found(cx)?;
    let lands = lands();
    for bytes in values {
        let words = bytes.chunks_exact(8).filter_map(|w| w.first_chunk()).map(|w| u64::from_le_bytes(*w));
        for word in words.filter(|w| lies_in(&lands, *w)) {
            note_word(cx, word)?;
        }
    }
    Ok(())
}

/// Notes a word that may be an address of pinned memory.
#[cold]
fn note_word(cx: &CallContext, word: u64) -> Result<(), Code> {
    let at = meant(&lock(&BLOCKS), word);
    at.map_or(Ok(()), |at| note_mapped(cx, at))
}

/// Memory that was found in mirrored memory of one place may have been passed on to the GPUs of others, which begin work now: makes it
/// accessible to them.
#[inline]
pub(crate) fn note_found(cx: &CallContext) -> Result<(), Code> {
    if FOUND.load(Ordering::Relaxed) == 0 { Ok(()) } else { note_all_found(cx) }
}

#[cold]
fn note_all_found(cx: &CallContext) -> Result<(), Code> {
    let found: Vec<u64> = lock(&BLOCKS).iter().filter(|(_, b)| b.known == Known::Found).map(|(at, _)| *at).collect();
    found.into_iter().try_for_each(|at| note_mapped(cx, at))
}

/// Returns whether all places have all of it now: then no bytes can refer to memory that a place lacks.
pub(crate) fn all_have_all(cx: &CallContext) -> bool {
    cx.job.devices.iter().all(|d| has_all(cx.place(d)))
}

fn has_all(place: &Place) -> bool {
    match place {
        Place::Local { .. } => true,
        shared if shared.maps_file() => UNFILED.load(Ordering::Relaxed) == 0,
        _ => !any_unmapped(),
    }
}

/// Returns whether bytes may pass from the memory of one device to that of another without being searched: the other place lacks nothing,
/// or all bytes that came to the first one were searched.
pub(crate) fn may_pass(cx: &CallContext, from: &'static Device, to: &'static Device) -> bool {
    has_all(cx.place(to)) || from.bytes_are_searched()
}

/// As [`note_words`], for bytes that are copied to a device address: words are aligned to 8 bytes there.
pub(crate) fn note_copied(cx: &CallContext, to: u64, bytes: &[u8]) -> Result<(), Code> {
    if any_unmapped() && may_be_named_at(to, bytes) { note_words(cx, words_at(to, bytes)) } else { Ok(()) }
}

/// As [`note_copied`], for many bytes: several threads search them, where there are any.
pub(crate) fn note_many(cx: &CallContext, to: u64, bytes: &[u8], threads: Option<usize>) -> Result<(), Code> {
    let (words, lands) = (words_at(to, bytes), lands());
    // One thread would need longer than all the others for the copy itself. The parts that they search begin at words.
    // SAFETY: bytes that live as long as this call.
    let may_be_named = || unsafe { search_memory(words.as_ptr() as u64, words.len(), &|part| may_name(part, &lands), threads) };
    if any_unmapped() && may_be_named() { note_words(cx, words) } else { Ok(()) }
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
    // their copy, and from now on is held until then (`crate::order::landing`).
    let pinned = pin_everywhere(cx, start, &block, false);
    let known = if pinned.is_ok() { Known::Everywhere } else { was };
    if let Some(b) = lock(&BLOCKS).get_mut(&start).filter(|b| b.known == Known::Found) {
        set(b, known);
    }
    crate::host_memory::system_atomics::memory_changed(cx);
    pinned
}
