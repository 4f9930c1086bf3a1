//! Bringing the source to rest: the gate is closed, no call is inside, the GPU is idle.

use super::unexpected;
use crate::gate::{self, Closed};
use crate::job::Device;
use crate::mover::Report;
use crate::place::Place;
use cuda_api::code;
use cuda_api::ops;
use rcuda_forwarder::{Control, ControlReply};
use replayer::Applied;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Limits of the attempts to quiesce: short ones first, since a job that waits for itself is then hardly disturbed, longer ones
/// for kernels that simply take long.
const QUIESCE: [Duration; 4] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(5)];

/// Closes the gate and waits until the source is idle: every attempt is bounded and can be abandoned.
pub(super) fn quiesce(device: &'static Device, source: &Place, report: &mut Report) -> Result<Closed, String> {
    let mut why = String::new();
    for (attempt, limit) in QUIESCE.into_iter().enumerate() {
        if attempt > 0 {
            // Two programs that disturb each other should not meet again.
            let pause = u64::from(u16::from_le_bytes(super::random()?));
            std::thread::sleep(Duration::from_micros(2000 + pause % 20_000));
        }
        let since = Instant::now();
        let Some(closed) = gate::close(limit) else {
            why = "a thread stays inside a CUDA call (a module is being loaded, or a copy waits)".into();
            continue;
        };
        let drained = drain(source, limit.saturating_sub(since.elapsed()).max(Duration::from_millis(50)))?;
        report.kernel_running |= drained.was_busy;
        if !drained.idle {
            why = drained.what;
            continue;
        }
        while device.waiters.load(Ordering::Acquire) != 0 && since.elapsed() < limit + Duration::from_secs(1) {
            std::thread::yield_now();
        }
        if device.waiters.load(Ordering::Acquire) != 0 {
            why = "a thread waits for an answer that does not come".into();
            continue;
        }
        return Ok(closed);
    }
    Err(format!("cannot move now: the GPU did not become idle: {why}"))
}

struct Drained {
    idle: bool,
    was_busy: bool,
    what: String,
}

fn drain(source: &Place, limit: Duration) -> Result<Drained, String> {
    match source {
        Place::Remote { link, .. } => {
            let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            match link.control(&Control::Drain { limit_ms }).map_err(|e| e.to_string())? {
                ControlReply::Drained { idle, was_busy, waits_for } => Ok(Drained { idle, was_busy, what: waits_for }),
                other => Err(unexpected(&other)),
            }
        }
        Place::Local { exec, .. } => {
            let since = Instant::now();
            let mut bytes = Vec::new();
            let mut pending = match exec.apply(ops::id::CONTEXT_SYNC, &[], &mut bytes) {
                Applied::Done(code::SUCCESS) => return Ok(Drained { idle: true, was_busy: false, what: String::new() }),
                Applied::Done(rc) => return Err(format!("error {rc} on waiting for the GPU")),
                Applied::Pending(p) => p,
            };
            let mut was_busy = false;
            loop {
                match pending.poll(exec, &mut bytes) {
                    Some(code::SUCCESS) => return Ok(Drained { idle: true, was_busy, what: String::new() }),
                    Some(rc) => return Err(format!("error {rc} on waiting for the GPU")),
                    None => was_busy = true,
                }
                if since.elapsed() > limit {
                    // Its events must be waited for all the same before they are used again.
                    let exec = exec.clone();
                    std::thread::spawn(move || pending.wait(&exec, &mut Vec::new()));
                    return Ok(Drained { idle: false, was_busy, what: "kernels are still running".into() });
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}
