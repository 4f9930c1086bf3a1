//! Eviction: the device memory of a stopped job is copied to host memory, and its physical memory is given back to the GPU, until the job
//! goes on.
//!
//! Only chunks are evicted, since they alone lie at addresses that this place has chosen: they come back at the same ones. The context, code,
//! streams, events, arrays, memory for tiles, variables, the device heap, and chunks that other mappings or other processes use stay where they are.
//!
//! The caller sees to it that nothing is executed for the job from the beginning of [`Executor::evict`] on, until [`Executor::restore`] has
//! succeeded. Nothing is freed before all is copied: an error before that leaves everything as it was.

use super::state::buffers::Pinned;
use super::state::evicted::Contents;
use super::state::mappings::Mapped;
use super::transfer::{Flight, Piece};
use super::{Executor, fresh_number};
use crate::gpu_memory::HeldMemory;
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::Chunk;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of one copy.
const PIECE: usize = 2 << 20;
/// Maximum number of copies under way.
const UNDER_WAY: usize = 8;

/// Why the memory of a job was not evicted.
#[derive(Debug, thiserror::Error)]
pub enum NotEvicted {
    /// The GPU works for the job, or waits for it.
    #[error("its GPU is not idle: {0}")]
    Busy(String),
    /// Another place uses the memory, or is about to.
    #[error("a move of the job is under way, or copies between its GPUs have connections")]
    Moving,
    /// There is no chunk, or each is used by another process or has other mappings.
    #[error("it has no memory that could be taken off the GPU")]
    Nothing,
    /// There is no host memory.
    #[error("there is no host memory for it: {0}")]
    HostMemory(io::Error),
    /// The driver has returned an error.
    #[error("the driver failed: {what} (CUDA error {code})")]
    Driver {
        /// What was tried.
        what: &'static str,
        /// The result code.
        code: Code,
    },
    /// The caller has called it off.
    #[error("the job goes on")]
    CalledOff,
}

/// What can be evicted of the memory that a job uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evictable {
    /// Bytes that can.
    pub bytes: u64,
    /// Bytes of all else that it asked for by its size.
    pub rest: u64,
}

fn failed(what: &'static str) -> impl Fn(Code) -> NotEvicted {
    move |code| NotEvicted::Driver { what, code }
}

/// A part of a chunk: the chunk's number in a list, its address, the offset, and how many bytes.
type Part = (usize, u64, usize, usize);

/// The parts of chunks in which they are copied.
fn parts(chunks: impl Iterator<Item = (u64, usize)>) -> impl Iterator<Item = Part> {
    chunks.enumerate().flat_map(|(number, (address, bytes))| {
        (0..bytes).step_by(PIECE).map(move |at| (number, address, at, PIECE.min(bytes - at)))
    })
}

fn piece((_, address, at, bytes): Part) -> [Piece; 1] {
    [Piece { address: address + at as u64, at: 0, bytes, raw: false }]
}

/// Waits for a copy, which must have copied everything.
fn land(flight: Flight) -> Result<Pinned, Code> {
    let missing = flight.missing();
    let buffer = flight.wait()?;
    if missing == 0 { Ok(buffer) } else { Err(code::ERROR_NOT_MAPPED) }
}

impl Executor {
    /// Bytes of the job's device memory that are in host memory.
    pub fn evicted_bytes(&self) -> u64 {
        self.evicted.bytes()
    }

    /// How much of the job's memory could be evicted now.
    ///
    /// # Errors
    /// The GPU is not idle, the job is being moved, or there is nothing.
    pub fn evictable(&self) -> Result<Evictable, NotEvicted> {
        let bytes = self.evictable_chunks()?.iter().map(|chunk| chunk.bytes).sum();
        Ok(Evictable { bytes, rest: self.memory.used().saturating_sub(bytes) })
    }

    fn evictable_chunks(&self) -> Result<Vec<Chunk>, NotEvicted> {
        if !self.is_idle().map_err(failed("asking whether the GPU is idle"))? {
            return Err(NotEvicted::Busy(self.busy().map(|busy| busy.what).unwrap_or_default()));
        }
        let moving = lock(&self.views.shown).is_some()
            || !lock(&self.views.view).chunks.is_empty()
            || !lock(&self.views.to_adopt).is_empty()
            || lock(&self.chunks).values().any(|chunk| chunk.at_source.is_some());
        if moving {
            return Err(NotEvicted::Moving);
        }
        let mapped_again: BTreeSet<u64> = lock(&self.aliases).mapped.values().filter_map(|alias| alias.chunk).collect();
        let chunks = lock(&self.chunks);
        let can = chunks.iter().filter(|(address, chunk)| !chunk.lent.load(Ordering::Relaxed) && !mapped_again.contains(address));
        let can: Vec<Chunk> = can.map(|(address, chunk)| Chunk { address: *address, bytes: chunk.bytes }).collect();
        if can.is_empty() { Err(NotEvicted::Nothing) } else { Ok(can) }
    }

    /// Copies chunks to host memory and gives their physical memory back. At most `limit` bytes are evicted: otherwise nothing is. `goes_on` is
    /// asked between copies whether the job goes on; then nothing has changed.
    ///
    /// # Errors
    /// Nothing was evicted, except if memory that was unmapped before an error could not be mapped again:
    /// [`Executor::evicted_bytes`] says so, and it is still to be restored.
    pub fn evict(self: &Arc<Self>, limit: u64, goes_on: &dyn Fn() -> bool) -> Result<Evictable, NotEvicted> {
        let chosen = self.evictable_chunks()?;
        let all = self.evictable()?;
        if all.bytes > limit {
            return Err(NotEvicted::HostMemory(io::Error::other("it has grown meanwhile")));
        }
        let mut copies = Vec::new();
        for chunk in &chosen {
            copies.push((chunk.address, Contents::allocate(chunk.bytes).map_err(NotEvicted::HostMemory)?));
        }
        self.copy_out_all(&mut copies, goes_on)?;
        if goes_on() {
            return Err(NotEvicted::CalledOff);
        }
        let unmapped = self.unmap_evicted(copies);
        if let Err(why) = unmapped {
            // The first error is reported; what does not come back now is restored when the job goes on.
            let _ = self.restore();
            return Err(why);
        }
        Ok(all)
    }

    fn copy_out_all(self: &Arc<Self>, copies: &mut [(u64, Contents)], goes_on: &dyn Fn() -> bool) -> Result<(), NotEvicted> {
        let failed = failed("copying memory to the host");
        let all: Vec<Part> = parts(copies.iter().map(|(address, contents)| (*address, contents.len()))).collect();
        let mut flights: VecDeque<(Part, Flight)> = VecDeque::new();
        let mut take = |(part, flight): (Part, Flight)| {
            let ((number, _, at, bytes), buffer) = (part, land(flight).map_err(&failed)?);
            copies[number].1.bytes_mut()[at..at + bytes].copy_from_slice(&buffer.bytes()[..bytes]);
            Ok(())
        };
        for (lane, part) in all.into_iter().enumerate() {
            if goes_on() {
                return Err(NotEvicted::CalledOff);
            }
            if flights.len() == UNDER_WAY
                && let Some(first) = flights.pop_front()
            {
                take(first)?;
            }
            let buffer = self.pinned(PIECE).map_err(&failed)?;
            flights.push_back((part, self.copy_from_gpu(lane, buffer, &piece(part), true).map_err(&failed)?));
        }
        flights.into_iter().try_for_each(take)
    }

    /// Unmaps chunks whose contents have been copied. On an error, the others stay mapped.
    fn unmap_evicted(&self, copies: Vec<(u64, Contents)>) -> Result<(), NotEvicted> {
        let mut evicted = lock(&self.evicted.chunks);
        let life = self.life();
        let _going = self.no_transfers(&life).map_err(failed("waiting for copies"))?;
        let mut chunks = lock(&self.chunks);
        let mut unmap = |address: u64, contents: Contents| {
            let bytes = contents.len() as u64;
            let memory = chunks.get(&address).filter(|chunk| chunk.bytes == bytes).ok_or(code::ERROR_NOT_MAPPED)?.memory;
            self.gpu.unmap(address, bytes)?;
            // From here on the copy is all that there is.
            chunks.remove(&address);
            evicted.insert(address, contents);
            // Fails only if the driver has already released the memory.
            let _ = self.gpu.release_memory(memory);
            Ok(())
        };
        let unmapped = copies.into_iter().try_for_each(|(address, contents)| unmap(address, contents));
        self.evicted.count(&evicted);
        unmapped.map_err(failed("unmapping memory"))
    }

    /// Brings all evicted memory back to its addresses. Returns how many bytes that are.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if the GPU, or the job's limits, have no room for all of it; any other error of the driver. Everything is then
    /// still in host memory, and nothing of it on the GPU. After `UNKNOWN`, mirrored host memory may be lost.
    pub fn restore(self: &Arc<Self>) -> Result<u64, Code> {
        let mut evicted = lock(&self.evicted.chunks);
        if evicted.is_empty() {
            return Ok(0);
        }
        self.make_current()?;
        let bytes = self.evicted.bytes();
        // The blocks that it takes from the GPU are gone if it fails, and the job must not go on without them.
        self.make_room(bytes).map_err(|_| code::ERROR_UNKNOWN)?;
        // Whoever waits for room tries again and again, and must take nothing from others meanwhile, so the room for all of it is looked for
        // first. Exactly that much is enough: a job that had the whole GPU must come back, too.
        if self.gpu.memory_info()?.0 < bytes {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        let mut held = self.memory.hold_again(bytes)?;
        // All physical memory before any is mapped: all of it comes back, or nothing.
        let sizes = evicted.iter().map(|(address, contents)| Chunk { address: *address, bytes: contents.len() as u64 });
        let mut made: Vec<(Chunk, u64, HeldMemory)> = Vec::new();
        let created = sizes.into_iter().try_for_each(|chunk| {
            made.push((chunk, self.create_chunk(chunk.bytes)?, held.split(chunk.bytes)));
            Ok(())
        });
        if let Err(rc) = created {
            for (_, memory, _) in made {
                // Fails only if the driver has already released the memory.
                let _ = self.gpu.release_memory(memory);
            }
            return Err(rc);
        }
        let restored = self.map_restored(made).and_then(|()| self.copy_in_all(&evicted));
        if let Err(rc) = restored {
            self.unmap_restored(&evicted);
            return Err(rc);
        }
        evicted.clear();
        self.evicted.count(&evicted);
        Ok(bytes)
    }

    /// Maps memory at the addresses of chunks. On an error, some are mapped, and the other memory is released.
    fn map_restored(&self, made: Vec<(Chunk, u64, HeldMemory)>) -> Result<(), Code> {
        let mut result = Ok(());
        for (Chunk { address, bytes }, memory, held) in made {
            if result.is_err() {
                // Fails only if the driver has already released the memory.
                let _ = self.gpu.release_memory(memory);
                continue;
            }
            result = self.map_memory(address, bytes, memory);
            if result.is_ok() {
                lock(&self.chunks).insert(address, Mapped::own(bytes, memory, fresh_number(), held));
            }
        }
        result
    }

    /// Undoes that, as far as it was done.
    fn unmap_restored(&self, evicted: &BTreeMap<u64, Contents>) {
        let life = self.life();
        // After an execution error no copies are under way.
        let _going = self.no_transfers(&life);
        let mut chunks = lock(&self.chunks);
        for address in evicted.keys() {
            if let Some(chunk) = chunks.remove(address) {
                // Both fail only if the driver has already released the memory.
                let _ = self.gpu.unmap(*address, chunk.bytes);
                let _ = self.gpu.release_memory(chunk.memory);
            }
        }
    }

    fn copy_in_all(self: &Arc<Self>, evicted: &BTreeMap<u64, Contents>) -> Result<(), Code> {
        let contents: Vec<&Contents> = evicted.values().collect();
        let mut flights: VecDeque<Flight> = VecDeque::new();
        for (lane, part) in parts(evicted.iter().map(|(address, contents)| (*address, contents.len()))).enumerate() {
            if flights.len() == UNDER_WAY
                && let Some(first) = flights.pop_front()
            {
                land(first)?;
            }
            let (number, _, at, bytes) = part;
            let mut buffer = self.pinned(PIECE)?;
            buffer.bytes_mut()[..bytes].copy_from_slice(&contents[number].bytes()[at..at + bytes]);
            flights.push_back(self.copy_to_gpu(lane, buffer, &piece(part), true)?);
        }
        flights.into_iter().try_for_each(|flight| land(flight).map(drop))
    }

    /// Forgets evicted memory, because the context ends.
    pub(super) fn forget_evicted(&self) {
        let mut evicted = lock(&self.evicted.chunks);
        evicted.clear();
        self.evicted.count(&evicted);
    }
}

#[cfg(test)]
mod tests;
