use super::*;
use interleave::bound;

#[test]
fn quiet_ends_with_the_next_call() {
    let mut q = CompletionCache::default();
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
    let mut q = CompletionCache::default();
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
    for stream in 0..2 * MAX_STREAMS as u64 {
        q.learn_past(2, 95, Some(100 + stream));
    }
    assert!(q.past.len() <= MAX_STREAMS && q.is_past(2, 100 + 2 * MAX_STREAMS as u64 - 1, 95));
}

/// A stream that the default stream's work follows, and one that it does not.
const BLOCKING: u64 = 7;
const APART: u64 = 8;
const STREAMS: [u64; 3] = [LEGACY, BLOCKING, APART];

/// A place, and what its job knows of it.
#[derive(Clone, Default)]
struct World {
    quiet: CompletionCache,
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
                let comes_first = |of: u64| of == stream || stream != APART && of != APART && (of == LEGACY || stream == LEGACY);
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
            let each = STREAMS.into_iter().flat_map(|s| [Step::Work(s), Step::Finish(s), Step::Query(s), Step::Wait(Some(s))]);
            let all = each.chain([Step::Wait(None), Step::Note(0), Step::Note(1)]);
            // As the last step, no other one leads to a claim that did not exist before.
            let tells = |step: &Step| steps > 1 || matches!(step, Step::Query(_) | Step::Note(_));
            for after in all.filter(tells).filter_map(|step| self.after(step, believes)) {
                known += after.explore(steps - 1, believes)?;
            }
        }
        Ok(known)
    }
}

#[test]
fn in_no_order_of_calls_and_answers_is_work_taken_for_done_that_is_not() {
    let (steps, at_least) = bound((5, 1000), (6, 10_000));
    assert!(World::default().explore(steps, false).unwrap() > at_least);
    let found = World::default().explore(steps, true).unwrap_err();
    assert!(found.contains("quiet") || found.contains("past"), "the model finds what was wrong: {found}");
}

#[test]
fn a_fresh_cache_knows_no_position_of_any_epoch() {
    let q = CompletionCache::default();
    for (epoch, position) in [(0, 8), (1, 0), (7, 1 << 40)] {
        assert!(
            !q.holds(epoch, position, None) && !q.holds(epoch, position, Some(7)) && !q.is_past(epoch.max(1), 7, position.max(1))
        );
    }
}

#[test]
fn a_wait_for_everything_covers_every_stream() {
    let mut q = CompletionCache::default();
    q.learn(1, 8..16, None);
    assert!((0..1000).all(|stream| q.holds(1, 16, Some(stream)) && q.is_past(1, stream, 16)));
}

#[test]
fn a_wait_for_one_stream_after_one_for_all_keeps_all() {
    let mut q = CompletionCache::default();
    q.learn(1, 8..16, None);
    q.learn(1, 16..24, Some(7));
    assert!(q.holds(1, 24, None) && q.holds(1, 24, Some(8)));
}

#[test]
fn a_wait_for_one_stream_after_other_work_forgets_all() {
    let mut q = CompletionCache::default();
    q.learn(1, 8..16, None);
    q.learn(1, 24..32, Some(7));
    assert!(q.holds(1, 32, Some(7)) && !q.holds(1, 32, Some(8)) && !q.holds(1, 32, None));
}

#[test]
fn a_call_without_work_extends_only_what_holds_right_before_it() {
    let mut q = CompletionCache::default();
    q.learn(1, 8..16, Some(7));
    q.extend(1, 24..32);
    assert!(q.holds(1, 16, Some(7)) && !q.holds(1, 32, Some(7)));
    q.extend(2, 16..24);
    assert!(q.holds(1, 16, Some(7)), "that was another place");
    q.extend(1, 16..24);
    assert!(q.holds(1, 24, Some(7)) && !q.holds(1, 16, Some(7)));
}

#[test]
fn a_chain_of_calls_without_work_extends_it() {
    let mut q = CompletionCache::default();
    q.learn(1, 0..8, None);
    (1..100).for_each(|i| q.extend(1, 8 * i..8 * (i + 1)));
    assert!(q.holds(1, 800, None) && !q.holds(1, 792, None));
}

#[test]
fn an_answer_about_the_default_stream_teaches_nothing() {
    let mut q = CompletionCache::default();
    q.learn_answer(1, 8..16, LEGACY);
    assert!(!q.holds(1, 16, Some(LEGACY)) && !q.is_past(1, LEGACY, 1));
    q.learn_answer(1, 16..24, 7);
    assert!(q.holds(1, 24, Some(7)) && q.is_past(1, 7, 24));
}

#[test]
fn an_old_answer_does_not_move_the_past_back() {
    let mut q = CompletionCache::default();
    q.learn_past(1, 100, Some(7));
    q.learn_past(1, 40, Some(7));
    q.learn_past(1, 60, None);
    q.learn_past(1, 20, None);
    assert!(q.is_past(1, 7, 100) && q.is_past(1, 8, 60) && !q.is_past(1, 8, 61) && !q.is_past(1, 7, 101));
}

#[test]
fn another_place_has_no_past() {
    let mut q = CompletionCache::default();
    q.learn(1, 1000..1008, None);
    q.learn_past(2, 8, Some(7));
    assert!(!q.is_past(2, 8, 1) && !q.is_past(1, 8, 1) && q.is_past(2, 7, 8));
    assert!(!q.holds(1, 1008, None) && !q.holds(2, 1008, None));
}

#[test]
fn the_streams_with_a_past_are_bounded_and_the_oldest_is_forgotten() {
    let mut q = CompletionCache::default();
    (0..=MAX_STREAMS as u64).for_each(|stream| q.learn_past(1, 8, Some(stream)));
    assert_eq!(q.past.len(), MAX_STREAMS);
    assert!(!q.is_past(1, 0, 8) && q.is_past(1, 1, 8) && q.is_past(1, MAX_STREAMS as u64, 8));
}

#[test]
fn the_complete_streams_are_bounded() {
    let mut q = CompletionCache::default();
    (0..2 * MAX_STREAMS as u64).for_each(|i| q.learn(1, 8 * i..8 * (i + 1), Some(i)));
    let end = 16 * MAX_STREAMS as u64;
    assert_eq!(q.streams.len(), MAX_STREAMS);
    assert!(
        q.holds(1, end, Some(0)) && q.holds(1, end, Some(MAX_STREAMS as u64 - 1)) && !q.holds(1, end, Some(MAX_STREAMS as u64))
    );
}

#[test]
fn a_stream_is_listed_once() {
    let mut q = CompletionCache::default();
    (0..10).for_each(|i| q.learn(1, 8 * i..8 * (i + 1), Some(7)));
    assert_eq!((q.streams.len(), q.past.len()), (1, 1));
}

#[test]
fn two_results_of_the_same_call_both_count() {
    let mut q = CompletionCache::default();
    q.learn(1, 8..16, Some(7));
    // It begins where the known position ends: nothing came between.
    q.learn(1, 16..16, Some(8));
    assert!(q.holds(1, 16, Some(7)) && q.holds(1, 16, Some(8)));
}
