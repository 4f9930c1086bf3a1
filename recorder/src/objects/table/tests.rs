use super::*;
use crate::base::log::lock;
use crate::objects::events::*;
use crate::objects::instances::InstanceData;
use crate::objects::streams::StreamData;
use crate::objects::tables::{Nothing, Tables};
use cuda_api::handle::{compose, slot};
use std::sync::atomic::Ordering;

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

#[test]
fn there_are_more_handles_than_one_segment_holds() {
    let table: Table<EventData> = Table::new(Kind::Event);
    let all: Vec<u64> = (0..10_000).map(|_| table.make(0, 7).unwrap()).collect();
    assert!(all.iter().all(|h| table.get(*h).is_ok_and(|slot| slot.context() == 7)));
    assert_eq!((table.live(), table.all(0).len()), (10_000, 10_000));
    assert!(table.end(all[0]) && table.end(all[9_999]));
    assert!(table.get(all[0]).is_err() && table.get(all[9_999]).is_err() && table.get(all[4_096]).is_ok());
}
