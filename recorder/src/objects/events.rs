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
mod tests {
    use super::*;

    #[test]
    fn an_event_is_over_when_its_last_record_is_known_to_have_happened() {
        let (data, never) = (EventData::default(), |_, _| false);
        assert!(data.is_over(1, never), "never recorded");
        data.begin_record();
        assert!(!data.is_over(1, never), "on its way");
        data.end_record(Some(1), None);
        assert!(!data.is_over(1, never));
        let asked = data.records();
        data.begin_record();
        assert_eq!(data.records(), None);
        data.end_record(Some(1), None);
        data.was_over(asked);
        data.was_over(None);
        assert!(!data.is_over(1, never), "another record came between question and answer");
        data.was_over(data.records());
        assert!(data.is_over(1, never) && data.is_over(2, never));
        data.begin_record();
        data.end_record(Some(1), Some(Recorded { at: 80, stream: 7 }));
        assert!(!data.is_over(1, never) && data.is_over(1, |stream, at| (stream, at) == (7, 80)));
        assert!(data.is_over(2, never), "that was in an earlier place");
        data.has_happened(Recorded { at: 80, stream: 7 });
        assert!(data.is_over(1, never));
        data.begin_record();
        data.end_record(None, None);
        assert!(data.is_over(1, never), "a record that failed leaves it as it was");
        data.recorded_somewhere(1);
        assert!(!data.is_over(1, never));
        data.forget();
        assert!(data.is_over(1, never));
    }

    /// All interleavings of the steps of some threads: for each the numbers of the threads.
    fn orders(steps: &[usize]) -> Vec<Vec<usize>> {
        if steps.iter().all(|n| *n == 0) {
            return vec![Vec::new()];
        }
        let mut all = Vec::new();
        for thread in (0..steps.len()).filter(|t| steps[*t] > 0) {
            let mut left = steps.to_vec();
            left[thread] -= 1;
            all.extend(orders(&left).into_iter().map(|rest| [vec![thread], rest].concat()));
        }
        all
    }

    /// A place with one event, and the job's knowledge of it.
    #[derive(Default)]
    struct World {
        data: EventData,
        /// Position after everything sent so far.
        position: u64,
        /// The event's last record in the place.
        truth: Option<Recorded>,
        asked: Option<Asked>,
        answer: Option<Recorded>,
        /// Records that are claimed to have occurred.
        claimed: Vec<Recorded>,
        /// The former, wrong behaviour: an answer counts for the record that was the last one at the time of the query.
        believes: bool,
    }

    impl World {
        /// A step of a thread that records the event in a stream.
        fn record(&mut self, stream: u64, step: usize) {
            match step {
                0 => self.data.begin_record(),
                1 => {
                    self.position += 8;
                    self.truth = Some(Recorded { at: self.position, stream });
                }
                _ => {}
            }
        }

        fn end_record(&mut self, at: u64, stream: u64) {
            self.data.end_record(Some(1), Some(Recorded { at, stream }));
        }

        /// A step of a thread that queries the event; a record in stream 1 never occurs.
        fn ask(&mut self, step: usize) {
            match step {
                0 => self.asked = self.data.last(),
                1 => self.answer = self.truth.filter(|r| r.stream != 1),
                _ => {
                    if let (Some(asked), Some(_)) = (self.asked, self.answer) {
                        let claimed = if self.believes { Some(asked.recorded()) } else { self.data.answered(asked) };
                        self.claimed.extend(claimed);
                    }
                }
            }
        }
    }

    /// Two records of an event and a query in all orders: how many answers were informative, and in which order one led to a wrong claim.
    fn records_and_questions(believes: bool) -> (usize, Option<Vec<usize>>) {
        let mut learned = 0;
        for order in orders(&[3, 3, 3]) {
            let mut w = World { believes, ..World::default() };
            // It was recorded in a stream that never gets there.
            w.record(1, 0);
            w.record(1, 1);
            w.end_record(w.position, 1);
            // Two threads record it again, in idle streams; the third one queries it.
            let (mut steps, mut ends) = ([0; 3], [0; 2]);
            for thread in order.iter().copied() {
                let step = steps[thread];
                steps[thread] += 1;
                match (thread, step) {
                    (2, _) => w.ask(step),
                    (_, 2) => w.end_record(ends[thread], 2 + thread as u64),
                    _ => {
                        w.record(2 + thread as u64, step);
                        ends[thread.min(1)] = w.position;
                    }
                }
            }
            if w.claimed.iter().any(|r| r.stream == 1) {
                return (learned, Some(order));
            }
            assert_eq!(w.data.last().map(|l| l.recorded()), w.truth, "{order:?}");
            // Without concurrent records a query is informative.
            (0..3).for_each(|step| w.ask(step));
            learned += w.claimed.len();
            assert_eq!(w.claimed.last().copied(), w.truth, "{order:?}");
            assert!(believes || w.data.is_done(w.truth.unwrap()));
        }
        (learned, None)
    }

    #[test]
    fn an_answer_teaches_nothing_of_another_record() {
        let (learned, wrong) = records_and_questions(false);
        assert_eq!(wrong, None);
        assert!(learned >= orders(&[3, 3, 3]).len());
        assert!(records_and_questions(true).1.is_some(), "the model finds what was wrong");
    }

    #[test]
    fn a_record_in_a_new_place_counts_though_its_order_begins_anew() {
        let data = EventData::default();
        let record = |epoch, at| {
            data.begin_record();
            data.end_record(Some(epoch), Some(Recorded { at, stream: 7 }));
            data.last().map(|l| l.recorded().at)
        };
        assert_eq!(record(1, 500), Some(500));
        data.has_happened(Recorded { at: 500, stream: 7 });
        assert_eq!(record(2, 24), Some(24));
        assert_eq!(record(3, 500), Some(500));
        assert!(!data.is_done(Recorded { at: 500, stream: 7 }), "that was in the first place");
        assert_eq!(record(4, 24), Some(24));
        data.begin_record();
        assert!(data.last().is_none(), "one is on its way");
        data.end_record(None, None);
        assert_eq!(data.last().map(|l| l.recorded().at), Some(24), "it has failed");
        data.recorded_somewhere(4);
        assert!(data.last().is_none());
    }
}
