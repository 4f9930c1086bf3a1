//! The state of a link, with the source of its answers.

use super::answers::Answers;
use super::common::Common;
use super::replies::Waiter;
use super::socket::Socket;

/// Source of answers.
#[derive(Debug)]
pub(super) enum Source {
    Socket(Socket),
    Memory(Answers),
}

/// State shared by the program's threads and ours.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) common: Common,
    pub(super) answers: Source,
}

impl Shared {
    /// Polls for the answer that `waiter` waits for, for a short time.
    pub(super) fn poll(&self, waiter: &Waiter) {
        match &self.answers {
            Source::Socket(socket) => self.common.poll_socket(socket, waiter),
            Source::Memory(answers) => self.common.poll_ring(answers, waiter),
        }
    }

    /// Reads answers when no other thread does, until the connection is closed.
    pub(super) fn receive_all(&self) {
        match &self.answers {
            Source::Socket(socket) => self.common.receive_all(socket),
            Source::Memory(answers) => self.common.receive_shared(answers),
        }
    }

    /// Sends the calls in the ring, or watches whether the worker that takes them exists, until the connection is closed.
    pub(super) fn send_all(&self) {
        match &self.answers {
            Source::Socket(_) => self.common.send_all(),
            Source::Memory(answers) => self.common.watch(answers),
        }
    }
}
