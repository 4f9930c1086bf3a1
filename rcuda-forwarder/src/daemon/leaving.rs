//! When a job is asked to move away from a server that is ending, and asked again after it has refused.

use std::time::{Duration, Instant};

/// Pause after the first refusal; it doubles with each further one,
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(16);

/// What a job has been asked and has answered.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    state: State,
    refusals: u32,
    /// The last reason for staying.
    why: Option<String>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    NotAsked,
    Asked,
    /// It is asked again then.
    Refused(Instant),
}

impl Leaving {
    /// Whether the job is to be asked now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        match self.state {
            State::NotAsked => true,
            State::Asked => false,
            State::Refused(again) => now >= again,
        }
    }

    /// The job has been asked.
    pub(super) fn asked(&mut self) {
        self.state = State::Asked;
    }

    /// Whether the job has been asked at least once;
    pub(super) fn was_asked(&self) -> bool {
        !matches!(self.state, State::NotAsked)
    }

    /// and whether it has not answered yet.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked)
    }

    /// The last reason for staying.
    pub(super) fn reason(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// The job stays, for this reason. Returns whether it is another one than before. A refusal that nobody has asked for is ignored.
    pub(super) fn refused(&mut self, why: &str, now: Instant) -> bool {
        if !self.is_asked() {
            return false;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.refusals.min(8)).min(LONGEST_PAUSE);
        self.refusals = self.refusals.saturating_add(1);
        self.state = State::Refused(now + pause);
        let is_new = self.why.as_deref() != Some(why);
        self.why = Some(why.to_owned());
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_refuses_is_asked_again_less_and_less_often() {
        let (mut leaving, mut now) = (Leaving::default(), Instant::now());
        assert!(leaving.is_due(now));
        for seconds in [1, 2, 4, 8, 16, 16, 16] {
            leaving.asked();
            assert!(!leaving.is_due(now + Duration::from_secs(3600)), "it has not answered");
            leaving.refused("no", now);
            let pause = Duration::from_secs(seconds);
            assert!(!leaving.is_due(now + pause - Duration::from_millis(1)) && leaving.is_due(now + pause), "{seconds}");
            now += pause;
        }
    }

    #[test]
    fn the_same_reason_is_logged_once_and_nobody_is_asked_twice_at_once() {
        let (mut leaving, now) = (Leaving::default(), Instant::now());
        assert!(!leaving.refused("early", now) && leaving.reason().is_none());
        assert!(leaving.is_due(now), "it has not been asked");
        leaving.asked();
        assert!(leaving.refused("no", now) && !leaving.refused("unasked", now));
        assert!(leaving.is_due(now + FIRST_PAUSE));
        leaving.asked();
        assert!(!leaving.refused("no", now), "the same reason");
        leaving.asked();
        assert!(leaving.refused("other", now) && leaving.reason() == Some("other"));
    }
}
