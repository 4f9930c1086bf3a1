//! Memory of a connection: the ring of calls, and for two processes on one machine the pipes (docs/formats.md, "Shared
//! memory").
//!
//! It is one memfd, sealed against shrinking once both processes have it. The other process may write anything there at
//! any time: whatever is read is copied first and validated then, own positions are kept in private memory, and offsets
//! are masked.

use crate::sync::{AtomicU32, AtomicU64};
use executor::memory_file;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes of the ring of calls.
pub const RING: usize = 2 << 20;
/// Bytes of each pipe; with these sizes, data is read from a cache.
pub(crate) const PIPE: usize = 1 << 20;
/// Bytes of pages that are populated by one call.
const WARM: usize = 256 << 10;
/// Bytes before the ring, for the shared words.
const WORDS: usize = 4096;

/// A value on its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// Sleep and wake-up between the two sides: the sleeper sets `asleep`, checks once more, and sleeps while `bell` is
/// unchanged.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Sleeper {
    pub(crate) asleep: AtomicU32,
    pub(crate) bell: AtomicU32,
}

/// Words of the ring.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct RingWords {
    /// Bytes consumed so far.
    pub(crate) tail: Apart<AtomicU64>,
    pub(crate) consumer: Sleeper,
    /// Producers that wait for room.
    pub(crate) producers: Sleeper,
}

/// Words of a pipe.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct PipeWords {
    /// Bytes written so far.
    pub(crate) written: Apart<AtomicU64>,
    /// Bytes read so far.
    pub(crate) read: Apart<AtomicU64>,
    pub(crate) reader: Sleeper,
    pub(crate) writer: Sleeper,
}

/// What the consumer of the ring has taken so far, for people: nothing depends on it. The consumer writes it after each batch, so that
/// producers have nothing to count. No order matters, so models take no step for it.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Taken {
    pub(crate) calls: std::sync::atomic::AtomicU64,
    /// Their bytes, with long bodies.
    pub(crate) bytes: std::sync::atomic::AtomicU64,
}

#[derive(Debug, Default)]
#[repr(C)]
struct Words {
    ring: RingWords,
    /// Bodies too long for the ring.
    bodies: PipeWords,
    answers: PipeWords,
    taken: Apart<Taken>,
}

const _: () = assert!(size_of::<Words>() <= WORDS);

/// Which pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Bodies of calls that are too long for the ring.
    Bodies,
    /// All messages of the worker.
    Answers,
}

/// The memory: words, the ring mapped twice in a row, the pipes. Forked children do not inherit it.
#[derive(Debug)]
pub(crate) struct Memory {
    base: *mut u8,
    ring: usize,
    pipe: usize,
}

// SAFETY: a mapping that lives as long as the value; how it is used is up to ring and pipes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates private memory: a ring of `ring` bytes (a power of two) and no pipes.
    pub(crate) fn private(ring: usize) -> io::Result<Memory> {
        let fd = memory_file::create(WORDS + ring, c"mrcuda-ring", 0)?;
        Memory::map(fd.as_fd(), ring, 0)
    }

    /// Creates memory to be shared; returns the descriptor for the other side.
    pub(crate) fn shared() -> io::Result<(Memory, OwnedFd)> {
        Memory::shared_of(RING, PIPE)
    }

    fn shared_of(ring: usize, pipe: usize) -> io::Result<(Memory, OwnedFd)> {
        let fd = memory_file::create(WORDS + ring + 2 * pipe, c"mrcuda-connection", memory_file::SIZE)?;
        Ok((Memory::map(fd.as_fd(), ring, pipe)?, fd))
    }

    /// Maps memory that the other side has created. It must have the right size and be sealed against shrinking: an
    /// access beyond its end would kill this process.
    pub(crate) fn received(fd: BorrowedFd<'_>) -> io::Result<Memory> {
        if memory_file::fixed_size(fd) != Some((WORDS + RING + 2 * PIPE) as u64) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the shared memory is not what it should be"));
        }
        Memory::map(fd, RING, PIPE)
    }

    fn map(fd: BorrowedFd<'_>, ring: usize, pipe: usize) -> io::Result<Memory> {
        let all = WORDS + 2 * ring + 2 * pipe;
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh reservation at an address that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), all, libc::PROT_NONE, none, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = Memory { base: base.cast(), ring, pipe };
        let part = |at: usize, bytes: usize, offset: usize| {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            // SAFETY: replaces a part of the reservation made above.
            let got = unsafe { libc::mmap(base.byte_add(at), bytes, prot, flags, fd.as_raw_fd(), offset as libc::off_t) };
            if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        // A frame of the ring is always contiguous: what runs beyond its end continues at its start. The pipes follow.
        part(0, WORDS + ring, 0)?;
        part(WORDS + ring, ring + 2 * pipe, WORDS)?;
        // A child of fork must not write into its parent's connection.
        // SAFETY: the whole reservation is ours.
        if unsafe { libc::madvise(base, all, libc::MADV_DONTFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(memory)
    }

    /// Allocates all pages and maps them here. The first access to a page costs several times what copying it does, and
    /// the first calls would pay for it. For a background thread.
    pub(crate) fn warm(&self) {
        let all = WORDS + 2 * self.ring + 2 * self.pipe;
        for at in (0..all).step_by(WARM) {
            // SAFETY: a part of our own mapping; nothing that lies there changes.
            let rc = unsafe { libc::madvise(self.base.add(at).cast(), WARM.min(all - at), libc::MADV_POPULATE_WRITE) };
            if rc != 0 {
                // Older kernels do not support this; a lack of memory shows at the first access.
                return;
            }
        }
    }

    /// Bytes of the ring.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring as u64
    }

    /// Bytes of each pipe.
    pub(crate) fn pipe_bytes(&self) -> u64 {
        self.pipe as u64
    }

    fn words(&self) -> &Words {
        // SAFETY: the mapping begins with a page for them; all are atomic, and every bit pattern is valid.
        unsafe { &*self.base.cast() }
    }

    pub(crate) fn ring_words(&self) -> &RingWords {
        &self.words().ring
    }

    pub(crate) fn taken(&self) -> &Taken {
        &self.words().taken.0
    }

    pub(crate) fn pipe_words(&self, which: Which) -> &PipeWords {
        match which {
            Which::Bodies => &self.words().bodies,
            Which::Answers => &self.words().answers,
        }
    }

    /// The byte of the ring at a position; as many bytes as the ring has follow it.
    pub(crate) fn ring_at(&self, position: u64) -> *mut u8 {
        // SAFETY: the remainder is inside the first of the two mappings.
        unsafe { self.base.add(WORDS + (position & (self.ring as u64 - 1)) as usize) }
    }

    /// The byte of a pipe at a position, and how many follow it before the pipe's end.
    pub(crate) fn pipe_at(&self, which: Which, position: u64) -> (*mut u8, usize) {
        let at = (position & (self.pipe as u64 - 1)) as usize;
        let skip = WORDS + 2 * self.ring + if which == Which::Answers { self.pipe } else { 0 };
        // SAFETY: the remainder is inside the pipe.
        (unsafe { self.base.add(skip + at) }, self.pipe - at)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length by `map`; nothing borrows the memory any more.
        unsafe { libc::munmap(self.base.cast(), WORDS + 2 * self.ring + 2 * self.pipe) };
    }
}

#[cfg(test)]
impl Memory {
    /// Small memory for tests.
    pub(crate) fn small(ring: usize, pipe: usize) -> Memory {
        Memory::shared_of(ring, pipe).unwrap().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_and_the_ring_has_no_end() {
        let (ours, fd) = Memory::shared().unwrap();
        let theirs = Memory::received(fd.as_fd()).unwrap();
        // SAFETY: positions inside the mappings, used by this thread alone.
        unsafe {
            ours.ring_at(RING as u64 - 1).add(1).write(7);
            assert_eq!(theirs.ring_at(RING as u64).read(), 7);
            ours.pipe_at(Which::Bodies, PIPE as u64 - 1).0.write(8);
            ours.pipe_at(Which::Answers, PIPE as u64).0.write(9);
            assert_eq!(theirs.pipe_at(Which::Bodies, PIPE as u64 - 1).0.read(), 8);
            assert_eq!(theirs.pipe_at(Which::Answers, 0).0.read(), 9);
        }
        assert_eq!(theirs.pipe_at(Which::Answers, 3).1, PIPE - 3);
    }

    #[test]
    fn warm_memory_is_there_before_it_is_touched_and_keeps_what_it_holds() {
        let (ours, fd) = Memory::shared().unwrap();
        let theirs = Memory::received(fd.as_fd()).unwrap();
        // SAFETY: a position inside the mapping, used by this thread alone.
        unsafe { ours.ring_at(5000).write(7) };
        theirs.warm();
        let all = WORDS + 2 * RING + 2 * PIPE;
        let mut there = vec![0u8; all / 4096];
        // SAFETY: as many bytes as there are pages in the mapping.
        assert_eq!(unsafe { libc::mincore(theirs.base.cast(), all, there.as_mut_ptr()) }, 0);
        assert!(there.iter().all(|page| page & 1 == 1));
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.ring_at(5000).read() }, 7);
    }

    #[test]
    fn memory_that_could_shrink_or_has_another_size_is_refused() {
        let right = WORDS + RING + 2 * PIPE;
        let unsealed = memory_file::create(right, c"test", 0).unwrap();
        assert!(Memory::received(unsealed.as_fd()).is_err());
        let other = Memory::shared_of(RING, 2 * PIPE).unwrap().1;
        assert!(Memory::received(other.as_fd()).is_err());
        assert!(Memory::received(std::fs::File::open("/dev/zero").unwrap().as_fd()).is_err());
        let sealed = Memory::shared().unwrap().1;
        // SAFETY: plain system call.
        assert_ne!(unsafe { libc::ftruncate(sealed.as_raw_fd(), 0) }, 0, "nobody can take it away");
    }
}
