//! Fuzz targets for journals of unknown origin, and for truncated ones.

use crate::record::{self, FIXED, Sum, check_len};
use crate::{Meta, OwnedRecord, Reader, RecordBuffer, Role, header, live_of, print_line, words};
use fuzz::Limit;

/// A reader holds a header and one record; each record that is kept takes the memory of its handles and bodies, and a
/// few words.
const LIMIT: Limit = Limit { bytes: 8 << 20, each: 64 };

/// A journal that was closed, or not.
fn journal(records: &[OwnedRecord], closed: bool) -> Vec<u8> {
    let meta = Meta { build: [7; 32], pid: 4711, created_unix: 1_700_000_000, driver_version: 13000, about: "{}".into() };
    let mut bytes = header::encode(&meta).expect("a short header");
    for r in records {
        bytes.extend(words::bytes(encoded(r).words()));
    }
    let end = if closed { header::end_mark(bytes.len() as u64) } else { [0; header::END] };
    bytes.extend(end);
    bytes
}

fn encoded(r: &OwnedRecord) -> RecordBuffer {
    let mut buffer = RecordBuffer::default();
    buffer.push(&r.as_record()).expect("what was read can be written");
    buffer
}

/// The same input with correct checksums wherever a header or a record lies: damage that checksums cannot detect.
fn sealed(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    let Some(Ok(mut at)) = bytes.first_chunk().map(header::len) else { return bytes };
    let Some(head) = bytes.get_mut(..at) else { return bytes };
    header::seal(head);
    while let Some(word) = bytes.get(at..at + 4).and_then(|w| w.first_chunk()) {
        let Ok(len) = check_len(u32::from_le_bytes(*word)) else { break };
        let Some(record) = bytes.get_mut(at..at + len) else { break };
        let mut sum = Sum::of(len);
        record[8..].as_chunks().0.iter().for_each(|word| sum.add_all(&[u64::from_le_bytes(*word)]));
        record[4..8].copy_from_slice(&sum.value().to_le_bytes());
        at += len;
    }
    bytes
}

/// All records up to the end or the first damaged one.
fn records(bytes: &[u8]) -> Vec<OwnedRecord> {
    let Ok(mut reader) = Reader::from_bytes(bytes) else { return Vec::new() };
    let all = reader.records().map_while(Result::ok).collect();
    assert!(reader.records().next().is_none(), "nothing follows the end");
    all
}

fn check(bytes: &[u8]) {
    let all = records(bytes);
    for r in &all {
        assert_eq!(record::checked(encoded(r).words()), Ok(r.as_record()));
        assert!(!print_line(r, &|_| None, &|_, _| None).is_empty());
    }
    // A journal whose end is missing has the records before it. The position of the cut is pseudo-random.
    let cut = bytes.iter().fold(bytes.len(), |h, b| h.wrapping_mul(31).wrapping_add(usize::from(*b))) % bytes.len().max(1);
    let before = records(&bytes[..cut]);
    assert_eq!(before, all[..before.len()]);
    let live = live_of(all.iter().map(OwnedRecord::as_record));
    assert!(live.len() <= all.len());
    assert_eq!(live_of(live.iter().copied()), live, "what is live stays so");
}

#[test]
fn journals() {
    let plain = |seq, creates: &[u64], ends, uses: &[u64]| OwnedRecord {
        seq,
        id: 0x401,
        role: Role::Plain,
        setting: None,
        device: 3,
        creates: creates.to_vec(),
        ends,
        uses: uses.to_vec(),
        body: vec![1; 5],
        reply: vec![2; 9],
    };
    let setting = OwnedRecord { setting: Some([0x10, 1]), body: vec![], ..plain(5, &[], None, &[0x10]) };
    let child = OwnedRecord { role: Role::Child, ..plain(6, &[0x30], None, &[0x10]) };
    let load = OwnedRecord { role: Role::Load, ..plain(7, &[0x40], None, &[]) };
    let light = OwnedRecord { role: Role::LightLoad, ..plain(8, &[0x41], None, &[]) };
    let stays = OwnedRecord { role: Role::Stays, ..plain(9, &[], Some(0x40), &[0x30]) };
    let first = plain(1, &[0x10, 0x20], None, &[]);
    let all = [first.clone(), setting.clone(), setting, child, load, light, stays, plain(10, &[], Some(0x10), &[0x20])];
    assert_eq!(records(&journal(&all, true)), all);
    let seeds = [journal(&all, true), journal(&all, false), journal(&[first], true), journal(&[], true)];
    assert!(seeds.iter().all(|seed| seed.len() > FIXED && sealed(seed) == *seed));
    fuzz::run("journals", seeds, LIMIT, |input| {
        check(input);
        check(&sealed(input));
    });
}
