//! How often two sides look for changes of host memory that nobody tells them of.

use std::time::{Duration, Instant};

/// Between two looks while something happens,
const SHORT: Duration = Duration::from_micros(500);
/// and so long after.
const WHILE: Duration = Duration::from_secs(1);
/// Then at most this long.
const LONG: Duration = Duration::from_millis(20);
/// A look takes no more than such a part of the time, while something happens and else.
const PART: u32 = 4;
const SMALL_PART: u32 = 50;

/// Who looks from time to time.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Calls that were made, as of the last look.
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
    /// Looks, and sleeps until the next time. `calls` is a count of what may lead to changes, `look` tells whether there are any.
    pub(crate) fn look(&mut self, calls: u64, look: impl FnOnce() -> bool) {
        let began = Instant::now();
        if look() || calls != self.calls {
            self.calls = calls;
            self.last = began;
        }
        let took = began.elapsed();
        self.pause =
            if self.last.elapsed() < WHILE { SHORT.max(PART * took) } else { (2 * self.pause).min(LONG).max(SMALL_PART * took) };
        std::thread::sleep(self.pause);
    }
}
