//! Answers a job that has lost its worker, and asks why.

use super::State;
use super::asker::Asker;
use std::time::{Duration, Instant};

/// How long the end of a worker's process is waited for: its job may hear of the end before the daemon does.
const ENDING: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl State {
    /// How a worker has failed, for those who may have its job moved. Empty if it has not, or if nothing is known of it.
    pub(super) fn failure_of(&self, worker: u32, asker: &Asker) -> String {
        let until = Instant::now() + ENDING;
        loop {
            // Looked for first: when it is no more among those that run, the rest is known.
            let runs = self.pool.runs(worker);
            match self.pool.latest_stay_of(worker) {
                Some(stay) if !asker.may_move(&stay.client) => return String::new(),
                Some(stay) if stay.end.is_some() => return stay.failure.unwrap_or_default(),
                _ if !runs || Instant::now() >= until => return String::new(),
                _ => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}
