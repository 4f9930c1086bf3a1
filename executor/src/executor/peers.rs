//! Memory that one place uses of another: GPUs of one machine whose places are separate processes.
//!
//! A place offers the memory of a chunk as a descriptor ([`crate::share`]); another place imports it and maps it at the same address, or
//! where the program has opened it. So pointers have the same meaning in both, and kernels, copies and atomics work on it as on any peer
//! memory. For copies alone it is mapped in a range of its own ([`IMPORTS`]), which the program knows nothing of.

use super::state::mappings::AliasMapping;
use super::{Executor, short};
use crate::share;
use cuda_api::address_map::{ARENA, DEVICES, GRANULE, IMPORTS, IMPORTS_END, VMM, VMM_END, own_base};
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::{Chunk, Offer, PeerMap};
use cuda_api::wire::Wire;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// The key of memory that is offered for a test.
const TRIAL: u64 = 0;

impl Executor {
    /// Offers a chunk's memory.
    pub(super) fn offer_chunk(&self, mut body: &[u8]) -> Result<Offer, Code> {
        let Chunk { address, bytes } = Chunk::get(&mut body).map_err(short)?;
        let key = if bytes == 0 { TRIAL } else { address };
        let chunks = lock(&self.chunks);
        let mut offers = lock(&self.peers.offers);
        if let Some(known) = offers.get(&key) {
            return Ok(*known);
        }
        let fd = if key == TRIAL {
            let memory = self.gpu.create_memory(GRANULE, false)?;
            let fd = self.gpu.export(memory);
            // The descriptor keeps the memory alive.
            self.gpu.release_memory(memory)?;
            fd?
        } else {
            let chunk = chunks.get(&address).filter(|c| c.bytes == bytes).ok_or(code::ERROR_NOT_MAPPED)?;
            chunk.lent.store(true, Ordering::Relaxed);
            self.export(chunk)?
        };
        let offer = share::offer(fd).map_err(|_| code::ERROR_OPERATING_SYSTEM)?;
        offers.insert(key, offer);
        Ok(offer)
    }

    /// Withdraws the offer of a chunk; existing mappings of its memory stay.
    pub(super) fn withdraw_chunk(&self, address: u64) {
        if let Some(offer) = lock(&self.peers.offers).remove(&address) {
            share::withdraw(&offer);
        }
    }

    /// Maps memory that another place offers.
    pub(super) fn map_peer(&self, mut body: &[u8]) -> Result<(), Code> {
        let op = PeerMap::get(&mut body).map_err(short)?;
        if op.bytes == 0 {
            return self.try_peer(&op.offer);
        }
        let bad = code::ERROR_INVALID_VALUE;
        let end = op.address.checked_add(op.bytes).ok_or(bad)?;
        // Arenas of other devices and the program's reservations begin at multiples of an arena's size.
        let arena = op.address - op.address % ARENA;
        let of_peer = (0..DEVICES).any(|d| d != self.virtual_device && own_base(d) == arena);
        let reserved = op.address >= VMM && end <= VMM_END;
        let for_copies = op.address >= IMPORTS && end <= IMPORTS_END;
        if op.bytes % GRANULE != 0 || op.address % GRANULE != 0 || end > arena + ARENA || !(of_peer || reserved || for_copies) {
            return Err(bad);
        }
        let memory = self.import(&op.offer)?;
        let mapped = self.map_in_arena(arena, op.address, AliasMapping { bytes: op.bytes, chunk: None }, memory);
        let mapped = mapped.and_then(|()| self.gpu.allow(op.address, op.bytes).inspect_err(|_| self.unmap_in_arena(op.address)));
        if let Err(rc) = mapped {
            // The first error is reported.
            let _ = self.gpu.release_memory(memory);
            return Err(rc);
        }
        lock(&self.peers.imported).insert(op.address, memory);
        Ok(())
    }

    /// Unmaps what [`Executor::map_peer`] has mapped.
    pub(super) fn unmap_peer(&self, mut body: &[u8]) -> Result<(), Code> {
        let op = Chunk::get(&mut body).map_err(short)?;
        let memory = lock(&self.peers.imported).remove(&op.address).ok_or(code::ERROR_NOT_MAPPED)?;
        self.unmap_in_arena(op.address);
        self.gpu.release_memory(memory)
    }

    fn import(&self, offer: &Offer) -> Result<u64, Code> {
        // A place on another machine cannot be reached.
        let fd = share::fetch(offer).map_err(|_| code::ERROR_PEER_ACCESS_UNSUPPORTED)?;
        self.gpu.import(fd.as_raw_fd())
    }

    /// Tests whether this GPU can use memory of the other place.
    fn try_peer(&self, offer: &Offer) -> Result<(), Code> {
        let memory = self.import(offer)?;
        // The end of the range of reservations: an address chosen by the driver could be in the range where it places variables.
        let at = VMM_END - GRANULE;
        let tried = self.map_in_arena(VMM_END - ARENA, at, AliasMapping { bytes: GRANULE, chunk: None }, memory).and_then(|()| {
            let allowed = self.gpu.allow(at, GRANULE);
            self.unmap_in_arena(at);
            allowed
        });
        tried.and(self.gpu.release_memory(memory))
    }

    /// Whether memory of other places is mapped, other than for a move.
    pub fn uses_peers(&self) -> bool {
        !lock(&self.peers.imported).is_empty()
    }

    /// Releases imported memory before the context is destroyed (its mappings are removed with the other aliases), and withdraws all
    /// offers.
    pub(super) fn end_peers(&self) {
        for memory in std::mem::take(&mut *lock(&self.peers.imported)).into_values() {
            // Fails only if the driver has already released the memory.
            let _ = self.gpu.release_memory(memory);
        }
        for offer in std::mem::take(&mut *lock(&self.peers.offers)).into_values() {
            share::withdraw(&offer);
        }
    }
}
