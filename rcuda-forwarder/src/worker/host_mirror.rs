//! Host memory of the job that this place cannot access: the place has a copy, and sends its changes to the job before
//! each answer that shows the GPU's progress, and periodically, since the job may poll the memory without a call.

use crate::host_mirror::{Pace, Scan};
use crate::place::Place;
use cuda_api::code::Code;
use cuda_api::ops::id;
use executor::host_mirror::{PlaceChanges, bytes_of};
use std::time::Duration;

/// Maximum number of lines of one message: 1 MiB of memory.
const LINES: usize = 1 << 14;
/// Interval between checks whether there is such memory.
const NONE: Duration = Duration::from_millis(5);

/// Whether the answer to a call shows the GPU's progress, so that the job must find what was written before.
pub(super) fn shows_progress(call: u16) -> bool {
    matches!(
        call,
        id::STREAM_SYNC
            | id::CONTEXT_SYNC
            | id::EVENT_SYNC
            | id::STREAM_QUERY
            | id::EVENT_QUERY
            | id::EVENT_REACHED
            | id::EVENT_ELAPSED
            | id::EVENT_TIME
            | id::STREAM_FENCE
            | id::COPY_OUT
            | id::BULK_IN
            | id::BULK_OUT
            | id::COPY_BOX_OUT
            | id::HOST_CALL
            | id::COPY_IN_LATE
            | id::GRAPH_CALL
            | id::STREAM_MEMORY
    )
}

/// Passes changes on in messages, which `sent` counts; returns whether there were any that the program may look at without a call. `complete`: before
/// an answer that shows progress; otherwise only those.
///
/// # Errors
/// That of [`Place::collect_gpu_changes`].
pub(super) fn send_changes<P: Place>(place: &P, complete: bool, sent: &mut u64, send: impl Fn(&[&[u8]])) -> Result<bool, Code> {
    let before = *sent;
    let mut pass_on = |PlaceChanges { messages, blocks, lines }| {
        for some in lines.chunks(LINES) {
            send(&[&messages.to_le_bytes(), &blocks.to_le_bytes(), bytes_of(some)]);
            *sent += 1;
        }
        !lines.is_empty()
    };
    if complete {
        place.collect_gpu_changes(before, &mut |changes| _ = pass_on(changes))?;
    }
    Ok(pass_on(place.collect_changes()))
}

/// Scans for changes periodically. `worked` counts the calls that may lead to changes; `send` passes changes on, and returns
/// whether there were any.
pub(super) fn keep_alike<P: Place>(place: &P, worked: impl Fn() -> u64, send: impl Fn() -> bool) {
    let mut pace = Pace::default();
    loop {
        if place.has_apart() {
            pace.scan(worked(), || Scan { found: send(), ..Scan::default() });
        } else {
            std::thread::sleep(NONE);
        }
    }
}
