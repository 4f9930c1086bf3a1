//! The recorder's data about streams.

use crate::objects::table::Known;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The recorder's data about a stream.
#[derive(Debug, Default)]
pub(crate) struct StreamData {
    pub(crate) flags: AtomicU32,
    /// Priority, as the bits of an `i32`.
    pub(crate) priority: AtomicU32,
    /// A per-thread default stream: the program cannot destroy it.
    pub(crate) per_thread: AtomicBool,
    /// Its green context was destroyed.
    pub(crate) orphaned: AtomicBool,
    /// Its last work that may delay later work: see [`crate::order::delay::note_delay`].
    pub(crate) delay: AtomicU64,
    /// The function or graph instance that was launched last; 0 if there was none.
    pub(crate) launched: AtomicU64,
}

/// The job's handle of what was launched last in the legacy stream; 0 if there was nothing. On a line of its own: each launch there writes it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct LaunchedInLegacy(pub(crate) AtomicU64);

impl Known for StreamData {
    fn forget(&self) {
        self.flags.store(0, Ordering::Relaxed);
        self.priority.store(0, Ordering::Relaxed);
        self.per_thread.store(false, Ordering::Relaxed);
        self.orphaned.store(false, Ordering::Relaxed);
        self.delay.store(0, Ordering::Relaxed);
        self.launched.store(0, Ordering::Relaxed);
    }
}
