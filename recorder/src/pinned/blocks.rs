//! The table of pinned memory: blocks of the arena, and memory that the program has registered.

use crate::base::log::lock;
use crate::pinned::slabs::{self, Slabs};
use cuda_api::address_map::{HOST as ARENA, HOST_END as ARENA_END, SLOT, slot};
use cuda_api::code::{self, Code};
use cuda_api::ops::Slab;
use faults::Faults;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

pub(crate) use crate::pinned::PAGE;

/// Gap between two blocks of the arena, so that an address just outside of one block is not in another.
const GUARD: u64 = PAGE;

/// How far outside a block an address still refers to it. Kernels also receive addresses just outside of a block: its end, or the base of
/// an array that is indexed from one.
pub(crate) const OUTSIDE: u64 = GUARD / 2;

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
    /// Staging memory of the recorder, for copies of pageable memory ([`crate::host_memory`]).
    Staging,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) bytes: u64,
    pub(crate) flags: u32,
    pub(crate) kind: Kind,
    /// Whether it lies in the arena's file, which places of this machine map.
    pub(crate) filed: bool,
    /// The slab that contains it; of no bytes if its memory is its own.
    pub(crate) slab: Slab,
    /// Whether it is managed memory that the program's host does not touch while kernels run: it has a [slot] of addresses of its own, and a
    /// place that mirrors it may have it in its GPU's memory.
    pub(crate) exclusive: bool,
    /// The device whose context it belongs to; it is freed with that context.
    pub(crate) device: u32,
    /// Number of the allocation (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub(crate) id: u64,
    pub(crate) known: Known,
}

/// What is known about the use of a block's address by GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
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
    /// Whether a place gets it when its address is found there.
    pub(crate) fn can_be_given(&self) -> bool {
        !matches!(self.known, Known::Going | Known::Hidden)
    }

    pub(crate) fn is_managed(&self) -> bool {
        matches!(self.kind, Kind::Managed | Kind::Variable)
    }

    /// Start and end of the addresses that are used for it, given where it begins.
    fn mapping(&self, at: u64) -> (u64, u64) {
        match self.slab.bytes {
            // Addresses of its slot are not for other blocks.
            0 if self.exclusive => (at, at + slot(self.bytes).unwrap_or(self.bytes)),
            0 => (at, at + self.bytes.next_multiple_of(PAGE)),
            bytes => (self.slab.address, self.slab.address + bytes),
        }
    }
}

pub(crate) static BLOCKS: Mutex<BTreeMap<u64, Block>> = Mutex::new(BTreeMap::new());

/// Held while places are informed of changes, which takes long; copies only read the table.
pub(crate) static CHANGING: Mutex<()> = Mutex::new(());

/// End of the highest block in the arena so far, for comparison with kernel parameters.
#[unsafe(link_section = "mrcuda_hot")]
pub(crate) static HIGHEST: AtomicU64 = AtomicU64::new(ARENA);

/// Start of the lowest and end of the highest registered block so far.
#[unsafe(link_section = "mrcuda_hot")]
pub(crate) static LOWEST_OWN: AtomicU64 = AtomicU64::new(u64::MAX);

#[unsafe(link_section = "mrcuda_hot")]
pub(crate) static HIGHEST_OWN: AtomicU64 = AtomicU64::new(0);

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

pub(crate) fn around(blocks: &BTreeMap<u64, Block>, address: u64) -> Option<(u64, &Block)> {
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

/// Returns whether the memory at an address is the program's, which has registered it.
pub(crate) fn is_registered(address: u64) -> bool {
    around(&lock(&BLOCKS), address).is_some_and(|(_, b)| b.kind == Kind::Registered)
}

/// Returns whether any of these addresses is pinned.
pub(crate) fn touches(range: Range<u64>) -> bool {
    let before_its_end = lock(&BLOCKS).range(..range.end).next_back().map(|(start, b)| start + b.bytes);
    before_its_end.is_some_and(|end| end > range.start)
}

/// Returns whether the memory at an address is managed.
pub(crate) fn is_managed(address: u64) -> bool {
    (ARENA..HIGHEST.load(Ordering::Relaxed)).contains(&address)
        && around(&lock(&BLOCKS), address).is_some_and(|(_, b)| b.is_managed())
}

/// The ranges in which blocks have been: the arena, and the range of registered memory.
pub(crate) fn lands() -> [Range<u64>; 2] {
    let own = LOWEST_OWN.load(Ordering::Relaxed)..HIGHEST_OWN.load(Ordering::Relaxed);
    let around = |land: Range<u64>| if land.is_empty() { land } else { land.start - OUTSIDE..land.end + OUTSIDE };
    [ARENA..HIGHEST.load(Ordering::Relaxed), own].map(around)
}

/// The block that an address refers to: the one that contains it, or the one that it lies just outside of.
pub(crate) fn meant(blocks: &BTreeMap<u64, Block>, address: u64) -> Option<u64> {
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

/// The lowest gap of `len` bytes in the arena above `from`, at a multiple of `align`.
pub(crate) fn gap(blocks: &BTreeMap<u64, Block>, from: u64, len: u64, align: u64) -> Option<u64> {
    let mut at = from.checked_next_multiple_of(align)?;
    for (start, end) in blocks.range(from..ARENA_END).map(|(at, b)| b.mapping(*at)) {
        // Of several blocks in a slab each has the slab as its mapping.
        if start.saturating_sub(at) >= len + GUARD {
            break;
        }
        at = (end + GUARD).checked_next_multiple_of(align)?;
    }
    (at.checked_add(len)? <= ARENA_END).then_some(at)
}

/// Memory for a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) at: u64,
    pub(crate) filed: bool,
    pub(crate) slab: Slab,
}

static SLABS: Mutex<Slabs> = Mutex::new(Slabs::new());

/// Memory for a block of so many bytes, all zero: pages of its own or of a slab. The caller holds [`CHANGING`] until the block is in the
/// table.
pub(crate) fn provide(blocks: &BTreeMap<u64, Block>, bytes: u64) -> Result<Memory, Code> {
    let len = bytes.checked_next_multiple_of(PAGE).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    let mut slabs = lock(&SLABS);
    loop {
        match slabs.place(bytes, Faults::from_env().slabs) {
            slabs::Place::Alone => break,
            slabs::Place::In(block) => {
                if block.used {
                    // SAFETY: these pages of a mapped slab are the new block's; nothing uses them any more.
                    unsafe { std::ptr::write_bytes(block.at as *mut u8, 0, len as usize) };
                }
                return Ok(Memory { at: block.at, filed: block.filed, slab: block.slab });
            }
            slabs::Place::Map(size) => match map(blocks, size) {
                Ok((address, filed)) => slabs.add(Slab { address, bytes: size, number: number() }, filed),
                // The block may still fit.
                Err(_) => {
                    slabs.alone();
                    break;
                }
            },
        }
    }
    drop(slabs);
    match map(blocks, len) {
        Ok((at, filed)) => Ok(Memory { at, filed, slab: Slab::default() }),
        Err(rc) => {
            lock(&SLABS).release(0, bytes, Slab::default(), false);
            Err(rc)
        }
    }
}

/// As [`provide`], for a block in a [slot] of its own.
pub(crate) fn provide_slot(blocks: &BTreeMap<u64, Block>, bytes: u64) -> Result<Memory, Code> {
    let room = slot(bytes).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    let (at, filed) = map_in(blocks, bytes.next_multiple_of(PAGE), (room, SLOT))?;
    Ok(Memory { at, filed, slab: Slab::default() })
}

/// Takes back memory of [`provide`] or [`provide_slot`]; no block of the table contains it any more. `retire`: a GPU may still write to it, so no other block
/// gets these pages.
pub(crate) fn release(at: u64, bytes: u64, slab: Slab, retire: bool) {
    let empty = lock(&SLABS).release(at, bytes, slab, retire);
    match empty {
        Some(slab) => unmap(slab.address, slab.bytes),
        None if slab.bytes == 0 => unmap(at, bytes.next_multiple_of(PAGE)),
        None => {}
    }
}

/// Maps `len` fresh bytes in the arena; also returns whether they lie in its file.
pub(crate) fn map(blocks: &BTreeMap<u64, Block>, len: u64) -> Result<(u64, bool), Code> {
    map_in(blocks, len, (len, PAGE))
}

/// As [`map`], at the beginning of a gap of `room` bytes at a multiple of `align`.
fn map_in(blocks: &BTreeMap<u64, Block>, len: u64, (room, align): (u64, u64)) -> Result<(u64, bool), Code> {
    let mut from = ARENA;
    for _ in 0..TRIES {
        let at = gap(blocks, from, room, align).ok_or(code::ERROR_OUT_OF_MEMORY)?;
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
        from = at + room;
    }
    Err(code::ERROR_OUT_OF_MEMORY)
}

/// Releases a mapping of [`map`]. The caller holds [`CHANGING`]: a new mapping in between would find the old bytes, and lose its own.
pub(crate) fn unmap(at: u64, len: u64) {
    // SAFETY: mapped by `map` with this length; no block of the table contains it any more.
    unsafe { libc::munmap(at as *mut c_void, len as usize) };
    if let Some(file) = file() {
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is open. If it fails the pages stay until the job ends.
        unsafe { libc::fallocate(file.as_raw_fd(), hole, (at - ARENA) as libc::off_t, len as libc::off_t) };
    }
}

pub(crate) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 32);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Whether GPUs use registered memory by its address: then places of this machine that are opened later do not map the file.
pub(crate) static NEEDED: AtomicBool = AtomicBool::new(false);

/// Returns whether places of this machine must mirror pinned memory.
pub(crate) fn is_needed() -> bool {
    NEEDED.load(Ordering::Acquire)
}
