//! Messages over a fake network: whole and in order whatever it does to them, and an error where it breaks.

use super::fake::{By, connect};
use super::*;
use crate::inbox::Inbox;
use fake_network::{Network, Random, to_its_end};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const SEEDS: u64 = 500;
/// Bytes before each message: its length.
const HEAD: usize = 8;
/// Longer than any test of a seed takes.
const LONG: Duration = Duration::from_secs(300);

/// Messages of a direction.
fn messages(seed: u64, most: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    let count = 1 + random.below(6);
    let length = |random: &mut Random| match random.below(4) {
        0 => random.below(4),
        1 => random.below(most),
        _ => random.below(most.min(300)),
    };
    (0..count)
        .map(|_| {
            let n = length(&mut random);
            (0..n).map(|_| random.draw() as u8).collect()
        })
        .collect()
}

/// Writes messages, in several ways.
fn write(mut conn: &Conn, random: &mut Random, messages: &[Vec<u8>]) -> io::Result<()> {
    for message in messages {
        let head = (message.len() as u64).to_le_bytes();
        let (first, second) = message.split_at(message.len() / 3);
        match random.below(3) {
            0 => conn.write_pieces(&[&head, message])?,
            1 => conn.write_pieces(&[&head[..3], &[], &head[3..], first, second])?,
            _ => {
                conn.write_all(&head)?;
                conn.write_all(message)?;
            }
        }
    }
    Ok(())
}

/// Reads as a link does: when there is something, without waiting. It takes little at a time, so that records are read in parts.
struct Polled(Arc<Conn>);

impl Read for Polled {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let most = to.len().min(100);
        loop {
            self.0.ready(PollFlags::POLLIN, LONG)?;
            match self.0.try_read(&mut to[..most]) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// Messages that are read through an inbox until the end, and why that came.
fn read_from(mut inbox: Inbox<impl Read>) -> (Vec<Vec<u8>>, io::Result<()>) {
    let mut all = Vec::new();
    let mut next = || -> io::Result<bool> {
        let Some(head) = inbox.head::<HEAD>()? else { return Ok(false) };
        let mut message = Vec::new();
        inbox.append(&mut message, u64::from_le_bytes(head) as usize)?;
        all.push(message);
        Ok(true)
    };
    let end = loop {
        match next() {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    (all, end)
}

/// Reads messages until the end, in a way that the number chooses.
fn read(conn: &Arc<Conn>, way: u64) -> (Vec<Vec<u8>>, io::Result<()>) {
    match way {
        0 => read_from(Inbox::new(Eager::new(conn.clone()))),
        1 => read_from(Inbox::new(Polled(conn.clone()))),
        _ => {
            let (mut all, until) = (Vec::new(), Instant::now() + LONG);
            let mut next = || {
                let mut head = [0; HEAD];
                conn.read_exact_by(&mut head, until)?;
                let mut message = vec![0; u64::from_le_bytes(head) as usize];
                conn.read_exact_by(&mut message, until)?;
                all.push(message);
                Ok::<_, io::Error>(())
            };
            let end = loop {
                if let Err(e) = next() {
                    break e;
                }
            };
            // The end of records that were cut has words of its own.
            let is_end = end.kind() == ErrorKind::UnexpectedEof && end.get_ref().is_none();
            (all, if is_end { Ok(()) } else { Err(end) })
        }
    }
}

/// Runs in which messages were lost.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// Messages in both directions at once.
fn exchange(seed: u64, breaks: bool) {
    let mut network = Network::new(seed);
    let by = if network.random().below(2) == 0 { By::Plain } else { By::Tls };
    let limit = if seed.is_multiple_of(50) { 60_000 } else { 1000 };
    let (a, b) = connect(&mut network, by, breaks.then_some(3 * limit));
    let ends = [Arc::new(a), Arc::new(b)];
    let sent = [messages(seed, limit), messages(!seed, limit)];
    let done: Vec<_> = thread::scope(|s| {
        let all: Vec<_> = (0..2)
            .map(|n| {
                let (from, to, way) = (&ends[n], &ends[1 - n], network.random().below(3));
                let (sent, mut random) = (&sent[n], network.random().split());
                let writer = s.spawn(move || {
                    let written = write(from, &mut random, sent);
                    // Tells the peer of a protected connection that this is the orderly end, and keeps the other direction.
                    from.close_records();
                    let _ = from.stream.shutdown(Shutdown::Write);
                    written
                });
                (way, writer, s.spawn(move || read(to, way)))
            })
            .collect();
        all.into_iter().map(|(way, writer, reader)| (way, writer.join().unwrap(), reader.join().unwrap())).collect()
    });
    for ((way, written, (got, end)), sent) in done.into_iter().zip(&sent) {
        assert!(sent.starts_with(&got), "seed {seed}: {} messages, of which the last is another", got.len());
        if !breaks {
            written.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        let is_whole = got.len() == sent.len();
        assert!(is_whole || breaks, "seed {seed}: {} of {} messages, {end:?}", got.len(), sent.len());
        BROKEN.fetch_add(usize::from(!is_whole), Ordering::Relaxed);
        // Records say that they end; an inbox does not ask why there is nothing more.
        assert!(is_whole || by == By::Plain || way < 2 || end.is_err(), "seed {seed}: a cut looks like the end");
    }
}

#[test]
fn messages_arrive_over_a_network_that_splits_delays_and_interrupts() {
    for seed in fake_network::seeds(SEEDS) {
        to_its_end(seed, move || exchange(seed, false));
    }
}

#[test]
fn a_network_that_breaks_loses_messages_from_one_on_and_nothing_hangs() {
    for seed in fake_network::seeds(SEEDS) {
        to_its_end(seed, move || exchange(seed, true));
    }
    assert!(BROKEN.load(Ordering::Relaxed) > 25, "nearly nothing breaks");
}

#[test]
fn who_waits_at_a_connection_that_is_closed_returns() {
    for seed in 0..200 {
        to_its_end(seed, move || {
            let mut network = Network::new(seed);
            let (a, b) = connect(&mut network, if seed % 2 == 0 { By::Plain } else { By::Tls }, None);
            let (a, b) = (&a, &b);
            thread::scope(|s| {
                let reader = s.spawn(move || { a }.read(&mut [0; 10]));
                let gone = s.spawn(move || a.wait_gone(LONG));
                // Nothing reads it, so that it waits for room.
                let writer = s.spawn(move || { b }.write_all(&[7; 200_000]));
                thread::sleep(Duration::from_micros(network.random().below(2000)));
                if seed % 3 == 0 {
                    a.shutdown()
                } else {
                    b.shutdown()
                }
                assert!(writer.join().unwrap().is_err());
                assert!(gone.join().unwrap());
                // Some bytes may have come before.
                drop(reader.join().unwrap());
            });
        });
    }
}

#[test]
fn what_was_received_with_other_bytes_is_read_without_any_more() {
    for seed in 0..200 {
        to_its_end(seed, move || {
            let mut network = Network::new(seed);
            let (a, b) = connect(&mut network, if seed % 2 == 0 { By::Plain } else { By::Tls }, None);
            // Each waits for all of the other's message before it answers.
            let answer = |conn: Conn, first: bool| {
                let conn = Arc::new(conn);
                for number in 0..10 {
                    let (message, mut got) = ([number; 250], [0; 250]);
                    if first {
                        conn.write_pieces(&[&message]).unwrap();
                    }
                    Polled(conn.clone()).read_exact(&mut got).unwrap();
                    assert_eq!(got, message, "seed {seed}");
                    if !first {
                        conn.write_pieces(&[&message]).unwrap();
                    }
                }
            };
            thread::scope(|s| {
                s.spawn(|| answer(a, true));
                answer(b, false);
            });
        });
    }
}
