//! Page hashes, computed and compared by the GPU. What the processor does depends on the number of ranges of memory and of pages that
//! differ, and not on the number of pages: a job of 128 GiB has two millions.
//!
//! A table of hashes lies in page-locked memory: the GPU writes 32 bytes of it for each page that it reads, so its way there is no limit.
//! Where two places are on one machine, that memory is a file that both map ([`Executor::offer_hashes`], [`Executor::take_hashes`]), and
//! the target's GPU compares its own table with the source's.

use super::own::{RANGE_BYTES, RANGES};
use super::state::arrays::is_window;
use super::state::buffers::Pinned;
use super::state::mappings::HashFile;
use super::view::{SourceMemoryError, failed};
use super::{ContextState, Executor, Flight};
use crate::memory_file;
use crate::page_hash::{KEY_BYTES, NO_HASH, PAGE_BYTES, PageHash, PageKey};
use crate::share;
use cuda_api::code::{self, Code};
use cuda_api::lock::{lock, read_lock};
use cuda_api::ops::Offer;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Pages that one launch hashes: the job's kernels may run behind it.
const AT_ONCE: u32 = 32 << 10;
/// Smallest size of a table. Sizes are powers of two, so that there are few kinds of them.
const SMALLEST: usize = 64 << 10;
/// Bytes of a hash.
const HASH: usize = size_of::<PageHash>();

/// A range of memory whose pages are hashed: [`PAGE_BYTES`] each, the last one may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its address.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether its pages only take their place in the table.
    pub skipped: bool,
}

impl Span {
    fn pages(&self) -> u64 {
        self.bytes.div_ceil(PAGE_BYTES as u64)
    }
}

/// Hashes of pages, by their numbers.
#[derive(Debug)]
pub struct Hashes {
    buffer: Pinned,
    pages: usize,
    missing: usize,
}

impl Hashes {
    /// Number of pages whose memory did not exist.
    pub fn missing(&self) -> usize {
        self.missing
    }
}

impl AsRef<[PageHash]> for Hashes {
    fn as_ref(&self) -> &[PageHash] {
        &self.buffer.bytes().as_chunks().0[..self.pages]
    }
}

impl AsMut<[PageHash]> for Hashes {
    fn as_mut(&mut self) -> &mut [PageHash] {
        &mut self.buffer.bytes_mut().as_chunks_mut().0[..self.pages]
    }
}

/// With what hashes are compared.
#[derive(Debug, Clone, Copy)]
pub enum Theirs<'a> {
    /// A table of as many pages.
    Received(&'a Hashes),
    /// The table of the source on this machine ([`Executor::take_hashes`]), from its beginning.
    Shown,
}

/// Size of a table for so many pages.
fn table_bytes(pages: usize) -> Option<usize> {
    pages.max(1).checked_mul(HASH)?.max(SMALLEST).checked_next_power_of_two()
}

/// A row of the kernel's ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    address: u64,
    bytes: u64,
    /// Its place in the table of hashes.
    slot: u32,
}

impl Row {
    fn pages(&self) -> u32 {
        self.bytes.div_ceil(PAGE_BYTES as u64) as u32
    }
}

/// The ranges of spans that are there; `absent` gets the others, with the places of their pages in the table. Ranges that follow each other in
/// memory and in the table are one.
fn rows(
    spans: impl Iterator<Item = Span>,
    mut is_there: impl FnMut(&Span) -> bool,
    mut absent: impl FnMut(&Span, Range<usize>),
) -> Result<Vec<Row>, Code> {
    let (mut rows, mut slot): (Vec<Row>, u32) = (Vec::new(), 0);
    for span in spans {
        let pages = u32::try_from(span.pages()).ok().filter(|n| *n > 0).ok_or(code::ERROR_INVALID_VALUE)?;
        let end = slot.checked_add(pages).ok_or(code::ERROR_INVALID_VALUE)?;
        if span.skipped || !is_there(&span) {
            absent(&span, slot as usize..end as usize);
        } else {
            match rows.last_mut() {
                Some(row)
                    if row.slot + row.pages() == slot
                        && row.address + row.bytes == span.address
                        && row.bytes.is_multiple_of(PAGE_BYTES as u64) =>
                {
                    row.bytes += span.bytes;
                }
                _ => rows.push(Row { address: span.address, bytes: span.bytes, slot }),
            }
        }
        slot = end;
    }
    Ok(rows)
}

impl Executor {
    /// A table for the hashes of so many pages. It has any contents.
    ///
    /// # Errors
    /// There is no memory.
    pub fn hashes(&self, pages: usize) -> Result<Hashes, Code> {
        let bytes = table_bytes(pages).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        Ok(Hashes { buffer: self.pinned(bytes)?, pages, missing: 0 })
    }

    /// Hashes of the pages of spans of GPU memory under a key, computed on the GPU; [`NO_HASH`] for the pages of memory that no longer
    /// exists or is skipped. Waits for the result, but not for the job's streams.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an empty span; an execution error.
    pub fn hash(self: &Arc<Self>, lane: usize, key: &PageKey, spans: impl Iterator<Item = Span> + Clone) -> Result<Hashes, Code> {
        let pages = spans.clone().map(|s| s.pages()).fold(0, u64::saturating_add);
        let mut hashes = self.hashes(usize::try_from(pages).map_err(|_| code::ERROR_INVALID_VALUE)?)?;
        let _one_at_a_time = lock(&self.hashing);
        // Flights are waited for, and dropped, without the locks, as for copies: what waits takes them itself.
        let mut flights = Vec::new();
        let life = self.life();
        if hashes.buffer.life != life.number {
            return Err(code::ERROR_CONTEXT_IS_DESTROYED);
        }
        let staying = read_lock(&self.mapping);
        let rows = self.rows(spans, |span, part| {
            hashes.missing += if span.skipped { 0 } else { part.len() };
            hashes.as_mut()[part].fill(NO_HASH);
        })?;
        if rows.is_empty() {
            return Ok(hashes);
        }
        let submitted = self.start_hashing(&life, lane, key, &rows, hashes.buffer.at as u64, &mut flights);
        let flight = self.take_off(&life, hashes.buffer, life.lane(lane));
        drop((staying, life));
        submitted?;
        Ok(Hashes { buffer: flight?.wait()?, ..hashes })
    }

    /// As [`Executor::hash`], into the table that [was offered](Executor::offer_hashes) to a target on this machine.
    ///
    /// # Errors
    /// `INVALID_VALUE`: it is too small, or there is none.
    pub fn hash_shown(
        self: &Arc<Self>,
        lane: usize,
        key: &PageKey,
        spans: impl Iterator<Item = Span> + Clone,
    ) -> Result<(), Code> {
        if spans.clone().next().is_none() {
            return Ok(());
        }
        self.make_current()?;
        let pages = spans.clone().map(|s| s.pages()).fold(0, u64::saturating_add);
        let _one_at_a_time = lock(&self.hashing);
        let mut flights = Vec::new();
        let life = self.life();
        let staying = read_lock(&self.mapping);
        let mut shown = lock(&self.views.hashes);
        let file = shown.as_mut().filter(|file| pages <= (file.bytes / HASH) as u64).ok_or(code::ERROR_INVALID_VALUE)?;
        let at = self.pin_hashes(file)?;
        let rows = self.rows(spans, |_, part| {
            // SAFETY: inside the mapping, which lives as long as the context. Only GPUs read the file, and the one here does not write to
            // it now, since one thread hashes at a time.
            unsafe { std::ptr::write_bytes((at + part.start * HASH) as *mut u8, 0, part.len() * HASH) };
        })?;
        let submitted = self.start_hashing(&life, lane, key, &rows, at as u64, &mut flights);
        drop((shown, staying, life));
        submitted?;
        flights.into_iter().try_for_each(|flight| flight.wait().map(drop))
    }

    /// The hashes of a table of hashes, as [`PageKey::fold`] has them, computed on the GPU.
    ///
    /// # Errors
    /// An execution error.
    pub fn fold(self: &Arc<Self>, lane: usize, key: &PageKey, table: &Hashes) -> Result<Vec<PageHash>, Code> {
        let bytes = (table.pages * HASH) as u64;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let row = Row { address: table.buffer.at as u64, bytes, slot: 0 };
        let folded = self.hashes(row.pages() as usize)?;
        let _one_at_a_time = lock(&self.hashing);
        let mut flights = Vec::new();
        let life = self.life();
        if [&table.buffer, &folded.buffer].iter().any(|buffer| buffer.life != life.number) {
            return Err(code::ERROR_CONTEXT_IS_DESTROYED);
        }
        let submitted = self.start_hashing(&life, lane, key, &[row], folded.buffer.at as u64, &mut flights);
        let flight = self.take_off(&life, folded.buffer, life.lane(lane));
        drop(life);
        submitted?;
        Ok(Hashes { buffer: flight?.wait()?, ..folded }.as_ref().to_vec())
    }

    /// Compares the hashes from page `from` on with those of another place. Bit n of the result says whether page `from` + n is another one
    /// there; pages that do not exist there are left alone.
    ///
    /// # Errors
    /// `INVALID_VALUE`: the tables do not belong together; an execution error.
    pub fn differing(self: &Arc<Self>, lane: usize, ours: &Hashes, from: usize, theirs: Theirs<'_>) -> Result<Vec<u64>, Code> {
        let pages = ours.pages.checked_sub(from).ok_or(code::ERROR_INVALID_VALUE)?;
        let count = u32::try_from(pages).map_err(|_| code::ERROR_INVALID_VALUE)?;
        if pages == 0 {
            return Ok(Vec::new());
        }
        let words = pages.div_ceil(64);
        let mut bits = self.pinned((8 * words).max(SMALLEST).next_power_of_two())?;
        // The kernel writes half of the last word if there are no pages for the other half.
        bits.bytes_mut()[8 * (words - 1)..8 * words].fill(0);
        let life = self.life();
        let is_old = |buffer: &Pinned| buffer.life != life.number;
        let table = match theirs {
            Theirs::Received(table) if table.pages != pages => return Err(code::ERROR_INVALID_VALUE),
            Theirs::Received(table) if is_old(&table.buffer) => return Err(code::ERROR_CONTEXT_IS_DESTROYED),
            Theirs::Received(table) => table.buffer.at as u64,
            Theirs::Shown => {
                let shown = lock(&self.views.their_hashes);
                let file = shown.as_ref().filter(|file| pages <= file.bytes / HASH);
                file.and_then(|file| file.at).ok_or(code::ERROR_INVALID_VALUE)? as u64
            }
        };
        if is_old(&ours.buffer) || is_old(&bits) {
            return Err(code::ERROR_CONTEXT_IS_DESTROYED);
        }
        let (stream, tables) = (life.lane(lane), [(ours.buffer.at + from * HASH) as u64, table]);
        let submitted = life.own.differ(&self.gpu, tables, count, bits.at as u64, stream);
        let flight = self.take_off(&life, bits, stream);
        drop(life);
        submitted?;
        let bits = flight?.wait()?;
        Ok(bits.bytes()[..8 * words].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// As [`rows`], for memory of this place.
    fn rows(&self, spans: impl Iterator<Item = Span>, absent: impl FnMut(&Span, Range<usize>)) -> Result<Vec<Row>, Code> {
        let mut is_there = self.presence();
        // Kernels cannot read the contents of arrays through window numbers.
        rows(spans, |span| !is_window(span.address) && is_there(span.address, span.bytes), absent)
    }

    /// Starts hashing pages into a table at an address. The results are there when the last flight has ended.
    fn start_hashing(
        self: &Arc<Self>,
        life: &ContextState,
        lane: usize,
        key: &PageKey,
        rows: &[Row],
        hashes: u64,
        flights: &mut Vec<Flight>,
    ) -> Result<(), Code> {
        let stream = life.lane(lane);
        let mut buffer = self.pinned_in(life, KEY_BYTES)?;
        buffer.bytes_mut().as_chunks_mut::<4>().0.iter_mut().zip(key.bytes()).for_each(|(to, word)| *to = word);
        // SAFETY: the buffer has so many bytes, and the flight owns it until the copy has been made.
        let submitted = unsafe { self.gpu.copy_in(life.own.page_key, buffer.at as *const u8, KEY_BYTES as u64, stream) };
        flights.push(self.take_off(life, buffer, stream)?);
        submitted?;
        for rows in rows.chunks(RANGES) {
            let mut buffer = self.pinned_in(life, RANGES * RANGE_BYTES)?;
            let mut pages = 0u32;
            for (to, row) in buffer.bytes_mut().as_chunks_mut::<RANGE_BYTES>().0.iter_mut().zip(rows) {
                let numbers = u64::from(pages) | u64::from(row.slot) << 32;
                to.as_chunks_mut().0.iter_mut().zip([row.address, row.bytes, numbers]).for_each(|(to, n)| *to = n.to_le_bytes());
                pages += row.pages();
            }
            let bytes = (rows.len() * RANGE_BYTES) as u64;
            // SAFETY: as above.
            let mut submitted = unsafe { self.gpu.copy_in(life.own.ranges, buffer.at as *const u8, bytes, stream) };
            for from in (0..pages).step_by(AT_ONCE as usize) {
                let part = from..pages.min(from.saturating_add(AT_ONCE));
                submitted = submitted.and_then(|()| life.own.hash(&self.gpu, rows.len() as u32, part, hashes, stream));
            }
            flights.push(self.take_off(life, buffer, stream)?);
            submitted?;
        }
        Ok(())
    }

    /// Offers a table for the hashes of so many pages to a target on this machine, until [`Executor::end_view`].
    ///
    /// # Errors
    /// The system's: there is no memory that two processes can map.
    pub fn offer_hashes(&self, pages: usize) -> io::Result<Offer> {
        let mut shown = lock(&self.views.hashes);
        if let Some(file) = shown.as_mut().filter(|file| pages <= file.bytes / HASH) {
            return file.offer();
        }
        let bytes = table_bytes(pages).ok_or(io::ErrorKind::InvalidInput)?;
        let file = HashFile::new(memory_file::create(bytes, c"mrcuda-hashes", memory_file::SIZE)?, bytes);
        lock(&self.views.old_hashes).extend(shown.take());
        shown.insert(file).offer()
    }

    /// Maps the table that a source on this machine offers, for the hashes of so many pages.
    ///
    /// # Errors
    /// It cannot be mapped, or is too small.
    pub(super) fn take_hashes(&self, offer: &Offer, pages: u64) -> Result<(), SourceMemoryError> {
        // Before the table, as everywhere: the end of a context waits for one and then takes the other.
        let _life = self.life();
        let mut theirs = lock(&self.views.their_hashes);
        if theirs.as_ref().is_some_and(|file| file.offer == Some(*offer) && pages <= (file.bytes / HASH) as u64) {
            return Ok(());
        }
        let fd = share::fetch(offer).map_err(SourceMemoryError::Hashes)?;
        // Not more of it than is needed: the source chose its size.
        let bytes = usize::try_from(pages).ok().and_then(table_bytes);
        let bytes = bytes.filter(|bytes| memory_file::fixed_size(fd.as_fd()).is_some_and(|size| *bytes as u64 <= size));
        let mut file = HashFile::new(fd, bytes.ok_or(SourceMemoryError::HashTable)?);
        file.offer = Some(*offer);
        self.pin_hashes(&mut file).map_err(failed("mapping the source's hashes"))?;
        lock(&self.views.old_hashes).extend(theirs.replace(file));
        Ok(())
    }

    /// The address at which this process and its GPU have a file.
    fn pin_hashes(&self, file: &mut HashFile) -> Result<usize, Code> {
        match file.at {
            Some(at) => Ok(at),
            None => Ok(*file.at.insert(self.gpu.pin_file(file.bytes, file.fd.as_fd(), 0)?)),
        }
    }

    /// Gives up the tables of this place and of a source, at the end of a context. Until then they stay: like other page-locked memory they
    /// cannot be freed without a wait for the job's kernels.
    pub(super) fn end_hashes(&self) {
        let current = [lock(&self.views.hashes).take(), lock(&self.views.their_hashes).take()];
        let old = std::mem::take(&mut *lock(&self.views.old_hashes));
        for file in current.into_iter().flatten().chain(old) {
            file.at.into_iter().for_each(|at| self.gpu.unpin(at, file.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    fn span(address: u64, bytes: u64) -> Span {
        Span { address, bytes, skipped: false }
    }

    #[test]
    fn neighbours_are_one_range_and_keep_their_places() {
        let spans = [
            span(0, 2 * PAGE),
            span(2 * PAGE, PAGE),
            // Its last page is short, so the next one begins in the middle of a page of both.
            span(3 * PAGE, 10),
            span(3 * PAGE + 10, 6),
            Span { skipped: true, ..span(3 * PAGE + 16, 2 * PAGE) },
            span(5 * PAGE + 16, PAGE),
            span(1 << 40, PAGE),
            span((1 << 40) + PAGE, 5),
        ];
        let mut absent = Vec::new();
        let gone = |s: &Span| s.address != 1 << 40;
        let rows = rows(spans.into_iter(), gone, |_, part| absent.push(part)).unwrap();
        let row = |address, bytes, slot| Row { address, bytes, slot };
        let want = [row(0, 3 * PAGE + 10, 0), row(3 * PAGE + 10, 6, 4), row(5 * PAGE + 16, PAGE, 7), row((1 << 40) + PAGE, 5, 9)];
        assert_eq!((rows, absent), (want.to_vec(), vec![5..7, 8..9]));
    }

    #[test]
    fn impossible_spans_are_refused() {
        let all = |spans: &[Span]| rows(spans.iter().copied(), |_| true, |_, _| {});
        assert_eq!(all(&[span(0, 0)]), Err(code::ERROR_INVALID_VALUE));
        assert_eq!(all(&[span(0, u64::MAX)]), Err(code::ERROR_INVALID_VALUE));
        let half = span(0, PAGE << 31);
        assert_eq!(all(&[half, half]), Err(code::ERROR_INVALID_VALUE));
    }

    #[test]
    fn tables_have_few_sizes() {
        assert_eq!([0, 1, 2048, 2049, 1 << 21].map(table_bytes), [1 << 16, 1 << 16, 1 << 16, 1 << 17, 1 << 26].map(Some));
        assert_eq!(table_bytes(usize::MAX), None);
    }
}
