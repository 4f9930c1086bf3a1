//! Keeps a copy of the job current while it runs, so that a move there carries only what has changed since (`mrcuda suspend --every`;
//! docs/migration.md, "Copies that are kept current").

use crate::base::log::lock;
use crate::base::spawn;
use crate::job::Job;
use crate::move_error::MoveError;
use crate::mover::{self, parked, standing};
use crate::moves;
use ::control::{KeptCopy, Migrate};
use cuda_api::lock::wait_timeout_while;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The copy that is kept, if any. Each one has a number of its own.
static KEPT: Mutex<(u64, Option<KeptCopy>)> = Mutex::new((0, None));
static CHANGED: Condvar = Condvar::new();

/// For how long a round goes on trying at least if the GPU does not become idle: without that, its attempts would hold up the calls of a job
/// with long kernels for seconds, round after round.
const LEAST_PATIENCE_MS: u64 = 10_000;

/// What a round asks for. One that goes on trying delays only the next round: it gives way to moves.
fn round_to(to: &str, every_ms: u64) -> Migrate {
    Migrate { patience_ms: Some(every_ms.max(LEAST_PATIENCE_MS)), ..Migrate::to(to) }
}

/// Keeps a copy at this place, and of no other one. Returns the id of its first round, which is a move that commits nothing.
pub(crate) fn begin(job: &'static Job, to: &str, every: Duration) -> Result<String, MoveError> {
    let (devices, targets) = moves::understand(job, None, to)?;
    if parked::home().is_some() {
        return Err(MoveError::AlreadyThere);
    }
    let mut kept = lock(&KEPT);
    standing::begin(devices.iter().map(|device| device.index).zip(targets));
    let every_ms = every.as_millis() as u64;
    let wanted = round_to(to, every_ms);
    let first = moves::request_copy(job, wanted.clone(), mover::run);
    kept.0 += 1;
    kept.1 = Some(KeptCopy { to: to.to_owned(), every_ms, current_unix_ms: None });
    CHANGED.notify_all();
    let number = kept.0;
    drop(kept);
    let started = first.and_then(|id| {
        let round = id.clone();
        let started = spawn::spawn("mrcuda-copy", move || keep(job, number, &wanted, every, round));
        started.map(|()| id).map_err(MoveError::no_thread)
    });
    started.inspect_err(|_| end())
}

/// Keeps no copy any more.
pub(crate) fn end() {
    let mut kept = lock(&KEPT);
    *kept = (kept.0 + 1, None);
    CHANGED.notify_all();
    standing::end();
}

/// The copy that is kept.
pub(crate) fn now() -> Option<KeptCopy> {
    lock(&KEPT).1.clone()
}

/// Makes round after round, of which the first one has been requested, until this copy is not kept any more.
fn keep(job: &'static Job, number: u64, wanted: &Migrate, every: Duration, first: String) {
    let mut round = Some(first);
    loop {
        // Only a round that is over for long is not known any more.
        let ended = round.take().and_then(|id| moves::wait_for(&id).ok());
        let mut kept = lock(&KEPT);
        if let (Some(it), (current, Some(copy))) = (ended.filter(|it| it.ok), &mut *kept)
            && *current == number
        {
            copy.current_unix_ms = Some(it.at_unix_ms);
        }
        let (kept, _) = wait_timeout_while(&CHANGED, kept, every, |kept| kept.0 == number);
        if kept.0 != number {
            return;
        }
        if parked::home().is_none() {
            // Refused behind a move; the next one follows.
            round = moves::request_copy(job, wanted.clone(), mover::run).ok();
        }
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_patient() {
        let patience = |every_ms| round_to("memory", every_ms).patience_ms;
        assert_eq!([1, 10_000, 60_000].map(patience), [Some(10_000), Some(10_000), Some(60_000)]);
    }
}
