//! Connections over sockets.

use super::*;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::os::fd::AsRawFd;

#[test]
fn deadlines_hold_though_bytes_drip() {
    let (a, mut b) = pair();
    std::thread::spawn(move || {
        while b.write_all(&[1]).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let began = Instant::now();
    let e = a.read_exact_by(&mut [0; 100], began + Duration::from_millis(200)).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::TimedOut);
    assert!(began.elapsed() < Duration::from_millis(1500));
}

#[test]
fn a_unix_socket_whose_queue_is_full_is_not_waited_for_longer_than_asked() {
    let path = std::env::temp_dir().join(format!("mrcuda-queue-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // SAFETY: an open socket; a shorter queue takes nothing away.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let to: Endpoint = format!("unix:{}", path.display()).parse().unwrap();
    let mut queued = Vec::new();
    let began = Instant::now();
    let why = loop {
        match Conn::open(&to, began + Duration::from_millis(300)) {
            Ok(conn) => queued.push(conn),
            Err(e) => break e,
        }
        assert!(queued.len() < 10_000, "the queue has an end");
    };
    assert_eq!(why.kind(), io::ErrorKind::TimedOut);
    drop(listener.accept().unwrap());
    Conn::open(&to, Instant::now() + Duration::from_secs(20)).unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_peer_that_goes_before_it_sends_its_descriptors_is_named_so() {
    let (a, b) = pair();
    drop(b);
    let why = a.receive_descriptors(Instant::now() + Duration::from_secs(5)).unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::UnexpectedEof);
    assert!(why.to_string().contains("went away"), "{why}");
}

#[test]
fn descriptors_that_nobody_expected_are_closed() {
    let (a, b) = pair();
    let (mut reader, writer) = io::pipe().unwrap();
    let fds = [writer.as_raw_fd(); 9];
    let rights = [ControlMessage::ScmRights(&fds)];
    sendmsg::<()>(b.socket().unwrap().as_raw_fd(), &[io::IoSlice::new(&[0])], &rights, MsgFlags::empty(), None).unwrap();
    drop(writer);
    let why = a.receive_descriptors(Instant::now() + Duration::from_secs(5)).unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::InvalidData);
    let mut none = Vec::new();
    reader.read_to_end(&mut none).unwrap();
}

#[test]
fn pieces_arrive_in_order_and_whole() {
    let (a, mut b) = pair();
    let big = vec![5u8; 3 << 20];
    let parts: Vec<&[u8]> = std::iter::once(&big[..]).chain((0..3000).map(|_| &b"xy"[..])).chain([&b""[..]]).collect();
    let want = parts.concat();
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        b.read_to_end(&mut got).unwrap();
        got
    });
    a.write_pieces(&parts).unwrap();
    drop(a);
    assert!(reader.join().unwrap() == want);
}

#[test]
fn a_gone_peer_is_an_error_and_no_signal() {
    let (mut a, b) = pair();
    drop(b);
    assert!(a.write_all(&[0; 10]).is_err());
    assert_eq!(
        a.read_exact_by(&mut [0], Instant::now() + Duration::from_secs(5)).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
}
