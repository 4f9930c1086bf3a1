//! Captures: which streams capture, and what captures forbid. The graphs are those of the job.

use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::events::EventData;
use cuda_api::arg::LEGACY;
use cuda_api::code::{self, Code};
use cuda_api::flags::STREAM_NON_BLOCKING;
use cuda_api::handle::Kind;
use cuda_api::work::Work;
use cuda_model::graph::Stream;
use std::sync::atomic::Ordering;

/// The model's number of a device's context; 0 is none.
pub(crate) fn number(device: &Device) -> u64 {
    u64::from(device.index) + 1
}

/// A resolved stream of a device in the capture model's form.
pub(crate) fn seen(cx: &CallContext, stream: u64, device: &Device) -> Result<Stream, Code> {
    let legacy = stream == LEGACY;
    let blocking = legacy || cx.job.tables.streams.get(stream)?.data.flags.load(Ordering::Relaxed) & STREAM_NON_BLOCKING == 0;
    Ok(Stream { key: stream, context: number(device), legacy, blocking })
}

/// Adds work to the capture of a stream; returns true if there is one. A call that `waits` cannot be captured.
pub(crate) fn take(
    cx: &CallContext,
    device: &Device,
    stream: u64,
    waits: bool,
    work: impl FnOnce() -> Result<Work<u64>, Code>,
) -> Result<bool, Code> {
    let stream = seen(cx, stream, device)?;
    if waits {
        cx.job.graphs.forbid_on(&stream)?;
        cx.job.graphs.forbid_unsafe()?;
        return Ok(false);
    }
    if !cx.job.graphs.in_capture(&stream)? {
        return Ok(false);
    }
    cx.job.graphs.captured(&stream, work()?)
}

/// For calls on a stream that cannot be captured.
pub(crate) fn forbid_on(cx: &CallContext, device: &Device, stream: u64) -> Result<(), Code> {
    if !cx.job.graphs.capturing() {
        return Ok(());
    }
    cx.job.graphs.forbid_on(&seen(cx, stream, device)?)?;
    cx.job.graphs.forbid_unsafe()
}

/// For batches of copies, which cannot be captured: the call is refused, and the capture continues without it.
pub(crate) fn refuse_on(cx: &CallContext, device: &Device, stream: u64) -> Result<(), Code> {
    if cx.job.graphs.capturing() && cx.job.graphs.in_capture(&seen(cx, stream, device)?)? {
        return Err(code::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

/// For calls that captures may forbid to a thread.
pub(crate) fn forbid_unsafe(cx: &CallContext) -> Result<(), Code> {
    if cx.job.graphs.capturing() { cx.job.graphs.forbid_unsafe() } else { Ok(()) }
}

/// For waits for all work of a device.
pub(crate) fn forbid_in(cx: &CallContext, device: &Device) -> Result<(), Code> {
    if cx.job.graphs.capturing() { cx.job.graphs.forbid_in(number(device)) } else { Ok(()) }
}

/// For queries of an event by the host.
pub(crate) fn ask_event(cx: &CallContext, event: u64, data: &EventData) -> Result<(), Code> {
    forbid_unsafe(cx)?;
    if data.captured.load(Ordering::Relaxed) { cx.job.graphs.check_event(event) } else { Ok(()) }
}

/// Records an event in a stream; returns true if a capture has recorded it.
pub(crate) fn record_event(cx: &CallContext, event: u64, stream: u64, device: &Device, external: bool) -> Result<bool, Code> {
    let data = &cx.job.tables.events.get(event)?.data;
    if !cx.job.graphs.capturing() && !data.captured.load(Ordering::Relaxed) {
        return Ok(false);
    }
    let taken = cx.job.graphs.record_event(event, &seen(cx, stream, device)?, external)?;
    data.captured.store(taken && !external, Ordering::Relaxed);
    if taken {
        data.in_graph.store(true, Ordering::Relaxed);
    }
    Ok(taken)
}

/// Forgets the allocations of graphs on a device, which are freed.
pub(crate) fn forget_memory(cx: &CallContext, device: &Device) {
    cx.job.graphs.forget_memory(number(device));
}

/// Removes a destroyed handle from captures.
pub(crate) fn forget(cx: &CallContext, handle: u64) {
    match cuda_api::handle::kind(handle) {
        Some(Kind::Event) if cx.job.tables.events.get(handle).is_ok_and(|e| e.data.captured.load(Ordering::Relaxed)) => {
            cx.job.graphs.forget_event(handle);
        }
        Some(Kind::Stream) if cx.job.graphs.capturing() => cx.job.graphs.forget_stream(handle),
        _ => {}
    }
}
