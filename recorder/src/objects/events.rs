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
    /// Number of records that were about to be sent,
    begun: AtomicU64,
    /// of those that were sent,
    ended: AtomicU64,
    /// and how many had begun when the last of them was seen to have occurred, in a place without an order. All three are changed while
    /// `records` is locked.
    over: AtomicU64,
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
    last: Option<Recorded>,
    /// Position of the latest record that is known to have occurred.
    done: u64,
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
        let _records = lock(&self.records);
        increment(&self.begun);
    }

    /// It was sent, or could not be: then there is no epoch. `recorded` is its position, if that is known.
    pub(crate) fn end_record(&self, epoch: Option<u64>, recorded: Option<Recorded>) {
        let mut records = lock(&self.records);
        increment(&self.ended);
        if let Some(epoch) = epoch {
            self.place(&mut records, epoch, recorded);
        }
    }

    /// A record was sent to the place of this epoch.
    fn place(&self, records: &mut Records, epoch: u64, recorded: Option<Recorded>) {
        let is_newer = |last: Recorded| recorded.is_none_or(|new| new.at > last.at);
        // Changed only while the records are locked.
        let is_another_place = self.epoch.load(Ordering::Relaxed) != epoch;
        if is_another_place {
            self.epoch.store(epoch, Ordering::Release);
            // Positions in the new epoch's order begin at zero.
            records.done = 0;
        }
        if is_another_place || records.last.is_none_or(is_newer) {
            records.last = recorded;
        }
    }

    /// It was recorded in the place of this epoch, at an unknown position, and that call has returned.
    pub(crate) fn recorded_somewhere(&self, epoch: u64) {
        let mut records = lock(&self.records);
        increment(&self.begun);
        increment(&self.ended);
        self.place(&mut records, epoch, None);
    }

    /// The last record, if it is known and no other one is under way.
    pub(crate) fn last(&self) -> Option<Asked> {
        let records = lock(&self.records);
        let begun = self.records()?;
        Some(Asked { recorded: records.last?, begun })
    }

    /// Returns whether a record is known to have occurred.
    pub(crate) fn is_done(&self, recorded: Recorded) -> bool {
        lock(&self.records).done == recorded.at
    }

    /// Notes that a record has occurred.
    pub(crate) fn note_record_done(&self, recorded: Recorded) {
        lock(&self.records).done = recorded.at;
    }

    /// Number of records, if none is under way.
    pub(crate) fn records(&self) -> Option<u64> {
        // Read in this order, both are equal only if no record was under way when the second one was read.
        let begun = self.begun.load(Ordering::Acquire);
        (self.ended.load(Ordering::Acquire) == begun).then_some(begun)
    }

    /// Notes that the place has reported the event as occurred; `asked` is the number of records before the query.
    pub(crate) fn note_reported_done(&self, asked: Option<u64>) {
        let Some(asked) = asked.filter(|asked| self.over.load(Ordering::Relaxed) != *asked) else { return };
        let _records = lock(&self.records);
        // Otherwise the answer may be about a later record.
        if asked == self.begun.load(Ordering::Relaxed) {
            self.over.store(asked, Ordering::Relaxed);
        }
    }

    /// Returns whether the last record is known to have occurred in the place of an epoch, or there was none; `is_past` tells whether a
    /// stream has reached a position of its order.
    pub(crate) fn is_over(&self, epoch: u64, is_past: impl FnOnce(u64, u64) -> bool) -> bool {
        let Some(begun) = self.records() else { return false };
        // A move waits until all work is complete, so a record of an earlier place has occurred.
        if self.epoch.load(Ordering::Acquire) != epoch || self.over.load(Ordering::Relaxed) == begun {
            return true;
        }
        let records = lock(&self.records);
        self.records() == Some(begun) && records.last.is_some_and(|last| records.done == last.at || is_past(last.stream, last.at))
    }

    /// The place has reported the event as occurred: returns the record of which that is true, if it is known.
    pub(crate) fn answered(&self, asked: Asked) -> Option<Recorded> {
        let mut records = lock(&self.records);
        if self.begun.load(Ordering::Relaxed) != asked.begun {
            // The answer may be about a later record, in another stream.
            return None;
        }
        records.done = asked.recorded.at;
        Some(asked.recorded)
    }
}

/// Increments a number that one thread at a time changes.
fn increment(n: &AtomicU64) {
    n.store(n.load(Ordering::Relaxed) + 1, Ordering::Release);
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
