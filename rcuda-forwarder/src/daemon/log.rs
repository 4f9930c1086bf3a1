//! The daemon's log. Lines that anyone can cause are rate-limited so that they cannot fill a disk; suppressed lines are
//! counted.

use crate::sync::lock;
use crate::threads;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum burst of lines of one kind.
const AT_ONCE: u32 = 20;
/// Time after which one more line is allowed.
const ONE_MORE: Duration = Duration::from_millis(500);
/// Delay between the first suppressed line and the line that reports their number.
const SUMMARY: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Allowance {
    lines: u32,
    since: Instant,
    left_out: u64,
}

/// A rate limit for lines of one kind.
#[derive(Debug)]
pub(super) struct RateLimitedLog {
    write: fn(&str),
    /// The name of what is counted, in the plural.
    what: &'static str,
    allowance: Mutex<Allowance>,
}

impl RateLimitedLog {
    pub(super) fn new(write: fn(&str), what: &'static str) -> Arc<RateLimitedLog> {
        let allowance = Allowance { lines: AT_ONCE, since: Instant::now(), left_out: 0 };
        Arc::new(RateLimitedLog { write, what, allowance: Mutex::new(allowance) })
    }

    /// Writes a line, or counts it.
    pub(super) fn say(self: &Arc<Self>, line: &str) {
        let mut a = lock(&self.allowance);
        let more = (a.since.elapsed().as_nanos() / ONE_MORE.as_nanos()).min(u128::from(AT_ONCE)) as u32;
        if more > 0 {
            (a.lines, a.since) = ((a.lines + more).min(AT_ONCE), Instant::now());
        }
        if a.lines > 0 {
            a.lines -= 1;
            drop(a);
            return (self.write)(line);
        }
        a.left_out += 1;
        let first = a.left_out == 1;
        drop(a);
        if first {
            let this = self.clone();
            let later = move || {
                std::thread::sleep(SUMMARY);
                this.sum_up();
            };
            // Without a thread, the next suppressed line after a summary reports the number.
            let _ = threads::spawn("log", later);
        }
    }

    fn sum_up(&self) {
        let n = std::mem::take(&mut lock(&self.allowance).left_out);
        if n > 0 {
            (self.write)(&format!("{n} more {} were not written here", self.what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[test]
    fn a_flood_is_counted_and_not_written() {
        let log = RateLimitedLog::new(|line| lock(&LINES).push(line.to_owned()), "refusals");
        let began = Instant::now();
        for n in 0..10_000 {
            log.say(&format!("line {n}"));
        }
        let most = AT_ONCE as usize + (began.elapsed().as_millis() / ONE_MORE.as_millis()) as usize + 1;
        let written = lock(&LINES).len();
        assert!((1..=most).contains(&written), "{written} of at most {most}");
        log.sum_up();
        let last = lock(&LINES).last().cloned().unwrap();
        let left_out: usize = last.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(left_out + lock(&LINES).len() - 1, 10_000, "each was written or counted: {last}");
        log.sum_up();
        assert_eq!(lock(&LINES).last(), Some(&last), "nothing to say twice");
    }
}
