//! A place without memory for an allocation: the device moves to a place that has it (`mrcuda run --when-full`;
//! docs/migration.md, "When memory runs out").
//!
//! The call that found no memory has left the gate and undone what it did, like one that fails. Its thread requests a move, waits for its
//! end and tries the call again. Threads that find no memory meanwhile wait for the same move.

use crate::base::config;
use crate::base::log::lock;
use crate::calls::registry;
use crate::enter::Shortage;
use crate::job::{self, Device, Job};
use crate::move_error::MoveError;
use crate::mover;
use crate::moves;
use ::control::{Migrate, Move, ReasonCode};
use rcuda_forwarder::PlaceSpec;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time after which a place that has not taken a device is asked again: a program that tries how much memory there is would
/// otherwise wait for the place each time.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// A place that has not taken a device.
#[derive(Debug)]
struct Refusal {
    device: u32,
    place: PlaceSpec,
    at: Instant,
    /// If memory was the reason, what would have fitted there.
    fits: Option<u64>,
}

/// The refusals that still count.
#[derive(Debug)]
struct Refusals(Vec<Refusal>);

impl Refusals {
    /// Whether a place may be asked at this time to take a device that needs so many bytes.
    fn allow(&self, device: u32, place: &PlaceSpec, bytes: u64, now: Instant) -> bool {
        let of_it = |it: &&Refusal| it.device == device && it.place == *place && now.duration_since(it.at) < RETRY_AFTER;
        self.0.iter().find(of_it).is_none_or(|it| it.fits.is_some_and(|fits| bytes <= fits))
    }

    fn note(&mut self, new: Refusal) {
        self.0.retain(|old| (old.device, &old.place) != (new.device, &new.place));
        self.0.push(new);
    }
}

/// Held by the thread that moves a device for all that find no memory.
static REFUSALS: Mutex<Refusals> = Mutex::new(Refusals(Vec::new()));

/// Moves a device to a place with more memory, which was done for this call so many times before. Returns whether the call is to be tried again: the
/// device is at another place than before.
pub(crate) fn make_room(shortage: Shortage, tries: usize) -> bool {
    let places = config::get().map_or(&[][..], |config| &config.when_full);
    let Some(job) = job::opened().filter(|_| tries < places.len()) else { return false };
    let device = shortage.device;
    let has_left = || device.epoch.load(Ordering::Acquire) != shortage.epoch;
    let mut refusals = lock(&REFUSALS);
    for place in places {
        if has_left() {
            return true;
        }
        let held = registry::needed_bytes(job, device);
        let asked = Instant::now();
        if is_at(device, place) || !refusals.allow(device.index, place, held.saturating_add(shortage.bytes), asked) {
            continue;
        }
        tracing::info!(target: "migrate", "GPU {} has no memory for {} bytes: it is to move to {place}", device.index, shortage.bytes);
        match ask(job, &shortage, place, has_left) {
            // A device that another move has taken elsewhere meanwhile, or into a store, was not refused by this place.
            Some(report) if !report.ok && !has_left() => {
                // What else a device needs there counts as held.
                let free = report.legs.first().filter(|_| report.code == Some(ReasonCode::NoMemory));
                let fits =
                    free.map(|leg| (held + shortage.bytes).saturating_sub(leg.needed_bytes.saturating_sub(leg.free_bytes)));
                refusals.note(Refusal { device: device.index, place: place.clone(), at: Instant::now(), fits });
            }
            _ => {}
        }
    }
    has_left()
}

/// Whether a device is at a place already; a process has one place for a GPU of its machine.
fn is_at(device: &Device, place: &PlaceSpec) -> bool {
    let at = device.whereabouts().place.parse();
    at.is_ok_and(|at: PlaceSpec| at.is_same_as(place) || matches!((&at, place), (PlaceSpec::Local(_), PlaceSpec::Local(_))))
}

/// Has a device move, and waits for the end. Other moves come first; then there is a report only if the device is still where it was.
fn ask(job: &'static Job, shortage: &Shortage, place: &PlaceSpec, has_left: impl Fn() -> bool) -> Option<Move> {
    let wanted = Migrate { gpu: Some(shortage.device.index), ..Migrate::to(&place.to_string()) };
    loop {
        match moves::request_for_room(job, wanted.clone(), shortage.bytes, mover::run) {
            Ok(id) => return moves::wait_for(&id).ok(),
            Err(MoveError::Busy { id: Some(id) }) => {
                // It may be over, and forgotten.
                let _ = moves::wait_for(&id);
                if has_left() {
                    return None;
                }
            }
            // The program ends, or the system starts no thread.
            Err(why) => {
                tracing::debug!(target: "migrate", "no move because of memory: {why}");
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_has_refused_is_left_alone_for_a_while() {
        let (here, there): (PlaceSpec, PlaceSpec) = ("local".parse().unwrap(), "a:1/0".parse().unwrap());
        let at = Instant::now();
        let mut refusals = Refusals(Vec::new());
        assert!(refusals.allow(0, &there, 1, at));
        refusals.note(Refusal { device: 0, place: there.clone(), at, fits: Some(100) });
        let allowed = |refusals: &Refusals, bytes, after: u64| refusals.allow(0, &there, bytes, at + Duration::from_secs(after));
        assert!(allowed(&refusals, 100, 1), "that would have fitted");
        assert!(!allowed(&refusals, 101, 9) && allowed(&refusals, 101, 10));
        assert!(refusals.allow(1, &there, 101, at) && refusals.allow(0, &here, 101, at), "others have not refused");
        refusals.note(Refusal { device: 0, place: there.clone(), at, fits: None });
        assert!(!allowed(&refusals, 0, 9) && allowed(&refusals, u64::MAX, 10));
        assert_eq!(refusals.0.len(), 1);
    }
}
