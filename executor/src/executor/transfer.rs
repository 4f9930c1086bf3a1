//! Transfers between GPU and host besides the job's work, used by memsync.
//!
//! A copy under way owns its buffer, so that no code can access bytes that are still being written.

use super::state::arrays::is_window;
use super::state::buffers::{self, Pinned};
use super::{ContextState, Executor};
use cuda_api::code::{self, Code};
use cuda_api::lock::{lock, read_lock, write_lock};
use std::sync::{Arc, RwLockWriteGuard};
use std::time::Duration;

/// Sizes of a table of pairs: for a range of memory with many pages, and for a buffer with few.
pub(super) const TABLE: usize = 2 << 20;
const SMALL_TABLE: usize = 4096 * PAIR;
/// Bytes of a pair.
pub(super) const PAIR: usize = 24;
/// Runs of at least this size are copied by the driver even where a kernel could copy them.
const LONG: usize = 256 << 10;

/// One piece of a copy between the GPU and a [`Pinned`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its device address.
    pub address: u64,
    /// Its offset in the buffer.
    pub at: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// Whether it is memory that the driver's copies refuse (the device heap): copied by a kernel.
    pub raw: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ToHost,
    ToGpu,
}

/// A copy under way.
#[derive(Debug)]
pub struct Flight {
    exec: Arc<Executor>,
    buffer: Option<Pinned>,
    /// What else the GPU reads meanwhile.
    table: Option<Pinned>,
    event: u64,
    life: u64,
    missing: usize,
}

impl Flight {
    /// Number of pieces that were skipped because their memory no longer exists.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Waits for the copy and returns the buffer.
    ///
    /// # Errors
    /// An execution error; the buffer is then lost.
    pub fn wait(mut self) -> Result<Pinned, Code> {
        // On an error the buffer is dropped with the flight, which does not let it be reused.
        self.land()?;
        self.buffer.take().ok_or(code::ERROR_UNKNOWN)
    }

    fn land(&self) -> Result<(), Code> {
        let mut pause = 1;
        loop {
            let life = self.exec.life();
            if life.number != self.life {
                return Err(code::ERROR_CONTEXT_IS_DESTROYED);
            }
            self.exec.make_current()?;
            match self.exec.gpu.query_event(self.event) {
                Err(code::ERROR_NOT_READY) => {}
                other => return other.inspect(|()| life.pools.recycle(self.event)),
            }
            drop(life);
            std::thread::sleep(Duration::from_micros(pause));
            pause = (pause * 2).min(100);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take()
            && self.land().is_err()
        {
            // The GPU may still use them, so they are not reused.
            std::mem::forget((buffer, self.table.take()));
        }
    }
}

/// The pieces whose memory exists, and how many do not. Those that follow each other at both ends, in one chunk, are one: a driver takes
/// microseconds for each copy, and a move of 16 GiB has a quarter of a million pages. `chunk_end`: the end of the chunk at an address, if
/// there is one.
fn runs(
    pieces: &[Piece],
    mut is_there: impl FnMut(u64, u64) -> bool,
    chunk_end: impl Fn(u64) -> Option<u64>,
) -> (Vec<Piece>, usize) {
    let (mut runs, mut missing): (Vec<Piece>, usize) = (Vec::new(), 0);
    // Where the last run may reach. The device heap is copied by a kernel, arrays by rows, and each variable by a copy of its own.
    let mut end = 0;
    for p in pieces.iter().filter(|p| p.bytes > 0) {
        if !is_there(p.address, p.bytes as u64) {
            missing += 1;
            continue;
        }
        let reaches = p.address + p.bytes as u64;
        match runs.last_mut() {
            Some(run)
                if reaches <= end && !p.raw && run.address + run.bytes as u64 == p.address && run.at + run.bytes == p.at =>
            {
                run.bytes += p.bytes;
            }
            _ => {
                end = chunk_end(p.address).filter(|_| !p.raw).unwrap_or(0);
                runs.push(*p);
            }
        }
    }
    (runs, missing)
}

impl Executor {
    /// A page-locked buffer of exactly `bytes`.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, Code> {
        self.make_current()?;
        self.pinned_in(&self.life(), bytes)
    }

    pub(super) fn pinned_in(&self, life: &ContextState, bytes: usize) -> Result<Pinned, Code> {
        buffers::take(&self.gpu, life.number, bytes)
    }

    /// Blocks further transfers and waits for those under way: memory that they may use can then be unmapped.
    pub(super) fn no_transfers(&self, life: &ContextState) -> Result<RwLockWriteGuard<'_, ()>, Code> {
        let guard = write_lock(&self.mapping);
        for lane in life.lanes {
            while let Err(rc) = self.gpu.query_stream(lane) {
                if rc != code::ERROR_NOT_READY {
                    return Err(rc);
                }
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        Ok(guard)
    }

    /// Returns a function that tells for each range whether it lies in existing memory. Queries for adjacent ranges are cheap. The caller
    /// keeps memory from being unmapped until it submits what uses the ranges.
    pub(super) fn presence(&self) -> impl FnMut(u64, u64) -> bool + '_ {
        let mut last = (0, 0);
        let (mut chunks, mut code) = (None, None);
        move |address, bytes| {
            let inside = |(at, len): (u64, u64)| address >= at && address.checked_add(bytes).is_some_and(|end| end <= at + len);
            if is_window(address) {
                return self.window_of(address, bytes).is_some();
            }
            if !inside(last) {
                let chunks: &Arc<[(u64, u64)]> = chunks.get_or_insert_with(|| lock(&self.chunks).ranges());
                let after = chunks.partition_point(|(at, _)| *at <= address);
                let chunk = chunks[..after].last().copied();
                last = chunk.filter(|c| inside(*c)).unwrap_or_else(|| {
                    let code: &Vec<(u64, u64)> = code.get_or_insert_with(|| self.code_ranges());
                    let after = code.partition_point(|(at, _)| *at <= address);
                    code[..after].last().copied().unwrap_or((0, 0))
                });
            }
            inside(last)
        }
    }

    /// Starts copying pieces of GPU memory into a buffer, on a transfer stream. Does not wait for the job's streams. Pieces whose memory
    /// no longer exists are skipped ([`Flight::missing`]). `at_rest`: the job does not use this GPU, so a kernel may copy small pieces, all at
    /// once; otherwise it could wait for one of the job's kernels.
    pub fn copy_from_gpu(self: &Arc<Self>, lane: usize, to: Pinned, pieces: &[Piece], at_rest: bool) -> Result<Flight, Code> {
        self.start(lane, to, pieces, Way::ToHost, at_rest)
    }

    /// Starts copying a buffer into pieces of GPU memory, on a transfer stream. Does not wait for the job's streams. `at_rest`: as for
    /// [`Executor::copy_from_gpu`].
    pub fn copy_to_gpu(self: &Arc<Self>, lane: usize, from: Pinned, pieces: &[Piece], at_rest: bool) -> Result<Flight, Code> {
        self.start(lane, from, pieces, Way::ToGpu, at_rest)
    }

    /// A table of those runs that a kernel copies, if there are several, and the others.
    fn small_runs(
        &self,
        life: &ContextState,
        buffer: &Pinned,
        runs: Vec<Piece>,
        chunk_end: impl Fn(u64) -> Option<u64>,
    ) -> Result<(Option<PairTable>, Vec<Piece>), Code> {
        // In chunks alone: a driver may have constants in caches of its own.
        let is_small = |p: &Piece| {
            let aligned = [p.address, (buffer.at + p.at) as u64, p.bytes as u64].iter().all(|n| n.is_multiple_of(16));
            aligned && p.bytes < LONG && !p.raw && chunk_end(p.address).is_some()
        };
        let (small, mut others): (Vec<Piece>, Vec<Piece>) = runs.into_iter().partition(is_small);
        if small.len() < 2 {
            others.extend(small);
            return Ok((None, others));
        }
        let mut table = PairTable::new(self.pinned_in(life, SMALL_TABLE)?, life)?;
        for p in small {
            if table.has_room(1) {
                table.add(p.address, (buffer.at + p.at) as u64, p.bytes as u64);
            } else {
                others.push(p);
            }
        }
        Ok((Some(table), others))
    }

    fn start(self: &Arc<Self>, lane: usize, buffer: Pinned, pieces: &[Piece], way: Way, at_rest: bool) -> Result<Flight, Code> {
        self.make_current()?;
        let life = self.life();
        if buffer.life != life.number {
            return Err(code::ERROR_CONTEXT_IS_DESTROYED);
        }
        if pieces.iter().any(|p| p.at.checked_add(p.bytes).is_none_or(|end| end > buffer.len)) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let stream = life.lane(lane);
        let staying = read_lock(&self.mapping);
        let chunk_end = |at: u64| {
            let chunks = lock(&self.chunks);
            let (start, chunk) = chunks.range(..=at).next_back()?;
            Some(start + chunk.bytes).filter(|end| at < *end)
        };
        let (runs, missing) = runs(pieces, self.presence(), chunk_end);
        let (table, runs) = if at_rest { self.small_runs(&life, &buffer, runs, chunk_end)? } else { (None, runs) };
        let by_kernel = |t: &PairTable| life.own.copy_pieces(&self.gpu, t.at(), t.rows(), way == Way::ToHost, stream);
        let submitted = table.as_ref().map_or(Ok(()), by_kernel);
        let submitted = submitted.and_then(|()| {
            runs.iter().try_for_each(|p| {
                let (host, bytes) = (buffer.at + p.at, p.bytes as u64);
                if is_window(p.address) {
                    // SAFETY: inside the buffer, which the flight owns until the copy is complete.
                    return unsafe { self.copy_window(p.address, host as u64, bytes, way == Way::ToHost, stream) };
                }
                match (way, p.raw) {
                    (Way::ToHost, true) => life.own.copy(&self.gpu, host as u64, p.address, bytes, stream),
                    (Way::ToGpu, true) => life.own.copy(&self.gpu, p.address, host as u64, bytes, stream),
                    // SAFETY: inside the buffer, which the flight owns until the copy is complete.
                    (Way::ToHost, false) => unsafe { self.gpu.copy_out(host as *mut u8, p.address, bytes, stream) },
                    // SAFETY: as above.
                    (Way::ToGpu, false) => unsafe { self.gpu.copy_in(p.address, host as *const u8, bytes, stream) },
                }
            })
        });
        let flight = self.take_off_with(&life, buffer, table.map(PairTable::into_buffer), stream);
        // Dropping the flight waits for the parts before the failed one, and locks the context's state: these locks are released first,
        // so that a thread that maps memory or resets the context does not deadlock with it.
        drop((staying, life));
        submitted.and(flight).map(|mut flight| {
            flight.missing = missing;
            flight
        })
    }

    /// Wraps a buffer's submitted work in a flight.
    pub(super) fn take_off(self: &Arc<Self>, life: &ContextState, buffer: Pinned, stream: u64) -> Result<Flight, Code> {
        self.take_off_with(life, buffer, None, stream)
    }

    fn take_off_with(
        self: &Arc<Self>,
        life: &ContextState,
        buffer: Pinned,
        table: Option<Pinned>,
        stream: u64,
    ) -> Result<Flight, Code> {
        match life.pools.mark(stream) {
            Ok(event) => Ok(Flight { exec: self.clone(), buffer: Some(buffer), table, event, life: life.number, missing: 0 }),
            Err(rc) => {
                // Nothing would show when the work is complete.
                std::mem::forget((buffer, table));
                Err(rc)
            }
        }
    }
}

/// A table of pairs for the executor's kernels, in page-locked memory.
pub(super) struct PairTable {
    buffer: Pinned,
    rows: u32,
}

impl PairTable {
    /// Creates an empty table in a buffer.
    pub(super) fn new(buffer: Pinned, life: &ContextState) -> Result<PairTable, Code> {
        if buffer.life == life.number { Ok(PairTable { buffer, rows: 0 }) } else { Err(code::ERROR_CONTEXT_IS_DESTROYED) }
    }

    /// Adds a pair, if there is room.
    pub(super) fn add(&mut self, here: u64, there: u64, bytes: u64) {
        if let Some(row) = self.buffer.bytes_mut().as_chunks_mut::<PAIR>().0.get_mut(self.rows as usize) {
            row.as_chunks_mut().0.iter_mut().zip([here, there, bytes]).for_each(|(to, n)| *to = n.to_le_bytes());
            self.rows += 1;
        }
    }

    pub(super) fn has_room(&self, rows: u32) -> bool {
        (self.rows + rows) as usize <= self.buffer.len / PAIR
    }

    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// Its address for the GPU.
    pub(super) fn at(&self) -> u64 {
        self.buffer.at as u64
    }

    pub(super) fn into_buffer(self) -> Pinned {
        self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_follow_each_other_in_a_chunk_are_one_copy() {
        let piece = |address, at, bytes| Piece { address, at, bytes, raw: false };
        // Two chunks that lie beside each other, and variables behind them.
        let is_there =
            |at: u64, bytes: u64| [(0, 100), (100, 200), (1000, 2000)].iter().any(|(from, to)| at >= *from && at + bytes <= *to);
        let chunk_end = |at: u64| [100, 200].into_iter().find(|end| at < *end);
        let of = |pieces: &[Piece]| runs(pieces, is_there, chunk_end);
        let one = [piece(0, 0, 10), piece(10, 10, 10), piece(20, 20, 5)];
        assert_eq!(of(&one), (vec![piece(0, 0, 25)], 0));
        // Apart at either end; the end of a chunk; variables; the heap; nothing.
        assert_eq!(of(&[piece(0, 0, 10), piece(20, 10, 10), piece(30, 30, 10)]).0.len(), 3);
        assert_eq!(
            of(&[piece(90, 0, 10), piece(100, 10, 10), piece(110, 20, 10)]),
            (vec![piece(90, 0, 10), piece(100, 10, 20)], 0)
        );
        assert_eq!(of(&[piece(1000, 0, 10), piece(1010, 10, 10)]).0.len(), 2);
        let raw = |p: Piece| Piece { raw: true, ..p };
        assert_eq!(of(&[raw(piece(0, 0, 10)), raw(piece(10, 10, 10)), piece(20, 20, 10)]).0.len(), 3);
        assert_eq!(of(&[piece(0, 0, 10), piece(500, 10, 10), piece(10, 10, 10), piece(20, 20, 0)]), (vec![piece(0, 0, 20)], 1));
    }
}
