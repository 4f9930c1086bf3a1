//! Copies of the job between two fake memories, and ends that do not keep to the protocol.

use super::Fake;
use crate::error::SyncError;
use crate::frames::BATCH;
use crate::parts::{receive, send};
use crate::region::Kind;
use crate::{Part, Stream};
use std::io::Write;
use std::os::unix::net::UnixStream;

fn pairs(n: usize) -> [Vec<Box<dyn Stream>>; 2] {
    let mut ends = [Vec::new(), Vec::new()];
    for _ in 0..n {
        let (a, b) = UnixStream::pair().expect("sockets");
        ends[0].push(Box::new(a) as Box<dyn Stream>);
        ends[1].push(Box::new(b) as Box<dyn Stream>);
    }
    ends
}

fn part(address: u64, pitch: u64, width: u64, rows: u64) -> Part {
    Part { address, pitch, width, rows }
}

/// A copy, whose ends close their connections when they are over.
fn copy(
    [from, to]: [&Fake; 2],
    [mut out, mut into]: [Vec<Box<dyn Stream>>; 2],
    read: &[Part],
    written: &[Part],
    numbers: [u64; 2],
) -> [Result<(), SyncError>; 2] {
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || send(from, &mut out, numbers[0], read));
        let received = receive(to, &mut into, numbers[1], written);
        drop(into);
        [sent.join().expect("no panic"), received]
    })
}

#[test]
fn rows_and_ranges_arrive_and_nothing_else_changes() {
    const SIZE: usize = 3 * BATCH + 77;
    for conns in [1, 3] {
        let from = Fake::new(&[(0x1000_0000, SIZE, Kind::Chunk, 1), (0x9000_0000, 4096, Kind::Chunk, 3)]);
        let to = Fake::new(&[(0x2000_0000, SIZE, Kind::Chunk, 2)]);
        let mut want = to.contents()[&0x2000_0000].1.clone();
        let (source, second) = (from.contents()[&0x1000_0000].1.clone(), from.contents()[&0x9000_0000].1.clone());
        let long = 2 * BATCH + 5;
        let read = [part(0x1000_0007, 0, long as u64, 1), part(0x9000_0000, 100, 60, 9)];
        let written = [part(0x2000_0003, 0, long as u64, 1), part(0x2000_0000 + 2 * BATCH as u64 + 8, 64, 60, 9)];
        let ends = copy([&from, &to], pairs(conns), &read, &written, [5, 5]);
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
        want[3..3 + long].copy_from_slice(&source[7..7 + long]);
        for row in 0..9 {
            let at = 2 * BATCH + 8 + row * 64;
            want[at..at + 60].copy_from_slice(&second[row * 100..row * 100 + 60]);
        }
        assert!(to.contents()[&0x2000_0000].1 == want);
    }
}

#[test]
fn several_copies_follow_each_other_on_the_same_connections() {
    let from = Fake::new(&[(0x1000_0000, 1 << 20, Kind::Chunk, 1)]);
    let to = Fake::new(&[(0x2000_0000, 1 << 20, Kind::Chunk, 2)]);
    let [mut out, mut into] = pairs(2);
    for number in 0..5 {
        let n = 1000 + number * 7;
        let (read, written) = ([part(0x1000_0000 + number, 0, n, 1)], [part(0x2000_0000, 0, n, 1)]);
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| send(&from, &mut out, number, &read));
            receive(&to, &mut into, number, &written).unwrap();
            sent.join().expect("no panic").unwrap();
        });
        let (source, target) = (from.contents()[&0x1000_0000].1.clone(), to.contents()[&0x2000_0000].1.clone());
        assert_eq!(target[..n as usize], source[number as usize..(number + n) as usize]);
    }
}

#[test]
fn memory_that_does_not_exist_is_an_error_of_its_end() {
    let from = Fake::new(&[(0x1000_0000, 1 << 20, Kind::Chunk, 1)]);
    let to = Fake::new(&[(0x2000_0000, 1 << 20, Kind::Chunk, 2)]);
    let written = [part(0x2000_0000, 0, 4096, 1)];
    let [sent, received] = copy([&from, &to], pairs(2), &[part(0x1000_0000 + (1 << 20) - 5, 0, 4096, 1)], &written, [1, 1]);
    assert!(matches!(sent, Err(SyncError::Regions(_))), "{sent:?}");
    assert!(received.as_ref().is_err_and(SyncError::is_io), "{received:?}");
}

/// What a hostile end may send in place of a copy of 100 bytes with the number 7.
#[test]
fn what_an_end_takes_does_not_depend_on_the_other() {
    let head = |number: u64, bytes: u64| [number.to_le_bytes(), bytes.to_le_bytes()].concat();
    let with = |head: Vec<u8>, n: usize| [head, vec![0xab; n]].concat();
    let own = part(0x2000_0000, 0, 100, 1);
    for (what, bytes, protocol) in [
        ("another number", with(head(6, 100), 100), true),
        ("more bytes", with(head(7, 101), 101), true),
        ("fewer bytes", with(head(7, 99), 99), true),
        ("too few", with(head(7, 100), 99), false),
        ("nothing", Vec::new(), false),
    ] {
        let to = Fake::new(&[(0x2000_0000, 200, Kind::Chunk, 2)]);
        let before = to.contents();
        let (mut theirs, ours) = UnixStream::pair().expect("sockets");
        theirs.write_all(&bytes).expect("sent");
        drop(theirs);
        let got = receive(&to, &mut [Box::new(ours) as Box<dyn Stream>], 7, &[own]);
        assert!(got.as_ref().is_err_and(|e| e.is_io() != protocol), "{what}: {got:?}");
        assert!(to.contents() == before, "{what}: nothing is written");
    }
    // Bytes behind a copy are not those of the next one.
    let to = Fake::new(&[(0x2000_0000, 200, Kind::Chunk, 2)]);
    let (mut theirs, ours) = UnixStream::pair().expect("sockets");
    theirs.write_all(&with(head(7, 100), 300)).expect("sent");
    let mut conns = [Box::new(ours) as Box<dyn Stream>];
    receive(&to, &mut conns, 7, &[own]).unwrap();
    let next = receive(&to, &mut conns, 8, &[part(0x2000_0000 + 100, 0, 100, 1)]);
    assert!(matches!(next, Err(SyncError::Protocol(_))), "{next:?}");
    assert_eq!(to.contents()[&0x2000_0000].1[100..], Fake::new(&[(0, 200, Kind::Chunk, 2)]).contents()[&0].1[100..]);
}
