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
use rcuda_forwarder::PlaceSpec;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The copy that is kept, if any.
#[derive(Debug)]
struct Kept {
    /// Each one has a number of its own.
    number: u64,
    copy: Option<KeptCopy>,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { number: 0, copy: None });
static CHANGED: Condvar = Condvar::new();

impl Kept {
    /// Keeps this copy instead, or none. Returns its number.
    fn replace(&mut self, copy: Option<KeptCopy>) -> u64 {
        (self.number, self.copy) = (self.number + 1, copy);
        CHANGED.notify_all();
        self.number
    }

    /// Notes that a round of the copy with this number is complete, if that one is still kept.
    fn note_round(&mut self, number: u64, at_unix_ms: u64) {
        if let Some(copy) = self.copy.as_mut().filter(|_| self.number == number) {
            copy.current_unix_ms = Some(at_unix_ms);
        }
    }
}

/// For how long a round goes on trying at least if the GPU does not become idle: without that, its attempts would hold up the calls of a job
/// with long kernels for seconds, round after round.
const MIN_PATIENCE_MS: u64 = 10_000;
/// And at most, since a first round is waited for.
const PATIENCE_LIMIT_MS: u64 = 600_000;

/// What a round asks for. One that goes on trying delays only the next round: it gives way to moves.
fn round_to(to: &str, every_ms: u64) -> Migrate {
    Migrate { patience_ms: Some(every_ms.clamp(MIN_PATIENCE_MS, PATIENCE_LIMIT_MS)), ..Migrate::to(to) }
}

/// Keeps a copy at this place, and of no other one. Returns the id of its first round, which is a move that commits nothing.
pub(crate) fn begin(job: &'static Job, to: &str, every: Duration) -> Result<String, MoveError> {
    let (devices, targets) = moves::understand(job, None, to)?;
    if parked::home().is_some() {
        return Err(MoveError::AlreadyThere);
    }
    let every_ms = every.as_millis() as u64;
    let wanted = round_to(to, every_ms);
    let mut kept = lock(&KEPT);
    // If it is refused, the copy that is kept so far stays.
    let id = moves::request_copy(job, wanted.clone(), mover::run)?;
    // A round takes a store only when it opens its target, and looks again at the end whether it is to be kept.
    standing::begin(devices.iter().map(|device| device.index).zip(targets));
    let number = kept.replace(Some(KeptCopy { to: to.to_owned(), every_ms, current_unix_ms: None }));
    drop(kept);
    let round = id.clone();
    let started = spawn::spawn("mrcuda-copy", move || keep(job, number, &wanted, every, round));
    started.map(|()| id).map_err(MoveError::no_thread).inspect_err(|_| {
        let mut kept = lock(&KEPT);
        // Another one may be kept by now.
        if kept.number == number {
            give_up(&mut kept);
        }
    })
}

/// Keeps no copy any more.
pub(crate) fn end() {
    give_up(&mut lock(&KEPT));
}

/// Keeps no copy any more if one is kept at this place. Returns whether that was so.
pub(crate) fn end_at(place: &PlaceSpec) -> bool {
    let mut kept = lock(&KEPT);
    let was_there = standing::is_at(place);
    if was_there {
        give_up(&mut kept);
    }
    was_there
}

fn give_up(kept: &mut Kept) {
    kept.replace(None);
    standing::end();
}

/// The copy that is kept.
pub(crate) fn now() -> Option<KeptCopy> {
    lock(&KEPT).copy.clone()
}

/// Makes round after round, of which the first one has been requested, until this copy is not kept any more.
fn keep(job: &'static Job, number: u64, wanted: &Migrate, every: Duration, first: String) {
    let mut round = Some(first);
    loop {
        // Only a round that is over for long is not known any more.
        let ended = round.take().and_then(|id| moves::wait_for(&id).ok());
        let mut kept = lock(&KEPT);
        if let Some(it) = ended.filter(|it| it.ok) {
            kept.note_round(number, it.at_unix_ms);
        }
        let (kept, _) = wait_timeout_while(&CHANGED, kept, every, |kept| kept.number == number);
        if kept.number != number {
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
    fn only_the_rounds_of_the_copy_that_is_kept_count() {
        let copy = |to: &str| Some(KeptCopy { to: to.to_owned(), every_ms: 1, current_unix_ms: None });
        let mut kept = Kept { number: 0, copy: None };
        let (first, second) = (kept.replace(copy("memory")), kept.replace(copy("file:/d")));
        assert_ne!(first, second);
        let current = |kept: &Kept| kept.copy.as_ref().and_then(|copy| copy.current_unix_ms);
        kept.note_round(first, 5);
        assert_eq!(current(&kept), None);
        kept.note_round(second, 7);
        assert_eq!(current(&kept), Some(7));
        let none = kept.replace(None);
        kept.note_round(none, 9);
        assert!(kept.copy.is_none());
    }

    #[test]
    fn a_round_is_patient() {
        let patience = |every_ms| round_to("memory", every_ms).patience_ms;
        assert_eq!([1, 10_000, 60_000].map(patience), [Some(10_000), Some(10_000), Some(60_000)]);
    }
}
