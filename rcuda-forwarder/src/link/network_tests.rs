//! Calls and answers over a fake network, from many threads, which may break at any byte: every call gets its own answer or the error
//! of a lost worker, and no thread waits for ever.

use super::tests::{info, server};
use super::*;
use crate::conn::fake::{By, connect};
use crate::frame::{AnswerHead, HEAD, HEARTBEAT, Head, TEXT, filled};
use crate::inbox::Inbox;
use cuda_api::code;
use fake_network::{Network, Random, to_its_end};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::thread;

/// Seeds of a network that does not break, and of one that does.
const SEEDS: [u64; 2] = [50, 100];
const THREADS: u64 = 4;
const CALLS: u64 = 12;
/// A call whose answer fails.
const FAILS: u16 = 9;
const WORKS: u16 = 7;

/// What a call gets back: its bytes in another order.
fn answer_to(body: &[u8]) -> Vec<u8> {
    body.iter().rev().map(|b| b ^ 0x5a).collect()
}

/// A worker that answers calls in almost their order, until the connection ends. Returns how many it has read.
fn work(conn: Conn, mut random: Random) -> u64 {
    let conn = Arc::new(conn);
    let mut inbox = Inbox::new(crate::conn::Eager::new(conn.clone()));
    let mut waiting: Vec<(Head, Vec<u8>)> = Vec::new();
    let mut next = 0;
    let mut serve = || -> io::Result<bool> {
        // What waits is answered at the latest when there is nothing to read.
        let idle = inbox.is_empty() && conn.ready(nix::poll::PollFlags::POLLIN, Duration::ZERO)?.is_empty();
        while !waiting.is_empty() && (idle || random.below(3) == 0) {
            let (head, body) = waiting.swap_remove(random.below(waiting.len() as u64) as usize);
            let rc = if head.id == FAILS { code::ERROR_INVALID_VALUE } else { code::SUCCESS };
            let (ticket, answer) = match (head.ticket, rc) {
                (frame::NO_TICKET, code::SUCCESS) => continue,
                (frame::NO_TICKET, _) => (frame::NO_TICKET, head.id.to_le_bytes().to_vec()),
                (ticket, code::SUCCESS) => (ticket, answer_to(&body)),
                (ticket, _) => (ticket, Vec::new()),
            };
            let say =
                |rc, ticket, body: &[u8]| conn.write_pieces(&[&AnswerHead::new(rc, ticket, body.len()).unwrap().bytes(), body]);
            match random.below(8) {
                0 => say(code::SUCCESS, HEARTBEAT, &[])?,
                1 => say(1, TEXT, b"printed")?,
                _ => {}
            }
            say(rc, ticket, &answer)?;
        }
        let Some(head) = inbox.head::<HEAD>()? else { return Ok(false) };
        let head = Head::read(&head);
        let bytes = head.body().unwrap();
        assert_eq!((head.seq, head.flags), (next, 0), "calls arrive in their order");
        next += 1;
        let mut body = Vec::new();
        inbox.append(&mut body, filled(bytes))?;
        body.truncate(bytes);
        waiting.push((head, body));
        Ok(true)
    };
    while matches!(serve(), Ok(true)) {}
    next
}

/// What a thread of the program does: calls of all kinds, whose answers it checks. Returns whether the link was lost.
fn call(link: &Link, mut random: Random, wrong: &AtomicUsize) -> bool {
    let (sender, receiver) = mpsc::channel();
    let (mut asked, mut is_lost) = (0, false);
    for _ in 0..CALLS {
        let most = if random.below(200) == 0 { 50_000 } else { 300 };
        let body: Vec<u8> = (0..random.below(most)).map(|_| random.draw() as u8).collect();
        let parts = [&body[..body.len() / 2], &body[body.len() / 2..]];
        let expected = answer_to(&body);
        let checked = |answer: Result<(Code, Vec<u8>), Lost>, expected: (Code, Vec<u8>)| match answer {
            Ok(answer) => {
                if answer != expected {
                    wrong.fetch_add(1, Ordering::SeqCst);
                }
                false
            }
            Err(_) => true,
        };
        is_lost |= match random.below(5) {
            0 => link.send(WORKS, &parts).is_err(),
            1 => match link.request(FAILS, &parts) {
                Ok(reply) => checked(reply.wait(), (code::ERROR_INVALID_VALUE, Vec::new())),
                Err(_) => true,
            },
            2 => {
                let sender = sender.clone();
                let then = move |answer: Result<(Code, Vec<u8>), Lost>| {
                    let right = answer.as_ref().map_or(true, |a| *a == (code::SUCCESS, expected));
                    sender.send((right, answer.is_err())).unwrap();
                };
                let begun = link.request_then(WORKS, &parts, then);
                asked += usize::from(begun.is_ok());
                begun.is_err()
            }
            3 => {
                let mut host = vec![0; body.len()];
                let landing =
                    Landing { ptr: host.as_mut_ptr(), pitch: host.len(), width: host.len(), rows: 1, is_registered: false };
                // SAFETY: `host` lives until the answer has come.
                match unsafe { link.request_into(WORKS, &parts, landing) } {
                    Ok(reply) => {
                        let lost = checked(reply.wait(), (code::SUCCESS, Vec::new()));
                        if !lost && host != expected {
                            wrong.fetch_add(1, Ordering::SeqCst);
                        }
                        lost
                    }
                    Err(_) => true,
                }
            }
            _ => match link.request(WORKS, &parts) {
                Ok(reply) => checked(reply.wait(), (code::SUCCESS, expected)),
                Err(_) => true,
            },
        };
    }
    // Each that was begun is called, once.
    for _ in 0..asked {
        let (right, lost) = receiver.recv().unwrap();
        wrong.fetch_add(usize::from(!right), Ordering::SeqCst);
        is_lost |= lost;
    }
    drop(sender);
    assert!(receiver.recv().is_err(), "one was called twice");
    is_lost
}

/// Runs in which threads lost the worker.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

fn exchange(seed: u64, breaks: bool) {
    let mut network = Network::new(seed);
    let by = if network.random().below(2) == 0 { By::Plain } else { By::Tls };
    let (ours, theirs) = connect(&mut network, by, breaks.then_some(THREADS * CALLS * 500));
    let limits = TimeLimits { silence: Duration::from_secs(300), ..TimeLimits::default() };
    let link = Link::start(ours, (server(), Inquiry::default()), info(), limits, Transport::Tcp, None).unwrap();
    link.set_fault_hook(|fault| assert_eq!(fault.id, FAILS));
    let wrong = AtomicUsize::new(0);
    let (lost, read) = thread::scope(|s| {
        let worker = s.spawn({
            let random = network.random().split();
            move || work(theirs, random)
        });
        let callers: Vec<_> = (0..THREADS)
            .map(|_| {
                let (link, random, wrong) = (&link, network.random().split(), &wrong);
                s.spawn(move || call(link, random, wrong))
            })
            .collect();
        let lost = callers.into_iter().map(|c| c.join().unwrap()).filter(|lost| *lost).count();
        assert_eq!(link.outstanding(), 0, "seed {seed}: some answers are still expected");
        if lost > 0 {
            assert!(link.is_lost() && link.request(WORKS, &[]).is_err(), "seed {seed}: a lost link takes calls");
        }
        link.abandon();
        (lost, worker.join().unwrap())
    });
    assert_eq!(wrong.load(Ordering::SeqCst), 0, "seed {seed}: wrong answers");
    // Calls that no thread waits for may still have been under way at the end.
    assert!(breaks || lost == 0 && read > 0, "seed {seed}: {lost} threads lost the worker");
    BROKEN.fetch_add(usize::from(lost > 0), Ordering::Relaxed);
}

#[test]
fn many_threads_get_their_own_answers_over_a_bad_network() {
    for seed in fake_network::seeds(SEEDS[0]) {
        to_its_end(seed, move || exchange(seed, false));
    }
}

#[test]
fn every_caller_gets_an_answer_or_an_error_when_the_network_breaks() {
    for seed in fake_network::seeds(SEEDS[1]) {
        to_its_end(seed, move || exchange(seed, true));
    }
    assert!(BROKEN.load(Ordering::Relaxed) > 5, "nearly nothing breaks");
}

#[test]
fn who_waits_for_room_in_the_ring_returns_when_the_connection_ends() {
    for seed in 0..20 {
        to_its_end(seed, move || {
            let mut network = Network::new(seed);
            let (ours, theirs) = connect(&mut network, By::Plain, None);
            let limits = TimeLimits { silence: Duration::from_secs(300), ..TimeLimits::default() };
            let link = Link::start(ours, (server(), Inquiry::default()), info(), limits, Transport::Tcp, None).unwrap();
            thread::scope(|s| {
                // Nothing is read, so that the ring fills up.
                let fill = || while link.send(WORKS, &[&[1; 100]]).is_ok() {};
                let callers: Vec<_> = (0..THREADS).map(|_| s.spawn(fill)).collect();
                let full = || link.position() >= ring::CAPACITY as u64;
                while !full() {
                    thread::yield_now();
                }
                thread::sleep(Duration::from_micros(network.random().below(3000)));
                assert!(callers.iter().all(|c| !c.is_finished()), "seed {seed}: the ring has no end");
                if seed % 2 == 0 {
                    theirs.shutdown()
                } else {
                    link.abandon()
                }
                callers.into_iter().for_each(|c| c.join().unwrap());
            });
            drop(theirs);
        });
    }
}
