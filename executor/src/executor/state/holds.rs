//! The held streams of an executor.

use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::HOLD;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Maximum number of reports of the job that may arrive before their holds.
const MAX_EARLY_REPORTS: usize = 1 << 16;
pub(crate) const GO: u32 = 1;

/// A stream that is held, or will be when it gets there.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) stream: u64,
    pub(crate) word: usize,
    /// Event behind the wait.
    pub(crate) after: u64,
    /// Page-locked memory for the bytes that the job sends with its report: address and size. A copy behind the wait reads them.
    pub(crate) room: Option<(usize, usize)>,
    pub(crate) why: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Words {
    pub(crate) pages: Vec<usize>,
    pub(crate) free: Vec<usize>,
    pub(crate) held: FxHashMap<u64, Held>,
    /// Words that are written but that streams may still have to read.
    pub(crate) passing: Vec<(usize, u64)>,
    pub(crate) early: FxHashSet<u64>,
}

/// The held streams of an executor.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    pub(crate) words: Mutex<Words>,
    pub(crate) count: AtomicUsize,
    /// Streams that wait for events of the program, so that an event's current record is kept apart from its next one.
    pub(crate) watchers: Mutex<Vec<u64>>,
}

pub(crate) fn write(word: usize, value: u32) {
    // SAFETY: an aligned word of a page of the executor, which lives until nothing is held; only atomics and the GPU access it.
    unsafe { AtomicU32::from_ptr(word as *mut u32) }.store(value, Ordering::Release);
}

impl Holds {
    /// Number of streams that the job still has to release.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Handles the job's report, with the bytes for which the stream is held. Waits for nothing.
    pub(crate) fn go(&self, token: u64, bytes: &[u8]) -> Result<(), Code> {
        let mut w = lock(&self.words);
        match w.held.remove(&token) {
            Some(h) => {
                let room = h.room.unwrap_or_default();
                // SAFETY: the buffer belongs to the copy behind the wait, which begins when the word is written; while a stream is in the
                // list its context lives, and the list is locked.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), room.0 as *mut u8, room.1.min(bytes.len())) };
                write(h.word, GO);
                w.passing.push((h.word, h.after));
                self.count.store(w.held.len(), Ordering::Release);
                if bytes.len() == room.1 { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
            }
            None if token & HOLD != 0 && w.early.len() < MAX_EARLY_REPORTS => {
                w.early.insert(token);
                Ok(())
            }
            None => Err(code::ERROR_INVALID_VALUE),
        }
    }

    /// Releases a stream that would wait for bytes that nothing will send.
    pub(crate) fn give_up(&self, token: u64) {
        // It is expected that the bytes are too few.
        let _ = self.go(token, &[]);
    }

    /// Releases all streams, before the context is destroyed.
    pub(crate) fn all_go(&self) {
        let mut w = lock(&self.words);
        w.held.values().for_each(|h| write(h.word, GO));
        w.held.clear();
        w.early.clear();
        self.count.store(0, Ordering::Release);
    }

    /// Why a stream is held, or will be.
    pub(crate) fn why(&self, stream: u64) -> Option<&'static str> {
        lock(&self.words).held.values().find(|h| h.stream == stream).map(|h| h.why)
    }
}
