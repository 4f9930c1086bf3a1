//! The job's end against a worker that the test plays.

use super::super::bulk_copy::start;
use super::super::tests::linked;
use super::super::{BulkCopy, Link, Reply};
use super::*;
use crate::conn::pair;
use crate::frame::{AnswerHead, HEAD as FRAME, Head as Frame};
use crate::inbox::Inbox;
use crate::rdma::DATA_RING;
use crate::rdma::queue::Memory;
use crate::rdma::stream::tests::{Nature, connections};
use crate::rdma::stream::tests::{host, owner};
use cuda_api::code::{self, Code};
use cuda_api::ops::{BulkCopy as Operation, id};
use cuda_api::wire::Wire;
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);
const GUARD: u8 = 0xa7;

/// A worker: the connection of the calls, and one connection in each direction.
struct Peer {
    calls: Inbox<Conn>,
    out: Conn,
    ins: Conn,
}

fn open() -> (Arc<Link>, Conn, Peer) {
    open_over([pair(), pair()])
}

/// As [`open`]; each connection in the given way.
fn open_over(pairs: [(Conn, Conn); 2]) -> (Arc<Link>, Conn, Peer) {
    let (link, calls) = linked(LONG);
    let answers = Conn::new(calls.socket().unwrap().try_clone_to_owned().unwrap());
    let mut pairs = pairs.into_iter().zip([true, false]);
    let mut ends = [(); 2].map(|()| {
        let ((ours, theirs), to_device) = pairs.next().unwrap();
        start(&link.shared, vec![Arc::new(ours)], to_device).unwrap();
        theirs.limit_silence(LONG).unwrap();
        Some(theirs)
    });
    let (ins, out) = (ends[0].take().unwrap(), ends[1].take().unwrap());
    // The worker has an area.
    link.shared.common.bulk.note_areas(Some(1));
    (link, answers, Peer { calls: Inbox::new(calls), out, ins })
}

/// Of bytes that travel over the connection.
fn head(token: u64, offset: u64, bytes: u64) -> Head {
    Head { token, offset, bytes, via: Via::Connection }
}

impl Peer {
    /// The next copy that the job requests: its reply id and what it is.
    fn requested(&mut self) -> (u16, u64, Operation) {
        let head = Frame::read(&self.calls.head::<FRAME>().unwrap().unwrap());
        let mut body = Vec::new();
        self.calls.append(&mut body, head.body().unwrap().next_multiple_of(8)).unwrap();
        (head.id, head.ticket, Operation::get(&mut &body[..]).unwrap())
    }

    fn ask(&mut self, token: u64, offset: u64, bytes: u64) {
        self.ins.write_all(&head(token, offset, bytes).bytes()).unwrap();
    }

    /// What the job sends for what was asked.
    fn asked(&mut self) -> Vec<u8> {
        let mut n = [0; 8];
        fill(&self.ins, &mut n).unwrap();
        let mut bytes = vec![0; u64::from_le_bytes(n) as usize];
        fill(&self.ins, &mut bytes).unwrap();
        bytes
    }

    fn send(&mut self, token: u64, offset: u64, bytes: &[u8]) {
        let head = self::head(token, offset, bytes.len() as u64);
        self.out.write_pieces(&[&head.bytes(), bytes]).unwrap();
    }

    fn taken(&mut self) -> u64 {
        let mut n = [0; 8];
        fill(&self.out, &mut n).unwrap();
        u64::from_le_bytes(n)
    }
}

fn answer(conn: &mut Conn, rc: Code, ticket: u64) {
    conn.write_all(&AnswerHead::new(rc, ticket, 0).unwrap().bytes()).unwrap();
}

fn memory(host: &mut [u8], to_device: bool) -> BulkMemory {
    let (bytes, host) = (host.len() as u64, host.as_mut_ptr());
    BulkMemory { host, device: 1 << 30, bytes, stream: 9, to_device, late: false, is_registered: false, before_sent: None }
}

fn request(link: &Link, memory: &BulkMemory) -> (Reply, BulkCopy) {
    // SAFETY: the memory of the tests outlives their copies.
    unsafe { link.request_bulk(memory) }.unwrap().unwrap()
}

#[test]
fn the_worker_decides_what_is_carried_when() {
    let (link, mut calls, mut peer) = open();
    let mut from: Vec<u8> = (0..100).collect();
    let (reply, copy) = request(&link, &memory(&mut from, true));
    let (call, ticket, op) = peer.requested();
    let Operation { token, address, bytes, stream, late } = op;
    assert_eq!((call, address, bytes, stream, late), (id::BULK_IN, 1 << 30, 100, 9, false));
    peer.ask(token, 60, 40);
    peer.ask(token, 0, 60);
    assert_eq!(peer.asked(), from[60..]);
    assert_eq!(peer.asked(), from[..60]);
    copy.wait_sent();
    answer(&mut calls, code::SUCCESS, ticket);
    assert_eq!(reply.wait().unwrap().0, code::SUCCESS);
    assert!(!copy.finish() && copy.over().load(Ordering::Acquire));

    let mut to = [GUARD; 100];
    let (reply, copy) = request(&link, &memory(&mut to[10..90], false));
    let (call, ticket, op) = peer.requested();
    assert_eq!(call, id::BULK_OUT);
    peer.send(op.token, 30, &[3; 50]);
    peer.send(op.token, 0, &[4; 30]);
    assert_eq!((peer.taken(), peer.taken()), (50, 30));
    answer(&mut calls, code::SUCCESS, ticket);
    assert_eq!(reply.wait().unwrap().0, code::SUCCESS);
    assert!(!copy.finish());
    assert_eq!(
        (&to[..10], &to[10..40], &to[40..90], &to[90..]),
        (&[GUARD; 10][..], &[4; 30][..], &[3; 50][..], &[GUARD; 10][..])
    );
}

/// A worker over RDMA that carries a whole copy in segments; what it has received of one to the device.
/// `direct`: its bytes go to memory that the worker has registered.
fn carry_all(peer: &mut Peer, op: &Operation, (to_device, direct): (bool, bool), sent: &[u8]) -> io::Result<Vec<u8>> {
    let mut got = vec![0; op.bytes as usize];
    let area: Arc<Vec<AtomicU8>> = Arc::new(got.iter().map(|_| AtomicU8::new(0)).collect());
    let address = area.as_ptr() as u64;
    let keys = if direct { Some(peer.ins.rdma().unwrap().register(host(&area), owner(&area))?) } else { None };
    let via =
        |offset: u64| keys.map_or(Via::Connection, |keys| Via::Rdma(Memory { address: address + offset, key: keys.theirs }));
    // As the worker: the next segment is asked for before the bytes of the first one have arrived.
    let starts: Vec<u64> = (0..op.bytes).step_by(SEGMENT as usize).collect();
    let head = |offset: u64| Head { token: op.token, offset, bytes: SEGMENT.min(op.bytes - offset), via: via(offset) };
    for offset in starts.iter().copied() {
        let (head, at) = (head(offset), offset as usize);
        let range = at..at + head.bytes as usize;
        let mut n = [0; 8];
        if to_device {
            (&peer.ins).write_all(&head.bytes())?;
            fill(&peer.ins, &mut n)?;
            assert_eq!(u64::from_le_bytes(n), head.bytes);
            if direct {
                peer.ins.skip(range.len())?;
                got[range.clone()].iter_mut().zip(&area[range]).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
            } else {
                fill(&peer.ins, &mut got[range])?;
            }
        } else {
            peer.out.write_pieces(&[&head.bytes(), &sent[range]])?;
            fill(&peer.out, &mut n)?;
            assert_eq!(u64::from_le_bytes(n), head.bytes);
        }
    }
    Ok(got)
}

const SEGMENT: u64 = 300_000;

/// Each of the writes of a large copy may be the one that fails.
#[test]
fn a_large_copy_over_rdma_is_made_or_loses_the_worker_whatever_write_fails() {
    let pattern: Vec<u8> = (0..2_000_000u32).map(|i| (i >> 6) as u8 ^ i as u8).collect();
    for (to_device, direct) in [(true, false), (true, true), (false, false)] {
        let mut made = 0;
        for (seed, writes) in (0..36).step_by(2).chain([usize::MAX]).enumerate() {
            let good = Nature::good(seed as u64 + 1, DATA_RING);
            let (a, b, _carrier) = connections(Nature { delivers: [writes; 2], ..good });
            let (c, d, _other) = connections(good);
            let (link, mut calls, mut peer) = open_over(if to_device { [(a, b), (c, d)] } else { [(c, d), (a, b)] });
            let mut host = vec![GUARD; pattern.len() + 128];
            let inside = 64..64 + pattern.len();
            if to_device {
                host[inside.clone()].copy_from_slice(&pattern);
            }
            let (reply, copy) = request(&link, &memory(&mut host[inside.clone()], to_device));
            let (_, ticket, op) = peer.requested();
            let carried = carry_all(&mut peer, &op, (to_device, direct), &pattern);
            match &carried {
                Ok(got) => {
                    answer(&mut calls, code::SUCCESS, ticket);
                    // A write after the last one that matters may still have failed.
                    let answered = reply.wait().is_ok();
                    assert!(answered || writes != usize::MAX);
                    assert!(!to_device || *got == pattern);
                    made += 1;
                }
                Err(_) => {
                    assert_ne!(writes, usize::MAX);
                    let lost = reply.wait().unwrap_err();
                    assert!(lost.why.contains("large copies"), "{lost}");
                }
            }
            copy.finish();
            assert!(copy.over().load(Ordering::Acquire));
            assert!(host[..64].iter().chain(&host[inside.end..]).all(|b| *b == GUARD));
            if carried.is_ok() {
                assert!(host[inside] == pattern, "{writes} writes");
            } else if !to_device {
                // What has arrived is right, and the rest is as it was.
                assert!(host[inside].iter().zip(&pattern).all(|(is, was)| is == was || *is == GUARD));
            }
        }
        assert!((1..18).contains(&made), "{made} of 19 copies were made");
    }
}

/// Copies of one stream, as many as it takes, and one more.
fn fill_stream(bulk: &Bulk, memory: &BulkMemory) -> Vec<u64> {
    bulk.note_areas(Some(AREAS));
    let fitting = COMMANDS / Sizes::of_process().commands(memory.bytes);
    (0..fitting).map(|_| bulk.begin(memory).unwrap().0).collect()
}

/// A segment of a copy is carried.
fn carry(bulk: &Bulk, token: u64, offset: u64) {
    let head = self::head(token, offset, 1);
    bulk.acquire(&head, true).unwrap().unwrap();
    bulk.release(&head, true);
}

/// A stream takes only so many commands. The next copy waits for the others while they get on.
#[test]
fn a_copy_waits_for_room_in_its_stream() {
    let bulk = Bulk { room_timeout: LONG, ..Bulk::default() };
    let mut from = [7; 100];
    let memory = memory(&mut from, true);
    let copies = fill_stream(&bulk, &memory);
    std::thread::scope(|s| {
        s.spawn(|| {
            carry(&bulk, copies[0], 0);
            bulk.close(copies[0]);
        });
        assert!(bulk.begin(&memory).is_some());
    });
}

/// Progress in other streams is no reason to wait.
#[test]
fn a_copy_does_not_wait_for_a_stream_that_stands_still() {
    let bulk = Bulk::default();
    let mut from = [7; 100];
    let memory = memory(&mut from, true);
    fill_stream(&bulk, &memory);
    let busy = bulk.begin(&BulkMemory { stream: 10, bytes: 100_000, ..memory.clone() }).unwrap().0;
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            for offset in (0..100_000).take_while(|_| !over.load(Ordering::Relaxed)) {
                carry(&bulk, busy, offset);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let began = bulk.begin(&memory);
        over.store(true, Ordering::Relaxed);
        assert!(began.is_none() && bulk.begin(&memory).is_none());
    });
}

#[test]
fn a_copy_that_has_ended_is_neither_read_nor_written() {
    let (link, mut calls, mut peer) = open();
    let mut bytes = [GUARD; 64];
    for to_device in [true, false] {
        let (reply, copy) = request(&link, &memory(&mut bytes, to_device));
        let (_, ticket, op) = peer.requested();
        answer(&mut calls, code::ERROR_ILLEGAL_ADDRESS, ticket);
        assert_eq!(reply.wait().unwrap().0, code::ERROR_ILLEGAL_ADDRESS);
        copy.finish();
        if to_device {
            peer.ask(op.token, 0, 64);
            assert!(peer.asked().is_empty());
        } else {
            peer.send(op.token, 0, &[1; 64]);
            assert_eq!(peer.taken(), 64);
        }
    }
    assert_eq!(bytes, [GUARD; 64]);
}

#[test]
fn an_answer_waits_for_what_is_being_carried() {
    let (link, mut calls, mut peer) = open();
    let mut bytes = vec![GUARD; 1 << 20];
    let (reply, copy) = request(&link, &memory(&mut bytes, false));
    let (_, ticket, op) = peer.requested();
    // A part of the bytes, and the answer too early.
    peer.out.write_all(&head(op.token, 0, 1 << 20).bytes()).unwrap();
    peer.out.write_all(&[1; 1000]).unwrap();
    let until = Instant::now() + LONG;
    while lock(&link.shared.common.bulk.table).writers == 0 {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    answer(&mut calls, code::SUCCESS, ticket);
    reply.wait().unwrap();
    std::thread::scope(|scope| {
        let finish = scope.spawn(|| copy.finish());
        assert!(!copy.over().load(Ordering::Acquire) && !finish.is_finished());
        peer.out.write_all(&vec![2; (1 << 20) - 1000]).unwrap();
        assert!(!finish.join().unwrap());
    });
    assert!(bytes[..1000].iter().all(|b| *b == 1) && bytes[1000..].iter().all(|b| *b == 2));
}

/// A copy to the device whose bytes are being sent, to a peer that does not read them.
fn sending(link: &Link, peer: &mut Peer, bytes: &mut [u8]) -> (BulkCopy, u64) {
    // SAFETY: the memory of the tests outlives their copies.
    let copy = unsafe { link.send_bulk(&memory(bytes, true), |_| {}) }.unwrap().unwrap();
    let (_, ticket, op) = peer.requested();
    peer.ask(op.token, 0, bytes.len() as u64);
    let until = Instant::now() + LONG;
    while lock(&link.shared.common.bulk.table).entries.values().all(|e| e.users == 0) {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    (copy, ticket)
}

#[test]
fn memory_is_used_until_its_bytes_were_sent_whatever_the_worker_answers() {
    for rc in [code::SUCCESS, code::ERROR_ILLEGAL_ADDRESS] {
        let (link, mut calls, mut peer) = open();
        // More than sockets take.
        let mut bytes = vec![GUARD; 8 << 20];
        let address = bytes.as_ptr() as u64;
        let (copy, ticket) = sending(&link, &mut peer, &mut bytes);
        answer(&mut calls, rc, ticket);
        let until = Instant::now() + LONG;
        while !lock(&link.shared.common.bulk.table).entries.values().all(|e| e.is_closed) {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
        link.wait_unused(&(address + (8 << 20)..u64::MAX));
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for ends in [true, false] {
                let (sender, link, copy) = (sender.clone(), &link, &copy);
                scope.spawn(move || {
                    if ends {
                        copy.wait_sent();
                    } else {
                        link.wait_unused(&(address + 5..address + 6));
                    }
                    sender.send(copy.over().load(Ordering::Acquire)).unwrap();
                });
            }
            assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err(), "it is still used");
            assert_eq!(peer.asked().len(), 8 << 20);
            assert_eq!([receiver.recv().unwrap(), receiver.recv().unwrap()], [true; 2]);
        });
    }
}

#[test]
fn a_copy_may_hold_the_last_reference_to_its_link() {
    let (link, mut calls, mut peer) = open();
    let mut bytes = [GUARD; 64];
    let (mut copy, own) = (memory(&mut bytes, true), link.clone());
    copy.before_sent = Some(Arc::new(move |_| assert!(!own.is_lost())));
    // SAFETY: the memory outlives the copy.
    let begun = unsafe { link.send_bulk(&copy, |_| {}) }.unwrap().unwrap();
    let (_, ticket, _) = peer.requested();
    drop((link, copy));
    answer(&mut calls, code::SUCCESS, ticket);
    assert_eq!((&peer.out).read(&mut [0]).unwrap(), 0, "the link has ended, and its connections with it");
    assert!(begun.over().load(Ordering::Acquire));
}

#[test]
fn ranges_that_overlap_are_noticed() {
    let mut ranges = Ranges::default();
    for (range, fits) in [
        (10..20, true),
        (19..20, false),
        (5..11, false),
        (0..30, false),
        (12..15, false),
        (20..25, true),
        (5..10, true),
        (24..26, false),
        (30..40, true),
        (25..30, true),
    ] {
        assert_eq!(ranges.add(range.clone()), fits, "{range:?}");
    }
    assert_eq!(ranges.0.into_iter().collect::<Vec<_>>(), [(5, 40)]);
}

#[test]
fn a_connection_that_ends_in_the_middle_loses_the_worker() {
    for to_device in [true, false] {
        let (link, calls, mut peer) = open();
        let mut bytes = vec![0; 4 << 20];
        let (reply, copy) = request(&link, &memory(&mut bytes, to_device));
        let (_, _, op) = peer.requested();
        if to_device {
            peer.ask(op.token, 0, 4 << 20);
            fill(&peer.ins, &mut [0; 5000]).unwrap();
            peer.ins.shutdown();
        } else {
            peer.out.write_all(&head(op.token, 0, 4 << 20).bytes()).unwrap();
            peer.out.write_all(&[1; 5000]).unwrap();
            peer.out.shutdown();
        }
        let lost = reply.wait().unwrap_err();
        assert!(lost.why.contains("large copies"), "{lost}");
        copy.finish();
        assert!(bytes[5000..].iter().all(|b| *b == 0));
        drop(calls);
    }
}

#[test]
fn nonsense_loses_the_worker_and_reaches_no_other_memory() {
    type Say = fn(&mut Peer, u64);
    let cases: [(bool, Say); 10] = [
        (true, |p, t| p.ask(t, 1, 64)),
        (true, |p, t| p.ask(t, u64::MAX, 2)),
        (true, |p, t| p.ask(t, 0, 0)),
        // No such connection carries RDMA.
        (true, |p, t| {
            let via = Via::Rdma(Memory { address: 4096, key: 1 });
            p.ins.write_all(&Head { token: t, offset: 0, bytes: 64, via }.bytes()).unwrap();
        }),
        (true, |p, t| {
            p.ask(t, 0, 64);
            assert_eq!(p.asked().len(), 64);
            p.ask(t, 0, 1);
        }),
        (true, |p, t| {
            p.ask(t, 0, 32);
            assert_eq!(p.asked().len(), 32);
            p.ask(t, 16, 32);
        }),
        (true, |p, t| p.send(t, 0, &[1])),
        (false, |p, t| p.send(t, 60, &[1; 5])),
        (false, |p, t| p.out.write_all(&head(t, 0, u64::MAX).bytes()).unwrap()),
        (false, |p, t| p.ask(t, 0, 1)),
    ];
    for (to_device, say) in cases {
        let (link, _calls, mut peer) = open();
        let mut host = [GUARD; 96];
        let (reply, copy) = request(&link, &memory(&mut host[16..80], to_device));
        let (_, _, op) = peer.requested();
        say(&mut peer, op.token);
        assert!(reply.wait().unwrap_err().why.contains("outside of the copy"));
        copy.finish();
        assert_eq!(host, [GUARD; 96]);
    }
}

/// Mirrored memory of these pages that the program uses exclusively, except the last page.
fn exclusive(link: &Link, pages: usize) -> &'static mut [u8] {
    let layout = std::alloc::Layout::from_size_align(pages * PAGE, PAGE).unwrap();
    // SAFETY: a layout that is not empty; never freed.
    let memory = unsafe { std::slice::from_raw_parts_mut(std::alloc::alloc_zeroed(layout), layout.size()) };
    let (at, page) = (memory.as_ptr() as u64, PAGE as u64);
    let exclusive = layout.size() as u64 - page;
    // SAFETY: the memory stays.
    unsafe { link.keep_alike(at, exclusive, true).and_then(|()| link.keep_alike(at + exclusive, page, false)) }.unwrap();
    memory
}

/// A run of lines that have this byte everywhere.
fn run(at: u64, lines: u32, byte: u8) -> Vec<u8> {
    [&at.to_le_bytes()[..], &lines.to_le_bytes(), &[0; 4], &vec![byte; 64 * lines as usize]].concat()
}

/// Sends a line of changes on the connection of the calls.
fn send_line(calls: &mut Conn, at: u64, byte: u8) {
    let line = [&at.to_le_bytes()[..], &[0xff; 8], &[byte; 64]].concat();
    let body = [&[0; 16][..], &line].concat();
    let head = AnswerHead::new(code::SUCCESS, crate::frame::CHANGES, body.len()).unwrap();
    calls.write_all(&[&head.bytes()[..], &body].concat()).unwrap();
}

/// Reads memory that other threads change.
fn look(memory: &[u8], at: usize) -> u8 {
    // SAFETY: a byte of the memory, read as an atomic.
    unsafe { AtomicU8::from_ptr(memory.as_ptr().cast_mut().add(at)) }.load(Ordering::Acquire)
}

#[test]
fn changes_of_exclusive_memory_come_behind_those_that_were_sent_before() {
    let (link, mut calls, mut peer) = open();
    let memory = exclusive(&link, 3);
    let at = memory.as_ptr() as u64;
    peer.send(CHANGES, 0, &run(at, 2, 1));
    assert_eq!((peer.taken(), look(memory, 0), look(memory, 127), look(memory, 128)), (16 + 128, 1, 1, 0));
    // What they follow comes later, and is of the same line.
    peer.send(CHANGES, 2, &run(at, 1, 7));
    send_line(&mut calls, at + 640, 3);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(look(memory, 0), 1, "only one of two is here");
    send_line(&mut calls, at, 4);
    assert_eq!((peer.taken(), look(memory, 0), look(memory, 64), look(memory, 640)), (16 + 64, 7, 1, 3));
    // Other memory, and memory that is not mirrored any more, stays as it is.
    link.forget_memory(at);
    let both = [run(at, 1, 9), run(at + 2 * PAGE as u64, 1, 9)].concat();
    peer.send(CHANGES, 2, &both);
    assert_eq!((peer.taken(), look(memory, 0), look(memory, 2 * PAGE)), (2 * (16 + 64), 7, 0));
    let counted = link.counts().bytes_received;
    assert!(counted >= 16 + 128 + 16 + 64 + 2 * (16 + 64), "{counted}");
}

#[test]
fn nonsense_instead_of_changes_loses_the_worker() {
    let cases: [fn(&mut Peer, u64); 6] = [
        |p, at| p.send(CHANGES, 0, &run(at, 1, 9)[..79]),
        |p, at| p.send(CHANGES, 0, &run(at + 1, 1, 9)),
        |p, _| p.send(CHANGES, 0, &[]),
        |p, _| p.out.write_all(&head(CHANGES, 0, MAX_CHANGES + 1).bytes()).unwrap(),
        |p, _| p.out.write_all(&head(CHANGES, 0, u64::MAX).bytes()).unwrap(),
        |p, _| p.out.write_all(&Head { via: Via::File(0), ..head(CHANGES, 0, 80) }.bytes()).unwrap(),
    ];
    for say in cases {
        let (link, _calls, mut peer) = open();
        let memory = exclusive(&link, 2);
        let reply = link.request(7, &[]).unwrap();
        say(&mut peer, memory.as_ptr() as u64);
        let lost = reply.wait().unwrap_err();
        assert!(lost.why.contains("changes"), "{lost}");
        assert!((0..memory.len()).all(|i| look(memory, i) == 0));
    }
}

#[test]
fn changes_that_wait_for_others_end_with_the_link() {
    let (link, calls, mut peer) = open();
    let memory = exclusive(&link, 2);
    peer.send(CHANGES, 1, &run(memory.as_ptr() as u64, 1, 9));
    // It is being waited for, or will be.
    let state = Arc::downgrade(&link.shared);
    drop(calls);
    drop(peer.calls);
    let began = Instant::now();
    while !link.is_lost() {
        assert!(began.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(link);
    while state.strong_count() > 0 {
        assert!(began.elapsed() < LONG, "a thread waits for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(look(memory, 0), 0);
}

/// Asks for the job's changes in a round: what it says.
fn changes(peer: &mut Peer, round: u64) -> Vec<u8> {
    peer.out.write_all(&head(WANTED, round, 0).bytes()).unwrap();
    let mut n = [0; 8];
    fill(&peer.out, &mut n).unwrap();
    let mut bytes = vec![0; u64::from_le_bytes(n) as usize];
    fill(&peer.out, &mut bytes).unwrap();
    bytes
}

/// All changes of a round, applied to the worker's copy. Returns how many messages there were.
fn take_all(peer: &mut Peer, round: u64, at: u64, theirs: &mut [u8]) -> usize {
    for number in 0.. {
        let mut rest = &changes(peer, round)[..];
        if rest.is_empty() {
            return number;
        }
        while !rest.is_empty() {
            let word = |at: usize| u64::from_le_bytes(*rest[at..].first_chunk().unwrap());
            let (address, count, masked) = (word(0), word(8) as u32 as usize, word(8) >> 32 != 0);
            let (masks, lines) = rest[16..].split_at(if masked { 8 * count } else { 0 });
            let masks: Vec<u64> = masks.as_chunks().0.iter().map(|mask| u64::from_le_bytes(*mask)).collect();
            for i in (0..64 * count).filter(|i| masks.get(i / 64).is_none_or(|mask| mask >> (i % 64) & 1 != 0)) {
                theirs[(address - at) as usize + i] = lines[i];
            }
            rest = &lines[64 * count..];
        }
    }
    unreachable!()
}

/// The next call that the job sends.
fn next_call(peer: &mut Peer) -> u16 {
    let head = Frame::read(&peer.calls.head::<FRAME>().unwrap().unwrap());
    peer.calls.append(&mut Vec::new(), head.body().unwrap().next_multiple_of(8)).unwrap();
    head.id
}

/// A lot is carried by the connections; what is sent behind it is sent when all of it was found.
#[test]
fn much_that_the_job_has_changed_is_given_to_the_worker_when_it_asks() {
    const PAGES: usize = 700;
    let (link, _calls, mut peer) = open();
    let memory = exclusive(&link, PAGES);
    let (at, named) = (memory.as_ptr() as u64, Arc::new(Mutex::new(Vec::new())));
    let (seen, more) = (named.clone(), Arc::downgrade(&link));
    link.set_watch(
        |page| page[0] == 0x77,
        move |lines| {
            lock(&seen).extend(lines.iter().map(|line| line[0]));
            // The first time there is more memory, whose contents are sent as well.
            let first = lock(&seen).len() == lines.len();
            if first {
                let others = Box::leak(vec![3u64; 1024].into_boxed_slice());
                // SAFETY: the memory stays.
                unsafe { more.upgrade().unwrap().keep_alike((others.as_ptr() as u64).next_multiple_of(4096), 4096, false) }
                    .unwrap();
            }
            first
        },
    );
    let mut theirs = vec![0; (PAGES - 1) * PAGE];
    let mut random = 5u32;
    for round in 1..3u64 {
        for byte in memory[..(PAGES - 1) * PAGE].iter_mut() {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = if random >> 30 == 0 { random as u8 } else { *byte };
        }
        memory[..(PAGES - 1) * PAGE].iter_mut().step_by(PAGE).for_each(|byte| *byte = round as u8);
        memory[300 * PAGE] = if round == 2 { 0x77 } else { 0 };
        assert!(changes(&mut peer, round).is_empty() && changes(&mut peer, round - 1).is_empty(), "nothing before it is due");
        let (sender, sent) = (link.clone(), Arc::new(AtomicBool::new(false)));
        let done = sent.clone();
        let sending = std::thread::spawn(move || {
            sender.send(id::LAUNCH, &[]).unwrap();
            done.store(true, Ordering::Release);
        });
        assert_eq!(next_call(&mut peer), id::HOST_RUNS);
        assert!(changes(&mut peer, round - 1).is_empty() && changes(&mut peer, round + 1).is_empty(), "another round");
        // This one is dropped here, and not given to the worker again.
        assert!(!changes(&mut peer, round).is_empty());
        assert!(!sent.load(Ordering::Acquire), "the call waits for the other parts");
        let number = take_all(&mut peer, round, at, &mut theirs);
        // Of 2.7 MiB in parts of 512 KiB at most, which begin anywhere.
        assert!((4..=9).contains(&number), "{number}");
        let differs = (0..theirs.len()).filter(|i| theirs[*i] != memory[*i]).map(|i| (at as usize + i) >> 19);
        assert!(differs.collect::<BTreeSet<usize>>().len() == 1);
        theirs.copy_from_slice(&memory[..(PAGES - 1) * PAGE]);
        if round == 2 {
            // More memory was named: everything is looked at again, and the new memory is sent before the work.
            loop {
                match next_call(&mut peer) {
                    id::HOST_RUNS => assert_eq!(take_all(&mut peer, 3, at, &mut theirs), 0),
                    id::HOST_BYTES => break,
                    other => panic!("{other:#x}"),
                }
            }
            assert_eq!(next_call(&mut peer), id::LAUNCH);
            sending.join().unwrap();
            let named = lock(&named);
            assert!(named.contains(&(at + 300 * PAGE as u64)) && named.len() <= 8192 + 64);
            return;
        }
        assert_eq!(next_call(&mut peer), id::LAUNCH);
        sending.join().unwrap();
        assert!(lock(&named).is_empty());
    }
}

#[test]
fn a_call_that_waits_for_its_changes_to_be_asked_for_ends_with_the_link() {
    let (link, calls, mut peer) = open();
    let memory = exclusive(&link, 700);
    memory.fill(1);
    let sender = link.clone();
    let sending = std::thread::spawn(move || sender.send(id::LAUNCH, &[]).is_err());
    assert_eq!(next_call(&mut peer), id::HOST_RUNS);
    assert!(!changes(&mut peer, 1).is_empty());
    assert!(!sending.is_finished());
    drop(calls);
    drop(peer);
    assert!(sending.join().unwrap(), "it is lost");
    assert!(link.send(id::LAUNCH, &[]).is_err());
}

#[test]
fn a_strange_question_for_changes_loses_the_worker() {
    for strange in [head(WANTED, 1, 1), Head { via: Via::File(0), ..head(WANTED, 1, 0) }] {
        let (link, _calls, mut peer) = open();
        let reply = link.request(7, &[]).unwrap();
        peer.out.write_all(&strange.bytes()).unwrap();
        assert!(reply.wait().unwrap_err().why.contains("strange question"));
    }
}

/// Of bytes that lie in the shared memory.
fn head_at(token: u64, offset: u64, bytes: u64, at: u64) -> Head {
    Head { token, offset, bytes, via: Via::File(at) }
}

/// Bytes of the shared memory.
fn region(link: &Link, at: u64, bytes: usize) -> Vec<u8> {
    let at = link.shared.common.bulk.regions.get().unwrap().at(at, bytes as u64).unwrap();
    // SAFETY: bytes of the mapping, which the link uses only when the test says so.
    unsafe { std::slice::from_raw_parts(at, bytes) }.to_vec()
}

fn fill_region(link: &Link, at: u64, bytes: usize, byte: u8) {
    let at = link.shared.common.bulk.regions.get().unwrap().at(at, bytes as u64).unwrap();
    // SAFETY: as above.
    unsafe { at.write_bytes(byte, bytes) };
}

#[test]
fn bytes_in_shared_memory_pass_no_connection() {
    let (link, mut calls, mut peer) = open();
    let file = link.shared.common.bulk.share();
    assert!(file.is_some() && link.shared.common.bulk.share().is_none(), "the worker gets it once");
    let mut from: Vec<u8> = (0..100).collect();
    let (reply, copy) = request(&link, &memory(&mut from, true));
    let (_, ticket, op) = peer.requested();
    let answered = |conn: &Conn| {
        let mut n = [0; 8];
        fill(conn, &mut n).unwrap();
        u64::from_le_bytes(n)
    };
    for head in [head_at(op.token, 60, 30, 5000), head(op.token, 90, 10), head_at(op.token, 0, 60, 70_000)] {
        peer.ins.write_all(&head.bytes()).unwrap();
    }
    assert_eq!(answered(&peer.ins), 30);
    assert_eq!(peer.asked(), from[90..], "the others may travel over the connection");
    assert_eq!(answered(&peer.ins), 60);
    assert_eq!((&region(&link, 5000, 30)[..], &region(&link, 70_000, 60)[..]), (&from[60..90], &from[..60]));
    assert_eq!((region(&link, 4999, 1)[0], region(&link, 5030, 1)[0]), (0, 0));
    answer(&mut calls, code::SUCCESS, ticket);
    reply.wait().unwrap();
    assert!(!copy.finish());

    let mut to = [GUARD; 100];
    let (reply, copy) = request(&link, &memory(&mut to[10..90], false));
    let (_, ticket, op) = peer.requested();
    fill_region(&link, 9000, 50, 3);
    peer.out.write_all(&head_at(op.token, 30, 50, 9000).bytes()).unwrap();
    peer.send(op.token, 0, &[4; 30]);
    assert_eq!((peer.taken(), peer.taken()), (50, 30));
    answer(&mut calls, code::SUCCESS, ticket);
    reply.wait().unwrap();
    assert!(!copy.finish());
    peer.out.write_all(&head_at(op.token, 0, 80, 9000).bytes()).unwrap();
    assert_eq!(peer.taken(), 80, "the copy has ended: its memory is not written");
    peer.ins.write_all(&head_at(op.token, 0, 80, 9000).bytes()).unwrap();
    assert_eq!(answered(&peer.ins), 0);
    assert_eq!(
        (&to[..10], &to[10..40], &to[40..90], &to[90..]),
        (&[GUARD; 10][..], &[4; 30][..], &[3; 50][..], &[GUARD; 10][..])
    );
}

#[test]
fn heads_outside_of_the_shared_memory_lose_the_worker() {
    let end = Sizes::of_process().file() as u64;
    for (shared, at) in [(true, end), (true, end - 63), (true, u64::MAX - 1), (true, u64::MAX - 63), (false, 0)] {
        for to_device in [true, false] {
            let (link, _calls, mut peer) = open();
            let _file = shared.then(|| link.shared.common.bulk.share().unwrap());
            let mut host = [GUARD; 96];
            let (reply, copy) = request(&link, &memory(&mut host[16..80], to_device));
            let (_, _, op) = peer.requested();
            let conn = if to_device { &mut peer.ins } else { &mut peer.out };
            conn.write_all(&head_at(op.token, 0, 64, at).bytes()).unwrap();
            let lost = reply.wait().unwrap_err();
            assert!(lost.why.contains("outside of the shared memory"), "{lost}");
            copy.finish();
            assert_eq!(host, [GUARD; 96]);
        }
    }
}

/// The checks of copies hold for shared memory too.
#[test]
fn nonsense_in_shared_memory_loses_the_worker() {
    for (to_device, offset, bytes) in [(true, 1, 64), (false, 60, 5), (true, 0, 0), (false, u64::MAX, 2)] {
        let (link, _calls, mut peer) = open();
        let _file = link.shared.common.bulk.share().unwrap();
        let mut host = [GUARD; 96];
        let (reply, copy) = request(&link, &memory(&mut host[16..80], to_device));
        let (_, _, op) = peer.requested();
        let conn = if to_device { &mut peer.ins } else { &mut peer.out };
        conn.write_all(&head_at(op.token, offset, bytes, 0).bytes()).unwrap();
        assert!(reply.wait().unwrap_err().why.contains("outside of the copy"));
        copy.finish();
        assert_eq!((host, region(&link, 0, 128)), ([GUARD; 96], vec![0; 128]));
    }
}

pub(in crate::link) const PAGE: usize = 4096;

/// Two pages of memory, of which the second one is taken away; the first one has this byte.
pub(in crate::link) fn half_gone(byte: u8) -> *mut u8 {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping at an address that the system chooses.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE, prot, flags, -1, 0).cast::<u8>();
        at.write_bytes(byte, PAGE);
        assert_eq!(libc::munmap(at.add(PAGE).cast(), PAGE), 0);
        at
    }
}

fn registered(host: *mut u8, to_device: bool) -> BulkMemory {
    let bytes = 2 * PAGE as u64;
    BulkMemory { host, device: 1 << 30, bytes, stream: 9, to_device, late: false, is_registered: true, before_sent: None }
}

/// Where threads of ours handle the bytes, too.
#[test]
fn registered_memory_that_goes_makes_a_copy_over_rdma_fail() {
    for (to_device, direct) in [(true, false), (true, true), (false, false)] {
        let (a, b, _carrier) = connections(Nature::good(1, DATA_RING));
        let (c, d, _other) = connections(Nature::good(2, DATA_RING));
        let (link, mut calls, mut peer) = open_over([(a, b), (c, d)]);
        let at = half_gone(5);
        let (reply, copy) = request(&link, &registered(at, to_device));
        let (_, ticket, op) = peer.requested();
        let got = carry_all(&mut peer, &op, (to_device, direct), &[6; 2 * PAGE]).unwrap();
        answer(&mut calls, code::SUCCESS, ticket);
        reply.wait().unwrap();
        assert!(copy.finish(), "it was accessed");
        if to_device {
            assert!(got[..PAGE].iter().all(|b| *b == 5) && got[PAGE..].iter().all(|b| *b == 0));
        } else {
            // SAFETY: the first page.
            assert!(unsafe { std::slice::from_raw_parts(at, PAGE) }.iter().all(|b| *b == 6));
        }
    }
}

#[test]
fn what_a_call_reads_of_registered_memory_that_has_gone_is_zero() {
    let (read, whole) = read_registered(half_gone(5) as u64, 2 * PAGE);
    assert!(!whole);
    assert!(read[..PAGE].iter().all(|b| *b == 5) && read[PAGE..].iter().all(|b| *b == 0));
}

/// As the kernel does for the memory of a socket's user: the copy fails, and nothing faults.
#[test]
fn memory_that_cannot_be_accessed_makes_a_copy_through_shared_memory_fail() {
    for to_device in [true, false] {
        let (link, mut calls, mut peer) = open();
        let _file = link.shared.common.bulk.share().unwrap();
        let at = half_gone(5);
        fill_region(&link, 0, 2 * PAGE, 6);
        let memory = registered(at, to_device);
        let bytes = memory.bytes;
        let (reply, copy) = request(&link, &memory);
        let (_, ticket, op) = peer.requested();
        let conn = if to_device { &mut peer.ins } else { &mut peer.out };
        conn.write_all(&head_at(op.token, 0, bytes, 0).bytes()).unwrap();
        let mut n = [0; 8];
        fill(conn, &mut n).unwrap();
        assert_eq!(u64::from_le_bytes(n), bytes);
        answer(&mut calls, code::SUCCESS, ticket);
        reply.wait().unwrap();
        assert!(copy.finish(), "it was accessed");
        if to_device {
            assert!(region(&link, 0, PAGE).iter().all(|b| *b == 5) && region(&link, PAGE as u64, PAGE).iter().all(|b| *b == 0));
        } else {
            // SAFETY: the first page.
            assert!(unsafe { std::slice::from_raw_parts(at, PAGE) }.iter().all(|b| *b == 6));
        }
    }
}
