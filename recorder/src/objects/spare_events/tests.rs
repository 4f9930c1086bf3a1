use super::*;
use crate::objects::table::Table;
use cuda_api::handle::Kind;
use interleave::{Barrier, Body, explore};
use std::collections::BTreeSet;
use std::sync::Arc;

fn put(spares: &SpareEvents, spare: Spare) -> bool {
    spares.put(spare, spares.ends.load(Ordering::Relaxed))
}

#[test]
fn the_oldest_of_a_kind_comes_back_when_it_has_rested() {
    let spares = SpareEvents::default();
    let put = |event, flags, context| spares.put(Spare { event, flags, context }, spares.ends.load(Ordering::Relaxed));
    for event in 0..QUARANTINE as u64 {
        assert!(put(event, (event % 2) as u32, 7));
        assert_eq!(spares.take(0, 7), None, "none has left the quarantine");
    }
    assert!(put(100, 0, 7));
    assert_eq!((spares.take(1, 7), spares.take(0, 8)), (None, None), "the oldest is another kind, or of another context");
    assert_eq!(spares.take(0, 7), Some(0));
    assert_eq!(spares.take(0, 7), None);
    assert!((200..).take_while(|event| put(*event, 1, 9)).count() == MAX_SPARE - QUARANTINE);
    assert_eq!(spares.take(1, 7), Some(1));
    let mut of_a_context = spares.take_all(Some(9));
    of_a_context.sort_unstable();
    assert_eq!(of_a_context.len(), MAX_SPARE - QUARANTINE);
    assert_eq!((spares.count(), spares.take(1, 7)), (QUARANTINE - 1, None));
    assert_eq!(spares.take_all(None).len(), QUARANTINE - 1);
    assert_eq!(spares.count(), 0);
    assert!((300..).take(MAX_SPARE).all(|event| put(event, 0, 7)));
    spares.close();
    assert_eq!((spares.count(), spares.take(0, 7), put(400, 0, 7)), (0, None, false), "one of them may not be there");
}

fn filled(n: usize, flags: u32, context: u64) -> SpareEvents {
    let spares = SpareEvents::default();
    (0..n as u64).for_each(|event| assert!(put(&spares, Spare { event, flags, context })));
    spares
}

#[test]
fn no_event_is_given_before_enough_others_have_followed() {
    let spares = filled(QUARANTINE, 0, 1);
    assert_eq!((spares.take(0, 1), spares.count()), (None, QUARANTINE));
    assert!(put(&spares, Spare { event: 99, flags: 0, context: 1 }));
    assert_eq!((spares.take(0, 1), spares.take(0, 1)), (Some(0), None));
}

#[test]
fn events_come_back_in_the_order_of_their_end() {
    let spares = filled(MAX_SPARE, 0, 1);
    let order: Vec<u64> = std::iter::from_fn(|| spares.take(0, 1)).collect();
    assert_eq!(order, (0..(MAX_SPARE - QUARANTINE) as u64).collect::<Vec<_>>());
}

#[test]
fn no_more_than_the_maximum_are_kept() {
    let spares = filled(MAX_SPARE, 0, 1);
    assert!(!put(&spares, Spare { event: 99, flags: 0, context: 1 }));
    assert_eq!((spares.count(), spares.take(0, 1)), (MAX_SPARE, Some(0)));
    assert!(put(&spares, Spare { event: 99, flags: 0, context: 1 }));
}

#[test]
fn an_event_of_other_flags_is_not_given() {
    let spares = filled(MAX_SPARE, 2, 1);
    assert_eq!((spares.take(0, 1), spares.take(3, 1), spares.take(2, 1)), (None, None, Some(0)));
}

#[test]
fn an_event_of_another_context_is_not_given() {
    let spares = filled(MAX_SPARE, 2, 1);
    assert_eq!((spares.take(2, 2), spares.take(2, 0), spares.count()), (None, None, MAX_SPARE));
}

#[test]
fn resting_events_of_the_right_kind_are_passed_over() {
    let spares = filled(20, 1, 1);
    (0..QUARANTINE as u64).for_each(|i| assert!(put(&spares, Spare { event: 100 + i, flags: 0, context: 1 })));
    assert_eq!((spares.take(0, 1), spares.take(1, 1)), (None, Some(0)));
}

#[test]
fn the_events_of_a_context_are_taken_in_order_and_others_stay() {
    let spares = SpareEvents::default();
    (0..10).for_each(|event| assert!(put(&spares, Spare { event, flags: 0, context: event % 2 })));
    assert_eq!(spares.take_all(Some(1)), [1, 3, 5, 7, 9]);
    assert_eq!((spares.take_all(Some(7)), spares.take_all(None)), (vec![], vec![0, 2, 4, 6, 8]));
}

#[test]
fn a_closed_list_stays_empty() {
    let spares = filled(MAX_SPARE, 0, 1);
    spares.close();
    assert_eq!((spares.count(), spares.take_all(None)), (0, vec![]));
    assert!(!put(&spares, Spare { event: 1, flags: 0, context: 1 }));
    spares.close();
    assert_eq!(spares.count(), 0);
}

#[test]
fn the_count_is_that_of_the_list_whatever_happens() {
    use crate::objects::ranges::tests::Random;
    for seed in 1..50 {
        let (spares, mut random) = (SpareEvents::default(), Random::new(seed));
        for event in 0..300 {
            match random.below(8) {
                0 => drop(spares.take_all(Some(random.below(3)))),
                1..=3 => drop(spares.take(random.below(2) as u32, random.below(3))),
                _ => drop(put(&spares, Spare { event, flags: random.below(2) as u32, context: random.below(3) })),
            }
            assert_eq!(spares.count(), lock(&spares.all).len());
            assert!(spares.count() <= MAX_SPARE);
        }
    }
}

/// One thread destroys an event, another one resets the device. `late` is the former, wrong behaviour: the event is added whatever has
/// happened since its handle was made invalid.
fn destroyed_while_reset(late: bool) -> Result<usize, String> {
    explore(3, Barrier::Works, || {
        let (spares, events) = (Arc::new(SpareEvents::default()), Arc::new(Table::<EventData>::new(Kind::Event)));
        let event = events.make(0, 7).unwrap();
        let at_place = Arc::new(Mutex::new(BTreeSet::from([event])));
        let over = Arc::new(AtomicU32::new(0));
        let check = {
            let (spares, at_place) = (spares.clone(), at_place.clone());
            move || {
                if over.fetch_add(1, Ordering::SeqCst) == 1 {
                    let kept = spares.take_all(Some(7));
                    assert!(kept.iter().all(|e| lock(&at_place).contains(e)), "a spare event that the place does not have");
                }
            }
        };
        let destroy: Body = {
            let (spares, events, check) = (spares.clone(), events.clone(), check.clone());
            Box::new(move || {
                let spare = Spare { event, flags: 0, context: 7 };
                if !late {
                    spares.keep(&events, spare);
                } else if events.suspend(event) {
                    put(&spares, spare);
                }
                check();
            })
        };
        let reset: Body = Box::new(move || {
            let live: BTreeSet<u64> = events.all(0).into_iter().map(|(e, _)| e).collect();
            let take = || spares.take_all(None).into_iter().inspect(|e| events.resume(*e, |_| {}));
            for e in live.into_iter().chain(take()).collect::<BTreeSet<u64>>() {
                lock(&at_place).remove(&e);
                events.end(e);
            }
            take().for_each(|e| assert!(events.end(e)));
            lock(&at_place).clear();
            check();
        });
        vec![destroy, reset]
    })
}

#[test]
fn an_event_that_ended_with_its_context_is_not_kept() {
    assert!(destroyed_while_reset(false).is_ok_and(|orders| orders > 10));
    let found = destroyed_while_reset(true).unwrap_err();
    assert!(found.contains("a spare event that the place does not have"), "{found}");
}
