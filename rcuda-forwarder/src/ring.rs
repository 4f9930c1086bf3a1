//! The ring between the program's threads and the sender: many producers, one consumer.
//!
//! A producer reserves its bytes with one `fetch_add`; the position it gets is the call's place in the total order. It writes
//! the body, then publishes by storing the first word of the head (never zero, because it holds the length). The consumer
//! takes published frames in order, sends them from where they lie, and clears the memory before it gives it back, so that
//! an unpublished frame reads as zero. The memory is mapped twice in a row: no frame is ever split.
//!
//! A body longer than [`INLINE`] stays where the caller has it: the ring holds a reference, and the caller waits until the
//! consumer has sent it. The order is the same.

use crate::frame::{HEAD, Head, MAX_BODY, filled};
use crate::futex;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// Longest body that is copied into the ring, in bytes.
pub const INLINE: usize = 64 << 10;
/// Bytes of a connection's ring.
pub const CAPACITY: usize = 2 << 20;
/// Set in the flags of a frame in the ring whose body lies elsewhere. Never sent.
const ELSEWHERE: u16 = 0x8000;
/// Bytes that the consumer takes at once, at most (and half of the ring): producers get room while it sends.
const BATCH: u64 = 256 << 10;
/// How long the consumer looks for the next frame before it sleeps.
const SPIN: Duration = Duration::from_micros(10);
/// How long anybody sleeps before looking again whether the other side is still there.
const LOOK: Duration = Duration::from_millis(50);

/// Why a frame was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The consumer has gone.
    #[error("nobody sends any more")]
    Gone,
    /// Longer than [`MAX_BODY`].
    #[error("a body of more than {MAX_BODY} bytes")]
    TooLong,
}

/// A word on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// The ring. Not inherited by forked children.
#[derive(Debug)]
pub struct Ring {
    base: *mut u8,
    capacity: u64,
    /// Bytes reserved so far.
    head: Apart<AtomicU64>,
    /// Bytes consumed so far.
    tail: Apart<AtomicU64>,
    /// 1 while the consumer sleeps or is about to.
    asleep: Apart<AtomicU32>,
    /// Producers that wait for room.
    crowd: AtomicU32,
    /// Counts up when there is room for those.
    room: AtomicU32,
    /// Counts up when a body that lay elsewhere has been sent.
    sent: AtomicU32,
    /// Nobody consumes any more.
    gone: AtomicBool,
    /// The consumer should end.
    stop: AtomicBool,
}

// SAFETY: the memory behind `base` is only reached by the protocol above: reserved bytes belong to one producer until they
// are published, published ones to the consumer.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// A call whose body lies with the caller; `done` says that it is no longer needed.
struct Elsewhere<'a> {
    parts: &'a [&'a [u8]],
    done: AtomicBool,
}

impl Ring {
    /// A ring of `capacity` bytes: a power of two, at least four times [`INLINE`].
    pub fn new(capacity: usize) -> io::Result<Ring> {
        if !capacity.is_power_of_two() || capacity < 4 * INLINE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let base = map_twice(capacity)?;
        Ok(Ring {
            base,
            capacity: capacity as u64,
            head: Apart::default(),
            tail: Apart::default(),
            asleep: Apart::default(),
            crowd: AtomicU32::new(0),
            room: AtomicU32::new(0),
            sent: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    fn at(&self, position: u64) -> *mut u8 {
        // SAFETY: the remainder is inside the first of the two mappings.
        unsafe { self.base.add((position & (self.capacity - 1)) as usize) }
    }

    fn first_word(&self, position: u64) -> &AtomicU64 {
        // SAFETY: positions are multiples of 8 and the memory lives as long as `self`; every access to a first word before
        // its frame is taken is atomic.
        unsafe { AtomicU64::from_ptr(self.at(position).cast()) }
    }

    /// Puts a call in. Does not wait, unless the ring is full or the body is longer than [`INLINE`].
    pub fn push(&self, id: u16, ticket: u64, parts: &[&[u8]]) -> Result<(), PushError> {
        let body = parts.iter().try_fold(0usize, |n, p| n.checked_add(p.len())).filter(|n| *n <= MAX_BODY);
        let body = body.ok_or(PushError::TooLong)?;
        if self.gone.load(Ordering::Relaxed) {
            return Err(PushError::Gone);
        }
        if body > INLINE {
            return self.push_elsewhere(id, ticket, parts);
        }
        let head = Head { len: (HEAD + body) as u32, id, flags: 0, seq: 0, ticket };
        self.put(head, parts)
    }

    fn push_elsewhere(&self, id: u16, ticket: u64, parts: &[&[u8]]) -> Result<(), PushError> {
        let job = Elsewhere { parts, done: AtomicBool::new(false) };
        let reference = (&raw const job) as u64;
        let head = Head { len: (HEAD + size_of::<u64>()) as u32, id, flags: ELSEWHERE, seq: 0, ticket };
        self.put(head, &[&reference.to_ne_bytes()])?;
        // `job` must stay where it is until the consumer has done with it, or is no more.
        loop {
            let seen = self.sent.load(Ordering::Acquire);
            if job.done.load(Ordering::Acquire) {
                return Ok(());
            }
            if self.gone.load(Ordering::Acquire) {
                return if job.done.load(Ordering::Acquire) { Ok(()) } else { Err(PushError::Gone) };
            }
            futex::wait(&self.sent, seen, LOOK);
        }
    }

    fn put(&self, head: Head, parts: &[&[u8]]) -> Result<(), PushError> {
        let bytes = filled(head.len as usize) as u64;
        let position = self.head.0.fetch_add(bytes, Ordering::Relaxed);
        if position + bytes > self.tail.0.load(Ordering::Acquire) + self.capacity {
            self.wait_for_room(position + bytes)?;
        }
        let at = self.at(position);
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
        // Publishing and looking for a sleeper must not change places: both are SeqCst, as on the consumer's side.
        self.first_word(position).swap(head.word().to_le(), Ordering::SeqCst);
        if self.asleep.0.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
        Ok(())
    }

    #[cold]
    fn wake(&self) {
        if self.asleep.0.swap(0, Ordering::SeqCst) != 0 {
            futex::wake(&self.asleep.0);
        }
    }

    #[cold]
    fn wait_for_room(&self, end: u64) -> Result<(), PushError> {
        let room = |ring: &Ring| end <= ring.tail.0.load(Ordering::SeqCst) + ring.capacity;
        for _ in 0..200 {
            if room(self) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.crowd.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            let seen = self.room.load(Ordering::SeqCst);
            if room(self) {
                break Ok(());
            }
            if self.gone.load(Ordering::Acquire) {
                break Err(PushError::Gone);
            }
            futex::wait(&self.room, seen, LOOK);
        };
        self.crowd.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Asks the consumer to end once it has taken what is published.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether the consumer has gone.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped with this length by `map_twice`; nobody borrows the ring any more.
        unsafe { libc::munmap(self.base.cast(), 2 * self.capacity as usize) };
    }
}

/// Maps the same `bytes` of memory twice, one after the other.
fn map_twice(bytes: usize) -> io::Result<*mut u8> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"mrcuda-ring".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain system call on a descriptor of ours.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh reservation at an address that the kernel chooses.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), 2 * bytes, libc::PROT_NONE, none, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let half = |i: usize| {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: replaces one half of the reservation made above.
        unsafe { libc::mmap(base.byte_add(i * bytes), bytes, prot, flags, fd.as_raw_fd(), 0) }
    };
    let ok = half(0) != libc::MAP_FAILED
        && half(1) != libc::MAP_FAILED
        // A child of fork must not write into its parent's connection.
        // SAFETY: both halves are ours.
        && unsafe { libc::madvise(base, 2 * bytes, libc::MADV_DONTFORK) } == 0;
    if !ok {
        let why = io::Error::last_os_error();
        // SAFETY: the reservation made above.
        unsafe { libc::munmap(base, 2 * bytes) };
        return Err(why);
    }
    Ok(base.cast())
}

/// What the consumer has to send next.
#[derive(Debug)]
pub enum Taken<'a> {
    /// Frames, ready to be sent as they are.
    Frames(&'a [u8]),
    /// A frame whose body lies with its caller: head, parts, filling.
    Long([u8; HEAD], &'a [&'a [u8]], &'a [u8]),
}

/// The only consumer of a ring. When it is dropped, producers stop waiting and get [`PushError::Gone`].
#[derive(Debug)]
pub struct Consumer<'r> {
    ring: &'r Ring,
    position: u64,
    seq: u64,
}

impl Drop for Consumer<'_> {
    fn drop(&mut self) {
        let ring = self.ring;
        ring.gone.store(true, Ordering::SeqCst);
        ring.room.fetch_add(1, Ordering::SeqCst);
        ring.sent.fetch_add(1, Ordering::SeqCst);
        futex::wake(&ring.room);
        futex::wake(&ring.sent);
    }
}

impl<'r> Consumer<'r> {
    /// The consumer of `ring`.
    ///
    /// # Safety
    /// A ring has one consumer in its life.
    pub unsafe fn new(ring: &'r Ring) -> Consumer<'r> {
        Consumer { ring, position: 0, seq: 0 }
    }

    /// Waits for frames and hands them to `send`. `None`: told to stop, and nothing is left.
    pub fn take<E>(&mut self, send: impl FnOnce(Taken<'_>) -> Result<(), E>) -> Option<Result<(), E>> {
        let first = self.wait()?;
        if (first >> 48) as u16 & ELSEWHERE != 0 {
            return Some(self.take_long(send));
        }
        let start = self.position;
        let mut end = start;
        let limit = BATCH.min(self.ring.capacity / 2);
        let mut word = first;
        while word != 0 && (word >> 48) as u16 & ELSEWHERE == 0 && end - start < limit {
            self.number(end);
            end += filled(word as u32 as usize) as u64;
            // Less than the whole ring lies between them, so `end` is not yet the place of `start` again.
            word = u64::from_le(self.ring.first_word(end).load(Ordering::Acquire));
        }
        let bytes = (end - start) as usize;
        // SAFETY: published frames from `start` to `end` belong to the consumer; contiguous thanks to the second mapping.
        let result = send(Taken::Frames(unsafe { std::slice::from_raw_parts(self.ring.at(start), bytes) }));
        self.give_back(bytes);
        Some(result)
    }

    fn take_long<E>(&mut self, send: impl FnOnce(Taken<'_>) -> Result<(), E>) -> Result<(), E> {
        self.number(self.position);
        let at = self.ring.at(self.position);
        // SAFETY: a published frame of this kind holds its head and the reference that `push_elsewhere` put there.
        let (head, reference) = unsafe { (at.cast::<[u8; HEAD]>().read(), at.add(HEAD).cast::<u64>().read_unaligned()) };
        // SAFETY: the caller keeps the job until `done` is set or this consumer is dropped.
        let job = unsafe { &*(reference as *const Elsewhere<'_>) };
        let body = job.parts.iter().map(|p| p.len()).sum::<usize>();
        let head = Head { len: (HEAD + body) as u32, flags: 0, ..Head::read(&head) };
        let filling = [0; 8];
        let result = send(Taken::Long(head.bytes(), job.parts, &filling[..filled(body) - body]));
        if result.is_ok() {
            // The last touch: from here on the caller may be gone.
            job.done.store(true, Ordering::Release);
            self.ring.sent.fetch_add(1, Ordering::SeqCst);
            futex::wake(&self.ring.sent);
        }
        self.give_back(filled(HEAD + size_of::<u64>()));
        result
    }

    fn number(&mut self, position: u64) {
        // SAFETY: the frame at `position` is published, so it belongs to the consumer; its second word is the number's.
        unsafe { self.ring.at(position).add(8).cast::<u64>().write(self.seq.to_le()) };
        self.seq += 1;
    }

    /// Clears the memory that was taken and lets producers have it.
    fn give_back(&mut self, bytes: usize) {
        // SAFETY: taken by the consumer and not yet given back.
        unsafe { std::ptr::write_bytes(self.ring.at(self.position), 0, bytes) };
        self.position += bytes as u64;
        self.ring.tail.0.store(self.position, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.ring.crowd.load(Ordering::SeqCst) != 0 {
            self.ring.room.fetch_add(1, Ordering::SeqCst);
            futex::wake(&self.ring.room);
        }
    }

    /// The first word of the next frame.
    fn wait(&self) -> Option<u64> {
        let ring = self.ring;
        let word = || u64::from_le(ring.first_word(self.position).load(Ordering::SeqCst));
        let mut began = None;
        loop {
            for _ in 0..50 {
                match word() {
                    0 => std::hint::spin_loop(),
                    found => return Some(found),
                }
            }
            if began.get_or_insert_with(Instant::now).elapsed() < SPIN {
                continue;
            }
            ring.asleep.0.store(1, Ordering::SeqCst);
            match word() {
                0 if ring.stop.load(Ordering::SeqCst) => return None,
                0 => futex::wait(&ring.asleep.0, 1, Duration::from_secs(1)),
                _ => {}
            }
            ring.asleep.0.store(0, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    /// Consumes into a list of (head, body) until told to stop.
    fn collect(ring: Arc<Ring>, pause: Duration) -> thread::JoinHandle<Vec<(Head, Vec<u8>)>> {
        thread::spawn(move || {
            // SAFETY: the only one.
            let mut consumer = unsafe { Consumer::new(&ring) };
            let mut out = Vec::new();
            while let Some(r) = consumer.take(|t| -> Result<(), ()> {
                thread::sleep(pause);
                match t {
                    Taken::Frames(mut bytes) => {
                        while let Some((head, rest)) = bytes.split_first_chunk() {
                            let head = Head::read(head);
                            let body = head.body().unwrap();
                            out.push((head, rest[..body].to_vec()));
                            assert!(rest[body..filled(body)].iter().all(|b| *b == 0), "the filling is zero");
                            bytes = &rest[filled(body)..];
                        }
                    }
                    Taken::Long(head, parts, filling) => {
                        let body = parts.concat();
                        assert_eq!((body.len() + filling.len()) % 8, 0);
                        out.push((Head::read(&head), body));
                    }
                }
                Ok(())
            }) {
                r.unwrap();
            }
            out
        })
    }

    /// A body that tells its producer, its number and its own length.
    fn body(producer: u32, n: u32, bytes: usize) -> Vec<u8> {
        let mut b = [producer.to_le_bytes(), n.to_le_bytes()].concat();
        b.resize(bytes.max(8), (producer ^ n) as u8);
        b
    }

    fn many(capacity: usize, producers: u32, each: u32, pause: Duration, size: fn(u32) -> usize) {
        let ring = Arc::new(Ring::new(capacity).unwrap());
        let consumer = collect(ring.clone(), pause);
        let threads: Vec<_> = (0..producers)
            .map(|p| {
                let ring = ring.clone();
                thread::spawn(move || {
                    for n in 0..each {
                        let b = body(p, n, size(n));
                        let (x, y) = b.split_at(b.len() / 3);
                        ring.push(p as u16, u64::from(n), &[x, &[], y]).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        ring.stop();
        let got = consumer.join().unwrap();
        assert_eq!(got.len() as u32, producers * each);
        let mut next = vec![0; producers as usize];
        for (i, (head, bytes)) in got.iter().enumerate() {
            assert_eq!(head.seq, i as u64, "the order of sending is the total order");
            let n = &mut next[head.id as usize];
            assert_eq!(head.ticket, u64::from(*n), "a producer's calls keep their order");
            assert_eq!(*bytes, body(head.id.into(), *n, size(*n)));
            assert_eq!(head.flags, 0);
            *n += 1;
        }
    }

    #[test]
    fn many_producers_and_many_laps() {
        many(4 * INLINE, 8, 20_000, Duration::ZERO, |n| 8 + (n as usize * 7) % 500);
    }

    #[test]
    fn a_full_ring_makes_producers_wait() {
        many(4 * INLINE, 6, 60, Duration::from_millis(2), |n| if n % 3 == 0 { INLINE } else { 20_000 });
    }

    #[test]
    fn long_bodies_keep_their_place_in_the_order() {
        many(4 * INLINE, 4, 300, Duration::ZERO, |n| if n % 5 == 0 { INLINE + 1 + n as usize * 997 } else { 40 });
    }

    #[test]
    fn producers_of_a_dead_ring_return() {
        let ring = Arc::new(Ring::new(4 * INLINE).unwrap());
        // SAFETY: the only one.
        let consumer = unsafe { Consumer::new(&ring) };
        let full = {
            let ring = ring.clone();
            thread::spawn(move || (0..100).find_map(|_| ring.push(1, 0, &[&[7; INLINE]]).err()))
        };
        let long = {
            let ring = ring.clone();
            thread::spawn(move || ring.push(1, 0, &[&vec![7; 10 << 20]]))
        };
        thread::sleep(Duration::from_millis(100));
        assert!(!full.is_finished() && !long.is_finished());
        drop(consumer);
        assert_eq!(full.join().unwrap(), Some(PushError::Gone));
        assert_eq!(long.join().unwrap(), Err(PushError::Gone));
        assert!(ring.is_gone());
    }

    #[test]
    fn a_failed_send_ends_the_wait_of_a_long_body() {
        let ring = Arc::new(Ring::new(4 * INLINE).unwrap());
        let long = {
            let ring = ring.clone();
            thread::spawn(move || ring.push(1, 0, &[&vec![7; 1 << 20]]))
        };
        // SAFETY: the only one.
        let mut consumer = unsafe { Consumer::new(&ring) };
        assert_eq!(consumer.take(|_| Err("broken")), Some(Err("broken")));
        drop(consumer);
        assert_eq!(long.join().unwrap(), Err(PushError::Gone));
    }

    #[test]
    fn sizes_are_checked() {
        for bad in [0, INLINE, 5 * INLINE] {
            assert!(Ring::new(bad).is_err());
        }
        let ring = Ring::new(4 * INLINE).unwrap();
        let gigabyte = vec![0; 1 << 20];
        let parts = vec![&gigabyte[..]; 1025];
        assert_eq!(ring.push(1, 0, &parts), Err(PushError::TooLong));
    }
}
