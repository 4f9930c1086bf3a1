//! Pinned host memory: memory of the job at addresses of its own, in one memory file, so that a place on this host can map it.
//!
//! It stays where it is through moves. The driver of this process registers it, so it is pinned for that driver too and kernels
//! can use it. A place that does not reach it copies from and to it, until a GPU is known to use its address: from then on the place has
//! a copy there that mirrors it (docs/memory.md, "Pinned memory").

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

/// Where pinned memory lies (docs/memory.md, "Addresses").
use cuda_api::ops::{HOST as ARENA, HOST_END as ARENA_END};
const PAGE: u64 = 4096;
/// Between two blocks of the arena: an address that lies just outside of one is not another's.
const GUARD: u64 = PAGE;
/// Kernels are given addresses just outside of a block, too: its end, or where an array would begin that is counted from one. So far
/// outside an address still stands for the block.
const OUTSIDE: u64 = GUARD / 2;
/// Addresses that something else of the program has may be stepped over so often.
const TRIES: usize = 16;

/// Whose the memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Made by `cuMemHostAlloc`.
    Pinned,
    /// Made by `cuMemAllocManaged`.
    Managed,
    /// A managed variable of code, with which it ends.
    Variable,
    /// The program's own, registered.
    Registered,
    /// The recorder's own, for copies of pageable memory ([`staging`]).
    Staging,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    bytes: u64,
    flags: u32,
    kind: Kind,
    /// It lies in the arena's file, which places of this machine map.
    filed: bool,
    /// In whose context: it ends with that.
    device: u32,
    /// Number of the allocation (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    id: u64,
    known: Known,
}

/// Whether GPUs use a block by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// None is known to.
    Unused,
    /// Its address was found in memory that one place mirrors: others may not have it yet.
    Found,
    /// The program has its device address, or gave that to a GPU: all places have it.
    Everywhere,
    /// It is about to go: whoever names it now does not get it.
    Going,
    /// The program does not know it: a place has it when a copy needs it there.
    Hidden,
}

impl Block {
    fn is_managed(&self) -> bool {
        matches!(self.kind, Kind::Managed | Kind::Variable)
    }

    /// Whether a place's driver is to know it.
    fn belongs_to(&self, place: &Place) -> bool {
        match self.known {
            Known::Hidden => false,
            Known::Unused => !place.is_apart(self.filed),
            _ => true,
        }
    }

    /// Makes a place's driver know it; its first byte is at `at`. Where that lies in the place's order.
    fn pin(&self, place: &Place, at: u64) -> Result<Option<Range<u64>>, Code> {
        // SAFETY: blocks of the table, or about to be; who frees one has said so to all places before.
        unsafe { place.pin(at, self.bytes, self.flags, self.filed) }
    }
}

static BLOCKS: Mutex<BTreeMap<u64, Block>> = Mutex::new(BTreeMap::new());
/// Held while places are told of changes, which takes long; copies only look into the table.
static CHANGING: Mutex<()> = Mutex::new(());
/// End of the highest block in the arena so far: what kernels are given is compared with it.
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

/// Whether there is memory on which atomic operations of a device and the processor are not atomic, with the device at a place: managed memory,
/// which lies with the host, and copies.
pub(crate) fn splits_atomics(place: &Place) -> bool {
    let used = |b: &Block| matches!(b.known, Known::Found | Known::Everywhere);
    lock(&BLOCKS).values().any(|b| b.is_managed() || used(b) && place.is_apart(b.filed))
}

/// A pinned block as pointer attributes describe it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) id: u64,
    pub(crate) managed: bool,
    /// It is a managed variable: no context has it.
    pub(crate) variable: bool,
    /// Ordinal of the device in whose context it was made.
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

/// Whether all of these bytes are pinned: a copy of them may be left to the place.
pub(crate) fn is_pinned(address: u64, bytes: u64) -> bool {
    let blocks = lock(&BLOCKS);
    around(&blocks, address).is_some_and(|(start, b)| bytes <= b.bytes && address - start <= b.bytes - bytes)
}

/// Whether any of these addresses is pinned.
pub(crate) fn touches(range: Range<u64>) -> bool {
    let before_its_end = lock(&BLOCKS).range(..range.end).next_back().map(|(start, b)| start + b.bytes);
    before_its_end.is_some_and(|end| end > range.start)
}

/// Whether the driver of the device's place knows all of these bytes: its copies can use them.
pub(crate) fn is_reached(place: &Place, address: u64, bytes: u64) -> bool {
    let blocks = lock(&BLOCKS);
    let whole = around(&blocks, address).filter(|(start, b)| bytes <= b.bytes && address - start <= b.bytes - bytes);
    whole.is_some_and(|(start, _)| place.has_pinned(start))
}

/// Whether memory at an address is managed.
pub(crate) fn is_managed(address: u64) -> bool {
    (ARENA..HIGHEST.load(Ordering::Relaxed)).contains(&address)
        && around(&lock(&BLOCKS), address).is_some_and(|(_, b)| b.is_managed())
}

/// Where addresses of blocks are or were: in the arena, and elsewhere (registered memory).
fn lands() -> [Range<u64>; 2] {
    let own = LOWEST_OWN.load(Ordering::Relaxed)..HIGHEST_OWN.load(Ordering::Relaxed);
    let around = |land: Range<u64>| if land.is_empty() { land } else { land.start - OUTSIDE..land.end + OUTSIDE };
    [ARENA..HIGHEST.load(Ordering::Relaxed), own].map(around)
}

/// The block that an address stands for: the one that contains it, or the one that it lies just outside of.
fn meant(blocks: &BTreeMap<u64, Block>, address: u64) -> Option<u64> {
    let before = blocks.range(..=address).next_back().filter(|(start, b)| address - **start < b.bytes + OUTSIDE);
    let behind = || blocks.range(address..=address.saturating_add(OUTSIDE)).next();
    before.or_else(behind).map(|(start, _)| *start)
}

/// Whether the arena has been used.
pub(crate) fn any_in_arena() -> bool {
    HIGHEST.load(Ordering::Relaxed) != ARENA
}

/// The memory file of the arena, made at the first use. It never becomes smaller, and nobody who is given it can change that.
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
        // SAFETY: a descriptor that was just made and belongs to no one else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system call on a descriptor of ours.
        let sealed = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL) };
        (sealed == 0).then_some(fd)
    };
    FILE.get_or_init(make).as_ref().map(AsFd::as_fd)
}

/// The arena's file, reaching `end`. `None` if the system does not let it grow: then memory without a file has to do.
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

/// Maps `len` fresh bytes in the arena; tells also whether they lie in its file.
fn map(blocks: &BTreeMap<u64, Block>, len: u64) -> Result<(u64, bool), Code> {
    let mut from = ARENA;
    for _ in 0..TRIES {
        let at = gap(blocks, from, len).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let fd = file_to(at - ARENA + len);
        let kind = if fd.is_some() { libc::MAP_SHARED } else { libc::MAP_SHARED | libc::MAP_ANONYMOUS };
        let offset = if fd.is_some() { (at - ARENA) as libc::off_t } else { 0 };
        // SAFETY: a fresh mapping where nothing is: the flag refuses to replace.
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
            // SAFETY: a kernel that does not know the flag has put it elsewhere; nobody knows of it.
            unsafe { libc::munmap(p, len as usize) };
        } else if std::io::Error::last_os_error().raw_os_error() != Some(libc::EEXIST) {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        from = at + len;
    }
    Err(code::ERROR_OUT_OF_MEMORY)
}

/// Gives a mapping of [`map`] back.
fn unmap(at: u64, len: u64) {
    // SAFETY: mapped by `map` with this length; no block of the table has it any more.
    unsafe { libc::munmap(at as *mut c_void, len as usize) };
    if let Some(file) = file() {
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is open. If it fails the pages stay until the job ends.
        unsafe { libc::fallocate(file.as_raw_fd(), hole, (at - ARENA) as libc::off_t, len as libc::off_t) };
    }
}

/// Makes the places of a block know it as pinned, or none of those that did not. A place that is lost needs to know nothing.
fn pin_everywhere(cx: &CallContext, at: u64, block: &Block, fresh: bool) -> Result<(), Code> {
    let mut pinned: Vec<&Place> = Vec::new();
    for device in &cx.job.devices {
        let place = cx.place(device);
        if device.sticky() != 0 || !block.belongs_to(place) || !fresh && place.has_pinned(at) {
            continue;
        }
        match device.record_error(block.pin(place, at)) {
            Ok(span) => {
                // The GPU has nothing more to do.
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

/// Makes the target of a move know exactly the job's pinned memory that is to be there, with its bytes. The gate may be open: what changes
/// meanwhile is seen the next time. `told` has the numbers of the blocks that it was told of the last time.
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

/// Whether a block that a place was told of is still that one: what was freed and made again has other pages, though often the same
/// address and size, and a driver keeps to the pages that it was given.
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
        // A success that gives nothing.
        return write_out(pp, std::ptr::null_mut());
    }
    write_out(pp, make(cx, cx.device()?, bytes as u64, flags, Kind::Pinned)? as *mut c_void)
}

/// Makes a block of this size, in the context of a device.
pub(crate) fn make(cx: &CallContext, device: &Device, bytes: u64, flags: u32, kind: Kind) -> Result<u64, Code> {
    let len = bytes.checked_next_multiple_of(PAGE).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    let _changing = lock(&CHANGING);
    let (at, filed) = map(&lock(&BLOCKS), len)?;
    // Any address in managed memory may be on its way to a kernel in any way.
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

/// Takes a block off the table. The native calls wait for running work, and copies of it may be on their way.
fn take(cx: &mut CallContext, at: u64, kind: Kind, absent: Code) -> Result<(), Code> {
    let known = |blocks: &BTreeMap<u64, Block>| blocks.get(&at).is_some_and(|b| b.kind == kind);
    if !known(&lock(&BLOCKS)) {
        return Err(absent);
    }
    let device = cx.device()?;
    device.check()?;
    // Host memory belongs to no device: errors of other devices are returned by calls on them.
    let _later = PutOff::begin();
    for d in &cx.job.devices {
        if d.index == device.index || d.sticky() == 0 {
            cx.settle(d)?;
        }
    }
    // A place that says that all is done before it has sent the bytes of a copy must not write to what the program makes of the memory later.
    let bytes = lock(&BLOCKS).get(&at).map_or(0, |b| b.bytes);
    cx.pass.outside(|| crate::landing::wait_for(at, bytes));
    // Whoever still names it does not get it.
    lock(&BLOCKS).get_mut(&at).into_iter().for_each(|b| named::set(b, Known::Going));
    place::give_up_memory(page(at));
    let _changing = lock(&CHANGING);
    let block = {
        let mut blocks = lock(&BLOCKS);
        // Looked at again: another thread may have freed it meanwhile.
        if known(&blocks) { blocks.remove(&at) } else { None }.ok_or(absent)?
    };
    ended(cx, at, &block);
    Ok(())
}

/// Frees managed memory; `None` if none begins there.
pub(crate) fn free_managed(cx: &mut CallContext, at: u64) -> Option<Result<(), Code>> {
    let managed = lock(&BLOCKS).get(&at).is_some_and(|b| b.kind == Kind::Managed);
    managed.then(|| take(cx, at, Kind::Managed, code::ERROR_INVALID_VALUE))
}

/// Ends all pinned memory of a device's context, in which nothing runs. Variables end with their code.
pub(crate) fn end_all(cx: &CallContext, device: &Device) {
    end_those(cx, |_, b| b.device == device.index && b.kind != Kind::Variable);
}

/// Ends the variables at these addresses, which nothing uses any more.
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
    // Bytes of copies, also of other devices, may be on their way to it, and must not be written to what is made of the memory later.
    cx.pass.outside(|| going.iter().for_each(|(at, bytes)| crate::landing::wait_for(*at, *bytes)));
    going.iter().for_each(|(at, _)| place::give_up_memory(page(*at)));
    let _changing = lock(&CHANGING);
    let goes = |at: &u64, b: &mut Block| b.known == Known::Going && goes(*at, b);
    let gone: Vec<(u64, Block)> = lock(&BLOCKS).extract_if(.., goes).collect();
    gone.iter().for_each(|(at, block)| ended(cx, *at, block));
}

/// A block is off the table.
fn ended(cx: &CallContext, at: u64, block: &Block) {
    // The GPU has nothing more to do.
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
    // Of what it was made with only this is told (measured); the driver maps everything that it can.
    cx.device()?;
    write_out(flags, found & WRITE_COMBINED | DEVICE_MAP)
}

/// Whether the program has memory in all pages of a range.
fn has_pages(at: u64, bytes: u64) -> bool {
    let start = at & !(PAGE - 1);
    let len = (at + bytes).next_multiple_of(PAGE) - start;
    let mut seen = vec![0u8; (len / PAGE) as usize];
    // SAFETY: the vector has a byte for each page; the range is only looked at.
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
    // Memory that the driver has made is another error than memory that it does not know.
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
