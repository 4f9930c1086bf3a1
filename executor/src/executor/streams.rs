//! Streams and events: asynchronous waits for them.

use super::checker::attribute_words;
use super::{ContextState, EndedStream, Executor, LiveStream, StreamOptions, Streams, short};
use crate::gpu::Gpu;
use crate::pending::{Mark, Pending};
use crate::pools::Recorded;
use cuda_api::arg::{LEGACY, stage_stream};
use cuda_api::calls::stream::{cuStreamCreate, cuStreamCreateWithPriority};
use cuda_api::code::{self, Code};
use cuda_api::flags::STREAM_NON_BLOCKING;
use cuda_api::handle::{Kind, kind};
use cuda_api::lock::lock;
use cuda_api::ops::{EventOffer, EventOpen, StreamAttribute};
use cuda_api::wire::Wire;
use std::any::Any;
use std::sync::Arc;

/// Maximum number of spare streams.
const MAX_SPARES: usize = 16;
/// Maximum number of streams beside which spare ones are kept: far fewer than those that every context has had once ([`super::own`]), so that
/// no place has had more than a replay makes.
const MAX_STREAMS: usize = 256;
/// Maximum number of destroyed streams that the creation and the end of a stream query: more than come with each of them.
const MAX_QUERIED: usize = 2;

impl Streams {
    /// Queries the oldest streams that the job has destroyed, at most `most`, and destroys those whose work is complete.
    fn destroy_finished(&mut self, gpu: &Gpu, most: usize) {
        for _ in 0..most.min(self.ended.len()) {
            let Some(ended) = self.ended.pop_front() else { return };
            match gpu.query_stream(ended.live) {
                // If this fails, there is nothing left to try.
                Ok(()) => _ = self.keep_or_destroy(gpu, ended.options, ended.live),
                // It goes with its context.
                Err(rc) if code::is_sticky(rc) => {}
                Err(_) => self.ended.push_back(ended),
            }
        }
    }

    /// Keeps a stream without work that the job has destroyed as a spare one, or destroys it if it has more settings than are known or there
    /// are many. The oldest spare one goes first.
    fn keep_or_destroy(&mut self, gpu: &Gpu, options: Option<StreamOptions>, live: u64) -> Result<(), Code> {
        let others = self.live.len() + self.ended.len();
        let Some(options) = options.filter(|_| others < MAX_STREAMS) else { return gpu.destroy_stream(live) };
        self.spares.push_back((options, live));
        if self.spares.len() <= MAX_SPARES {
            return Ok(());
        }
        self.spares.pop_front().map_or(Ok(()), |(_, oldest)| gpu.destroy_stream(oldest))
    }

    /// A spare stream for these options, if there is one. The oldest: a driver also gives new streams its queues by turns.
    fn take_spare(&mut self, gpu: &Gpu, options: StreamOptions) -> Option<u64> {
        let found = self.spares.iter().position(|(of, _)| *of == options)?;
        let (_, live) = self.spares.remove(found)?;
        // A program may have used it after its end, and the context may have failed, which the driver is to say.
        match gpu.query_stream(live) {
            Ok(()) => Some(live),
            Err(code::ERROR_NOT_READY) => {
                self.ended.push_back(EndedStream { live, blocking: is_blocking(options.0), options: None, mark: None });
                None
            }
            Err(_) => None,
        }
    }

    /// Destroys all that are the job's no more, in a context without work.
    pub(super) fn destroy_all_but_live(&mut self, gpu: &Gpu) {
        let ended = self.ended.drain(..).map(|ended| ended.live);
        ended.chain(self.spares.drain(..).map(|(_, live)| live)).for_each(|live| _ = gpu.destroy_stream(live));
    }
}

/// Whether a stream with these flags and the legacy default stream wait for each other.
fn is_blocking(flags: u32) -> bool {
    flags & STREAM_NON_BLOCKING == 0
}

/// What a call that creates a stream asks for; none for other calls.
pub(super) fn options_of(sent: &dyn Any) -> Option<StreamOptions> {
    let usual = sent.downcast_ref::<cuStreamCreate::Sent>().map(|asked| (asked.Flags, 0));
    usual.or_else(|| sent.downcast_ref::<cuStreamCreateWithPriority::Sent>().map(|asked| (asked.flags, asked.priority)))
}

impl Executor {
    /// Gives the job a spare stream instead of creating one, if there is one with the same options.
    pub(super) fn reuse_stream(&self, stream: u64, options: StreamOptions) -> bool {
        if kind(stream) != Some(Kind::Stream) {
            return false;
        }
        let mut s = lock(&self.streams);
        let Some(live) = s.take_spare(&self.gpu, options) else { return false };
        self.bindings.bind(stream, live);
        s.live.push(LiveStream { stream, live, blocking: is_blocking(options.0), options: Some(options) });
        s.destroy_finished(&self.gpu, MAX_QUERIED);
        true
    }

    /// Adds a stream that the job has created, with what it asked for if that is known.
    pub(super) fn stream_made(&self, stream: u64, live: u64, options: Option<StreamOptions>) {
        let flags = options.map_or_else(|| self.gpu.stream_flags(live), |(flags, _)| Ok(flags));
        // One of which nothing is known is waited for with the legacy default stream.
        let blocking = flags.map_or(true, is_blocking);
        let mut s = lock(&self.streams);
        s.live.push(LiveStream { stream, live, blocking, options });
        s.destroy_finished(&self.gpu, MAX_QUERIED);
    }

    /// The job's streams with unfinished work, including the default stream.
    pub(super) fn busy_streams(&self) -> Result<Vec<u64>, Code> {
        // Held meanwhile: a stream must not be destroyed before it is asked.
        let s = lock(&self.streams);
        let mut busy = Vec::new();
        for (stream, live) in s.live.iter().map(|s| (s.stream, s.live)).chain([(LEGACY, LEGACY)]) {
            match self.gpu.query_stream(live) {
                Ok(()) => {}
                Err(code::ERROR_NOT_READY) => busy.push(stream),
                Err(rc) => return Err(rc),
            }
        }
        Ok(busy)
    }

    /// Destroys a stream of the job. If the stream has work, the driver destroys it when that is over: a driver that is never asked to wait
    /// does not give up streams that were destroyed before the end of their work, and after some hundred of them the creation of a
    /// stream takes ten times as long (docs/driver-facts.md 6.10).
    pub(super) fn end_stream(&self, stream: u64) -> Result<(), Code> {
        // Held over the driver's call: a wait of another thread for all streams must not use one that is gone.
        let mut s = lock(&self.streams);
        let live = self.bindings.live(Kind::Stream, stream)?;
        let known = s.live.iter().find(|s| s.live == live);
        let (blocking, options) = known.map_or((true, None), |s| (s.blocking, s.options));
        match self.gpu.query_stream(live) {
            Err(code::ERROR_NOT_READY) => s.ended.push_back(EndedStream { live, blocking, options, mark: None }),
            Ok(()) => s.keep_or_destroy(&self.gpu, options, live)?,
            Err(_) => self.gpu.destroy_stream(live)?,
        }
        self.bindings.unbind(stream);
        s.live.retain(|s| s.live != live);
        s.destroy_finished(&self.gpu, MAX_QUERIED);
        Ok(())
    }

    /// Whether the job's streams have no work. It only asks: an event in each of them would be work that the job sees, and that holds up
    /// others.
    ///
    /// # Errors
    /// The error of the context.
    pub fn is_idle(&self) -> Result<bool, Code> {
        self.make_current()?;
        let life = self.life();
        // Destroyed ones first: the error of one of them is found by the queries of the others.
        let idle =
            !self.ended_streams_work() && self.busy_streams().inspect_err(|_| self.show_failure(life.reference))?.is_empty();
        if idle {
            // Only a wait shows what device code has printed; this event is over.
            self.show_text(life.reference);
        }
        Ok(idle)
    }

    /// Returns whether destroyed streams have unfinished work.
    pub(super) fn ended_streams_work(&self) -> bool {
        let mut s = lock(&self.streams);
        s.destroy_finished(&self.gpu, usize::MAX);
        !s.ended.is_empty()
    }

    /// An answer that is available when it is a stream's turn: it is past all its present work, and past what its next work would wait for.
    pub(super) fn sync_stream(&self, life: &ContextState, stream: u64) -> Result<Option<Pending>, Code> {
        let live = self.stream_or_lane(life, stream)?;
        if live == LEGACY {
            return self.sync_streams(life, |blocking| blocking).map(Some);
        }
        Ok(Some(self.pending(life, vec![Mark::Own(life.pools.mark(live)?)])))
    }

    pub(super) fn sync_context(&self, life: &ContextState) -> Result<Pending, Code> {
        self.sync_streams(life, |_| true)
    }

    /// An answer that is available when the legacy default stream and other streams of the job are past all their present work: those for
    /// which `which` is true of whether they are blocking.
    fn sync_streams(&self, life: &ContextState, which: impl Fn(bool) -> bool) -> Result<Pending, Code> {
        let mut s = lock(&self.streams);
        s.destroy_finished(&self.gpu, usize::MAX);
        // On an error, dropping `pending` returns the marks recorded so far.
        let mut pending = self.pending(life, Vec::new());
        let beside = s.live.iter().map(|s| s.blocking).chain(s.ended.iter().map(|s| s.blocking)).any(|blocking| blocking);
        for ended in s.ended.iter_mut().filter(|s| which(s.blocking)) {
            // Nothing comes behind it in its stream.
            let mark = match &ended.mark {
                Some(mark) => mark.clone(),
                None => Arc::new(Recorded::new(life.pools.mark(ended.live)?, life.pools.clone())),
            };
            ended.mark = Some(mark.clone());
            pending.marks.push(Mark::Shared(mark));
        }
        // An event in the default stream would hold up what other threads submit to blocking streams from now on until these are past all
        // their present work, which may wait for just that. In the follower it holds up only later work of the default stream.
        let default = if beside { life.follower } else { LEGACY };
        for stream in s.live.iter().filter(|s| which(s.blocking)).map(|s| s.live) {
            // Idle ones need none.
            if self.gpu.query_stream(stream) != Ok(()) {
                pending.marks.push(Mark::Own(life.pools.mark(stream)?));
            }
        }
        pending.marks.push(Mark::Own(life.pools.mark(default)?));
        Ok(pending)
    }

    pub(super) fn sync_event(&self, life: &ContextState, event: u64) -> Result<Option<Pending>, Code> {
        let live = self.bindings.live(Kind::Event, event)?;
        // The event's present record: it may be recorded again before the wait is polled.
        match self.event_reached(life, event) {
            Ok(None) => {
                self.show_text(live);
                Ok(None)
            }
            Err(rc) => {
                self.show_failure(live);
                Err(rc)
            }
            pending => pending,
        }
    }

    pub(super) fn query_event(&self, event: u64) -> Result<(), Code> {
        self.gpu.query_event(self.bindings.live(Kind::Event, event)?)
    }

    /// Returns success if a stream is idle, `NOT_READY` otherwise.
    pub(super) fn query_stream(&self, stream: u64) -> Result<(), Code> {
        self.gpu.query_stream(stage_stream(stream, &self.bindings)?)
    }

    /// Makes the driver show what device code has printed, by waiting for an event that is known to have occurred.
    pub(crate) fn show_text(&self, event: u64) {
        if self.prints() {
            // The state of the event is already known.
            let _ = self.gpu.synchronize_event(event);
        }
    }

    /// Makes the driver show the text of a failed assertion: after an execution error no wait blocks.
    pub(crate) fn show_failure(&self, event: u64) {
        let _ = self.gpu.synchronize_event(event);
    }

    pub(super) fn share_event(&self, event: u64) -> Result<EventOffer, Code> {
        self.gpu.share_event(self.bindings.live(Kind::Event, event)?)
    }

    pub(super) fn open_event(&self, mut body: &[u8]) -> Result<(), Code> {
        let op = EventOpen::get(&mut body).map_err(short)?;
        if kind(op.event) != Some(Kind::Event) {
            return Err(code::ERROR_INVALID_HANDLE);
        }
        let live = self.gpu.open_event(&op.offer)?;
        self.bindings.bind(op.event, live);
        Ok(())
    }

    pub(super) fn set_stream_attribute(&self, mut body: &[u8]) -> Result<(), Code> {
        let op = StreamAttribute::get(&mut body).map_err(short)?;
        let mut value = attribute_words(&op.value)?;
        self.check_attribute(op.attribute, &mut value)?;
        let live = stage_stream(op.stream, &self.bindings)?;
        // Another stream must not begin with it.
        lock(&self.streams).live.iter_mut().filter(|s| s.live == live).for_each(|s| s.options = None);
        self.gpu.set_stream_attribute(live, op.attribute, &value)
    }

    pub(super) fn event_elapsed(&self, mut body: &[u8]) -> Result<f32, Code> {
        let (from, to) = <(u64, u64)>::get(&mut body).map_err(short)?;
        self.gpu.elapsed(self.bindings.live(Kind::Event, from)?, self.bindings.live(Kind::Event, to)?)
    }

    /// Records the reference event again; complete when it has occurred.
    pub(super) fn record_reference(&self, life: &ContextState) -> Result<Pending, Code> {
        self.gpu.record(life.reference, life.lanes[0])?;
        Ok(self.pending(life, vec![Mark::Other(life.reference)]))
    }

    /// Times of events that are older than the reference event, in milliseconds relative to it. The driver's results have 32 bits, so
    /// times are summed from each event to the next: the difference of two adjacent ones is then as exact as the driver's own. Not a
    /// number for an event without a time.
    pub(super) fn event_times(&self, life: &ContextState, mut body: &[u8]) -> Result<Vec<f64>, Code> {
        let events = Vec::<u64>::get(&mut body).map_err(short)?;
        let mut times = vec![f64::NAN; events.len()];
        let mut known = Vec::with_capacity(events.len());
        for (i, event) in events.into_iter().enumerate() {
            let live = self.bindings.live(Kind::Event, event)?;
            match self.gpu.elapsed(live, life.reference) {
                Ok(before) => known.push((before, i, live)),
                Err(rc) if code::is_sticky(rc) => return Err(rc),
                Err(_) => {}
            }
        }
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut later, mut at) = (life.reference, 0.0);
        for (_, i, live) in known {
            at -= f64::from(self.gpu.elapsed(live, later)?);
            times[i] = at;
            later = live;
        }
        Ok(times)
    }

    pub(super) fn event_time(&self, life: &ContextState, event: u64) -> Result<f64, Code> {
        self.gpu.elapsed(life.reference, self.bindings.live(Kind::Event, event)?).map(f64::from)
    }
}

#[cfg(test)]
mod tests;
