//! The program's own mappings: second mappings of chunks, in arenas that are reserved at the first use.

use super::state::mappings::{AliasMapping, Aliases};
use super::{Executor, short};
use cuda_api::address_map::{ARENA, GRANULE, VMM, VMM_END};
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::Alias;
use cuda_api::wire::Wire;

impl Executor {
    pub(super) fn map_alias(&self, mut body: &[u8]) -> Result<(), Code> {
        let op = Alias::get(&mut body).map_err(short)?;
        let end = op.address.checked_add(op.bytes).filter(|end| op.address >= VMM && *end <= VMM_END);
        let end = end.ok_or(code::ERROR_INVALID_VALUE)?;
        let arena = op.address - (op.address - VMM) % ARENA;
        if op.bytes == 0 || op.bytes % GRANULE != 0 || op.address % GRANULE != 0 || end > arena + ARENA {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let chunks = lock(&self.chunks);
        let memory = chunks.get(&op.chunk).filter(|c| op.bytes <= c.bytes).ok_or(code::ERROR_INVALID_VALUE)?.memory;
        drop(chunks);
        self.map_in_arena(arena, op.address, AliasMapping { bytes: op.bytes, chunk: Some(op.chunk) }, memory)
    }

    /// Maps memory in an arena, which is reserved at its first use.
    pub(super) fn map_in_arena(&self, arena: u64, address: u64, mapping: AliasMapping, memory: u64) -> Result<(), Code> {
        let mut aliases = lock(&self.aliases);
        let end = address + mapping.bytes;
        if aliases.mapped.range(..end).next_back().is_some_and(|(at, before)| at + before.bytes > address) {
            return Err(code::ERROR_ALREADY_MAPPED);
        }
        if !aliases.arenas.contains(&arena) {
            let got = self.gpu.reserve(ARENA, arena)?;
            if got != arena {
                // The error to report is that the address is not available.
                let _ = self.gpu.unreserve(got, ARENA);
                return Err(code::ERROR_OUT_OF_MEMORY);
            }
            aliases.arenas.insert(arena);
            self.arenas.add(arena);
        }
        self.gpu.map(address, mapping.bytes, memory)?;
        aliases.mapped.insert(address, mapping);
        Ok(())
    }

    /// Unmaps the memory at an address.
    pub(super) fn unmap_in_arena(&self, address: u64) {
        let mut aliases = lock(&self.aliases);
        if let Some(mapping) = aliases.mapped.remove(&address) {
            // Fails only if the driver has already removed the mapping.
            let _ = self.gpu.unmap(address, mapping.bytes);
        }
    }

    /// The alias that an operation refers to.
    fn known_alias(&self, mut body: &[u8], aliases: &Aliases) -> Result<Alias, Code> {
        let op = Alias::get(&mut body).map_err(short)?;
        let is_mapped = aliases.mapped.get(&op.address).is_some_and(|mapping| mapping.bytes == op.bytes);
        if is_mapped { Ok(op) } else { Err(code::ERROR_NOT_MAPPED) }
    }

    pub(super) fn allow_alias(&self, body: &[u8]) -> Result<(), Code> {
        let op = self.known_alias(body, &lock(&self.aliases))?;
        self.gpu.allow_as(op.address, op.bytes, op.access)
    }

    pub(super) fn unmap_alias(&self, body: &[u8]) -> Result<(), Code> {
        let mut aliases = lock(&self.aliases);
        let op = self.known_alias(body, &aliases)?;
        self.gpu.unmap(op.address, op.bytes)?;
        aliases.mapped.remove(&op.address);
        Ok(())
    }

    /// Unmaps everything, and releases the addresses.
    pub(super) fn end_aliases(&self) {
        let aliases = std::mem::take(&mut *lock(&self.aliases));
        // Both fail only if the driver has already released everything.
        for (address, mapping) in aliases.mapped {
            let _ = self.gpu.unmap(address, mapping.bytes);
        }
        for arena in aliases.arenas {
            self.arenas.remove(arena);
            let _ = self.gpu.unreserve(arena, ARENA);
        }
    }
}
