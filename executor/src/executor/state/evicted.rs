//! Chunks whose contents are in host memory, because their job is stopped.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Host memory with the contents of a chunk. It takes memory as it is written.
#[derive(Debug)]
pub(crate) struct Contents {
    at: *mut c_void,
    bytes: usize,
}

// SAFETY: the only owner of its mapping.
unsafe impl Send for Contents {}

impl Contents {
    /// Maps memory for so many bytes.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn allocate(bytes: u64) -> io::Result<Contents> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping anywhere.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTDUMP] {
            // SAFETY: the mapping made above. Advice that a system does not know changes nothing.
            unsafe { libc::madvise(at, bytes, advice) };
        }
        Ok(Contents { at, bytes })
    }

    /// Its size.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping, which lives as long as this.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes) }
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        // SAFETY: mapped by `allocate`, and no reference to it remains.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}

/// The evicted chunks.
#[derive(Debug, Default)]
pub(crate) struct Evicted {
    /// By their addresses.
    pub(crate) chunks: Mutex<BTreeMap<u64, Contents>>,
    /// Their sizes together.
    bytes: AtomicU64,
}

impl Evicted {
    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Notes how many there are, after a change.
    pub(crate) fn count(&self, chunks: &BTreeMap<u64, Contents>) {
        self.bytes.store(chunks.values().map(|contents| contents.len() as u64).sum(), Ordering::Release);
    }
}
