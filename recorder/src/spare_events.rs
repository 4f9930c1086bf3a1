//! Events that the program has ended and that are made again: neither the place nor the journal hears of it.
//!
//! Programs make events, record them once, wait for them and end them, again and again. An event whose last record is known to have happened
//! cannot be told from one that was never recorded, but by its time, which only this process gives out. So it stays in the place and in the
//! journal when it is ended, under its handle, which is not valid meanwhile, and becomes the next event of the same kind and context.

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

/// Most of a device: more are ended.
const MOST: usize = 64;
/// One is used again when so many others have been ended after it: a stale handle is told apart for longer.
const RESTING: usize = 16;
/// `CU_EVENT_INTERPROCESS`: other processes may know it.
const INTERPROCESS: u32 = 4;

/// The ended events of a device that are kept.
#[derive(Debug, Default)]
pub(crate) struct SpareEvents {
    /// The oldest first.
    all: Mutex<VecDeque<Spare>>,
    /// How many there are, for those who find none.
    count: AtomicUsize,
    /// None are kept any more.
    closed: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
struct Spare {
    event: u64,
    flags: u32,
    context: u64,
}

impl SpareEvents {
    /// Keeps an event; false if there are enough.
    fn put(&self, spare: Spare) -> bool {
        let mut all = lock(&self.all);
        if all.len() == MOST || self.closed.load(Ordering::Relaxed) {
            return false;
        }
        all.push_back(spare);
        self.count.store(all.len(), Ordering::Relaxed);
        true
    }

    /// The oldest of such events, if enough have been ended after it.
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

    /// Those of a context, or all, which are kept no longer.
    fn take_all(&self, whose: Option<u64>) -> Vec<u64> {
        let mut all = lock(&self.all);
        let (go, stay): (VecDeque<Spare>, _) = all.iter().copied().partition(|s| whose.is_none_or(|c| c == s.context));
        *all = stay;
        self.count.store(all.len(), Ordering::Relaxed);
        go.into_iter().map(|s| s.event).collect()
    }

    /// An event could not be made at the place, and nobody knows which of them it was: none is made again.
    pub(crate) fn close(&self) {
        let mut all = lock(&self.all);
        self.closed.store(true, Ordering::Relaxed);
        all.clear();
        self.count.store(0, Ordering::Relaxed);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// `cuEventCreate` by an event that was ended; false if there is none.
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

/// `cuEventDestroy` of an event that can be made again; false if it cannot.
pub(crate) fn keep(cx: &mut CallContext, event: sys::CUevent) -> Result<bool, Code> {
    let (event, events) = (event as u64, &cx.job.tables.events);
    if kind(event) != Some(Kind::Event) {
        return Ok(false);
    }
    let Ok(slot) = events.get(event) else { return Ok(false) };
    let Some(device) = cx.job.devices.get(slot.device() as usize) else { return Ok(false) };
    let flags = slot.data.flags.load(Ordering::Relaxed);
    // Graphs and captures know events by their handles, and for longer.
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

/// The handles of the kept events of a context, or all of a device, valid again: to be ended.
pub(crate) fn take_all(cx: &CallContext, device: &Device, whose: Option<u64>) -> Vec<u64> {
    let all = device.spare_events.take_all(whose);
    all.iter().for_each(|event| cx.job.tables.events.resume(*event, |_| {}));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_a_kind_comes_back_when_it_has_rested() {
        let spares = SpareEvents::default();
        let put = |event, flags, context| spares.put(Spare { event, flags, context });
        for event in 0..RESTING as u64 {
            assert!(put(event, (event % 2) as u32, 7));
            assert_eq!(spares.take(0, 7), None, "none has rested");
        }
        assert!(put(100, 0, 7));
        assert_eq!((spares.take(1, 7), spares.take(0, 8)), (None, None), "the oldest is another kind, or of another context");
        assert_eq!(spares.take(0, 7), Some(0));
        assert_eq!(spares.take(0, 7), None);
        assert!((200..).take_while(|event| put(*event, 1, 9)).count() == MOST - RESTING);
        assert_eq!(spares.take(1, 7), Some(1));
        let mut of_a_context = spares.take_all(Some(9));
        of_a_context.sort_unstable();
        assert_eq!(of_a_context.len(), MOST - RESTING);
        assert_eq!((spares.count(), spares.take(1, 7)), (RESTING - 1, None));
        assert_eq!(spares.take_all(None).len(), RESTING - 1);
        assert_eq!(spares.count(), 0);
        assert!((300..).take(MOST).all(|event| put(event, 0, 7)));
        spares.close();
        assert_eq!((spares.count(), spares.take(0, 7), put(400, 0, 7)), (0, None, false), "one of them may not be there");
    }
}
