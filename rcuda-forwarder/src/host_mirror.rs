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

/// What a look was like.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Look {
    /// Whether there were changes.
    pub(crate) found: bool,
    /// How much of it was waiting for somebody else.
    pub(crate) waited: Duration,
}

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
    /// Looks, and sleeps until the next time. `calls` is a count of what may lead to changes.
    pub(crate) fn look(&mut self, calls: u64, look: impl FnOnce() -> Look) {
        let began = Instant::now();
        let Look { found, waited } = look();
        if found || calls != self.calls {
            self.calls = calls;
            self.last = began;
        }
        // Waiting costs nobody anything. A pause as long as that would keep a kernel waiting for what the program has written since.
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
    fn only_looking_itself_makes_the_pauses_longer() {
        const LONG: Duration = Duration::from_millis(100);
        let mut pace = Pace::default();
        let mut timed = |waited| {
            let since = Instant::now();
            pace.look(0, || {
                std::thread::sleep(LONG);
                Look { found: true, waited }
            });
            since.elapsed()
        };
        assert!(timed(Duration::ZERO) >= LONG + PART * LONG);
        // A machine may be busy, but hardly as long as the pause would be.
        assert!(timed(LONG) < LONG + PART * LONG);
    }
}
