//! Event times across places: each place's reference event on the job's clock, and the times of events that the next place
//! cannot know.

use super::leg::WINDOW;
use crate::job::{Device, Job};
use crate::place::Place;
use cuda_api::arg::LEGACY;
use cuda_api::calls::Call;
use cuda_api::calls::stream::{cuEventCreate, cuEventDestroy_v2};
use cuda_api::code::{self, Code};
use cuda_api::ops;
use cuda_api::wire::Wire;
use std::sync::atomic::Ordering;

/// Runs an operation on a quiet place and waits for it.
fn ask(place: &Place, id: u16, body: &[u8]) -> Result<Vec<u8>, String> {
    let failed = |rc: Code| format!("{} failed with error {rc}", ops::name(id).unwrap_or("a call"));
    let (rc, bytes) = place.begin(id, &[body]).map_err(failed)?.finish();
    if rc == code::SUCCESS { Ok(bytes) } else { Err(failed(rc)) }
}

fn encoded<T: Wire>(value: &T) -> Vec<u8> {
    let mut body = Vec::new();
    value.put(&mut body);
    body
}

/// When the reference event of a quiet place happened, on the job's clock: an event recorded now is a known time after it.
pub(super) fn reference_ms(job: &Job, device: &Device, place: &Place) -> Result<f64, String> {
    let event = job.tables.events.make(device.index).map_err(|rc| format!("error {rc}"))?;
    let measure = || {
        ask(place, cuEventCreate::Fn::ID, &encoded(&cuEventCreate::Sent { phEvent: event, Flags: 0 }))?;
        ask(place, ops::id::EVENT_RECORD, &encoded(&ops::EventRecord { event, stream: LEGACY, flags: 0 }))?;
        ask(place, ops::id::EVENT_SYNC, &event.to_le_bytes())?;
        let now = job.now_ms();
        let bytes = ask(place, ops::id::EVENT_TIME, &event.to_le_bytes())?;
        ask(place, cuEventDestroy_v2::Fn::ID, &encoded(&cuEventDestroy_v2::Sent { hEvent: event }))?;
        f64::get(&mut &bytes[..]).map(|t| now - t).map_err(|e| e.to_string())
    };
    let result = measure();
    job.tables.events.end(event);
    result
}

/// Asks the quiet source when each event happened: the next place cannot know.
pub(super) fn keep_event_times(job: &Job, device: &Device, source: &Place) -> Result<(), String> {
    const DISABLE_TIMING: u32 = 2;
    let epoch = device.epoch.load(Ordering::Relaxed);
    let events = job.tables.events.all(device.index);
    let timed: Vec<_> = events
        .into_iter()
        .filter(|(_, e)| {
            e.data.epoch.load(Ordering::Relaxed) == epoch && e.data.flags.load(Ordering::Relaxed) & DISABLE_TIMING == 0
        })
        .collect();
    if timed.is_empty() {
        return Ok(());
    }
    let reference = reference_ms(job, device, source)?;
    for window in timed.chunks(WINDOW) {
        let mut waiting = Vec::with_capacity(WINDOW);
        for (h, e) in window {
            let w = source
                .begin(ops::id::EVENT_TIME, &[&h.to_le_bytes()])
                .map_err(|rc| format!("error {rc} on asking for an event's time"))?;
            waiting.push((w, e));
        }
        for (w, e) in waiting {
            let (rc, bytes) = w.finish();
            if rc != code::SUCCESS {
                return Err(format!("error {rc} on asking for an event's time"));
            }
            let t = f64::get(&mut &bytes[..]).map_err(|e| e.to_string())?;
            e.data.happened_ms.store((reference + t).to_bits(), Ordering::Relaxed);
        }
    }
    Ok(())
}
