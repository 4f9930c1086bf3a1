//! A stream: what it is, and the work that was submitted to it last.

use super::lock;
use super::mark::Mark;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The flag of streams that do not synchronise with the legacy stream.
pub(crate) const NON_BLOCKING: u32 = 1;
/// A `CUstreamAttrValue`.
pub(crate) type Attribute = [u8; 64];

/// Which of the three kinds a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The legacy default stream: waits for all blocking streams, and they for it.
    Legacy,
    /// The default stream of one thread, by the thread's number.
    PerThread(u64),
    /// Made by the program.
    Created,
}

/// A stream of a context.
pub(crate) struct Stream {
    /// Handle of a created stream, else 0.
    pub handle: usize,
    /// Unique in the process; returned by `cuStreamGetId`.
    pub number: u64,
    pub kind: Kind,
    pub flags: u32,
    priority: i32,
    /// The context that it was made in, for those that the program made.
    pub context: usize,
    /// Its green context has been destroyed.
    pub orphaned: AtomicBool,
    /// The attributes that were set, by number.
    pub attributes: Mutex<Vec<(u32, Attribute)>>,
    /// Last work submitted; changed only during a submission.
    last: Mutex<Option<Arc<Mark>>>,
    destroyed: AtomicBool,
}

impl Stream {
    /// A stream with the given handle.
    pub fn new(handle: usize, kind: Kind, flags: u32, priority: i32, context: usize) -> Stream {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Stream {
            handle,
            number,
            kind,
            flags,
            priority,
            context,
            orphaned: AtomicBool::new(false),
            attributes: Mutex::default(),
            last: Mutex::new(None),
            destroyed: AtomicBool::new(false),
        }
    }

    /// The value that was set last, or the initial one.
    pub fn priority(&self) -> i32 {
        /// `CU_STREAM_ATTRIBUTE_PRIORITY`
        const PRIORITY: u32 = 8;
        let set = lock(&self.attributes).iter().find(|(id, _)| *id == PRIORITY).map(|(_, v)| [v[0], v[1], v[2], v[3]]);
        set.map_or(self.priority, i32::from_le_bytes)
    }

    /// Whether it synchronizes with the legacy stream.
    pub fn blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// Mark of the last work submitted, if it has not ended.
    pub fn pending(&self) -> Option<Arc<Mark>> {
        lock(&self.last).clone().filter(|mark| !mark.done())
    }

    /// Sets the work that was submitted last, during a submission.
    pub fn set_last(&self, mark: Arc<Mark>) {
        *lock(&self.last) = Some(mark);
    }

    /// Marks it as destroyed: it gets no more work.
    pub fn abandon(&self) {
        self.destroyed.store(true, Ordering::Release);
    }

    /// Whether it is destroyed and its work has completed.
    pub fn finished(&self) -> bool {
        self.destroyed.load(Ordering::Acquire) && self.pending().is_none()
    }
}
