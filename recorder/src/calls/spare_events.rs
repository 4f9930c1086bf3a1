//! Reuse of destroyed events, without a message to the place or a journal record.
//!
//! Programs repeatedly create events, record them once, wait for them and destroy them. An event whose last record is known to have
//! occurred differs from one that was never recorded only by its time, which only this process reports. So when it is destroyed it stays
//! at the place and in the journal under its handle, which is invalid meanwhile, and becomes the next event of the same kind and context.

use crate::enter::CallContext;
use crate::job::{Device, contexts};
use crate::objects::spare_events::{MAX_SPARE, QUARANTINE, Spare};
use cuda_api::code::Code;
use cuda_api::flags::EVENT_INTERPROCESS;
use cuda_api::handle::{Kind, kind};
use cuda_api::pointer::OutPtr;
use cuda_api::sys;
use std::ffi::c_uint;
use std::sync::atomic::Ordering;

/// `cuEventCreate` by reusing a destroyed event; returns false if there is none.
pub(crate) fn make_again(cx: &mut CallContext, to: OutPtr<sys::CUevent>, flags: c_uint) -> Result<bool, Code> {
    let Ok(device) = cx.device() else { return Ok(false) };
    if to.is_null() || device.spare_events.count() <= QUARANTINE {
        return Ok(false);
    }
    device.check()?;
    let Some(event) = device.spare_events.take(flags, contexts::current()) else { return Ok(false) };
    cx.job.tables.events.resume(event, |data| data.flags.store(flags, Ordering::Relaxed));
    to.write(event as sys::CUevent).map(|()| true)
}

/// `cuEventDestroy` of an event that can be reused; returns false if it cannot.
pub(crate) fn keep(cx: &mut CallContext, event: u64) -> Result<bool, Code> {
    let events = &cx.job.tables.events;
    if kind(event) != Some(Kind::Event) {
        return Ok(false);
    }
    let Ok(slot) = events.get(event) else { return Ok(false) };
    let Some(device) = cx.job.devices.get(slot.device() as usize) else { return Ok(false) };
    let flags = slot.data.flags.load(Ordering::Relaxed);
    // Graphs and captures refer to events by their handles, and for longer.
    // The flags below this one say how the event is waited for; an event with it may be known to other processes.
    let is_plain = flags < EVENT_INTERPROCESS && !slot.data.in_graph.load(Ordering::Relaxed);
    if !is_plain || device.spare_events.count() >= MAX_SPARE {
        return Ok(false);
    }
    let is_past = |stream, at| device.is_past(stream, at);
    if !slot.data.is_over(device.epoch.load(Ordering::Relaxed), is_past) {
        return Ok(false);
    }
    device.check()?;
    Ok(device.spare_events.keep(events, Spare { event, flags, context: slot.context() }))
}

/// Makes the handles of the kept events of a context, or all of a device, valid again, so that they can be destroyed.
pub(crate) fn take_all(cx: &CallContext, device: &Device, whose: Option<u64>) -> Vec<u64> {
    let all = device.spare_events.take_all(whose);
    all.iter().for_each(|event| cx.job.tables.events.resume(*event, |_| {}));
    all
}

/// Ends the handles of events that were kept while their context ended: the place has destroyed them.
pub(crate) fn context_ended(cx: &CallContext, device: &Device, whose: Option<u64>) {
    for event in take_all(cx, device, whose) {
        cx.job.tables.end(event);
    }
}
