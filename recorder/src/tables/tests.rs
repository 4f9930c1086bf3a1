use super::*;

#[test]
fn ended_handles_stay_ended() {
    let t: Table<Nothing> = Table::new(Kind::Event);
    let mut old = Vec::new();
    for i in 0..1000 {
        let h = t.make(i % 3, 0).unwrap();
        assert_eq!(t.get(h).unwrap().device(), i % 3);
        assert!(t.end(h));
        assert!(!t.end(h));
        old.push(h);
    }
    assert_eq!(t.live(), 0);
    assert!(old.iter().all(|h| t.get(*h).is_err()));
    old.sort_unstable();
    old.dedup();
    assert_eq!(old.len(), 1000);
    assert!(lock(&t.slots).next < 100, "slots are used again");
}

#[test]
fn suspended_handles_come_back_as_new_ones() {
    let t: Table<EventData> = Table::new(Kind::Event);
    let h = t.make(1, 5).unwrap();
    t.get(h).unwrap().data.flags.store(2, Ordering::Relaxed);
    assert!(t.suspend(h) && !t.suspend(h) && !t.end(h));
    assert!(t.get(h).is_err() && t.all(1).is_empty());
    t.resume(h, |data| data.flags.store(3, Ordering::Relaxed));
    let slot = t.get(h).unwrap();
    assert_eq!((slot.device(), slot.context(), slot.data.flags.load(Ordering::Relaxed)), (1, 5, 3));
    assert!(t.end(h) && t.live() == 0);
}

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

#[test]
fn zero_and_foreign_numbers_are_no_handles() {
    let t: Table<Nothing> = Table::new(Kind::Stream);
    t.make(0, 0).unwrap();
    for number in [0, 1, 2, 64, u64::MAX, compose(Kind::Stream, 1, 5), compose(Kind::Stream, 2, 0), compose(Kind::Event, 1, 0)] {
        assert_eq!(t.get(number).err(), Some(code::ERROR_INVALID_HANDLE), "{number:#x}");
        assert!(!t.end(number) && !t.suspend(number), "{number:#x}");
    }
    assert_eq!(t.live(), 1);
}

#[test]
fn a_handle_says_what_it_is() {
    let tables = Tables::new();
    for (made, kind) in [Kind::Stream, Kind::Event, Kind::Module, Kind::Library, Kind::Function, Kind::Kernel, Kind::GraphExec]
        .into_iter()
        .chain([Kind::Array, Kind::Mipmap, Kind::Object, Kind::TextureRef, Kind::SurfaceRef])
        .map(|kind| (tables.make(kind, 3, 1).unwrap(), kind))
    {
        assert_eq!(cuda_api::handle::kind(made), Some(kind));
        let everywhere = matches!(kind, Kind::Library | Kind::Kernel);
        assert_eq!(tables.device(kind, made), Ok(if everywhere { EVERY_DEVICE } else { 3 }));
        assert!(tables.end(made) && !tables.end(made));
        assert_eq!(tables.device(kind, made), Err(code::ERROR_INVALID_HANDLE));
    }
}

#[test]
fn kinds_that_live_elsewhere_cannot_be_made_here() {
    let tables = Tables::new();
    for kind in [Kind::Context, Kind::GreenContext, Kind::Graph, Kind::GraphNode, Kind::UserObject, Kind::Pool, Kind::Physical] {
        assert_eq!(tables.make(kind, 0, 0), Err(code::ERROR_INVALID_HANDLE), "{kind:?}");
        assert!(!tables.end(compose(kind, 1, 0)), "{kind:?}");
        let wanted = if kind == Kind::Context { code::ERROR_INVALID_CONTEXT } else { code::ERROR_INVALID_HANDLE };
        assert_eq!(tables.device(kind, compose(kind, 1, 0)), Err(wanted), "{kind:?}");
    }
}

#[test]
fn a_handle_of_another_kind_is_refused() {
    let tables = Tables::new();
    let stream = tables.make(Kind::Stream, 0, 0).unwrap();
    let event = tables.make(Kind::Event, 0, 0).unwrap();
    assert_eq!(tables.device(Kind::Event, stream), Err(code::ERROR_INVALID_HANDLE));
    assert_eq!(tables.streams.get(event).err(), Some(code::ERROR_INVALID_HANDLE));
    assert!(!tables.streams.end(event) && tables.events.live() == 1);
}

#[test]
fn functions_and_kernels_have_their_own_tables() {
    let tables = Tables::new();
    let (function, kernel) = (tables.make(Kind::Function, 0, 0).unwrap(), tables.make(Kind::Kernel, 0, 0).unwrap());
    assert!(tables.function(function).is_ok() && tables.function(kernel).is_ok());
    assert!(!std::ptr::eq(tables.function(function).unwrap(), tables.function(kernel).unwrap()));
    let stream = tables.make(Kind::Stream, 0, 0).unwrap();
    assert_eq!(tables.function(stream).err(), Some(code::ERROR_INVALID_HANDLE));
    assert!(tables.end(function) && tables.function(function).is_err());
}

#[test]
fn a_slot_rests_before_it_is_used_again() {
    let t: Table<Nothing> = Table::new(Kind::Event);
    let first = t.make(0, 0).unwrap();
    assert!(t.end(first));
    for n in 1..=64 {
        let h = t.make(0, 0).unwrap();
        assert_ne!(slot(h), slot(first), "{n}");
        assert!(t.end(h));
    }
    let again = t.make(0, 0).unwrap();
    assert_eq!(slot(again), slot(first));
    assert_ne!(again, first, "under another number");
    assert!(t.get(first).is_err() && t.get(again).is_ok());
}

#[test]
fn live_handles_count_until_they_end() {
    let t: Table<Nothing> = Table::new(Kind::Event);
    let all: Vec<u64> = (0..10).map(|_| t.make(0, 0).unwrap()).collect();
    assert_eq!(t.live(), 10);
    assert!(t.suspend(all[0]));
    assert_eq!(t.live(), 10, "a suspended one counts");
    t.resume(all[0], |_| ());
    assert!(all.iter().all(|h| t.end(*h)));
    assert_eq!(t.live(), 0);
}

#[test]
fn the_handles_of_a_device_are_listed() {
    let t: Table<Nothing> = Table::new(Kind::Event);
    let all: Vec<u64> = (0..9).map(|i| t.make(i % 3, 0).unwrap()).collect();
    assert!(t.end(all[3]));
    let of = |device| t.all(device).into_iter().map(|(h, _)| h).collect::<Vec<_>>();
    assert_eq!((of(0), of(1), of(7)), (vec![all[0], all[6]], vec![all[1], all[4], all[7]], vec![]));
}

#[test]
fn what_ends_with_a_context_is_what_was_made_in_it() {
    let t: Table<Nothing> = Table::new(Kind::Event);
    let h = t.make(0, 7).unwrap();
    let s = t.get(h).unwrap();
    assert!(s.ends_with(Some(7)) && s.ends_with(None) && !s.ends_with(Some(8)));
    s.set_context(8);
    assert!(s.ends_with(Some(8)) && !s.ends_with(Some(7)) && s.context() == 8);
}

#[test]
fn a_new_handle_in_an_old_slot_knows_nothing_of_the_old_one() {
    let t: Table<StreamData> = Table::new(Kind::Stream);
    let old = t.make(1, 5).unwrap();
    let data = &t.get(old).unwrap().data;
    data.flags.store(1, Ordering::Relaxed);
    data.priority.store(7, Ordering::Relaxed);
    data.per_thread.store(true, Ordering::Relaxed);
    data.orphaned.store(true, Ordering::Relaxed);
    data.delay.store(99, Ordering::Relaxed);
    assert!(t.end(old));
    // The slot comes back when 64 others have been freed after it.
    (0..64).for_each(|_| assert!(t.end(t.make(2, 6).unwrap())));
    let new = t.make(2, 6).unwrap();
    assert_eq!(slot(new), slot(old));
    let cell = t.cells.get(slot(new)).unwrap();
    let d = &cell.data;
    let seen = (d.flags.load(Ordering::Relaxed), d.priority.load(Ordering::Relaxed), d.delay.load(Ordering::Relaxed));
    assert_eq!(seen, (0, 0, 0));
    assert!(!d.per_thread.load(Ordering::Relaxed) && !d.orphaned.load(Ordering::Relaxed));
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
    data.was_over(None);
    assert!(!data.is_over(1, |_, _| false));
    data.was_over(Some(0));
    assert!(!data.is_over(1, |_, _| false));
    data.was_over(Some(1));
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

#[test]
fn an_instance_that_is_made_again_has_no_changes() {
    let data = InstanceData::default();
    lock(&data.records).push(7);
    data.may_wait.store(true, Ordering::Relaxed);
    data.forget();
    assert!(lock(&data.records).is_empty() && !data.may_wait.load(Ordering::Relaxed));
}

#[test]
fn handles_made_by_several_threads_are_all_different() {
    let t: Table<Nothing> = Table::new(Kind::Event);
    let make = |n: u64| {
        let handle = t.make(0, 0).unwrap();
        assert!(!n.is_multiple_of(3) || t.end(handle));
        handle
    };
    let made = || (0..500).map(make).collect::<Vec<_>>();
    let mut all: Vec<u64> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|_| s.spawn(made)).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 2000);
    assert_eq!(t.live(), all.iter().filter(|h| t.get(**h).is_ok()).count() as u64);
}
