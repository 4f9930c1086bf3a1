//! Tests of the link against a peer that the test plays itself.

use super::*;
use crate::conn::pair;
use crate::frame::{AnswerHead, CHANGES, HEAD, HEARTBEAT, Head, TEXT};
use crate::inbox::Inbox;
use crate::link::bulk::tests::{PAGE, half_gone};
use crate::pipe::{Closed, Writer};
use crate::rdma::stream::tests::{Nature, connections};
use crate::ring::Calls;
use crate::shm::{Memory, Which};
use cuda_api::ops::id;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicPtr, AtomicUsize};
use std::thread;

pub(super) fn info() -> DeviceInfo {
    DeviceInfo { name: "test".into(), ..DeviceInfo::default() }
}

/// The address of a link that makes no other connections.
pub(super) fn server() -> Peer {
    let at: Endpoint = "127.0.0.1:1".parse().unwrap();
    Peer::Server { named: at.clone(), reached: at }
}

pub(super) fn linked(silence: Duration) -> (Arc<Link>, Conn) {
    let (ours, theirs) = pair();
    (
        Link::start(
            ours,
            (server(), Inquiry::default()),
            info(),
            TimeLimits { silence, ..TimeLimits::default() },
            Transport::Tcp,
            None,
        )
        .unwrap(),
        theirs,
    )
}

const LONG: Duration = Duration::from_secs(30);

fn answer(conn: &mut Conn, code: Code, ticket: u64, body: &[u8]) {
    let head = AnswerHead::new(code, ticket, body.len()).unwrap();
    conn.write_all(&[&head.bytes()[..], body].concat()).unwrap();
}

/// The next call without a body.
fn call(conn: &mut Conn) -> Head {
    let mut head = [0; HEAD];
    conn.read_exact_by(&mut head, Instant::now() + LONG).unwrap();
    Head::read(&head)
}

#[test]
fn answers_find_their_callers_in_any_order() {
    let (link, mut peer) = linked(LONG);
    let replies: Vec<_> = (0..10).map(|_| link.request(7, &[]).unwrap()).collect();
    assert_eq!(link.outstanding(), 10);
    let mut tickets: Vec<_> = (0..10u64).map(|n| (n, call(&mut peer))).collect();
    assert!(tickets.iter().all(|(n, h)| h.seq == *n && h.id == 7 && h.len == 24));
    tickets.reverse();
    for (n, h) in tickets {
        answer(&mut peer, n as i32, h.ticket, &n.to_le_bytes());
    }
    for (n, r) in replies.into_iter().enumerate() {
        assert_eq!(r.wait().unwrap(), (n as i32, (n as u64).to_le_bytes().to_vec()));
    }
    assert_eq!(link.outstanding(), 0);
}

#[test]
fn over_rdma_calls_and_answers_are_the_same() {
    let (ours, mut peer, carrier) = connections(Nature::good(9, CALL_RING));
    let link = Link::start(ours, (server(), Inquiry::default()), info(), TimeLimits::default(), Transport::Rdma, None).unwrap();
    assert_eq!(link.transport(), Transport::Rdma);
    // Less than the ring: this thread reads it only when all of it is on its way.
    let body: Vec<u8> = (0..700_000u32).map(|i| (i >> 5) as u8).collect();
    for n in 0..200 {
        let bytes = if n % 50 == 0 { &body[..] } else { &body[..n * 8] };
        let reply = link.request(7, &[bytes]).unwrap();
        let head = call(&mut peer);
        assert_eq!((head.seq, head.body()), (n as u64, Some(bytes.len())));
        let mut got = vec![0; crate::frame::filled(bytes.len())];
        peer.read_exact_by(&mut got, Instant::now() + LONG).unwrap();
        answer(&mut peer, 0, head.ticket, &got[..bytes.len()]);
        assert!(reply.wait().unwrap() == (0, bytes.to_vec()), "{n}");
    }
    let unanswered = link.request(7, &[]).unwrap();
    call(&mut peer);
    peer.shutdown();
    assert!(unanswered.wait().unwrap_err().why.contains("it has ended"));
    drop((link, peer, carrier));
}

#[test]
fn a_refused_answer_does_not_land() {
    let (link, mut peer) = linked(LONG);
    let mut host = [7u8; 4];
    let landing = Landing { ptr: host.as_mut_ptr(), pitch: 4, width: 4, rows: 1, is_registered: false };
    // SAFETY: `host` outlives the wait below.
    let reply = unsafe { link.request_into(7, &[], landing) }.unwrap();
    let head = call(&mut peer);
    answer(&mut peer, 1, head.ticket, b"because");
    assert_eq!(reply.wait().unwrap(), (1, b"because".to_vec()));
    assert_eq!(host, [7; 4]);
}

#[test]
fn nonsense_from_the_worker_loses_it_and_writes_nowhere() {
    type Peer = fn(&mut Conn, u64);
    let cases: [(&str, Peer); 8] = [
        ("its length", |c, t| c.write_all(&AnswerHead { len: 15, code: 0, ticket: t }.bytes()).unwrap()),
        ("its length", |c, t| c.write_all(&AnswerHead { len: u32::MAX, code: 0, ticket: t }.bytes()).unwrap()),
        ("to no request", |c, t| answer(c, 0, t + 1, &[])),
        ("than its landing", |c, t| answer(c, 0, t, &[1; 9])),
        ("a fault report", |c, _| answer(c, 0, 0, &[1; 3])),
        ("a sign of life", |c, _| answer(c, 0, HEARTBEAT, &[1])),
        ("text", |c, _| answer(c, 3, TEXT, b"for nobody")),
        ("text", |c, _| c.write_all(&AnswerHead { len: 2 << 20, code: 1, ticket: TEXT }.bytes()).unwrap()),
    ];
    for (what, say) in cases {
        let (link, mut peer) = linked(LONG);
        let mut host = [0u8; 8];
        let landing = Landing { ptr: host.as_mut_ptr(), pitch: 8, width: 8, rows: 1, is_registered: false };
        // SAFETY: `host` outlives the wait below.
        let reply = unsafe { link.request_into(7, &[], landing) }.unwrap();
        let ticket = call(&mut peer).ticket;
        say(&mut peer, ticket);
        let lost = reply.wait().unwrap_err();
        assert!(lost.why.contains(what), "{what}: {lost}");
        assert_eq!(host, [0; 8]);
        assert_eq!(link.request(7, &[]).unwrap_err(), lost, "later calls say the same");
    }
}

/// As natively, where the GPU writes to pages that are mapped nowhere any more.
#[test]
fn an_answer_lands_in_what_is_left_of_registered_memory() {
    let (link, mut peer) = linked(LONG);
    let host = half_gone(5);
    let landing = Landing { ptr: host, pitch: 0, width: 2 * PAGE, rows: 1, is_registered: true };
    // SAFETY: registered memory may be gone.
    let reply = unsafe { link.request_into(7, &[], landing) }.unwrap();
    let ticket = call(&mut peer).ticket;
    answer(&mut peer, 0, ticket, &[1; 2 * PAGE]);
    assert_eq!(reply.wait().unwrap(), (0, vec![]));
    // SAFETY: the first page.
    assert!(unsafe { std::slice::from_raw_parts(host, PAGE) }.iter().all(|b| *b == 1));
}

/// Bytes around memory that an answer may change.
const GUARD: u8 = 0xa7;

#[test]
fn the_rows_of_an_answer_land_and_nothing_between_them() {
    let (link, mut peer) = linked(LONG);
    let mut host = [GUARD; 64];
    let landing = Landing { ptr: host[8..].as_mut_ptr(), pitch: 16, width: 4, rows: 3, is_registered: false };
    // SAFETY: `host` outlives the wait below.
    let reply = unsafe { link.request_into(7, &[], landing) }.unwrap();
    let ticket = call(&mut peer).ticket;
    answer(&mut peer, 0, ticket, &[1; 12]);
    assert_eq!(reply.wait().unwrap(), (0, vec![]));
    let expected: Vec<u8> = (0..64).map(|i| if (8..48).contains(&i) && (i - 8) % 16 < 4 { 1 } else { GUARD }).collect();
    assert_eq!(host[..], expected);
    // No thread waits for a second answer to the same call.
    answer(&mut peer, 0, ticket, &[2; 12]);
    let lost = link.request(7, &[]).and_then(Reply::wait).unwrap_err();
    assert!(lost.why.contains("to no request"), "{lost}");
    assert_eq!(host[..], expected);
}

/// Whole pages: one that is mirrored, between two that are not.
#[repr(align(4096))]
struct Pages([u8; 3 * 4096]);

#[test]
fn changes_reach_only_memory_that_is_kept_alike() {
    let (link, mut peer) = linked(LONG);
    let mut pages = Box::new(Pages([GUARD; 3 * 4096]));
    pages.0[4096..8192].fill(0);
    let first = pages.0.as_mut_ptr() as u64;
    // SAFETY: the pages outlive the link's use of them, which ends below.
    unsafe { link.keep_alike(first + 4096, 4096, false) }.unwrap();
    let line = |at: u64| [at, u64::MAX, 1, 2, 3, 4, 5, 6, 7, 8];
    let outside =
        [first, first + 4096 - 64, first + 8192, first + 12288 - 64, first + 4096 + 8, first + 8192 - 56, 0, 64, u64::MAX - 63];
    let lines: Vec<[u64; 10]> = outside.into_iter().chain([first + 4096, first + 8192 - 64]).map(line).collect();
    let message: Vec<u8> = [0u64; 2].iter().chain(lines.iter().flatten()).flat_map(|w| w.to_le_bytes()).collect();
    answer(&mut peer, 0, CHANGES, &message);
    let reply = link.request(7, &[]).unwrap();
    let head = loop {
        // The job's own changes may be sent meanwhile.
        let head = call(&mut peer);
        let mut rest = vec![0; (head.body().unwrap()).next_multiple_of(8)];
        peer.read_exact_by(&mut rest, Instant::now() + LONG).unwrap();
        if head.id == 7 {
            break head;
        }
    };
    answer(&mut peer, 0, head.ticket, &[]);
    reply.wait().unwrap();
    link.give_up_memory(first + 4096);
    let answers: Vec<u8> = (1..9u64).flat_map(u64::to_le_bytes).collect();
    assert!(pages.0[..4096].iter().chain(&pages.0[8192..]).all(|b| *b == GUARD), "memory beside it has changed");
    assert_eq!((&pages.0[4096..4160], &pages.0[8128..8192]), (&answers[..], &answers[..]));
    assert!(pages.0[4160..8128].iter().all(|b| *b == 0));
    // A message with a partial line is malformed.
    answer(&mut peer, 0, CHANGES, &message[..message.len() - 8]);
    let lost = link.request(7, &[]).and_then(Reply::wait).unwrap_err();
    assert!(lost.why.contains("changes"), "{lost}");
}

#[test]
fn changes_of_the_block_that_was_at_an_address_before_do_not_reach_the_next() {
    let (link, mut peer) = linked(LONG);
    let memory = pages(2);
    let at = memory.as_ptr() as u64;
    let keep = |block: u64| {
        // SAFETY: the pages stay.
        unsafe { link.keep_block_alike(&[7; 5], at + 4096 * block, 4096) }.unwrap().unwrap();
    };
    let tell = |blocks: u64, value: u64| {
        let line: executor::host_mirror::Line = [at + 64, 0xff, value, 0, 0, 0, 0, 0, 0, 0];
        let message = [&0u64.to_le_bytes(), &blocks.to_le_bytes(), executor::host_mirror::bytes_of(&[line])].concat();
        assert!(link.shared.common.alike.take_over(&message));
        // SAFETY: a word of the pages; nobody writes it meanwhile.
        unsafe { ((at + 64) as *const u64).read_volatile() }
    };
    keep(0);
    let head = call(&mut peer);
    assert_eq!((head.id, head.ticket, head.body()), (id::HOST_BLOCK, frame::NO_TICKET, Some(5)));
    assert_eq!((tell(0, 1), tell(1, 2)), (0, 2), "what the worker found before it had the block");
    link.forget_memory(at);
    assert_eq!(tell(1, 3), 2, "it has gone");
    // SAFETY: the pages stay.
    unsafe { ((at + 64) as *mut u64).write_volatile(0) };
    // Two blocks, the second of which is at the address of the first.
    keep(1);
    keep(0);
    assert_eq!((tell(1, 4), tell(2, 5)), (0, 0), "those of the block before it");
    assert_eq!((tell(3, 6), tell(1, 7)), (6, 7), "once the worker has it, all are of this block");
}

#[test]
fn random_messages_write_nowhere_but_where_an_answer_lands() {
    let mut state = 7u64;
    let mut draw = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for round in 0..60 {
        let (link, mut peer) = linked(LONG);
        let mut host = Box::new([GUARD; 96]);
        let landing = Landing { ptr: host[32..].as_mut_ptr(), pitch: 8, width: 8, rows: 4, is_registered: false };
        // SAFETY: `host` outlives the link, whose threads have nothing to do with it when the answer is there.
        let reply = unsafe { link.request_into(7, &[], landing) }.unwrap();
        let ticket = call(&mut peer).ticket;
        for _ in 0..20 {
            let tickets = [ticket, ticket + 1, 0, HEARTBEAT, TEXT, CHANGES, draw(u64::MAX)];
            let bytes = [0, 2, 8, 31, 32, 33, 88, 4096][draw(8) as usize];
            let said = bytes + [0, 0, 0, 1, 16, 1 << 20][draw(6) as usize];
            let head = AnswerHead { len: 16 + said, code: draw(3) as i32, ticket: tickets[draw(7) as usize] };
            let body: Vec<u8> = (0..bytes).map(|_| draw(256) as u8).collect();
            // The link may have closed the connection.
            if peer.write_all(&[&head.bytes()[..], &body].concat()).is_err() {
                break;
            }
        }
        drop(peer);
        // Every wait ends, even that of a call whose ticket the peer guessed before the call was made.
        let _ = reply.wait();
        assert!(
            host[..32].iter().chain(&host[64..]).all(|b| *b == GUARD),
            "round {round}: memory beside the landing has changed"
        );
        let end = Instant::now() + LONG;
        while link.request(7, &[]).and_then(Reply::wait).is_ok() {
            assert!(Instant::now() < end, "round {round}: the peer has gone and the link goes on");
        }
    }
}

#[test]
fn signs_of_life_keep_a_link_and_silence_ends_it() {
    let (link, mut peer) = linked(Duration::from_secs(4));
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(250));
        answer(&mut peer, 0, HEARTBEAT, &[]);
    }
    assert!(!link.is_lost());
    let lost = link.request(7, &[]).unwrap().wait().unwrap_err();
    assert!(lost.why.contains("no sign of life"), "{lost}");
}

#[test]
fn a_vanished_worker_ends_every_wait_also_of_a_full_ring() {
    let (link, peer) = linked(LONG);
    let waiting = link.request(7, &[]).unwrap();
    let pushing = {
        let link = link.clone();
        thread::spawn(move || (0..100_000).find_map(|_| link.send(7, &[&[1; 1000]]).err()))
    };
    let long = {
        let link = link.clone();
        thread::spawn(move || link.send(7, &[&vec![1; 50 << 20]]))
    };
    thread::sleep(Duration::from_millis(100));
    assert!(!pushing.is_finished() && !long.is_finished());
    drop(peer);
    assert!(pushing.join().unwrap().is_some() && long.join().unwrap().is_err() && waiting.wait().is_err());
}

#[test]
fn faults_are_kept_until_taken_and_told_to_a_late_hook() {
    let (link, mut peer) = linked(LONG);
    answer(&mut peer, 700, 0, &0x0f01u16.to_le_bytes());
    answer(&mut peer, 719, 0, &0x0f02u16.to_le_bytes());
    let reply = link.request(7, &[]).unwrap();
    let ticket = call(&mut peer).ticket;
    answer(&mut peer, 0, ticket, &[]);
    reply.wait().unwrap();
    let answers = Arc::new(AtomicUsize::new(0));
    let ours = answers.clone();
    link.set_fault_hook(move |f| ours.store(f.code as usize, Ordering::SeqCst));
    assert_eq!(answers.load(Ordering::SeqCst), 700);
    assert_eq!(link.take_fault(), Some(Fault { code: 700, id: 0x0f01 }));
    assert_eq!(link.take_fault(), None);
}

#[test]
fn a_dropped_link_hangs_up() {
    let (link, mut peer) = linked(LONG);
    let reply = link.request(7, &[]).unwrap();
    call(&mut peer);
    drop(link);
    assert!(reply.wait().is_err());
    let end = peer.read_exact_by(&mut [0], Instant::now() + LONG).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
}

/// A link over shared memory, and its worker's side.
fn shared(silence: Duration) -> (Arc<Link>, Conn, Inbox<Calls>, Writer) {
    let (ours, theirs) = pair();
    // It has mapped the memory that comes.
    greet::answer(&theirs, Ok(&[])).unwrap();
    let link = Link::start(
        ours,
        (server(), Inquiry::default()),
        info(),
        TimeLimits { silence, ..TimeLimits::default() },
        Transport::Shm,
        None,
    )
    .unwrap();
    let fd = theirs.receive_descriptors(Instant::now() + LONG).unwrap().0;
    let memory = Arc::new(Memory::received(fd.as_fd()).unwrap());
    let closed = Closed::default();
    let answers = Writer::new(memory.clone(), Which::Answers, closed.clone());
    (link, theirs, Inbox::new(Calls::new(memory, closed)), answers)
}

fn say(to: &mut Writer, code: Code, ticket: u64, body: &[u8]) {
    let head = AnswerHead::new(code, ticket, body.len()).unwrap();
    to.write_pieces(&[&head.bytes(), body]).unwrap();
}

#[test]
fn many_threads_get_their_own_answers_through_shared_memory() {
    let (link, _life, mut calls, mut answers) = shared(LONG);
    let worker = thread::spawn(move || {
        let mut long = Vec::new();
        while let Some(head) = calls.head::<HEAD>().unwrap() {
            let head = Head::read(&head);
            let n = head.body().unwrap();
            let body = calls.with(crate::frame::filled(n), &mut long, |b| b[..n].to_vec()).unwrap();
            if head.id == 9 {
                say(&mut answers, 0, HEARTBEAT, &[]);
            }
            if head.ticket != 0 {
                say(&mut answers, head.id.into(), head.ticket, &body);
            }
            if head.id == 99 {
                return;
            }
        }
    });
    thread::scope(|s| {
        for t in 0..6u8 {
            let link = &link;
            s.spawn(move || {
                for n in 0..2000usize {
                    let body = vec![t ^ n as u8; if n % 500 == 7 { 300_000 } else { n % 97 }];
                    link.send(9, &[&body]).unwrap();
                    if n % 2 == 0 {
                        let (code, got) = link.request(t.into(), &[&body]).unwrap().wait().unwrap();
                        assert!(code == i32::from(t) && got == body);
                    } else {
                        let mut host = vec![0u8; body.len()];
                        let landing =
                            Landing { ptr: host.as_mut_ptr(), pitch: 0, width: body.len(), rows: 1, is_registered: false };
                        // SAFETY: `host` outlives the wait.
                        let reply = unsafe { link.request_into(0, &[&body], landing) }.unwrap();
                        assert_eq!(reply.wait().unwrap(), (0, Vec::new()));
                        assert!(host == body);
                    }
                }
            });
        }
    });
    assert_eq!(link.outstanding(), 0);
    link.request(99, &[]).unwrap().wait().unwrap();
    worker.join().unwrap();
}

#[test]
fn silence_and_the_end_of_the_life_line_lose_a_shared_link() {
    let (link, life, _calls, mut answers) = shared(Duration::from_secs(4));
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(250));
        say(&mut answers, 0, HEARTBEAT, &[]);
    }
    assert!(!link.is_lost());
    let lost = link.request(7, &[]).unwrap().wait().unwrap_err();
    assert!(lost.why.contains("no sign of life"), "{lost}");
    drop(life);

    let (link, life, _calls, mut answers) = shared(LONG);
    let (last, never) = (link.request(7, &[]).unwrap(), link.request(7, &[]).unwrap());
    // Messages sent before the end are processed.
    say(&mut answers, 5, 1, b"last");
    drop(life);
    assert_eq!(last.wait().unwrap(), (5, b"last".to_vec()));
    assert!(never.wait().unwrap_err().why.contains("it has ended"));
    assert!(link.send(7, &[&[0; 200_000]]).is_err() && link.send(7, &[]).is_err());
}

#[test]
fn a_long_body_that_nobody_reads_ends_with_the_worker() {
    let (link, life, _calls, _answers) = shared(LONG);
    let sending = {
        let link = link.clone();
        thread::spawn(move || link.send(7, &[&vec![1; 8 << 20]]))
    };
    thread::sleep(Duration::from_millis(50));
    assert!(!sending.is_finished());
    drop(life);
    assert!(sending.join().unwrap().is_err());
}

#[test]
fn nonsense_in_shared_memory_loses_the_worker() {
    type Peer = fn(&mut Writer);
    let cases: [(&str, Peer); 4] = [
        ("its length", |w| w.write_pieces(&[&AnswerHead { len: 3, code: 0, ticket: 1 }.bytes()]).unwrap()),
        ("to no request", |w| say(w, 0, 77, &[])),
        ("a fault report", |w| say(w, 0, 0, &[1; 3])),
        ("than its landing", |w| say(w, 0, 1, &[1; 9])),
    ];
    for (what, peer) in cases {
        let (link, _life, _calls, mut answers) = shared(LONG);
        let mut host = [0u8; 8];
        let landing = Landing { ptr: host.as_mut_ptr(), pitch: 8, width: 8, rows: 1, is_registered: false };
        // SAFETY: `host` outlives the wait below.
        let reply = unsafe { link.request_into(7, &[], landing) }.unwrap();
        peer(&mut answers);
        let lost = reply.wait().unwrap_err();
        assert!(lost.why.contains(what), "{what}: {lost}");
        assert_eq!(host, [0; 8]);
    }
}

/// Pages that are never unmapped.
fn pages(count: usize) -> &'static mut [u8] {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping anywhere.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096 * count, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: just mapped, and never unmapped.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), 4096 * count) }
}

fn set(memory: &AtomicPtr<u8>, at: usize, value: u32) {
    // SAFETY: inside of the pages of the test below.
    unsafe { memory.load(Ordering::Relaxed).add(at).cast::<u32>().write_volatile(value) };
}

/// Applies the next changes of the job to the worker's copy; returns whether more of them are to come.
fn taken_over(peer: &mut Conn, from: u64, memory: &mut [u8]) -> bool {
    let mut head = [0; HEAD];
    peer.read_exact_by(&mut head, Instant::now() + LONG).unwrap();
    let head = Head::read(&head);
    assert_eq!(head.id, id::HOST_BYTES);
    let bytes = head.body().unwrap();
    let mut lines = vec![0; frame::filled(bytes)];
    peer.read_exact_by(&mut lines, Instant::now() + LONG).unwrap();
    lines.truncate(bytes);
    for line in lines.chunks_exact(executor::host_mirror::LINE_BYTES) {
        let word = |i: usize| u64::from_le_bytes(line[8 * i..8 * i + 8].try_into().unwrap());
        for byte in (0..64).filter(|byte| word(1) >> byte & 1 != 0) {
            memory[(word(0) - from) as usize + byte] = line[16 + byte];
        }
    }
    match lines.len() % executor::host_mirror::LINE_BYTES {
        0 => false,
        1 => lines.ends_with(&[executor::host_mirror::MORE]),
        _ => panic!("part of a line"),
    }
}

#[test]
fn exclusive_memory_is_sent_before_work_and_not_before_waits() {
    let (link, mut peer) = linked(LONG);
    let memory = pages(2);
    let at = memory.as_ptr() as u64;
    // SAFETY: the pages stay.
    unsafe { link.keep_alike(at, 8192, true) }.unwrap();
    let mut theirs = vec![0; 8192];
    for (round, call) in
        [id::LAUNCH, id::GRAPH_LAUNCH, id::COPY_DEVICE, id::FILL, id::STREAM_MEMORY, id::HOST_DONE].into_iter().enumerate()
    {
        memory[100 * round] = 7;
        for wait in [id::STREAM_SYNC, id::CONTEXT_SYNC, id::EVENT_SYNC] {
            link.send(wait, &[]).unwrap();
        }
        link.send(call, &[]).unwrap();
        // The changes come between the waits and the work.
        let before: Vec<u16> = (0..3).map(|_| self::call(&mut peer).id).collect();
        assert_eq!(before, [id::STREAM_SYNC, id::CONTEXT_SYNC, id::EVENT_SYNC]);
        assert!(!taken_over(&mut peer, at, &mut theirs));
        assert!(theirs == memory, "before {call:#x}");
        assert_eq!(self::call(&mut peer).id, call);
    }
}

#[test]
fn a_flag_is_sent_behind_what_it_announces_in_exclusive_memory() {
    let (link, mut peer) = linked(LONG);
    let memory = pages(3);
    memory[0] = 1;
    let at = memory.as_ptr() as u64;
    let shared = Arc::new(AtomicPtr::new(memory.as_mut_ptr()));
    // While the first change is on its way, the program writes to exclusive memory and then sets a flag in other memory.
    let (seen, looks) = (shared.clone(), AtomicUsize::new(0));
    link.set_watch(
        |_| true,
        move |_| {
            if looks.fetch_add(1, Ordering::Relaxed) == 0 {
                set(&seen, 4096, 77);
                set(&seen, 8192, 1);
            }
            false
        },
    );
    // SAFETY: the pages stay.
    unsafe { link.keep_alike(at + 8192, 4096, false).and_then(|()| link.keep_alike(at, 8192, true)) }.unwrap();
    link.send_changes().unwrap();
    let mut theirs = vec![0; 4096 * 3];
    while theirs[8192] == 0 {
        taken_over(&mut peer, at, &mut theirs);
    }
    assert_eq!((theirs[0], theirs[4096]), (1, 77));
}

#[test]
fn exclusive_memory_is_sent_in_parts_and_what_it_names_with_it() {
    const PAGES: usize = 6000;
    let (link, mut peer) = linked(LONG);
    let memory = pages(PAGES + 2);
    memory.fill(0x5a);
    let at = memory.as_ptr() as u64;
    let (known, looks) = (Arc::downgrade(&link), AtomicUsize::new(0));
    link.set_watch(
        |_| true,
        move |_| {
            let first = looks.fetch_add(1, Ordering::Relaxed) == 0;
            if first {
                // Of either kind.
                for (page, exclusive) in [(PAGES, true), (PAGES + 1, false)] {
                    let link = known.upgrade().unwrap();
                    // SAFETY: the pages stay.
                    unsafe { link.keep_alike(at + 4096 * page as u64, 4096, exclusive) }.unwrap();
                }
            }
            first
        },
    );
    // SAFETY: the pages stay.
    unsafe { link.keep_alike(at, 4096 * PAGES as u64, true) }.unwrap();
    let shared = Arc::downgrade(&link);
    let sending = std::thread::spawn(move || shared.upgrade().unwrap().send_changes().unwrap());
    let mut theirs = vec![0; 4096 * (PAGES + 2)];
    let mut more = 0;
    while theirs != memory {
        more += usize::from(taken_over(&mut peer, at, &mut theirs));
    }
    sending.join().unwrap();
    let messages = PAGES * 64 / executor::host_mirror::MESSAGE_LINES;
    assert!((messages / 2..2 * messages).contains(&more), "{more} of about {messages} are followed by others");
}

#[test]
fn what_changes_while_more_memory_is_made_known_is_told_as_it_is() {
    let (link, mut peer) = linked(LONG);
    let memory = pages(2);
    let at = memory.as_ptr() as u64;
    let shared = Arc::new(AtomicPtr::new(memory.as_mut_ptr()));
    // The first change refers to the second page; before that is registered, the program changes the word
    // again.
    set(&shared, 64, 0x1b8);
    let (known, seen, looks) = (Arc::downgrade(&link), shared.clone(), AtomicUsize::new(0));
    link.set_watch(
        |_| true,
        move |_| {
            if looks.fetch_add(1, Ordering::Relaxed) > 0 {
                return false;
            }
            set(&seen, 64, 0x210);
            set(&seen, 4096, 7);
            // A change of the first word that the worker found before it received ours.
            let mut line: executor::host_mirror::Line = [0; 10];
            (line[0], line[1], line[2]) = (at + 64, 1, 0x55);
            let link = known.upgrade().unwrap();
            assert!(link.shared.common.alike.take_over(&[&[0; 16], executor::host_mirror::bytes_of(&[line])].concat()));
            // SAFETY: the pages stay.
            unsafe { link.keep_alike(at + 4096, 4096, false) }.unwrap();
            true
        },
    );
    // SAFETY: the pages stay.
    unsafe { link.keep_alike(at, 4096, false) }.unwrap();
    let mut theirs = vec![0; 8192];
    while theirs[4096] == 0 || theirs[64] == 0 {
        taken_over(&mut peer, at, &mut theirs);
    }
    // A later change of one byte, which shows that no other change is outstanding.
    set(&shared, 64, 0x270);
    while theirs[64] != 0x70 {
        taken_over(&mut peer, at, &mut theirs);
    }
    assert_eq!(theirs[64..68], 0x270u32.to_le_bytes());
    assert!(theirs == memory);
}

#[test]
fn a_link_counts_what_it_has_carried() {
    let (link, mut peer) = linked(LONG);
    assert_eq!(link.counts(), LinkCounts::default());
    let mut body = [0; 104];
    link.send(7, &[&[1; 100]]).unwrap();
    call(&mut peer);
    peer.read_exact_by(&mut body, Instant::now() + LONG).unwrap();
    let reply = link.request(8, &[]).unwrap();
    let head = call(&mut peer);
    answer(&mut peer, 0, head.ticket, &[1; 50]);
    reply.wait().unwrap();
    // The sender counts a call after it has sent it, and a reader an answer after it was taken.
    let wanted = LinkCounts { calls: 2, bytes_sent: 128 + 24, bytes_received: 16 + 50 };
    let until = Instant::now() + LONG;
    while link.counts() != wanted {
        assert!(Instant::now() < until, "{:?}", link.counts());
        thread::yield_now();
    }
}

#[test]
fn who_was_told_that_the_link_is_lost_is_not_told_twice() {
    let (replies, answers) = (Replies::default(), Arc::new(AtomicUsize::new(0)));
    let count = answers.clone();
    let then = move |outcome: Result<(Code, Vec<u8>), Lost>| {
        assert!(outcome.is_err());
        count.fetch_add(1, Ordering::Relaxed);
    };
    replies.expect(1, Arc::new(Waiter::calling(Box::new(then)))).unwrap();
    replies.expect(2, Arc::new(Waiter::new(None))).unwrap();
    assert!(replies.forget(2), "what was never sent is taken back by who asked");
    replies.fail_all();
    assert_eq!((answers.load(Ordering::Relaxed), replies.forget(1)), (1, false));
    assert!(replies.expect(3, Arc::new(Waiter::new(None))).is_err());
}

/// What connecting to a server on this port fails with.
fn not_connected(place: String) -> String {
    let hello = JobHello { virtual_device: 0, pid: std::process::id(), env: Vec::new(), name: String::new() };
    let trust = Trust { authorities: None, known_servers: "/nonexistent".into(), certificate: None };
    let credentials = Credentials { token: Some(Token([7; 32])), munge: None, trust };
    Link::connect(&place.parse().unwrap(), Some(&credentials), &hello, None).err().unwrap().to_string()
}

#[test]
fn a_server_that_always_hangs_up_is_given_up_soon() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("{}/0", port.local_addr().unwrap());
    let asked = thread::spawn(move || (0..open::HANG_UPS).for_each(|_| drop(port.accept().unwrap())));
    let lost = not_connected(to);
    assert!(lost.contains("during the greeting"), "{lost}");
    asked.join().unwrap();
}

#[test]
fn who_was_too_slow_for_a_server_greets_anew() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("plain://{}/0", port.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    thread::spawn(move || {
        while let Ok((stream, _)) = port.accept() {
            count.fetch_add(1, Ordering::Relaxed);
            let conn = Conn::new(stream.into());
            greet::introduce(&conn, greet::Offer::LOCAL).unwrap();
            greet::refuse(&conn, &GreetError::TooSlow);
        }
    });
    let refused = not_connected(to);
    assert!(refused.ends_with("too slow"), "{refused}");
    assert_eq!(asked.load(Ordering::Relaxed), 1 + open::TOO_SLOW as usize);
}
