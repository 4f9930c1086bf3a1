//! The journal's tail: the records that a move has not replayed yet.

use cuda_api::ops::{self, Chunk};
use cuda_api::wire::Wire;
use journal::{JournalError, Record, RecordBuffer};

/// What a replay of records costs, apart from their transfer. Everything else that a journal holds is replayed in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Weight {
    /// Number of things that the driver needs long to make: code, instances of graphs, arrays, the device heap, larger local memory.
    pub(crate) makings: u64,
    /// Bytes of memory that are mapped, and whose contents must be copied.
    pub(crate) bytes: u64,
}

impl Weight {
    fn of(record: &Record) -> Weight {
        match record.id {
            ops::id::IMAGE_PUT
            | ops::id::IMAGE_LOAD
            | ops::id::HEAP_MAKE
            | ops::id::LOCAL_GROW
            | ops::id::GRAPH_MAKE
            | ops::id::ARRAY_MAKE
            | ops::id::TILE_POOL_MAKE => Weight { makings: 1, bytes: 0 },
            ops::id::CHUNK_MAP => Weight { makings: 0, bytes: Chunk::get(&mut &record.body[..]).map_or(0, |c| c.bytes) },
            _ => Weight::default(),
        }
    }

    /// Returns whether the replay takes long enough to be worth doing before the gate is closed.
    pub(crate) fn is_heavy(self) -> bool {
        self != Weight::default()
    }
}

/// Records since a move took the live set or the last tail.
#[derive(Debug, Default)]
pub(super) struct Tail {
    pub(super) records: RecordBuffer,
    pub(super) weight: Weight,
}

impl Tail {
    pub(super) fn push(&mut self, record: &Record) -> Result<(), JournalError> {
        self.records.push(record)?;
        let more = Weight::of(record);
        self.weight.makings += more.makings;
        self.weight.bytes = self.weight.bytes.saturating_add(more.bytes);
        Ok(())
    }
}
