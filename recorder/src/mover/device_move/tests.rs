use super::*;
use journal::Role;
use rcuda_forwarder::Refused;

fn record(seq: u64, id: u16, ends: Option<u64>, number: u64) -> OwnedRecord {
    let reply = number.to_le_bytes().to_vec();
    OwnedRecord { seq, id, role: Role::Plain, setting: None, device: 0, creates: vec![], ends, uses: vec![], body: vec![], reply }
}

#[test]
fn objects_come_by_number_and_before_what_ends() {
    let object = |seq, number| record(seq, ops::id::OBJECT_MAKE, None, number);
    let array = |seq| record(seq, ops::id::ARRAY_MAKE, None, 0);
    let end = |seq| record(seq, ops::id::ARRAY_END, Some(7), 0);
    let records = [object(0, 9), array(1), object(2, 4), end(3), object(4, 3), array(5), object(6, 1)];
    let order: Vec<u64> = objects_by_number(records.iter().map(OwnedRecord::as_record)).iter().map(|r| r.seq).collect();
    assert_eq!(order, [1, 2, 0, 3, 5, 6, 4]);
}

#[test]
fn a_round_may_take_as_long_as_its_bytes_need_at_a_low_rate() {
    assert_eq!(round_limit(0), Duration::from_secs(30));
    assert_eq!(round_limit(16 << 30), Duration::from_secs(30 + 1024));
}

#[test]
fn a_plan_counts_chunks_and_modules() {
    let chunk = |seq, bytes| OwnedRecord {
        body: crate::base::encoding::encode(&Chunk { address: 1, bytes }),
        ..record(seq, ops::id::CHUNK_MAP, None, 0)
    };
    let all = [chunk(1, 5), record(2, ops::id::IMAGE_LOAD, None, 0), chunk(3, 7), record(4, ops::id::IMAGE_PUT, None, 0)];
    let count = Count::of(all.iter().map(|r| Ok(r.as_record()))).unwrap();
    assert_eq!(count, Count { records: 4, chunks: 2, chunk_bytes: 12, modules: 1 });
}

#[test]
fn a_chunk_that_cannot_be_decoded_counts_without_bytes() {
    let all = [OwnedRecord { body: vec![1, 2], ..record(1, ops::id::CHUNK_MAP, None, 0) }];
    let count = Count::of(all.iter().map(|r| Ok(r.as_record()))).unwrap();
    assert_eq!((count.chunks, count.chunk_bytes), (1, 0));
}

#[test]
fn a_damaged_journal_has_no_plan() {
    let good = record(1, ops::id::IMAGE_LOAD, None, 0);
    let all = [Ok(good.as_record()), Err(JournalError::Incomplete), Ok(good.as_record())];
    assert!(matches!(Count::of(all.into_iter()), Err(JournalError::Incomplete)));
}

#[test]
fn objects_with_the_same_number_keep_their_order() {
    let records = [
        record(3, ops::id::OBJECT_MAKE, None, 5),
        record(4, ops::id::OBJECT_MAKE, None, 5),
        record(5, ops::id::OBJECT_MAKE, None, 1),
    ];
    let order: Vec<u64> = objects_by_number(records.iter().map(OwnedRecord::as_record)).iter().map(|r| r.seq).collect();
    assert_eq!(order, [5, 3, 4]);
}

#[test]
fn an_object_without_a_number_stays_where_it_is() {
    let short = OwnedRecord { reply: vec![1], ..record(2, ops::id::OBJECT_MAKE, None, 0) };
    let records = [record(1, ops::id::OBJECT_MAKE, None, 9), short];
    let order: Vec<u64> = objects_by_number(records.iter().map(OwnedRecord::as_record)).iter().map(|r| r.seq).collect();
    assert_eq!(order, [2, 1]);
}

#[test]
fn records_without_objects_keep_their_order() {
    let records: Vec<OwnedRecord> = (0..50).map(|seq| record(seq, 0x400, (seq % 3 == 0).then_some(seq), 50 - seq)).collect();
    let order: Vec<u64> = objects_by_number(records.iter().map(OwnedRecord::as_record)).iter().map(|r| r.seq).collect();
    assert_eq!(order, (0..50).collect::<Vec<_>>());
}

#[test]
fn gpus_that_share_a_target_must_fit_there_together() {
    let room = |gpu: u8, needed, free| Room { gpu: [gpu; 16], needed, free };
    let said = |rooms: &[Room]| too_little_together(rooms).map(|why| why.to_string());
    assert_eq!(said(&[room(1, 3 << 20, 5 << 20), room(2, 3 << 20, 5 << 20)]), None, "each has its own");
    let together = said(&[room(1, 3 << 20, 5 << 20), room(2, 1, 9), room(1, 3 << 20, 4 << 20)]).unwrap();
    assert!(together.contains("needs 6 MiB") && together.contains("4 MiB free"), "{together}");
    assert_eq!(said(&[room(1, 9, 5)]), None, "that is found for the GPU itself");
    assert_eq!(said(&[]), None);
}

#[test]
fn a_store_that_has_failed_is_not_kept() {
    let failed = |why: Refused| spoils(&MoveError::CopyFailed(why));
    assert!(failed(Refused::Other("no room".to_owned())));
    assert!(spoils(&MoveError::ParkedFile("a page is damaged".to_owned())));
    assert!(spoils(&MoveError::NotIdentical("a page differs".to_owned())));
    assert!(!failed(Refused::OtherEnd("connection reset by peer".to_owned())) && !failed(Refused::UnknownTicket));
    assert!(!spoils(&MoveError::CopyTooSlow(None)), "it was not its fault");
    assert!(!spoils(&MoveError::PlaceLost(None)), "its file is opened again");
}
