//! Events of whole contexts: recorded behind all work in a context, or waited for by all later work in it.
//!
//! A place has one context, with transfer streams that must not wait. So both operations are built from waits between the context's
//! streams, and two streams of the recorder: one waits for all others and records the event there, the other one waits with them, so that
//! streams that are created later can wait for it.

use crate::base::log::lock;
use crate::calls::{cross_device, ipc, stream};
use crate::device_memory::shared_handles;
use crate::enter::CallContext;
use crate::job::{Device, contexts};
use crate::order::follow::{self, ANY_PASSED, PASSED};
use crate::order::{captures, delay, host_waiting, landing};
use cuda_api::arg::{Capture, LEGACY};
use cuda_api::calls::stream::cuEventCreate;
use cuda_api::code::{self, Code};
use cuda_api::flags::{EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING};
use cuda_api::handle::Kind;
use cuda_api::ops::{EventRecord, StreamWaitEvent};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// The recorder's streams and events in a context.
#[derive(Debug, Clone, Copy)]
struct Own {
    device: u32,
    /// Waits for all other streams.
    behind: u64,
    /// Waits for what the context waits for.
    gate: u64,
    /// The event for the waits between streams.
    mark: u64,
    /// Recorded in `gate`.
    passed: u64,
}

/// By context.
static OWN: Mutex<Option<HashMap<u64, Own>>> = Mutex::new(None);

fn new_stream(cx: &mut CallContext, device: &'static Device) -> Result<u64, Code> {
    cx.on(device);
    // Created in no context.
    let made = stream::create(cx, 0, STREAM_NON_BLOCKING, 0)?;
    cx.keep(made);
    Ok(made)
}

fn new_event(cx: &mut CallContext, device: &'static Device) -> Result<u64, Code> {
    cx.on(device);
    let mut sent = cuEventCreate::Sent { phEvent: cx.new_handle(Kind::Event)?, Flags: EVENT_DISABLE_TIMING };
    cx.job.tables.events.get(sent.phEvent)?.set_context(0);
    cx.carry::<cuEventCreate::Fn>(&mut sent)?;
    cx.keep(sent.phEvent);
    Ok(sent.phEvent)
}

/// Runs `f` with the recorder's objects of a context, creating them at the first use.
fn with_own(
    cx: &mut CallContext,
    device: &'static Device,
    ctx: u64,
    then: impl FnOnce(&mut CallContext, Own) -> Result<(), Code>,
) -> Result<(), Code> {
    let mut all = lock(&OWN);
    let all = all.get_or_insert_default();
    let own = match all.get(&ctx) {
        Some(own) => *own,
        None => {
            let own = Own {
                device: device.index,
                behind: new_stream(cx, device)?,
                gate: new_stream(cx, device)?,
                mark: new_event(cx, device)?,
                passed: new_event(cx, device)?,
            };
            *all.entry(ctx).or_insert(own)
        }
    };
    then(cx, own)
}

/// The streams of a context. Streams of green contexts also belong to the primary one; all contexts of a device share one default stream.
fn streams(cx: &CallContext, device: &'static Device, ctx: u64) -> Vec<u64> {
    let is_of = |c: u64| c == ctx || (ctx == contexts::primary(device.index) && contexts::is_green(c));
    let all = cx.job.tables.streams.all(device.index).into_iter();
    let of_context = all.filter(|(_, s)| {
        s.data.per_thread.load(Ordering::Relaxed) || (!s.data.orphaned.load(Ordering::Relaxed) && is_of(s.context()))
    });
    of_context.map(|(handle, _)| handle).chain([LEGACY]).collect()
}

/// The device of a context that can be used.
fn usable(cx: &CallContext, ctx: u64) -> Result<&'static Device, Code> {
    let device = contexts::device_of(cx.job, ctx)?;
    device.check()?;
    Ok(device)
}

/// Records an event behind all work in a context.
pub(crate) fn record(cx: &mut CallContext, ctx: u64, event: u64) -> Result<(), Code> {
    let device = usable(cx, ctx)?;
    let event = cx.use_handle(Kind::Event, Kind::Event, event)?;
    if cx.device()?.index != device.index {
        return Err(code::ERROR_INVALID_HANDLE);
    }
    captures::forbid_in(cx, device)?;
    with_own(cx, device, ctx, |cx, own| {
        for stream in streams(cx, device, ctx) {
            cx.operate(device, &EventRecord { event: own.mark, stream, flags: 0 })?;
            let span = cx.operate(device, &StreamWaitEvent { stream: own.behind, event: own.mark })?;
            delay::note_delay(cx, device, own.behind, span.as_ref());
        }
        landing::follows_event(device, own.behind);
        host_waiting::follows_event(device, own.behind);
        // The event is no longer one of a capture.
        captures::record_event(cx, event, own.behind, device, false)?;
        stream::record_in(cx, device, event, own.behind)
    })
}

/// Makes all later work in a context wait for the last record of an event.
pub(crate) fn wait(cx: &mut CallContext, ctx: u64, event: u64) -> Result<(), Code> {
    let device = usable(cx, ctx)?;
    let event = cx.use_handle(Kind::Event, Kind::Event, event)?;
    let other = cx.device()?;
    captures::forbid_in(cx, device)?;
    let data = &cx.job.tables.events.get(event)?.data;
    if data.captured.load(Ordering::Relaxed) {
        cx.job.graphs.check_event(event).map_err(|_| code::ERROR_STREAM_CAPTURE_UNSUPPORTED)?;
    }
    with_own(cx, device, ctx, |cx, own| {
        for stream in streams(cx, device, ctx).into_iter().chain([own.gate]) {
            if other.index != device.index {
                cross_device::wait_event(cx, device, stream, event, other)?;
                continue;
            }
            let op = StreamWaitEvent { stream, event };
            if shared_handles::is_shared(data) {
                ipc::wait_event(cx, device, &op)?;
            } else {
                follow::follow_event(cx, device, &op)?;
            }
        }
        cx.operate(device, &EventRecord { event: own.passed, stream: own.gate, flags: 0 })?;
        lock(&PASSED).get_or_insert_default().insert(ctx, own.passed);
        ANY_PASSED.store(true, Ordering::Release);
        Ok(())
    })
}

/// Destroys the recorder's objects of a context that is destroyed.
pub(crate) fn end(cx: &mut CallContext, device: &'static Device, ctx: u64) -> Result<(), Code> {
    lock(&PASSED).get_or_insert_default().remove(&ctx);
    let Some(own) = lock(&OWN).get_or_insert_default().remove(&ctx) else { return Ok(()) };
    stream::destroy(cx, device, &[own.behind, own.gate], &[own.mark, own.passed])
}

/// Notes that all streams and events of a device were destroyed.
pub(crate) fn forget(device: &Device) {
    let mut all = lock(&OWN);
    let all = all.get_or_insert_default();
    let gone: Vec<u64> = all.iter().filter(|(_, own)| own.device == device.index).map(|(ctx, _)| *ctx).collect();
    let mut passed = lock(&PASSED);
    for ctx in gone {
        all.remove(&ctx);
        passed.get_or_insert_default().remove(&ctx);
    }
}
