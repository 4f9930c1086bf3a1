//! Poll intervals for detecting changes of mirrored host memory.

use std::time::{Duration, Instant};

/// Poll interval while there is activity,
const SHORT: Duration = Duration::from_micros(500);
/// and for this long after it.
const WHILE: Duration = Duration::from_secs(1);
/// Maximum poll interval after that.
const LONG: Duration = Duration::from_millis(20);
/// Scans take at most one part in this many of the time: during activity, and otherwise.
const PART: u32 = 4;
const SMALL_PART: u32 = 50;

/// Result of a scan.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Scan {
    /// Whether there were changes.
    pub(crate) found: bool,
    /// The part of its duration that was spent waiting for another thread or process.
    pub(crate) waited: Duration,
}

/// Schedules the scans.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Number of calls as of the last scan.
    calls: u64,
    last: Instant,
    pause: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { calls: 0, last: Instant::now(), pause: SHORT }
    }
}

impl Pace {
    /// Scans, and sleeps until the next scan. `calls` counts the calls that may lead to changes.
    pub(crate) fn scan(&mut self, calls: u64, scan: impl FnOnce() -> Scan) {
        let began = Instant::now();
        let Scan { found, waited } = scan();
        if found || calls != self.calls {
            self.calls = calls;
            self.last = began;
        }
        // Waiting takes no CPU time. A pause as long as that would delay a kernel that waits for the program's writes.
        let took = began.elapsed().saturating_sub(waited);
        self.pause =
            if self.last.elapsed() < WHILE { SHORT.max(PART * took) } else { (2 * self.pause).min(LONG).max(SMALL_PART * took) };
        std::thread::sleep(self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_scan_itself_makes_the_pauses_longer() {
        const SCAN: Duration = Duration::from_millis(20);
        let mut pace = Pace::default();
        let mut pause = |waited| {
            pace.scan(0, || {
                std::thread::sleep(SCAN);
                Scan { found: true, waited }
            });
            pace.pause
        };
        assert!(pause(Duration::ZERO) >= PART * SCAN);
        // On a busy machine the scan takes longer than it sleeps, but not longer than this.
        assert_eq!(pause(Duration::MAX), SHORT);
    }
}
