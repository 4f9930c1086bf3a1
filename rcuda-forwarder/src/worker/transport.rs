//! How a worker gets calls and gives answers: over the connection, or through memory that it shares with its client.

use crate::conn::{Ahead, Conn, Eager};
use crate::frame::ANSWER_HEAD;
use crate::greet;
use crate::pipe::{Closed, Writer};
use crate::place::Place;
use crate::ring::Calls;
use crate::shm::{Memory, Which};
use nix::poll::PollFlags;
use std::fmt::Debug;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Takes messages to the client.
pub(super) trait Answers: Debug + Send {
    /// Writes a message.
    fn write_pieces(&mut self, pieces: &[&[u8]]) -> io::Result<()>;

    /// Whether a heartbeat can be written without waiting.
    fn has_room(&self) -> bool;

    /// How many bytes have been written, and how many of them the job has read; `None` over a network, where that is not known.
    fn progress(&self) -> Option<Progress>;
}

/// Positions in a pipe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    pub(super) written: u64,
    /// By the job's own word.
    pub(super) read: u64,
}

impl Answers for Arc<Conn> {
    fn write_pieces(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        Conn::write_pieces(self, pieces)
    }

    fn has_room(&self) -> bool {
        self.ready(PollFlags::POLLOUT, Duration::ZERO).is_ok_and(|seen| seen == PollFlags::POLLOUT)
    }

    fn progress(&self) -> Option<Progress> {
        None
    }
}

impl Answers for Writer {
    fn write_pieces(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        Writer::write_pieces(self, pieces)
    }

    fn has_room(&self) -> bool {
        self.room().is_ok_and(|room| room >= ANSWER_HEAD as u64)
    }

    fn progress(&self) -> Option<Progress> {
        let (written, read) = Writer::progress(self);
        Some(Progress { written, read })
    }
}

/// Where calls come from and answers go.
pub(super) type Ways = (Box<dyn Ahead>, Box<dyn Answers>);

/// Opens the ways to a client: over a network, its connection; otherwise, memory that it has created.
pub(super) fn open(conn: &Arc<Conn>, place: &impl Place, deadline: Instant) -> io::Result<Ways> {
    if conn.is_tcp() {
        return Ok((Box::new(Eager::new(conn.clone())), Box::new(conn.clone())));
    }
    let mapped = map(conn, place, deadline);
    // A client that cannot share memory may use the network instead.
    let why = mapped.as_ref().map(|_| ()).map_err(ToString::to_string);
    greet::answer(conn, why.as_ref().map(|()| &[][..]).map_err(|why| &**why))?;
    let memory = mapped?;
    let warm = memory.clone();
    // On failure the first calls are only slower.
    let _ = crate::threads::spawn("mrcuda-warm", move || warm.warm());
    // It is never set: when the client ends, so does this process.
    let closed = Closed::default();
    let answers = Writer::new(memory.clone(), Which::Answers, closed.clone());
    Ok((Box::new(Calls::new(memory, closed)), Box::new(answers)))
}

/// Maps the memory of a client.
fn map(conn: &Conn, place: &impl Place, deadline: Instant) -> io::Result<Arc<Memory>> {
    let (fd, pinned) = conn.receive_descriptors(deadline)?;
    let memory = Memory::received(fd.as_fd())?;
    pinned.map_or(Ok(()), |file| place.set_pinned_file(file))?;
    Ok(Arc::new(memory))
}
