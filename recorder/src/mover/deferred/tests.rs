use super::*;
use crate::base::encoding::encode;
use crate::calls::reference;
use cuda_api::array::Resource;
use cuda_api::ops::id;
use cuda_api::reference::{ReferenceSet, Setting};
use journal::Role;

fn record(seq: u64, id: u16, instance: u64) -> OwnedRecord {
    let (mut creates, mut ends, mut uses) = (vec![], None, vec![]);
    match id {
        id::GRAPH_MAKE | id::OBJECT_MAKE => creates.push(instance),
        id::GRAPH_END | id::OBJECT_END => ends = Some(instance),
        // The change itself has another name.
        _ => (creates, uses) = (vec![1000 + seq], vec![instance]),
    }
    OwnedRecord { seq, id, role: Role::Plain, setting: None, device: 0, creates, ends, uses, body: vec![], reply: vec![] }
}

fn seqs(due: &[Due]) -> Vec<u64> {
    due.iter().map(|due| due.record().seq).collect()
}

#[test]
fn all_of_an_instance_waits_and_what_has_ended_is_left_out() {
    let mut deferred = DeferredRecords::default();
    let feed = |deferred: &mut DeferredRecords, records: Vec<OwnedRecord>| -> Vec<u64> {
        // Deferred are the creation of 20 and 21, and the change 8.
        seqs(&deferred.sort_out(records.iter().map(OwnedRecord::as_record), |r| [2, 3, 8].contains(&r.seq)))
    };
    let first = vec![
        record(1, id::GRAPH_MAKE, 10),
        record(2, id::GRAPH_MAKE, 20),
        record(3, id::GRAPH_MAKE, 21),
        record(4, id::GRAPH_CHANGE, 20),
        record(5, id::GRAPH_SWITCH, 21),
        record(6, id::GRAPH_MAKE, 11),
        record(7, id::GRAPH_CHANGE, 10),
    ];
    assert_eq!(feed(&mut deferred, first), [1, 6, 7]);
    let second = vec![
        record(8, id::GRAPH_CHANGE, 11),
        record(9, id::GRAPH_END, 20),
        record(10, id::GRAPH_END, 10),
        record(11, id::GRAPH_END, 11),
        record(12, id::EVENT_RECORD, 21),
    ];
    assert_eq!(feed(&mut deferred, second), [10, 12]);
    let left: Vec<u64> = deferred.take(|_| true).iter().map(|r| r.seq).collect();
    assert_eq!(left, [3, 5, 8, 11]);
}

#[test]
fn settings_of_a_reference_wait_and_end_with_it() {
    let mut deferred = DeferredRecords::default();
    let of = |seq, reference: u64| OwnedRecord {
        body: encode(&ReferenceSet { reference, setting: Setting::Flags(0) }),
        ..record(seq, id::REFERENCE_SET, reference)
    };
    let feed = |deferred: &mut DeferredRecords, records: Vec<OwnedRecord>| -> Vec<u64> {
        seqs(&deferred.sort_out(records.iter().map(OwnedRecord::as_record), |r| [2, 3].contains(&r.seq)))
    };
    assert_eq!(feed(&mut deferred, [(1, 10), (2, 20), (3, 30), (4, 10), (5, 20)].map(|(seq, r)| of(seq, r)).to_vec()), [1, 4]);
    let left: Vec<u64> = deferred.take(|r| reference::set_by(r) != Some(30)).iter().map(|r| r.seq).collect();
    assert_eq!(left, [2, 5]);
}

#[test]
fn a_reference_that_shows_something_else_waits_no_longer() {
    let mut deferred = DeferredRecords::default();
    let set = |seq, setting| {
        let body = encode(&ReferenceSet { reference: 20, setting });
        OwnedRecord { body, ..record(seq, id::REFERENCE_SET, 20) }
    };
    let shows = |seq| set(seq, Setting::Resource(Resource::default()));
    let mut feed = |records: Vec<OwnedRecord>| -> Vec<u64> {
        seqs(&deferred.sort_out(records.iter().map(OwnedRecord::as_record), |r| [1, 3].contains(&r.seq)))
    };
    assert!(feed(vec![shows(1), set(2, Setting::Flags(1)), shows(3), set(4, Setting::Filter(0))]).is_empty());
    // The array that it refers to now may be freed before the job is quiesced.
    assert_eq!(feed(vec![shows(5), record(6, id::OBJECT_END, 9), set(7, Setting::Flags(0))]), [2, 4, 5, 6, 7]);
    assert!(deferred.take(|_| true).is_empty());
}

#[test]
fn a_texture_of_host_memory_waits_and_one_that_has_ended_is_left_out() {
    let mut deferred = DeferredRecords::default();
    let mut feed = |records: Vec<OwnedRecord>| -> Vec<u64> {
        seqs(&deferred.sort_out(records.iter().map(OwnedRecord::as_record), |r| [2, 3].contains(&r.seq)))
    };
    assert_eq!(feed([(1, 10), (2, 20), (3, 30)].map(|(seq, o)| record(seq, id::OBJECT_MAKE, o)).to_vec()), [1]);
    assert_eq!(feed([(4, 10), (5, 20)].map(|(seq, o)| record(seq, id::OBJECT_END, o)).to_vec()), [4]);
    assert_eq!(deferred.take(|_| true).iter().map(|r| r.seq).collect::<Vec<_>>(), [3]);
}
