//! Damaged journals: one test for each way, and none may panic or pass for whole.

mod support;

use journal::{JournalError, Meta, OwnedRecord, Reader, Record, Role, Writer};
use std::path::PathBuf;
use support::EMPTY;

fn meta() -> Meta {
    Meta { build: [7; 32], pid: 4711, created_unix: 1_700_000_000, driver_version: 13000, about: "{\"name\":\"Übung\"}".into() }
}

fn records() -> Vec<OwnedRecord> {
    let record = |seq, creates: &[u64], ends, uses: &[u64], body: &[u8], reply: &[u8]| OwnedRecord {
        seq,
        id: 0x401,
        role: if seq == 2 { Role::Stays } else { Role::Plain },
        setting: None,
        device: 3,
        creates: creates.to_vec(),
        ends,
        uses: uses.to_vec(),
        body: body.to_vec(),
        reply: reply.to_vec(),
    };
    vec![
        record(1, &[0x10, 0x20], None, &[], b"first body", b"r"),
        record(2, &[], Some(0x30), &[0x10], b"", b""),
        record(u64::MAX, &[0x40], None, &[1, 2, 3], &[9; 100], &[8; 31]),
    ]
}

/// A journal's bytes and where its records begin; the last of these is where they end.
fn complete_journal(name: &str) -> (Vec<u8>, Vec<usize>) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.journal"));
    let mut w = Writer::create(&path, &meta()).unwrap();
    let mut at = vec![w.bytes() as usize];
    for r in records() {
        w.append(&r.as_record()).unwrap();
        at.push(w.bytes() as usize);
    }
    drop(w);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(bytes.len(), at[3] + 16, "a finished journal has no tail but its end mark");
    (bytes, at)
}

fn read(bytes: &[u8]) -> Result<Vec<OwnedRecord>, JournalError> {
    Reader::from_bytes(bytes)?.records().collect()
}

/// Puts the right checksum on the record from `at` to `end`.
fn seal_record(bytes: &mut [u8], at: usize, end: usize) {
    let len = u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
    let words = bytes[at + 8..end].chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |h: u64, w: u64| (h.rotate_left(5) ^ w).wrapping_mul(FACTOR);
    let (older, newer) = [len].into_iter().chain(words).fold((0, 0), |(older, newer), w| (newer, mix(older, w)));
    let h = mix(older, newer);
    let sum = ((h ^ h >> 32).wrapping_mul(FACTOR) >> 32) as u32;
    bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Puts the right checksum on a header of `len` bytes.
fn seal_header(bytes: &mut [u8], len: usize) {
    bytes[68..72].fill(0);
    let crc = crc32fast::hash(&bytes[..len]);
    bytes[68..72].copy_from_slice(&crc.to_le_bytes());
}

fn header_says(bytes: &[u8], expected: &str) {
    match read(bytes) {
        Err(JournalError::Header { what }) => assert!(what.contains(expected), "{what}"),
        other => panic!("{other:?}"),
    }
}

/// Reading must fail at this record with these words, and give what came before.
fn record_says(bytes: &[u8], number: u64, offset: usize, expected: &str) {
    let mut reader = Reader::from_bytes(bytes).unwrap();
    let mut all: Vec<_> = reader.records().collect();
    match all.pop() {
        Some(Err(JournalError::Record { number: n, offset: o, what })) => {
            assert!(what.contains(expected), "{what}");
            assert_eq!((n, o), (number, offset as u64));
        }
        other => panic!("{other:?}"),
    }
    let before: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    assert_eq!(before, records()[..number as usize]);
    assert!(reader.records().next().is_none(), "nothing follows an error");
}

#[test]
fn a_whole_journal_gives_back_what_was_written() {
    let (bytes, _) = complete_journal("whole");
    let mut reader = Reader::from_bytes(&bytes[..]).unwrap();
    assert_eq!(*reader.meta(), meta());
    assert_eq!(reader.records().map(Result::unwrap).collect::<Vec<_>>(), records());
}

#[test]
fn zeros_after_the_last_record_are_its_end() {
    let (mut bytes, at) = complete_journal("zeros");
    bytes.resize(bytes.len() + 5000, 0);
    assert_eq!(read(&bytes).unwrap(), records());
    // A record whose length word was not published yet.
    bytes[at[2]..at[2] + 4].fill(0);
    assert_eq!(read(&bytes).unwrap(), records()[..2]);
}

#[test]
fn other_magic_and_other_versions_are_refused() {
    let (bytes, _) = complete_journal("magic");
    for at in 0..8 {
        let mut b = bytes.clone();
        b[at] ^= 0x20;
        assert!(matches!(read(&b), Err(JournalError::NotAJournal)));
    }
    for version in [0, 1, 2, 3, 4, u32::MAX] {
        let mut b = bytes.clone();
        b[8..12].copy_from_slice(&version.to_le_bytes());
        assert!(matches!(read(&b), Err(JournalError::Version { found, known: 5 }) if found == version));
    }
}

#[test]
fn every_header_field_is_under_the_checksum() {
    let (bytes, at) = complete_journal("header_crc");
    for byte in 16..at[0] {
        let mut b = bytes.clone();
        b[byte] ^= 1;
        header_says(&b, "checksum");
    }
}

#[test]
fn a_header_with_impossible_lengths_is_refused_though_its_checksum_is_right() {
    let (bytes, at) = complete_journal("header_len");
    for len in [0u32, 71, 72, 4095, 4097, (1 << 20) + 4096, u32::MAX] {
        let mut b = bytes.clone();
        b[12..16].copy_from_slice(&len.to_le_bytes());
        seal_header(&mut b, at[0]);
        header_says(&b, "length is impossible");
    }
    let mut b = bytes.clone();
    b[12..16].copy_from_slice(&8192u32.to_le_bytes());
    seal_header(&mut b, at[0]);
    header_says(&b, "cut short");
    for text in [4096 - 71u32, u32::MAX] {
        let mut b = bytes.clone();
        b[64..68].copy_from_slice(&text.to_le_bytes());
        seal_header(&mut b, at[0]);
        header_says(&b, "text is longer");
    }
    let mut b = bytes.clone();
    b[72] = 0xff;
    seal_header(&mut b, at[0]);
    header_says(&b, "UTF-8");
}

#[test]
fn a_text_of_any_length_that_fits_is_kept() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("about.journal");
    for len in [0, 4024, 4025, (1 << 20) - 72] {
        let meta = Meta { about: "x".repeat(len), ..meta() };
        let mut w = Writer::create(&path, &meta).unwrap();
        w.append(&records()[0].as_record()).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(*reader.meta(), meta);
        assert_eq!(reader.records().count(), 1);
    }
    let meta = Meta { about: "x".repeat((1 << 20) - 71), ..meta() };
    assert!(matches!(Writer::create(&path, &meta), Err(JournalError::TooLarge { .. })));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn every_byte_of_a_record_is_under_the_checksum() {
    let (bytes, at) = complete_journal("record_crc");
    for number in 0..3 {
        for byte in at[number] + 4..at[number + 1] {
            let mut b = bytes.clone();
            b[byte] ^= 0x10;
            record_says(&b, number as u64, at[number], "checksum");
        }
    }
}

#[test]
fn impossible_record_lengths_are_refused_before_memory_is_asked_for() {
    let (bytes, at) = complete_journal("record_len");
    let limit = 40 + (2u64 << 30) + (16 << 20) + 32;
    for (len, expected) in [
        (1, "multiple of 8"),
        (0x31, "multiple of 8"),
        (8, "fixed fields"),
        (32, "fixed fields"),
        (u32::MAX - 7, "limit"),
        (limit as u32 + 8, "limit"),
        (limit as u32, "cut short"),
        (1 << 20, "cut short"),
    ] {
        let mut b = bytes.clone();
        b[at[1]..at[1] + 4].copy_from_slice(&u32::to_le_bytes(len));
        record_says(&b, 1, at[1], expected);
    }
}

#[test]
fn a_record_whose_fields_do_not_fill_it_is_refused_though_its_checksum_is_right() {
    let (bytes, at) = complete_journal("record_fields");
    let (start, end) = (at[2], at[3]);
    let with = |field: usize, value: u32| {
        let mut b = bytes.clone();
        b[start + field..start + field + 4].copy_from_slice(&value.to_le_bytes());
        seal_record(&mut b, start, end);
        b
    };
    for field in [24, 28] {
        record_says(&with(field, 1 << 30), 2, start, "longer than the record");
        record_says(&with(field, (1 << 30) + 1), 2, start, "limit");
        record_says(&with(field, 2), 2, start, "shorter than the record");
    }
    for field in [32, 36] {
        record_says(&with(field, 1 << 20), 2, start, "longer than the record");
        record_says(&with(field, u32::MAX), 2, start, "limit");
        record_says(&with(field, 0), 2, start, "shorter than the record");
    }
    // No role has this number, and nothing is meant by this flag.
    for unknown in [7, 32] {
        let mut flags = bytes.clone();
        flags[start + 18] |= unknown;
        seal_record(&mut flags, start, end);
        record_says(&flags, 2, start, "flags");
    }
    // 131 bytes of payload leave five of padding.
    let mut padding = bytes.clone();
    padding[end - 1] = 1;
    seal_record(&mut padding, start, end);
    record_says(&padding, 2, start, "shorter than the record");
}

#[test]
fn a_journal_cut_at_any_byte_is_not_whole() {
    let (bytes, at) = complete_journal("cut");
    for len in 0..bytes.len() {
        match read(&bytes[..len]) {
            Ok(some) => panic!("{len} of {} bytes look whole, with {} records", bytes.len(), some.len()),
            Err(JournalError::Header { what }) => assert!(len < at[0] && what == "it is cut short", "{len}: {what}"),
            Err(JournalError::Record { number, offset, what }) => {
                let n = at.iter().rposition(|a| *a <= len).unwrap();
                assert_eq!((number, offset, what), (n as u64, at[n] as u64, "it is cut short"));
            }
            Err(other) => panic!("{len}: {other}"),
        }
    }
    assert!(matches!(read(b"not one"), Err(JournalError::NotAJournal)));
}

#[test]
fn a_journal_that_was_not_closed_is_told_from_one_that_was() {
    let (bytes, at) = complete_journal("closed");
    let end = *at.last().unwrap();
    let closed = |bytes: &[u8]| {
        let mut reader = Reader::from_bytes(bytes).unwrap();
        assert!(reader.records().all(|r| r.is_ok()));
        reader.is_closed()
    };
    assert!(closed(&bytes));
    let mut open = bytes[..end].to_vec();
    open.resize(end + 4096, 0);
    assert!(!closed(&open));
    // Nor is one whose end is that of another journal, or whose last records are missing.
    let mut moved = bytes[..at[1]].to_vec();
    moved.extend_from_slice(&bytes[end..]);
    assert!(!closed(&moved));
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("pipe-{}", std::process::id()));
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let why = Reader::open(&path).unwrap_err().to_string();
    assert!(why.contains("not a regular file"), "{why}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn no_single_flipped_bit_goes_unnoticed() {
    let (bytes, at) = complete_journal("flip");
    let good = records();
    for bit in 0..bytes.len() * 8 {
        let mut b = bytes.clone();
        b[bit / 8] ^= 1 << (bit % 8);
        let mut reader = Reader::from_bytes(&b[..]);
        let whole = reader.as_mut().is_ok_and(|r| r.records().all(|r| r.is_ok()) && r.is_closed());
        assert!(!whole, "bit {bit} (records begin at {})", at[0]);
    }
    assert_eq!(read(&bytes).unwrap(), good);
}

#[test]
fn rubbish_is_an_error_and_never_a_panic() {
    let (bytes, at) = complete_journal("rubbish");
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for _ in 0..20_000 {
        let mut b = bytes.clone();
        let number = (random() % 3) as usize;
        let (start, end) = (at[number], at[number + 1]);
        for _ in 0..1 + random() % 4 {
            let field = start + 8 + (random() as usize) % (end - start - 8);
            b[field] = random() as u8;
        }
        // With the right checksum, so that the checks behind it are reached.
        seal_record(&mut b, start, end);
        if let Ok(all) = read(&b) {
            assert_eq!(all.len(), 3);
        }
    }
}

#[test]
fn parts_beyond_the_limits_are_refused_and_leave_the_journal_incomplete() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("too_large.journal");
    let handles = vec![1u64; (1 << 20) + 1];
    // Never touched, so never more than an address range.
    let body = vec![0u8; journal::MAX_PAYLOAD + 1];
    for bad in [
        Record { creates: &handles, ..EMPTY },
        Record { uses: &handles, ..EMPTY },
        Record { body: &body, ..EMPTY },
        Record { reply: &body, ..EMPTY },
    ] {
        let mut w = Writer::create(&path, &meta()).unwrap();
        w.append(&EMPTY).unwrap();
        assert!(matches!(w.append(&bad), Err(JournalError::TooLarge { .. })));
        assert!(!w.is_complete());
        assert!(matches!(w.append(&EMPTY), Err(JournalError::Incomplete)));
        assert!(matches!(w.live().collect::<Vec<_>>()[..], [Err(JournalError::Incomplete)]));
        assert_eq!((w.records(), w.live_count()), (1, 1));
    }
    std::fs::remove_file(&path).unwrap();
}
