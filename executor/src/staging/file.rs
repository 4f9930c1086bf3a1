//! Regions that a job and its worker both map: they lie in a memory file, so the threads of the connections copy between the program's
//! memory and a region, and no byte passes through a socket.
//!
//! The job makes the file, the worker uses a part of it for each area. Each side may write anything there at any time: nothing that lies
//! there is trusted, and the file is sealed against shrinking, so that no access can fault. The words of an area are elsewhere, in memory
//! of the worker alone.

use super::sizes::{AREAS, Sizes};
use crate::memory_file;
use cuda_api::lock::lock;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// The job's end: the whole file, mapped. Forked children do not inherit it.
#[derive(Debug)]
pub struct Mapped {
    at: usize,
    bytes: usize,
}

impl Mapped {
    /// Makes a file for regions of these sizes. Returns its descriptor for the worker. It takes memory where an area lies.
    ///
    /// # Errors
    /// The system's.
    pub fn create(sizes: &Sizes) -> io::Result<(Mapped, OwnedFd)> {
        let fd = memory_file::create(sizes.file(), c"mrcuda-regions", memory_file::SIZE)?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a fresh mapping at an address that the system chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), sizes.file(), prot, flags, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = Mapped { at: at as usize, bytes: sizes.file() };
        // SAFETY: the mapping just made.
        if unsafe { libc::madvise(at, mapped.bytes, libc::MADV_DONTFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((mapped, fd))
    }

    /// The bytes at an offset of the file, if they lie in it. The other side may change them at any time.
    pub fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes as u64).then_some((self.at + offset as usize) as *mut u8)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `create` with this length; its owner's connections have ended.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.bytes) };
    }
}

/// The worker's end: a file of the job, and which parts of it areas have.
#[derive(Debug)]
pub(super) struct RegionFile {
    fd: OwnedFd,
    part: usize,
    taken: Mutex<[bool; AREAS]>,
}

impl RegionFile {
    /// Takes over a file. It must be sealed against shrinking and have room for all regions: an access beyond its end would kill this
    /// process.
    pub(super) fn received(fd: OwnedFd, sizes: &Sizes) -> io::Result<RegionFile> {
        if memory_file::fixed_size(fd.as_fd()).is_none_or(|bytes| bytes < sizes.file() as u64) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory for large copies is not what it should be"));
        }
        Ok(RegionFile { fd, part: sizes.regions(), taken: Mutex::default() })
    }

    /// A part for another area. After the end of a context, all may belong to segments that are still being carried.
    pub(super) fn take(self: &Arc<RegionFile>) -> Option<Part> {
        let mut taken = lock(&self.taken);
        let number = taken.iter().position(|t| !t)?;
        taken[number] = true;
        Some(Part { file: self.clone(), number })
    }
}

/// The part of the file in which the regions of an area lie. Dropped, it is free for another one.
#[derive(Debug)]
pub struct Part {
    file: Arc<RegionFile>,
    number: usize,
}

impl Part {
    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.fd.as_fd()
    }

    /// Where the part begins in the file.
    pub fn offset(&self) -> u64 {
        (self.number * self.file.part) as u64
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        lock(&self.file.taken)[self.number] = false;
    }
}

#[cfg(test)]
mod tests;
