//! The memory of an area: its regions, and the words by which the GPU and the connections wait for each other.

use super::file::Part;
use super::sizes::WORDS;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Distance of the words: the GPU writes one, the processors the other.
const APART: usize = 64;

/// The memory of an area. It is unmapped when no segment uses it any more, and no registration keeps it.
#[derive(Debug)]
pub struct Room(Arc<Mappings>);

/// Its mappings.
#[derive(Debug)]
struct Mappings {
    at: usize,
    bytes: usize,
    words: usize,
    /// Where the regions lie in the file that the job maps too, if they do.
    part: Option<Part>,
}

impl Room {
    /// Takes over mappings of whole pages: of the regions, which may lie in a part of the job's file, and of [`WORDS`], zero at first.
    ///
    /// # Safety
    /// They are the caller's own and nothing else unmaps them.
    pub unsafe fn new((at, bytes): (usize, usize), words: usize, part: Option<Part>) -> Room {
        Room(Arc::new(Mappings { at, bytes, words, part }))
    }

    /// What keeps the memory mapped, for registrations with other devices. It does not count as a use of the room.
    pub fn keeper(&self) -> Arc<dyn Any + Send + Sync> {
        self.0.clone()
    }

    /// The addresses of its mappings.
    pub(crate) fn mappings(&self) -> [usize; 2] {
        [self.0.at, self.0.words]
    }

    /// The addresses of the words: `carried` and `done`.
    pub(super) fn words(&self) -> [u64; 2] {
        [self.0.words as u64, (self.0.words + APART) as u64]
    }

    /// Address of the regions.
    pub(super) fn at(&self) -> usize {
        self.0.at
    }

    /// Bytes of the regions.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Where the regions lie in the job's file, if they do.
    pub(super) fn part(&self) -> Option<&Part> {
        self.0.part.as_ref()
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: an aligned word of this mapping, which lives as long as the reference; only atomics and the GPU access it.
        unsafe { AtomicU32::from_ptr(at as *mut u32) }
    }

    pub(super) fn carried(&self) -> &AtomicU32 {
        self.word(self.0.words)
    }

    pub(super) fn done(&self) -> &AtomicU32 {
        self.word(self.0.words + APART)
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        for (at, bytes) in [(self.at, self.bytes), (self.words, WORDS)] {
            // SAFETY: the owner's mapping with this length; no segment and no registration refers to it.
            unsafe { libc::munmap(at as *mut libc::c_void, bytes) };
        }
    }
}
