//! Rounds over connections that are slow on the clock of their thread.

use super::{Ends, Fake, PROOFS, connections, job, noticed};
use crate::clock::advance;
use crate::error::SyncError;
use crate::frames::{BATCH, Hello, Seeds, Show, Word, receive_hashes, send_batch, send_compressed};
use crate::memory::Memory;
use crate::region::{Kind, PAGE};
use crate::{Compression, Faults, Round, Store, Stream, Verify, source, target};
use executor::NO_HASH;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts the bytes written, each of which takes so many nanoseconds.
struct Slow {
    stream: Box<dyn Stream>,
    per_byte: u64,
    written: Arc<AtomicU64>,
}

impl Read for Slow {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.read(to)
    }
}

impl Write for Slow {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let n = self.stream.write(from)?;
        advance(Duration::from_nanos(n as u64 * self.per_byte));
        self.written.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Connections whose source's ends are slow, and the number of bytes that these have sent.
fn slow_connections(n: usize, per_byte: u64) -> (Ends, Ends, Arc<AtomicU64>) {
    let written = Arc::new(AtomicU64::new(0));
    let (a, b) = connections(n);
    let slow = |stream| Box::new(Slow { stream, per_byte, written: written.clone() }) as Box<dyn Stream>;
    (a.into_iter().map(slow).collect(), b, written)
}

/// 1 Gbit/s, and no limit.
const GIGABIT: u64 = 8;
const UNLIMITED: u64 = 0;

/// What a connection is known to be after slow batches.
pub(super) fn known_as_slow() -> Compression {
    let mut compression = Compression::default();
    (0..8).for_each(|_| compression.sent_plain(BATCH, Duration::from_millis(80)));
    compression
}

/// The ends of a round, and how many bytes the source has sent.
type Results = (Result<Round, SyncError>, Result<Round, SyncError>, u64);

fn round<S: Memory, T: Memory>(
    from: &S,
    to: &T,
    (stripes, per_byte): (usize, u64),
    compression: &mut Vec<Compression>,
    verify: Verify,
    faults: &Faults,
) -> Results {
    let (mut a, mut b, written) = slow_connections(stripes, per_byte);
    let (source, target) = std::thread::scope(|s| {
        let source = s.spawn(move || source::run(from, &mut a, compression, true, faults));
        let target = target::run(to, &mut b, verify, true, faults);
        drop(b);
        (source.join().expect("source"), target)
    });
    (source, target, written.load(Ordering::Relaxed))
}

const SIZE: usize = 12 << 20;

fn place(bytes: Vec<u8>) -> Fake {
    let fake = Fake::default();
    fake.regions.lock().expect("lock").insert(0x2000_0000_0000, (Kind::Chunk, bytes));
    fake
}

fn noise(seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes
}

/// Numbers as `float` has them: some of their bits hardly vary.
fn numbers() -> Vec<u8> {
    let wave = |i: usize| ((i as f32 * 0.37).sin() * 1000.0).round() / 1000.0;
    (0..SIZE / 4).flat_map(|i| wave(i % 100_000).to_le_bytes()).collect()
}

#[test]
fn a_slow_connection_carries_fewer_bytes_of_what_shrinks() {
    for (stripes, verify) in [1, 3].into_iter().flat_map(|n| PROOFS.map(|v| (n, v))) {
        let (from, to) = (place(numbers()), place(noise(1)));
        let (s, t, sent) = round(&from, &to, (stripes, GIGABIT), &mut Vec::new(), verify, &Faults::default());
        let (s, t) = (s.expect("source"), t.expect("target"));
        assert!(from.contents() == to.contents());
        assert_eq!((s.bytes_sent, s.digest), (SIZE as u64, t.digest));
        assert_eq!((s.bytes_sent, s.bytes_carried), (t.bytes_sent, t.bytes_carried));
        assert!(s.bytes_carried < SIZE as u64 * 3 / 4, "{}", s.bytes_carried);
        // Pages are sent a second time for the comparison of bytes.
        let times = if verify == Verify::Bytes { 2 } else { 1 };
        assert!(sent < s.bytes_carried * times + SIZE as u64 / 100, "{sent}");
    }
}

#[test]
fn noise_is_sent_as_it_is_and_an_unlimited_connection_carries_everything_so() {
    let sent = |bytes: fn() -> Vec<u8>, per_byte| {
        let (from, to) = (place(bytes()), place(vec![7; SIZE]));
        let (s, t, sent) = round(&from, &to, (2, per_byte), &mut Vec::new(), Verify::Auto, &Faults::default());
        let (s, t) = (s.expect("source"), t.expect("target"));
        assert!(from.contents() == to.contents());
        assert_eq!((s.bytes_carried, t.bytes_carried), (SIZE as u64, SIZE as u64));
        sent
    };
    let as_it_is = sent(|| noise(2), UNLIMITED);
    assert_eq!([sent(|| noise(2), GIGABIT), sent(numbers, UNLIMITED), sent(|| vec![0; SIZE], UNLIMITED)], [as_it_is; 3]);
}

#[test]
fn the_next_round_begins_with_what_is_known() {
    let (from, to) = (place(numbers()), place(noise(3)));
    let mut compression = Vec::new();
    let both = [Verify::Skip, Verify::Auto].map(|verify| {
        // One batch for each connection: without what the round before has measured, both are sent as they are.
        let all = if verify == Verify::Skip { SIZE } else { 2 * BATCH };
        to.regions.lock().expect("lock").get_mut(&0x2000_0000_0000).expect("chunk").1[..all].fill(1);
        let (s, t, _) = round(&from, &to, (2, GIGABIT), &mut compression, verify, &Faults::default());
        t.expect("target");
        s.expect("source")
    });
    assert!(from.contents() == to.contents());
    assert_eq!(both[1].bytes_sent, 2 * BATCH as u64);
    assert!(both[1].bytes_carried < BATCH as u64 * 3 / 2, "{}", both[1].bytes_carried);
}

#[test]
fn a_byte_that_was_corrupted_before_compression_is_caught() {
    for (page, verify) in [1, 40, 100].into_iter().flat_map(|n| PROOFS.map(|v| (n, v))) {
        let (from, to) = (place(numbers()), place(noise(4)));
        let faults = Faults { corrupt_page: Some(page), ..Faults::default() };
        let mut known = vec![known_as_slow(), known_as_slow()];
        let (s, t, _) = round(&from, &to, (2, GIGABIT), &mut known, verify, &faults);
        let ends = (s, t);
        assert!(noticed(&ends), "{verify:?}: {ends:?}");
    }
}

#[test]
fn memory_travels_compressed_to_a_store_and_back() {
    let from = place(numbers());
    let (store, to) = (Store::in_memory(u64::MAX), place(noise(5)));
    let (s, t, _) = round(&from, &store, (2, GIGABIT), &mut Vec::new(), Verify::Auto, &Faults::default());
    assert!(s.expect("source").bytes_carried < SIZE as u64 * 3 / 4);
    t.expect("store");
    let (s, t, _) = round(&store, &to, (2, GIGABIT), &mut Vec::new(), Verify::Auto, &Faults::default());
    assert!(s.expect("store").bytes_carried < SIZE as u64 * 3 / 4);
    t.expect("target");
    assert!(from.contents() == to.contents());
}

/// The result of a target that gets this batch from a source, and what it tells that.
fn told(
    pages: &[u32],
    bytes: usize,
    compressed: &[u8],
    verify: Verify,
) -> (Result<Round, SyncError>, Result<[u8; 32], SyncError>) {
    let to = job(2);
    let before = to.contents();
    let (a, b) = UnixStream::pair().expect("sockets");
    let (mut a, mut b): (Ends, Ends) = (vec![Box::new(a)], vec![Box::new(b)]);
    let ends = std::thread::scope(|s| {
        let to = &to;
        let target = s.spawn(move || target::run(to, &mut b, verify, true, &Faults::default()));
        Show::default().send(&Seeds::draw().expect("keys"), &mut *a[0]).expect("show");
        let (theirs, _) = Hello::receive(&mut *a[0]).expect("hello").pages();
        receive_hashes(&mut a, &mut vec![NO_HASH; theirs.len()]).expect("hashes");
        Word::send(&mut *a[0], None, [0; 32]).expect("verdict");
        send_compressed(&mut *a[0], pages, bytes, compressed).expect("batch");
        // The rest of the connection is read nevertheless.
        send_batch(&mut *a[0], &[0], &vec![9; PAGE as usize]).expect("batch");
        send_batch(&mut *a[0], &[], &[]).expect("end");
        if verify == Verify::Bytes {
            send_batch(&mut *a[0], &[], &[]).expect("end");
        }
        Word::send(&mut *a[0], None, [0; 32]).expect("summary");
        let answer = Word::receive(&mut *a[0]);
        (target.join().expect("target"), answer)
    });
    assert!(ends.0.is_ok() || to.contents() == before, "nothing of it is written");
    ends
}

#[test]
fn a_compressed_batch_that_is_not_what_it_claims_fails_the_round() {
    let page = PAGE as usize;
    let compress = |bytes: &[u8]| zstd::bulk::compress(bytes, 1).expect("compressed");
    let good = compress(&vec![5; page]);
    let flipped = |at: usize| {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        bad
    };
    let bomb = compress(&vec![0; 64 << 20]);
    let skipped = [&0x184d_2a50u32.to_le_bytes()[..], &8u32.to_le_bytes(), &[0; 8]].concat();
    let damaged = "damaged, or has more bytes";
    for (bytes, compressed, why) in [
        (page, compress(&vec![5; page + 1]), damaged),
        (page, bomb, damaged),
        (page, [&good[..], &good].concat(), damaged),
        (page, compress(&vec![5; page - 1]), "fewer bytes"),
        (page, compress(&[]), "fewer bytes"),
        (page, skipped, "fewer bytes"),
        (page, good[..good.len() - 1].to_vec(), damaged),
        (page, good[..1].to_vec(), damaged),
        (page, flipped(0), damaged),
        (page, vec![0xff; 100], damaged),
        (page, vec![0; 1], damaged),
        (2 * page, compress(&vec![5; 2 * page]), "whose size is not that of its pages"),
    ] {
        for verify in PROOFS {
            let (target, source) = told(&[1], bytes, &compressed, verify);
            assert!(matches!(&target, Err(SyncError::Protocol(text)) if text.contains(why)), "{why}: {target:?}");
            assert!(matches!(&source, Err(SyncError::Peer(text)) if text.contains(why)), "{why}: {source:?}");
        }
    }
    let (target, source) = told(&[1], page, &good, Verify::Skip);
    assert!(target.is_ok() && source.is_ok(), "{target:?} {source:?}");
    let (target, _) = told(&[4_000_000], page, &good, Verify::Skip);
    assert!(matches!(target, Err(SyncError::Protocol("a page that was not offered"))));
}

#[test]
fn a_source_cannot_send_pages_without_end() {
    let to = job(2);
    let all: u64 = to.regions().expect("regions").iter().map(|r| r.bytes).sum();
    let (a, b) = UnixStream::pair().expect("sockets");
    let (mut a, mut b): (Ends, Ends) = (vec![Box::new(a)], vec![Box::new(b)]);
    let ended = std::thread::scope(|s| {
        let target = s.spawn(|| {
            let ended = target::run(&to, &mut b, Verify::Skip, true, &Faults::default());
            b.clear();
            ended
        });
        Show::default().send(&Seeds::draw().expect("keys"), &mut *a[0]).expect("show");
        let (theirs, _) = Hello::receive(&mut *a[0]).expect("hello").pages();
        receive_hashes(&mut a, &mut vec![NO_HASH; theirs.len()]).expect("hashes");
        Word::send(&mut *a[0], None, [0; 32]).expect("verdict");
        let compressed = zstd::bulk::compress(&vec![5; PAGE as usize], 1).expect("compressed");
        // The target hangs up meanwhile.
        let sent =
            (0..=(all + BATCH as u64) / PAGE).try_for_each(|_| send_compressed(&mut *a[0], &[1], PAGE as usize, &compressed));
        let _ = sent.and_then(|()| send_batch(&mut *a[0], &[], &[]));
        target.join().expect("target")
    });
    assert!(matches!(ended, Err(SyncError::Protocol("more bytes than all pages have"))), "{ended:?}");
}

/// Flips a bit of its first long write, which is a compressed batch.
struct Damaging {
    stream: Box<dyn Stream>,
    bit: Option<usize>,
}

impl Read for Damaging {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.read(to)
    }
}

impl Write for Damaging {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut bytes = from.to_vec();
        if let Some(bit) = self.bit.take_if(|_| from.len() > 1000) {
            let bit = bit % (from.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let n = self.stream.write(&bytes)?;
        if n < from.len() {
            self.stream.write_all(&bytes[n..])?;
        }
        Ok(from.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[test]
fn a_round_whose_compressed_bytes_were_damaged_succeeds_only_if_the_memory_is_equal() {
    let mut failed = 0;
    for (n, verify) in (0..16).flat_map(|n| PROOFS.map(|v| (n, v))) {
        let (from, to) = (place(numbers()[..BATCH].to_vec()), place(vec![1; BATCH]));
        let (a, mut b) = connections(1);
        let damaging = |stream| Box::new(Damaging { stream, bit: Some(n * 100_003) }) as Box<dyn Stream>;
        let mut a: Ends = a.into_iter().map(damaging).collect();
        let faults = &Faults::default();
        let (source, target) = std::thread::scope(|s| {
            let from = &from;
            let source = s.spawn(move || source::run(from, &mut a, &mut vec![known_as_slow()], false, faults));
            let target = target::run(&to, &mut b, verify, true, faults);
            drop(b);
            (source.join().expect("source"), target)
        });
        assert_eq!(source.is_ok(), target.is_ok(), "{source:?} {target:?}");
        assert!(source.is_err() || from.contents() == to.contents(), "{n} {verify:?}");
        assert!(source.map_or_else(|e| !e.is_io(), |round| round.bytes_carried < round.bytes_sent), "{n} {verify:?}");
        failed += usize::from(target.is_err());
    }
    assert!(failed > 40, "{failed} of 48");
}
