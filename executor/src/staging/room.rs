//! The memory of an area: its regions, and the words by which the GPU and the connections wait for each other. The regions are host memory, or
//! memory of the GPU that network cards reach by themselves.

use super::file::Part;
use super::sizes::WORDS;
use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Distance of the words: the GPU writes one, the processors the other.
const APART: usize = 64;

/// The memory of an area. What lies in host memory is unmapped when no segment uses it any more, and no registration keeps it.
#[derive(Debug)]
pub struct Room(Arc<Mappings>);

/// Its mappings.
#[derive(Debug)]
struct Mappings {
    at: usize,
    bytes: usize,
    words: usize,
    regions: Regions,
}

/// Where the regions lie.
#[derive(Debug)]
enum Regions {
    /// In host memory: if so, in this part of the file that the job maps too.
    Host(Option<Part>),
    /// In the GPU's memory, of which this is a dma-buf.
    Gpu(OwnedFd),
}

impl Room {
    /// Takes over mappings of whole pages: of the regions, which may lie in a part of the job's file, and of [`WORDS`], zero at first.
    ///
    /// # Safety
    /// They are the caller's own and nothing else unmaps them.
    pub unsafe fn new((at, bytes): (usize, usize), words: usize, part: Option<Part>) -> Room {
        Room(Arc::new(Mappings { at, bytes, words, regions: Regions::Host(part) }))
    }

    /// As [`Room::new`]: regions in memory of the GPU, at this address, with a dma-buf of them. Their owner unmaps them.
    ///
    /// # Safety
    /// The words are the caller's own mapping and nothing else unmaps them.
    pub unsafe fn on_gpu((at, bytes): (usize, usize), words: usize, dma_buf: OwnedFd) -> Room {
        Room(Arc::new(Mappings { at, bytes, words, regions: Regions::Gpu(dma_buf) }))
    }

    /// The dma-buf of the regions, if they lie in the GPU's memory. The processor must not use their addresses then.
    pub fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        match &self.0.regions {
            Regions::Host(_) => None,
            Regions::Gpu(dma_buf) => Some(dma_buf.as_fd()),
        }
    }

    /// What keeps the memory mapped, for registrations with other devices. It does not count as a use of the room.
    pub fn keeper(&self) -> Arc<dyn Any + Send + Sync> {
        self.0.clone()
    }

    /// The address of the words.
    pub(crate) fn words_at(&self) -> usize {
        self.0.words
    }

    /// The addresses of the words: `carried` and `done`.
    pub(super) fn words(&self) -> [u64; 2] {
        [self.0.words as u64, (self.0.words + APART) as u64]
    }

    /// Address and bytes of the regions. The words are not among these.
    pub fn regions(&self) -> (usize, usize) {
        (self.0.at, self.0.bytes)
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
        match &self.0.regions {
            Regions::Host(part) => part.as_ref(),
            Regions::Gpu(_) => None,
        }
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
        let regions = matches!(self.regions, Regions::Host(_)).then_some((self.at, self.bytes));
        for (at, bytes) in regions.into_iter().chain([(self.words, WORDS)]) {
            // SAFETY: the owner's mapping with this length; no segment and no registration refers to it.
            unsafe { libc::munmap(at as *mut libc::c_void, bytes) };
        }
    }
}
