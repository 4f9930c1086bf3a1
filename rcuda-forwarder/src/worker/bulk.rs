//! The worker's end of the connections that carry the bytes of large copies: between the job and the staging areas.

use crate::bulk::{ANSWER, HEAD, Head, fill};
use crate::conn::Conn;
use crate::limits::JOB_UNACKNOWLEDGED;
use executor::staging::{Segment, Staging};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::time::Instant;

/// Number of segments that are asked for at a time, so that the next one follows at once.
const ASKED: usize = 2;
/// Number of segments that are sent before the first of them has arrived.
const SENT: usize = 4;

/// Prepares a connection for them. Its peer is a job, which its user may stop for a while, and not another place, which always reads.
pub(super) fn prepare(conn: &Conn) -> io::Result<()> {
    conn.limit_unacknowledged(JOB_UNACKNOWLEDGED)
}

/// Receives the job's file for the regions.
pub(super) fn receive_file(conn: &Conn, staging: &Staging, deadline: Instant) -> io::Result<()> {
    match conn.receive_descriptors(deadline)? {
        (file, None) => staging.share(file),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "one descriptor was expected")),
    }
}

fn head(segment: &Segment) -> [u8; HEAD] {
    Head { token: segment.token, offset: segment.offset, bytes: segment.size() as u64, at: segment.in_file() }.bytes()
}

fn answer(conn: &Conn) -> io::Result<u64> {
    let mut bytes = [0; ANSWER];
    fill(conn, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn nonsense() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "an answer of another size")
}

/// Asks for the bytes of copies to the device and receives them directly into the staging areas, unless the job has put them there. Returns when the connection fails.
pub(super) fn receive(conn: &Conn, staging: &Staging) -> io::Result<()> {
    let mut asked: VecDeque<Segment> = VecDeque::new();
    loop {
        while asked.len() < ASKED {
            let next = if asked.is_empty() { Some(staging.next(true)) } else { staging.try_next(true) };
            let Some(segment) = next else { break };
            (&mut &*conn).write_all(&head(&segment))?;
            asked.push_back(segment);
        }
        let Some(mut segment) = asked.pop_front() else { continue };
        match answer(conn)? {
            // The copy has failed, and the job has given up its memory.
            0 => {}
            n if n != segment.size() as u64 => return Err(nonsense()),
            _ if segment.in_file().is_some() => {}
            _ => fill(conn, segment.bytes_mut())?,
        }
        staging.over(&segment);
    }
}

/// Sends the bytes of copies to the host, or says where the job finds them. Returns when the connection fails.
pub(super) fn send(conn: &Conn, staging: &Staging) -> io::Result<()> {
    let mut sent: VecDeque<Segment> = VecDeque::new();
    loop {
        let next = match sent.len() {
            0 => Some(staging.next(false)),
            SENT => None,
            _ => staging.try_next(false),
        };
        if let Some(segment) = next {
            let bytes = if segment.in_file().is_some() { &[][..] } else { segment.bytes() };
            conn.write_pieces(&[&head(&segment), bytes])?;
            sent.push_back(segment);
            continue;
        }
        let Some(segment) = sent.pop_front() else { continue };
        if answer(conn)? != segment.size() as u64 {
            return Err(nonsense());
        }
        staging.over(&segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::BULK_UNACKNOWLEDGED;
    use nix::sys::socket::{getsockopt, sockopt};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_job_may_be_stopped_in_the_middle_of_a_copy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _job = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let conn = Conn::new(listener.accept().unwrap().0.into());
        // As the daemon does for all connections with a ticket.
        conn.limit_unacknowledged(BULK_UNACKNOWLEDGED).unwrap();
        prepare(&conn).unwrap();
        let limit = getsockopt(&conn.socket().unwrap(), sockopt::TcpUserTimeout).unwrap();
        assert_eq!(u128::from(limit), JOB_UNACKNOWLEDGED.as_millis());
    }
}
