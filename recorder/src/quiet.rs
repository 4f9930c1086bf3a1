//! What is known to be done in a place without asking it: where nothing was handed over since, calls that wait need not ask.

use std::ops::Range;

/// A point in a place's order ([`crate::place::Place::position`]) before which streams have done everything.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    epoch: u64,
    /// The point; `u64::MAX` if there is none.
    position: u64,
    /// Every stream has.
    all: bool,
    /// These have.
    streams: Vec<u64>,
    /// Streams, and up to where in the order each has done everything, whatever was handed over since.
    past: Vec<(u64, u64)>,
    /// The same for all streams.
    past_all: u64,
}

/// More streams than this are not remembered.
const MOST: usize = 64;

impl Quiet {
    /// Whether a stream, or with `None` every stream, has done what was handed over before `position`.
    pub(crate) fn holds(&self, epoch: u64, position: u64, stream: Option<u64>) -> bool {
        self.epoch == epoch && self.position == position && (self.all || stream.is_some_and(|s| self.streams.contains(&s)))
    }

    /// Whether what was handed over to a stream before `position` is done.
    pub(crate) fn is_past(&self, epoch: u64, stream: u64, position: u64) -> bool {
        let past = || self.past.iter().any(|(s, done)| *s == stream && position <= *done);
        self.epoch == epoch && (position <= self.past_all || past())
    }

    /// A stream, or with `None` every stream, has done what was handed over before `position`.
    pub(crate) fn learn_past(&mut self, epoch: u64, position: u64, stream: Option<u64>) {
        if self.epoch != epoch {
            *self = Quiet { epoch, position: u64::MAX, ..Quiet::default() };
        }
        let Some(stream) = stream else {
            self.past_all = self.past_all.max(position);
            return;
        };
        match self.past.iter_mut().find(|(s, _)| *s == stream) {
            Some((_, done)) => *done = position.max(*done),
            None => {
                // Streams come and go.
                if self.past.len() == MOST {
                    self.past.remove(0);
                }
                self.past.push((stream, position));
            }
        }
    }

    /// A call has shown that a stream, or with `None` every stream, has done what was handed over before its end; it itself leaves
    /// nothing to do in any other.
    pub(crate) fn learn(&mut self, epoch: u64, call: Range<u64>, stream: Option<u64>) {
        self.learn_past(epoch, call.end, stream);
        if self.position != u64::MAX && self.position > call.start {
            // Known of a later point already.
            return;
        }
        if self.position != call.start {
            self.all = false;
            self.streams.clear();
        }
        self.position = call.end;
        match stream {
            None => {
                self.all = true;
                self.streams.clear();
            }
            Some(s) if !self.all && self.streams.len() < MOST && !self.streams.contains(&s) => self.streams.push(s),
            Some(_) => {}
        }
    }

    /// A call that leaves nothing to do in any stream does not end the quiet.
    pub(crate) fn extend(&mut self, epoch: u64, call: Range<u64>) {
        if self.epoch == epoch && self.position == call.start {
            self.position = call.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_ends_with_the_next_call() {
        let mut q = Quiet::default();
        assert!(!q.holds(1, 0, None) && !q.holds(1, 0, Some(7)), "at the start nothing is known");
        q.learn(1, 100..124, Some(7));
        assert!(q.holds(1, 124, Some(7)));
        assert!(!q.holds(1, 124, Some(8)) && !q.holds(1, 124, None) && !q.holds(1, 148, Some(7)) && !q.holds(2, 124, Some(7)));
        // Asked right after it, another stream is known beside it.
        q.learn(1, 124..148, Some(8));
        assert!(q.holds(1, 148, Some(7)) && q.holds(1, 148, Some(8)));
        // Something was handed over between.
        q.learn(1, 200..224, Some(9));
        assert!(q.holds(1, 224, Some(9)) && !q.holds(1, 224, Some(7)));
        // News of an earlier point say nothing of this one.
        q.learn(1, 150..174, Some(7));
        assert!(q.holds(1, 224, Some(9)) && !q.holds(1, 224, Some(7)) && !q.holds(1, 174, Some(7)));
        q.learn(1, 224..248, None);
        assert!(q.holds(1, 248, None) && q.holds(1, 248, Some(7)));
        q.extend(1, 248..300);
        assert!(q.holds(1, 300, None));
        q.extend(1, 324..348);
        assert!(!q.holds(1, 348, None));
        // Another place counts anew.
        q.learn(2, 0..24, Some(7));
        assert!(q.holds(2, 24, Some(7)) && !q.holds(2, 24, None));
    }

    #[test]
    fn what_is_past_stays_past() {
        let mut q = Quiet::default();
        assert!(!q.is_past(1, 7, 1));
        q.learn(1, 100..124, Some(7));
        q.learn(1, 300..324, Some(8));
        q.learn_past(1, 60, Some(7));
        assert!(q.is_past(1, 7, 124) && !q.is_past(1, 7, 125) && q.is_past(1, 8, 324) && !q.is_past(1, 9, 1));
        assert!(!q.is_past(2, 7, 1), "of another place nothing is known");
        q.learn(1, 400..424, None);
        assert!(q.is_past(1, 9, 424) && !q.is_past(1, 7, 425));
        q.learn_past(2, 50, Some(7));
        assert!(q.is_past(2, 7, 50) && !q.is_past(2, 8, 1) && !q.is_past(1, 7, 1));
        assert!(!q.holds(2, 50, Some(7)) && !q.holds(2, 0, None), "that says nothing of what came after");
        q.learn(2, 80..90, Some(8));
        assert!(q.holds(2, 90, Some(8)) && q.is_past(2, 7, 50));
        for stream in 0..2 * MOST as u64 {
            q.learn_past(2, 95, Some(100 + stream));
        }
        assert!(q.past.len() <= MOST && q.is_past(2, 100 + 2 * MOST as u64 - 1, 95));
    }
}
