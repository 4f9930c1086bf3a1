//! How many requests of clients are answered at a time that need no worker.

use super::admission::{Budget, Source};
use super::log::{Log, RateLimitedLog};
use super::seats::Seats;
use std::sync::Arc;

/// Questions about the server, and trials of connections, that are answered at a time.
pub(super) const QUESTIONS: Budget = Budget { all: 32, of_one: 8 };
/// Requests that wait for jobs to move.
pub(super) const MOVES: Budget = Budget { all: 64, of_one: 16 };
/// Clients that follow the server's events.
pub(super) const FOLLOWERS: Budget = Budget { all: 32, of_one: 4 };

/// What is being answered.
#[derive(Debug)]
pub(super) struct Requests {
    /// A seat for each of these.
    pub(super) questions: Seats<Source>,
    pub(super) moves: Seats<Source>,
    pub(super) followers: Seats<Source>,
    /// Log of what clients have asked for, rate-limited because users can cause as many lines as they want.
    pub(super) log: Arc<RateLimitedLog>,
}

impl Requests {
    pub(super) fn new(log: Log) -> Requests {
        Requests {
            questions: Seats::default(),
            moves: Seats::default(),
            followers: Seats::default(),
            log: RateLimitedLog::new(log, "requests of clients"),
        }
    }
}
