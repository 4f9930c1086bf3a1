//! Captures as streams and events see them.

use super::event::Event;
use super::graph_table::{GRAPHS, error};
use super::live::Live;
use super::stream::Target;
use super::stream_state::Kind;
use crate::result::Res;
use cuda_api::sys::CUresult;
use cuda_api::work::Work as NodeWork;
use cuda_model::graph::Stream;

/// A stream as captures see it.
pub(crate) fn seen(target: &Target) -> Stream {
    Stream {
        key: target.stream.number,
        context: target.live.number,
        legacy: target.stream.kind == Kind::Legacy,
        blocking: target.stream.blocking(),
    }
}

/// Adds work to the capture of a stream; true if there is one. A call that `waits` cannot be captured.
pub(crate) fn take(target: &Target, waits: bool, work: impl FnOnce() -> Res<NodeWork<u64>>) -> Res<bool> {
    if !GRAPHS.capturing() {
        return Ok(false);
    }
    let stream = seen(target);
    if waits {
        GRAPHS.forbid_on(&stream).and_then(|()| GRAPHS.forbid_unsafe()).map_err(error)?;
        return Ok(false);
    }
    if !GRAPHS.in_capture(&stream).map_err(error)? {
        return Ok(false);
    }
    GRAPHS.captured(&stream, work()?).map_err(error)
}

/// For calls on a stream that cannot be captured.
pub(crate) fn forbid_on(target: &Target) -> Res {
    if GRAPHS.capturing() { GRAPHS.forbid_on(&seen(target)).map_err(error) } else { Ok(()) }
}

/// For batches of copies, which cannot be captured: the call is refused, and the capture stays valid.
pub(crate) fn refuse(target: &Target) -> Res {
    let captured = GRAPHS.capturing() && GRAPHS.in_capture(&seen(target)).map_err(error)?;
    if captured { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// For calls that captures may forbid.
pub(crate) fn forbid_unsafe() -> Res {
    if GRAPHS.capturing() { GRAPHS.forbid_unsafe().map_err(error) } else { Ok(()) }
}

/// For waits for a whole context.
pub(crate) fn forbid_in(live: &Live) -> Res {
    if GRAPHS.capturing() { GRAPHS.forbid_in(live.number).map_err(error) } else { Ok(()) }
}

/// Records an event in a stream; true if this was handled by its capture.
pub(crate) fn record(target: &Target, event: &Event, external: bool) -> Res<bool> {
    // Also after the last capture: the event is no longer one of a capture's.
    GRAPHS.record_event(event.handle as u64, &seen(target), external).map_err(error)
}

/// Makes a stream wait for an event; true if this was handled by captures.
pub(crate) fn wait(target: &Target, event: &Event, external: bool) -> Res<bool> {
    GRAPHS.wait_event(event.handle as u64, &seen(target), external, event.mark().is_some()).map_err(error)
}

/// Checks a query of an event by the host.
pub(crate) fn ask(event: &Event) -> Res {
    forbid_unsafe()?;
    GRAPHS.check_event(event.handle as u64).map_err(error)
}
