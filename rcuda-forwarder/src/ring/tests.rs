//! Tests of both ways of draining a ring.

use super::*;
use crate::inbox::Inbox;
use std::sync::Arc;
use std::thread;

/// Consumes into a list of (header, body) until stopped.
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

/// A body that contains its producer, its number and its length.
fn body(producer: u32, n: u32, bytes: usize) -> Vec<u8> {
    let mut b = [producer.to_le_bytes(), n.to_le_bytes()].concat();
    b.resize(bytes.max(8), (producer ^ n) as u8);
    b
}

/// A worker's side: reads frames from the stream until the connection is closed.
fn collect_shared(memory: Arc<Memory>, closed: Closed, pause: Duration) -> thread::JoinHandle<Vec<(Head, Vec<u8>)>> {
    thread::spawn(move || {
        let mut inbox = Inbox::new(Calls::new(memory, closed));
        let (mut out, mut long) = (Vec::new(), Vec::new());
        while let Some(head) = inbox.head::<HEAD>().unwrap() {
            thread::sleep(pause);
            let head = Head::read(&head);
            let bytes = head.body().unwrap();
            inbox
                .with(filled(bytes), &mut long, |b| {
                    assert!(b[bytes..].iter().all(|b| *b == 0), "the filling is zero");
                    out.push((head, b[..bytes].to_vec()));
                })
                .unwrap();
        }
        out
    })
}

fn many(capacity: usize, producers: u32, each: u32, pause: Duration, size: fn(u32) -> usize) {
    let ring = Arc::new(Ring::new(capacity).unwrap());
    let consumer = collect(ring.clone(), pause);
    produce(&ring, producers, each, size);
    ring.stop();
    let got = consumer.join().unwrap();
    check(&got, producers, each, size);
    check_taken(&ring, &got);
    for pipe in [4096, 1 << 20] {
        let (memory, closed) = (Arc::new(Memory::small(capacity, pipe)), Closed::default());
        let ring = Arc::new(Ring::shared(memory.clone(), closed.clone()));
        let consumer = collect_shared(memory, closed.clone(), pause);
        produce(&ring, producers, each, size);
        closed.store(true, Ordering::SeqCst);
        ring.stop();
        let got = consumer.join().unwrap();
        check(&got, producers, each, size);
        check_taken(&ring, &got);
    }
}

/// What the consumer says that it has taken. The word for a long body is in the ring as well.
fn check_taken(ring: &Ring, got: &[(Head, Vec<u8>)]) {
    let (calls, bytes) = ring.taken();
    let wanted: u64 = got.iter().map(|(_, body)| (HEAD + body.len()) as u64).sum();
    assert_eq!(calls, got.len() as u64);
    assert!((wanted..=wanted + 16 * calls).contains(&bytes), "{bytes} of {wanted}");
}

fn produce(ring: &Arc<Ring>, producers: u32, each: u32, size: fn(u32) -> usize) {
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
}

fn check(got: &[(Head, Vec<u8>)], producers: u32, each: u32, size: fn(u32) -> usize) {
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

/// Reads from memory that the other side has filled with `fill`: the result is an error, or bytes; never a crash, never
/// more bytes than there can be.
fn reads(fill: impl FnOnce(&Memory)) -> io::Result<usize> {
    let memory = Arc::new(Memory::small(4 * INLINE, 4096));
    fill(&memory);
    let closed = Closed::default();
    closed.store(true, Ordering::SeqCst);
    let mut calls = Calls::new(memory, closed);
    let mut buffer = vec![0; 4 * INLINE];
    let mut all = 0;
    loop {
        match calls.read(&mut buffer)? {
            0 => return Ok(all),
            n => all += n,
        }
        assert!(all <= 64 << 20, "it reads for ever");
    }
}

fn write(memory: &Memory, at: u64, word: u64) {
    first_word(memory, at).store(word, Ordering::SeqCst);
}

#[test]
fn what_a_hostile_client_writes_harms_nobody_else() {
    let head = |len: u64, flags: u64| len | flags << 48;
    for len in [1, 7, HEAD as u64 - 1, (HEAD + INLINE) as u64 + 1, u64::from(u32::MAX)] {
        assert!(reads(|m| write(m, 0, head(len, 0))).is_err(), "{len}");
    }
    for length in [0, 1, INLINE as u64, MAX_BODY as u64 + 1, u64::MAX] {
        let long = |m: &Memory| {
            write(m, HEAD as u64, length);
            write(m, 0, head(HEAD as u64 + 8, u64::from(ELSEWHERE)));
        };
        assert!(reads(long).is_err(), "a long body of {length}");
    }
    // A body that never arrives, and false positions.
    let missing = |m: &Memory| {
        write(m, HEAD as u64, INLINE as u64 + 1);
        write(m, 0, head(HEAD as u64 + 8, u64::from(ELSEWHERE)));
    };
    assert_eq!(reads(missing).unwrap(), HEAD);
    let lying = |m: &Memory| {
        missing(m);
        m.pipe_words(Which::Bodies).written.0.store(u64::MAX, Ordering::SeqCst);
    };
    assert!(reads(lying).is_err());
    // Random contents.
    let mut random = 7u64;
    for _ in 0..300 {
        let noise = |m: &Memory| {
            for at in (0..m.ring_bytes()).step_by(8) {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                write(m, at, if random & 3 == 0 { random >> 40 } else { random >> 2 });
            }
        };
        let _ = reads(noise);
    }
}

#[test]
fn frames_that_change_while_they_are_read_stay_bytes() {
    let memory = Arc::new(Memory::small(4 * INLINE, 4096));
    // So that no thread waits for what does not arrive.
    let closed = Arc::new(AtomicBool::new(true));
    let stop = Arc::new(AtomicBool::new(false));
    let vandal = {
        let (memory, stop) = (memory.clone(), stop.clone());
        thread::spawn(move || {
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let len = [32, 31, 0, u64::from(u32::MAX), 65_000][n as usize % 5];
                write(&memory, n * 32 % memory.ring_bytes(), len | (n & 1) << 63);
                memory.ring_words().tail.0.store(n, Ordering::Relaxed);
            }
        })
    };
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        let mut calls = Calls::new(memory.clone(), closed.clone());
        let mut buffer = [0; 5000];
        // Until it finds an invalid value.
        for _ in 0..1000 {
            if !matches!(calls.read(&mut buffer), Ok(1..)) {
                break;
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    vandal.join().unwrap();
}

#[test]
fn a_worker_that_lies_about_its_position_only_stops_its_job() {
    let (memory, closed) = (Arc::new(Memory::small(4 * INLINE, 4096)), Closed::default());
    let ring = Arc::new(Ring::shared(memory.clone(), closed.clone()));
    for tail in [u64::MAX, 1 << 40, 9] {
        memory.ring_words().tail.0.store(tail, Ordering::SeqCst);
        let pushing = {
            let ring = ring.clone();
            thread::spawn(move || ring.push(1, 0, &[&[1; 100]]))
        };
        thread::sleep(Duration::from_millis(20));
        closed.store(true, Ordering::SeqCst);
        // It was added, or there was no room until the end: either is correct.
        let _ = pushing.join().unwrap();
        closed.store(false, Ordering::SeqCst);
    }
}

#[test]
fn a_call_for_a_position_is_put_there_or_nowhere() {
    let ring = Arc::new(Ring::new(4 * INLINE).unwrap());
    let span = ring.push(1, 0, &[&[1; 10]]).unwrap();
    assert_eq!(ring.push_at(span.start, 2, &[&[2]]), Ok(None), "something was handed over since");
    let next = ring.push_at(span.end, 3, &[&[3; 5], &[4; 4]]).unwrap().expect("nothing was");
    assert_eq!((next.start, next.end), (span.end, ring.position()));
    assert_eq!(ring.push_at(next.end, 4, &[&[0; INLINE], &[0]]), Ok(None), "too long");
    let consumer = collect(ring.clone(), Duration::ZERO);
    // Of several threads that want a position, one gets it.
    let position = ring.position();
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let ring = ring.clone();
            thread::spawn(move || ring.push_at(position, 5, &[&[n; 3]]).unwrap().is_some())
        })
        .collect();
    assert_eq!(threads.into_iter().map(|t| t.join().unwrap()).filter(|put| *put).count(), 1);
    ring.stop();
    let ids: Vec<u16> = consumer.join().unwrap().iter().map(|(head, _)| head.id).collect();
    assert_eq!(ids, [1, 3, 5]);
}

#[test]
fn what_nobody_waits_for_is_taken_soon_all_the_same() {
    let ring = Arc::new(Ring::new(4 * INLINE).unwrap());
    let consumer = collect(ring.clone(), Duration::ZERO);
    for pause in [0, 20, 100, 300, 2000, 30_000] {
        for _ in 0..20 {
            ring.push(1, 0, &[&[1; 10]]).unwrap();
            let (position, began) = (ring.position(), Instant::now());
            // With a generous limit, because the machine may be busy.
            while ring.words().tail.0.load(Ordering::SeqCst) != position {
                assert!(began.elapsed() < Duration::from_secs(120), "nobody takes it, {pause} us after the one before");
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(pause));
        }
    }
    ring.stop();
    assert_eq!(consumer.join().unwrap().len(), 120);
}

/// Memory whose second page cannot be read.
fn half_readable() -> &'static [u8] {
    let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping that stays; its first page is readable. The slice over both is what a program's bad pointer looks like.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_NONE, none, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(at, 4096, libc::PROT_READ), 0);
        std::slice::from_raw_parts(at.cast(), 8192)
    }
}

/// Number of threads that have accessed unreadable memory.
static FAULTED: AtomicU32 = AtomicU32::new(0);

/// Like a program's handler that leaves a call by `siglongjmp`: it never returns to the fault.
extern "C" fn never_return(_: i32) {
    FAULTED.fetch_add(1, Ordering::SeqCst);
    loop {
        // SAFETY: the call has no preconditions.
        unsafe { libc::pause() };
    }
}

#[test]
fn a_source_that_faults_holds_nobody_up() {
    let bad = half_readable();
    // SAFETY: the handler only counts and waits; nothing else in this process faults on purpose.
    unsafe { libc::signal(libc::SIGSEGV, never_return as *const () as usize) };
    let (memory, closed) = (Arc::new(Memory::small(4 * INLINE, 4096)), Closed::default());
    let apart = Arc::new(Ring::shared(memory.clone(), closed.clone()));
    let theirs = collect_shared(memory, closed.clone(), Duration::ZERO);
    let own = Arc::new(Ring::new(4 * INLINE).unwrap());
    let ours = collect(own.clone(), Duration::ZERO);
    let long = vec![bad; INLINE / bad.len() + 1];
    for ring in [&apart, &own] {
        // A body in the ring, one that follows in a pipe or is lent, and one at a known position.
        let ways: [fn(&Ring, &[&[u8]]); 3] = [
            |ring, parts| drop(ring.push(1, NO_TICKET, &parts[..1])),
            |ring, parts| drop(ring.push(2, NO_TICKET, parts)),
            |ring, parts| drop(ring.push_at(ring.position(), 3, &parts[..1])),
        ];
        for way in ways {
            let (ring, parts, before) = (ring.clone(), long.clone(), FAULTED.load(Ordering::SeqCst));
            thread::spawn(move || way(&ring, &parts));
            while FAULTED.load(Ordering::SeqCst) == before {
                thread::yield_now();
            }
        }
        ring.push(9, NO_TICKET, &[b"later"]).unwrap();
    }
    closed.store(true, Ordering::SeqCst);
    apart.stop();
    own.stop();
    // Without the read beforehand these would wait forever: the limit only ends the test.
    let began = Instant::now();
    while !(theirs.is_finished() && ours.is_finished()) {
        assert!(began.elapsed() < Duration::from_secs(60), "a call that was left by its program holds up the ones behind it");
        thread::sleep(Duration::from_millis(5));
    }
    for got in [theirs.join().unwrap(), ours.join().unwrap()] {
        assert_eq!(got.iter().map(|(head, body)| (head.id, &body[..])).collect::<Vec<_>>(), [(9, &b"later"[..])]);
    }
}
