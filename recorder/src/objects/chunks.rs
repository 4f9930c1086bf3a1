//! Physical memory of a device, without I/O and without locks: which chunks of the arena are mapped, which of them serve a request, and
//! what must be mapped or unmapped next. [`crate::device_memory::chunks`] carries that out and reports the result; `chunks/model.rs` checks
//! it against every result of every step.
//!
//! A chunk that is being mapped or unmapped is in no table: its addresses are not given out until the result is reported.

use crate::objects::allocations::{Allocation, Home, LARGE, Memory};
use crate::objects::pool::{self, Found, Pool, STEP};
use cuda_api::address_map::{ARENA, GRANULE, OWN};
use cuda_api::code::{self, Code};
use cuda_api::ops::Chunk;

/// What needs memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// An allocation of `cuMemAlloc`, of so many bytes.
    Allocation(u64),
    /// An allocation from a pool, for work of a stream.
    FromPool { pool: u64, stream: u64, bytes: u64 },
    /// A chunk of so many bytes, a multiple of [`GRANULE`].
    Chunk(u64),
}

impl Request {
    /// The size of the chunk that serves it, and how much larger the chunk may be. The chunk of a pool is as large as the pool's growth.
    fn chunk(self) -> Result<(u64, u64), Code> {
        let whole = |bytes: u64, unit: u64| bytes.checked_next_multiple_of(unit).ok_or(code::ERROR_OUT_OF_MEMORY);
        match self {
            Request::Allocation(bytes) if bytes >= LARGE => whole(bytes, GRANULE).map(|bytes| (bytes, bytes / 8)),
            Request::Allocation(_) => Ok((GRANULE, 0)),
            Request::FromPool { bytes, .. } => whole(bytes, pool::GROWTH).map(|bytes| (bytes, 0)),
            Request::Chunk(bytes) => Ok((bytes, 0)),
        }
    }

    /// The size of a chunk that serves it if there is no memory for the usual one.
    fn smaller_chunk(self) -> Option<u64> {
        let Request::FromPool { bytes, .. } = self else { return None };
        Some(bytes.next_multiple_of(GRANULE)).filter(|bytes| bytes % pool::GROWTH != 0)
    }
}

/// The next step of a [`Growth`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The request is served.
    Done(Found),
    /// Map this chunk, and report the result with [`Growth::mapped`].
    Map(Chunk),
    /// Unmap this chunk, and report the result with [`Growth::unmapped`].
    Unmap(Chunk),
}

/// A request that needs more physical memory. Between its steps other requests are served from mapped memory, and memory is freed.
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    request: Request,
    /// The chunk that is being mapped.
    chunk: Chunk,
    /// Whether spare chunks were unmapped to make room for it.
    made_room: bool,
    /// Whether it is smaller than usual.
    is_smaller: bool,
}

impl Growth {
    /// Begins with a request that [`Memory::take`] could not serve.
    pub(crate) fn begin(m: &mut Memory, request: Request) -> Result<(Growth, Step), Code> {
        let mut growth = Growth { request, chunk: Chunk { address: 0, bytes: 0 }, made_room: false, is_smaller: false };
        // It was freed, or mapped for another thread, meanwhile.
        if let Some(found) = m.take(request)? {
            return Ok((growth, Step::Done(found)));
        }
        let step = growth.attempt(m, request.chunk()?)?;
        Ok((growth, step))
    }

    fn attempt(&mut self, m: &mut Memory, (bytes, more): (u64, u64)) -> Result<Step, Code> {
        if let Some(address) = m.take_spare(bytes, more) {
            return m.serve(self.request, address).map(Step::Done);
        }
        let Some(address) = m.bare.take(bytes) else { return self.smaller(m, code::ERROR_OUT_OF_MEMORY) };
        self.chunk = Chunk { address, bytes };
        Ok(Step::Map(self.chunk))
    }

    /// Continues with a smaller chunk if there was no memory.
    fn smaller(&mut self, m: &mut Memory, why: Code) -> Result<Step, Code> {
        match self.request.smaller_chunk() {
            Some(bytes) if why == code::ERROR_OUT_OF_MEMORY && !self.is_smaller => {
                (self.is_smaller, self.made_room) = (true, false);
                self.attempt(m, (bytes, 0))
            }
            _ => Err(why),
        }
    }

    /// Reports whether the chunk was mapped. After an error no chunk is being mapped.
    pub(crate) fn mapped(&mut self, m: &mut Memory, result: Result<(), Code>) -> Result<Step, Code> {
        let Err(why) = result else {
            m.mapped += self.chunk.bytes;
            m.chunks.insert(self.chunk.address, self.chunk.bytes);
            return m.serve(self.request, self.chunk.address).map(Step::Done);
        };
        if why == code::ERROR_OUT_OF_MEMORY
            && !self.made_room
            && let Some(spare) = m.surplus(0)
        {
            self.made_room = true;
            return Ok(Step::Unmap(spare));
        }
        m.bare.put(self.chunk.address, self.chunk.bytes);
        self.smaller(m, why)
    }

    /// Reports whether a spare chunk was unmapped.
    pub(crate) fn unmapped(&mut self, m: &mut Memory, spare: Chunk, unmapped: bool) -> Step {
        m.unmapped(spare, unmapped);
        m.surplus(0).map_or(Step::Map(self.chunk), Step::Unmap)
    }
}

impl Memory {
    /// Serves a request from memory that is mapped, if there is any. Pools take no spare chunks here: completed frees come first.
    pub(crate) fn take(&mut self, request: Request) -> Result<Option<Found>, Code> {
        match request {
            Request::FromPool { pool, stream, bytes } => self.take_from_pool(pool, stream, bytes),
            Request::Allocation(bytes) if bytes < LARGE => match self.small.take(bytes.next_multiple_of(STEP)) {
                Some(address) => Ok(Some(Found::ready(self.note(address, bytes, Home::Shared)))),
                None => self.take_spare_for(request),
            },
            Request::Allocation(_) | Request::Chunk(_) => self.take_spare_for(request),
        }
    }

    fn take_spare_for(&mut self, request: Request) -> Result<Option<Found>, Code> {
        let (bytes, more) = request.chunk()?;
        self.take_spare(bytes, more).map(|address| self.serve(request, address)).transpose()
    }

    fn take_from_pool(&mut self, pool: u64, stream: u64, bytes: u64) -> Result<Option<Found>, Code> {
        let room = Pool::room(bytes).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let found = match self.pools.get_mut(&pool) {
            // A pool of another process only serves to import pointers of that process.
            Some(p) if p.lender.is_some() => return Err(code::ERROR_INVALID_VALUE),
            Some(p) if !p.allows(room) => return Err(code::ERROR_OUT_OF_MEMORY),
            Some(p) => p.take(stream, bytes),
            None => return Err(code::ERROR_INVALID_VALUE),
        };
        if let Some(found) = found {
            self.note(found.address, bytes, Home::Pool(pool));
        }
        Ok(found)
    }

    /// Takes the smallest spare chunk of at least so many bytes, and at most `more` than that.
    fn take_spare(&mut self, bytes: u64, more: u64) -> Option<u64> {
        let sizes = self.spare.keys().map(|at| (self.chunks[at], *at));
        let (len, at) = sizes.filter(|(len, _)| (bytes..=bytes.saturating_add(more)).contains(len)).min()?;
        self.spare.remove(&at);
        self.spare_bytes -= len;
        Some(at)
    }

    /// Serves a request with a mapped chunk that nothing else uses.
    fn serve(&mut self, request: Request, chunk: u64) -> Result<Found, Code> {
        match request {
            Request::Chunk(_) => Ok(Found::ready(chunk)),
            Request::Allocation(bytes) if bytes >= LARGE => Ok(Found::ready(self.note(chunk, bytes, Home::Own))),
            Request::Allocation(bytes) => {
                let room = bytes.next_multiple_of(STEP);
                self.shared.insert(chunk);
                self.small.put(chunk + room, GRANULE - room);
                Ok(Found::ready(self.note(chunk, bytes, Home::Shared)))
            }
            Request::FromPool { pool, stream, bytes } => {
                match (self.pools.get_mut(&pool), self.chunks.get(&chunk)) {
                    (Some(p), Some(bytes)) => p.grow(chunk, *bytes),
                    // The program has destroyed the pool meanwhile.
                    _ => self.make_spare(chunk),
                }
                self.take_from_pool(pool, stream, bytes)?.ok_or(code::ERROR_OUT_OF_MEMORY)
            }
        }
    }

    /// Makes a chunk spare that is empty and that nothing uses any more. Afterwards [`Memory::surplus`] may have chunks to unmap.
    pub(crate) fn make_spare(&mut self, address: u64) {
        let Some(&bytes) = self.chunks.get(&address) else { return };
        self.moment += 1;
        self.spare.insert(address, self.moment);
        self.spare_bytes += bytes;
    }

    /// Takes the oldest spare chunk, for being unmapped, if there are more than `keep` bytes of them. The result of that is reported with
    /// [`Memory::unmapped`].
    pub(crate) fn surplus(&mut self, keep: u64) -> Option<Chunk> {
        if self.spare_bytes <= keep {
            return None;
        }
        let (&address, _) = self.spare.iter().min_by_key(|(_, moment)| **moment)?;
        self.spare.remove(&address);
        let bytes = self.chunks.remove(&address).unwrap_or(0);
        self.spare_bytes -= bytes;
        self.mapped -= bytes;
        self.unmapping += bytes;
        Some(Chunk { address, bytes })
    }

    /// Bytes that the place may still have for chunks that nothing uses.
    pub(crate) fn spare_or_unmapping(&self) -> u64 {
        self.spare_bytes + self.unmapping
    }

    /// Reports whether a chunk was unmapped. Otherwise its addresses are not used again: the place is lost, or its contents unknown.
    pub(crate) fn unmapped(&mut self, chunk: Chunk, unmapped: bool) {
        self.unmapping -= chunk.bytes;
        if unmapped {
            self.bare.put(chunk.address, chunk.bytes);
        }
    }

    /// Returns whether an allocation was made before a reset, which has ended it.
    pub(crate) fn is_gone(&self, a: &Allocation) -> bool {
        a.id <= self.last_reset
    }

    /// Frees the memory of an allocation that is in no table and that nothing uses any more; memory of a pool is freed behind all work.
    /// Memory of another process is not in the arena. What was allocated before a reset is gone already. Returns whether a pool waits only for its frees to be complete, to
    /// end.
    pub(crate) fn put_back(&mut self, address: u64, a: Allocation) -> bool {
        if self.is_gone(&a) {
            return false;
        }
        self.moment += 1;
        match a.home {
            Home::Pool(pool) => return self.release_to_pool(pool, pool::NO_STREAM, address, a.bytes),
            Home::Borrowed(_) => {}
            Home::Own => self.make_spare(address),
            Home::Shared => {
                self.small.put(address, a.bytes.next_multiple_of(STEP));
                let chunk = address - address % GRANULE;
                if self.small.carve(chunk, GRANULE) {
                    self.shared.remove(&chunk);
                    self.make_spare(chunk);
                }
            }
        }
        false
    }

    /// Forgets all allocations. Returns the chunks, which must be unmapped; the results are reported with [`Memory::unmapped`].
    pub(crate) fn reset(&mut self) -> Vec<Chunk> {
        let chunks: Vec<Chunk> = self.chunks().collect();
        let (bare, generation, next_id) = (std::mem::take(&mut self.bare), self.generation, self.next_id);
        let unmapping = chunks.iter().map(|c| c.bytes).sum();
        let fresh = Memory::new(((self.base - OWN) / ARENA) as u32);
        *self = Memory { bare, generation, next_id, last_reset: next_id, moment: self.moment + 1, unmapping, ..fresh };
        chunks
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
