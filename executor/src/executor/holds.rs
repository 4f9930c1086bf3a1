//! Held streams: streams that wait for the job, which does some work in their order, sends or takes bytes, or waits for another of its
//! GPUs; and events that another GPU waits for.
//!
//! A held stream waits for a word of page-locked memory, and continues when the job has reported completion. Host functions are not used:
//! the driver runs these one after the other, so one that waited would hold up others on which the wait depends, and a function of the
//! program that waits would hold up the copies of other streams.

use super::state::holds::{GO, Held, Words, write};
use super::{ContextState, Executor, short};
use crate::pending::{Mark, Pending};
use cuda_api::address_map;
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::flags::MEM_OP_WAIT_32;
use cuda_api::handle::Kind;
use cuda_api::lock::lock;
use cuda_api::ops::{HOLD, HostCall, MemoryPart, StreamHold, StreamMemory};
use cuda_api::wire::Wire;
use std::sync::atomic::Ordering;

/// Number of bytes of words that are page-locked at a time.
const PAGE: usize = address_map::PAGE as usize;
/// Descriptions of why streams are held, for reports of what a job waits for.
const ANOTHER_GPU: &str = "waits for another GPU of the job";
const HOST_WORK: &str = "waits for a copy in the job's own memory";
const BYTES: &str = "waits for bytes that the job must read";
const FENCE: &str = "waits for the job to take bytes";

impl Executor {
    /// A word that no stream uses.
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

    /// Holds a stream; the answer comes when it has got there, behind the effects of its earlier work on the job's memory.
    pub(super) fn fence_stream(&self, life: &ContextState, mut body: &[u8]) -> Result<Option<Pending>, Code> {
        let op = StreamHold::get(&mut body).map_err(short)?;
        self.hold_for_job(life, op.stream, op.token, FENCE).map(Some)
    }

    /// Holds a stream for work that the job does in its order: the answer comes when the stream is there, and the stream continues when
    /// the job has reported completion.
    pub(super) fn hold_for_work(&self, life: &ContextState, op: &HostCall) -> Result<Option<Pending>, Code> {
        self.hold_for_job(life, op.stream, op.token, HOST_WORK).map(Some)
    }

    fn hold_for_job(&self, life: &ContextState, stream: u64, token: u64, why: &'static str) -> Result<Pending, Code> {
        let live = stage_stream(stream, &self.bindings)?;
        // Created before the hold: if that fails, dropping it returns its event.
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

    /// Holds a stream, given by the job's handle and the driver's.
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
        let part = MemoryPart { operation: MEM_OP_WAIT_32, address: word as u64, value: GO.into(), flags: 0 };
        let wait = StreamMemory { stream, first_version: false, flags: 0, parts: vec![part] };
        // Without the lock: if the stream's queue is full the driver waits, possibly for a stream that the job has to release.
        let after = self.gpu.stream_memory(live, &wait).and_then(|()| {
            life.pools.mark(live).inspect_err(|_| {
                // Nothing shows when the stream has passed the word, so it is not reused.
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

    /// The answer comes when the event's current record has occurred, whatever is recorded in it later.
    pub(super) fn event_reached(&self, life: &ContextState, event: u64) -> Result<Option<Pending>, Code> {
        let live = self.bindings.live(Kind::Event, event)?;
        match self.gpu.query_event(live) {
            Err(code::ERROR_NOT_READY) => {}
            other => return other.map(|()| None),
        }
        let mut watchers = lock(&self.holds.watchers);
        // A stream that already waits would make this event wait for another one.
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

    /// The driver's handle of a stream of the job, or a stream of the place.
    pub(super) fn stream_or_lane(&self, life: &ContextState, stream: u64) -> Result<u64, Code> {
        if stream == cuda_api::ops::LANE { Ok(life.lane_of_job()) } else { stage_stream(stream, &self.bindings) }
    }

    /// Releases all streams before the context is destroyed.
    pub(super) fn let_go(&self) {
        self.holds.all_go();
        self.staging.let_go();
    }

    /// Frees the streams and pages of a context in which no work is running any more.
    pub(super) fn end_holds(&self) {
        self.let_go();
        let w = std::mem::take(&mut *lock(&self.holds.words));
        w.pages.into_iter().for_each(|page| self.gpu.unpin(page, PAGE));
        for s in std::mem::take(&mut *lock(&self.holds.watchers)) {
            // Fails only if the context was destroyed, and the stream with it.
            let _ = self.gpu.destroy_stream(s);
        }
    }
}

#[cfg(test)]
mod tests;
