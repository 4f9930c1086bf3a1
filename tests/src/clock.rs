//! Time limits that are independent of the machine's load.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Interval between readings of the machine's load.
const SAMPLE: Duration = Duration::from_millis(20);

/// Measures the CPU time that was available to processes: if more threads are runnable than there are processors, only
/// the share of one thread counts. A limit in this time detects work that makes no progress, and not a busy machine.
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
    /// Starts a clock.
    pub fn new() -> Clock {
        Clock { counted: Duration::ZERO, last: Instant::now(), share: share() }
    }

    /// The time counted so far. Must be called often, because the load is assumed constant between calls.
    pub fn counted(&mut self) -> Duration {
        let since = self.last.elapsed();
        if since >= SAMPLE {
            let before = std::mem::replace(&mut self.share, share());
            // The larger load of both readings, so that the counted time was certainly available.
            self.counted += since.mul_f64(before.min(self.share));
            self.last = Instant::now();
        }
        self.counted
    }
}

/// Waits for a message.
///
/// # Errors
/// No message arrived within this time, as a [`Clock`] counts it, or none can arrive any more.
pub fn receive<T>(from: &Receiver<T>, limit: Duration) -> Result<T, RecvTimeoutError> {
    let mut clock = Clock::new();
    loop {
        match from.recv_timeout(SAMPLE) {
            Err(RecvTimeoutError::Timeout) if clock.counted() <= limit => {}
            other => return other,
        }
    }
}

/// The share of a processor that a thread gets.
fn share() -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    share_of(processors, runnable(&load).unwrap_or(1))
}

/// Number of runnable threads, from `0.31 0.24 0.20 3/243 9798`.
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
