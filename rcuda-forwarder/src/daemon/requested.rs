//! The request to move a job, which somebody has made of the server, as the job's worker has it.

use super::accounting::End;
use crate::sync::lock;
use cuda_api::lock::wait_timeout;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long a job's answer may take after its time is over.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// What has become of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The job stays, for this reason.
    Stays(String),
    /// The worker no longer serves it, which has ended in this way; whether the job has taken its memory along.
    Over(End, bool),
}

#[derive(Debug, Default)]
struct State {
    /// Number of requests so far.
    made: u64,
    /// Where the last one was to, until the job has said that it stays.
    to: Option<String>,
    /// The number of the one that has not been answered, and until when it counts.
    open: Option<(u64, Instant)>,
    /// Why the job stays, by the number of the last request that was answered.
    stays: Option<(u64, String)>,
    /// How it has ended.
    over: Option<(End, bool)>,
}

/// Requests to move a job away from one worker, of which one at a time is open.
#[derive(Debug, Default)]
pub(super) struct Requested {
    state: Mutex<State>,
    changed: Condvar,
}

impl Requested {
    /// Opens a request until then, which `send` makes of the job. `None`: another one is open, or it cannot be made.
    pub(super) fn open(&self, to: &str, until: Instant, send: impl FnOnce(u64) -> bool) -> Option<u64> {
        let mut state = lock(&self.state);
        // The job's answer may take a little longer than its time.
        let is_open = state.open.is_some_and(|(_, until)| Instant::now() < until + GRACE);
        if is_open || state.over.is_some() {
            return None;
        }
        let number = state.made + 1;
        // An answer that comes at once waits for the lock.
        if !send(number) {
            return None;
        }
        (state.made, state.open, state.to) = (number, Some((number, until)), Some(to.to_owned()));
        Some(number)
    }

    /// The job stays although it was asked by this request. False if that one is not open.
    pub(super) fn stays(&self, number: u64, why: &str) -> bool {
        let mut state = lock(&self.state);
        if state.open.is_none_or(|(open, _)| open != number) {
            return false;
        }
        (state.open, state.to, state.stays) = (None, None, Some((number, why.to_owned())));
        drop(state);
        self.changed.notify_all();
        true
    }

    /// The worker no longer serves it. Returns where the job was asked to move last, unless it has refused that.
    pub(super) fn over(&self, end: End, moved: bool) -> Option<String> {
        let mut state = lock(&self.state);
        state.over = Some((end, moved));
        let to = state.to.clone();
        drop(state);
        self.changed.notify_all();
        to
    }

    /// What has become of a request, if that is known by then.
    pub(super) fn outcome(&self, number: u64, until: Instant) -> Option<Outcome> {
        let mut state = lock(&self.state);
        loop {
            if let Some((_, why)) = state.stays.as_ref().filter(|(answered, _)| *answered == number) {
                return Some(Outcome::Stays(why.clone()));
            }
            if let Some((end, moved)) = state.over {
                return Some(Outcome::Over(end, moved));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return None;
            }
            state = wait_timeout(&self.changed, state, left).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(requested: &Requested, number: u64) -> Option<Outcome> {
        requested.outcome(number, Instant::now())
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[test]
    fn one_request_is_open_at_a_time_and_answers_belong_to_theirs() {
        let requested = Requested::default();
        assert_eq!(requested.open("b:1", later(), |_| false), None, "it could not be sent");
        let first = requested.open("b:1", later(), |_| true).unwrap();
        assert_eq!((requested.open("c:1", later(), |_| true), now(&requested, first)), (None, None));
        assert!(!requested.stays(first + 1, "nobody has asked"));
        assert!(requested.stays(first, "no room") && !requested.stays(first, "again"));
        assert_eq!(now(&requested, first), Some(Outcome::Stays("no room".into())));
        let second = requested.open("c:1", Instant::now().checked_sub(GRACE).unwrap(), |_| true).unwrap();
        assert_eq!(now(&requested, second), None, "the first one's answer is not its");
        let third = requested.open("d:1", later(), |_| true).expect("the time of the second one is over");
        assert!(!requested.stays(second, "too late"));
        assert_eq!(requested.over(End::Left, true).as_deref(), Some("d:1"));
        assert_eq!(now(&requested, third), Some(Outcome::Over(End::Left, true)));
        assert_eq!(requested.open("e:1", later(), |_| true), None, "the job is gone");
    }

    #[test]
    fn a_job_that_has_refused_has_not_gone_there() {
        let requested = Requested::default();
        let first = requested.open("b:1", later(), |_| true).unwrap();
        requested.stays(first, "no");
        assert_eq!(requested.over(End::Left, true), None);
    }
}
