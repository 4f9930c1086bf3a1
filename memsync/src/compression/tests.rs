//! Decisions on simulated connections.

use super::*;

const BATCH: usize = 1 << 20;
/// Nanoseconds that a byte takes at this many megabytes each second.
const fn at(megabytes: f64) -> f64 {
    1e3 / megabytes
}

/// A connection with a buffer, from which bytes leave at a constant speed. A writer that has found it full goes on when a third is free, as in
/// Linux.
struct Link {
    per_byte: f64,
    buffer: f64,
    waiting: f64,
}

impl Link {
    fn new(per_byte: f64, buffer: usize) -> Link {
        Link { per_byte, buffer: buffer as f64, waiting: 0.0 }
    }

    fn drain(&mut self, nanoseconds: f64) {
        self.waiting = (self.waiting - nanoseconds / self.per_byte).max(0.0);
    }

    /// Writes; returns the time until all bytes are in the buffer. Copying one there takes a fifth of a nanosecond.
    fn write(&mut self, bytes: usize) -> Duration {
        let (mut left, mut time) = (bytes as f64, bytes as f64 * 0.2);
        self.drain(time);
        loop {
            let fits = left.min(self.buffer - self.waiting);
            (self.waiting, left) = (self.waiting + fits, left - fits);
            if left <= 0.0 {
                return Duration::from_nanos(time as u64);
            }
            let wait = self.buffer / 3.0 * self.per_byte;
            self.drain(wait);
            time += wait;
        }
    }
}

/// What batches become, and how long that takes.
#[derive(Debug, Clone, Copy)]
struct Data {
    remains: f64,
    per_byte: f64,
}

const WEIGHTS: Data = Data { remains: 0.77, per_byte: at(900.0) };
const SPARSE: Data = Data { remains: 0.14, per_byte: at(600.0) };
const ZEROS: Data = Data { remains: 0.0005, per_byte: at(6000.0) };
const NOISE: Data = Data { remains: 1.0, per_byte: at(2400.0) };

/// What has happened so far.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    total: Duration,
    compressing: Duration,
    attempts: u32,
    compressed: u32,
    switches: u32,
}

/// Sends a batch as [`crate::transfer`] does.
fn send(compression: &mut Compression, link: &mut Link, data: Data, sum: &mut Sum) {
    let was_on = compression.is_on;
    let mut compressing = Duration::ZERO;
    let mut remained = None;
    if compression.is_due() {
        compressing = Duration::from_nanos((BATCH as f64 * data.per_byte) as u64);
        link.drain(compressing.as_nanos() as f64);
        remained = Some((BATCH as f64 * data.remains) as usize).filter(|n| *n <= Compression::limit(BATCH));
        sum.attempts += 1;
        match remained {
            None => compression.did_not_shrink(compressing),
            Some(_) => sum.compressed += 1,
        }
    }
    let writing = link.write(remained.unwrap_or(BATCH));
    match remained {
        Some(remained) => compression.sent_compressed(BATCH, remained, compressing, writing),
        None => compression.sent_plain(BATCH, writing),
    }
    sum.total += compressing + writing;
    sum.compressing += compressing;
    sum.switches += u32::from(was_on != compression.is_on);
}

fn send_all(compression: &mut Compression, link: &mut Link, data: Data, batches: u32) -> Sum {
    let mut sum = Sum::default();
    (0..batches).for_each(|_| send(compression, link, data, &mut sum));
    sum
}

/// The time of batches that are all sent as they are.
fn plain(mut link: Link, batches: u32) -> Duration {
    (0..batches).map(|_| link.write(BATCH)).sum()
}

const BUFFERS: [usize; 3] = [200 << 10, 1 << 20, 4 << 20];

#[test]
fn nothing_is_compressed_on_a_fast_connection() {
    for (megabytes, buffer) in [1200.0, 3000.0, 25_000.0].into_iter().flat_map(|m| BUFFERS.map(|b| (m, b))) {
        let (mut compression, mut link) = (Compression::default(), Link::new(at(megabytes), buffer));
        let sum = send_all(&mut compression, &mut link, ZEROS, 5000);
        assert_eq!(sum.attempts, 0, "{megabytes} MB/s");
        // The receiver halts once, for as long as it likes.
        compression.sent_plain(BATCH, Duration::from_secs(5));
        assert!(!compression.is_due());
    }
}

#[test]
fn a_receiver_that_halts_now_and_then_is_not_slow() {
    let mut compression = Compression::default();
    for n in 1..1000u32 {
        let halts = n % 5 == 0;
        compression.sent_plain(BATCH, Duration::from_micros(if halts { 200_000 } else { 700 }));
        assert!(!compression.is_due());
    }
}

#[test]
fn a_slow_connection_is_found_after_some_batches_and_stays_compressed() {
    for (megabytes, buffer) in [1.0, 12.0, 60.0, 90.0].into_iter().flat_map(|m| BUFFERS.map(|b| (m, b))) {
        for data in [WEIGHTS, SPARSE, ZEROS] {
            let (mut compression, mut link) = (Compression::default(), Link::new(at(megabytes), buffer));
            let first = send_all(&mut compression, &mut link, data, 8);
            assert!(first.compressed > 0, "{megabytes} MB/s, {data:?}: {first:?}");
            let sum = send_all(&mut compression, &mut link, data, 2000);
            assert!(sum.compressed >= 1600 && sum.switches <= 64, "{megabytes} MB/s, buffer {buffer}, {data:?}: {sum:?}");
        }
    }
}

#[test]
fn data_that_does_not_shrink_costs_a_bounded_share() {
    for (megabytes, buffer) in [1.0, 12.0, 100.0, 300.0, 480.0].into_iter().flat_map(|m| BUFFERS.map(|b| (m, b))) {
        for per_byte in [at(2400.0), at(500.0), at(20.0)] {
            let data = Data { per_byte, ..NOISE };
            let (mut compression, mut link) = (Compression::default(), Link::new(at(megabytes), buffer));
            let attempt = Duration::from_nanos((BATCH as f64 * per_byte) as u64);
            let sum = send_all(&mut compression, &mut link, data, 40);
            let other = sum.total - sum.compressing;
            assert!(sum.compressing <= other / PATIENCE + attempt, "{megabytes} MB/s: {sum:?}");
            assert_eq!((sum.compressed, sum.switches), (0, 0));
            // It backs off.
            send_all(&mut compression, &mut link, data, 20_000);
            let late = send_all(&mut compression, &mut link, data, 5_000);
            assert!(late.compressing <= late.total / MAX_PATIENCE + attempt, "{megabytes} MB/s: {late:?}");
        }
    }
}

#[test]
fn a_slow_compressor_is_not_used_on_a_faster_connection() {
    let slow = Data { remains: 0.3, per_byte: at(40.0) };
    let (mut compression, mut link) = (Compression::default(), Link::new(at(120.0), 1 << 20));
    let sum = send_all(&mut compression, &mut link, slow, 4000);
    assert!((1..50).contains(&sum.attempts) && sum.switches == 0, "{sum:?}");
    // The same one pays where the connection is slower still, at once: it was measured before.
    let mut link = Link::new(at(5.0), 1 << 20);
    let sum = send_all(&mut compression, &mut link, slow, 100);
    assert!(sum.compressed > 90 && sum.switches == 1, "{sum:?}");
}

#[test]
fn no_connection_becomes_slower_by_more_than_a_sixteenth() {
    let speeds = [3.0, 30.0, 70.0, 110.0, 200.0, 350.0, 450.0, 499.0, 501.0, 900.0];
    let compressors = [30.0, 100.0, 400.0, 1000.0, 5000.0];
    for (megabytes, compressor) in speeds.into_iter().flat_map(|m| compressors.map(|c| (m, c))) {
        for (remains, buffer) in [0.01, 0.3, 0.7, 0.88, 0.95].into_iter().flat_map(|r| BUFFERS.map(|b| (r, b))) {
            let data = Data { remains, per_byte: at(compressor) };
            let link = || Link::new(at(megabytes), buffer);
            let attempt = Duration::from_nanos((BATCH as f64 * data.per_byte) as u64);
            let sum = send_all(&mut Compression::default(), &mut link(), data, 1000);
            let plain = plain(link(), 1000);
            let most = plain + plain / PATIENCE + 2 * attempt;
            assert!(sum.total <= most, "{megabytes} MB/s, {compressor} MB/s, {remains}, {buffer}: {sum:?}, plain {plain:?}");
            assert!(sum.switches <= 100, "{megabytes} MB/s, {compressor} MB/s, {remains}, {buffer}: {sum:?}");
        }
    }
}

#[test]
fn a_connection_that_becomes_faster_is_noticed() {
    for (data, buffer) in [SPARSE, ZEROS, WEIGHTS].into_iter().flat_map(|d| BUFFERS.map(|b| (d, b))) {
        let (mut compression, mut link) = (Compression::default(), Link::new(at(12.0), buffer));
        assert!(send_all(&mut compression, &mut link, data, 50).compressed > 30);
        link.per_byte = at(5000.0);
        send_all(&mut compression, &mut link, data, 50_000);
        assert_eq!(send_all(&mut compression, &mut link, data, 1000).attempts, 0, "{data:?}");
        link.per_byte = at(12.0);
        assert!(send_all(&mut compression, &mut link, data, 50).compressed > 30, "{data:?}");
    }
}

#[test]
fn data_that_changes_its_nature_is_followed() {
    let (mut compression, mut link) = (Compression::default(), Link::new(at(12.0), 1 << 20));
    for _ in 0..20 {
        let noise = send_all(&mut compression, &mut link, NOISE, 50);
        assert!(
            noise.compressing
                <= (noise.total - noise.compressing) / 16 + 2 * Duration::from_nanos((BATCH as f64 * NOISE.per_byte) as u64)
        );
        let sparse = send_all(&mut compression, &mut link, SPARSE, 50);
        assert!(sparse.compressed >= 45, "{sparse:?}");
    }
}

#[test]
fn small_batches_measure_nothing() {
    let mut compression = Compression::default();
    (0..100).for_each(|_| compression.sent_plain(64 << 10, Duration::from_secs(1)));
    assert!(!compression.is_due());
    (0..2).for_each(|_| compression.sent_plain(BATCH, Duration::from_secs(1)));
    assert!(compression.is_due());
}

#[test]
fn extreme_values_are_harmless() {
    let mut compression = Compression::default();
    assert_eq!([0, 1, 9, 10, 1 << 20].map(Compression::limit), [0, 0, 8, 9, (1 << 20) - 104_858]);
    for time in [Duration::ZERO, Duration::MAX] {
        for bytes in [0, 1, BATCH] {
            compression.sent_plain(bytes, time);
            compression.sent_compressed(bytes, 0, time, time);
            compression.sent_compressed(bytes, bytes, Duration::ZERO, time);
            compression.did_not_shrink(time);
            let _ = compression.is_due();
        }
    }
}
