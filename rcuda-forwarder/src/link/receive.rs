//! Receiving: completes answers, passes on faults, detects a worker that is silent or has ended.

use super::bulk::write_registered;
use super::common::{Common, Fault};
use super::replies::Landing;
use super::time_limits::Silence;
use crate::conn::Conn;
use crate::frame::{ALIVE, ANSWER_HEAD, ANSWER_WANTED, AnswerHead, CHANGES, HEARTBEAT, LEAVE, MEMORY, NO_TICKET, TEXT};
use crate::inbox::Inbox;
use crate::leave_request::{self, LeaveRequest};
use crate::sync::lock;
use cuda_api::code;
use nix::poll::PollFlags;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

/// Reads a connection; a peer that sends nothing for too long is an error.
#[derive(Debug)]
pub(super) struct Patient {
    conn: Arc<Conn>,
    silence: Duration,
}

impl Patient {
    pub(super) fn new(conn: Arc<Conn>, silence: Duration) -> Patient {
        Patient { conn, silence }
    }
}

/// The error for a worker that has sent nothing for too long.
pub(super) fn silent(silence: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no sign of life for {silence:?}"))
}

impl Read for Patient {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            // Data is usually available. A part of a TLS record does not count.
            match self.conn.try_read(to) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            let mut silence = Silence::new(self.silence);
            while self.conn.ready(PollFlags::POLLIN, silence.interval())?.is_empty() {
                if silence.goes_on() && self.conn.ready(PollFlags::POLLIN, Duration::ZERO)?.is_empty() {
                    return Err(silent(self.silence));
                }
            }
        }
    }
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed message from the worker: {what}"))
}

/// Maximum bytes of one message with text, and of one with changes of host memory.
const MAX_TEXT: usize = 1 << 20;
const MAX_CHANGES: usize = 2 << 20;

impl Common {
    fn text(&self, to: i32, text: Vec<u8>) {
        let mut texts = lock(&self.texts);
        match texts.hook.clone() {
            Some(hook) => {
                drop(texts);
                hook(to, &text);
            }
            None => texts.before.push((to, text)),
        }
    }

    fn leave(&self, request: LeaveRequest) {
        let mut leaves = lock(&self.leaves);
        match leaves.hook.clone() {
            Some(hook) => {
                drop(leaves);
                hook(request);
            }
            None => {
                leaves.before.retain(|other| other.request.is_some() != request.request.is_some());
                leaves.before.push(request);
            }
        }
    }

    /// Tells the worker that this process runs. Calls say that, too: if some wait to be sent, there is nothing to say.
    fn answer_heartbeat(&self) {
        // In shared memory the worker sees that the heartbeat was read.
        if self.answers_heartbeats {
            // Whether the connection still exists shows elsewhere.
            let _ = self.ring.push_alone_at(self.ring.position(), ALIVE);
        }
    }

    /// Receives one message; false at the end of the connection.
    pub(super) fn receive<R: Read>(&self, inbox: &mut Inbox<R>) -> io::Result<bool> {
        let Some(head) = inbox.head::<ANSWER_HEAD>()? else { return Ok(false) };
        let head = AnswerHead::read(&head);
        let bytes = head.body().ok_or_else(|| nonsense("its length"))?;
        match head.ticket {
            HEARTBEAT if bytes == 0 => {
                if head.code == ANSWER_WANTED {
                    self.answer_heartbeat();
                }
                return Ok(true);
            }
            HEARTBEAT => return Err(nonsense("a sign of life with a body")),
            TEXT if bytes > MAX_TEXT || !matches!(head.code, 1 | 2) => return Err(nonsense("text")),
            TEXT => {
                let mut text = Vec::new();
                inbox.append(&mut text, bytes)?;
                self.text(head.code, text);
                return Ok(true);
            }
            CHANGES if bytes > MAX_CHANGES => return Err(nonsense("changes")),
            CHANGES => {
                let mut changes = Vec::new();
                inbox.append(&mut changes, bytes)?;
                if !self.alike.take_over(&changes) {
                    return Err(nonsense("changes"));
                }
                self.bulk.note_changes();
                return Ok(true);
            }
            LEAVE if bytes > leave_request::LONGEST => return Err(nonsense("a request to leave")),
            LEAVE => {
                let mut body = Vec::new();
                inbox.append(&mut body, bytes)?;
                self.leave(LeaveRequest::read(&body).ok_or_else(|| nonsense("a request to leave"))?);
                return Ok(true);
            }
            MEMORY if bytes > 0 || !matches!(head.code, 0 | 1) => return Err(nonsense("news of the job's memory")),
            MEMORY => {
                match head.code {
                    1 => tracing::warn!(
                        target: "place",
                        "this job was stopped, so the server has its GPU memory in host memory: calls wait until the GPU has room for it"
                    ),
                    _ => tracing::warn!(target: "place", "the GPU memory of this job is back: calls go on"),
                }
                return Ok(true);
            }
            NO_TICKET => {
                let mut id = [0; 2];
                if bytes != id.len() {
                    return Err(nonsense("a fault report of another size"));
                }
                inbox.take_into(&mut id)?;
                self.fault(Fault { code: head.code, id: u16::from_le_bytes(id) });
                return Ok(true);
            }
            _ => {}
        }
        let waiter = self.replies.find(head.ticket).ok_or_else(|| nonsense("an answer to no request"))?;
        let mut body = Vec::new();
        match &waiter.landing {
            Some(landing) if head.code == code::SUCCESS => {
                if landing.bytes() != Some(bytes) {
                    return Err(nonsense("an answer of another size than its landing"));
                }
                land(inbox, landing)?;
            }
            _ => inbox.append(&mut body, bytes)?,
        }
        if let Some(id) = waiter.unread.filter(|_| head.code != code::SUCCESS) {
            self.fault(Fault { code: head.code, id });
        }
        self.replies.forget(head.ticket);
        waiter.complete(Ok((head.code, body)));
        Ok(true)
    }
}

fn land<R: Read>(inbox: &mut Inbox<R>, landing: &Landing) -> io::Result<()> {
    let mut put = |offset: usize, bytes: usize| {
        // SAFETY: the caller of `request_into` keeps the landing writable until the answer has come, and nothing of ours
        // refers to it; the rows lie inside it by its definition.
        let to = unsafe { std::slice::from_raw_parts_mut(landing.ptr.wrapping_add(offset), bytes) };
        inbox.take_into(to)
    };
    if landing.width == 0 || landing.rows == 0 {
        return Ok(());
    }
    if landing.pitch == landing.width || landing.rows == 1 {
        let bytes = landing.width * landing.rows;
        if !landing.is_registered {
            return put(0, bytes);
        }
        let mut taken = Vec::new();
        inbox.append(&mut taken, bytes)?;
        // SAFETY: as above.
        unsafe { write_registered(&taken, landing.ptr) };
        return Ok(());
    }
    (0..landing.rows).try_for_each(|row| put(row * landing.pitch, landing.width))
}
