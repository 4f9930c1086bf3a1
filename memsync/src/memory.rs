//! The operations of the executor that a round needs.

use crate::diff::batches;
use crate::error::SyncError;
use crate::frames::{BATCH, Show};
use crate::region::{self, Kind, Page, Pages, Region};
use executor::{Executor, Flight, NO_HASH, PageHash, PageKey, Piece, Pinned, Shown};
use std::sync::Arc;

/// Memory of a place. Buffers have [`BATCH`] bytes.
pub(crate) trait Memory: Sync {
    /// A buffer for pages.
    type Buffer: Send;
    /// A copy in flight.
    type Flight: Send;
    /// The regions of the job at this place.
    fn regions(&self) -> Result<Vec<Region>, SyncError>;
    /// A target learns the regions of the source, if that was asked to tell them. A store takes them for its own.
    fn take_regions(&self, _: &[Region]) -> Result<(), SyncError> {
        Ok(())
    }
    /// A round begins; the key of its proof, if it has one.
    fn begin(&self, _: Option<&PageKey>) {}
    /// Hashes of pages under a key; [`NO_HASH`] where memory has been freed.
    fn hash(&self, key: &PageKey, pages: &Pages) -> Result<Vec<PageHash>, SyncError>;
    /// As [`Memory::hash`], for a source that looks for pages to send. Of a page that is to be sent in any case it may be one that no page
    /// has.
    fn hash_to_send(&self, key: &PageKey, pages: &Pages) -> Result<Vec<PageHash>, SyncError> {
        self.hash(key, pages)
    }
    /// As [`Memory::hash`], for the proof, at the end of the round.
    fn hash_to_prove(&self, key: &PageKey, pages: &Pages) -> Result<Vec<PageHash>, SyncError> {
        self.hash(key, pages)
    }
    /// What a target holds is proved: makes it last. Returns what identifies it, for a store in a file.
    fn seal(&self) -> Result<[u8; 32], SyncError> {
        Ok([0; 32])
    }
    /// Acquires a buffer.
    fn buffer(&self) -> Result<Self::Buffer, SyncError>;
    /// The bytes of a buffer.
    fn bytes<'a>(&self, buffer: &'a mut Self::Buffer) -> &'a mut [u8];
    /// Starts copying pages into a buffer, contiguously.
    fn read(&self, lane: usize, to: Self::Buffer, pages: &[Page]) -> Result<Self::Flight, SyncError>;
    /// Starts copying a buffer into pages.
    fn write(&self, lane: usize, from: Self::Buffer, pages: &[Page]) -> Result<Self::Flight, SyncError>;
    /// Waits for a copy; returns the number of pages that no longer existed.
    fn land(&self, flight: Self::Flight) -> Result<(Self::Buffer, usize), SyncError>;
    /// Identifies the GPU.
    fn gpu(&self) -> [u8; 16];
    /// The chunks that other processes of this machine can map; empty if that is not possible.
    fn show(&self) -> Show;
    /// Maps what another place offers, as far as possible. Returns the addresses of the mapped chunks, in order, and
    /// the reason if some are missing.
    fn view(&self, show: &Show) -> (Vec<u64>, Option<String>);
    /// Chunks whose memory is the source's own, with its numbers there.
    fn adopted(&self) -> Vec<Shown>;
    /// Copies ranges (address, bytes) in view from the other place.
    fn fetch(&self, ranges: &[(u64, u64)]) -> Result<(), SyncError>;
    /// Compares pages in view with those of the other place. Returns the addresses of those that differ.
    fn compare(&self, pages: &Pages) -> Result<Vec<u64>, SyncError>;
}

fn pieces(pages: &[Page]) -> Vec<Piece> {
    let mut at = 0;
    pages
        .iter()
        .map(|p| {
            let piece = Piece { address: p.address, at, bytes: p.bytes as usize, raw: p.kind == Kind::Heap };
            at += piece.bytes;
            piece
        })
        .collect()
}

impl Memory for Arc<Executor> {
    type Buffer = Pinned;
    type Flight = Flight;

    fn regions(&self) -> Result<Vec<Region>, SyncError> {
        region::regions(self)
    }

    fn hash(&self, key: &PageKey, pages: &Pages) -> Result<Vec<PageHash>, SyncError> {
        let of_gpu = pages.iter().filter(|p| !p.by_host).map(|p| (p.address, p.bytes));
        let of_gpu = Executor::hash(self, 0, key, of_gpu).map_err(SyncError::gpu("hashing memory"))?;
        if of_gpu.len() == pages.len() {
            return Ok(of_gpu);
        }
        // Kernels cannot access arrays as memory. They can access everything else, including constants: code of
        // libraries has thousands of variables of a few bytes, and a copy of each takes longer than a block of threads
        // for each.
        let others: Vec<Page> = pages.iter().filter(|p| p.by_host).collect();
        let mut of_host = Vec::with_capacity(others.len());
        for batch in batches(&others, |p| p.bytes) {
            let flight = self.read(0, self.buffer()?, batch)?;
            let gone = flight.missing() > 0;
            let (mut buffer, _) = self.land(flight)?;
            let bytes = self.bytes(&mut buffer);
            let mut at = 0;
            for page in batch {
                let end = at + page.bytes as usize;
                let hash = blake3::hash(&bytes[at..end]);
                of_host.push(if gone { NO_HASH } else { *hash.as_bytes() });
                at = end;
            }
        }
        let (mut of_gpu, mut of_host) = (of_gpu.into_iter(), of_host.into_iter());
        Ok(pages.iter().map(|p| if p.by_host { of_host.next() } else { of_gpu.next() }.unwrap_or(NO_HASH)).collect())
    }

    fn buffer(&self) -> Result<Pinned, SyncError> {
        self.pinned(BATCH).map_err(SyncError::gpu("making a buffer"))
    }

    fn bytes<'a>(&self, buffer: &'a mut Pinned) -> &'a mut [u8] {
        buffer.bytes_mut()
    }

    fn read(&self, lane: usize, to: Pinned, pages: &[Page]) -> Result<Flight, SyncError> {
        self.copy_from_gpu(lane, to, &pieces(pages)).map_err(SyncError::gpu("reading memory"))
    }

    fn write(&self, lane: usize, from: Pinned, pages: &[Page]) -> Result<Flight, SyncError> {
        self.note_moved(pages.iter().map(|p| p.bytes).sum());
        self.copy_to_gpu(lane, from, &pieces(pages)).map_err(SyncError::gpu("writing memory"))
    }

    fn land(&self, flight: Flight) -> Result<(Pinned, usize), SyncError> {
        let missing = flight.missing();
        flight.wait().map(|b| (b, missing)).map_err(SyncError::gpu("copying memory"))
    }

    fn gpu(&self) -> [u8; 16] {
        self.device().uuid
    }

    fn show(&self) -> Show {
        let (offer, chunks) = Executor::show(self).unwrap_or_default();
        Show { gpu: Memory::gpu(self), offer, chunks, regions: Vec::new() }
    }

    fn view(&self, show: &Show) -> (Vec<u64>, Option<String>) {
        Executor::view(self, &show.offer, &show.chunks)
    }

    fn adopted(&self) -> Vec<Shown> {
        Executor::adopted(self)
    }

    fn fetch(&self, ranges: &[(u64, u64)]) -> Result<(), SyncError> {
        Executor::fetch(self, 0, ranges).map_err(SyncError::gpu("copying memory of the source"))?;
        self.note_moved(ranges.iter().map(|(_, bytes)| bytes).sum());
        Ok(())
    }

    fn compare(&self, pages: &Pages) -> Result<Vec<u64>, SyncError> {
        Executor::compare(self, 0, pages.iter().map(|p| (p.address, p.bytes))).map_err(SyncError::gpu("comparing memory"))
    }
}
