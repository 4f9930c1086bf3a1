//! The parameters with which streams and events are created.

use crate::enter::CallContext;
use crate::job::Device;
use crate::order::follow;
use cuda_api::calls::Call;
use cuda_api::calls::stream::{cuEventCreate, cuStreamCreate, cuStreamCreateWithPriority};
use cuda_api::code::{self, Code};
use cuda_api::flags::{EVENT_BLOCKING_SYNC, EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, STREAM_NON_BLOCKING};
use cuda_api::wire::Wire;
use std::sync::atomic::Ordering;

/// The parameters of a creation.
#[derive(Clone, Copy)]
pub(crate) struct Creation {
    pub(crate) handle: u64,
    flags: u32,
    priority: i32,
}

/// The parameters of a creation, if it creates a stream or an event and the driver would not refuse it: validated locally, which avoids a
/// round trip.
pub(crate) fn creation(id: u16, mut body: &[u8]) -> Result<Option<Creation>, Code> {
    const STREAM_FLAGS: u32 = STREAM_NON_BLOCKING;
    const EVENT_FLAGS: u32 = EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING | EVENT_INTERPROCESS;
    let body = &mut body;
    let (asked, allowed) = match id {
        cuStreamCreate::Fn::ID => {
            let s = cuStreamCreate::Sent::get(body).map_err(|_| code::ERROR_UNKNOWN)?;
            (Creation { handle: s.phStream, flags: s.Flags, priority: 0 }, STREAM_FLAGS)
        }
        cuStreamCreateWithPriority::Fn::ID => {
            let s = cuStreamCreateWithPriority::Sent::get(body).map_err(|_| code::ERROR_UNKNOWN)?;
            (Creation { handle: s.phStream, flags: s.flags, priority: s.priority }, STREAM_FLAGS)
        }
        cuEventCreate::Fn::ID => {
            let s = cuEventCreate::Sent::get(body).map_err(|_| code::ERROR_UNKNOWN)?;
            (Creation { handle: s.phEvent, flags: s.Flags, priority: 0 }, EVENT_FLAGS)
        }
        _ => return Ok(None),
    };
    // An event shared between processes cannot have times (CUDA driver API reference).
    let untimed = asked.flags & EVENT_INTERPROCESS == 0 || asked.flags & EVENT_DISABLE_TIMING != 0;
    if asked.flags & !allowed == 0 && untimed { Ok(Some(asked)) } else { Err(code::ERROR_INVALID_VALUE) }
}

/// Stores the parameters of a creation, which the program may query later.
pub(crate) fn note_creation(cx: &CallContext, device: &'static Device, made: Creation) -> Result<(), Code> {
    if let Ok(s) = cx.job.tables.streams.get(made.handle) {
        s.data.flags.store(made.flags, Ordering::Relaxed);
        s.data.priority.store(made.priority as u32, Ordering::Relaxed);
        if made.flags & STREAM_NON_BLOCKING != 0 {
            device.note_independent_stream();
        }
        follow::new_in(cx, device, s.context(), made.handle)?;
    } else if let Ok(e) = cx.job.tables.events.get(made.handle) {
        e.data.flags.store(made.flags, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
