//! A byte stream through shared memory with one writer and one reader, in different processes.
//!
//! Each side keeps its own position in private memory; the position that the other side reports is validated. The bytes
//! are copied out before they are used.

use crate::futex;
use crate::shm::{Memory, PipeWords, Sleeper, Which};
use crate::sync::{AtomicBool, AtomicU32};
use cuda_api::spin::{POLITE, Pause, Spinning, WAKE_UP, spin_time};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Number of bytes after which the other side is notified, so that it copies while we continue.
const STEP: usize = 128 << 10;
/// Poll interval at which a sleeper checks whether the other side still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Spins for a while before sleeping ([`spin_time`]), less where waits have been long or other threads need the processors.
#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    pause: Pause,
}

impl Spin {
    const SHORT: Duration = POLITE;

    /// For what is looked for in memory.
    pub(crate) const fn new() -> Spin {
        Spin { limit: Spin::SHORT, pause: Pause::Yield }
    }

    /// For what is looked for by system calls, which hold up the one that brings it.
    pub(crate) const fn firm() -> Spin {
        Spin { limit: Spin::SHORT, pause: Pause::Keep(20) }
    }

    /// Spins until `met` or the time limit; returns whether it was met.
    pub(crate) fn until(&mut self, mut met: impl FnMut() -> bool) -> bool {
        if met() {
            return true;
        }
        #[cfg(test)]
        if interleave::is_model() {
            return false;
        }
        let mut spinning = Spinning::begin();
        loop {
            let goes_on = spinning.goes_on(self.pause, self.limit);
            if met() {
                self.limit = spin_time();
                return true;
            }
            if !goes_on {
                return false;
            }
        }
    }

    /// Records the duration of a wait.
    pub(crate) fn learn(&mut self, waited: Duration) {
        self.limit = if waited < 4 * WAKE_UP { spin_time() } else { Spin::SHORT };
    }
}

/// Values of [`Sleeper::asleep`]: sleeping until woken; sleeping for a short time.
const ASLEEP: u32 = 1;
const NAPPING: u32 = 2;

impl Sleeper {
    /// Wakes the sleeper, if there is one. The change that it waits for must have been made with SeqCst.
    pub(crate) fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.ring();
        }
    }

    /// As [`Sleeper::wake`], but does not interrupt a [nap](Sleeper::nap): waking would be the largest part of the
    /// caller's cost.
    pub(crate) fn wake_later(&self) {
        if self.asleep.load(Ordering::SeqCst) == ASLEEP {
            self.ring();
        }
    }

    /// Sleeps for a short time unless `met`, or until an urgent wake-up. Only one thread may sleep here.
    pub(crate) fn nap(&self, limit: Duration, met: impl FnOnce() -> bool) {
        self.sleep_by(NAPPING, met, |bell, before| futex::nap(bell, before, limit));
        self.asleep.store(0, Ordering::SeqCst);
    }

    #[cold]
    pub(crate) fn ring(&self) {
        self.asleep.store(0, Ordering::SeqCst);
        self.bell.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.bell);
    }

    /// Sleeps unless `met`, for at most `limit`. Only one thread may sleep here.
    pub(crate) fn sleep(&self, limit: Duration, met: impl FnOnce() -> bool) {
        self.sleep_among(limit, met);
        self.asleep.store(0, Ordering::SeqCst);
    }

    /// As [`Sleeper::sleep`] for several sleepers: all are woken at once.
    pub(crate) fn sleep_among(&self, limit: Duration, met: impl FnOnce() -> bool) {
        self.sleep_by(ASLEEP, met, |bell, before| futex::wait(bell, before, limit));
    }

    fn sleep_by(&self, how: u32, met: impl FnOnce() -> bool, sleep: impl FnOnce(&AtomicU32, u32)) {
        let before = self.bell.load(Ordering::SeqCst);
        self.asleep.store(how, Ordering::SeqCst);
        if !met() {
            sleep(&self.bell, before);
        }
    }
}

/// Flag that is set once the other side is closed.
pub(crate) type Closed = Arc<AtomicBool>;

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "invalid position of the peer in shared memory")
}

/// State of one end.
#[derive(Debug)]
struct End {
    memory: Arc<Memory>,
    which: Which,
    position: u64,
    closed: Closed,
    spin: Spin,
}

impl End {
    fn new(memory: Arc<Memory>, which: Which, closed: Closed) -> End {
        End { memory, which, position: 0, closed, spin: Spin::new() }
    }

    fn words(&self) -> &PipeWords {
        self.memory.pipe_words(self.which)
    }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Writer(End);

impl Writer {
    /// Creates the only writer of this pipe.
    pub(crate) fn new(memory: Arc<Memory>, which: Which, closed: Closed) -> Writer {
        Writer(End::new(memory, which, closed))
    }

    /// Number of bytes that can be written at once.
    pub(crate) fn room(&self) -> io::Result<u64> {
        let capacity = self.0.memory.pipe_bytes();
        let under_way = self.0.position.wrapping_sub(self.0.words().read.0.load(Ordering::SeqCst));
        capacity.checked_sub(under_way).ok_or_else(nonsense)
    }

    /// How many bytes have been written, and how many of them the reader has read by its own word.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.0.position, self.0.words().read.0.load(Ordering::SeqCst))
    }

    fn wait_for_room(&mut self) -> io::Result<u64> {
        let mut spin = std::mem::replace(&mut self.0.spin, Spin::new());
        // An error is detected again below.
        let met = |w: &Writer| w.room().map_or(true, |room| room > 0);
        let began = Instant::now();
        if !spin.until(|| met(self)) {
            while !met(self) {
                if self.0.closed.load(Ordering::Acquire) {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                self.0.words().writer.sleep(POLL_INTERVAL, || met(self) || self.0.closed.load(Ordering::Acquire));
            }
            spin.learn(began.elapsed());
        }
        self.0.spin = spin;
        self.room()
    }

    /// Writes several pieces in order.
    pub(crate) fn write_pieces(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let together = pieces.iter().map(|p| p.len()).sum::<usize>();
        if (together as u64) <= self.room()? {
            // All pieces or none; the reader is notified once.
            pieces.iter().for_each(|p| self.put(p));
            self.publish();
            return Ok(());
        }
        pieces.iter().try_for_each(|p| self.write_all(p))
    }

    /// Copies bytes into the pipe, which must have room for them.
    fn put(&mut self, mut from: &[u8]) {
        while !from.is_empty() {
            let (to, left) = self.0.memory.pipe_at(self.0.which, self.0.position);
            let n = from.len().min(left);
            // SAFETY: `left` bytes of the pipe follow, the reader has given these back, and nothing of ours refers to them.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, n) };
            self.0.position = self.0.position.wrapping_add(n as u64);
            from = &from[n..];
        }
    }

    fn publish(&self) {
        let words = self.0.words();
        words.written.0.store(self.0.position, Ordering::SeqCst);
        words.reader.wake();
    }
}

impl Write for Writer {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if from.is_empty() {
            return Ok(0);
        }
        let room = match self.room()? {
            0 => self.wait_for_room()?,
            n => n,
        };
        let n = from.len().min(STEP).min(usize::try_from(room).unwrap_or(STEP));
        self.put(&from[..n]);
        self.publish();
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The reading end. [`Read`] waits for bytes and returns 0 when the pipe is closed and empty.
#[derive(Debug)]
pub(crate) struct Reader(End);

impl Reader {
    /// Creates the only reader of this pipe.
    pub(crate) fn new(memory: Arc<Memory>, which: Which, closed: Closed) -> Reader {
        Reader(End::new(memory, which, closed))
    }

    /// Number of bytes that can be read at once.
    pub(crate) fn waiting(&self) -> io::Result<u64> {
        waiting(&self.0.memory, self.0.which, self.0.position)
    }

    fn wait_for_bytes(&mut self) -> io::Result<u64> {
        let mut spin = std::mem::replace(&mut self.0.spin, Spin::new());
        let met = |r: &Reader| r.waiting().map_or(true, |n| n > 0);
        let began = Instant::now();
        if !spin.until(|| met(self)) {
            while !met(self) {
                if self.0.closed.load(Ordering::Acquire) {
                    break;
                }
                self.0.words().reader.sleep(POLL_INTERVAL, || met(self) || self.0.closed.load(Ordering::Acquire));
            }
            spin.learn(began.elapsed());
        }
        self.0.spin = spin;
        self.waiting()
    }
}

/// Bytes in a pipe for a reader at `position`.
pub(crate) fn waiting(memory: &Memory, which: Which, position: u64) -> io::Result<u64> {
    let n = memory.pipe_words(which).written.0.load(Ordering::SeqCst).wrapping_sub(position);
    if n <= memory.pipe_bytes() { Ok(n) } else { Err(nonsense()) }
}

impl Read for Reader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        let there = match self.waiting()? {
            0 => self.wait_for_bytes()?,
            n => n,
        };
        let n = to.len().min(STEP).min(usize::try_from(there).unwrap_or(STEP));
        let mut done = 0;
        while done < n {
            let (from, left) = self.0.memory.pipe_at(self.0.which, self.0.position);
            let some = left.min(n - done);
            // SAFETY: `left` bytes of the pipe follow. The writer should leave them alone until they are given back; if it does
            // not, other bytes are copied.
            unsafe { std::ptr::copy_nonoverlapping(from, to[done..].as_mut_ptr(), some) };
            self.0.position = self.0.position.wrapping_add(some as u64);
            done += some;
        }
        let words = self.0.words();
        words.read.0.store(self.0.position, Ordering::SeqCst);
        words.writer.wake();
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn ends(pipe: usize) -> (Writer, Reader, Closed) {
        let memory = Arc::new(Memory::small(4096, pipe));
        let closed = Closed::default();
        let reader = Reader::new(memory.clone(), Which::Answers, closed.clone());
        (Writer::new(memory, Which::Answers, closed.clone()), reader, closed)
    }

    #[test]
    fn bytes_arrive_in_order_whatever_the_sizes() {
        for seed in 1..6u64 {
            let (mut w, mut r, closed) = ends(4096);
            let data: Vec<u8> = (0..400_000u64).map(|i| (i * seed % 251) as u8).collect();
            let sent = data.clone();
            let writer = thread::spawn(move || {
                let (mut rest, mut n) = (&sent[..], seed as usize);
                while !rest.is_empty() {
                    n = (n * 7919 + 13) % 9001;
                    let (now, later) = rest.split_at(n.min(rest.len()));
                    let (a, b) = now.split_at(now.len() / 3);
                    w.write_pieces(&[a, &[], b]).unwrap();
                    rest = later;
                }
                closed.store(true, Ordering::Release);
            });
            let mut got = Vec::new();
            let (mut buffer, mut n) = (vec![0; 10_000], seed as usize);
            loop {
                n = (n * 31 + 7) % 9973;
                match r.read(&mut buffer[..n + 1]).unwrap() {
                    0 => break,
                    k => got.extend_from_slice(&buffer[..k]),
                }
            }
            writer.join().unwrap();
            assert!(got == data);
        }
    }

    #[test]
    fn a_position_that_lies_is_an_error() {
        let (mut w, mut r, _) = ends(4096);
        w.0.words().written.0.store(5000, Ordering::SeqCst);
        assert_eq!(r.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        w.0.words().read.0.store(1, Ordering::SeqCst);
        assert_eq!(w.write(&[1]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(w.write_pieces(&[&[1]]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn who_waits_for_a_closed_pipe_returns() {
        let (mut w, mut r, closed) = ends(4096);
        w.write_all(&[5; 4096]).unwrap();
        let writer = thread::spawn(move || w.write_all(&[6]).unwrap_err().kind());
        thread::sleep(Duration::from_millis(20));
        assert!(!writer.is_finished());
        closed.store(true, Ordering::Release);
        assert_eq!(writer.join().unwrap(), io::ErrorKind::BrokenPipe);
        let mut all = Vec::new();
        r.read_to_end(&mut all).unwrap();
        assert_eq!(all, [5; 4096], "what was written can still be read");
    }
}
