//! Private memory of this process that grows in place.

use std::io;
use std::ptr::NonNull;

/// Growth happens in multiples of this many bytes: what one page table entry of the processor can map.
const PIECE: usize = 2 << 20;
/// Maximum number of bytes by which memory or a file grows beyond what is needed.
pub(crate) const MAX_AHEAD: usize = 4 << 20;
/// Initial size.
const FIRST: usize = 64 << 10;

/// A reservation of addresses for the maximum size, with memory behind its beginning. Forked children do not
/// inherit it.
#[derive(Debug)]
pub(crate) struct Memory {
    at: NonNull<u8>,
    /// Bytes that can be used.
    len: usize,
    /// Size of the reservation in bytes.
    room: usize,
    pid: u32,
}

// SAFETY: it is plain memory that nothing else refers to.
unsafe impl Send for Memory {}
// SAFETY: as above; what changes it asks for `&mut`.
unsafe impl Sync for Memory {}

fn done(rc: libc::c_int) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Memory {
    /// Creates empty memory that can grow to `room` bytes.
    pub(crate) fn new(room: usize) -> io::Result<Memory> {
        let room = room.next_multiple_of(PIECE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, where there is room for it.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), room, libc::PROT_NONE, flags, -1, 0) };
        let at = if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast()) };
        let mut memory = Memory { at: at.ok_or_else(io::Error::last_os_error)?, len: 0, room, pid: std::process::id() };
        // SAFETY: advice about the mapping just made.
        done(unsafe { libc::madvise(at_void(memory.at, 0), room, libc::MADV_DONTFORK) })?;
        // Without large pages, growth is only slower. What never grows saves the time to fill a large page with zeros.
        if room > PIECE {
            // SAFETY: as above.
            let _ = unsafe { libc::madvise(at_void(memory.at, 0), room, libc::MADV_HUGEPAGE) };
        }
        memory.allow(PIECE)?;
        memory.populate(0, FIRST);
        Ok(memory)
    }

    /// The contents.
    #[inline]
    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: so many bytes are mapped and readable, zeros at first; a mapping begins at a page.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.len / size_of::<u64>()) }
    }

    /// The contents, mutable.
    #[inline]
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and borrowed from here alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().cast(), self.len / size_of::<u64>()) }
    }

    /// Grows the memory to at least `len` bytes.
    pub(crate) fn grow(&mut self, len: usize) -> io::Result<()> {
        let (have, need) = (self.len, len.next_multiple_of(PIECE));
        let want = need.max(have + have.min(MAX_AHEAD)).min(self.room);
        self.allow(want).or_else(|_| self.allow(need))?;
        // The new pages are populated at once: page faults, one for every few records, would be the largest
        // part of the cost.
        self.populate(have, self.len);
        Ok(())
    }

    fn allow(&mut self, len: usize) -> io::Result<()> {
        if len > self.room {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        // SAFETY: a part of our own mapping.
        done(unsafe { libc::mprotect(at_void(self.at, 0), len, libc::PROT_READ | libc::PROT_WRITE) })?;
        self.len = len;
        Ok(())
    }

    /// Populates pages. Older kernels do not support this: then they are populated by page faults.
    fn populate(&self, from: usize, to: usize) {
        // SAFETY: bytes of our own mapping that can be used.
        let _ = unsafe { libc::madvise(at_void(self.at, from), to - from, libc::MADV_POPULATE_WRITE) };
    }
}

fn at_void(at: NonNull<u8>, offset: usize) -> *mut libc::c_void {
    at.as_ptr().wrapping_add(offset).cast()
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A forked child does not inherit the mapping: unmapping there would hit whatever the child has
        // mapped at these addresses.
        if std::process::id() == self.pid {
            // SAFETY: the mapping made by `new`, to which nothing refers any more.
            unsafe { libc::munmap(at_void(self.at, 0), self.room) };
        }
    }
}
