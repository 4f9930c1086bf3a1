//! The file of a journal, or its memory: how it grows, is tidied, fails, and fares in forked children.

mod support;

use journal::{JournalError, Meta, OwnedRecord, Reader, Record, Role, Writer, live_of};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Instant;
use support::EMPTY;

const MIB: u64 = 1 << 20;

fn meta() -> Meta {
    Meta { build: [1; 32], pid: std::process::id(), created_unix: 1, driver_version: 13000, about: "{}".into() }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}.journal", std::process::id()))
}

fn read(path: &std::path::Path) -> Vec<OwnedRecord> {
    Reader::open(path).unwrap().records().map(Result::unwrap).collect()
}

#[test]
fn a_million_events_made_and_destroyed_leave_a_small_file_and_what_is_alive() {
    let path = path("million");
    let mut w = Writer::create(&path, &meta()).unwrap();
    let mut expected = Vec::new();
    let mut most = 0;
    let (mut seq, mut slowest) = (0, 0);
    let begun = Instant::now();
    for event in 0..1_000_000u64 {
        let handle = 1 << 40 | event << 6;
        let made = Instant::now();
        seq += 1;
        w.append(&Record { seq, creates: &[handle], body: &[1; 16], ..EMPTY }).unwrap();
        if event % 10_000 == 0 {
            expected.push(seq);
        } else {
            seq += 1;
            w.append(&Record { seq, id: 2, ends: Some(handle), body: &[2; 8], ..EMPTY }).unwrap();
        }
        slowest = slowest.max(made.elapsed().as_micros());
        most = most.max(w.bytes());
    }
    println!(
        "{seq} records, {:.0} ns each, slowest pair {slowest} us, longest file {} KiB",
        begun.elapsed().as_nanos() as f64 / seq as f64,
        most / 1024
    );
    assert_eq!(w.records(), seq);
    assert_eq!(w.live_count(), expected.len());
    assert_eq!(w.live().map(|r| r.unwrap().seq).collect::<Vec<_>>(), expected);
    assert!(most < 40 * MIB, "the file stayed small: {most}");
    assert!(std::fs::metadata(&path).unwrap().len() < 64 * MIB, "also with what is allocated ahead");
    drop(w);
    let on_disk = read(&path);
    assert!(on_disk.len() < 700_000, "dead records were dropped: {}", on_disk.len());
    assert_eq!(live_of(on_disk.iter().map(OwnedRecord::as_record)).into_iter().map(|r| r.seq).collect::<Vec<_>>(), expected);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_rewritten_file_keeps_name_header_order_and_bytes() {
    let path = path("rewrite");
    let mut w = Writer::create(&path, &meta()).unwrap();
    let mut expected = Vec::new();
    // Held open, so that no other file gets its inode number.
    let first = std::fs::File::open(&path).unwrap();
    let mut early = None;
    let body: Vec<u8> = (0..300_000u32).map(|i| i.wrapping_mul(i) as u8).collect();
    for n in 0..500u64 {
        let mut keep = Record {
            seq: 3 * n,
            role: if n % 50 == 0 { Role::Stays } else { Role::Plain },
            body: &body[n as usize..][..100],
            reply: &[n as u8],
            ..EMPTY
        };
        let uses = [7, n];
        if n % 3 == 0 {
            keep.uses = &uses;
        }
        w.append(&keep).unwrap();
        expected.push(OwnedRecord::from(keep));
        w.append(&Record { seq: 3 * n + 1, creates: &[5], body: &body, ..EMPTY }).unwrap();
        w.append(&Record { seq: 3 * n + 2, ends: Some(5), ..EMPTY }).unwrap();
        assert!(w.bytes() < 50 * MIB);
        if n == 20 {
            early = Some(Reader::open(&path).unwrap());
        }
    }
    assert_ne!(std::fs::metadata(&path).unwrap().ino(), first.metadata().unwrap().ino(), "the file was rewritten");
    let old: Vec<_> = early.unwrap().records().map(|r| r.unwrap().seq).collect();
    assert!(old.len() >= 3 * 21 && old.iter().zip(0..).all(|(a, b)| *a == b), "the old file can be read to its end: {old:?}");
    let expected: Vec<Record> = expected.iter().map(OwnedRecord::as_record).collect();
    assert_eq!(w.live().map(Result::unwrap).collect::<Vec<_>>(), expected);
    assert_eq!(live_of(read(&path).iter().map(OwnedRecord::as_record)), expected, "the file can be read while it is written");
    assert_eq!(*Reader::open(&path).unwrap().meta(), meta());
    assert!(!PathBuf::from(format!("{}.new", path.display())).exists(), "nothing is left over");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn large_images_grow_the_file_and_come_back() {
    let path = path("images");
    let mut w = Writer::create(&path, &meta()).unwrap();
    let image: Vec<u8> = (0..70 << 20).map(|i: u32| (i >> 3) as u8).collect();
    for seq in 0..3 {
        w.append(&Record { seq, role: Role::Stays, setting: None, body: &image[seq as usize..], ..EMPTY }).unwrap();
    }
    for (r, seq) in w.live().map(Result::unwrap).zip(0..) {
        assert!(r.seq == seq && *r.body == image[seq as usize..]);
    }
    drop(w);
    assert_eq!(read(&path).len(), 3);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_file_that_cannot_grow_refuses_records_and_keeps_those_it_has() {
    let path = path("limit");
    let mut w = Writer::with_limit(&path, &meta(), 3 * MIB).unwrap();
    let mut written = 0;
    let error = loop {
        match w.append(&Record { seq: written, body: &[3; 10_000], ..EMPTY }) {
            Ok(()) => written += 1,
            Err(e) => break e,
        }
    };
    assert!(
        matches!(&error, JournalError::Io { doing: "grow", source, .. } if source.raw_os_error() == Some(libc::EFBIG)),
        "{error}"
    );
    assert!(written * 10_040 > 3 * MIB - 20_000, "the limit was used up: {written}");
    assert!(!w.is_complete());
    assert!(matches!(w.append(&EMPTY), Err(JournalError::Incomplete)), "though this one would fit");
    assert!(matches!(w.live().collect::<Vec<_>>()[..], [Err(JournalError::Incomplete)]));
    assert!(matches!(w.copy_live(), Err(JournalError::Incomplete)));
    assert_eq!(w.live_count() as u64, written);
    assert_eq!(read(&path).len() as u64, written);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(Writer::with_limit(&path, &meta(), 100), Err(JournalError::Io { .. })));
    assert!(!path.exists());
}

#[test]
fn a_failed_rewrite_is_no_loss() {
    // Dead records of 17 MiB are too many, but the file's successor cannot be made: its name is taken by a directory.
    let path = path("no_rewrite");
    let blocked = PathBuf::from(format!("{}.new", path.display()));
    let mut w = Writer::create(&path, &meta()).unwrap();
    std::fs::create_dir_all(blocked.join("full")).unwrap();
    let churn = |w: &mut Writer, n: u64| {
        for seq in 0..n {
            w.append(&Record { seq, creates: &[1], body: &[0; 100_000], ..EMPTY }).unwrap();
            w.append(&Record { seq, ends: Some(1), ..EMPTY }).unwrap();
        }
    };
    churn(&mut w, 600);
    assert!(w.bytes() > 55 * MIB, "nothing could be dropped");
    assert!(w.is_complete() && w.live_count() == 0);
    std::fs::remove_dir_all(&blocked).unwrap();
    churn(&mut w, 600);
    assert!(w.bytes() < 40 * MIB, "now it could: {}", w.bytes());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_file_is_private_and_takes_the_place_of_what_has_its_name() {
    let path = path("private");
    let victim = path.with_extension("victim");
    std::fs::write(&victim, "untouched").unwrap();
    std::os::unix::fs::symlink(&victim, &path).unwrap();
    std::fs::write(format!("{}.new", path.display()), "left over").unwrap();
    let mut w = Writer::create(&path, &meta()).unwrap();
    w.append(&EMPTY).unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    let found = std::fs::symlink_metadata(&path).unwrap();
    assert!(found.is_file());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert_eq!((w.path(), read(&path).len()), (Some(path.as_path()), 1));
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&victim).unwrap();
    let error = Writer::create(&path.join("no/such/directory"), &meta()).unwrap_err();
    assert!(matches!(&error, JournalError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound), "{error}");
}

#[test]
fn a_record_damaged_in_the_file_is_found_before_it_is_replayed() {
    let path = path("scribbled");
    let mut w = Writer::create(&path, &meta()).unwrap();
    for seq in 0..3 {
        w.append(&Record { seq, body: b"precious", ..EMPTY }).unwrap();
    }
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"X", 4096 + 48 + 42).unwrap();
    assert!(matches!(w.live().nth(1), Some(Err(JournalError::Record { number: 1, .. }))));
    assert!(!w.is_complete());
    let mut w = Writer::create(&path, &meta()).unwrap();
    w.append(&Record { body: b"precious", ..EMPTY }).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"X", 4096 + 42).unwrap();
    assert!(matches!(w.copy_live(), Err(JournalError::Record { number: 0, offset: 4096, .. })));
    assert!(!w.is_complete());
    std::fs::remove_file(&path).unwrap();
}

/// Runs one test of this file alone in a process of its own, with `CHILD` set, and gives whether it passed.
fn alone(test: &str) {
    let me = std::env::current_exe().unwrap();
    let out = std::process::Command::new(me).args(["--exact", test, "--nocapture"]).env("CHILD", "1").output().unwrap();
    assert!(
        out.status.success(),
        "{}: {}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn a_file_size_limit_is_an_error_and_not_the_end_of_the_job() {
    if std::env::var_os("CHILD").is_none() {
        return alone("a_file_size_limit_is_an_error_and_not_the_end_of_the_job");
    }
    let path = path("rlimit");
    let mut w = Writer::create(&path, &meta()).unwrap();
    let limit = libc::rlimit { rlim_cur: 5 * MIB, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads one `rlimit`; this process runs nothing but this test.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let error = (0..1000).find_map(|seq| w.append(&Record { seq, body: &[0; 10_000], ..EMPTY }).err());
    assert!(matches!(&error, Some(JournalError::Io { source, .. }) if source.raw_os_error() == Some(libc::EFBIG)), "{error:?}");
    assert!(!w.is_complete() && w.bytes() > 4 * MIB);
    assert_eq!(read(&path).len(), w.live_count());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_forked_child_inherits_no_mapping_and_dropping_there_does_nothing() {
    if std::env::var_os("CHILD").is_none() {
        return alone("a_forked_child_inherits_no_mapping_and_dropping_there_does_nothing");
    }
    let path = path("fork");
    let mut w = Writer::create(&path, &meta()).unwrap();
    for seq in 0..100 {
        w.append(&Record { seq, body: &[0; 100_000], ..EMPTY }).unwrap();
    }
    let text = path.canonicalize().unwrap().display().to_string();
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(&text);
    assert!(mapped());
    // SAFETY: the child only reads a file, drops the writer and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let inherited = mapped();
        drop(w);
        // SAFETY: ends the child at once, without the test harness's exit code.
        unsafe { libc::_exit(i32::from(inherited)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, and writes one int.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the grown mapping is not inherited");
    assert!(std::fs::metadata(&path).unwrap().len() > w.bytes(), "the child did not cut the file");
    w.append(&Record { seq: 100, ..EMPTY }).unwrap();
    assert_eq!(read(&path).len(), 101);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_reader_beside_the_writer_sees_whole_records_only() {
    let path = path("beside");
    let mut w = Writer::create(&path, &meta()).unwrap();
    std::thread::scope(|s| {
        let writing = s.spawn(|| {
            for seq in 0..30_000u64 {
                let body = vec![seq as u8; (seq % 900) as usize];
                w.append(&Record { seq, body: &body, ..EMPTY }).unwrap();
            }
        });
        let mut last = 0;
        while !writing.is_finished() {
            let all = read(&path);
            assert!(all.iter().zip(0..).all(|(r, seq)| r.seq == seq && r.body == vec![seq as u8; (seq % 900) as usize]));
            assert!(all.len() >= last, "records do not go away");
            last = all.len();
        }
    });
    assert_eq!(read(&path).len(), 30_000);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn memory_is_used_again_and_keeps_what_is_alive() {
    let mut w = Writer::in_memory().unwrap();
    assert_eq!(w.path(), None);
    let mut expected = Vec::new();
    let mut most = 0;
    for seq in 1..=400_000u64 {
        // Made and ended in turns, with bytes of their own; every thousandth pair stays, and some are long.
        let (made, stays) = (seq & !1, seq & !1 == seq / 2000 * 2000);
        let body = vec![seq as u8; if seq % 5000 == 0 { 100_000 } else { (seq % 50) as usize }];
        let record = match seq & 1 {
            0 => Record { seq, creates: &[made], body: &body, ..EMPTY },
            _ if stays => Record { seq, uses: &[made], body: &body, ..EMPTY },
            _ => Record { seq, ends: Some(made), body: &body, ..EMPTY },
        };
        w.append(&record).unwrap();
        if stays && made != 0 {
            expected.push((seq, body));
        }
        most = most.max(w.bytes());
    }
    // The first end had nothing to end, so it stays.
    let live: Vec<_> = w.live().map(Result::unwrap).map(|r| (r.seq, r.body.to_vec())).filter(|(seq, _)| *seq != 1).collect();
    assert!(live == expected, "{} of {}", live.len(), expected.len());
    assert!(expected.len() > 300 && w.live_count() - expected.len() <= 1);
    let alive: u64 = expected.iter().map(|(_, body)| body.len() as u64 + 64).sum();
    assert!(most > 2 * alive && most < 8 * alive + 4 * MIB, "{most} bytes for {alive} alive");
}

#[test]
fn memory_grows_as_far_as_there_is_any() {
    if std::env::var_os("CHILD").is_none() {
        return alone("memory_grows_as_far_as_there_is_any");
    }
    let mut w = Writer::in_memory().unwrap();
    w.append(&Record { seq: 1, creates: &[1], ..EMPTY }).unwrap();
    // SAFETY: the child only drops the writer and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(w);
        // SAFETY: ends the child at once, without the test harness's exit code.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, and writes one int.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    // Memory that may be written counts as data.
    let limit = libc::rlimit { rlim_cur: 64 * MIB, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads one `rlimit`; this process runs nothing but this test.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
    let body = vec![7; 100_000];
    let error = (2..10_000).find_map(|seq| w.append(&Record { seq, creates: &[seq], body: &body, ..EMPTY }).err());
    assert!(matches!(&error, Some(JournalError::Memory(why)) if why.raw_os_error() == Some(libc::ENOMEM)), "{error:?}");
    assert!(!w.is_complete() && w.bytes() > 16 * MIB);
    assert!(matches!(w.live().next(), Some(Err(JournalError::Incomplete))));
}
