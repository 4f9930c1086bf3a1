//! Time limits that do not depend on how busy the machine is.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often the machine's load is looked at.
const SAMPLE: Duration = Duration::from_millis(20);

/// Measures how much time processes had in which they could have worked: where more threads want to run than there are processors,
/// only the share counts that each of them gets. A limit in this time is for work that does not go on, not for a busy machine.
#[derive(Debug)]
pub struct Clock {
    counted: Duration,
    last: Instant,
    share: f64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

impl Clock {
    /// Begins now.
    pub fn new() -> Clock {
        Clock { counted: Duration::ZERO, last: Instant::now(), share: share() }
    }

    /// What has been counted so far. To be asked often: the load is taken to be the same in between.
    pub fn counted(&mut self) -> Duration {
        let since = self.last.elapsed();
        if since >= SAMPLE {
            let before = std::mem::replace(&mut self.share, share());
            // The larger load of both ends: what is counted is surely there.
            self.counted += since.mul_f64(before.min(self.share));
            self.last = Instant::now();
        }
        self.counted
    }
}

/// Waits for a message.
///
/// # Errors
/// None came in this time, as a [`Clock`] counts it, or none can come any more.
pub fn receive<T>(from: &Receiver<T>, limit: Duration) -> Result<T, RecvTimeoutError> {
    let mut clock = Clock::new();
    loop {
        match from.recv_timeout(SAMPLE) {
            Err(RecvTimeoutError::Timeout) if clock.counted() <= limit => {}
            other => return other,
        }
    }
}

/// The part of a processor that a thread gets.
fn share() -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    share_of(processors, runnable(&load).unwrap_or(1))
}

/// Threads that run or want to, from `0.31 0.24 0.20 3/243 9798`.
fn runnable(load: &str) -> Option<usize> {
    load.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

fn share_of(processors: usize, runnable: usize) -> f64 {
    (processors as f64 / runnable.max(1) as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_share() {
        assert_eq!(runnable("16.27 14.91 8.29 14/243 9798\n"), Some(14));
        assert_eq!(runnable(""), None);
        assert_eq!((share_of(2, 1), share_of(2, 2), share_of(2, 8)), (1.0, 1.0, 0.25));
    }

    #[test]
    fn time_passes_and_never_faster_than_it_does() {
        let (start, mut clock) = (Instant::now(), Clock::new());
        while clock.counted() < Duration::from_millis(50) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(start.elapsed() >= Duration::from_millis(50));
    }
}
