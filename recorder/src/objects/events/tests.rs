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
    data.note_reported_done(asked);
    data.note_reported_done(None);
    assert!(!data.is_over(1, never), "another record came between question and answer");
    data.note_reported_done(data.records());
    assert!(data.is_over(1, never) && data.is_over(2, never));
    data.begin_record();
    data.end_record(Some(1), Some(Recorded { at: 80, stream: 7 }));
    assert!(!data.is_over(1, never) && data.is_over(1, |stream, at| (stream, at) == (7, 80)));
    assert!(data.is_over(2, never), "that was in an earlier place");
    data.note_record_done(Recorded { at: 80, stream: 7 });
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
    data.note_record_done(Recorded { at: 500, stream: 7 });
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

#[test]
fn an_event_that_was_never_recorded_has_no_last_record() {
    let data = EventData::default();
    assert!(data.last().is_none());
    assert_eq!(data.records(), Some(0));
    assert!(data.is_over(7, |_, _| false));
}

#[test]
fn an_older_record_that_is_noted_later_does_not_replace_a_newer_one() {
    let data = EventData::default();
    data.begin_record();
    data.begin_record();
    data.end_record(Some(1), Some(Recorded { at: 80, stream: 7 }));
    assert!(data.last().is_none(), "another one is under way");
    data.end_record(Some(1), Some(Recorded { at: 72, stream: 8 }));
    assert_eq!(data.last().map(|l| l.recorded()), Some(Recorded { at: 80, stream: 7 }));
}

#[test]
fn a_record_at_an_unknown_position_replaces_a_known_one() {
    let data = EventData::default();
    data.begin_record();
    data.end_record(Some(1), Some(Recorded { at: 80, stream: 7 }));
    data.recorded_somewhere(1);
    assert!(data.last().is_none() && !data.is_over(1, |_, _| true));
}

#[test]
fn a_failed_record_changes_nothing() {
    let data = EventData::default();
    data.begin_record();
    data.end_record(Some(1), Some(Recorded { at: 80, stream: 7 }));
    data.begin_record();
    data.end_record(None, Some(Recorded { at: 88, stream: 9 }));
    assert_eq!(data.last().map(|l| l.recorded()), Some(Recorded { at: 80, stream: 7 }));
    assert_eq!(data.epoch.load(Ordering::Relaxed), 1);
}

#[test]
fn an_answer_counts_for_the_record_that_was_asked_about() {
    let data = EventData::default();
    data.begin_record();
    data.end_record(Some(1), Some(Recorded { at: 80, stream: 7 }));
    let asked = data.last().unwrap();
    assert_eq!(data.answered(asked), Some(Recorded { at: 80, stream: 7 }));
    assert!(data.is_done(Recorded { at: 80, stream: 7 }) && data.is_over(1, |_, _| false));
    data.begin_record();
    assert_eq!(data.answered(asked), None, "another record is under way");
}

#[test]
fn an_event_on_its_way_is_not_over_in_any_place() {
    let data = EventData::default();
    data.recorded_somewhere(1);
    data.begin_record();
    assert!(!data.is_over(1, |_, _| true) && !data.is_over(2, |_, _| true));
}

#[test]
fn an_answer_without_a_question_does_not_count() {
    let data = EventData::default();
    data.recorded_somewhere(1);
    data.note_reported_done(None);
    assert!(!data.is_over(1, |_, _| false));
    data.note_reported_done(Some(0));
    assert!(!data.is_over(1, |_, _| false));
    data.note_reported_done(Some(1));
    assert!(data.is_over(1, |_, _| false));
}

#[test]
fn a_reused_event_has_no_flags_and_no_time() {
    let data = EventData::default();
    data.flags.store(5, Ordering::Relaxed);
    data.captured.store(true, Ordering::Relaxed);
    data.in_graph.store(true, Ordering::Relaxed);
    data.happened_ms.store(1, Ordering::Relaxed);
    data.recorded_somewhere(4);
    data.forget();
    assert!(!data.captured.load(Ordering::Relaxed) && !data.in_graph.load(Ordering::Relaxed));
    let numbers =
        [data.happened_ms.load(Ordering::Relaxed), data.epoch.load(Ordering::Relaxed), data.flags.load(Ordering::Relaxed).into()];
    assert_eq!(numbers, [0; 3]);
}
