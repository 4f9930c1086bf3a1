//! Event times across places: the job's clock, and the times of events that the next place cannot know.
//!
//! The time between two events of one place comes from its driver. For events of different places, each place has a reference event,
//! recorded when the job arrives and again when it leaves, at a known time on the job's clock. So a measured time spans no more than the
//! interval between the two events, and is rounded to 32 bits as the driver's own result.

use crate::base::log::lock;
use crate::job::{Device, Job};
use crate::move_error::MoveError;
use crate::place::Place;
use cuda_api::code::{self, Code};
use cuda_api::flags::EVENT_DISABLE_TIMING;
use cuda_api::ops;
use cuda_api::wire::Wire;
use std::sync::atomic::Ordering;

/// Runs an operation on an idle place and waits for it.
fn ask(place: &Place, id: u16, body: &[u8]) -> Result<Vec<u8>, MoveError> {
    let failed = |error: Code| MoveError::CallFailed { call: ops::name(id).unwrap_or("a call").to_owned(), error };
    let (rc, bytes) = place.begin(id, &[body]).map_err(failed)?.finish();
    if rc == code::SUCCESS { Ok(bytes) } else { Err(failed(rc)) }
}

/// Records the reference event of an idle place; returns its time in milliseconds on the job's clock.
pub(super) fn record_reference(job: &Job, place: &Place) -> Result<f64, MoveError> {
    let before = job.now_ms();
    ask(place, ops::id::EVENT_REFERENCE, &[])?;
    // The event occurred during the round trip: the error is at most half of it.
    Ok((before + job.now_ms()) / 2.0)
}

/// Queries from the idle source when each event occurred, since the next place cannot know.
pub(super) fn keep_event_times(job: &Job, device: &Device, source: &Place) -> Result<(), MoveError> {
    let epoch = device.epoch.load(Ordering::Relaxed);
    let timed: Vec<_> = job
        .tables
        .events
        .all(device.index)
        .into_iter()
        .filter(|(_, e)| {
            e.data.epoch.load(Ordering::Relaxed) == epoch && e.data.flags.load(Ordering::Relaxed) & EVENT_DISABLE_TIMING == 0
        })
        .collect();
    if timed.is_empty() {
        return Ok(());
    }
    let reference = record_reference(job, source)?;
    // If the move fails, the source continues from this reference event.
    lock(&device.clock).reference_ms = reference;
    let mut body = Vec::new();
    timed.iter().map(|(h, _)| *h).collect::<Vec<u64>>().put(&mut body);
    let bytes = ask(source, ops::id::EVENT_TIMES, &body)?;
    let times = Vec::<f64>::get(&mut &bytes[..]).map_err(|e| MoveError::BadAnswer(e.to_string()))?;
    if times.len() != timed.len() {
        return Err(MoveError::BadAnswer(format!("the times of {} of {} events", times.len(), timed.len())));
    }
    for ((_, e), t) in timed.iter().zip(times) {
        e.data.happened_ms.store((reference + t).to_bits(), Ordering::Relaxed);
    }
    Ok(())
}
