//! How many workers each client may start in a time.

use super::admission::Source;
use crate::sync::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// From so many clients on, those that may start as many as ever are forgotten.
const MANY: usize = 1024;

/// What each client has started lately: a bucket that is emptied at a steady rate.
#[derive(Debug)]
pub(super) struct Rates {
    per_minute: u32,
    started: Mutex<HashMap<Source, (f64, Instant)>>,
}

impl Rates {
    pub(super) fn new(per_minute: u32) -> Rates {
        Rates { per_minute, started: Mutex::default() }
    }

    /// Counts one more worker of a client, if it may start one now.
    pub(super) fn start(&self, source: Source, now: Instant) -> bool {
        let mut started = lock(&self.started);
        let most = f64::from(self.per_minute);
        let left = |(level, since): (f64, Instant)| {
            let minutes = now.saturating_duration_since(since).as_secs_f64() / MINUTE.as_secs_f64();
            (level - most * minutes).max(0.0)
        };
        if started.len() >= MANY {
            started.retain(|_, level| left(*level) > 0.0);
        }
        let level = started.get(&source).map_or(0.0, |level| left(*level));
        if level + 1.0 > most {
            return false;
        }
        started.insert(source, (level + 1.0, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_starts_no_more_workers_than_its_rate() {
        let (rates, began) = (Rates::new(3), Instant::now());
        let other = || Source::TokenUser("ann".into());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!([0, 0, 0, 0, 1].map(|t| rates.start(Source::Here, at(t))), [true, true, true, false, false]);
        assert!(rates.start(other(), at(1)), "each has its own");
        // One more after each third of a minute.
        assert_eq!([21, 21, 41, 41].map(|t| rates.start(Source::Here, at(t))), [true, false, true, false]);
        assert_eq!([600, 600, 600, 600].map(|t| rates.start(Source::Here, at(t))), [true, true, true, false]);
    }
}
