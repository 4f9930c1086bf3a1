//! Streams and events, beyond what their rows describe.

use crate::base::encoding::encoded;
use crate::base::log::lock;
use crate::calls::{graph, spare_events, stream_attributes};
use crate::carry::end_stream;
use crate::device_memory::{shared_handles, stream_ordered};
use crate::enter::CallContext;
use crate::job::{Device, contexts};
use crate::objects::events::{Asked, EventData, Recorded};
use crate::order::delay::follows_default;
use crate::order::{captures, landing};
use cuda_api::arg::{Capture, LEGACY};
use cuda_api::calls::stream::{cuEventDestroy_v2, cuStreamCreateWithPriority};
use cuda_api::code::{self, Code};
use cuda_api::flags::EVENT_DISABLE_TIMING;
use cuda_api::handle::Kind;
use cuda_api::wire::Wire;
use cuda_api::{ops, sys};
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Creates a stream of this context, whatever the thread's context is; 0: of none. The device is that of the call.
pub(crate) fn create(cx: &mut CallContext, ctx: u64, flags: c_uint, priority: c_int) -> Result<u64, Code> {
    let mut sent = cuStreamCreateWithPriority::Sent { phStream: cx.new_handle(Kind::Stream)?, flags, priority };
    cx.job.tables.streams.get(sent.phStream)?.set_context(ctx);
    cx.carry::<cuStreamCreateWithPriority::Fn>(&mut sent)?;
    Ok(sent.phStream)
}

/// Destroys these streams and events of a device.
pub(crate) fn destroy(cx: &mut CallContext, device: &'static Device, streams: &[u64], events: &[u64]) -> Result<(), Code> {
    for h in streams {
        cx.on(device);
        end_stream(cx, device, *h)?;
    }
    for h in events {
        cx.on(device);
        cx.carry::<cuEventDestroy_v2::Fn>(&mut cuEventDestroy_v2::Sent { hEvent: *h })?;
    }
    Ok(())
}

/// Destroys the graph instances, streams and events of a context, or all of a device.
pub(crate) fn end_of(cx: &mut CallContext, device: &'static Device, whose: Option<u64>) -> Result<(), Code> {
    graph::end_of(cx, device, whose)?;
    let streams = cx.job.tables.streams.all(device.index).into_iter().filter(|(_, s)| s.ends_with(whose));
    let streams: Vec<u64> = streams.map(|(h, _)| h).collect();
    let events = cx.job.tables.events.all(device.index).into_iter().filter(|(_, e)| e.ends_with(whose));
    let mut events: Vec<u64> = events.map(|(h, _)| h).collect();
    let mut spare = spare_events::take_all(cx, device, whose);
    // One that another thread has kept since is in both lists.
    spare.retain(|e| !events.contains(e));
    events.append(&mut spare);
    let destroyed = destroy(cx, device, &streams, &events);
    spare_events::context_ended(cx, device, whose);
    destroyed
}

/// Destroys all graph instances, streams and events of a device.
pub(crate) fn end_all(cx: &mut CallContext, device: &'static Device) -> Result<(), Code> {
    end_of(cx, device, None)?;
    captures::forget_memory(cx, device);
    stream_attributes::forget(device);
    Ok(())
}

pub(crate) fn cuStreamSynchronize(cx: &mut CallContext, stream: u64) -> Result<(), Code> {
    let device = cx.device()?;
    captures::forbid_on(cx, device, stream)?;
    let mark = stream_ordered::before_sync(device);
    // Memory that was freed in a stream is ordered behind everything that its next work follows, although a free is no work there itself.
    if mark.is_some() && follows_default(cx, stream) {
        cx.settle_turn(device, stream)?
    } else {
        cx.settle_stream(device, stream)?
    }
    stream_ordered::after_sync(cx, device, Some(stream), mark);
    Ok(())
}

pub(crate) fn cuStreamGetFlags(cx: &mut CallContext, stream: u64) -> Result<c_uint, Code> {
    cx.device()?;
    let value = if stream == LEGACY { 0 } else { cx.job.tables.streams.get(stream)?.data.flags.load(Ordering::Relaxed) };
    Ok(value)
}

pub(crate) fn cuStreamGetPriority(cx: &mut CallContext, stream: u64) -> Result<c_int, Code> {
    cx.device()?;
    if stream == LEGACY {
        return Ok(0);
    }
    let asked = cx.job.tables.streams.get(stream)?.data.priority.load(Ordering::Relaxed) as i32;
    let [least, greatest] = cx.device()?.info.priorities;
    Ok(asked.clamp(greatest.min(least), least.max(greatest)))
}

pub(crate) fn cuStreamGetCtx(cx: &mut CallContext, stream: u64) -> Result<u64, Code> {
    home(cx, stream)
}

/// Returns whether a stream is one of the special ones that every context has.
fn is_special(stream: u64) -> bool {
    stream < 3
}

/// The context of a stream: for a special stream that of the thread.
fn home(cx: &mut CallContext, stream: u64) -> Result<u64, Code> {
    if is_special(stream) {
        contexts::current_device(cx.job)?;
        return Ok(contexts::current());
    }
    let stream = cx.use_stream(stream)?;
    cx.device()?;
    Ok(cx.job.tables.streams.get(stream)?.context())
}

pub(crate) fn cuStreamGetCtx_v2(cx: &mut CallContext, stream: u64) -> Result<(u64, u64), Code> {
    /// `CU_STREAM_PER_THREAD`
    const PER_THREAD: u64 = 2;
    let ctx = home(cx, stream)?;
    if !contexts::is_green(ctx) {
        return Ok((ctx, 0));
    }
    // A green context has no such stream (CUDA driver API reference).
    if stream == PER_THREAD {
        return Err(code::ERROR_INVALID_HANDLE);
    }
    Ok((contexts::primary(contexts::device_of(cx.job, ctx)?.index), contexts::of_context(ctx)))
}

pub(crate) fn cuStreamGetDevice(cx: &mut CallContext, _stream: u64) -> Result<sys::CUdevice, Code> {
    Ok(cx.device()?.index as sys::CUdevice)
}

pub(crate) fn cuStreamGetGreenCtx(cx: &mut CallContext, stream: u64) -> Result<u64, Code> {
    let ctx = home(cx, stream)?;
    Ok(if contexts::is_green(ctx) { contexts::of_context(ctx) } else { 0 })
}

pub(crate) fn cuStreamGetId(cx: &mut CallContext, stream: u64) -> Result<c_ulonglong, Code> {
    cx.device()?;
    Ok(if stream == LEGACY { 1 } else { stream })
}

pub(crate) fn cuStreamQuery(cx: &mut CallContext, stream: u64) -> Result<(), Code> {
    let device = cx.device()?;
    device.check()?;
    captures::forbid_on(cx, device, stream)?;
    if device.is_quiet(cx.place(device), Some(stream)) {
        return Ok(());
    }
    let span = cx.query(device, ops::id::STREAM_QUERY, stream)?;
    if let Some(span) = span {
        device.quiet_by_answer(device.epoch.load(Ordering::Relaxed), span, stream);
    }
    Ok(())
}

fn record(cx: &mut CallContext, event: sys::CUevent, stream: sys::CUstream, flags: u32) -> Result<(), Code> {
    // `CU_EVENT_RECORD_EXTERNAL` is for captures only.
    if flags > 1 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let stream = cx.use_stream(stream as u64)?;
    let on = cx.device()?.index;
    let event = cx.use_handle(Kind::Event, Kind::Event, event as u64)?;
    let device = cx.device()?;
    if device.index != on {
        return Err(code::ERROR_INVALID_HANDLE);
    }
    if captures::record_event(cx, event, stream, device, flags == 1)? {
        return Ok(());
    }
    if flags != 0 {
        return Err(code::ERROR_ILLEGAL_STATE);
    }
    record_in(cx, device, event, stream)
}

/// Records an event of a device in one of its streams, outside of captures.
pub(crate) fn record_in(cx: &CallContext, device: &'static Device, event: u64, stream: u64) -> Result<(), Code> {
    let data = &cx.job.tables.events.get(event)?.data;
    let epoch = device.epoch.load(Ordering::Relaxed);
    let op = ops::EventRecord { event, stream, flags: 0 };
    let is_shared = shared_handles::is_shared(data);
    if is_shared {
        // Another process that waits for it finds the effects of earlier work in host memory.
        landing::before_shared_event(cx, device, stream)?;
    }
    if let Some(exec) = cx.place(device).in_process().filter(|_| !is_shared) {
        device.check()?;
        device.record_error(exec.carry_out(&op))?;
        // Noted afterwards only: positions are unknown, and a query that this overtakes is about an earlier record.
        data.recorded_somewhere(epoch);
        return Ok(());
    }
    data.begin_record();
    let handed_over = if is_shared {
        // The record is at the place before the program can tell another process of it. The other process's later records are not known
        // here.
        encoded(&op, |body| cx.ask(device, ops::id::EVENT_RECORD, &[body])).map(|_| None)
    } else {
        cx.operate(device, &op)
    };
    let recorded = handed_over.as_ref().ok().and_then(|span| span.as_ref().map(|s| Recorded { at: s.end, stream }));
    data.end_record(handed_over.is_ok().then_some(epoch), recorded);
    handed_over.map(drop)
}

pub(crate) fn cuEventRecord(cx: &mut CallContext, event: sys::CUevent, stream: sys::CUstream) -> Result<(), Code> {
    record(cx, event, stream, 0)
}

pub(crate) fn cuEventRecordWithFlags(
    cx: &mut CallContext,
    event: sys::CUevent,
    stream: sys::CUstream,
    flags: c_uint,
) -> Result<(), Code> {
    record(cx, event, stream, flags)
}

/// The event, if its last record may not have occurred yet: only then is a round trip necessary.
fn unfinished(cx: &mut CallContext, event: u64) -> Result<Option<Unfinished<'static>>, Code> {
    let device = cx.device()?;
    device.check()?;
    let data = &cx.job.tables.events.get(event)?.data;
    captures::ask_event(cx, event, data)?;
    // A move waits until all work is complete, so a record of an earlier place has occurred.
    if data.epoch.load(Ordering::Acquire) != device.epoch.load(Ordering::Relaxed) {
        return Ok(None);
    }
    // A place in this process has no positions.
    let last = if cx.place(device).in_process().is_some() { None } else { data.last() };
    if let Some(last) = last.map(|l| l.recorded())
        && (data.is_done(last) || device.is_past(last.stream, last.at))
    {
        data.note_record_done(last);
        return Ok(None);
    }
    Ok(Some(Unfinished { event, device, data, last }))
}

/// An event whose last record may not have occurred.
struct Unfinished<'t> {
    event: u64,
    device: &'static Device,
    data: &'t EventData,
    /// The last record.
    last: Option<Asked>,
}

impl Unfinished<'_> {
    /// Notes that a call of an epoch has shown that the record has occurred.
    fn note_record_done(&self, epoch: u64, call: Option<Range<u64>>) {
        let (Some(asked), Some(call)) = (self.last, call) else { return };
        let Some(Recorded { at, stream }) = self.data.answered(asked) else { return };
        self.device.past(epoch, stream, at);
        // With nothing between record and query, the stream is complete.
        if at == call.start {
            self.device.quiet_until(epoch, call, Some(stream));
        }
    }
}

pub(crate) fn cuEventQuery(cx: &mut CallContext, event: u64) -> Result<(), Code> {
    let Some(e) = unfinished(cx, event)? else { return Ok(()) };
    let asked = e.data.records();
    let span = cx.query(e.device, ops::id::EVENT_QUERY, e.event)?;
    if span.is_none() {
        e.data.note_reported_done(asked);
    }
    e.note_record_done(e.device.epoch.load(Ordering::Relaxed), span);
    Ok(())
}

pub(crate) fn cuEventSynchronize(cx: &mut CallContext, event: u64) -> Result<(), Code> {
    match unfinished(cx, event)? {
        Some(e) => {
            if let Some(exec) = cx.place(e.device).in_process() {
                let asked = e.data.records();
                cx.wait_here(e.device, exec, |exec| exec.wait_for(ops::id::EVENT_SYNC, e.event))?;
                e.data.note_reported_done(asked);
                stream_ordered::after_event(cx, e.device);
                return Ok(());
            }
            let epoch = e.device.epoch.load(Ordering::Relaxed);
            let waiting = e.device.record_error(cx.place(e.device).begin(ops::id::EVENT_SYNC, &[&e.event.to_le_bytes()]))?;
            let span = waiting.span();
            cx.wait_for(e.device, waiting)?;
            e.note_record_done(epoch, span);
            stream_ordered::after_event(cx, e.device);
            Ok(())
        }
        None => {
            cx.show_text();
            Ok(())
        }
    }
}

/// When an event occurred, in milliseconds on the job's clock.
fn happened_ms(cx: &CallContext, event: u64, device: &'static Device) -> Result<f64, Code> {
    let data = &cx.job.tables.events.get(event)?.data;
    if data.epoch.load(Ordering::Acquire) != device.epoch.load(Ordering::Relaxed) {
        let then = f64::from_bits(data.happened_ms.load(Ordering::Relaxed));
        // Its place had no time for it.
        return if then.is_nan() { Err(code::ERROR_INVALID_HANDLE) } else { Ok(then) };
    }
    let bytes = cx.ask(device, ops::id::EVENT_TIME, &[&event.to_le_bytes()])?;
    let since = f64::get(&mut &bytes[..]).map_err(|_| code::ERROR_UNKNOWN)?;
    Ok(lock(&device.clock).reference_ms + since)
}

pub(crate) fn cuEventElapsedTime_v2(cx: &mut CallContext, start: u64, end: u64) -> Result<f32, Code> {
    let start = cx.use_handle(Kind::Event, Kind::Event, start)?;
    let from = cx.device()?;
    let end = cx.use_handle(Kind::Event, Kind::Event, end)?;
    let device = cx.device()?;
    device.check()?;
    let known = |h: u64| {
        cx.job.tables.events.get(h).map(|e| (e.data.flags.load(Ordering::Relaxed), e.data.epoch.load(Ordering::Acquire)))
    };
    let ((flags_a, epoch_a), (flags_b, epoch_b)) = (known(start)?, known(end)?);
    if (flags_a | flags_b) & EVENT_DISABLE_TIMING != 0 || epoch_a == 0 || epoch_b == 0 || from.index != device.index {
        return Err(code::ERROR_INVALID_HANDLE);
    }
    let now = device.epoch.load(Ordering::Relaxed);
    if epoch_a == now && epoch_b == now {
        let body = [start.to_le_bytes(), end.to_le_bytes()].concat();
        let bytes = cx.ask(device, ops::id::EVENT_ELAPSED, &[&body])?;
        return f32::get(&mut &bytes[..]).map_err(|_| code::ERROR_UNKNOWN);
    }
    Ok(between((epoch_a, happened_ms(cx, start, device)?), (epoch_b, happened_ms(cx, end, device)?)) as f32)
}

/// Milliseconds from one event to another, each given by the epoch of its place and its time on the job's clock. All work of a place is over
/// before that of the next one begins, so the order is certain where the clocks of two places are not: each is known up to half of a round
/// trip.
fn between(start: (u64, f64), end: (u64, f64)) -> f64 {
    let ms = end.1 - start.1;
    match start.0.cmp(&end.0) {
        std::cmp::Ordering::Less => ms.max(0.0),
        std::cmp::Ordering::Equal => ms,
        std::cmp::Ordering::Greater => ms.min(0.0),
    }
}

pub(crate) use cuEventElapsedTime_v2 as cuEventElapsedTime;

pub(crate) fn cuStreamDestroy(cx: &mut CallContext, stream: u64) -> Result<(), Code> {
    let device = cx.device()?;
    end_stream(cx, device, stream)
}

pub(crate) fn cuEventDestroy(cx: &mut CallContext, event: u64) -> Result<(), Code> {
    if spare_events::keep(cx, event)? {
        return Ok(());
    }
    let hEvent = cx.use_handle(Kind::Event, Kind::Event, event)?;
    cx.carry::<cuEventDestroy_v2::Fn>(&mut cuEventDestroy_v2::Sent { hEvent }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn time_goes_on_from_place_to_place() {
        assert_eq!(between((1, 10.0), (1, 7.0)), -3.0, "of one place");
        assert_eq!(between((1, 10.0), (2, 17.0)), 7.0);
        assert_eq!(between((1, 10.0), (2, 9.5)), 0.0, "the second clock is behind");
        assert_eq!(between((2, 9.5), (1, 10.0)), 0.0);
        assert_eq!(between((2, 17.0), (1, 10.0)), -7.0);
    }
}
