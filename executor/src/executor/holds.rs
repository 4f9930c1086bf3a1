//! Streams that wait for the job, which does something of its own in their order, sends bytes or takes them, or for another GPU of it; and
//! events that another GPU waits for.
//!
//! A stream is held by a word of page-locked memory that it waits for, and goes on when the job has said so. No host function: the
//! driver runs these one after the other, so one that waited would hold up others that the wait depends on, and a function of the program
//! that waits would hold up the copies of other streams.

use super::{ContextState, Executor, short};
use crate::pending::{Mark, Pending};
use crate::pools::lock;
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::ops::{HOLD, HostCall, MemoryPart, StreamHold, StreamMemory};
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
    /// Page-locked memory for the bytes that the job sends with its word: address and size. A copy behind the wait reads them.
    room: Option<(usize, usize)>,
    why: &'static str,
}

/// Why streams are held, for who asks what a job waits for.
const ANOTHER_GPU: &str = "waits for another GPU of the job";
const HOST_WORK: &str = "waits for a copy in the job's own memory";
const BYTES: &str = "waits for bytes that the job must read";
const FENCE: &str = "waits for the job to take bytes";

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

    /// The job's word, with the bytes that the stream is held for. Waits for nothing.
    pub(super) fn go(&self, token: u64, bytes: &[u8]) -> Result<(), Code> {
        let mut w = lock(&self.words);
        match w.held.remove(&token) {
            Some(h) => {
                let room = h.room.unwrap_or_default();
                // SAFETY: the buffer belongs to the copy behind the wait, which begins when the word is written; while a stream is in
                // the list its context lives, and the list is locked.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), room.0 as *mut u8, room.1.min(bytes.len())) };
                write(h.word, GO);
                w.passing.push((h.word, h.after));
                self.count.store(w.held.len(), Ordering::Release);
                if bytes.len() == room.1 { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
            }
            None if token & HOLD != 0 && w.early.len() < MOST_EARLY => {
                w.early.insert(token);
                Ok(())
            }
            None => Err(code::ERROR_INVALID_VALUE),
        }
    }

    /// Lets a stream go that would wait for bytes of which nobody knows.
    pub(super) fn give_up(&self, token: u64) {
        // That there are too few is no news.
        let _ = self.go(token, &[]);
    }

    /// Lets all streams go: the context is about to end.
    fn all_go(&self) {
        let mut w = lock(&self.words);
        w.held.values().for_each(|h| write(h.word, GO));
        w.held.clear();
        w.early.clear();
        self.count.store(0, Ordering::Release);
    }

    /// What a stream is held for, or will be.
    pub(super) fn why(&self, stream: u64) -> Option<&'static str> {
        lock(&self.words).held.values().find(|h| h.stream == stream).map(|h| h.why)
    }
}

impl Executor {
    /// A word that no stream looks at.
    fn word(&self, life: &ContextState) -> Result<usize, Code> {
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

    pub(super) fn hold_stream(&self, life: &ContextState, mut body: &[u8]) -> Result<(), Code> {
        let op = StreamHold::get(&mut body).map_err(short)?;
        let live = stage_stream(op.stream, &self.bindings)?;
        self.hold(life, (op.stream, live), op.token, None, ANOTHER_GPU)
    }

    /// Holds a stream, and answers when it has got there, behind what its earlier work has done to the job's memory.
    pub(super) fn fence_stream(&self, life: &ContextState, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = StreamHold::get(&mut body).map_err(short)?;
        self.hold_for_job(life, op.stream, op.token, FENCE).map(Some)
    }

    /// Something that the job does itself in a stream's order: answered when the stream is there, which goes on when the job has said so.
    pub(super) fn hold_for_work(&self, life: &ContextState, op: &HostCall) -> Result<Option<Pending>, Code> {
        self.hold_for_job(life, op.stream, op.token, HOST_WORK).map(Some)
    }

    fn hold_for_job(&self, life: &ContextState, stream: u64, token: u64, why: &'static str) -> Result<Pending, Code> {
        let live = stage_stream(stream, &self.bindings)?;
        // Made before the hold: if that fails its event is given back.
        let pending = self.pending(life, vec![Mark::Own(life.pools.mark(live)?)]);
        self.hold(life, (stream, live), token, None, why)?;
        Ok(pending)
    }

    /// The same for bytes that the job sends, to a buffer that a copy behind the wait reads.
    pub(super) fn hold_for_bytes(
        &self,
        life: &ContextState,
        stream: (u64, u64),
        token: u64,
        room: (usize, usize),
    ) -> Result<Pending, Code> {
        let pending = self.pending(life, vec![Mark::Own(life.pools.mark(stream.1)?)]);
        self.hold(life, stream, token, Some(room), BYTES)?;
        Ok(pending)
    }

    /// Holds a stream, as it travels and as the driver knows it.
    fn hold(
        &self,
        life: &ContextState,
        (stream, live): (u64, u64),
        token: u64,
        room: Option<(usize, usize)>,
        why: &'static str,
    ) -> Result<(), Code> {
        if token & HOLD == 0 || lock(&self.holds.words).held.contains_key(&token) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if lock(&self.holds.words).early.remove(&token) {
            return Ok(());
        }
        let word = self.word(life)?;
        write(word, 0);
        let part = MemoryPart { operation: WAIT, address: word as u64, value: GO.into(), flags: 0 };
        let wait = StreamMemory { stream, first_version: false, flags: 0, parts: vec![part] };
        // Not under the lock: a stream whose queue is full makes the driver wait, for what the job may have to let go.
        let after = self.gpu.stream_memory(live, &wait).and_then(|()| {
            life.pools.mark(live).inspect_err(|_| {
                // Nothing tells when the stream is past it, so the word is not used again.
                write(word, GO);
            })
        })?;
        let mut w = lock(&self.holds.words);
        if w.early.remove(&token) {
            write(word, GO);
            w.passing.push((word, after));
        } else {
            w.held.insert(token, Held { stream, word, after, room, why });
            self.holds.count.store(w.held.len(), Ordering::Release);
        }
        Ok(())
    }

    /// Answers when what an event stands for now has happened, whatever is recorded in it later.
    pub(super) fn event_reached(&self, life: &ContextState, event: u64) -> Result<Option<Pending>, Code> {
        let live = self.bindings.live(Kind::Event, event)?;
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
    pub(super) fn stream_or_lane(&self, life: &ContextState, stream: u64) -> Result<u64, Code> {
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
