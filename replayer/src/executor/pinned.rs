//! Host memory of the job that the driver of the place knows as pinned: kernels use it by its address, and copies of it are the
//! driver's own.
//!
//! In the job's process it is there. A worker of the same machine has the file of the job's pinned memory and maps the parts that
//! the job names, at their addresses. The job can write to them at any time; it cannot take them away, because the file cannot
//! shrink.

use super::{Executor, short};
use crate::pools::lock;
use cuda_api::code::{self, Code};
use cuda_api::ops::{HOST, HOST_END, HostPin};
use cuda_api::wire::Wire;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

const PAGE: u64 = 4096;

/// What is registered.
#[derive(Debug, Clone, Copy)]
struct Part {
    bytes: u64,
    flags: u32,
    /// Mapped here: unmapped with the registration.
    mapped: bool,
}

/// The job's pinned memory as an executor has it.
#[derive(Debug, Default)]
pub(crate) struct PinnedMemory {
    /// The job's file, in a worker.
    file: OnceLock<OwnedFd>,
    parts: Mutex<BTreeMap<u64, Part>>,
}

fn unmap(at: u64, bytes: u64) {
    // SAFETY: mapped by `map` with this length; the driver does not use it any more.
    unsafe { libc::munmap(at as *mut c_void, bytes.next_multiple_of(PAGE) as usize) };
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
    if p == libc::MAP_FAILED {
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    if p as u64 != at {
        // SAFETY: a kernel that does not know the flag has put it elsewhere; nobody knows of it.
        unsafe { libc::munmap(p, len as usize) };
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    Ok(())
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
        self.register_host(at, Part { bytes, flags, mapped: false })
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
        if part.mapped {
            unmap(at, part.bytes);
        }
    }

    /// Address and bytes of what is registered.
    pub fn pinned_host(&self) -> Vec<(u64, u64)> {
        lock(&self.pinned.parts).iter().map(|(at, part)| (*at, part.bytes)).collect()
    }

    pub(super) fn host_pin(&self, mut body: &[u8]) -> Result<(), Code> {
        let HostPin { address, bytes, flags } = HostPin::get(&mut body).map_err(short)?;
        let file = self.pinned.file.get().ok_or(code::ERROR_NOT_SUPPORTED)?;
        let inside = address >= HOST && address.checked_add(bytes).is_some_and(|end| end <= HOST_END);
        if bytes == 0 || address % PAGE != 0 || !inside {
            return Err(code::ERROR_INVALID_VALUE);
        }
        map(file, address, bytes)?;
        self.register_host(address, Part { bytes, flags, mapped: true }).inspect_err(|_| unmap(address, bytes))
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
        if !(HOST..HOST_END).contains(&address) {
            return Ok(false);
        }
        let parts = lock(&self.pinned.parts);
        let part = parts.range(..=address).next_back().filter(|(at, p)| address - **at < p.bytes);
        let (at, part) = part.ok_or(code::ERROR_INVALID_VALUE)?;
        if span <= part.bytes - (address - at) { Ok(true) } else { Err(code::ERROR_INVALID_VALUE) }
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
