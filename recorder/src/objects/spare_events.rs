//! The destroyed events of a device that are kept for reuse.

use crate::base::log::lock;
use crate::base::sync::AtomicU32;
use crate::objects::events::EventData;
use crate::objects::table::Table;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Maximum number for a device: further events are really destroyed.
pub(crate) const MAX_SPARE: usize = 64;

/// An event is reused when this many others were destroyed after it, so that a stale handle is recognized for longer.
pub(crate) const QUARANTINE: usize = 16;

/// The destroyed events of a device that are kept.
#[derive(Debug, Default)]
pub(crate) struct SpareEvents {
    /// The oldest first.
    all: Mutex<VecDeque<Spare>>,
    /// Their number, read without the lock.
    count: AtomicUsize,
    /// No events are kept any more.
    closed: AtomicBool,
    /// Counts the calls of [`SpareEvents::take_all`].
    ends: AtomicU32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Spare {
    pub(crate) event: u64,
    pub(crate) flags: u32,
    pub(crate) context: u64,
}

impl SpareEvents {
    /// Keeps an event and makes its handle invalid meanwhile; returns false, with the handle as it was, if it is not kept.
    pub(crate) fn keep(&self, events: &Table<EventData>, spare: Spare) -> bool {
        let ends = self.ends.load(Ordering::Acquire);
        // Now a thread that ends the context does not find the event before it is in the list.
        if !events.suspend(spare.event) {
            return false;
        }
        let kept = self.put(spare, ends);
        if !kept {
            events.resume(spare.event, |data| data.flags.store(spare.flags, Ordering::Relaxed));
        }
        kept
    }

    /// Adds an event, unless there are enough or a context has ended since `ends` was read.
    fn put(&self, spare: Spare, ends: u32) -> bool {
        let mut all = lock(&self.all);
        if all.len() == MAX_SPARE || self.closed.load(Ordering::Relaxed) || self.ends.load(Ordering::Relaxed) != ends {
            return false;
        }
        all.push_back(spare);
        self.count.store(all.len(), Ordering::Relaxed);
        true
    }

    /// The oldest matching event, if enough were destroyed after it.
    pub(crate) fn take(&self, flags: u32, context: u64) -> Option<u64> {
        if self.count.load(Ordering::Relaxed) <= QUARANTINE {
            return None;
        }
        let mut all = lock(&self.all);
        let released = all.len().saturating_sub(QUARANTINE);
        let at = all.iter().take(released).position(|s| s.flags == flags && s.context == context)?;
        let found = if at == 0 { all.pop_front() } else { all.remove(at) }?;
        self.count.store(all.len(), Ordering::Relaxed);
        Some(found.event)
    }

    /// Removes and returns those of a context, or all. Called before the events that ended with the context are destroyed, and again
    /// afterwards: what another thread has kept meanwhile may be one of them.
    pub(crate) fn take_all(&self, whose: Option<u64>) -> Vec<u64> {
        let mut all = lock(&self.all);
        self.ends.fetch_add(1, Ordering::Release);
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

#[cfg(test)]
mod tests;
