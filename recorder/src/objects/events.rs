//! The recorder's data about events.

use crate::base::log::lock;
use crate::objects::table::Known;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The recorder's data about an event.
#[derive(Debug, Default)]
pub(crate) struct EventData {
    pub(crate) flags: AtomicU32,
    /// Epoch of the place in which it was last recorded; 0: never.
    pub(crate) epoch: AtomicU64,
    records: Mutex<Records>,
    /// Whether it was last recorded in a capture.
    pub(crate) captured: AtomicBool,
    /// Whether a capture or a node of a graph has used it.
    pub(crate) in_graph: AtomicBool,
    /// When it occurred, if that was in an earlier place: bits of f64 milliseconds on the job's clock.
    pub(crate) happened_ms: AtomicU64,
}

/// The records of an event. Records and queries of several threads may interleave: an answer is about the record that was the last one in
/// the place's order when the query arrived, and only these counts show which one that was.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Number of records that were about to be sent,
    begun: u64,
    /// and of those that were sent.
    ended: u64,
    last: Option<Recorded>,
    /// Position of the latest record that is known to have occurred.
    done: u64,
    /// How many records had begun when the last of them was seen to have occurred, in a place without an order.
    over: u64,
}

/// A record of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Position in the place's order after it.
    pub(crate) at: u64,
    pub(crate) stream: u64,
}

/// The last record of an event, as it was before a query about the event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    recorded: Recorded,
    begun: u64,
}

impl EventData {
    /// A record is about to be sent to the place.
    pub(crate) fn begin_record(&self) {
        lock(&self.records).begun += 1;
    }

    /// It was sent, or could not be: then there is no epoch. `recorded` is its position, if that is known.
    pub(crate) fn end_record(&self, epoch: Option<u64>, recorded: Option<Recorded>) {
        let mut records = lock(&self.records);
        records.ended += 1;
        let Some(epoch) = epoch else { return };
        let is_newer = |last: Recorded| recorded.is_none_or(|new| new.at > last.at);
        let is_another_place = self.epoch.swap(epoch, Ordering::AcqRel) != epoch;
        if is_another_place {
            // Positions in the new epoch's order begin at zero.
            records.done = 0;
        }
        if is_another_place || records.last.is_none_or(is_newer) {
            records.last = recorded;
        }
    }

    /// It was recorded in the place of this epoch, at an unknown position.
    pub(crate) fn recorded_somewhere(&self, epoch: u64) {
        self.begin_record();
        self.end_record(Some(epoch), None);
    }

    /// The last record, if it is known and no other one is under way.
    pub(crate) fn last(&self) -> Option<Asked> {
        let records = lock(&self.records);
        let recorded = records.last.filter(|_| records.begun == records.ended)?;
        Some(Asked { recorded, begun: records.begun })
    }

    /// Returns whether a record is known to have occurred.
    pub(crate) fn is_done(&self, recorded: Recorded) -> bool {
        lock(&self.records).done == recorded.at
    }

    /// Notes that a record has occurred.
    pub(crate) fn has_happened(&self, recorded: Recorded) {
        lock(&self.records).done = recorded.at;
    }

    /// Number of records, if none is under way.
    pub(crate) fn records(&self) -> Option<u64> {
        let records = lock(&self.records);
        (records.begun == records.ended).then_some(records.begun)
    }

    /// Notes that the place has reported the event as occurred; `asked` is the number of records before the query.
    pub(crate) fn was_over(&self, asked: Option<u64>) {
        let mut records = lock(&self.records);
        // Otherwise the answer may be about a later record.
        if asked == Some(records.begun) {
            records.over = records.begun;
        }
    }

    /// Returns whether the last record is known to have occurred in the place of an epoch, or there was none; `is_past` tells whether a
    /// stream has reached a position of its order.
    pub(crate) fn is_over(&self, epoch: u64, is_past: impl FnOnce(u64, u64) -> bool) -> bool {
        let records = lock(&self.records);
        // A move waits until all work is complete, so a record of an earlier place has occurred.
        records.begun == records.ended
            && (self.epoch.load(Ordering::Acquire) != epoch
                || records.over == records.begun
                || records.last.is_some_and(|last| records.done == last.at || is_past(last.stream, last.at)))
    }

    /// The place has reported the event as occurred: returns the record of which that is true, if it is known.
    pub(crate) fn answered(&self, asked: Asked) -> Option<Recorded> {
        let mut records = lock(&self.records);
        if records.begun != asked.begun {
            // The answer may be about a later record, in another stream.
            return None;
        }
        records.done = asked.recorded.at;
        Some(asked.recorded)
    }
}

impl Asked {
    pub(crate) fn recorded(&self) -> Recorded {
        self.recorded
    }
}

impl Known for EventData {
    fn forget(&self) {
        self.recorded_somewhere(0);
        self.flags.store(0, Ordering::Relaxed);
        self.captured.store(false, Ordering::Relaxed);
        self.in_graph.store(false, Ordering::Relaxed);
        self.happened_ms.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
