//! Blocks of managed memory that a place keeps in the GPU's memory, for a job whose host does not touch such memory while kernels run.
//!
//! There are two copies of each block on the GPU: at the block's address what kernels use, and behind it, in the same reservation, what both
//! sides last agreed on. They are the place's side of [`crate::host_mirror`] for these blocks, with the same rule: bytes that differ from what was
//! agreed on were changed here.
//!
//! * **The GPU's changes.** A kernel compares the two copies, and writes nothing but which pages differ. These are copied to the host, both copies of
//!   them, and compared there; what the host has read becomes what is agreed on. So a page that changes while it is looked at is
//!   found again by the next scan, and nothing depends on when the kernel has run.
//! * **The job's changes** are written to both copies, only the bytes that have changed: a kernel may work on others next to them. If they are a few
//!   lines with few runs of bytes, these are copied; otherwise a kernel writes them. Of messages that follow each other only the last one is waited for.
//! * **Behind a kernel that fills the GPU** no other kernel gets through, but copies do (docs/driver-facts.md 10.12, 6.13). Nothing waits for
//!   such a kernel: if one of these kernels is late, it is called off, or what it finds is ignored, and copies do its work, slowly, until it has passed.

use super::buffers::{self, Pinned};
use crate::executor::own::Own;
use crate::gpu::Gpu;
use crate::gpu_memory::HeldMemory;
use crate::host_mirror::{self, LINE, LINE_BYTES, Line, LinesOfRuns};
use crate::staging::{Copies, Staging};
use cuda_api::address_map::{GRANULE, PAGE};
use cuda_api::code::{self, Code};
use cuda_api::ops::Fill;
use cuda_api::spin::{Pause, Spinning};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Bytes that one block of the comparing kernel compares.
const COMPARED: u64 = 64 << 10;
/// Bytes that are compared on the host at a time, from each copy, and how many of these pieces have buffers there.
const PIECE: usize = 4 << 20;
const PIECES: usize = 4;
/// Bytes that are otherwise copied at a time.
const CHUNK: usize = 1 << 20;
/// From this number of bytes on in which pages differ, the threads of connections for large copies compare them and carry what has changed.
const MANY: u64 = 1 << 20;
/// Maximum number of lines that the kernel writes at a time.
const LINES: usize = host_mirror::MESSAGE_LINES;
/// Number of launches of this kernel that nothing has waited for yet.
const LAUNCHES: usize = 32;
/// Number of streams in which they run: one block of threads spends most of its time waiting for lines that lie in host memory.
const WRITERS: usize = 4;
/// So many lines, with so many runs of changed bytes, are copied rather than written by a kernel.
const FEW: usize = 8;
/// Values of the word with which a launch says how far it is: it may still write; it has written everything.
const STARTED: u32 = 1;
const WRITTEN: u32 = 2;
/// Bytes of a pair and of a result of the comparing kernel.
const ROW: usize = 24 + 4;
/// How long this thread polls without sleeping for a kernel that should take little time, and the sleeps after that.
const SPIN: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_micros(50);
/// A kernel is late after this time, and this for each GiB that it compares: copying and comparing all of it takes about as long.
const LATE: Duration = Duration::from_millis(50);
const LATE_A_GIB: Duration = Duration::from_millis(100);

/// Bytes of the page-locked buffers of a context's blocks.
pub(crate) const BUFFERS: u64 = (2 * PIECES * PIECE + CHUNK + LAUNCHES * LINES * LINE_BYTES) as u64;

/// A block.
#[derive(Debug)]
struct GpuBlock {
    /// Bytes that are mirrored: whole pages.
    bytes: u64,
    reserved: Reserved,
}

/// The two copies of a block, in a reservation.
#[derive(Debug)]
struct Reserved {
    at: u64,
    /// Bytes of the reservation.
    slot: u64,
    /// Bytes that are mapped of each copy.
    mapped: u64,
    /// The memory of what is used and of what was agreed on, as far as it is mapped.
    memory: Vec<u64>,
    _held: HeldMemory,
}

impl Reserved {
    /// Where what was agreed on is, seen from what is used.
    fn agreed(&self) -> u64 {
        self.slot - self.mapped
    }

    /// Reserves the addresses and maps memory of zeros; on failure nothing remains.
    fn new(gpu: &Gpu, at: u64, slot: u64, mapped: u64, held: HeldMemory, stream: u64) -> Result<Reserved, Code> {
        let got = gpu.reserve(slot, at)?;
        if got != at {
            // The refusal is reported.
            let _ = gpu.unreserve(got, slot);
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        let mut new = Reserved { at, slot, mapped, memory: Vec::new(), _held: held };
        match new.map(gpu, stream) {
            Ok(()) => Ok(new),
            Err(rc) => {
                new.end(gpu);
                Err(rc)
            }
        }
    }

    fn map(&mut self, gpu: &Gpu, stream: u64) -> Result<(), Code> {
        for at in [self.at, self.at + self.agreed()] {
            let memory = gpu.create_memory(self.mapped, false)?;
            if let Err(rc) = gpu.map(at, self.mapped, memory) {
                // The first error is reported.
                let _ = gpu.release_memory(memory);
                return Err(rc);
            }
            self.memory.push(memory);
            gpu.allow(at, self.mapped)?;
            let width = self.mapped / 4;
            gpu.fill(&Fill { dst: at, pitch: 0, value: 0, element: 4, width, rows: 1, stream: 0 }, stream)?;
        }
        gpu.synchronize_stream(stream)
    }

    /// Gives everything back. It must no longer be in use.
    fn end(self, gpu: &Gpu) {
        for (at, memory) in [self.at, self.at + self.agreed()].into_iter().zip(self.memory) {
            // They fail only if the context has failed or was destroyed.
            let _ = gpu.unmap(at, self.mapped);
            let _ = gpu.release_memory(memory);
        }
        let _ = gpu.unreserve(self.at, self.slot);
    }
}

/// What is in a block.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Its bytes.
    pub(crate) now: Vec<u8>,
    /// Those that both sides agreed on.
    pub(crate) agreed: Vec<u8>,
}

/// A part of a block that is compared on the host.
#[derive(Debug, Clone, Copy)]
struct Piece {
    at: u64,
    /// Where the other copy is, seen from there.
    agreed: u64,
    bytes: u64,
}

/// The pages of all blocks, for the comparing kernel: pairs, and behind them a word for each.
#[derive(Debug)]
struct Table {
    buffer: Pinned,
    pages: Vec<(u64, u64)>,
}

/// The blocks of a context.
#[derive(Debug)]
pub(crate) struct GpuBlocks {
    gpu: Gpu,
    own: Own,
    context: usize,
    life: u64,
    /// For kernels, of the highest priority, and for copies, which do not wait for these.
    kernels: u64,
    copies: u64,
    /// Further streams of the highest priority, for launches of the kernel that writes, and an event of each.
    writers: Vec<(u64, u64)>,
    /// Recorded behind the last kernel, also of the further streams.
    passed: u64,
    /// Whether the last kernel was late and has not been seen to have ended.
    stuck: bool,
    /// Of [`PIECE`] bytes: while one piece is compared, the next ones are copied to the host.
    buffers: Vec<Arc<Copies>>,
    _pinned_buffers: Vec<Pinned>,
    /// [`CHUNK`] bytes, for copies of other kinds.
    bytes: Pinned,
    /// For each launch of the kernel that writes changes, [`LINES`] lines.
    lines: Pinned,
    /// For each of them two words: how far it is, and whether it may write.
    words: Pinned,
    /// What the launches that nothing has waited for write, in their order: number of lines, and where the other copy is.
    launches: Vec<(usize, u64)>,
    /// The end of the last line that [`GpuBlocks::apply`] has passed on since: lines behind it are other ones.
    reached: u64,
    table: Option<Table>,
    /// Whether the table is of other blocks, and a kernel that was late still reads it.
    outdated: bool,
    blocks: BTreeMap<u64, GpuBlock>,
}

/// A word that the GPU accesses, too.
fn shared_word(buffer: &Pinned, number: usize) -> &AtomicU32 {
    assert!(4 * (number + 1) <= buffer.len);
    // SAFETY: aligned, inside a page-locked buffer that lives as long as the borrow; only atomics and the GPU touch it.
    unsafe { AtomicU32::from_ptr((buffer.at as *mut u32).add(number)) }
}

/// A run of changed bytes: the address, and where they are among all changed bytes.
type Run = (u64, Range<usize>);

/// The runs of changed bytes of lines, with the bytes. Lines that follow each other may make one run.
fn runs(lines: &[[u8; LINE_BYTES]], bytes: &mut Vec<u8>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for line in lines {
        let [address, mut mask] = [0, 1].map(|i| host_mirror::word_of_line(line, i));
        while mask != 0 {
            let first = mask.trailing_zeros();
            let count = (mask >> first).trailing_ones();
            let from = 16 + first as usize;
            let at = bytes.len();
            bytes.extend_from_slice(&line[from..from + count as usize]);
            match runs.last_mut() {
                Some((start, part)) if *start + part.len() as u64 == address + u64::from(first) => part.end = bytes.len(),
                _ => runs.push((address + u64::from(first), at..bytes.len())),
            }
            mask = if first + count == 64 { 0 } else { mask >> (first + count) << (first + count) };
        }
    }
    runs
}

/// A further stream for launches, and its event.
fn writer(gpu: &Gpu, priority: i32) -> Result<(u64, u64), Code> {
    let event = gpu.new_event(false)?;
    let stream = gpu.new_stream_with_priority(false, priority).inspect_err(|_| _ = gpu.destroy_event(event))?;
    Ok((stream, event))
}

/// As many as a program wants, so there may be no memory for them.
fn zeros(bytes: u64) -> Result<Vec<u8>, Code> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(bytes as usize).map_err(|_| code::ERROR_OUT_OF_MEMORY)?;
    zeros.resize(bytes as usize, 0);
    Ok(zeros)
}

impl GpuBlocks {
    /// Prepares a context, which is current, for such blocks. `life`: its number.
    pub(crate) fn new(gpu: &Gpu, own: Own, (context, life): (usize, u64)) -> Result<GpuBlocks, Code> {
        let buffer = |bytes| buffers::take(gpu, life, bytes);
        let pinned_buffers = (0..2 * PIECES).map(|_| buffer(PIECE)).collect::<Result<Vec<Pinned>, Code>>()?;
        let two = |buffers: &[Pinned; 2]| {
            // SAFETY: buffers of so many bytes, which live longer than any scan, and each scan waits for all parts.
            Arc::new(unsafe { Copies::new(buffers.each_ref().map(|buffer| buffer.at), PIECE) })
        };
        let buffers = pinned_buffers.as_chunks().0.iter().map(two).collect();
        let (bytes, words) = (buffer(CHUNK)?, buffer(PAGE as usize)?);
        let lines = buffer(LAUNCHES * LINES * LINE_BYTES)?;
        let [_, highest] = gpu.priorities()?;
        let passed = gpu.new_event(false)?;
        let streams = gpu.new_stream_with_priority(false, highest).and_then(|kernels| {
            let copies = gpu.new_stream().inspect_err(|_| _ = gpu.destroy_stream(kernels))?;
            Ok((kernels, copies))
        });
        let (kernels, copies) = streams.inspect_err(|_| _ = gpu.destroy_event(passed))?;
        // Without all of them the first one takes all launches.
        let writers = (1..WRITERS).map_while(|_| writer(gpu, highest).ok()).collect();
        Ok(GpuBlocks {
            gpu: gpu.clone(),
            own,
            context,
            life,
            kernels,
            copies,
            writers,
            passed,
            stuck: false,
            buffers,
            _pinned_buffers: pinned_buffers,
            bytes,
            lines,
            words,
            launches: Vec::with_capacity(LAUNCHES),
            reached: 0,
            table: None,
            outdated: false,
            blocks: BTreeMap::new(),
        })
    }

    /// Ends all blocks and its streams. No kernel runs any more, or the context is about to be destroyed.
    pub(crate) fn end(mut self) {
        let _ = self.finish_launches();
        self.blocks.into_values().for_each(|block| block.reserved.end(&self.gpu));
        // They fail only if the context has failed.
        for (stream, event) in self.writers {
            let _ = self.gpu.destroy_stream(stream);
            let _ = self.gpu.destroy_event(event);
        }
        let _ = self.gpu.destroy_stream(self.kernels);
        let _ = self.gpu.destroy_stream(self.copies);
        let _ = self.gpu.destroy_event(self.passed);
    }

    /// Bytes of the GPU's memory that blocks use.
    pub(crate) fn used(&self) -> u64 {
        self.blocks.values().map(|block| 2 * block.reserved.mapped).sum()
    }

    /// Adds a block of zeros. The addresses of its slot are not in use; `held` is its memory on the GPU, twice its bytes in whole granules.
    pub(crate) fn add(&mut self, at: u64, bytes: u64, slot: u64, held: HeldMemory) -> Result<(), Code> {
        let mapped = bytes.next_multiple_of(GRANULE);
        let reserved = Reserved::new(&self.gpu, at, slot, mapped, held, self.copies)?;
        self.blocks.insert(at, GpuBlock { bytes: bytes.next_multiple_of(PAGE), reserved });
        self.outdated = true;
        Ok(())
    }

    /// Removes a block, which no work of the job uses any more.
    pub(crate) fn remove(&mut self, at: u64) {
        self.await_kernels();
        let Some(block) = self.blocks.remove(&at) else { return };
        self.outdated = true;
        block.reserved.end(&self.gpu);
    }

    /// Waits for kernels of its own that may still use a block. Another thread's kernels that fill the GPU may have to end before one that was
    /// late.
    pub(crate) fn await_kernels(&mut self) {
        // An error of the context is found by the next call.
        let _ = self.finish_launches();
        if self.stuck {
            let _ = self.gpu.synchronize_stream(self.kernels);
        }
    }

    /// What a block is.
    pub(crate) fn contents(&mut self, at: u64) -> Result<Contents, Code> {
        let (bytes, agreed) = self.blocks.get(&at).map(|b| (b.bytes, b.reserved.agreed())).ok_or(code::ERROR_INVALID_VALUE)?;
        let mut contents = Contents { now: zeros(bytes)?, agreed: zeros(bytes)? };
        self.finish_launches()?;
        self.copy_out(at, &mut contents.now)?;
        self.copy_out(at + agreed, &mut contents.agreed)?;
        Ok(contents)
    }

    fn block(&self, at: u64) -> Option<(u64, &GpuBlock)> {
        self.blocks.range(..=at).next_back().map(|(start, b)| (*start, b)).filter(|(start, b)| at - start < b.bytes)
    }

    /// Returns whether all of a range is in a block.
    fn has(&self, at: u64, bytes: u64) -> bool {
        self.block(at).is_some_and(|(start, block)| bytes <= block.bytes - (at - start))
    }

    /// Writes bytes to a block, as the job's GPU would; returns false if they are not in one.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> bool {
        self.has(at, bytes.len() as u64)
            && self.gpu.set_current(self.context).is_ok()
            && self.finish_launches().is_ok()
            && (at..).step_by(CHUNK).zip(bytes.chunks(CHUNK)).all(|(to, piece)| {
                let buffer = &mut self.bytes;
                buffer.bytes_mut()[..piece.len()].copy_from_slice(piece);
                // SAFETY: the buffer has so many bytes, and is not used otherwise before the copy is complete.
                let copied = unsafe { self.gpu.copy_in(to, buffer.at as *const u8, piece.len() as u64, self.copies) };
                copied.and_then(|()| self.gpu.synchronize_stream(self.copies)).is_ok()
            })
    }

    /// Reads bytes of a block; returns false if not all of them are in one.
    pub(crate) fn read(&mut self, at: u64, to: &mut [u8]) -> bool {
        self.has(at, to.len() as u64)
            && self.gpu.set_current(self.context).is_ok()
            && self.finish_launches().is_ok()
            && self.copy_out(at, to).is_ok()
    }

    fn copy_out(&mut self, at: u64, to: &mut [u8]) -> Result<(), Code> {
        (at..).step_by(CHUNK).zip(to.chunks_mut(CHUNK)).try_for_each(|(from, piece)| {
            let buffer = &mut self.bytes;
            // SAFETY: the buffer has so many bytes, and is not used otherwise before the copy is complete.
            unsafe { self.gpu.copy_out(buffer.at as *mut u8, from, piece.len() as u64, self.copies) }?;
            self.gpu.synchronize_stream(self.copies)?;
            piece.copy_from_slice(&buffer.bytes()[..piece.len()]);
            Ok(())
        })
    }

    /// Returns whether a kernel would not be queued behind one that was late.
    fn gets_through(&mut self) -> Result<bool, Code> {
        if self.stuck {
            match self.gpu.query_event(self.passed) {
                Err(code::ERROR_NOT_READY) => return Ok(false),
                other => other?,
            }
            self.stuck = false;
        }
        Ok(true)
    }

    /// Waits for the kernel that was just launched; returns false if it is late.
    fn wait(&mut self, bytes: u64) -> Result<bool, Code> {
        self.gpu.record(self.passed, self.kernels)?;
        let late = LATE + LATE_A_GIB * (bytes >> 30) as u32;
        let mut spinning = Spinning::begin();
        loop {
            match self.gpu.query_event(self.passed) {
                Err(code::ERROR_NOT_READY) => {}
                other => return other.map(|()| true),
            }
            if spinning.elapsed() >= late {
                return Ok(false);
            }
            if !spinning.goes_on(Pause::Keep(1), SPIN) {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Passes on the lines that the GPU has changed since the last scan, in parts, by address; or lets the connections of these areas carry what has
    /// changed, if that may be much, `after` so many messages with changes, and waits for its arrival.
    ///
    /// # Errors
    /// The context has failed.
    pub(crate) fn scan(&mut self, (staging, after): (&Staging, u64), mut found: impl FnMut(Vec<Line>)) -> Result<(), Code> {
        self.finish_launches()?;
        let ranges = match self.differing() {
            Ok(Some(ranges)) => ranges,
            Err(rc) if code::is_sticky(rc) => return Err(rc),
            // Also if there is no memory for the kernel: otherwise the job would use outdated bytes.
            Ok(None) | Err(_) => self.blocks.iter().map(|(at, block)| (*at, block.bytes)).collect(),
        };
        let mut pieces = Vec::new();
        for (start, bytes) in ranges {
            let Some(agreed) = self.block(start).map(|(_, block)| block.reserved.agreed()) else { continue };
            let of = |at| Piece { at, agreed, bytes: (start + bytes - at).min(PIECE as u64) };
            pieces.extend((start..start + bytes).step_by(PIECE).map(of));
        }
        let many = pieces.iter().map(|piece| piece.bytes).sum::<u64>() >= MANY;
        let compared = if many && staging.carries_changes() {
            let compared = self.compare_by_connections(&pieces, staging, after);
            // Also after an error: the connections use the buffers.
            staging.await_changes();
            compared
        } else {
            self.compare(&pieces, &mut found)
        };
        // Copies that have begun use the buffers.
        compared.inspect_err(|_| _ = self.gpu.synchronize_stream(self.copies))
    }

    /// Compares pieces on the host, and passes on lists of the lines that differ. As they were read, they are agreed on from now on.
    fn compare(&mut self, pieces: &[Piece], found: &mut impl FnMut(Vec<Line>)) -> Result<(), Code> {
        for (number, piece) in pieces.iter().enumerate() {
            self.fetch_next(pieces, number)?;
            let bytes = piece.bytes as usize;
            let [now, was] = self.buffers[number % PIECES].part(0..bytes);
            // SAFETY: the buffers are this thread's, and no copy uses them now; they begin at a multiple of a page.
            let lists = unsafe {
                let was = std::slice::from_raw_parts_mut(was.cast::<u64>(), bytes / 8);
                host_mirror::differing_lines(piece.at, std::slice::from_raw_parts(now, bytes), was)
            };
            if !lists.is_empty() {
                self.agree(piece, number)?;
            }
            lists.into_iter().for_each(&mut *found);
        }
        // Kernels that write the job's changes do not wait for this stream.
        if pieces.is_empty() { Ok(()) } else { self.gpu.synchronize_stream(self.copies) }
    }

    /// As [`GpuBlocks::compare`], by the threads of connections, which carry what they find.
    fn compare_by_connections(&mut self, pieces: &[Piece], staging: &Staging, after: u64) -> Result<(), Code> {
        for (number, piece) in pieces.iter().enumerate() {
            // The next piece takes these buffers.
            if let Some(earlier) = (number + 1).checked_sub(PIECES) {
                staging.await_compared(&self.buffers[earlier % PIECES]);
                self.agree(&pieces[earlier], earlier)?;
            }
            self.fetch_next(pieces, number)?;
            staging.send_changes(after, piece.at, piece.bytes as usize, &self.buffers[number % PIECES]);
        }
        for (number, piece) in pieces.iter().enumerate().skip(pieces.len().saturating_sub(PIECES - 1)) {
            staging.await_compared(&self.buffers[number % PIECES]);
            self.agree(piece, number)?;
        }
        self.gpu.synchronize_stream(self.copies)
    }

    /// Waits until a piece is in its buffers, and begins to copy the next one to those that follow, which are free.
    fn fetch_next(&mut self, pieces: &[Piece], number: usize) -> Result<(), Code> {
        if number == 0 {
            self.fetch(pieces, 0)?;
        }
        self.gpu.synchronize_stream(self.copies)?;
        self.fetch(pieces, number + 1)
    }

    /// Begins to copy a piece, if there is one of this number, to its buffers.
    fn fetch(&mut self, pieces: &[Piece], number: usize) -> Result<(), Code> {
        let Some(&Piece { at, agreed, bytes }) = pieces.get(number) else { return Ok(()) };
        let [now, was] = self.buffers[number % PIECES].part(0..bytes as usize);
        // SAFETY: the buffers have so many bytes, and are not used otherwise before the copies are complete.
        unsafe {
            self.gpu.copy_out(now, at, bytes, self.copies)?;
            self.gpu.copy_out(was, at + agreed, bytes, self.copies)
        }
    }

    /// Begins to make what was read of a piece what is agreed on.
    fn agree(&mut self, piece: &Piece, number: usize) -> Result<(), Code> {
        let [_, was] = self.buffers[number % PIECES].part(0..piece.bytes as usize);
        // SAFETY: the buffer has so many bytes, and is not written to before the next wait for this stream.
        unsafe { self.gpu.copy_in(piece.at + piece.agreed, was, piece.bytes, self.copies) }
    }

    /// Ranges that contain all that the GPU has changed; `None` if the kernel that looks for them is late.
    fn differing(&mut self) -> Result<Option<Vec<(u64, u64)>>, Code> {
        if self.blocks.is_empty() || !self.gets_through()? {
            return Ok(if self.blocks.is_empty() { Some(Vec::new()) } else { None });
        }
        let known = self.table.take().filter(|_| !std::mem::take(&mut self.outdated));
        let mut table = known.map_or_else(|| self.table_of_blocks(), Ok)?;
        let count = table.pages.len();
        let (pairs, results) = (table.buffer.at as u64, (table.buffer.at + 24 * count) as u64);
        table.buffer.bytes_mut()[24 * count..ROW * count].fill(0);
        let launched = self.own.compare(&self.gpu, pairs, results, count as u32, self.kernels);
        // From now on the kernel may use it.
        let table = self.table.insert(table);
        let pages = table.pages.iter().map(|(_, bytes)| bytes).sum();
        launched?;
        if !self.wait(pages)? {
            self.stuck = true;
            return Ok(None);
        }
        let Some(table) = &self.table else { return Ok(None) };
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for ((at, bytes), number) in table.pages.iter().zip(0..) {
            if shared_word(&table.buffer, 6 * count + number).load(Ordering::Acquire) == 0 {
                continue;
            }
            match ranges.last_mut() {
                // Blocks have gaps between them.
                Some((start, all)) if *start + *all == *at => *all += bytes,
                _ => ranges.push((*at, *bytes)),
            }
        }
        Ok(Some(ranges))
    }

    fn table_of_blocks(&self) -> Result<Table, Code> {
        let mut pages = Vec::new();
        let mut rows: Vec<u8> = Vec::new();
        for (start, block) in &self.blocks {
            for at in (*start..start + block.bytes).step_by(COMPARED as usize) {
                let bytes = COMPARED.min(start + block.bytes - at);
                pages.push((at, bytes));
                rows.extend([at, at + block.reserved.agreed(), bytes].iter().flat_map(|n| n.to_le_bytes()));
            }
        }
        let mut buffer = buffers::take(&self.gpu, self.life, (ROW * pages.len()).next_power_of_two().max(PAGE as usize))?;
        buffer.bytes_mut()[..rows.len()].copy_from_slice(&rows);
        Ok(Table { buffer, pages })
    }

    /// Writes changes of the job. Lines outside of the blocks are skipped; returns false if there are any. If `more` of them are about to come,
    /// they need not be written when this returns.
    ///
    /// # Errors
    /// The context has failed.
    pub(crate) fn apply(&mut self, lines: &[[u8; LINE_BYTES]], more: bool) -> Result<bool, Code> {
        let (mut rest, mut all_known) = (lines, true);
        while let Some((first, others)) = rest.split_first() {
            let at = host_mirror::word_of_line(first, 0);
            let Some((start, block)) = self.block(at).filter(|_| at.is_multiple_of(LINE)) else {
                (rest, all_known) = (others, false);
                continue;
            };
            let (end, agreed) = (start + block.bytes, block.reserved.agreed());
            // Lines of one launch have different addresses.
            let mut next = at;
            let fits = |line: &&[u8; LINE_BYTES]| {
                let at = host_mirror::word_of_line(line, 0);
                let fits = (next..end).contains(&at) && at.is_multiple_of(LINE);
                next = at.wrapping_add(LINE);
                fits
            };
            let count = rest.iter().take(LINES).take_while(fits).count();
            let (some, others) = rest.split_at(count);
            if at < self.reached {
                // Those that are not waited for run in any order.
                self.finish_launches()?;
            }
            self.put(some, agreed)?;
            // Behind it, because it may wait for all that was launched before.
            self.reached = host_mirror::word_of_line(&some[count - 1], 0) + LINE;
            rest = others;
        }
        if !more {
            self.finish_launches()?;
        }
        Ok(all_known)
    }

    /// As [`GpuBlocks::apply`] with more lines to come; no two messages between two waits have the same line. Returns false, having done nothing, if they
    /// are not all in one block.
    ///
    /// # Errors
    /// The context has failed.
    pub(crate) fn apply_runs(&mut self, changes: &LinesOfRuns) -> Result<bool, Code> {
        let range = changes.range();
        let Some((_, block)) = self.block(range.start).filter(|_| self.has(range.start, range.end - range.start)) else {
            return Ok(false);
        };
        let agreed = block.reserved.agreed();
        changes.lines.chunks(LINES).try_for_each(|some| self.put(some, agreed)).map(|()| true)
    }

    /// Writes lines to what is used and to what was agreed on, now or with a launch that is not waited for.
    fn put(&mut self, lines: &[[u8; LINE_BYTES]], agreed: u64) -> Result<(), Code> {
        if self.launches.len() == LAUNCHES {
            self.finish_launches()?;
        }
        let few = lines.len() <= FEW && runs(lines, &mut Vec::new()).len() <= FEW;
        if !few && self.gets_through()? && self.launch(lines, agreed)? {
            return Ok(());
        }
        // They may write the same bytes.
        self.finish_launches()?;
        self.copy_in(lines, agreed)
    }

    /// Copies the changed bytes of lines.
    fn copy_in(&mut self, lines: &[[u8; LINE_BYTES]], agreed: u64) -> Result<(), Code> {
        let mut bytes = Vec::with_capacity(size_of_val(lines));
        let runs = runs(lines, &mut bytes);
        let buffer = &mut self.bytes;
        buffer.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        for (at, part) in &runs {
            for to in [*at, at + agreed] {
                // SAFETY: the buffer has these bytes, and is not used otherwise before the copies are complete.
                unsafe { self.gpu.copy_in(to, (buffer.at + part.start) as *const u8, part.len() as u64, self.copies) }?;
            }
        }
        self.gpu.synchronize_stream(self.copies)
    }

    /// The words of a launch: how far it is, and whether it may write.
    fn words(&self, launch: usize) -> [&AtomicU32; 2] {
        [0, 1].map(|i| shared_word(&self.words, 2 * launch + i))
    }

    /// Lets a kernel write lines; returns false if it could not be launched.
    fn launch(&mut self, lines: &[[u8; LINE_BYTES]], agreed: u64) -> Result<bool, Code> {
        let launch = self.launches.len();
        let from = launch * LINES * LINE_BYTES;
        self.lines.bytes_mut()[from..from + size_of_val(lines)].copy_from_slice(lines.as_flattened());
        let [far, may] = self.words(launch);
        far.store(0, Ordering::Relaxed);
        may.store(1, Ordering::Release);
        let words = [far, may].map(|word| word.as_ptr() as u64);
        // Those that are not waited for write different lines: their order does not matter.
        let stream = self.writers.get(launch % WRITERS).map_or(self.kernels, |(stream, _)| *stream);
        match self.own.patch(&self.gpu, (self.lines.at + from) as u64, lines.len() as u32, agreed, words, stream) {
            Err(rc) if !code::is_sticky(rc) => return Ok(false),
            other => other?,
        }
        self.launches.push((lines.len(), agreed));
        Ok(true)
    }

    /// Returns whether there are launches that nothing has waited for.
    pub(crate) fn has_launches(&self) -> bool {
        !self.launches.is_empty()
    }

    /// Lets the first stream follow the others.
    fn join_writers(&self) -> Result<(), Code> {
        for (stream, event) in self.writers.iter().take(self.launches.len()) {
            self.gpu.record(*event, *stream)?;
            self.gpu.wait_event(self.kernels, *event)?;
        }
        Ok(())
    }

    /// Waits for what was launched. If that is late, what has not started writes nothing, and copies do its work.
    pub(crate) fn finish_launches(&mut self) -> Result<(), Code> {
        self.reached = 0;
        if self.launches.is_empty() {
            return Ok(());
        }
        let in_time = match self.join_writers().and_then(|()| self.wait(0)) {
            // Nothing tells when they are over.
            Err(rc) if !code::is_sticky(rc) => {
                let mut streams = self.writers.iter().map(|(stream, _)| *stream).chain([self.kernels]);
                streams.try_for_each(|stream| self.gpu.synchronize_stream(stream)).map(|()| true)
            }
            other => other,
        };
        let launches = std::mem::take(&mut self.launches);
        if in_time? {
            return Ok(());
        }
        // The last one first: none may write after one before it was called off.
        (0..launches.len()).rev().for_each(|launch| self.words(launch)[1].store(0, Ordering::SeqCst));
        // Each launch finds this word, or this thread finds the other one.
        fence(Ordering::SeqCst);
        for (launch, (count, agreed)) in launches.into_iter().enumerate() {
            // One that has started has a multiprocessor.
            while self.words(launch)[0].load(Ordering::Acquire) == STARTED {
                match self.gpu.query_event(self.passed) {
                    Err(code::ERROR_NOT_READY) => std::thread::sleep(PAUSE),
                    Ok(()) => break,
                    failed => return failed,
                }
            }
            if self.words(launch)[0].load(Ordering::Acquire) == WRITTEN {
                continue;
            }
            self.stuck = true;
            let from = launch * LINES * LINE_BYTES;
            let lines = self.lines.bytes()[from..from + count * LINE_BYTES].as_chunks().0.to_vec();
            self.copy_in(&lines, agreed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line whose bytes are their numbers.
    fn line(address: u64, mask: u64) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        line[..8].copy_from_slice(&address.to_le_bytes());
        line[8..16].copy_from_slice(&mask.to_le_bytes());
        (0..64).for_each(|i| line[16 + i] = i as u8);
        line
    }

    #[test]
    fn changed_bytes_that_follow_each_other_are_one_run() {
        let mut bytes = Vec::new();
        assert!(runs(&[line(0, 0)], &mut bytes).is_empty());
        let lines = [
            line(0x1000, u64::MAX),
            line(0x1040, u64::MAX),
            line(0x1080, 0x8000_0000_0000_000d),
            line(0x10c0, 1),
            line(0x2000, 6),
        ];
        let runs = runs(&lines, &mut bytes);
        let want = [(0x1000, 0..129), (0x1082, 129..131), (0x10bf, 131..133), (0x2001, 133..135)];
        assert_eq!(runs, want);
        assert_eq!(bytes[126..], [62, 63, 0, 2, 3, 63, 0, 1, 2]);
    }
}
