//! The ring of calls, with many producers (the program's threads) and one consumer.
//!
//! A producer first reads from each page that it will copy: a bad pointer of the program must fault before anything is
//! reserved, since a signal handler of the program may never return to the call. It reserves its bytes with one
//! `fetch_add`; the resulting position is the call's place in the total order. It writes the body, then publishes the
//! frame by storing the first word of the header (never zero, because it holds the length). The consumer takes
//! published frames in order and clears the memory before it releases it, so that an unpublished frame reads as zero.
//! The memory is mapped twice in a row, so a frame is always contiguous.
//!
//! It is drained in one of two ways: by a thread of the same process that sends the frames directly from the ring
//! ([`Consumer::take`]), or by the worker, which maps the same memory and reads them as a stream ([`Calls`]).
//!
//! A body longer than [`INLINE`] does not go through the ring. For a consumer in the same process the ring holds a reference,
//! and the caller waits until the body has been sent; for a worker the frame holds the length, and the body follows in a
//! [pipe](crate::pipe). The order is the same.

use crate::conn::Ahead;
use crate::frame::{HEAD, Head, MAX_BODY, NO_TICKET, filled};
use crate::futex;
use crate::pipe::{Closed, Reader, Spin, Writer};
use crate::shm::{Apart, Memory, RingWords, Which};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, has_passed, lock};
use cuda_api::ops::id::HOST_DONE;
use executor::host_rows::touch as touch_memory;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use crate::shm::RING as CAPACITY;

/// Maximum length of a body that is copied into the ring, in bytes.
pub const INLINE: usize = 128 << 10;
/// Flag of a frame in the ring whose body is elsewhere. Never sent.
const ELSEWHERE: u16 = 0x8000;
/// Maximum bytes that the consumer takes at once (and half of the ring), so that producers get room while it sends.
const BATCH: u64 = 256 << 10;
/// While the program makes calls, a call without an answer stays in the ring for at most about this long: the consumer
/// then polls at this interval,
const NAP: Duration = Duration::from_micros(40);
/// until this long after the last call.
const ACTIVE: Duration = Duration::from_millis(10);
/// Poll interval at which a sleeper checks whether the other side still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a frame was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The consumer no longer exists.
    #[error("the sender is gone")]
    Gone,
    /// Longer than [`MAX_BODY`].
    #[error("a body of more than {MAX_BODY} bytes")]
    TooLong,
}

/// How long bodies are passed.
#[derive(Debug)]
enum Bodies {
    /// The consumer in this process takes them from the caller; it increments the word when it has finished one.
    Lent(AtomicU32),
    /// Through a pipe, one after the other in the order of their frames.
    Piped(Mutex<Writer>),
}

/// The producers' side. Forked children do not inherit it.
#[derive(Debug)]
pub struct Ring {
    memory: Arc<Memory>,
    /// Bytes reserved so far.
    head: Apart<AtomicU64>,
    bodies: Bodies,
    /// The consumer no longer exists.
    gone: Closed,
    /// The consumer should end.
    stop: AtomicBool,
}

/// A call whose body is in the caller's memory; `done` is set when it is no longer needed.
struct Elsewhere<'a> {
    parts: &'a [&'a [u8]],
    done: AtomicBool,
}

fn first_word(memory: &Memory, position: u64) -> &AtomicU64 {
    // SAFETY: positions are multiples of 8 and the memory lives as long as the borrow; every access to a first word before its
    // frame is taken is atomic.
    unsafe { AtomicU64::from_ptr(memory.ring_at(position).cast()) }
}

/// Reads from each page of the parts.
#[inline]
pub(crate) fn touch(parts: &[&[u8]]) {
    for bytes in parts {
        // SAFETY: the bytes of a slice are readable.
        unsafe { touch_memory(bytes.as_ptr() as u64, bytes.len(), false) };
    }
}

impl Ring {
    /// A ring of `capacity` bytes, a power of two, at least four times [`INLINE`], for a consumer of this process.
    pub fn new(capacity: usize) -> io::Result<Ring> {
        if !capacity.is_power_of_two() || capacity < 4 * INLINE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let memory = Arc::new(Memory::private(capacity)?);
        Ok(Ring::over(memory, Bodies::Lent(AtomicU32::new(0)), Closed::default()))
    }

    /// Creates the ring in memory whose consumer is on the other side. `closed` becomes true when that side has closed.
    pub(crate) fn shared(memory: Arc<Memory>, closed: Closed) -> Ring {
        let bodies = Writer::new(memory.clone(), Which::Bodies, closed.clone());
        Ring::over(memory, Bodies::Piped(Mutex::new(bodies)), closed)
    }

    fn over(memory: Arc<Memory>, bodies: Bodies, gone: Closed) -> Ring {
        Ring { memory, head: Apart::default(), bodies, gone, stop: AtomicBool::new(false) }
    }

    fn words(&self) -> &RingWords {
        self.memory.ring_words()
    }

    /// The position of the next call, which increases with every call.
    pub fn position(&self) -> u64 {
        self.head.0.load(Ordering::Relaxed)
    }

    /// Calls that the consumer has taken, and their bytes. A worker that shares the memory can write what it likes there.
    pub(crate) fn taken(&self) -> (u64, u64) {
        let taken = self.memory.taken();
        (taken.calls.load(Ordering::Relaxed), taken.bytes.load(Ordering::Relaxed))
    }

    /// Populates the pages of the memory before calls touch them; for a background thread.
    pub(crate) fn warm(&self) {
        self.memory.warm();
    }

    /// Bytes of a body.
    fn body(&self, parts: &[&[u8]]) -> Result<usize, PushError> {
        let body = parts.iter().try_fold(0usize, |n, p| n.checked_add(p.len())).filter(|n| *n <= MAX_BODY);
        let body = body.ok_or(PushError::TooLong)?;
        touch(parts);
        if self.gone.load(Ordering::Relaxed) { Err(PushError::Gone) } else { Ok(body) }
    }

    /// Adds a call without an answer, but only if it begins at `position` and its body is at most [`INLINE`] long;
    /// otherwise returns `None`. This ensures that no other call was sent between the caller's knowledge of that
    /// position and this call.
    pub fn push_at(&self, position: u64, id: u16, parts: &[&[u8]]) -> Result<Option<Range<u64>>, PushError> {
        let body = self.body(parts)?;
        let head = Head { len: (HEAD + body) as u32, id, flags: 0, seq: 0, ticket: NO_TICKET };
        let bytes = filled(HEAD + body) as u64;
        let reserve = || self.head.0.compare_exchange(position, position + bytes, Ordering::Relaxed, Ordering::Relaxed);
        if body > INLINE || reserve().is_err() {
            return Ok(None);
        }
        self.put_at(position, head, parts).map(Some)
    }

    /// As [`Ring::push_at`] for a call without a body, if besides no call is in the ring, so that it never waits.
    pub(crate) fn push_alone_at(&self, position: u64, id: u16) -> Result<bool, PushError> {
        if self.used(position) != 0 {
            return Ok(false);
        }
        Ok(self.push_at(position, id, &[])?.is_some())
    }

    /// Adds a call; returns its range of positions. Waits only if the ring is full or the body is longer than
    /// [`INLINE`].
    pub fn push(&self, id: u16, ticket: u64, parts: &[&[u8]]) -> Result<Range<u64>, PushError> {
        let body = self.body(parts)?;
        if body <= INLINE {
            let head = Head { len: (HEAD + body) as u32, id, flags: 0, seq: 0, ticket };
            return self.put(head, parts);
        }
        let head = Head { len: (HEAD + size_of::<u64>()) as u32, id, flags: ELSEWHERE, seq: 0, ticket };
        match &self.bodies {
            Bodies::Lent(sent) => self.push_reference(head, parts, sent),
            Bodies::Piped(pipe) => {
                // Held until the body has been written: bodies follow in the order of their frames.
                let mut pipe = lock(pipe);
                let span = self.put(head, &[&(body as u64).to_le_bytes()])?;
                parts.iter().try_for_each(|p| pipe.write_all(p)).map(|()| span).map_err(|_| PushError::Gone)
            }
        }
    }

    /// Puts a reference to the body into the ring, and waits until the consumer has read the body.
    fn push_reference(&self, head: Head, parts: &[&[u8]], sent: &AtomicU32) -> Result<Range<u64>, PushError> {
        let job = Elsewhere { parts, done: AtomicBool::new(false) };
        let reference = (&raw const job) as u64;
        let span = self.put(head, &[&reference.to_ne_bytes()])?;
        // `job` must stay valid until the consumer has finished with it, or no longer exists.
        loop {
            let seen = sent.load(Ordering::Acquire);
            if job.done.load(Ordering::Acquire) {
                return Ok(span);
            }
            if self.gone.load(Ordering::Acquire) {
                return if job.done.load(Ordering::Acquire) { Ok(span) } else { Err(PushError::Gone) };
            }
            futex::wait(sent, seen, POLL_INTERVAL);
        }
    }

    /// Whether there is no room yet up to `end`. The consumer's position is trusted no further than that.
    fn is_full(&self, end: u64) -> bool {
        self.used(end) > self.memory.ring_bytes()
    }

    /// Bytes up to `end` that the consumer has not taken.
    fn used(&self, end: u64) -> u64 {
        end.wrapping_sub(self.words().tail.0.load(Ordering::SeqCst))
    }

    fn put(&self, head: Head, parts: &[&[u8]]) -> Result<Range<u64>, PushError> {
        let position = self.head.0.fetch_add(filled(head.len as usize) as u64, Ordering::Relaxed);
        self.put_at(position, head, parts)
    }

    /// Writes a frame into the range that its caller has reserved.
    fn put_at(&self, position: u64, head: Head, parts: &[&[u8]]) -> Result<Range<u64>, PushError> {
        let bytes = filled(head.len as usize) as u64;
        let used = self.used(position + bytes);
        if used > self.memory.ring_bytes() {
            self.wait_for_room(position + bytes)?;
        }
        // Calls without an answer are taken soon enough without a wake-up.
        let hurry = head.ticket != NO_TICKET || head.flags != 0 || head.id == HOST_DONE || used > self.memory.ring_bytes() / 4;
        let at = self.memory.ring_at(position);
        // SAFETY: the bytes from `position` are reserved for this call alone, there is room for them, and the second mapping
        // makes them contiguous. The filling is zero already.
        unsafe {
            at.add(16).cast::<u64>().write(head.ticket.to_le());
            let mut to = at.add(HEAD);
            for part in parts {
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        // Publishing and checking for a sleeper must not be reordered: both are SeqCst, as on the consumer's side.
        first_word(&self.memory, position).swap(head.word().to_le(), Ordering::SeqCst);
        if hurry {
            self.words().consumer.wake();
        } else {
            self.words().consumer.wake_later();
        }
        Ok(position..position + bytes)
    }

    #[cold]
    fn wait_for_room(&self, end: u64) -> Result<(), PushError> {
        if Spin::new().until(|| !self.is_full(end)) {
            return Ok(());
        }
        while self.is_full(end) {
            if self.gone.load(Ordering::Acquire) {
                return Err(PushError::Gone);
            }
            self.words().producers.sleep_among(POLL_INTERVAL, || !self.is_full(end) || self.is_gone());
        }
        Ok(())
    }

    /// Requests the consumer to end once it has taken all published frames.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.words().consumer.ring();
    }

    /// Whether the consumer no longer exists.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// What a consumer of the same process sends next.
#[derive(Debug)]
pub enum Taken<'a> {
    /// Frames, ready to be sent unchanged.
    Frames(&'a [u8]),
    /// A frame whose body is in its caller's memory: header, parts, padding.
    Long([u8; HEAD], &'a [&'a [u8]], &'a [u8]),
}

/// The consumer's position.
#[derive(Debug, Default)]
struct Cursor {
    position: u64,
    seq: u64,
    /// Bytes of long bodies, which are not in the ring.
    long: u64,
    spin: Option<Spin>,
    /// The timer slack of the consumer's thread has been reduced.
    punctual: bool,
}

impl Cursor {
    /// The first word of the next frame, once it is published; `None` if there is none and `over` returns true.
    fn wait(&mut self, memory: &Memory, over: impl Fn() -> bool) -> Option<u64> {
        let position = self.position;
        let word = || u64::from_le(first_word(memory, position).load(Ordering::SeqCst));
        let spin = self.spin.get_or_insert(Spin::new());
        if spin.until(|| word() != 0) {
            return Some(word());
        }
        let began = Instant::now();
        loop {
            let met = || word() != 0 || over();
            match word() {
                0 if over() => return None,
                0 if !has_passed(began, ACTIVE) => {
                    if !self.punctual {
                        // SAFETY: affects only how late this thread's sleeps may end.
                        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
                        self.punctual = true;
                    }
                    memory.ring_words().consumer.nap(NAP, met);
                }
                0 => memory.ring_words().consumer.sleep(Duration::from_secs(1), met),
                found => {
                    spin.learn(began.elapsed());
                    return Some(found);
                }
            }
        }
    }

    /// The end of a run of frames that begins here with `word`: as many as are published and fit a batch. Assigns a
    /// number to each. `None` if a length is invalid.
    fn run(&mut self, memory: &Memory, mut word: u64) -> Option<u64> {
        let limit = BATCH.min(memory.ring_bytes() / 2);
        let mut end = self.position;
        while word != 0 && (word >> 48) as u16 & ELSEWHERE == 0 && end - self.position < limit {
            let len = word as u32 as usize;
            if !(HEAD..=HEAD + INLINE).contains(&len) {
                return None;
            }
            self.number(memory, end);
            end += filled(len) as u64;
            // Less than the whole ring lies between them, so `end` is not yet the position of the first frame again.
            word = u64::from_le(first_word(memory, end).load(Ordering::Acquire));
        }
        Some(end)
    }

    fn number(&mut self, memory: &Memory, position: u64) {
        // SAFETY: the frame at `position` is published, so it belongs to the consumer; its second word is the number's.
        unsafe { memory.ring_at(position).add(8).cast::<u64>().write(self.seq.to_le()) };
        self.seq += 1;
    }

    /// Clears memory that was taken, up to `end`, and releases it to producers.
    fn give_back(&mut self, memory: &Memory, end: u64) {
        // SAFETY: taken by the consumer and not yet given back.
        unsafe { std::ptr::write_bytes(memory.ring_at(self.position), 0, (end - self.position) as usize) };
        self.position = end;
        let taken = memory.taken();
        taken.calls.store(self.seq, Ordering::Relaxed);
        taken.bytes.store(self.position.saturating_add(self.long), Ordering::Relaxed);
        memory.ring_words().tail.0.store(self.position, Ordering::SeqCst);
        memory.ring_words().producers.wake();
    }
}

/// The only consumer of a ring in the producers' process. When it is dropped, producers stop waiting and get
/// [`PushError::Gone`].
#[derive(Debug)]
pub struct Consumer<'r> {
    ring: &'r Ring,
    cursor: Cursor,
}

impl Drop for Consumer<'_> {
    fn drop(&mut self) {
        self.ring.gone.store(true, Ordering::SeqCst);
        self.ring.words().producers.ring();
        if let Bodies::Lent(sent) = &self.ring.bodies {
            sent.fetch_add(1, Ordering::SeqCst);
            futex::wake(sent);
        }
    }
}

impl<'r> Consumer<'r> {
    /// The consumer of `ring`.
    ///
    /// # Safety
    /// A ring has one consumer in its life, and this one only if it was made by [`Ring::new`].
    pub unsafe fn new(ring: &'r Ring) -> Consumer<'r> {
        Consumer { ring, cursor: Cursor::default() }
    }

    /// Waits for frames and passes them to `send`. `None`: stopped, and nothing is left.
    pub fn take<E>(&mut self, send: impl FnOnce(Taken<'_>) -> Result<(), E>) -> Option<Result<(), E>> {
        let memory = &self.ring.memory;
        let word = self.cursor.wait(memory, || self.ring.stop.load(Ordering::SeqCst))?;
        if (word >> 48) as u16 & ELSEWHERE != 0 {
            return Some(self.take_long(send));
        }
        // Only this process writes here, so lengths are valid.
        let end = self.cursor.run(memory, word)?;
        let bytes = (end - self.cursor.position) as usize;
        // SAFETY: published frames up to `end` belong to the consumer; contiguous thanks to the second mapping.
        let frames = unsafe { std::slice::from_raw_parts(memory.ring_at(self.cursor.position), bytes) };
        let result = send(Taken::Frames(frames));
        self.cursor.give_back(memory, end);
        Some(result)
    }

    fn take_long<E>(&mut self, send: impl FnOnce(Taken<'_>) -> Result<(), E>) -> Result<(), E> {
        let (memory, cursor) = (&self.ring.memory, &mut self.cursor);
        cursor.number(memory, cursor.position);
        let at = memory.ring_at(cursor.position);
        // SAFETY: a published frame of this kind holds its head and the reference that `push_reference` put there.
        let (head, reference) = unsafe { (at.cast::<[u8; HEAD]>().read(), at.add(HEAD).cast::<u64>().read_unaligned()) };
        // SAFETY: the caller keeps the job until `done` is set or this consumer is dropped.
        let job = unsafe { &*(reference as *const Elsewhere<'_>) };
        let body = job.parts.iter().map(|p| p.len()).sum::<usize>();
        let head = Head { len: (HEAD + body) as u32, flags: 0, ..Head::read(&head) };
        let filling = [0; 8];
        let result = send(Taken::Long(head.bytes(), job.parts, &filling[..filled(body) - body]));
        if let (Ok(()), Bodies::Lent(sent)) = (&result, &self.ring.bodies) {
            // The last access: after this the caller may return.
            job.done.store(true, Ordering::Release);
            sent.fetch_add(1, Ordering::SeqCst);
            futex::wake(sent);
        }
        cursor.long = cursor.long.saturating_add(body as u64);
        cursor.give_back(memory, cursor.position + filled(HEAD + size_of::<u64>()) as u64);
        result
    }
}

/// The consumer in another process: it reads the frames as a byte stream, like that of a socket. Whatever the
/// producers' side writes to the memory, the result is only bytes, which the reader validates.
#[derive(Debug)]
pub(crate) struct Calls {
    memory: Arc<Memory>,
    cursor: Cursor,
    /// End of the frames that can be copied.
    end: u64,
    /// Position up to which they have been copied.
    copied: u64,
    bodies: Reader,
    /// The rest of a frame with a long body: its header, then its body and its padding.
    head: Vec<u8>,
    body: usize,
    filling: usize,
    closed: Closed,
}

impl Calls {
    pub(crate) fn new(memory: Arc<Memory>, closed: Closed) -> Calls {
        let bodies = Reader::new(memory.clone(), Which::Bodies, closed.clone());
        Calls { memory, cursor: Cursor::default(), end: 0, copied: 0, bodies, head: Vec::new(), body: 0, filling: 0, closed }
    }

    /// Waits for frames; false if there will be none.
    fn more(&mut self) -> io::Result<bool> {
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "a frame in shared memory has an impossible length");
        let Some(word) = self.cursor.wait(&self.memory, || self.closed.load(Ordering::Acquire)) else { return Ok(false) };
        if (word >> 48) as u16 & ELSEWHERE == 0 {
            self.end = self.cursor.run(&self.memory, word).ok_or_else(nonsense)?;
            self.copied = self.cursor.position;
            return Ok(true);
        }
        self.cursor.number(&self.memory, self.cursor.position);
        // SAFETY: so many bytes are mapped from every position of the ring; if they are being changed, others are copied.
        let frame = unsafe { self.memory.ring_at(self.cursor.position).cast::<[u8; HEAD + 8]>().read_volatile() };
        let (head, length) = frame.split_at(HEAD);
        let length = u64::from_le_bytes(std::array::from_fn(|i| length[i]));
        let body = usize::try_from(length).ok().filter(|n| (INLINE + 1..=MAX_BODY).contains(n)).ok_or_else(nonsense)?;
        let head = Head { len: (HEAD + body) as u32, flags: 0, ..Head::read(&std::array::from_fn(|i| head[i])) };
        self.head = head.bytes().to_vec();
        (self.body, self.filling) = (body, filled(body) - body);
        self.cursor.long = self.cursor.long.saturating_add(length);
        self.cursor.give_back(&self.memory, self.cursor.position + filled(HEAD + 8) as u64);
        (self.end, self.copied) = (self.cursor.position, self.cursor.position);
        Ok(true)
    }
}

impl Ahead for Calls {
    fn is_ready(&self) -> bool {
        let begun = self.copied != self.end || !self.head.is_empty() || self.body + self.filling > 0;
        begun || first_word(&self.memory, self.cursor.position).load(Ordering::SeqCst) != 0 || self.closed.load(Ordering::Acquire)
    }
}

impl Read for Calls {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        if !self.head.is_empty() {
            let n = to.len().min(self.head.len());
            to[..n].copy_from_slice(&self.head[..n]);
            self.head.drain(..n);
            return Ok(n);
        }
        if self.body > 0 {
            let most = to.len().min(self.body);
            let n = self.bodies.read(&mut to[..most])?;
            self.body -= n;
            return Ok(n);
        }
        if self.filling > 0 {
            let n = to.len().min(self.filling);
            to[..n].fill(0);
            self.filling -= n;
            return Ok(n);
        }
        if self.copied == self.end {
            return if self.more()? { self.read(to) } else { Ok(0) };
        }
        let n = to.len().min((self.end - self.copied) as usize);
        // SAFETY: `end` lies less than the ring's size after the consumer's position, and the memory is mapped twice. Producers
        // leave it alone until it is given back; if they do not, other bytes are copied.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.ring_at(self.copied), to.as_mut_ptr(), n) };
        self.copied += n as u64;
        if self.copied == self.end {
            self.cursor.give_back(&self.memory, self.end);
        }
        Ok(n)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
