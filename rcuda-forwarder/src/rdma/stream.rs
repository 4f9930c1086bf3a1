//! A byte stream in both directions over an RDMA queue pair.
//!
//! Each end has a ring into which the other end writes: one-sided writes, whose immediate value says how many bytes have arrived behind
//! the last ones. The writer copies bytes to its own registered copy of that ring first, at the same offset. The reader copies them out
//! and says with writes of no bytes how many it has read (credits), which makes room for the writer in both rings. Every such write uses
//! one of the receives that the other end has posted, so the number of messages without credit is limited as well.
//!
//! Completions are polled by whoever waits. After a short time one of the waiting threads, the leader, sleeps until the completion
//! channel or the connection of the greeting has an event; the others sleep until a thread has polled something, or the leader leaves.
//!
//! The other end may write to our ring at any time and send any number: bytes are copied out before they are used, and numbers are
//! checked.

use super::queue::{Done, Keys, Memory, Owner, Queue, Registrable, Side, Write};
use crate::futex;
use crate::pipe::Spin;
use crate::socket;
use crate::sync::{AtomicU32, lock};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Maximum number of messages with bytes that have no credit.
const MESSAGES: usize = 256;
/// Maximum number of credits that an end which does not poll has not received. The bytes and messages without credit allow for four each.
const CREDITS: usize = 16;
/// Number of receives that are posted at any time, and maximum number of writes under way.
pub(crate) const DEPTH: usize = MESSAGES + CREDITS;
/// Maximum number of bytes of a message, so that the other end copies while we continue.
const STEP: u64 = 128 << 10;
/// Flag of an immediate value: the rest is a number of bytes that were read.
const CREDIT: u32 = 1 << 31;
/// Maximum number of completions that a thread takes at a time.
const BATCH: usize = 64;
/// How long a thread that is not the leader sleeps before it looks again whether there is one.
const SLICE: Duration = Duration::from_millis(50);
/// Poll interval for the completion of writes.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Room for a short message, which is written without a wait if there is that much,
const SHORT: u64 = 64;
/// and if so many messages have no credit at most: an end that is stopped for long leaves room for answers beside the heartbeats.
const SHORT_MESSAGES: usize = MESSAGES / 2;

/// Why a stream has failed.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    /// The queue pair reports an error.
    #[error("{0}")]
    Queue(String),
    /// More credit than was used.
    #[error("the other end has read bytes that were not written")]
    Credit,
    /// More bytes than the credit allows.
    #[error("the other end has written bytes for which there was no room")]
    NoRoom,
    /// The time limit for data without credit is over.
    #[error("the other end has read nothing for {0:?}")]
    NotRead(Duration),
}

impl StreamError {
    fn queue(error: &io::Error) -> StreamError {
        StreamError::Queue(error.to_string())
    }
}

/// What is written: positions, which only increase.
#[derive(Debug, Default)]
struct Writing {
    /// Bytes of the stream so far.
    copied: u64,
    /// Ends of the messages without credit.
    ends: VecDeque<u64>,
}

/// What is read.
#[derive(Debug, Default)]
struct Reading {
    position: u64,
    /// Bytes for which the other end has credits.
    credited: u64,
    /// Messages that had arrived when it last had credits for everything.
    messages: u64,
}

/// One end of a stream.
#[derive(Debug)]
pub(crate) struct Stream {
    queue: Box<dyn Queue>,
    /// Bytes of each ring.
    ring: usize,
    writing: Mutex<Writing>,
    reading: Mutex<Reading>,
    /// Held while completions are taken.
    polling: Mutex<()>,
    /// Bytes for which writes were posted.
    posted: AtomicU64,
    /// Bytes that the other end has read.
    credited: AtomicU64,
    /// Bytes and messages that have arrived.
    arrived: AtomicU64,
    messages: AtomicU64,
    /// Bytes that were read.
    read: AtomicU64,
    /// Writes that are not complete.
    under_way: AtomicUsize,
    failed: OnceLock<StreamError>,
    /// The connection of the greeting has ended.
    over: AtomicBool,
    /// There is a leader.
    has_leader: AtomicBool,
    sleepers: AtomicU32,
    /// Changes whenever a thread has taken completions, and when the leader leaves.
    bell: AtomicU32,
    /// How long a waiting read waits.
    silence: OnceLock<Duration>,
}

impl Stream {
    /// Creates this end over a connected queue pair, for which [`DEPTH`] receives were posted.
    pub(crate) fn new(queue: Box<dyn Queue>) -> Stream {
        Stream {
            ring: queue.ring(),
            queue,
            silence: OnceLock::new(),
            writing: Mutex::new(Writing { copied: 0, ends: VecDeque::with_capacity(MESSAGES + 1) }),
            reading: Mutex::default(),
            polling: Mutex::default(),
            posted: AtomicU64::new(0),
            credited: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            read: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
            failed: OnceLock::new(),
            over: AtomicBool::new(false),
            has_leader: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            bell: AtomicU32::new(0),
        }
    }

    fn fail(&self, why: StreamError) {
        // The first reason counts.
        let _ = self.failed.set(why);
    }

    fn is_ended(&self) -> bool {
        self.over.load(Ordering::SeqCst) || self.failed.get().is_some()
    }

    /// The error of a stream that has ended.
    fn ended(&self) -> io::Error {
        match self.failed.get() {
            Some(why) => io::Error::other(format!("RDMA: {why}")),
            None => io::ErrorKind::BrokenPipe.into(),
        }
    }

    /// Takes completions, unless another thread does that now; `surely`: waits for that thread. Returns whether there may be more.
    fn pump(&self, surely: bool) -> bool {
        if self.failed.get().is_some() {
            return false;
        }
        let polling = match (surely, self.polling.try_lock()) {
            (_, Ok(polling)) => polling,
            (true, Err(_)) => lock(&self.polling),
            (false, Err(_)) => return false,
        };
        let mut taken = 0;
        while taken < BATCH {
            let accepted = match self.queue.poll() {
                Ok(None) => break,
                Ok(Some(done)) => self.accept(done),
                Err(why) => Err(StreamError::queue(&why)),
            };
            taken += 1;
            if let Err(why) = accepted {
                self.fail(why);
                break;
            }
        }
        drop(polling);
        if taken > 0 {
            self.ring_bell();
        }
        taken == BATCH
    }

    fn accept(&self, done: Done) -> Result<(), StreamError> {
        let number = match done {
            Done::Written => {
                self.under_way.fetch_sub(1, Ordering::SeqCst);
                return Ok(());
            }
            Done::Received(number) => number,
        };
        self.queue.post_receive().map_err(|e| StreamError::queue(&e))?;
        let bytes = u64::from(number & !CREDIT);
        if number & CREDIT != 0 {
            let credited = self.credited.load(Ordering::SeqCst) + bytes;
            if credited > self.posted.load(Ordering::SeqCst) {
                return Err(StreamError::Credit);
            }
            self.credited.store(credited, Ordering::SeqCst);
        } else {
            let arrived = self.arrived.load(Ordering::SeqCst) + bytes;
            if bytes == 0 || arrived - self.read.load(Ordering::SeqCst) > self.ring as u64 {
                return Err(StreamError::NoRoom);
            }
            // A reader that sees these bytes may miss the message, which only delays its credit.
            self.messages.fetch_add(1, Ordering::SeqCst);
            self.arrived.store(arrived, Ordering::SeqCst);
        }
        Ok(())
    }

    fn ring_bell(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            futex::wake(&self.bell);
        }
    }

    /// Waits until `met`, or the stream has ended; false on timeout. `socket` is the connection of the greeting.
    fn wait(&self, socket: BorrowedFd<'_>, limit: Duration, met: &dyn Fn() -> bool) -> io::Result<bool> {
        let began = Instant::now();
        loop {
            let bell = self.bell.load(Ordering::SeqCst);
            self.pump(false);
            if met() || self.is_ended() {
                return Ok(true);
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            if !self.has_leader.swap(true, Ordering::SeqCst) {
                let led = self.lead(socket, left, met);
                self.has_leader.store(false, Ordering::SeqCst);
                self.ring_bell();
                // Without events no thread would notice the end of the stream.
                led.inspect_err(|e| self.fail(StreamError::queue(e)))?;
            } else {
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                futex::wait(&self.bell, bell, left.min(SLICE));
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Sleeps until there are completions, the connection of the greeting ends, or the time is over.
    fn lead(&self, socket: BorrowedFd<'_>, limit: Duration, met: &dyn Fn() -> bool) -> io::Result<()> {
        self.queue.arm()?;
        // What completed before causes no event, so all of it is taken.
        while self.pump(true) && !met() && !self.is_ended() {}
        if met() || self.is_ended() {
            return Ok(());
        }
        let ms = limit.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        let closed = PollFlags::POLLIN | PollFlags::from_bits_retain(libc::POLLRDHUP);
        let mut fds = [PollFd::new(self.queue.events(), PollFlags::POLLIN), PollFd::new(socket, closed)];
        match poll(&mut fds, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        let seen = fds.each_ref().map(|fd| fd.revents().unwrap_or(PollFlags::POLLERR));
        if !seen[0].is_empty() {
            self.queue.clear_events()?;
        }
        // After the greeting nothing is sent there: it can only have ended.
        if !seen[1].is_empty() {
            self.over.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::SeqCst) != self.read.load(Ordering::SeqCst)
    }

    /// Sets a limit for waiting reads: after that time without data they fail with `WouldBlock`. It is set once.
    pub(crate) fn limit_silence(&self, limit: Duration) {
        let _ = self.silence.set(limit);
    }

    /// See [`Stream::limit_silence`].
    pub(crate) fn silence(&self) -> Option<Duration> {
        self.silence.get().copied()
    }

    /// Waits until there is something to read, including the end; false on timeout.
    pub(crate) fn wait_readable(&self, socket: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
        self.wait(socket, limit, &|| self.has_arrived())
    }

    /// Reads what has arrived; `WouldBlock` if there is nothing. What arrived before the end is read first.
    pub(crate) fn try_read(&self, to: &mut [u8]) -> io::Result<usize> {
        let most = to.len();
        self.take(most, |done, from| {
            // SAFETY: inside the ring. The other end should leave these bytes alone until they have credit; if it does not, other
            // bytes are copied.
            unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to[done..].as_mut_ptr(), from.len()) };
        })
    }

    /// As [`Stream::try_read`], of at most so many bytes that the other end has written to other memory.
    pub(crate) fn try_skip(&self, most: usize) -> io::Result<usize> {
        self.take(most, |_, _| {})
    }

    /// Gives each piece of the ring that was read to `copy`, with the number of bytes before it.
    fn take(&self, most: usize, mut copy: impl FnMut(usize, *const [u8])) -> io::Result<usize> {
        let mut reading = lock(&self.reading);
        let mut there = self.arrived.load(Ordering::SeqCst) - reading.position;
        if there == 0 {
            let is_over = self.over.load(Ordering::SeqCst);
            while self.pump(is_over) && is_over {}
            there = self.arrived.load(Ordering::SeqCst) - reading.position;
            if there == 0 && is_over {
                return Ok(0);
            }
        }
        match there {
            0 if self.failed.get().is_some() => return Err(self.ended()),
            0 => return Err(io::ErrorKind::WouldBlock.into()),
            _ => {}
        }
        let n = most.min(usize::try_from(there).unwrap_or(self.ring));
        let mut done = 0;
        while done < n {
            let at = reading.position as usize % self.ring;
            let some = (n - done).min(self.ring - at);
            // SAFETY: inside the ring.
            copy(done, std::ptr::slice_from_raw_parts(unsafe { self.queue.incoming().add(at) }, some));
            reading.position += some as u64;
            done += some;
        }
        self.read.store(reading.position, Ordering::SeqCst);
        self.send_credit(&mut reading);
        Ok(n)
    }

    /// Tells the other end how much was read, if it may need that soon.
    fn send_credit(&self, reading: &mut Reading) {
        let messages = self.messages.load(Ordering::SeqCst);
        let is_empty = self.arrived.load(Ordering::SeqCst) == reading.position;
        let bytes = reading.position - reading.credited;
        if bytes < self.ring as u64 / 4 && !(is_empty && messages - reading.messages >= MESSAGES as u64 / 4) {
            return;
        }
        // If it cannot be sent, the stream has ended, and what has arrived can still be read.
        let credit = Write { from: Side::Ring(0), to: Side::Ring(0), bytes: 0, number: CREDIT | bytes as u32 };
        if self.post(&credit).is_ok() {
            reading.credited = reading.position;
            if is_empty {
                reading.messages = messages;
            }
        }
    }

    /// Fills `to` before `deadline`, without a look at the connection of the greeting, on which the setup may still send something.
    pub(crate) fn read_exact_apart(&self, mut to: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !to.is_empty() {
            match self.try_read(to) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => to = &mut to[n..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(POLL_INTERVAL);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Posts a write. Waits only for the network, if too many are under way.
    fn post(&self, write: &Write) -> io::Result<()> {
        let free = |n: usize| (n < DEPTH).then_some(n + 1);
        while self.under_way.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free).is_err() {
            self.pump(false);
            if self.is_ended() {
                return Err(self.ended());
            }
            if self.under_way.load(Ordering::SeqCst) >= DEPTH {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        self.queue.post_write(write).inspect_err(|e| self.fail(StreamError::queue(e)))
    }

    /// Bytes that can be copied to the ring, if another message may be sent.
    fn room(&self, writing: &mut Writing) -> u64 {
        let credited = self.credited.load(Ordering::SeqCst);
        while writing.ends.front().is_some_and(|end| *end <= credited) {
            writing.ends.pop_front();
        }
        if writing.ends.len() < MESSAGES { self.ring as u64 - (writing.copied - credited) } else { 0 }
    }

    /// The limit for data that a TCP connection has not acknowledged is also that for bytes that were not read: the one of `socket`.
    fn wait_for_room(&self, socket: BorrowedFd<'_>, writing: &mut Writing) -> io::Result<()> {
        let (copied, first) = (writing.copied, writing.ends.front().copied());
        let is_full = writing.ends.len() >= MESSAGES;
        let met = || {
            let credited = self.credited.load(Ordering::SeqCst);
            if is_full { first.is_none_or(|end| end <= credited) } else { copied - credited < self.ring as u64 }
        };
        let spun = Spin::new().until(|| {
            self.pump(false);
            met()
        });
        // The device of the other end takes what is written, whatever becomes of its process.
        let (limit, mut waited) = (socket::unacknowledged(socket), Duration::ZERO);
        while !spun && !self.wait(socket, SLICE, &met)? {
            // In slices, because the time for which this process itself is stopped does not count.
            waited += SLICE;
            if let Some(limit) = limit.filter(|limit| waited >= *limit) {
                self.fail(StreamError::NotRead(limit));
            }
        }
        if met() { Ok(()) } else { Err(self.ended()) }
    }

    /// Posts a write for what has been added to the stream since the last one.
    fn flush(&self, writing: &mut Writing, sides: Option<(Side, Side)>) -> io::Result<()> {
        let at = self.posted.load(Ordering::SeqCst);
        let bytes = writing.copied - at;
        if bytes == 0 {
            return Ok(());
        }
        let ring = Side::Ring(at as usize % self.ring);
        let (from, to) = sides.unwrap_or((ring, ring));
        writing.ends.push_back(writing.copied);
        self.posted.store(writing.copied, Ordering::SeqCst);
        self.post(&Write { from, to, bytes: bytes as usize, number: bytes as u32 })
    }

    /// Where in the ring the next bytes go, and how many of so many can go there now, behind those that are waiting: no message continues
    /// at the start of the ring.
    fn next(&self, socket: BorrowedFd<'_>, writing: &mut Writing, bytes: usize) -> io::Result<(usize, usize)> {
        loop {
            if self.is_ended() {
                return Err(self.ended());
            }
            let room = self.room(writing);
            if room > 0 {
                let at = writing.copied as usize % self.ring;
                let waiting = writing.copied - self.posted.load(Ordering::SeqCst);
                return Ok((at, bytes.min(self.ring - at).min(room.min(STEP - waiting) as usize)));
            }
            self.flush(writing, None)?;
            self.wait_for_room(socket, writing)?;
        }
    }

    /// Writes several pieces in order.
    pub(crate) fn write(&self, socket: BorrowedFd<'_>, pieces: &[&[u8]]) -> io::Result<()> {
        let mut writing = lock(&self.writing);
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let (at, n) = self.next(socket, &mut writing, rest.len())?;
                self.copy(&rest[..n], at);
                writing.copied += n as u64;
                rest = &rest[n..];
                let waiting = writing.copied - self.posted.load(Ordering::SeqCst);
                if waiting == STEP || at + n == self.ring {
                    self.flush(&mut writing, None)?;
                }
            }
        }
        self.flush(&mut writing, None)
    }

    /// Copies bytes to our copy of the ring.
    fn copy(&self, from: &[u8], at: usize) {
        // SAFETY: inside our copy of the ring, at bytes that the other end has read, so that no write of ours uses them.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.queue.outgoing().add(at), from.len()) };
    }

    /// As [`Stream::write`], but the bytes arrive in other memory of the other end, which [skips](Stream::try_skip) them in the stream.
    pub(crate) fn write_to(&self, socket: BorrowedFd<'_>, mut rest: &[u8], mut to: Memory) -> io::Result<()> {
        let mut writing = lock(&self.writing);
        self.flush(&mut writing, None)?;
        while !rest.is_empty() {
            let (at, n) = self.next(socket, &mut writing, rest.len())?;
            self.copy(&rest[..n], at);
            writing.copied += n as u64;
            self.flush(&mut writing, Some((Side::Ring(at), Side::Other(to))))?;
            (rest, to) = (&rest[n..], to.at(n as u64));
        }
        Ok(())
    }

    /// As [`Stream::write`], of registered memory, which is not copied: it must stay as it is until the other end has said that it has
    /// the bytes.
    pub(crate) fn write_from(&self, socket: BorrowedFd<'_>, mut from: Memory, bytes: usize) -> io::Result<()> {
        let mut writing = lock(&self.writing);
        self.flush(&mut writing, None)?;
        let mut left = bytes;
        while left > 0 {
            let (at, n) = self.next(socket, &mut writing, left)?;
            writing.copied += n as u64;
            self.flush(&mut writing, Some((Side::Other(from), Side::Ring(at))))?;
            (left, from) = (left - n, from.at(n as u64));
        }
        Ok(())
    }

    /// Registers memory to which the other end may write, and from which [`Stream::write_from`] does.
    pub(crate) fn register(&self, memory: Registrable<'_>, owner: Owner) -> io::Result<Keys> {
        self.queue.register(memory, owner)
    }

    /// Forgets registrations of memory that is not used any more.
    pub(crate) fn forget_unused(&self) {
        self.queue.forget_unused();
    }

    /// Whether a short message can be written without a wait.
    pub(crate) fn has_room(&self) -> bool {
        self.pump(false);
        let Ok(mut writing) = self.writing.try_lock() else { return false };
        let has_room = self.room(&mut writing) >= SHORT && writing.ends.len() < SHORT_MESSAGES;
        has_room && self.under_way.load(Ordering::SeqCst) < DEPTH
    }

    /// Waits until everything that was written has arrived at the other end, for a limited time. The end of the process would discard it.
    pub(crate) fn wait_arrived(&self, limit: Duration) {
        let began = Instant::now();
        while self.under_way.load(Ordering::SeqCst) != 0 && !self.is_ended() && began.elapsed() < limit {
            // Not surely: the thread that takes completions may have panicked, and be the one that waits here.
            self.pump(false);
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
