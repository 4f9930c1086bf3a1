//! Whether the daemon takes no new jobs because an administrator drains it.

use super::drain::Drain;
use crate::sync::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A drain.
#[derive(Debug)]
pub(super) struct Closed {
    /// Where jobs are to move; `None`: they are not asked.
    pub(super) drain: Option<Drain>,
    pub(super) until: Instant,
    /// Jobs are not asked any more.
    pub(super) is_over: AtomicBool,
}

impl Closed {
    pub(super) fn words(&self) -> String {
        self.drain.as_ref().map(Drain::words).unwrap_or_default()
    }

    /// Ends it; returns whether it was under way.
    pub(super) fn end(&self) -> bool {
        !self.is_over.swap(true, Ordering::SeqCst)
    }
}

/// Whether a daemon takes no new jobs because an administrator has asked for it.
#[derive(Debug, Default)]
pub(super) struct Closing {
    pub(super) current: Mutex<Option<Arc<Closed>>>,
    /// Held while jobs are asked to move, so that none is asked by a drain that has been replaced.
    pub(super) asking: Mutex<()>,
}

impl Closing {
    /// Whether it takes none.
    pub(super) fn is_closed(&self) -> bool {
        lock(&self.current).is_some()
    }

    /// Asks no more jobs to move: the daemon ends, and does that itself.
    pub(super) fn end(&self) {
        lock(&self.current).iter().for_each(|closed| _ = closed.end());
    }
}
