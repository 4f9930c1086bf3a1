//! A parked job: its devices are in stores, which execute nothing, and the gate stays closed until a move takes them to GPUs again.

use super::compare::Shape;
use crate::base::log::lock;
use crate::base::spawn;
use crate::gate::Closed;
use crate::internal_error;
use crate::job::{Job, Moving};
use cuda_api::code;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between two checks whether what is parked is still there.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which the end of the program tries again while the watch checks.
const SHORTLY: Duration = Duration::from_millis(5);

/// What a parked device had at the place where it last executed.
#[derive(Debug)]
pub(super) struct Kept {
    /// That place.
    pub(super) from: String,
    /// What lay there: a GPU that continues must have the same at the same addresses.
    pub(super) shape: Shape,
}

/// The state of a parked job.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) gate: Closed,
    /// By device.
    pub(super) kept: BTreeMap<u32, Kept>,
}

static PARKED: Mutex<Option<Parked>> = Mutex::new(None);
/// Where the devices of the parked job came from, also while a move has taken its state.
static HOME: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Where a job that is parked came from, by device; `None` if it is not parked.
pub(crate) fn home() -> Option<Vec<String>> {
    lock(&HOME).clone()
}

/// The state of a job, if it is parked, in the hands of a move. What it has not ended comes back.
#[derive(Debug)]
pub(super) struct Taken(Option<Parked>);

impl Taken {
    pub(super) fn take() -> Taken {
        Taken(lock(&PARKED).take())
    }

    pub(super) fn get(&self) -> Option<&Parked> {
        self.0.as_ref()
    }

    /// The job is parked from now on.
    pub(super) fn begin(&mut self, parked: Parked) {
        *lock(&HOME) = Some(parked.kept.values().map(|kept| kept.from.clone()).collect());
        self.0 = Some(parked);
    }

    /// The job is parked no more: its calls continue.
    pub(super) fn end(&mut self) {
        if self.0.take().is_some() {
            *lock(&HOME) = None;
        }
    }

    /// What was parked is lost, so no move can bring it back: calls continue, and fail.
    pub(super) fn give_up(&mut self, job: &Job) {
        job.devices.iter().for_each(|device| device.note(code::ERROR_DEVICE_UNAVAILABLE));
        self.end();
    }
}

/// The program ends: threads that wait must not hold up its exit, and files are of no use any more.
pub(crate) fn end(job: &Job) {
    let since = Instant::now();
    let moving = loop {
        match Moving::try_begin() {
            Some(moving) => break moving,
            None if since.elapsed() < POLL_INTERVAL => std::thread::sleep(SHORTLY),
            // A move that is still under way has the state.
            None => return,
        }
    };
    super::standing::remove_files();
    let mut taken = Taken::take();
    if taken.get().is_some() {
        taken.give_up(job);
    }
    // A helper that is lost cannot do it.
    job.devices.iter().for_each(|device| device.place_for_mover(&moving).remove_file());
}

/// Checks every [`POLL_INTERVAL`] whether the memory of the parked job is still there: calls must not wait for what is lost. Without this thread
/// the next move finds that out.
pub(super) fn watch(job: &'static Job) {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    let poll = move || {
        loop {
            std::thread::sleep(POLL_INTERVAL);
            let Some(moving) = Moving::try_begin() else { continue };
            let mut taken = Taken::take();
            if taken.get().is_none() {
                WATCHED.store(false, Ordering::Release);
                return;
            }
            // After an error that stays no move can bring it back either.
            let is_stuck = internal_error::blocker().is_some() || job.devices.iter().any(|device| device.sticky() != 0);
            if is_stuck || job.devices.iter().any(|device| device.place_for_mover(&moving).is_gone()) {
                taken.give_up(job);
            }
        }
    };
    if spawn::spawn("mrcuda-parked", poll).is_err() {
        WATCHED.store(false, Ordering::Release);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(parked) = self.0.take() {
            // Queries are answered meanwhile.
            parked.gate.open_side_door();
            *lock(&PARKED) = Some(parked);
        }
    }
}
