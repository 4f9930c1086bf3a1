//! Reuse of destroyed events, without a message to the place or a journal record.
//!
//! Programs repeatedly create events, record them once, wait for them and destroy them. An event whose last record is known to have
//! occurred differs from one that was never recorded only by its time, which only this process reports. So when it is destroyed it stays
//! at the place and in the journal under its handle, which is invalid meanwhile, and becomes the next event of the same kind and context.

use crate::context::{self, write_out};
use crate::enter::CallContext;
use crate::job::Device;
use crate::log::lock;
use cuda_api::code::Code;
use cuda_api::handle::{Kind, kind};
use cuda_api::sys;
use std::collections::VecDeque;
use std::ffi::c_uint;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Maximum number for a device: further events are really destroyed.
const MOST: usize = 64;
/// An event is reused when this many others were destroyed after it, so that a stale handle is recognized for longer.
const RESTING: usize = 16;
/// `CU_EVENT_INTERPROCESS`: other processes may know it.
const INTERPROCESS: u32 = 4;

/// The destroyed events of a device that are kept.
#[derive(Debug, Default)]
pub(crate) struct SpareEvents {
    /// The oldest first.
    all: Mutex<VecDeque<Spare>>,
    /// Their number, read without the lock.
    count: AtomicUsize,
    /// No events are kept any more.
    closed: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
struct Spare {
    event: u64,
    flags: u32,
    context: u64,
}

impl SpareEvents {
    /// Keeps an event; returns false if there are enough.
    fn put(&self, spare: Spare) -> bool {
        let mut all = lock(&self.all);
        if all.len() == MOST || self.closed.load(Ordering::Relaxed) {
            return false;
        }
        all.push_back(spare);
        self.count.store(all.len(), Ordering::Relaxed);
        true
    }

    /// The oldest matching event, if enough were destroyed after it.
    fn take(&self, flags: u32, context: u64) -> Option<u64> {
        if self.count.load(Ordering::Relaxed) <= RESTING {
            return None;
        }
        let mut all = lock(&self.all);
        let rested = all.len().saturating_sub(RESTING);
        let at = all.iter().take(rested).position(|s| s.flags == flags && s.context == context)?;
        let found = all.remove(at)?;
        self.count.store(all.len(), Ordering::Relaxed);
        Some(found.event)
    }

    /// Removes and returns those of a context, or all.
    fn take_all(&self, whose: Option<u64>) -> Vec<u64> {
        let mut all = lock(&self.all);
        let (go, stay): (VecDeque<Spare>, _) = all.iter().copied().partition(|s| whose.is_none_or(|c| c == s.context));
        *all = stay;
        self.count.store(all.len(), Ordering::Relaxed);
        go.into_iter().map(|s| s.event).collect()
    }

    /// Called when an event could not be created at the place and it is unknown which one: no event is reused any more.
    pub(crate) fn close(&self) {
        let mut all = lock(&self.all);
        self.closed.store(true, Ordering::Relaxed);
        all.clear();
        self.count.store(0, Ordering::Relaxed);
    }

    /// Number of kept events.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// `cuEventCreate` by reusing a destroyed event; returns false if there is none.
pub(crate) fn make_again(cx: &mut CallContext, to: *mut sys::CUevent, flags: c_uint) -> Result<bool, Code> {
    let Ok(device) = cx.device() else { return Ok(false) };
    if to.is_null() || device.spare_events.count() <= RESTING {
        return Ok(false);
    }
    device.check()?;
    let Some(event) = device.spare_events.take(flags, context::current()) else { return Ok(false) };
    cx.job.tables.events.resume(event, |data| data.flags.store(flags, Ordering::Relaxed));
    write_out(to, event as sys::CUevent).map(|()| true)
}

/// `cuEventDestroy` of an event that can be reused; returns false if it cannot.
pub(crate) fn keep(cx: &mut CallContext, event: sys::CUevent) -> Result<bool, Code> {
    let (event, events) = (event as u64, &cx.job.tables.events);
    if kind(event) != Some(Kind::Event) {
        return Ok(false);
    }
    let Ok(slot) = events.get(event) else { return Ok(false) };
    let Some(device) = cx.job.devices.get(slot.device() as usize) else { return Ok(false) };
    let flags = slot.data.flags.load(Ordering::Relaxed);
    // Graphs and captures refer to events by their handles, and for longer.
    let is_plain = flags < INTERPROCESS && !slot.data.in_graph.load(Ordering::Relaxed);
    if !is_plain || device.spare_events.count() >= MOST {
        return Ok(false);
    }
    let is_past = |stream, at| device.is_past(stream, at);
    if !slot.data.is_over(device.epoch.load(Ordering::Relaxed), is_past) {
        return Ok(false);
    }
    device.check()?;
    let spare = Spare { event, flags, context: slot.context() };
    if !events.suspend(event) {
        return Ok(false);
    }
    let kept = device.spare_events.put(spare);
    if !kept {
        events.resume(event, |data| data.flags.store(flags, Ordering::Relaxed));
    }
    Ok(kept)
}

/// Makes the handles of the kept events of a context, or all of a device, valid again, so that they can be destroyed.
pub(crate) fn take_all(cx: &CallContext, device: &Device, whose: Option<u64>) -> Vec<u64> {
    let all = device.spare_events.take_all(whose);
    all.iter().for_each(|event| cx.job.tables.events.resume(*event, |_| {}));
    all
}

#[cfg(test)]
mod tests;
