//! The time limits of the job's end.

use std::time::Duration;

/// The time limits of the job's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For a connection, which the peer's kernel accepts however busy its programs are.
    pub connection: Duration,
    /// For the next message of a server's greeting; also how long a busy server is retried.
    pub greeting: Duration,
    /// For a worker to become ready: it may have to be started.
    pub worker: Duration,
    /// Without a heartbeat (a worker sends one each second).
    pub silence: Duration,
    /// For an orderly close.
    pub goodbye: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        let s = Duration::from_secs;
        Patience { connection: s(10), greeting: s(30), worker: s(120), silence: s(10), goodbye: s(5) }
    }
}
