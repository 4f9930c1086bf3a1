//! The operations of the executor that a round needs.

use crate::diff::batches;
use crate::error::SyncError;
use crate::frames::{BATCH, Show};
use crate::region::{self, Kind, PAGE, Page, Pages, Region};
use executor::{Executor, Flight, Hashes, NO_HASH, PageHash, PageKey, Piece, Pinned, ProofKeys, Shown, Span, Theirs};
use std::sync::Arc;

/// Which regions of a list are hashed.
pub(crate) type Which<'a> = &'a (dyn Fn(&Region) -> bool + Sync);

/// Memory of a place. Buffers have [`BATCH`] bytes.
pub(crate) trait Memory: Sync {
    /// A buffer for pages.
    type Buffer: Send;
    /// A copy in flight.
    type Flight: Send;
    /// A table of hashes, by the numbers of pages.
    type Hashes: AsRef<[PageHash]> + AsMut<[PageHash]> + Send + Sync;
    /// The regions of the job at this place.
    fn regions(&self) -> Result<Vec<Region>, SyncError>;
    /// Maximum number of pages that this many regions of this place can have, as far as that is known.
    fn most_pages(&self, _regions: usize) -> u64 {
        u64::MAX
    }
    /// Whether a target has regions of its own: they are those of before the round, in which nothing is executed for the job.
    fn has_regions(&self) -> bool {
        true
    }
    /// A target learns the regions of the source, if that was asked to send them. A store takes them for its own.
    fn take_regions(&self, _: &[Region]) -> Result<(), SyncError> {
        Ok(())
    }
    /// A round begins; the key of its proof, if it has one.
    fn begin(&self, _: Option<&PageKey>) {}
    /// A table for hashes of so many pages, with any contents.
    fn hashes(&self, pages: usize) -> Result<Self::Hashes, SyncError>;
    /// Hashes of pages under a key, and how many pages do not exist any more. These have [`NO_HASH`], and so have those of other regions
    /// than `which`.
    fn hash(&self, key: &PageKey, pages: &Pages, which: Which<'_>) -> Result<(Self::Hashes, usize), SyncError>;
    /// As [`Memory::hash`], for a source that looks for pages to send. Of a page that is to be sent in any case it may be one that no page
    /// has.
    fn hash_to_send(&self, key: &PageKey, pages: &Pages, which: Which<'_>) -> Result<Self::Hashes, SyncError> {
        Ok(self.hash(key, pages, which)?.0)
    }
    /// As [`Memory::hash`], of all pages, for the proof, at the end of the round.
    fn hash_to_prove(&self, key: &PageKey, pages: &Pages) -> Result<(Self::Hashes, usize), SyncError> {
        self.hash(key, pages, &|_| true)
    }
    /// Hashes of a table of hashes ([`PageKey::fold`]).
    fn fold(&self, key: &PageKey, table: &Self::Hashes) -> Result<Vec<PageHash>, SyncError> {
        Ok(key.fold(table.as_ref()))
    }
    /// The hashes by which these pages are proved. All must exist: a proof does not cover freed memory.
    fn prove(&self, keys: &ProofKeys, pages: &Pages, side: &str) -> Result<Vec<PageHash>, SyncError> {
        match self.hash_to_prove(&keys.pages, pages)? {
            (table, 0) => self.fold(&keys.table, &table),
            (_, gone) => Err(SyncError::Regions(format!("{gone} pages went away at the {side} during the round"))),
        }
    }
    /// Hashes pages in view to where the target has mapped them.
    fn hash_shown(&self, key: &PageKey, pages: &Pages) -> Result<(), SyncError>;
    /// Bit n says whether page `from` + n of the target has another hash at the source, which has the page. Without `source`: the hashes that
    /// it has shown.
    fn differing(&self, target: &Self::Hashes, from: usize, source: Option<&Self::Hashes>) -> Result<Vec<u64>, SyncError>;
    /// What a target holds is proved: makes it last. Returns what identifies it, for a store in a file.
    fn seal(&self) -> Result<[u8; 32], SyncError> {
        Ok([0; 32])
    }
    /// Acquires a buffer.
    fn buffer(&self) -> Result<Self::Buffer, SyncError>;
    /// The bytes of a buffer.
    fn bytes<'a>(&self, buffer: &'a mut Self::Buffer) -> &'a mut [u8];
    /// Starts copying pages into a buffer, contiguously. `at_rest`: the job does not use the GPU.
    fn read(&self, lane: usize, to: Self::Buffer, pages: &[Page], at_rest: bool) -> Result<Self::Flight, SyncError>;
    /// Starts copying a buffer into pages.
    fn write(&self, lane: usize, from: Self::Buffer, pages: &[Page], at_rest: bool) -> Result<Self::Flight, SyncError>;
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

/// A region as the executor hashes it.
fn span(r: &Region, skipped: bool) -> Span {
    Span { address: r.address, bytes: r.bytes, skipped: skipped || r.kind == Kind::Array }
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
    type Hashes = Hashes;

    fn regions(&self) -> Result<Vec<Region>, SyncError> {
        region::regions(self)
    }

    fn most_pages(&self, regions: usize) -> u64 {
        // Twice, because a driver need not count all memory, and one more for each region, whose last page may be shorter.
        (self.device().total_bytes / PAGE).saturating_mul(2).saturating_add(regions as u64)
    }

    fn hashes(&self, pages: usize) -> Result<Hashes, SyncError> {
        Executor::hashes(self, pages).map_err(SyncError::gpu("making a table of hashes"))
    }

    fn hash(&self, key: &PageKey, pages: &Pages, which: Which<'_>) -> Result<(Hashes, usize), SyncError> {
        let spans = pages.regions().iter().map(|r| span(r, !which(r)));
        let mut hashes = Executor::hash(self, 0, key, spans).map_err(SyncError::gpu("hashing memory"))?;
        let mut missing = hashes.missing();
        // Kernels cannot access arrays as memory. They can access everything else, including constants: code of libraries has thousands
        // of variables of a few bytes, and a copy of each takes longer than a block of threads for each.
        let arrays = pages.numbered().filter(|(r, _)| r.kind == Kind::Array && which(r));
        let arrays: Vec<(usize, Page)> =
            arrays.flat_map(|(r, first)| (0..r.pages()).map(move |n| (first + n as usize, r.page(n)))).collect();
        for batch in batches(&arrays, |(_, p)| p.bytes) {
            let pages: Vec<Page> = batch.iter().map(|(_, page)| *page).collect();
            let (mut buffer, gone) = self.land(self.read(0, self.buffer()?, &pages, false)?)?;
            let mut rest = &self.bytes(&mut buffer)[..];
            for (number, page) in batch {
                let (bytes, after) = rest.split_at(page.bytes as usize);
                hashes.as_mut()[*number] = if gone > 0 { NO_HASH } else { *blake3::hash(bytes).as_bytes() };
                rest = after;
            }
            missing += if gone > 0 { batch.len() } else { 0 };
        }
        Ok((hashes, missing))
    }

    fn fold(&self, key: &PageKey, table: &Hashes) -> Result<Vec<PageHash>, SyncError> {
        Executor::fold(self, 0, key, table).map_err(SyncError::gpu("hashing hashes"))
    }

    fn hash_shown(&self, key: &PageKey, pages: &Pages) -> Result<(), SyncError> {
        let spans = pages.regions().iter().map(|r| span(r, false));
        Executor::hash_shown(self, 0, key, spans).map_err(SyncError::gpu("hashing memory"))
    }

    fn differing(&self, target: &Hashes, from: usize, source: Option<&Hashes>) -> Result<Vec<u64>, SyncError> {
        let theirs = source.map_or(Theirs::Shown, Theirs::Received);
        Executor::differing(self, 0, target, from, theirs).map_err(SyncError::gpu("comparing hashes"))
    }

    fn buffer(&self) -> Result<Pinned, SyncError> {
        self.pinned(BATCH).map_err(SyncError::gpu("making a buffer"))
    }

    fn bytes<'a>(&self, buffer: &'a mut Pinned) -> &'a mut [u8] {
        buffer.bytes_mut()
    }

    fn read(&self, lane: usize, to: Pinned, pages: &[Page], at_rest: bool) -> Result<Flight, SyncError> {
        self.copy_from_gpu(lane, to, &pieces(pages), at_rest).map_err(SyncError::gpu("reading memory"))
    }

    fn write(&self, lane: usize, from: Pinned, pages: &[Page], at_rest: bool) -> Result<Flight, SyncError> {
        self.note_moved(pages.iter().map(|p| p.bytes).sum());
        self.copy_to_gpu(lane, from, &pieces(pages), at_rest).map_err(SyncError::gpu("writing memory"))
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
        let pages = chunks.iter().map(|c| c.bytes.div_ceil(PAGE)).sum::<u64>();
        let hashes = self.offer_hashes(pages as usize).ok();
        Show { gpu: Memory::gpu(self), offer, hashes, chunks, regions: Vec::new() }
    }

    fn view(&self, show: &Show) -> (Vec<u64>, Option<String>) {
        let (chunks, trouble) = Executor::view(self, &show.offer, show.hashes.as_ref(), &show.chunks);
        (chunks, trouble.map(|e| e.to_string()))
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
