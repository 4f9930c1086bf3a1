//! The client of a worker, as the daemon describes it in its log and to those who ask.

use super::error::of;
use super::log::LogLine;
use super::users;
use crate::conn::Conn;
use crate::greet::JobHello;
use crate::server_state::{MemoryUse, ServedJob};
use crate::targets::Sender;
use crate::user::User;
use control::name::printable;
use cuda_api::clock::unix_ms;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;

/// A job that a worker serves.
#[derive(Debug, Clone)]
pub(super) struct Client {
    host: Option<String>,
    pid: u32,
    uid: Option<u32>,
    /// The user that it has proved to be of.
    user: Option<User>,
    peer: String,
    name: String,
    since_unix_ms: u64,
    /// Where it may send its worker.
    sender: Sender,
}

impl Client {
    /// The job at the other end of a connection. The kernel identifies the process at a Unix socket; over a network only the
    /// client's statement is known, and with munge its user. Its worker is a process of the user `worker`.
    pub(super) fn of(conn: &Conn, hello: &JobHello, user: Option<User>, worker: u32) -> Client {
        let host = conn.ip_peer().map(|a| a.to_string());
        let credentials = conn.socket().ok().filter(|_| host.is_none());
        let credentials = credentials.and_then(|fd| getsockopt(&fd, sockopt::PeerCredentials).ok());
        // The kernel reports 0 for a process that the daemon's container does not show.
        let known = credentials.and_then(|c| u32::try_from(c.pid()).ok().filter(|pid| *pid != 0));
        Client {
            host,
            pid: known.unwrap_or(hello.pid),
            uid: credentials.map(|c| c.uid()).or_else(|| user.as_ref()?.uid()),
            user,
            peer: conn.peer(),
            name: printable(&hello.name),
            since_unix_ms: unix_ms(),
            sender: Sender::of(conn.ip_peer(), conn.unix_peer(), worker, geteuid().as_raw()),
        }
    }

    /// The job's process.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// The user that it has proved to be of.
    pub(super) fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }

    /// Whether both are one process, as far as the server can tell.
    pub(super) fn is_same_job(&self, other: &Client) -> bool {
        (self.pid, &self.host, self.uid, &self.user) == (other.pid, &other.host, other.uid, &other.user)
    }

    /// Who sends its worker to other places.
    pub(super) fn sender(&self) -> Sender {
        self.sender
    }

    /// The job's name, by its own word.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Since when a worker serves it.
    pub(super) fn since_unix_ms(&self) -> u64 {
        self.since_unix_ms
    }

    /// For the log.
    pub(super) fn words(&self) -> String {
        let own_word = if self.host.is_some() { " (its own word)" } else { "" };
        format!("job {}{own_word}{} at {}", self.pid, of(self.user.as_ref()), self.peer)
    }

    /// A line of the log that is about it.
    pub(super) fn on(&self, line: LogLine) -> LogLine {
        line.at_peer(&self.peer).of_user(self.user.as_ref()).of_job(self.pid).named(&self.name, self.uid)
    }

    /// For those who ask.
    pub(super) fn served(&self, worker: u32, memory: Option<MemoryUse>) -> ServedJob {
        let (user, user_by) = users::known_as(self.user.as_ref(), self.uid).unzip();
        ServedJob {
            worker,
            host: self.host.clone(),
            pid: self.pid,
            uid: self.uid,
            user,
            user_by,
            since_unix_ms: self.since_unix_ms,
            used_bytes: memory.map(|m| m.used_bytes),
            evicted_bytes: memory.map(|m| m.evicted_bytes),
        }
    }
}
