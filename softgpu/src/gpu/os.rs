//! Memory of the operating system. All mappings of the driver are created by these few functions.
//!
//! They deliberately call libc's `mmap` by its symbol: the executor steers the addresses of what this driver places by
//! replacing that slot of this library, as with the genuine driver.

use crate::result::Res;
use cuda_api::sys::CUresult;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Protection of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protection {
    /// Nothing: a reservation, or freed.
    None,
    /// Reading and writing.
    ReadWrite,
}

impl Protection {
    fn bits(self) -> i32 {
        match self {
            Protection::None => libc::PROT_NONE,
            Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

fn map(addr: u64, len: u64, protection: Protection, flags: i32, fd: i32) -> Res<u64> {
    // SAFETY: without MAP_FIXED nothing existing is touched; the callers that add it own the range they name.
    let p = unsafe { libc::mmap(addr as *mut libc::c_void, len as usize, protection.bits(), flags, fd, 0) };
    if p == libc::MAP_FAILED { Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(p as u64) }
}

/// Allocates zeroed memory at any address.
pub(crate) fn anywhere(len: u64) -> Res<u64> {
    map(0, len, Protection::ReadWrite, ANONYMOUS, -1)
}

/// Reserves address space without memory, preferably at `hint`, aligned to `align` (a power of two).
pub(crate) fn reserve(hint: u64, len: u64, align: u64) -> Res<u64> {
    let at = map(hint, len, Protection::None, ANONYMOUS, -1)?;
    if at.is_multiple_of(align) {
        return Ok(at);
    }
    unmap(at, len);
    let padded = len.checked_add(align).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let at = map(0, padded, Protection::None, ANONYMOUS, -1)?;
    let start = at.next_multiple_of(align);
    if start > at {
        unmap(at, start - at);
    }
    if at + padded > start + len {
        unmap(start + len, at + padded - start - len);
    }
    Ok(start)
}

/// Allocates zeroed memory exactly at `addr`, if that range is free.
pub(crate) fn exactly(addr: u64, len: u64) -> Res<u64> {
    let got = map(addr, len, Protection::ReadWrite, ANONYMOUS | libc::MAP_FIXED_NOREPLACE, -1)?;
    if got == addr {
        return Ok(got);
    }
    // An old kernel takes the flag for a hint.
    unmap(got, len);
    Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

/// Maps new anonymous pages over a range that the driver owns.
pub(crate) fn replace(addr: u64, len: u64, protection: Protection) -> Res {
    map(addr, len, protection, ANONYMOUS | libc::MAP_FIXED, -1).map(drop)
}

/// Maps pages of `fd` over a range that the driver has reserved.
pub(crate) fn map_file(addr: u64, len: u64, fd: &OwnedFd) -> Res {
    map(addr, len, Protection::None, libc::MAP_SHARED | libc::MAP_FIXED, fd.as_raw_fd()).map(drop)
}

/// Changes the protection of a mapped range.
pub(crate) fn protect(addr: u64, len: u64, protection: Protection) -> Res {
    // SAFETY: the range belongs to the driver's table; taking rights away makes bad accesses fail, which is intended.
    let rc = unsafe { libc::mprotect(addr as *mut libc::c_void, len as usize, protection.bits()) };
    if rc == 0 { Ok(()) } else { Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) }
}

/// Unmaps a range. The system cannot refuse this for a mapped range.
pub(crate) fn unmap(addr: u64, len: u64) {
    // SAFETY: only ranges that this driver mapped, and that no running kernel may use, are given here.
    unsafe { libc::munmap(addr as *mut libc::c_void, len as usize) };
}

/// Whether any page of an anonymous range has been touched since it was mapped.
pub(crate) fn touched(addr: u64, len: u64) -> bool {
    let pages = (len as usize).div_ceil(4096);
    let mut seen = vec![0u8; pages];
    // SAFETY: the vector has one byte for each page of the range.
    let rc = unsafe { libc::mincore(addr as *mut libc::c_void, len as usize, seen.as_mut_ptr()) };
    rc == 0 && seen.iter().any(|page| page & 1 != 0)
}

/// Creates a memory file of `len` zero bytes; the receiver of the descriptor can read `name` with [`memory_file_name`].
pub(crate) fn memory_file(name: &str, len: u64) -> Res<OwnedFd> {
    let name = CString::new(name).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: a NUL-terminated name and valid flags.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    // SAFETY: a descriptor that was just made and belongs to no one else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let len = i64::try_from(len).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len) } != 0 {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(fd)
}

/// Name of a memory file, `None` for any other descriptor.
pub(crate) fn memory_file_name(fd: &OwnedFd) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let name = link.to_str()?.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// Size and identity (device, inode) of an open file.
pub(crate) fn file_identity(fd: &OwnedFd) -> Res<(u64, (u64, u64))> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the descriptor is open and the buffer has the size of a stat.
    if unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: fstat succeeded and filled it.
    let stat = unsafe { stat.assume_init() };
    Ok((u64::try_from(stat.st_size).unwrap_or(0), (stat.st_dev, stat.st_ino)))
}

/// A duplicate of a descriptor owned by other code; an invalid number is `INVALID_VALUE`.
pub(crate) fn duplicate(fd: i32) -> Res<OwnedFd> {
    // SAFETY: fcntl checks the number itself.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: a fresh descriptor that belongs to no one else.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Writes to the C library's stdout, or stderr for `failed`, and flushes it, so that the text lies rightly between what the
/// program prints itself.
pub(crate) fn print(text: &[u8], failed: bool) {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
        static stderr: *mut libc::FILE;
    }
    if text.is_empty() {
        return;
    }
    // SAFETY: the C library's own streams, which lock themselves; the bytes live during the call.
    unsafe {
        let stream = if failed { stderr } else { stdout };
        libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream);
        libc::fflush(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_aligned_and_files_keep_their_name() {
        let at = reserve(0, 2 << 20, 2 << 20).expect("address space");
        assert!(at.is_multiple_of(2 << 20));
        let fd = memory_file("softgpu:x:3", 4096).expect("memory file");
        assert_eq!(memory_file_name(&fd).as_deref(), Some("softgpu:x:3"));
        assert_eq!(file_identity(&fd).expect("stat").0, 4096);
        map_file(at, 4096, &fd).expect("mapping");
        unmap(at, 2 << 20);
        assert!(duplicate(-1).is_err());
    }

    #[test]
    fn touched_pages_show() {
        let at = anywhere(8192).expect("memory");
        assert!(!touched(at, 8192));
        // SAFETY: the range was just mapped readable.
        assert_eq!(unsafe { std::ptr::read_volatile(at as *const u8) }, 0);
        assert!(touched(at, 8192));
        unmap(at, 8192);
    }
}
