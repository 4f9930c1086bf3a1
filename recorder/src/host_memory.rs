//! Pinned host memory: memory of the job in a reserved range of addresses, backed by one memory file that a place on this host can map.
//!
//! It stays where it is through moves. The driver of this process registers it, so it is pinned for that driver too and kernels can use
//! it. A place that does not share it transfers its contents by copies, until a GPU is known to use its address: from then on the place
//! has a copy that mirrors it (docs/memory.md, "Pinned memory").

use crate::context::write_out;
use crate::enter::{CallContext, older};
use crate::job::{Device, PutOff};
use crate::log::{self, lock};
use crate::mover::error::MoveError;
use crate::place::{self, Place};
use cuda_api::code::{self, Code};
use cuda_api::sys;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

mod mirror;
mod named;
mod staging;

pub(crate) use mirror::is_needed as copies_are_needed;
pub(crate) use named::{
    all_have_all, any_mapped, any_unmapped, is_mapped, may_be_named, may_be_named_at, named_by, named_in, note_copied,
    note_found, note_mapped, note_words,
};

pub(crate) use staging::{HALF, Slots, give_slots, take_slots};

/// The range of addresses for pinned memory (docs/memory.md, "Addresses").
use cuda_api::ops::{HOST as ARENA, HOST_END as ARENA_END};
const PAGE: u64 = 4096;
/// Gap between two blocks of the arena, so that an address just outside of one block is not in another.
const GUARD: u64 = PAGE;
/// How far outside a block an address still refers to it. Kernels also receive addresses just outside of a block: its end, or the base of
/// an array that is indexed from one.
const OUTSIDE: u64 = GUARD / 2;
/// How often an attempt to map memory may meet addresses that the program uses for something else.
const TRIES: usize = 16;

/// How host memory was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Created by `cuMemHostAlloc`.
    Pinned,
    /// Created by `cuMemAllocManaged`.
    Managed,
    /// A managed variable of a module, destroyed with it.
    Variable,
    /// Memory of the program that it registered.
    Registered,
    /// Staging memory of the recorder, for copies of pageable memory ([`staging`]).
    Staging,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    bytes: u64,
    flags: u32,
    kind: Kind,
    /// Whether it lies in the arena's file, which places of this machine map.
    filed: bool,
    /// The device whose context it belongs to; it is freed with that context.
    device: u32,
    /// Number of the allocation (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    id: u64,
    known: Known,
}

/// What is known about the use of a block's address by GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// No GPU is known to use it.
    Unused,
    /// The address was found in memory that one place mirrors: other places may not have the block yet.
    Found,
    /// The program has its device address, or has passed it to a GPU: all places have the block.
    Everywhere,
    /// It is about to be freed: it is no longer given to places when its address is found.
    Going,
    /// Hidden from the program: a place gets it when a copy there needs it.
    Hidden,
}

impl Block {
    fn is_managed(&self) -> bool {
        matches!(self.kind, Kind::Managed | Kind::Variable)
    }

    /// Returns whether a place's driver must know the block.
    fn belongs_to(&self, place: &Place) -> bool {
        match self.known {
            Known::Hidden => false,
            Known::Unused => !place.is_apart(self.filed),
            _ => true,
        }
    }

    /// Registers the block, which begins at `at`, with a place's driver. Returns the position of that call in the place's order.
    fn pin(&self, place: &Place, at: u64) -> Result<Option<Range<u64>>, Code> {
        // SAFETY: the block is in the table or about to be added; before a block is freed, all places are told.
        unsafe { place.pin(at, self.bytes, self.flags, self.filed) }
    }
}

static BLOCKS: Mutex<BTreeMap<u64, Block>> = Mutex::new(BTreeMap::new());
/// Held while places are informed of changes, which takes long; copies only read the table.
static CHANGING: Mutex<()> = Mutex::new(());
/// End of the highest block in the arena so far, for comparison with kernel parameters.
static HIGHEST: AtomicU64 = AtomicU64::new(ARENA);
/// Start of the lowest and end of the highest registered block so far.
static LOWEST_OWN: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST_OWN: AtomicU64 = AtomicU64::new(0);

/// `CU_MEMHOSTALLOC_PORTABLE | DEVICEMAP | WRITECOMBINED`.
const ALLOC_FLAGS: u32 = 7;
/// `CU_MEMHOSTREGISTER_PORTABLE | DEVICEMAP | IOMEMORY | READ_ONLY`.
const REGISTER_FLAGS: u32 = 15;
/// `CU_MEMHOSTALLOC_DEVICEMAP`
const DEVICE_MAP: u32 = 2;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`
const WRITE_COMBINED: u32 = 4;
const IO_MEMORY: u32 = 4;
const READ_ONLY: u32 = 8;

/// Returns whether, for a device at `place`, there is memory on which atomic operations of device and processor are not atomic with
/// respect to each other: managed memory, which lies in host memory, and mirrored copies.
pub(crate) fn splits_atomics(place: &Place) -> bool {
    let used = |b: &Block| matches!(b.known, Known::Found | Known::Everywhere);
    lock(&BLOCKS).values().any(|b| b.is_managed() || used(b) && place.is_apart(b.filed))
}

/// A pinned block, with what pointer attributes report about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) id: u64,
    pub(crate) managed: bool,
    /// Whether it is a managed variable, which belongs to no context.
    pub(crate) variable: bool,
    /// Ordinal of the device in whose context it was allocated.
    pub(crate) device: u32,
}

/// The page of an address.
pub(crate) fn page(at: u64) -> u64 {
    at & !(PAGE - 1)
}

fn around(blocks: &BTreeMap<u64, Block>, address: u64) -> Option<(u64, &Block)> {
    let (&start, b) = blocks.range(..=address).next_back()?;
    (address - start < b.bytes).then_some((start, b))
}

/// The pinned block that contains `address`.
pub(crate) fn find(address: u64) -> Option<Found> {
    around(&lock(&BLOCKS), address).map(|(start, b)| Found {
        start,
        bytes: b.bytes,
        id: b.id,
        managed: b.is_managed(),
        variable: b.kind == Kind::Variable,
        device: b.device,
    })
}

/// Returns whether all of these bytes are pinned, so that a copy of them may be left to the place.
pub(crate) fn is_pinned(address: u64, bytes: u64) -> bool {
    let blocks = lock(&BLOCKS);
    around(&blocks, address).is_some_and(|(start, b)| bytes <= b.bytes && address - start <= b.bytes - bytes)
}

/// Returns whether any of these addresses is pinned.
pub(crate) fn touches(range: Range<u64>) -> bool {
    let before_its_end = lock(&BLOCKS).range(..range.end).next_back().map(|(start, b)| start + b.bytes);
    before_its_end.is_some_and(|end| end > range.start)
}

/// Returns whether the driver of the device's place knows all of these bytes, so that its copies can use them.
pub(crate) fn is_reached(place: &Place, address: u64, bytes: u64) -> bool {
    let blocks = lock(&BLOCKS);
    let whole = around(&blocks, address).filter(|(start, b)| bytes <= b.bytes && address - start <= b.bytes - bytes);
    whole.is_some_and(|(start, _)| place.has_pinned(start))
}

/// Returns whether the memory at an address is managed.
pub(crate) fn is_managed(address: u64) -> bool {
    (ARENA..HIGHEST.load(Ordering::Relaxed)).contains(&address)
        && around(&lock(&BLOCKS), address).is_some_and(|(_, b)| b.is_managed())
}

/// The ranges in which blocks have been: the arena, and the range of registered memory.
fn lands() -> [Range<u64>; 2] {
    let own = LOWEST_OWN.load(Ordering::Relaxed)..HIGHEST_OWN.load(Ordering::Relaxed);
    let around = |land: Range<u64>| if land.is_empty() { land } else { land.start - OUTSIDE..land.end + OUTSIDE };
    [ARENA..HIGHEST.load(Ordering::Relaxed), own].map(around)
}

/// The block that an address refers to: the one that contains it, or the one that it lies just outside of.
fn meant(blocks: &BTreeMap<u64, Block>, address: u64) -> Option<u64> {
    let before = blocks.range(..=address).next_back().filter(|(start, b)| address - **start < b.bytes + OUTSIDE);
    let behind = || blocks.range(address..=address.saturating_add(OUTSIDE)).next();
    before.or_else(behind).map(|(start, _)| *start)
}

/// Returns whether the arena has been used.
pub(crate) fn any_in_arena() -> bool {
    HIGHEST.load(Ordering::Relaxed) != ARENA
}

/// The memory file of the arena, created at the first use. It is sealed against shrinking, for every process that gets its descriptor.
/// `None` if the system does not have such files.
pub(crate) fn file() -> Option<BorrowedFd<'static>> {
    static FILE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let make = || {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a NUL-terminated name and valid flags.
        let fd = unsafe { libc::memfd_create(c"mrcuda pinned memory".as_ptr(), flags) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a descriptor that was just created and that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system call on a descriptor of the recorder.
        let sealed = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL) };
        (sealed == 0).then_some(fd)
    };
    FILE.get_or_init(make).as_ref().map(AsFd::as_fd)
}

/// The arena's file, extended to `end`. `None` if the system does not let it grow: then memory without a file is used.
fn file_to(end: u64) -> Option<i32> {
    static REACHES: Mutex<u64> = Mutex::new(0);
    let fd = file()?.as_raw_fd();
    let mut reaches = lock(&REACHES);
    if *reaches < end {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the struct is writable. A file that may not grow so far would raise a signal.
        if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 || limit.rlim_cur < end {
            return None;
        }
        // SAFETY: the descriptor is open. A worker that had made the file longer would only harm its own job: this fails then.
        if unsafe { libc::ftruncate(fd, libc::off_t::try_from(end).ok()?) } != 0 {
            return None;
        }
        *reaches = end;
    }
    Some(fd)
}

/// The lowest gap of `len` bytes in the arena above `from`.
fn gap(blocks: &BTreeMap<u64, Block>, from: u64, len: u64) -> Option<u64> {
    let mut at = from;
    for (start, b) in blocks.range(from..ARENA_END) {
        if start - at >= len + GUARD {
            break;
        }
        at = start + b.bytes.next_multiple_of(PAGE) + GUARD;
    }
    (at.checked_add(len)? <= ARENA_END).then_some(at)
}

/// Maps `len` fresh bytes in the arena; also returns whether they lie in its file.
fn map(blocks: &BTreeMap<u64, Block>, len: u64) -> Result<(u64, bool), Code> {
    let mut from = ARENA;
    for _ in 0..TRIES {
        let at = gap(blocks, from, len).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let fd = file_to(at - ARENA + len);
        let kind = if fd.is_some() { libc::MAP_SHARED } else { libc::MAP_SHARED | libc::MAP_ANONYMOUS };
        let offset = if fd.is_some() { (at - ARENA) as libc::off_t } else { 0 };
        // SAFETY: a fresh mapping at unused addresses: the flag refuses to replace a mapping.
        let p = unsafe {
            libc::mmap(
                at as *mut c_void,
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                kind | libc::MAP_FIXED_NOREPLACE,
                fd.unwrap_or(-1),
                offset,
            )
        };
        if p as u64 == at {
            return Ok((at, fd.is_some()));
        }
        if p != libc::MAP_FAILED {
            // SAFETY: a kernel that does not know the flag has mapped it elsewhere; nothing refers to that mapping.
            unsafe { libc::munmap(p, len as usize) };
        } else if std::io::Error::last_os_error().raw_os_error() != Some(libc::EEXIST) {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        from = at + len;
    }
    Err(code::ERROR_OUT_OF_MEMORY)
}

/// Releases a mapping of [`map`].
fn unmap(at: u64, len: u64) {
    // SAFETY: mapped by `map` with this length; no block of the table contains it any more.
    unsafe { libc::munmap(at as *mut c_void, len as usize) };
    if let Some(file) = file() {
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is open. If it fails the pages stay until the job ends.
        unsafe { libc::fallocate(file.as_raw_fd(), hole, (at - ARENA) as libc::off_t, len as libc::off_t) };
    }
}

/// Registers a block as pinned with all places that need it; on failure unregisters it from those that did not have it before. Lost
/// places are skipped.
fn pin_everywhere(cx: &CallContext, at: u64, block: &Block, fresh: bool) -> Result<(), Code> {
    let mut pinned: Vec<&Place> = Vec::new();
    for device in &cx.job.devices {
        let place = cx.place(device);
        if device.sticky() != 0 || !block.belongs_to(place) || !fresh && place.has_pinned(at) {
            continue;
        }
        match device.record_error(block.pin(place, at)) {
            Ok(span) => {
                // The call gave the GPU no work.
                device.still_quiet(span);
                pinned.push(place);
            }
            Err(rc) if rc == code::ERROR_DEVICE_UNAVAILABLE && device.index != block.device => {}
            Err(rc) => {
                for place in pinned {
                    place.unpin(at);
                }
                return Err(rc);
            }
        }
    }
    Ok(())
}

/// Makes the pinned memory that the target of a move knows equal to the job's, contents included. The gate may be open: changes made
/// meanwhile are transferred by the next call. `told` has the numbers of the blocks that the target knew after the last call.
pub(crate) fn settle(place: &Place, told: &mut BTreeMap<u64, u64>) -> Result<(), MoveError> {
    let _changing = lock(&CHANGING);
    if copies_are_needed() && place.maps_file() {
        mirror::leave_file(place)?;
    }
    let mut has = place.pinned();
    let blocks = lock(&BLOCKS).clone();
    has.retain(|(at, bytes)| {
        let same = is_same(*at, *bytes, &blocks, told);
        if !same {
            place.unpin(*at);
        }
        same
    });
    for (at, b) in blocks.iter().filter(|(at, b)| b.belongs_to(place) && !has.contains(&(**at, b.bytes))) {
        b.pin(place, *at).map_err(|error| MoveError::HostMemory { error, bytes: b.bytes })?;
    }
    *told = blocks.into_iter().map(|(at, b)| (at, b.id)).collect();
    place.tell_changes().map_err(|_| MoveError::PlaceLost(None))
}

/// Returns whether a block that a place knows is still the same: memory that was freed and allocated again has other pages, though often
/// the same address and size, and a driver keeps using the pages that it registered.
fn is_same(at: u64, bytes: u64, blocks: &BTreeMap<u64, Block>, told: &BTreeMap<u64, u64>) -> bool {
    blocks.get(&at).is_some_and(|b| b.bytes == bytes && told.get(&at) == Some(&b.id))
}

fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 32);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn allocate(cx: &mut CallContext, pp: *mut *mut c_void, bytes: usize, flags: u32) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    cx.device()?.check()?;
    if pp.is_null() || flags & !ALLOC_FLAGS != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if bytes == 0 {
        // An allocation of zero bytes succeeds with a null pointer.
        return write_out(pp, std::ptr::null_mut());
    }
    write_out(pp, make(cx, cx.device()?, bytes as u64, flags, Kind::Pinned)? as *mut c_void)
}

/// Allocates a block of this size in the context of a device.
pub(crate) fn make(cx: &CallContext, device: &Device, bytes: u64, flags: u32, kind: Kind) -> Result<u64, Code> {
    let len = bytes.checked_next_multiple_of(PAGE).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    let _changing = lock(&CHANGING);
    let (at, filed) = map(&lock(&BLOCKS), len)?;
    // Kernels may receive addresses in managed memory in any way.
    let known = if matches!(kind, Kind::Managed | Kind::Variable) { Known::Everywhere } else { Known::Unused };
    let block = Block { bytes, flags, kind, filed, device: device.index, id: number(), known };
    if let Err(rc) = pin_everywhere(cx, at, &block, true) {
        unmap(at, len);
        return Err(rc);
    }
    named::add(at, block);
    HIGHEST.fetch_max(at + len, Ordering::Relaxed);
    crate::system_atomics::memory_changed(cx);
    Ok(at)
}

pub(crate) fn cuMemAllocHost_v2(cx: &mut CallContext, pp: *mut *mut c_void, bytesize: usize) -> Result<(), Code> {
    allocate(cx, pp, bytesize, 0)
}

pub(crate) fn cuMemHostAlloc(cx: &mut CallContext, pp: *mut *mut c_void, bytesize: usize, flags: c_uint) -> Result<(), Code> {
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
    cx.pass.outside(|| crate::landing::wait_for(at, bytes));
    // From now on the block is not given to places when its address is found.
    lock(&BLOCKS).get_mut(&at).into_iter().for_each(|b| named::set(b, Known::Going));
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
            named::set(b, Known::Going);
            (*at, b.bytes)
        };
        those.map(give_up).collect()
    };
    // Bytes of copies, also of other devices, may still be arriving and must not be written to later allocations here.
    cx.pass.outside(|| going.iter().for_each(|(at, bytes)| crate::landing::wait_for(*at, *bytes)));
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
    unmap(at, block.bytes.next_multiple_of(PAGE));
}

pub(crate) fn cuMemFreeHost(cx: &mut CallContext, p: *mut c_void) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    if p.is_null() {
        return Ok(());
    }
    take(cx, p as u64, Kind::Pinned, code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuMemHostGetFlags(cx: &mut CallContext, flags: *mut c_uint, p: *mut c_void) -> Result<(), Code> {
    let found = around(&lock(&BLOCKS), p as u64)
        .map(|(_, b)| if b.is_managed() { 0 } else { b.flags })
        .ok_or(code::ERROR_INVALID_VALUE)?;
    // Of the flags only this one is reported (measured); the driver maps everything that it can.
    cx.device()?;
    write_out(flags, found & WRITE_COMBINED | DEVICE_MAP)
}

/// Returns whether all pages of a range are mapped in the program.
fn has_pages(at: u64, bytes: u64) -> bool {
    let start = at & !(PAGE - 1);
    let len = (at + bytes).next_multiple_of(PAGE) - start;
    let mut seen = vec![0u8; (len / PAGE) as usize];
    // SAFETY: the vector has a byte for each page; the call does not access the range.
    unsafe { libc::mincore(start as *mut c_void, len as usize, seen.as_mut_ptr()) == 0 }
}

pub(crate) fn cuMemHostRegister_v2(cx: &mut CallContext, p: *mut c_void, bytesize: usize, flags: c_uint) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    let device = cx.device()?;
    device.check()?;
    let (start, bytes) = (p as u64, bytesize as u64);
    let end = start.checked_add(bytes).and_then(|e| e.checked_next_multiple_of(PAGE));
    if p.is_null() || bytes == 0 || flags & !REGISTER_FLAGS != 0 || end.is_none() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if flags & IO_MEMORY != 0 {
        log::missed("registering memory of other devices".to_owned());
        return Err(code::ERROR_NOT_PERMITTED);
    }
    let read_only = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED as u32;
    if flags & READ_ONLY != 0 && crate::device::attribute(device, read_only) != Some(1) {
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
    let block =
        Block { bytes, flags, kind: Kind::Registered, filed: false, device: device.index, id: number(), known: Known::Unused };
    pin_everywhere(cx, start, &block, true)?;
    named::add(start, block);
    LOWEST_OWN.fetch_min(start, Ordering::Relaxed);
    HIGHEST_OWN.fetch_max(start + bytes, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuMemHostUnregister(cx: &mut CallContext, p: *mut c_void) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    if p.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // The error for memory that the driver has allocated differs from that for unknown memory.
    let absent = match lock(&BLOCKS).contains_key(&(p as u64)) {
        true => code::ERROR_INVALID_VALUE,
        false => code::ERROR_HOST_MEMORY_NOT_REGISTERED,
    };
    take(cx, p as u64, Kind::Registered, absent)
}

pub(crate) fn cuMemHostGetDevicePointer_v2(
    cx: &mut CallContext,
    to: *mut sys::CUdeviceptr,
    p: *mut c_void,
    flags: c_uint,
) -> Result<(), Code> {
    let device = cx.device()?;
    device.check()?;
    if to.is_null() || flags != 0 || find(p as u64).is_none_or(|f| f.managed) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    note_mapped(cx, p as u64).inspect_err(|_| {
        log::missed("device address of host memory that the GPU's place cannot have there".to_owned());
    })?;
    write_out(to, p as u64)
}

older! {
    cuMemHostRegister = cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: c_uint);
}

#[cfg(test)]
mod tests;
