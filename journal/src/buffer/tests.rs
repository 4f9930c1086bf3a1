use super::*;
use crate::{Role, Writer};

fn record<'a>(seq: u64, creates: &'a [u64], body: &'a [u8]) -> Record<'a> {
    let (id, role, device) = (1, Role::Plain, 0);
    Record { seq, id, role, setting: None, device, creates, ends: None, uses: &[], body, reply: &[] }
}

#[test]
fn an_empty_buffer_has_no_records() {
    assert_eq!(RecordBuffer::default().iter().count(), 0);
}

#[test]
fn records_come_in_the_order_in_which_they_were_added() {
    let bytes: Vec<u8> = (0..200).collect();
    let records: Vec<Record> = (0..100).map(|n| record(n, &[1, 2, 3][..n as usize % 4], &bytes[..n as usize])).collect();
    let mut buffer = RecordBuffer::default();
    records.iter().for_each(|r| buffer.push(r).unwrap());
    assert!(buffer.iter().eq(records.iter().copied()));
    assert!(buffer.clone().iter().eq(buffer.iter()));
}

#[test]
fn a_record_that_is_too_large_is_not_added() {
    let handles = vec![1; (1 << 20) + 1];
    let mut buffer = RecordBuffer::default();
    buffer.push(&record(1, &[], b"x")).unwrap();
    assert!(matches!(buffer.push(&record(2, &handles, &[])), Err(JournalError::TooLarge { .. })));
    buffer.push(&record(3, &[], b"y")).unwrap();
    assert_eq!(buffer.iter().map(|r| r.seq).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_copy_of_the_live_set_does_not_change_with_the_journal() {
    let mut writer = Writer::in_memory().unwrap();
    let body = [7; 1000];
    (0..50).for_each(|n| writer.append(&record(n, &[100 + n], &body)).unwrap());
    let copy = writer.copy_live().unwrap();
    // So much that the journal is compacted in place.
    for n in 0..5000 {
        writer.append(&record(50 + 2 * n, &[1], &body)).unwrap();
        writer.append(&Record { ends: Some(1), ..record(51 + 2 * n, &[], &body) }).unwrap();
    }
    (0..50).for_each(|n| writer.append(&Record { ends: Some(100 + n), ..record(9, &[], &[]) }).unwrap());
    assert_eq!(writer.live().count(), 0);
    assert!(copy.iter().map(|r| r.seq).eq(0..50) && copy.iter().all(|r| r.body == body));
}

#[test]
fn a_copy_and_a_tail_are_the_same_form() {
    let mut writer = Writer::in_memory().unwrap();
    let mut tail = RecordBuffer::default();
    for n in 0..100 {
        let creates = [n + 1];
        let r = record(n, &creates, b"bytes");
        writer.append(&r).unwrap();
        tail.push(&r).unwrap();
    }
    assert_eq!(writer.copy_live().unwrap().words(), tail.words());
}
