//! Host memory of the job that the driver of the place knows as pinned: kernels use it by its address, and copies of it are the
//! driver's own.
//!
//! In the job's process it is there. A worker of the same machine has the file of the job's pinned memory and maps the parts that
//! the job names, at their addresses. The job can write to them at any time; it cannot take them away, because the file cannot
//! shrink. A worker that does not reach the memory has memory of its own at the same addresses; both sides tell each other what they
//! change ([`crate::host_mirror`]).

use super::{Executor, short};
use crate::host_mirror::{LINE_BYTES, Line, Twins};
use crate::limits::{MOST_PINNED, tell_once};
use crate::pools::lock;
use crate::steer::RESERVED_END;
use cuda_api::code::{self, Code};
use cuda_api::ops::{HOST, HOST_END, HostPin, VMM};
use cuda_api::wire::Wire;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

const PAGE: u64 = 4096;
/// User space ends here.
const END: u64 = 1 << 47;
/// What a driver takes for itself: no program has host memory there.
const DRIVERS: Range<u64> = 0x2_0000_0000..0x22_0000_0000;
/// A landing copy keeps nobody waiting for longer than this many bytes take.
const PIECE: usize = 1 << 20;

/// What is registered.
#[derive(Debug, Clone, Copy)]
struct Part {
    bytes: u64,
    flags: u32,
    from: From,
}

/// Where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// It was there.
    Here,
    /// The job's file; unmapped with the registration.
    File,
    /// Made here; unmapped with the registration.
    Apart,
}

/// Memory of our own that is kept as the job's.
#[derive(Debug, Default)]
struct Apart {
    twins: Twins,
    /// Messages of the job that were taken over.
    taken: u64,
}

/// The job's pinned memory as an executor has it.
#[derive(Debug, Default)]
pub(crate) struct PinnedMemory {
    /// The job's file, in a worker.
    file: OnceLock<OwnedFd>,
    parts: Mutex<BTreeMap<u64, Part>>,
    /// Bytes of our own memory in it.
    own: AtomicU64,
    /// The job has been told that there is no more room.
    told: AtomicBool,
    apart: Mutex<Apart>,
    /// Whether there is any.
    any_apart: AtomicBool,
    /// The job has named an address for such memory that this process uses itself.
    collided: AtomicBool,
}

impl PinnedMemory {
    /// Writes bytes to memory that is registered; what is not, or not any more, is left alone.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        for (number, piece) in bytes.chunks(PIECE).enumerate() {
            let to = at + (number * PIECE) as u64;
            // SAFETY: mapped while this runs; others that write there do so as they may in the job.
            let copy = || unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to as *mut u8, piece.len()) };
            if !self.while_mapped(to, piece.len(), copy) {
                return;
            }
        }
    }

    /// Reads bytes of memory that is registered; false where that is not all of them.
    pub(super) fn read(&self, at: u64, to: &mut [u8]) -> bool {
        to.chunks_mut(PIECE).enumerate().all(|(number, piece)| {
            let (from, bytes) = (at + (number * PIECE) as u64, piece.len());
            // SAFETY: mapped while this runs; others that write there do so as they may in the job.
            let copy = || unsafe { std::ptr::copy_nonoverlapping(from as *const u8, piece.as_mut_ptr(), bytes) };
            self.while_mapped(from, bytes, copy)
        })
    }

    /// Runs something that uses a range of registered memory; false, and it does not run, if not all of that is registered.
    fn while_mapped(&self, at: u64, bytes: usize, run: impl FnOnce()) -> bool {
        // Held meanwhile: memory is taken out before it is unmapped.
        let parts = lock(&self.parts);
        let whole = inside(&parts, at, bytes as u64) == Some(true);
        if whole {
            run();
        }
        whole
    }
}

/// Whether bytes lie in one of the parts; none if they do not begin in one.
fn inside(parts: &BTreeMap<u64, Part>, at: u64, bytes: u64) -> Option<bool> {
    let (start, part) = parts.range(..=at).next_back().filter(|(start, p)| at - **start < p.bytes)?;
    Some(bytes <= part.bytes - (at - start))
}

/// The whole pages around a range.
fn pages(at: u64, bytes: u64) -> (u64, u64) {
    let start = at & !(PAGE - 1);
    (start, (at + bytes).next_multiple_of(PAGE) - start)
}

/// Why memory was not mapped where it was wanted.
#[derive(Debug, PartialEq, Eq)]
enum NotMapped {
    /// Something is there.
    Taken,
    /// The system refuses.
    Refused,
}

impl std::convert::From<NotMapped> for Code {
    fn from(_: NotMapped) -> Code {
        code::ERROR_OUT_OF_MEMORY
    }
}

/// Maps fresh pages at an address, where nothing else may be.
fn map_apart(at: u64, bytes: u64) -> Result<(), NotMapped> {
    let (start, len) = pages(at, bytes);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping where nothing is: the flag refuses to replace.
    let p = unsafe { libc::mmap(start as *mut c_void, len as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    there_or_nowhere(p, start, len)
}

/// Whether a mapping was made where it was wanted; elsewhere it is of no use.
fn there_or_nowhere(p: *mut c_void, at: u64, len: u64) -> Result<(), NotMapped> {
    if p == libc::MAP_FAILED {
        let taken = io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST);
        return Err(if taken { NotMapped::Taken } else { NotMapped::Refused });
    }
    if p as u64 != at {
        // SAFETY: a kernel that does not know the flag has put it elsewhere; nobody knows of it.
        unsafe { libc::munmap(p, len as usize) };
        return Err(NotMapped::Taken);
    }
    Ok(())
}

fn unmap(at: u64, bytes: u64) {
    let (start, len) = pages(at, bytes);
    // SAFETY: mapped by `map` or `map_apart` with this length; the driver does not use it any more.
    unsafe { libc::munmap(start as *mut c_void, len as usize) };
}

/// Maps a part of the file at its address, where nothing else may be.
fn map(file: &OwnedFd, at: u64, bytes: u64) -> Result<(), Code> {
    // SAFETY: all-zero is a valid stat, which the call fills.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is writable.
    let known = unsafe { libc::fstat(file.as_raw_fd(), &raw mut about) } == 0;
    let (offset, len) = (at - HOST, bytes.next_multiple_of(PAGE));
    // An access beyond the end would kill us.
    if !known || u64::try_from(about.st_size).map_or(true, |size| size < offset + len) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: a fresh mapping where nothing is: the flag refuses to replace.
    let p = unsafe { libc::mmap(at as *mut c_void, len as usize, prot, flags, file.as_raw_fd(), offset as libc::off_t) };
    Ok(there_or_nowhere(p, at, len)?)
}

impl Executor {
    /// Takes the file of the job's pinned memory, for an executor outside its process.
    ///
    /// # Errors
    /// `InvalidData` if it is no memory file, or one that could become smaller.
    pub fn set_pinned_file(&self, file: OwnedFd) -> io::Result<()> {
        // SAFETY: plain system call; what is no memfd has no seals.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || self.pinned.file.set(file).is_err() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the job's pinned memory is not what it should be"));
        }
        Ok(())
    }

    /// Registers host memory of the job, for an executor in its process: copies from and to it are then asynchronous, and kernels
    /// can use it at the same address. `flags` as of `cuMemHostRegister`; those of `cuMemHostAlloc` are among them but one.
    ///
    /// # Errors
    /// What the driver says; `NOT_SUPPORTED` if the GPU sees the memory at another address.
    pub fn pin_host(&self, at: u64, bytes: u64, flags: u32) -> Result<(), Code> {
        self.register_host(at, Part { bytes, flags, from: From::Here })
    }

    fn register_host(&self, at: u64, part: Part) -> Result<(), Code> {
        self.make_current()?;
        self.gpu.register(at, part.bytes, part.flags)?;
        if self.gpu.device_pointer(at) != Ok(at) {
            // The refusal is the error to report.
            let _ = self.gpu.unregister(at);
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        lock(&self.pinned.parts).insert(at, part);
        if part.from == From::Apart {
            self.pinned.own.fetch_add(pages(at, part.bytes).1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes back what was registered at this address, if anything was; nothing uses the memory any more.
    pub fn unpin_host(&self, at: u64) {
        let Some(part) = lock(&self.pinned.parts).remove(&at) else { return };
        if self.make_current().is_ok() {
            self.forget(at, part);
        }
    }

    fn forget(&self, at: u64, part: Part) {
        // Fails only when the context has ended, and the registration with it.
        let _ = self.gpu.unregister(at);
        if part.from == From::Apart {
            self.pinned.own.fetch_sub(pages(at, part.bytes).1, Ordering::Relaxed);
            let mut apart = lock(&self.pinned.apart);
            apart.twins.remove(pages(at, part.bytes).0);
            self.pinned.any_apart.store(!apart.twins.is_empty(), Ordering::Release);
        }
        if part.from != From::Here {
            unmap(at, part.bytes);
        }
    }

    /// Address and bytes of what is registered.
    pub fn pinned_host(&self) -> Vec<(u64, u64)> {
        lock(&self.pinned.parts).iter().map(|(at, part)| (*at, part.bytes)).collect()
    }

    pub(super) fn host_pin(&self, mut body: &[u8]) -> Result<(), Code> {
        let HostPin { address, bytes, flags, apart } = HostPin::get(&mut body).map_err(short)?;
        if lock(&self.pinned.parts).len() >= MOST_PINNED {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        if apart {
            return self.pin_apart(address, bytes, flags);
        }
        let file = self.pinned.file.get().ok_or(code::ERROR_NOT_SUPPORTED)?;
        let inside = address >= HOST && address.checked_add(bytes).is_some_and(|end| end <= HOST_END);
        if bytes == 0 || address % PAGE != 0 || !inside {
            return Err(code::ERROR_INVALID_VALUE);
        }
        map(file, address, bytes)?;
        self.register_host(address, Part { bytes, flags, from: From::File }).inspect_err(|_| unmap(address, bytes))
    }

    /// Makes memory of our own, in the place of what was there of this kind. It is in the range of pinned memory, or where the program has
    /// registered memory of its own: outside of all ranges that are the job's on the device, or the executor's.
    ///
    /// Whether an address is free in this process must tell nobody where the process lies. So the first one that is not ends the place: who
    /// tries addresses learns of a process that there is no more.
    fn pin_apart(&self, address: u64, bytes: u64, flags: u32) -> Result<(), Code> {
        let bad = code::ERROR_INVALID_VALUE;
        let end = address.checked_add(bytes).filter(|end| bytes > 0 && address >= PAGE && *end <= END).ok_or(bad)?;
        let clear_of = |range: &Range<u64>| end <= range.start || address >= range.end;
        if !(address >= HOST && end <= HOST_END || clear_of(&(VMM..RESERVED_END)) && clear_of(&DRIVERS)) {
            return Err(bad);
        }
        if lock(&self.pinned.parts).get(&address).is_some_and(|p| p.from == From::Apart) {
            self.unpin_host(address);
        }
        let (limit, wanted) = (self.limits().pinned, pages(address, bytes).1);
        if self.pinned.own.load(Ordering::Relaxed).saturating_add(wanted) > limit {
            tell_once(&self.pinned.told, "pinned and managed memory", limit, "--max-pinned");
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        let (start, len) = pages(address, bytes);
        let is_there = |(at, part): (&u64, &Part)| {
            let (other, others) = pages(*at, part.bytes);
            other < start + len && start < other + others
        };
        if lock(&self.pinned.parts).iter().any(is_there) {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        map_apart(address, bytes).inspect_err(|why| {
            if *why == NotMapped::Taken {
                self.pinned.collided.store(true, Ordering::Release);
            }
        })?;
        self.register_host(address, Part { bytes, flags, from: From::Apart }).inspect_err(|_| unmap(address, bytes))?;
        let mut apart = lock(&self.pinned.apart);
        // SAFETY: mapped above; `forget` takes it out before it unmaps it.
        let added = unsafe { apart.twins.add(start, len) };
        self.pinned.any_apart.store(true, Ordering::Release);
        drop(apart);
        added.map_err(|_| {
            self.unpin_host(address);
            code::ERROR_OUT_OF_MEMORY
        })
    }

    /// Whether the job has named an address for memory of its own that this process uses itself: it must be of no use to the job then.
    pub fn has_collided(&self) -> bool {
        self.pinned.collided.load(Ordering::Acquire)
    }

    /// Whether there is host memory that is kept as the job's.
    pub fn has_apart(&self) -> bool {
        self.pinned.any_apart.load(Ordering::Acquire)
    }

    /// What has changed in such memory since the last time, and how many messages of the job were taken over before.
    pub fn look_apart(&self) -> (u64, Vec<Line>) {
        let mut apart = lock(&self.pinned.apart);
        (apart.taken, apart.twins.look())
    }

    /// Takes over what the job has changed.
    pub(super) fn host_bytes(&self, body: &[u8]) -> Result<(), Code> {
        let mut apart = lock(&self.pinned.apart);
        apart.taken += 1;
        let whole = body.len().is_multiple_of(LINE_BYTES);
        if whole && apart.twins.take_over(body, |_| 0) { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
    }

    pub(super) fn host_unpin(&self, mut body: &[u8]) -> Result<(), Code> {
        self.unpin_host(u64::get(&mut body).map_err(short)?);
        Ok(())
    }

    /// Whether `span` bytes from an address that a call names are pinned memory of the job; false if it is none of such memory's.
    ///
    /// # Errors
    /// `INVALID_VALUE` if only some of them are.
    pub(super) fn is_host(&self, address: u64, span: u64) -> Result<bool, Code> {
        let in_arena = (HOST..HOST_END).contains(&address);
        if !in_arena && !self.has_apart() {
            return Ok(false);
        }
        match inside(&lock(&self.pinned.parts), address, span) {
            Some(true) => Ok(true),
            None if !in_arena => Ok(false),
            _ => Err(code::ERROR_INVALID_VALUE),
        }
    }

    /// Registers everything anew, with the driver's new context.
    pub(super) fn pin_again(&self) -> Result<(), Code> {
        lock(&self.pinned.parts).iter().try_for_each(|(at, part)| self.gpu.register(*at, part.bytes, part.flags))
    }

    /// Takes back everything; the context is current.
    pub(super) fn unpin_all(&self) {
        std::mem::take(&mut *lock(&self.pinned.parts)).into_iter().for_each(|(at, part)| self.forget(at, part));
    }
}
