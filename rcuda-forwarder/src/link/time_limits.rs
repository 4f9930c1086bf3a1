//! The time limits of the job's end.

use std::time::{Duration, Instant};

/// The time limits of the job's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// For a connection, which the peer's kernel accepts however busy its programs are.
    pub connection: Duration,
    /// For the next message of a server's greeting; also how long a busy server is retried.
    pub greeting: Duration,
    /// For a worker to become ready: it may have to be started.
    pub worker: Duration,
    /// Without a heartbeat (a worker sends one each second).
    pub silence: Duration,
    /// For a turn at a server that is full; zero: the server refuses at once.
    pub queue: Duration,
    /// For an orderly close.
    pub goodbye: Duration,
}

impl Default for TimeLimits {
    fn default() -> TimeLimits {
        let s = Duration::from_secs;
        TimeLimits { connection: s(10), greeting: s(30), worker: s(120), silence: s(10), queue: Duration::ZERO, goodbye: s(5) }
    }
}

/// For how long a peer has been silent.
///
/// A machine or a process that was stopped for a while, and goes on, does not hear its peer in that time, nor does a peer on the same machine
/// run then. So the time between two checks counts only as far as it is as long as intended.
#[derive(Debug)]
pub(super) struct Silence {
    limit: Duration,
    /// The intended time between two checks.
    interval: Duration,
    counted: Duration,
    last: Instant,
}

impl Silence {
    pub(super) fn new(limit: Duration) -> Silence {
        Silence { limit, interval: (limit / 4).min(Duration::from_secs(1)), counted: Duration::ZERO, last: Instant::now() }
    }

    /// How long to wait before the next check.
    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// The peer has sent something.
    pub(super) fn broken(&mut self) {
        (self.counted, self.last) = (Duration::ZERO, Instant::now());
    }

    /// The peer has sent nothing since the last check. Returns whether that is too long.
    pub(super) fn goes_on(&mut self) -> bool {
        self.goes_on_at(Instant::now())
    }

    fn goes_on_at(&mut self, now: Instant) -> bool {
        self.counted += now.saturating_duration_since(self.last).min(self.interval * 2);
        self.last = now;
        self.counted >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_looked_is_no_silence() {
        let s = Duration::from_secs;
        let mut silence = Silence::new(s(10));
        assert_eq!(silence.interval(), s(1));
        let start = silence.last;
        // An hour without a check counts for two seconds.
        assert!(!silence.goes_on_at(start + s(3600)));
        assert!((1..8).all(|n| !silence.goes_on_at(start + s(3600 + n))));
        assert!(silence.goes_on_at(start + s(3608)));
        silence.broken();
        let start = silence.last;
        assert!((1..10).all(|n| !silence.goes_on_at(start + s(n))));
        assert!(silence.goes_on_at(start + s(10)));
    }
}
