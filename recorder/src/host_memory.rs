//! Pinned host memory: memory of the job in a reserved range of addresses, backed by one memory file that a place on this host can map.
//!
//! It stays where it is through moves. The driver of this process registers it, so it is pinned for that driver too and kernels can use
//! it. A place that does not share it transfers its contents by copies, until a GPU is known to use its address: from then on the place
//! has a copy that mirrors it (docs/memory.md, "Pinned memory").

use crate::base::config;
use crate::base::log::{self, lock};
use crate::enter::CallContext;
use crate::host_memory::places::pin_everywhere;
use crate::job::{Device, PutOff};
use crate::move_error::MoveError;
use crate::pinned::blocks::{
    BLOCKS, Block, CHANGING, HIGHEST, HIGHEST_OWN, Kind, Known, LOWEST_OWN, Memory, PAGE, around, find, number, page, provide,
    provide_slot, release,
};
use crate::place::{self, Place};
use cuda_api::address_map::SMALLEST_EXCLUSIVE;
use cuda_api::code::{self, Code};
use cuda_api::flags::{self, HOST_ALLOC_DEVICE_MAP, HOST_ALLOC_WRITE_COMBINED, HOST_REGISTER_IO_MEMORY, HOST_REGISTER_READ_ONLY};
use cuda_api::ops::Slab;
use cuda_api::pointer::OutPtr;
use cuda_api::sys;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering;

pub(crate) mod managed_variables;
mod mirror;
mod named;
pub(crate) mod places;
mod staging;
pub(crate) mod system_atomics;

pub(crate) use named::{all_have_all, may_pass, note_all, note_copied, note_found, note_many, note_mapped, note_words};

pub(crate) use staging::{HALF, Slots, await_slots, release_slots, take_slots};

const ALLOC_FLAGS: u32 = flags::HOST_ALLOC_PORTABLE | flags::HOST_ALLOC_DEVICE_MAP | flags::HOST_ALLOC_WRITE_COMBINED;
const REGISTER_FLAGS: u32 = flags::HOST_REGISTER_PORTABLE
    | flags::HOST_REGISTER_DEVICE_MAP
    | flags::HOST_REGISTER_IO_MEMORY
    | flags::HOST_REGISTER_READ_ONLY;

/// Makes the pinned memory that the target of a move knows equal to the job's, contents included. The gate may be open: changes made
/// meanwhile are transferred by the next call. `known` has the numbers of the blocks that the target knew after the last call.
pub(crate) fn settle(place: &Place, known: &mut BTreeMap<u64, u64>) -> Result<(), MoveError> {
    let _changing = lock(&CHANGING);
    let mut has = place.pinned();
    let blocks = lock(&BLOCKS).clone();
    // What the place has found in memory that it mirrors belongs to it too, also if it was allocated after the last call.
    let mut found = BTreeSet::new();
    has.retain(|(at, bytes)| {
        let same = is_same(*at, *bytes, &blocks, known);
        if !same {
            place.unpin(*at);
            found.insert(*at);
        }
        same
    });
    // After that: a slab is mapped as long as the place has any of its blocks, also one that the job has freed.
    if crate::pinned::blocks::is_needed() && place.maps_file() {
        mirror::leave_file(place)?;
        has = place.pinned();
    }
    let belongs = |at: &u64, b: &Block| b.belongs_to(place) || found.contains(at) && b.can_be_given();
    for (at, b) in blocks.iter().filter(|(at, b)| belongs(at, b) && !has.contains(&(**at, b.bytes))) {
        b.pin(place, *at).map_err(|error| MoveError::HostMemory { error, bytes: b.bytes })?;
    }
    *known = blocks.into_iter().map(|(at, b)| (at, b.id)).collect();
    place.send_changes().map_err(|_| MoveError::PlaceLost(None))
}

/// Bytes of host memory that a place is given when it becomes a target, and whether managed variables are among them.
pub(crate) fn needed_at(place: &Place) -> (u64, bool) {
    let blocks = lock(&BLOCKS);
    let needed = || blocks.values().filter(|block| block.belongs_to(place));
    (needed().map(|block| block.bytes).sum(), needed().any(|block| block.kind == Kind::Variable))
}

/// Returns whether a block that a place knows is still the same: memory that was freed and allocated again has other pages, though often
/// the same address and size, and a driver keeps using the pages that it registered.
fn is_same(at: u64, bytes: u64, blocks: &BTreeMap<u64, Block>, known: &BTreeMap<u64, u64>) -> bool {
    blocks.get(&at).is_some_and(|b| b.bytes == bytes && known.get(&at) == Some(&b.id))
}

fn allocate(cx: &mut CallContext, pp: OutPtr<*mut c_void>, bytes: usize, flags: u32) -> Result<(), Code> {
    crate::order::captures::forbid_unsafe(cx)?;
    cx.device()?.check()?;
    if pp.is_null() || flags & !ALLOC_FLAGS != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if bytes == 0 {
        // An allocation of zero bytes succeeds with a null pointer.
        return pp.write(std::ptr::null_mut());
    }
    pp.write(make(cx, cx.device()?, bytes as u64, flags, Kind::Pinned)? as *mut c_void)
}

/// Allocates a block of this size in the context of a device.
pub(crate) fn make(cx: &CallContext, device: &Device, bytes: u64, flags: u32, kind: Kind) -> Result<u64, Code> {
    let _changing = lock(&CHANGING);
    let exclusive = kind == Kind::Managed && bytes >= SMALLEST_EXCLUSIVE && config::is_exclusive();
    let room = |blocks: &BTreeMap<u64, Block>| if exclusive { provide_slot(blocks, bytes) } else { provide(blocks, bytes) };
    let Memory { at, filed, slab } = room(&lock(&BLOCKS))?;
    // Kernels may receive addresses in managed memory in any way.
    let known = if matches!(kind, Kind::Managed | Kind::Variable) { Known::Everywhere } else { Known::Unused };
    let block = Block { bytes, flags, kind, filed, slab, exclusive, device: device.index, id: number(), known };
    if let Err(rc) = pin_everywhere(cx, at, &block, true) {
        release(at, bytes, slab, false);
        return Err(rc);
    }
    crate::pinned::naming::add(at, block);
    HIGHEST.fetch_max(at + bytes.next_multiple_of(PAGE), Ordering::Relaxed);
    crate::host_memory::system_atomics::memory_changed(cx);
    Ok(at)
}

pub(crate) fn cuMemAllocHost_v2(cx: &mut CallContext, pp: OutPtr<*mut c_void>, bytesize: usize) -> Result<(), Code> {
    allocate(cx, pp, bytesize, 0)
}

pub(crate) fn cuMemHostAlloc(cx: &mut CallContext, pp: OutPtr<*mut c_void>, bytesize: usize, flags: c_uint) -> Result<(), Code> {
    allocate(cx, pp, bytesize, flags)
}

/// Removes a block from the table. As the native calls do, waits for running work, since copies of the block may be under way.
fn take(cx: &mut CallContext, at: u64, kind: Kind, absent: Code) -> Result<(), Code> {
    let known = |blocks: &BTreeMap<u64, Block>| blocks.get(&at).is_some_and(|b| b.kind == kind);
    if !known(&lock(&BLOCKS)) {
        return Err(absent);
    }
    let device = cx.device()?;
    device.check()?;
    // Host memory belongs to no device: errors of other devices are returned by calls on those.
    let _later = PutOff::begin();
    for d in &cx.job.devices {
        if d.index == device.index || d.sticky() == 0 {
            cx.settle(d)?;
        }
    }
    // A place may report completion before it has sent the bytes of a copy; these must not be written to memory that the program
    // allocates here later.
    let bytes = lock(&BLOCKS).get(&at).map_or(0, |b| b.bytes);
    wait_for_copies(cx, at, bytes);
    // From now on the block is not given to places when its address is found.
    lock(&BLOCKS).get_mut(&at).into_iter().for_each(|b| crate::pinned::naming::set(b, Known::Going));
    place::give_up_memory(page(at));
    let _changing = lock(&CHANGING);
    let block = {
        let mut blocks = lock(&BLOCKS);
        // Checked again: another thread may have freed it meanwhile.
        if known(&blocks) { blocks.remove(&at) } else { None }.ok_or(absent)?
    };
    ended(cx, at, &block);
    Ok(())
}

/// Waits until no copy reads this memory or writes to it any more, whatever a place says of it.
fn wait_for_copies(cx: &CallContext, at: u64, bytes: u64) {
    let link = |place: &Place| if let Place::Remote { link, .. } = place { Some(link.clone()) } else { None };
    let links: Vec<_> = cx.job.devices.iter().filter_map(|d| link(cx.place(d))).collect();
    cx.pass.outside(|| {
        crate::order::landing::wait_for(at, bytes);
        links.iter().for_each(|link| link.wait_unused(&(at..at + bytes)));
    });
}

/// Frees managed memory; returns `None` if none begins at `at`.
pub(crate) fn free_managed(cx: &mut CallContext, at: u64) -> Option<Result<(), Code>> {
    let managed = lock(&BLOCKS).get(&at).is_some_and(|b| b.kind == Kind::Managed);
    managed.then(|| take(cx, at, Kind::Managed, code::ERROR_INVALID_VALUE))
}

/// Frees all pinned memory of a device's context, in which no work is running. Variables are freed with their module.
pub(crate) fn end_all(cx: &CallContext, device: &Device) {
    end_those(cx, |_, b| b.device == device.index && b.kind != Kind::Variable);
}

/// Frees the variables at these addresses, which are no longer in use.
pub(crate) fn end_variables(cx: &CallContext, variables: &[u64]) {
    end_those(cx, |at, b| b.kind == Kind::Variable && variables.contains(&at));
}

fn end_those(cx: &CallContext, goes: impl Fn(u64, &Block) -> bool) {
    let going: Vec<(u64, u64)> = {
        let mut blocks = lock(&BLOCKS);
        let those = blocks.iter_mut().filter(|(at, b)| goes(**at, b));
        let give_up = |(at, b): (&u64, &mut Block)| {
            crate::pinned::naming::set(b, Known::Going);
            (*at, b.bytes)
        };
        those.map(give_up).collect()
    };
    // Bytes of copies, also of other devices, may still be arriving and must not be written to later allocations here.
    going.iter().for_each(|(at, bytes)| wait_for_copies(cx, *at, *bytes));
    going.iter().for_each(|(at, _)| place::give_up_memory(page(*at)));
    let _changing = lock(&CHANGING);
    let goes = |at: &u64, b: &mut Block| b.known == Known::Going && goes(*at, b);
    let gone: Vec<(u64, Block)> = lock(&BLOCKS).extract_if(.., goes).collect();
    gone.iter().for_each(|(at, block)| ended(cx, *at, block));
}

/// Completes the removal of a block that was taken from the table.
fn ended(cx: &CallContext, at: u64, block: &Block) {
    // The call gave the GPU no work.
    cx.job.devices.iter().for_each(|d| d.still_quiet(cx.place(d).unpin(at)));
    place::forget_memory(page(at), at);
    if block.kind == Kind::Registered {
        return;
    }
    // The GPU of a lost worker may go on writing for a while.
    release(at, block.bytes, block.slab, place::why_lost().is_some());
}

pub(crate) fn cuMemFreeHost(cx: &mut CallContext, p: u64) -> Result<(), Code> {
    crate::order::captures::forbid_unsafe(cx)?;
    if p == 0 {
        return Ok(());
    }
    take(cx, p, Kind::Pinned, code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuMemHostGetFlags(cx: &mut CallContext, p: u64) -> Result<c_uint, Code> {
    let found =
        around(&lock(&BLOCKS), p).map(|(_, b)| if b.is_managed() { 0 } else { b.flags }).ok_or(code::ERROR_INVALID_VALUE)?;
    // Of the flags only this one is reported (measured); the driver maps everything that it can.
    cx.device()?;
    Ok(found & HOST_ALLOC_WRITE_COMBINED | HOST_ALLOC_DEVICE_MAP)
}

/// Returns whether all pages of a range are mapped in the program.
fn has_pages(at: u64, bytes: u64) -> bool {
    let start = at & !(PAGE - 1);
    let len = (at + bytes).next_multiple_of(PAGE) - start;
    let mut seen = vec![0u8; (len / PAGE) as usize];
    // SAFETY: the vector has a byte for each page; the call does not access the range.
    unsafe { libc::mincore(start as *mut c_void, len as usize, seen.as_mut_ptr()) == 0 }
}

pub(crate) fn cuMemHostRegister_v2(cx: &mut CallContext, start: u64, bytesize: usize, flags: c_uint) -> Result<(), Code> {
    crate::order::captures::forbid_unsafe(cx)?;
    let device = cx.device()?;
    device.check()?;
    let bytes = bytesize as u64;
    let end = start.checked_add(bytes).and_then(|e| e.checked_next_multiple_of(PAGE));
    if start == 0 || bytes == 0 || flags & !REGISTER_FLAGS != 0 || end.is_none() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if flags & HOST_REGISTER_IO_MEMORY != 0 {
        log::missed("registering memory of other devices".to_owned());
        return Err(code::ERROR_NOT_PERMITTED);
    }
    let read_only = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED as u32;
    if flags & HOST_REGISTER_READ_ONLY != 0 && crate::job::attributes::attribute(device, read_only) != Some(1) {
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    let _changing = lock(&CHANGING);
    if let Some((s, b)) = lock(&BLOCKS).range(..(start + bytes).next_multiple_of(PAGE)).next_back() {
        if b.kind == Kind::Registered && *s < start + bytes && s + b.bytes > start {
            return Err(code::ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        // The driver registers whole pages.
        if (s + b.bytes).next_multiple_of(PAGE) > start {
            return Err(code::ERROR_INVALID_VALUE);
        }
    }
    if !has_pages(start, bytes) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let block = Block {
        bytes,
        flags,
        kind: Kind::Registered,
        filed: false,
        slab: Slab::default(),
        exclusive: false,
        device: device.index,
        id: number(),
        known: Known::Unused,
    };
    pin_everywhere(cx, start, &block, true)?;
    crate::pinned::naming::add(start, block);
    LOWEST_OWN.fetch_min(start, Ordering::Relaxed);
    HIGHEST_OWN.fetch_max(start + bytes, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuMemHostUnregister(cx: &mut CallContext, p: u64) -> Result<(), Code> {
    crate::order::captures::forbid_unsafe(cx)?;
    if p == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // The error for memory that the driver has allocated differs from that for unknown memory.
    let absent = match lock(&BLOCKS).contains_key(&p) {
        true => code::ERROR_INVALID_VALUE,
        false => code::ERROR_HOST_MEMORY_NOT_REGISTERED,
    };
    take(cx, p, Kind::Registered, absent)
}

pub(crate) fn cuMemHostGetDevicePointer_v2(cx: &mut CallContext, p: u64, flags: c_uint) -> Result<sys::CUdeviceptr, Code> {
    let device = cx.device()?;
    device.check()?;
    if flags != 0 || find(p).is_none_or(|f| f.managed) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    note_mapped(cx, p).inspect_err(|_| {
        log::missed("device address of host memory that the GPU's place cannot have there".to_owned());
    })?;
    Ok(p)
}

pub(crate) use cuMemHostRegister_v2 as cuMemHostRegister;

#[cfg(test)]
mod tests;
