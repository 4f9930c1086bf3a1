//! The memory of other devices that a place has mapped so that it can copy from and to it: tables without I/O and without locks.
//! [`crate::device_memory::imports`] maps and unmaps what they say.
//!
//! A chunk is identified by its address and the epoch of its owner's place; within an epoch, who unmaps a chunk ends its imports first. An
//! import that is ended while copies use it is found by no other copy, and stays mapped until they are complete: its address is not used
//! again before.

use crate::objects::ranges::Ranges;
use cuda_api::address_map::{IMPORTS, IMPORTS_END};
use cuda_api::ops::Chunk;
use std::collections::{BTreeMap, BTreeSet};

/// A chunk of another device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) owner: u32,
    /// The epoch of the owner's place.
    pub(crate) epoch: u64,
    pub(crate) chunk: Chunk,
}

#[derive(Debug)]
struct Import {
    of: Source,
    /// Copies under way that use it.
    uses: u64,
    /// Whether no copy may begin to use it.
    is_ended: bool,
}

/// The imports of one place.
#[derive(Debug)]
pub(crate) struct Imports {
    /// The epoch of the device whose place it is.
    epoch: u64,
    room: Ranges,
    /// By the address of the mapping.
    mapped: BTreeMap<u64, Import>,
    /// Addresses of the mappings that copies may use, by the address of the chunk.
    current: BTreeMap<u64, u64>,
    /// Owners whose memory could not be mapped, with the epochs of their places.
    refused: BTreeSet<(u32, u64)>,
}

impl Imports {
    /// None, for the place of this epoch.
    pub(crate) fn new(epoch: u64) -> Imports {
        let mut room = Ranges::default();
        room.put(IMPORTS, IMPORTS_END - IMPORTS);
        Imports { epoch, room, mapped: BTreeMap::new(), current: BTreeMap::new(), refused: BTreeSet::new() }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The address of a chunk's mapping; a copy that uses it begins. It reports its end with [`Imports::done`].
    pub(crate) fn take(&mut self, of: &Source) -> Option<u64> {
        let at = *self.current.get(&of.chunk.address)?;
        let import = self.mapped.get_mut(&at).filter(|import| import.of == *of)?;
        import.uses += 1;
        Some(at)
    }

    /// Returns whether no attempt to map this device's memory has failed.
    pub(crate) fn may_try(&self, of: &Source) -> bool {
        !self.refused.contains(&(of.owner, of.epoch))
    }

    /// Takes an address for a chunk, which is mapped there next: [`Imports::made`] or [`Imports::failed`] reports the result.
    pub(crate) fn reserve(&mut self, of: &Source) -> Option<u64> {
        self.room.take(of.chunk.bytes)
    }

    /// A chunk has been mapped.
    pub(crate) fn made(&mut self, at: u64, of: Source) {
        self.mapped.insert(at, Import { of, uses: 0, is_ended: false });
        self.current.insert(of.chunk.address, at);
    }

    /// A chunk could not be mapped; `for_good` if no other attempt is to be made with this owner.
    pub(crate) fn failed(&mut self, at: u64, of: &Source, for_good: bool) {
        self.room.put(at, of.chunk.bytes);
        if for_good {
            self.refused.insert((of.owner, of.epoch));
        }
    }

    /// A copy that used the mapping at an address is complete. Returns the mapping if it must be unmapped now; the caller reports that with
    /// [`Imports::unmapped`].
    pub(crate) fn done(&mut self, at: u64) -> Option<Chunk> {
        let import = self.mapped.get_mut(&at)?;
        import.uses = import.uses.saturating_sub(1);
        if import.uses > 0 || !import.is_ended {
            return None;
        }
        let bytes = import.of.chunk.bytes;
        self.mapped.remove(&at);
        Some(Chunk { address: at, bytes })
    }

    /// Ends imports. Returns the mappings that must be unmapped now; the caller reports that with [`Imports::unmapped`]. Those that copies
    /// use follow when these are complete.
    pub(crate) fn end(&mut self, which: impl Fn(&Source) -> bool) -> Vec<Chunk> {
        let mut gone = Vec::new();
        self.current.retain(|_, at| {
            let Some(import) = self.mapped.get_mut(at) else { return false };
            if !which(&import.of) {
                return true;
            }
            import.is_ended = true;
            if import.uses == 0 {
                gone.push(Chunk { address: *at, bytes: import.of.chunk.bytes });
            }
            false
        });
        for chunk in &gone {
            self.mapped.remove(&chunk.address);
        }
        gone
    }

    /// Ends the imports that no copy uses, to make room.
    pub(crate) fn end_unused(&mut self) -> Vec<Chunk> {
        let unused: BTreeSet<u64> = self.mapped.values().filter(|i| i.uses == 0).map(|i| i.of.chunk.address).collect();
        self.end(|of| unused.contains(&of.chunk.address))
    }

    /// A mapping has been unmapped: its addresses may be used again.
    pub(crate) fn unmapped(&mut self, mapping: Chunk) {
        self.room.put(mapping.address, mapping.bytes);
    }
}

#[cfg(test)]
mod tests;
