//! What happens at a server, as it tells those who follow it, and the messages that carry it (docs/formats.md, "Events").

use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::greet::{self, GreetError, Opening};
use crate::link::{Credentials, LinkError, TimeLimits, greeted, refused};
use crate::user_by::UserBy;
use cuda_api::wire::Wire;
use cuda_api::{wire_enum, wire_struct};
use std::io;
use std::time::{Duration, Instant};

/// Interval between two messages of a server at which nothing happens.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// A server that has sent nothing for so long is lost.
const SILENCE: Duration = Duration::from_secs(30);

wire_enum! {
    /// A kind of event.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ServerEventKind {
        /// A worker serves a job.
        JobCame = 0,
        /// A job has ended, or left without taking anything along.
        JobLeft = 1,
        /// A job has moved away.
        JobMoved = 2,
        /// The worker of a job has failed.
        JobLost = 3,
        /// A job was refused.
        JobRefused = 4,
        /// A job was asked to move.
        MoveAsked = 5,
        /// A job that was asked to move stays.
        JobStays = 6,
        /// The server takes no new jobs, and asks those that it serves to move away.
        DrainBegan = 7,
        /// It no longer does so.
        DrainEnded = 8,
        /// Events were left out, because they were not read in time.
        Dropped = 9,
        /// A job gives no sign of life: its memory was taken off the GPU.
        JobEvicted = 10,
        /// It goes on, and waits until the GPU has room for its memory.
        JobWaits = 11,
        /// Its memory is back on the GPU.
        JobRestored = 12,
    }
}

wire_struct! {
    /// Something that has happened at a server. What does not apply, or is not shown to who asks, is absent.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ServerEvent {
        /// When, in milliseconds since 1970.
        pub unix_ms: u64,
        /// What.
        pub kind: ServerEventKind,
        /// The worker's process.
        pub worker: Option<u32>,
        /// Number of the GPU; absent for a job that is parked in the server's memory.
        pub gpu: Option<u32>,
        /// The job's process: from a Unix socket as the kernel says, over a network by the client's own word.
        pub pid: Option<u32>,
        /// The address of the job's machine; absent for the server's own.
        pub host: Option<String>,
        /// The number of the job's user, if the kernel or munge says.
        pub uid: Option<u32>,
        /// The name of the job's user.
        pub user: Option<String>,
        /// How that is known.
        pub user_by: Option<UserBy>,
        /// Where the job, or all jobs, were asked to move.
        pub to: Option<String>,
        /// Why the job was refused, or stays.
        pub reason: Option<String>,
        /// Number of jobs that are served when a drain begins or ends, of events that were left out, or of bytes of a stopped job's memory.
        pub count: Option<u64>,
    }
}

impl ServerEvent {
    /// One about nothing else.
    pub fn new(kind: ServerEventKind, unix_ms: u64) -> ServerEvent {
        ServerEvent {
            unix_ms,
            kind,
            worker: None,
            gpu: None,
            pid: None,
            host: None,
            uid: None,
            user: None,
            user_by: None,
            to: None,
            reason: None,
            count: None,
        }
    }

    /// Sends it.
    pub(crate) fn send(&self, conn: &Conn) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        greet::answer(conn, Ok(&bytes))
    }
}

/// The events of a server, from now on.
#[derive(Debug)]
pub struct ServerEvents {
    conn: Conn,
    to: Endpoint,
}

impl ServerEvents {
    /// Follows a server; the GPU in the endpoint does not matter. `credentials` as for [`crate::Link::connect`]. What happens after this
    /// returns is among the events.
    pub fn follow(to: &Endpoint, credentials: Option<&Credentials>) -> Result<ServerEvents, LinkError> {
        let limits = TimeLimits::default();
        let (conn, _) = greeted(to, credentials, &|_| Opening::Events, &limits)?;
        let events = ServerEvents { conn, to: to.clone() };
        // The first message says that it is on the list.
        events.read(Instant::now() + limits.greeting).map_err(|why| refused(to, &why))?;
        Ok(events)
    }

    /// The next event, for which it waits. An error if the connection is lost.
    pub fn next_event(&self) -> Result<ServerEvent, LinkError> {
        loop {
            if let Some(event) = self.read(Instant::now() + SILENCE).map_err(|why| refused(&self.to, &why))? {
                return Ok(event);
            }
        }
    }

    /// The next message: an event, or a sign of life.
    fn read(&self, until: Instant) -> Result<Option<ServerEvent>, GreetError> {
        let body = greet::read_answer(&self.conn, until)?;
        if body.is_empty() {
            return Ok(None);
        }
        let mut rest = &body[..];
        ServerEvent::get(&mut rest).ok().filter(|_| rest.is_empty()).map(Some).ok_or(GreetError::Garbage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::pair;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn events_are_read_as_written_between_signs_of_life() {
        let (conn, there) = pair();
        let events = ServerEvents { conn, to: "b:1".parse().unwrap() };
        for kind in ServerEventKind::ALL {
            let event = ServerEvent { pid: Some(7), to: Some("local".into()), count: Some(3), ..ServerEvent::new(kind, 5) };
            greet::answer(&there, Ok(&[])).unwrap();
            event.send(&there).unwrap();
            assert_eq!(events.next_event().unwrap(), event);
        }
        drop(there);
        assert!(events.next_event().is_err());
    }

    #[test]
    fn malformed_events_are_refused() {
        let mut whole = Vec::new();
        ServerEvent::new(ServerEventKind::Dropped, 5).put(&mut whole);
        let unknown = [&whole[..8], &[ServerEventKind::ALL.len() as u8], &whole[9..]].concat();
        for body in [whole[..whole.len() - 1].to_vec(), [&whole[..], &[0]].concat(), unknown] {
            let (conn, there) = pair();
            greet::answer(&there, Ok(&body)).unwrap();
            let events = ServerEvents { conn, to: "b:1".parse().unwrap() };
            assert!(matches!(events.read(soon()), Err(GreetError::Garbage)), "{body:?}");
        }
    }
}
