//! Whether large copies in one direction have connections of their own.

use crate::carried::Carried;
use crate::sync::lock;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// After the first failure nothing is tried for this time, and after each further one for twice as long as before: a copy waits for the attempt.
const PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// The connections of a direction.
#[derive(Debug, Default)]
pub(super) struct BulkWay {
    /// How bytes travel over them, once there are any.
    pub(super) carried: OnceLock<Carried>,
    /// When the last attempt to make them failed, and for how long nothing is tried after it.
    failed: Mutex<Option<(Instant, Duration)>>,
}

impl BulkWay {
    /// Whether an attempt may be made now.
    pub(super) fn may_try(&self) -> bool {
        self.may_try_at(Instant::now())
    }

    fn may_try_at(&self, now: Instant) -> bool {
        lock(&self.failed).is_none_or(|(at, pause)| now.saturating_duration_since(at) >= pause)
    }

    /// An attempt has failed.
    pub(super) fn note_failure(&self) {
        self.note_failure_at(Instant::now());
    }

    fn note_failure_at(&self, now: Instant) {
        let mut failed = lock(&self.failed);
        let pause = failed.map_or(PAUSE, |(_, pause)| (2 * pause).min(LONGEST_PAUSE));
        *failed = Some((now, pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_fail_are_repeated_less_and_less_often() {
        let (way, began) = (BulkWay::default(), Instant::now());
        assert!(way.may_try_at(began));
        let (mut at, mut pauses) = (0, Vec::new());
        for _ in 0..8 {
            way.note_failure_at(began + Duration::from_secs(at));
            let pause = (1..).find(|s| way.may_try_at(began + Duration::from_secs(at + s))).unwrap();
            pauses.push(pause);
            at += pause;
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
    }
}
