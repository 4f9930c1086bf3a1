//! The calls of a thread around the commit of a traced move, a bounded number.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of calls that a trace has of a thread before the commit, the last ones, and after it, the first ones.
pub(crate) const MAX_CALLS: usize = 500;

/// A call that ended during a traced move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// The thread.
    pub(crate) thread: i32,
    /// Its name.
    pub(crate) name: &'static str,
    /// When it began.
    pub(crate) since: Instant,
    /// How long it took, with its waits.
    pub(crate) took: Duration,
}

/// The calls of a thread.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    before: VecDeque<Call>,
    after: Vec<Call>,
    left_out: u64,
}

impl Calls {
    /// Adds a call, which has ended before or after the commit.
    pub(crate) fn add(&mut self, call: Call, is_after: bool) {
        if is_after {
            if self.after.len() < MAX_CALLS {
                self.after.push(call)
            } else {
                self.left_out += 1
            }
            return;
        }
        if self.before.len() == MAX_CALLS {
            self.before.pop_front();
            self.left_out += 1;
        }
        self.before.push_back(call);
    }

    /// Adds those of another thread; the number of calls that were left out, too.
    pub(crate) fn gather(self, all: &mut Vec<Call>) -> u64 {
        all.extend(self.before);
        all.extend(self.after);
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_last_calls_before_the_commit_and_the_first_ones_after_it() {
        let mut calls = Calls::default();
        let call = |n| Call { thread: 1, name: "", since: Instant::now(), took: Duration::from_nanos(n) };
        let most = MAX_CALLS as u64;
        (0..most + 10).for_each(|n| calls.add(call(n), false));
        (0..most + 5).for_each(|n| calls.add(call(10_000 + n), true));
        let mut all = Vec::new();
        assert_eq!(calls.gather(&mut all), 15);
        let numbers: Vec<u64> = all.iter().map(|call| call.took.as_nanos() as u64).collect();
        assert_eq!(numbers, (10..most + 10).chain(10_000..10_000 + most).collect::<Vec<_>>());
    }
}
