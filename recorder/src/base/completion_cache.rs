//! The completion cache: what is known to be complete at a place, so that calls that wait need no round trip if nothing was submitted
//! since.

use cuda_api::arg::LEGACY;
use std::ops::Range;

/// A position in a place's order ([`crate::place::Place::position`]) before which streams are complete.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Quiet {
    epoch: u64,
    /// The position; `u64::MAX` if there is none.
    position: u64,
    /// Whether all streams are complete.
    all: bool,
    /// The streams that are complete.
    streams: Vec<u64>,
    /// Streams, each with the position up to which it is complete, whatever was submitted since.
    past: Vec<(u64, u64)>,
    /// The same for all streams.
    past_all: u64,
}

/// Maximum number of streams in the cache.
const MOST: usize = 64;

impl Quiet {
    /// Returns whether a stream, or with `None` every stream, is known to be complete up to `position`.
    pub(crate) fn holds(&self, epoch: u64, position: u64, stream: Option<u64>) -> bool {
        self.epoch == epoch && self.position == position && (self.all || stream.is_some_and(|s| self.streams.contains(&s)))
    }

    /// Returns whether everything submitted to a stream before `position` is complete.
    pub(crate) fn is_past(&self, epoch: u64, stream: u64, position: u64) -> bool {
        let past = || self.past.iter().any(|(s, done)| *s == stream && position <= *done);
        self.epoch == epoch && (position <= self.past_all || past())
    }

    /// Notes that a stream, or with `None` every stream, is complete up to `position`.
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
                // Streams are created and destroyed, so the list is bounded.
                if self.past.len() == MOST {
                    self.past.remove(0);
                }
                self.past.push((stream, position));
            }
        }
    }

    /// Notes that a call has shown that a stream, or with `None` every stream, is complete up to the call's end; the call itself gives no
    /// other stream work.
    pub(crate) fn learn(&mut self, epoch: u64, call: Range<u64>, stream: Option<u64>) {
        self.learn_past(epoch, call.end, stream);
        if self.position != u64::MAX && self.position > call.start {
            // A later position is known already.
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

    /// Notes that the place has answered a query: the stream is complete up to the end of that call.
    pub(crate) fn learn_answer(&mut self, epoch: u64, call: Range<u64>, stream: u64) {
        // For the default stream the answer may not cover the streams that its work follows, so it is ignored.
        if stream != LEGACY {
            self.learn(epoch, call, Some(stream));
        }
    }

    /// Notes that a call gives no stream work, so that the cache stays valid.
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
        // A query right after it adds another stream.
        q.learn(1, 124..148, Some(8));
        assert!(q.holds(1, 148, Some(7)) && q.holds(1, 148, Some(8)));
        // Something was submitted in between.
        q.learn(1, 200..224, Some(9));
        assert!(q.holds(1, 224, Some(9)) && !q.holds(1, 224, Some(7)));
        // A result for an earlier position does not affect this one.
        q.learn(1, 150..174, Some(7));
        assert!(q.holds(1, 224, Some(9)) && !q.holds(1, 224, Some(7)) && !q.holds(1, 174, Some(7)));
        q.learn(1, 224..248, None);
        assert!(q.holds(1, 248, None) && q.holds(1, 248, Some(7)));
        q.extend(1, 248..300);
        assert!(q.holds(1, 300, None));
        q.extend(1, 324..348);
        assert!(!q.holds(1, 348, None));
        // Another place has its own positions.
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

    /// A stream that the default stream's work follows, and one that it does not.
    const BLOCKING: u64 = 7;
    const APART: u64 = 8;
    const STREAMS: [u64; 3] = [LEGACY, BLOCKING, APART];

    /// A place, and what its job knows of it.
    #[derive(Clone, Default)]
    struct World {
        quiet: Quiet,
        position: u64,
        /// Submitted work: its end position, its stream, whether it is complete.
        work: Vec<(u64, u64, bool)>,
        /// Results of calls that their threads have not noted yet.
        shown: Vec<(Range<u64>, Option<u64>, bool)>,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        Work(u64),
        /// The first incomplete work of a stream completes.
        Finish(u64),
        Query(u64),
        /// A wait for a stream or all, which completes.
        Wait(Option<u64>),
        /// A thread notes the result of its call.
        Note(usize),
    }

    impl World {
        fn call(&mut self) -> Range<u64> {
            self.position += 8;
            self.position - 8..self.position
        }

        /// Returns whether everything before a position is complete that a wait for a stream waits for.
        fn is_done(&self, stream: Option<u64>, before: u64) -> bool {
            let follows = |of: u64| match stream {
                None => true,
                Some(LEGACY) => of != APART,
                Some(s) => of == s,
            };
            self.work.iter().all(|(end, of, done)| *end > before || *done || !follows(*of))
        }

        /// The state after a step, if the step is possible. `believes`: the former, wrong behaviour, which used all answers to queries.
        fn after(&self, step: Step, believes: bool) -> Option<World> {
            let mut w = self.clone();
            match step {
                Step::Work(stream) => {
                    let end = w.call().end;
                    w.work.push((end, stream, false));
                }
                Step::Finish(stream) => {
                    let at = w.work.iter().position(|(_, of, done)| *of == stream && !done)?;
                    let (end, ..) = w.work[at];
                    // The default stream's work follows that of the blocking streams, and vice versa.
                    let comes_first =
                        |of: u64| of == stream || stream != APART && of != APART && (of == LEGACY || stream == LEGACY);
                    if w.work.iter().any(|(before, of, done)| *before < end && !done && comes_first(*of)) {
                        return None;
                    }
                    w.work[at].2 = true;
                }
                Step::Query(stream) => {
                    let call = w.call();
                    w.quiet.extend(1, call.clone());
                    // A driver that only considers the work of this stream itself.
                    if w.work.iter().all(|(_, of, done)| *of != stream || *done) {
                        w.shown.push((call, Some(stream), true));
                    }
                }
                Step::Wait(stream) => {
                    let call = w.call();
                    if !w.is_done(stream, call.end) {
                        return None;
                    }
                    w.shown.push((call, stream, false));
                }
                Step::Note(which) => {
                    if which >= w.shown.len() {
                        return None;
                    }
                    match w.shown.remove(which) {
                        (call, Some(stream), true) if !believes => w.quiet.learn_answer(1, call, stream),
                        (call, stream, _) => w.quiet.learn(1, call, stream),
                    }
                }
            }
            Some(w)
        }

        /// A claim of the cache that is wrong.
        fn wrong(&self) -> Option<String> {
            for stream in STREAMS.map(Some).into_iter().chain([None]) {
                if self.quiet.holds(1, self.position, stream) && !self.is_done(stream, self.position) {
                    return Some(format!("{stream:?} is quiet at {}", self.position));
                }
            }
            for (stream, end) in STREAMS.into_iter().flat_map(|s| self.work.iter().map(move |(end, ..)| (s, *end))) {
                if self.quiet.is_past(1, stream, end) && !self.is_done(Some(stream), end) {
                    return Some(format!("{stream} is past {end}"));
                }
            }
            None
        }

        /// Explores all sequences of a number of steps: how often something was known, and any wrong claim.
        fn explore(&self, steps: usize, believes: bool) -> Result<usize, String> {
            if let Some(wrong) = self.wrong() {
                return Err(wrong);
            }
            let mut known = usize::from(STREAMS.iter().any(|s| self.quiet.holds(1, self.position, Some(*s))));
            if steps > 0 {
                let each =
                    STREAMS.into_iter().flat_map(|s| [Step::Work(s), Step::Finish(s), Step::Query(s), Step::Wait(Some(s))]);
                let all = each.chain([Step::Wait(None), Step::Note(0), Step::Note(1)]);
                for after in all.filter_map(|step| self.after(step, believes)) {
                    known += after.explore(steps - 1, believes)?;
                }
            }
            Ok(known)
        }
    }

    #[test]
    fn in_no_order_of_calls_and_answers_is_work_taken_for_done_that_is_not() {
        assert!(World::default().explore(6, false).unwrap() > 10_000);
        let found = World::default().explore(6, true).unwrap_err();
        assert!(found.contains("quiet") || found.contains("past"), "the model finds what was wrong: {found}");
    }
}
