//! A pool of stream-ordered allocations: which bytes are free, and for which streams.
//!
//! A block that is freed in a stream can be reused at once by work of the same stream. Other streams may have it only when the work
//! before the free is complete. The owner of the pool tracks this by *generations*: each free belongs to the current one; a
//! synchronisation or a mark of the owner begins the next (`Memory::seal` in [`super::stream_frees`]) and, when it is complete, so are
//! all frees of earlier generations.

use crate::objects::ranges::Ranges;
use crate::objects::ticket::Ticket;
use std::collections::BTreeMap;

/// Pseudo-stream of frees that follow no stream: complete only when all work is.
pub(crate) const NO_STREAM: u64 = 0;
/// Alignment of allocations.
pub(crate) const STEP: u64 = 512;
/// A pool grows by multiples of this, as the driver's does.
pub(crate) const GROWTH: u64 = 32 << 20;

/// Settings of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Reuse along events, of frees that happen to be complete, and with waits that the pool inserts. The pool's behaviour is correct
    /// under any of them.
    pub(crate) reuse: [i32; 3],
    /// Bytes that synchronisations leave in the pool.
    pub(crate) threshold: u64,
    /// Maximum size of the pool; 0: no limit.
    pub(crate) most: u64,
}

/// Current and maximum bytes in use by the program or taken from the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) now: u64,
    pub(crate) high: u64,
}

impl Level {
    fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.high = self.high.max(self.now);
    }
}

/// A pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) settings: Settings,
    pub(crate) used: Level,
    pub(crate) reserved: Level,
    /// Destroyed by the program: it is removed when it is empty.
    pub(crate) doomed: bool,
    /// Whether its allocations may be exported to other processes.
    pub(crate) is_exportable: bool,
    /// The owner, if it is a pool of another process.
    pub(crate) lender: Option<Ticket>,
    /// Physical memory by address.
    chunks: BTreeMap<u64, u64>,
    free: Ranges,
    /// Freed blocks that work may still use, by stream and generation.
    pending: BTreeMap<(u64, u64), Ranges>,
}

/// Memory for an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) address: u64,
    /// Whether earlier work of the same stream may still use it.
    pub(crate) pending: bool,
}

impl Found {
    /// Memory that nothing uses.
    pub(crate) fn ready(address: u64) -> Found {
        Found { address, pending: false }
    }
}

impl Pool {
    /// An empty pool of at most `most` bytes (0: no limit).
    pub(crate) fn new(most: u64) -> Pool {
        Pool {
            settings: Settings { reuse: [1; 3], threshold: 0, most },
            used: Level::default(),
            reserved: Level::default(),
            doomed: false,
            is_exportable: false,
            lender: None,
            chunks: BTreeMap::new(),
            free: Ranges::default(),
            pending: BTreeMap::new(),
        }
    }

    /// Bytes that an allocation occupies.
    pub(crate) fn room(bytes: u64) -> Option<u64> {
        bytes.checked_next_multiple_of(STEP)
    }

    /// Returns whether the program's limit allows `room` more bytes.
    pub(crate) fn allows(&self, room: u64) -> bool {
        self.settings.most == 0 || self.used.now + room <= self.settings.most
    }

    /// Allocates for work of `stream`. The requested size counts as used (as a 580 driver on an H200 answered).
    pub(crate) fn take(&mut self, stream: u64, bytes: u64) -> Option<Found> {
        let room = Pool::room(bytes)?;
        let mine = (stream, 0)..=(stream, u64::MAX);
        let own = if stream == NO_STREAM { None } else { self.pending.range_mut(mine).find_map(|(_, r)| r.take(room)) };
        let found = match own {
            Some(address) => Some(Found { address, pending: true }),
            None => self.free.take(room).map(Found::ready),
        };
        if found.is_some() {
            self.used.add(bytes);
        }
        found
    }

    /// Adds new physical memory.
    pub(crate) fn grow(&mut self, address: u64, bytes: u64) {
        self.chunks.insert(address, bytes);
        self.reserved.add(bytes);
        self.free.put(address, bytes);
    }

    /// Frees a block in a stream.
    pub(crate) fn give_back(&mut self, stream: u64, generation: u64, address: u64, bytes: u64) {
        self.used.now -= bytes;
        // The size is valid for every allocated block.
        let room = Pool::room(bytes).unwrap_or(bytes);
        self.pending.entry((stream, generation)).or_default().put(address, room);
    }

    /// Returns whether a free of this generation is incomplete.
    pub(crate) fn has_pending(&self, generation: u64) -> bool {
        self.pending.iter().any(|((_, g), r)| *g == generation && r.bytes() > 0)
    }

    /// Returns whether any free is incomplete.
    pub(crate) fn is_waiting(&self) -> bool {
        self.pending.values().any(|r| r.bytes() > 0)
    }

    /// Completes the frees up to a generation: of one stream, or all.
    pub(crate) fn complete(&mut self, stream: Option<u64>, generation: u64) {
        let done = |(s, g): &(u64, u64)| *g <= generation && stream.is_none_or(|only| only == *s);
        for (_, ranges) in self.pending.extract_if(.., |key, _| done(key)) {
            self.free.put_all(ranges);
        }
    }

    /// Returns whether a synchronisation should call [`Pool::release`].
    pub(crate) fn holds_too_much(&self) -> bool {
        self.reserved.now > self.settings.threshold && self.free.bytes() > 0
    }

    /// Removes physical memory that is completely free, down to `keep` bytes; returns its addresses.
    pub(crate) fn release(&mut self, keep: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        for (&address, &bytes) in &self.chunks {
            if self.reserved.now <= keep {
                break;
            }
            if self.free.carve(address, bytes) {
                self.reserved.now -= bytes;
                gone.push(address);
            }
        }
        for address in &gone {
            self.chunks.remove(address);
        }
        gone
    }

    /// Returns whether the program has destroyed it, and nothing uses its memory any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.doomed && self.used.now == 0 && !self.is_waiting()
    }

    /// Returns whether no memory of the device is left in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

#[cfg(test)]
mod tests;
