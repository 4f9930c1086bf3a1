//! Streams that wait for the job: for another GPU of it, or until what they have done is in its memory. And events that another GPU
//! waits for.
//!
//! A stream is held by a word of page-locked memory that it waits for, and goes on when the job has said so. No host function: the
//! driver runs these one after the other, so one that waited would hold up others that the wait depends on.

use super::{Executor, Life, short};
use crate::pending::{Mark, Pending};
use crate::pools::lock;
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::ops::{FENCE, HOLD, MemoryPart, StreamHold, StreamMemory};
use cuda_api::wire::Wire;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Bytes of words that are made page-locked at a time.
const PAGE: usize = 4096;
/// Words that the job may say before the holds come that they are for.
const MOST_EARLY: usize = 1 << 16;
/// `CU_STREAM_MEM_OP_WAIT_VALUE_32`, whose plain form waits for a value that is at least this.
const WAIT: u32 = 1;
const GO: u32 = 1;

/// A stream that is held, or will be when it gets there.
#[derive(Debug)]
struct Held {
    stream: u64,
    word: usize,
    /// Event behind the wait.
    after: u64,
}

#[derive(Debug, Default)]
struct Words {
    pages: Vec<usize>,
    free: Vec<usize>,
    held: HashMap<u64, Held>,
    /// Words that are written; streams may have to look at them yet.
    passing: Vec<(usize, u64)>,
    early: HashSet<u64>,
}

/// The held streams of an executor.
#[derive(Debug, Default)]
pub(super) struct Holds {
    words: Mutex<Words>,
    count: AtomicUsize,
    /// Streams that wait for events of the program, so that what an event stands for now is kept apart from its next record.
    watchers: Mutex<Vec<u64>>,
}

fn write(word: usize, value: u32) {
    // SAFETY: a word of a page of ours, aligned, which lives until nothing is held; only atomics and the GPU touch it.
    unsafe { AtomicU32::from_ptr(word as *mut u32) }.store(value, Ordering::Release);
}

impl Holds {
    /// How many streams the job has still to let go.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The job's word. Waits for nothing.
    pub(super) fn go(&self, token: u64) -> Result<(), Code> {
        let mut w = lock(&self.words);
        match w.held.remove(&token) {
            Some(h) => {
                write(h.word, GO);
                w.passing.push((h.word, h.after));
                self.count.store(w.held.len(), Ordering::Release);
                Ok(())
            }
            None if token & HOLD != 0 && w.early.len() < MOST_EARLY => {
                w.early.insert(token);
                Ok(())
            }
            None => Err(code::ERROR_INVALID_VALUE),
        }
    }

    /// Lets all streams go: the context is about to end.
    fn all_go(&self) {
        let mut w = lock(&self.words);
        w.held.values().for_each(|h| write(h.word, GO));
        w.held.clear();
        w.early.clear();
        self.count.store(0, Ordering::Release);
    }

    /// Whether a stream waits for another GPU, or will.
    pub(super) fn holds(&self, stream: u64) -> bool {
        lock(&self.words).held.iter().any(|(token, h)| h.stream == stream && token & FENCE == 0)
    }

    /// Whether a stream waits until the job has what it has done so far, or will.
    pub(super) fn fences(&self, stream: u64) -> bool {
        lock(&self.words).held.iter().any(|(token, h)| h.stream == stream && token & FENCE != 0)
    }
}

impl Executor {
    /// A word that no stream looks at.
    fn word(&self, life: &Life) -> Result<usize, Code> {
        let mut w = lock(&self.holds.words);
        let Words { free, passing, .. } = &mut *w;
        passing.retain(|(word, after)| {
            let there = self.gpu.query_event(*after) == Err(code::ERROR_NOT_READY);
            if !there {
                life.pools.recycle(*after);
                free.push(*word);
            }
            there
        });
        if let Some(word) = free.pop() {
            return Ok(word);
        }
        let page = self.gpu.pin(PAGE)?;
        w.pages.push(page);
        w.free.extend((page + size_of::<u32>()..page + PAGE).step_by(size_of::<u32>()));
        Ok(page)
    }

    pub(super) fn hold_stream(&self, life: &Life, mut body: &[u8]) -> Result<(), Code> {
        let op = StreamHold::get(&mut body).map_err(short)?;
        let live = stage_stream(op.stream, &self.bindings)?;
        if op.token & HOLD == 0 || lock(&self.holds.words).held.contains_key(&op.token) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if lock(&self.holds.words).early.remove(&op.token) {
            return Ok(());
        }
        let word = self.word(life)?;
        write(word, 0);
        let part = MemoryPart { operation: WAIT, address: word as u64, value: GO.into(), flags: 0 };
        let wait = StreamMemory { stream: op.stream, first_version: false, flags: 0, parts: vec![part] };
        // Not under the lock: a stream whose queue is full makes the driver wait, for what the job may have to let go.
        let after = self.gpu.stream_memory(live, &wait).and_then(|()| {
            life.pools.mark(live).inspect_err(|_| {
                // Nothing tells when the stream is past it, so the word is not used again.
                write(word, GO);
            })
        })?;
        let mut w = lock(&self.holds.words);
        if w.early.remove(&op.token) {
            write(word, GO);
            w.passing.push((word, after));
        } else {
            w.held.insert(op.token, Held { stream: op.stream, word, after });
            self.holds.count.store(w.held.len(), Ordering::Release);
        }
        Ok(())
    }

    /// Holds a stream, and answers when it has got there.
    pub(super) fn fence_stream(&self, life: &Life, body: &[u8]) -> Result<Pending, Code> {
        let op = StreamHold::get(&mut { body }).map_err(short)?;
        let mark = life.pools.mark(stage_stream(op.stream, &self.bindings)?)?;
        // Made before the hold: if that fails its event is given back.
        let pending = self.pending(life, vec![Mark::Own(mark)]);
        self.hold_stream(life, body)?;
        Ok(pending)
    }

    /// Answers when what an event stands for now has happened, whatever is recorded in it later.
    pub(super) fn event_reached(&self, life: &Life, event: u64) -> Result<Option<Pending>, Code> {
        let live = self.bindings.live(event)?;
        match self.gpu.query_event(live) {
            Err(code::ERROR_NOT_READY) => {}
            other => return other.map(|()| None),
        }
        let mut watchers = lock(&self.holds.watchers);
        // One that waits already would make this event wait for another.
        let idle = watchers.iter().find(|s| self.gpu.query_stream(**s) == Ok(())).copied();
        let watcher = match idle {
            Some(s) => s,
            None => {
                let made = self.gpu.new_stream()?;
                watchers.push(made);
                made
            }
        };
        self.gpu.wait_event(watcher, live)?;
        Ok(Some(self.pending(life, vec![Mark::Own(life.pools.mark(watcher)?)])))
    }

    /// The driver's value of a stream as it travels, or the place's own.
    pub(super) fn stream_or_lane(&self, life: &Life, stream: u64) -> Result<u64, Code> {
        if stream == cuda_api::ops::LANE { Ok(life.lanes[0]) } else { stage_stream(stream, &self.bindings) }
    }

    /// The context is about to end: nothing is held any more.
    pub(super) fn let_go(&self) {
        self.holds.all_go();
    }

    /// Nothing runs any more in the context: its streams and pages go.
    pub(super) fn end_holds(&self) {
        self.holds.all_go();
        let w = std::mem::take(&mut *lock(&self.holds.words));
        w.pages.into_iter().for_each(|page| self.gpu.unpin(page, PAGE));
        for s in std::mem::take(&mut *lock(&self.holds.watchers)) {
            // Fails only when the context has ended, and the stream with it.
            let _ = self.gpu.destroy_stream(s);
        }
    }
}
