//! Chunks: physical memory that is mapped in the job's arena.

use super::state::mappings::{ChunkTable, Mapped};
use super::{ContextState, Executor, fresh_number, short};
use cuda_api::address_map::{ARENA, GRANULE, own_base};
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::Chunk;
use cuda_api::wire::Wire;

impl Executor {
    pub(super) fn map_chunk(&self, mut body: &[u8]) -> Result<(), Code> {
        let Chunk { address, bytes } = Chunk::get(&mut body).map_err(short)?;
        let base = own_base(self.virtual_device);
        let inside = address >= base && address.checked_add(bytes).is_some_and(|end| end <= base + ARENA);
        if bytes == 0 || bytes % GRANULE != 0 || address % GRANULE != 0 || !inside {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let is_taken = |chunks: &ChunkTable| {
            chunks.range(..address + bytes).next_back().is_some_and(|(at, chunk)| at + chunk.bytes > address)
        };
        let imported = self.take_imported(address, bytes);
        // A place that maps thousands of chunks must not ask the driver for its free memory before each of them.
        let held = match self.take_or_make_room(bytes, || self.memory.hold_again(bytes)) {
            Ok(held) => Ok(held),
            // This reports it.
            Err(code::ERROR_OUT_OF_MEMORY) => self.memory.hold(bytes),
            Err(rc) => Err(rc),
        };
        let held = match held {
            Ok(held) => held,
            Err(rc) => {
                self.give_up(imported.into_iter());
                return Err(rc);
            }
        };
        if let Some(imported) = imported {
            let mut chunks = lock(&self.chunks);
            if is_taken(&chunks) {
                self.give_up(std::iter::once(imported));
                return Err(code::ERROR_ALREADY_MAPPED);
            }
            if self.map_memory(address, bytes, imported.memory).is_ok() {
                let own = Mapped::own(bytes, imported.memory, fresh_number(), held);
                let adopted = Mapped { descriptor: Some(imported.descriptor), at_source: Some(imported.number), ..own };
                chunks.insert(address, adopted);
                return Ok(());
            }
        } else if is_taken(&lock(&self.chunks)) {
            return Err(code::ERROR_ALREADY_MAPPED);
        }
        let memory = self.take_or_make_room(bytes, || self.create_chunk(bytes))?;
        let mut chunks = lock(&self.chunks);
        if is_taken(&chunks) {
            // The error to report is that another thread was faster.
            let _ = self.gpu.release_memory(memory);
            return Err(code::ERROR_ALREADY_MAPPED);
        }
        self.map_memory(address, bytes, memory)?;
        chunks.insert(address, Mapped::own(bytes, memory, fresh_number(), held));
        Ok(())
    }

    /// Maps memory, or releases it.
    pub(super) fn map_memory(&self, address: u64, bytes: u64, memory: u64) -> Result<(), Code> {
        let mapped = self.gpu.map(address, bytes, memory).and_then(|()| {
            self.gpu.allow(address, bytes).inspect_err(|_| {
                // The first error is reported.
                let _ = self.gpu.unmap(address, bytes);
            })
        });
        mapped.inspect_err(|_| {
            // The first error is reported.
            let _ = self.gpu.release_memory(memory);
        })
    }

    pub(super) fn create_chunk(&self, bytes: u64) -> Result<u64, Code> {
        match self.gpu.create_memory(bytes, self.rdma) {
            // Some machines report that network cards can access the memory but refuse to create such memory.
            Err(rc) if self.rdma && rc != code::ERROR_OUT_OF_MEMORY => self.gpu.create_memory(bytes, false),
            other => other,
        }
    }

    pub(super) fn unmap_chunk(&self, life: &ContextState, mut body: &[u8]) -> Result<(), Code> {
        let op = Chunk::get(&mut body).map_err(short)?;
        let _going = self.no_transfers(life)?;
        let mut chunks = lock(&self.chunks);
        let memory = chunks.get(&op.address).filter(|c| c.bytes == op.bytes).ok_or(code::ERROR_NOT_MAPPED)?.memory;
        self.gpu.unmap(op.address, op.bytes)?;
        chunks.remove(&op.address);
        self.withdraw_chunk(op.address);
        self.gpu.release_memory(memory)
    }

    /// Physical memory mapped in the arena, by address.
    pub fn chunks(&self) -> Vec<Chunk> {
        lock(&self.chunks).iter().map(|(address, c)| Chunk { address: *address, bytes: c.bytes }).collect()
    }
}
