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

/// The copy that is kept, if any. Each one has a number of its own.
static KEPT: Mutex<(u64, Option<KeptCopy>)> = Mutex::new((0, None));
static CHANGED: Condvar = Condvar::new();

/// Keeps a copy at this place, and of no other one. Returns the id of its first round, which is a move that commits nothing.
pub(crate) fn begin(job: &'static Job, to: &str, every: Duration) -> Result<String, MoveError> {
    let (devices, targets) = moves::understand(job, None, to)?;
    if parked::home().is_some() {
        return Err(MoveError::AlreadyThere);
    }
    let mut kept = lock(&KEPT);
    standing::begin(devices.iter().map(|device| device.index).zip(targets));
    let wanted = Migrate::to(to);
    let first = moves::request_copy(job, wanted.clone(), mover::run);
    kept.0 += 1;
    kept.1 = Some(KeptCopy { to: to.to_owned(), every_ms: every.as_millis() as u64, current_unix_ms: None });
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
    stop(&mut lock(&KEPT));
}

/// Keeps no copy any more if one is kept at this place. Returns whether that was so.
pub(crate) fn end_at(place: &PlaceSpec) -> bool {
    let mut kept = lock(&KEPT);
    let was_there = standing::is_at(place);
    if was_there {
        stop(&mut kept);
    }
    was_there
}

fn stop(kept: &mut (u64, Option<KeptCopy>)) {
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
