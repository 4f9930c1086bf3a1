//! Measures the connection to a server: the time of a round trip, and the rate at which bytes travel (docs/formats.md, "Trials").
//!
//! The client asks for it over a connection of its own, which the daemon serves itself; no GPU and no worker takes part.

use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::greet::{self, Opening};
use crate::link::{Credentials, LinkError, TimeLimits, greeted, refused};
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Requests of the client, followed by a number of bytes (u64).
const SEND: u8 = 1;
const RECEIVE: u8 = 2;
/// Maximum number of bytes of one request.
const LARGEST: u64 = 64 << 20;
/// Bytes that are written or read at a time.
const PIECE: usize = 256 << 10;
/// How long a server serves one trial.
const LONGEST: Duration = Duration::from_secs(20);
/// Number of round trips, of which the middle one counts.
const TRIPS: usize = 21;
/// The rate is measured by a transfer that takes at least this time, or has [`LARGEST`] bytes.
const LONG_ENOUGH: Duration = Duration::from_millis(300);
/// Bytes of the first transfer.
const FIRST: u64 = 1 << 20;

/// What a trial has measured, over one connection, protected as that of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// From a message to the answer.
    pub round_trip: Duration,
    /// To the server, in bytes per second.
    pub up: f64,
    /// From the server.
    pub down: f64,
}

/// Serves a trial until the client has disconnected.
pub(crate) fn serve(conn: &Conn) -> io::Result<()> {
    let until = Instant::now() + LONGEST;
    greet::answer(conn, Ok(&[]))?;
    let mut piece = vec![0; PIECE];
    loop {
        let mut head = [0; 9];
        match conn.read_exact_by(&mut head, until) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let [request, bytes @ ..] = head;
        let bytes = u64::from_le_bytes(bytes);
        match request {
            SEND if bytes <= LARGEST => write(conn, &piece, bytes, until)?,
            RECEIVE if bytes <= LARGEST => {
                read(conn, &mut piece, bytes, until)?;
                write(conn, &piece, 1, until)?;
            }
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "a malformed request of a trial")),
        }
    }
}

fn write(mut conn: &Conn, piece: &[u8], bytes: u64, until: Instant) -> io::Result<()> {
    let mut left = bytes as usize;
    while left > 0 {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let now = left.min(piece.len());
        conn.write_all(&piece[..now])?;
        left -= now;
    }
    Ok(())
}

fn read(conn: &Conn, piece: &mut [u8], bytes: u64, until: Instant) -> io::Result<()> {
    let mut left = bytes as usize;
    while left > 0 {
        let now = left.min(piece.len());
        conn.read_exact_by(&mut piece[..now], until)?;
        left -= now;
    }
    Ok(())
}

/// Measures the connection to a server; the GPU in the endpoint does not matter. `credentials` as for [`crate::Link::connect`].
pub fn trial(to: &Endpoint, credentials: Option<&Credentials>) -> Result<Trial, LinkError> {
    let limits = TimeLimits::default();
    let (conn, _) = greeted(to, credentials, &|_| Opening::Trial, &limits)?;
    let measured = greet::read_answer(&conn, Instant::now() + limits.greeting).and_then(|_| {
        conn.limit_unread(limits.silence)?;
        Ok(measure(&conn)?)
    });
    measured.map_err(|why| refused(to, &why))
}

fn measure(mut conn: &Conn) -> io::Result<Trial> {
    let until = Instant::now() + LONGEST;
    let mut piece = vec![0; PIECE];
    let mut run = |request: u8, bytes: u64| -> io::Result<Duration> {
        let began = Instant::now();
        conn.write_all(&[&[request][..], &bytes.to_le_bytes()].concat())?;
        if request == RECEIVE {
            write(conn, &piece, bytes, until)?;
        }
        read(conn, &mut piece, if request == RECEIVE { 1 } else { bytes }, until)?;
        Ok(began.elapsed())
    };
    let mut trips = (0..TRIPS).map(|_| run(SEND, 1)).collect::<io::Result<Vec<_>>>()?;
    trips.sort();
    let round_trip = trips[TRIPS / 2];
    let mut rate = |request| -> io::Result<f64> {
        let mut bytes = FIRST;
        loop {
            let took = run(request, bytes)?;
            if took >= LONG_ENOUGH || bytes == LARGEST {
                // The request and its answer travel, too.
                return Ok(bytes as f64 / took.saturating_sub(round_trip).max(Duration::from_nanos(1)).as_secs_f64());
            }
            bytes = (4 * bytes).min(LARGEST);
        }
    };
    Ok(Trial { round_trip, up: rate(RECEIVE)?, down: rate(SEND)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::pair;

    #[test]
    fn a_connection_is_measured() {
        let (here, there) = pair();
        let server = std::thread::spawn(move || serve(&there));
        greet::read_answer(&here, Instant::now() + LONGEST).unwrap();
        let trial = measure(&here).unwrap();
        assert!(trial.round_trip > Duration::ZERO && trial.up > 0.0 && trial.down > 0.0, "{trial:?}");
        drop(here);
        server.join().unwrap().unwrap();
    }

    #[test]
    fn what_no_client_asks_ends_the_trial() {
        for (request, bytes) in [(SEND, LARGEST + 1), (RECEIVE, u64::MAX), (0, 1), (3, 1)] {
            let (mut here, there) = pair();
            here.write_all(&[&[request][..], &bytes.to_le_bytes()].concat()).unwrap();
            assert_eq!(serve(&there).unwrap_err().kind(), io::ErrorKind::InvalidData, "{request} {bytes}");
        }
    }
}
