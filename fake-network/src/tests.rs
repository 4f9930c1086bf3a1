//! The network itself: nothing is lost, repeated or reordered without a break, and each fault comes up.

use super::*;
use std::thread;

fn pattern(seed: u64, n: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..n).map(|_| random.draw() as u8).collect()
}

/// Sends everything, as a program that knows sockets does.
fn send_all(end: &End, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match end.send(&[IoSlice::new(rest)], true) {
            Ok(n) => rest = &rest[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Receives until the end of the stream, or until an error.
fn receive_all(end: &End) -> (Vec<u8>, Option<ErrorKind>) {
    let (mut all, mut some) = (Vec::new(), [0; 300]);
    loop {
        match end.receive(&mut some, true) {
            Ok(0) => return (all, None),
            Ok(n) => all.extend_from_slice(&some[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return (all, Some(e.kind())),
        }
    }
}

#[test]
fn what_is_sent_arrives_whole_and_in_order() {
    for seed in 0..200 {
        let (a, b) = Network::new(seed).connect();
        let (there, back) = (pattern(seed, 5000), pattern(!seed, 3000));
        thread::scope(|s| {
            s.spawn(|| {
                send_all(&a, &there).unwrap();
                a.shutdown(Shutdown::Write);
            });
            s.spawn(|| {
                send_all(&b, &back).unwrap();
                b.shutdown(Shutdown::Write);
            });
            let at_b = s.spawn(|| receive_all(&b));
            assert_eq!(receive_all(&a), (back.clone(), None), "seed {seed}");
            assert_eq!(at_b.join().unwrap(), (there.clone(), None), "seed {seed}");
        });
    }
}

#[test]
fn a_break_comes_at_its_byte() {
    for (at, how) in (0..100).flat_map(|at| [(at, Break::Cut), (at, Break::Truncate)]) {
        let mut network = Network::new(at);
        let faults = Faults { breaks: Some((0, at, how)), ..Faults::of(network.random()) };
        let (a, b) = network.connect_with(Faults { room: 200, ..faults });
        let data = pattern(at, 100);
        // What is sent before the break succeeds; the byte at it does too, as on a real network, and is lost.
        send_all(&a, &data[..at as usize]).unwrap();
        assert!(!a.has_broken() && !b.has_broken());
        drop(send_all(&a, &data[at as usize..]));
        assert!(a.has_broken() && b.has_broken());
        let (got, error) = receive_all(&b);
        match how {
            Break::Cut => assert!(error == Some(ErrorKind::ConnectionReset) && data.starts_with(&got)),
            Break::Truncate => assert_eq!((got, error), (data[..at as usize].to_vec(), None)),
        }
        assert!(b.send(&[IoSlice::new(b"x")], true).is_err_and(|e| e.kind() != ErrorKind::WouldBlock));
    }
}

#[test]
fn every_fault_comes_up() {
    let all = Faults { splits: true, interrupts: true, again: true, ..Faults::NONE };
    let (a, b) = Network::new(1).connect_with(all);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        seen.insert(match a.send(&[IoSlice::new(&[1; 10])], false) {
            Ok(10) => "sent whole".to_owned(),
            Ok(_) => "sent in part".to_owned(),
            Err(e) => format!("sent: {:?}", e.kind()),
        });
        let _ = b.poll(Duration::ZERO, |e| e.readable);
        seen.insert(match b.receive(&mut [0; 10], false) {
            Ok(10) => "received whole".to_owned(),
            Ok(_) => "received in part".to_owned(),
            Err(e) => format!("received: {:?}", e.kind()),
        });
    }
    let wanted = [
        "received in part",
        "received whole",
        "received: Interrupted",
        "received: WouldBlock",
        "sent in part",
        "sent whole",
        "sent: Interrupted",
    ];
    assert!(wanted.iter().all(|w| seen.contains(*w)), "{seen:?}");
}

#[test]
fn who_waits_is_woken_by_bytes_by_room_and_by_the_end() {
    let (a, b) = Network::new(2).connect_with(Faults { room: 4, ..Faults::NONE });
    thread::scope(|s| {
        let reader = s.spawn(|| b.receive(&mut [0; 4], true));
        thread::sleep(Duration::from_millis(10));
        send_all(&a, &[1; 4]).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), 4);
        send_all(&a, &[1; 4]).unwrap();
        let writer = s.spawn(|| a.send(&[IoSlice::new(&[2])], true));
        thread::sleep(Duration::from_millis(10));
        assert_eq!(b.receive(&mut [0; 2], true).unwrap(), 2);
        assert_eq!(writer.join().unwrap().unwrap(), 1);
        let closed = s.spawn(|| a.poll(Duration::from_secs(60), |e| e.peer_closed));
        thread::sleep(Duration::from_millis(10));
        b.shutdown(Shutdown::Both);
        assert!(closed.join().unwrap().unwrap().hung_up);
    });
}

#[test]
fn connections_overtake_each_other() {
    let slow = Faults { delay: Duration::from_millis(5), ..Faults::NONE };
    let overtaken = (0..500).any(|seed| {
        let mut network = Network::new(seed);
        let ((a, b), (c, d)) = (network.connect_with(slow), network.connect_with(slow));
        send_all(&a, &[1]).unwrap();
        send_all(&c, &[2]).unwrap();
        d.receive(&mut [0], true).unwrap();
        b.receive(&mut [0], false).is_err()
    });
    assert!(overtaken);
}
