//! How the calls and answers of a link travel: over a connection, or through memory that is shared with the worker.

use super::common::Common;
use super::replies::Waiter;
use crate::endpoint::Endpoint;
use std::fmt::Debug;

/// The transport of calls and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A TLS connection.
    Tls,
    /// A TCP connection without encryption.
    Tcp,
    /// RDMA, without encryption.
    Rdma,
    /// Memory shared with a worker on the same machine.
    Shm,
}

impl Transport {
    /// The transport to a server.
    pub(super) fn of(server: &Endpoint) -> Transport {
        match server.unix_path() {
            Some(_) => Transport::Shm,
            None if server.is_rdma() => Transport::Rdma,
            None if server.is_plain() => Transport::Tcp,
            None => Transport::Tls,
        }
    }

    /// Whether every byte travels over a network connection, encrypted or not.
    pub fn is_network(self) -> bool {
        match self {
            Transport::Tls | Transport::Tcp | Transport::Rdma => true,
            Transport::Shm => false,
        }
    }

    /// Whether threads of the job, and not only its kernel, read and write the memory of large copies: they encrypt, or fill a ring.
    pub fn handles_large_copies(self) -> bool {
        matches!(self, Transport::Tls | Transport::Rdma)
    }
}

/// Carries the calls in the ring of a link to its worker, and the answers back.
pub(super) trait CallTransport: Debug + Send + Sync {
    /// Sends the calls, or, if the worker takes them itself, watches whether it exists, until the connection is closed.
    fn send_all(&self, common: &Common);

    /// Bytes of answers and other messages so far.
    fn received(&self) -> u64;

    /// Polls for the answer that `mine` waits for, for a short time.
    fn poll(&self, common: &Common, mine: &Waiter);

    /// Reads answers when no other thread does, until the connection ends or fails; then fails all waiters.
    fn receive_all(&self, common: &Common);
}
