//! The destroyed events of a device that are kept for reuse.

use crate::base::log::lock;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Maximum number for a device: further events are really destroyed.
pub(crate) const MOST: usize = 64;

/// An event is reused when this many others were destroyed after it, so that a stale handle is recognized for longer.
pub(crate) const RESTING: usize = 16;

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
pub(crate) struct Spare {
    pub(crate) event: u64,
    pub(crate) flags: u32,
    pub(crate) context: u64,
}

impl SpareEvents {
    /// Keeps an event; returns false if there are enough.
    pub(crate) fn put(&self, spare: Spare) -> bool {
        let mut all = lock(&self.all);
        if all.len() == MOST || self.closed.load(Ordering::Relaxed) {
            return false;
        }
        all.push_back(spare);
        self.count.store(all.len(), Ordering::Relaxed);
        true
    }

    /// The oldest matching event, if enough were destroyed after it.
    pub(crate) fn take(&self, flags: u32, context: u64) -> Option<u64> {
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
    pub(crate) fn take_all(&self, whose: Option<u64>) -> Vec<u64> {
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
