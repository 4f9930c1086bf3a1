//! Slabs of pinned memory: small blocks share one, because a driver takes some 40 us to register memory, however small it is.
//!
//! The first small blocks get memory of their own, so that a program with few of them registers no more than it needs. Does no I/O: who maps
//! and unmaps is [`crate::pinned::blocks`].

use crate::pinned::PAGE;
use cuda_api::ops::Slab;
use std::collections::BTreeMap;

/// The largest block that lies in a slab.
const LARGEST: u64 = 64 << 10;
/// So many small blocks get memory of their own before there are slabs.
const ALONE: usize = 8;
/// Bytes of the first slab and of those after it. The driver keeps all pages of a slab in memory.
const FIRST: u64 = 512 << 10;
const NEXT: u64 = 2 << 20;

/// A page of a slab.
#[derive(Debug, Clone, Copy, Default)]
struct PageState {
    /// Whether it belongs to a block, or is the gap behind one.
    taken: bool,
    /// Whether a block has had it before: its contents may be left.
    used: bool,
}

#[derive(Debug)]
struct State {
    slab: Slab,
    filed: bool,
    pages: Vec<PageState>,
    /// Pages that are not taken.
    free: usize,
    blocks: usize,
}

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InSlab {
    pub(crate) at: u64,
    pub(crate) slab: Slab,
    /// Whether the slab lies in the arena's file.
    pub(crate) filed: bool,
    /// Whether its pages have had other contents, and must be cleared.
    pub(crate) used: bool,
}

/// What is to be done for a block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It gets memory of its own.
    Alone,
    In(InSlab),
    /// Map a slab of this size, report it with [`Slabs::add`], and ask again.
    Map(u64),
}

/// All slabs, and the number of small blocks outside of them.
#[derive(Debug)]
pub(crate) struct Slabs {
    all: BTreeMap<u64, State>,
    alone: usize,
}

fn pages(bytes: u64) -> usize {
    bytes.div_ceil(PAGE) as usize
}

impl Slabs {
    pub(crate) const fn new() -> Slabs {
        Slabs { all: BTreeMap::new(), alone: 0 }
    }

    /// Finds a place for a block of this size. `soon`: without giving memory of their own to the first ones.
    pub(crate) fn place(&mut self, bytes: u64, soon: bool) -> Place {
        if bytes > LARGEST {
            return Place::Alone;
        }
        if self.alone < ALONE && !soon {
            self.alone += 1;
            return Place::Alone;
        }
        let found = self.all.values_mut().find_map(|state| state.take(pages(bytes)));
        let size = if self.all.is_empty() { FIRST } else { NEXT };
        found.map_or(Place::Map(size), Place::In)
    }

    /// A small block gets memory of its own because no slab could be mapped.
    pub(crate) fn alone(&mut self) {
        self.alone += 1;
    }

    /// Adds a slab that has been mapped.
    pub(crate) fn add(&mut self, slab: Slab, filed: bool) {
        let count = pages(slab.bytes);
        self.all.insert(slab.address, State { slab, filed, pages: vec![PageState::default(); count], free: count, blocks: 0 });
    }

    /// A block has gone (`slab`: that of the block). With `retire` no other block of the slab gets its pages, since a GPU may still write
    /// to them. Returns the slab if it was the last block in it: it is to be unmapped.
    pub(crate) fn release(&mut self, at: u64, bytes: u64, slab: Slab, retire: bool) -> Option<Slab> {
        if slab.bytes == 0 {
            self.alone -= usize::from(bytes <= LARGEST);
            return None;
        }
        let state = self.all.get_mut(&slab.address)?;
        state.blocks -= 1;
        if !retire {
            state.release(pages(at - slab.address), pages(bytes));
        }
        (state.blocks == 0).then(|| self.all.remove(&slab.address).map(|state| state.slab)).flatten()
    }
}

impl State {
    /// Finds a run of so many pages and a gap behind it, or the end.
    fn take(&mut self, count: usize) -> Option<InSlab> {
        if self.free < count {
            return None;
        }
        let (mut first, mut run) = (0, 0);
        while run < count + 1 && first + run < self.pages.len() {
            if self.pages[first + run].taken {
                (first, run) = (first + run + 1, 0);
            } else {
                run += 1;
            }
        }
        if run < count {
            return None;
        }
        let gap = usize::from(run > count);
        self.pages[first..first + count + gap].iter_mut().for_each(|page| page.taken = true);
        self.free -= count + gap;
        self.blocks += 1;
        let used =
            self.pages[first..first + count].iter_mut().fold(false, |any, page| any | std::mem::replace(&mut page.used, true));
        Some(InSlab { at: self.slab.address + first as u64 * PAGE, slab: self.slab, filed: self.filed, used })
    }

    fn release(&mut self, first: usize, count: usize) {
        let end = (first + count + 1).min(self.pages.len());
        self.pages[first..end].iter_mut().for_each(|page| page.taken = false);
        self.free += end - first;
    }
}

#[cfg(test)]
mod tests;
