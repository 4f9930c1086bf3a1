//! Sources of an image's bytes: memory of unknown extent, or a slice.

use super::kind::{ImageError, MAX_IMAGE, Result};
use std::ffi::CStr;
use std::io;
use std::sync::Arc;

/// Bytes at offsets, without a known length.
pub(super) trait Source {
    /// Fills `into` with the bytes from `at` on.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()>;

    /// Length of the text at the start, with its terminating zero.
    fn text_len(&self) -> Result<u64>;

    /// A copy of `len` bytes from `at` on.
    fn copy_from(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        if len > MAX_IMAGE {
            return Err(ImageError::TooLarge { size: len });
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| ImageError::TooLarge { size: len })?];
        self.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// A copy of the first `len` bytes.
    fn copy(&self, len: u64) -> Result<Vec<u8>> {
        self.copy_from(0, len)
    }
}

impl Source for [u8] {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let from = usize::try_from(at).ok();
        let range = from.and_then(|from| Some(from..from.checked_add(into.len())?));
        into.copy_from_slice(range.and_then(|r| self.get(r)).ok_or(ImageError::Unreadable { at })?);
        Ok(())
    }

    fn text_len(&self) -> Result<u64> {
        let zero = first_zero(self).ok_or(ImageError::Unreadable { at: self.len() as u64 })?;
        Ok(zero as u64 + 1)
    }

    fn copy_from(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        // Checked before anything is allocated, so that a wrong length takes no memory.
        let from = usize::try_from(at).ok();
        let range = from.and_then(|from| Some(from..from.checked_add(usize::try_from(len).ok()?)?));
        range.and_then(|r| self.get(r)).map(<[u8]>::to_vec).ok_or(ImageError::Unreadable { at })
    }
}

/// Position of the first zero. Texts are long, and the library scans many bytes at a time.
fn first_zero(bytes: &[u8]) -> Option<usize> {
    CStr::from_bytes_until_nul(bytes).ok().map(CStr::count_bytes)
}

/// Memory of this process from an address on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory(usize);

pub(super) const PAGE: usize = 4096;
/// Most pages of a text that are read in one call. Their buffer is small enough that the C library need not ask the kernel for its memory.
const MAX_PAGES: usize = 16;

impl Memory {
    /// A copy of the first `len` bytes that can be shared.
    pub(super) fn shared(&self, len: u64) -> Result<Arc<[u8]>> {
        if len > MAX_IMAGE {
            return Err(ImageError::TooLarge { size: len });
        }
        // Read directly into its final memory: images are large, and allocating memory costs more than the copy.
        // SAFETY: zero is a byte.
        let mut bytes: Arc<[u8]> = unsafe { Arc::new_zeroed_slice(len as usize).assume_init() };
        if let Some(fresh) = Arc::get_mut(&mut bytes) {
            self.read(0, fresh)?;
        }
        Ok(bytes)
    }

    /// Whether the memory starts with these bytes. `piece` is a buffer for what is read. Where the kernel refuses to read, nothing is
    /// read beyond the first page that differs: what is there may end in it.
    pub(super) fn holds(&self, bytes: &[u8], piece: &mut Vec<u8>) -> bool {
        piece.resize(MAX_PAGES * PAGE, 0);
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            // Most images differ within their first bytes, and all of a longer one are read only if the first ones are the same.
            let most = if at == 0 { PAGE } else { piece.len() };
            let (want, found) = (&rest[..rest.len().min(most)], &mut piece[..rest.len().min(most)]);
            match self.read_some(at as u64, found) {
                Ok(n) if found[..n] == want[..n] => at += n,
                _ => return false,
            }
        }
        true
    }

    /// Reads the bytes from `at` on into the beginning of `into`, which is not empty, and returns their number: at least one, and fewer
    /// than there is room for if what follows cannot be read. Where the kernel refuses to read, they are those up to the end of the page:
    /// the next page may not be mapped.
    pub(super) fn read_some(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let gone = ImageError::Unreadable { at };
        let here = usize::try_from(at).ok().and_then(|at| self.0.checked_add(at)).ok_or(gone.clone())?;
        match read_pages(here, into) {
            Ok(0) => Err(gone),
            Ok(n) => Ok(n),
            Err(e) if is_forbidden(&e) => {
                let n = into.len().min(PAGE - here % PAGE);
                self.read(at, &mut into[..n]).map(|()| n)
            }
            Err(_) => Err(gone),
        }
    }

    /// # Safety
    /// What is read from it later must be memory that the caller of the driver handed over for reading.
    pub(super) unsafe fn new(ptr: *const u8) -> Result<Memory> {
        if ptr.is_null() { Err(ImageError::Null) } else { Ok(Memory(ptr.expose_provenance())) }
    }
}

/// Copies what is readable of `len` bytes at `start` to `to`, page by page, in one call of the kernel: a read that meets an unmapped page
/// ends there. Returns the number of bytes copied.
///
/// # Errors
/// Those of `process_vm_readv`; `EFAULT` if the first byte is not readable.
fn read_pages(start: usize, to: &mut [u8]) -> io::Result<usize> {
    let mut from = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_PAGES];
    let (mut count, mut end) = (0, 0);
    while count < MAX_PAGES && end < to.len() {
        let Some(at) = start.checked_add(end) else { break };
        let len = (PAGE - at % PAGE).min(to.len() - end);
        from[count] = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(at), iov_len: len };
        (count, end) = (count + 1, end + len);
    }
    let whole = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: end };
    // SAFETY: `whole` is a live mutable slice; the kernel checks `from`.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &whole, 1, from.as_ptr(), count as libc::c_ulong, 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

fn is_forbidden(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
}

impl Source for Memory {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let gone = ImageError::Unreadable { at };
        let start = usize::try_from(at).ok().and_then(|at| self.0.checked_add(at)).ok_or(gone.clone())?;
        start.checked_add(into.len()).ok_or(gone.clone())?;
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let to = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let from = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(start + done), iov_len: rest.len() };
            // SAFETY: `to` is a live mutable slice; the kernel checks `from` and answers EFAULT where nothing is mapped.
            let n = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
            match usize::try_from(n) {
                Ok(n) if n > 0 => done += n,
                _ if n < 0 && is_forbidden(&io::Error::last_os_error()) => {
                    let from: *const u8 = std::ptr::with_exposed_provenance(start + done);
                    // SAFETY: sandboxes may forbid the call; the contract of `new` makes this memory readable then.
                    unsafe { std::ptr::copy_nonoverlapping(from, rest.as_mut_ptr(), rest.len()) };
                    return Ok(());
                }
                _ => return Err(gone),
            }
        }
        Ok(())
    }

    fn text_len(&self) -> Result<u64> {
        let mut at = 0u64;
        let mut piece = vec![0; MAX_PAGES * PAGE];
        while at < MAX_IMAGE {
            let read = self.read_some(at, &mut piece)?;
            if let Some(zero) = first_zero(&piece[..read]) {
                return Ok(at + zero as u64 + 1);
            }
            at += read as u64;
        }
        Err(ImageError::TooLarge { size: at })
    }
}

/// Little-endian numbers at fixed places of a header that is known to be long enough.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at.saturating_add(2)).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

/// As [`u16_at`].
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at.saturating_add(4)).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// As [`u16_at`].
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at.saturating_add(8)).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
