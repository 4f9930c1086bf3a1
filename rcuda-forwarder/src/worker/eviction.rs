//! Whether the job of a worker is stopped, and where its memory is.

use crate::conn::Ahead;
use crate::frame::GOODBYE;
use crate::sync::lock;
use cuda_api::lock::read_lock;
use cuda_api::ops::id;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// How long requests are refused after an attempt to bring memory back has failed, without another one.
const REFUSE_FOR: Duration = Duration::from_secs(1);
/// How long it is tried again after errors that do not say that the GPU has no room.
const ERRORS_FOR: Duration = Duration::from_secs(60);

/// The attempts to bring memory back since it was evicted.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// When the first one failed for want of room.
    waits: Option<Instant>,
    /// When the first error came that does not say so, if the last attempt brought one.
    errors: Option<Instant>,
    /// When the last one failed.
    last: Option<Instant>,
}

impl Attempts {
    /// One that began then has found no room; returns whether it is the first.
    pub(super) fn no_room(&mut self, began: Instant, now: Instant) -> bool {
        (self.errors, self.last) = (None, Some(now));
        self.waits.replace(self.waits.unwrap_or(began)).is_none()
    }

    /// One that began then has brought another error; returns whether it is the first of them, and whether another attempt is of use.
    pub(super) fn error(&mut self, began: Instant, now: Instant) -> (bool, bool) {
        self.last = Some(now);
        let since = self.errors.unwrap_or(began);
        (self.errors.replace(since).is_none(), now.saturating_duration_since(since) < ERRORS_FOR)
    }

    /// One that began then has succeeded; returns when the first one began.
    pub(super) fn success(&mut self, began: Instant) -> Instant {
        let Attempts { waits, errors, .. } = std::mem::take(self);
        waits.into_iter().chain(errors).fold(began, Instant::min)
    }

    /// Whether it is too early for another one on behalf of a request.
    pub(super) fn is_too_early(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < REFUSE_FOR)
    }
}

/// What is known of the job's life, and where its memory is.
#[derive(Debug)]
pub(super) struct Eviction {
    /// Number of heartbeats in a row that a stopped job has left unanswered; `None`: memory is never evicted.
    after: Option<u32>,
    /// Those that the job has left unanswered.
    unanswered: AtomicU32,
    /// The reader waits for bytes of the job, so that an answer would be read.
    listens: AtomicBool,
    /// In shared memory: the position behind the last heartbeat.
    last_beat: Mutex<Option<u64>>,
    /// Held for reading while something is executed for the job, for writing while memory is evicted or restored.
    pub(super) in_use: RwLock<()>,
    pub(super) evicted: AtomicBool,
    /// What has come of the attempts to bring it back.
    pub(super) attempts: Mutex<Attempts>,
    /// Calls of the job wait for it, because the GPU has no room. Changes while memory is restored only.
    pub(super) calls_wait: AtomicBool,
    /// Held while the driver is asked without `in_use`, and from the end of the job on.
    pub(super) asking: Mutex<()>,
    /// Whether the job knows that its calls wait. Held while it is told.
    pub(super) job_knows: Mutex<bool>,
    /// The daemon's answer to the question with this number: why memory may not be evicted, or that it may.
    pub(super) answer: Mutex<Option<(u64, Option<String>)>>,
    /// The number of the last question.
    pub(super) asked: AtomicU64,
    pub(super) answered: Condvar,
}

impl Eviction {
    pub(super) fn new(after: Option<u32>) -> Eviction {
        Eviction {
            after,
            unanswered: AtomicU32::new(0),
            listens: AtomicBool::new(false),
            last_beat: Mutex::default(),
            in_use: RwLock::default(),
            evicted: AtomicBool::new(false),
            attempts: Mutex::default(),
            calls_wait: AtomicBool::new(false),
            asking: Mutex::default(),
            job_knows: Mutex::default(),
            answer: Mutex::default(),
            asked: AtomicU64::new(0),
            answered: Condvar::new(),
        }
    }

    /// Whether memory is evicted at all, so that the job is to answer heartbeats.
    pub(super) fn is_on(&self) -> bool {
        self.after.is_some()
    }

    /// The reader begins to wait for bytes of the job.
    pub(super) fn listen(&self) {
        // What the job has sent meanwhile is still to be read.
        self.heard();
        self.listens.store(true, Ordering::Relaxed);
    }

    /// The reader is in a call, however long that takes: the job may answer, and nobody reads it.
    pub(super) fn does_not_listen(&self) {
        self.listens.store(false, Ordering::Relaxed);
    }

    /// The job has given a sign of life, or none could be heard.
    pub(super) fn heard(&self) {
        if self.unanswered.load(Ordering::Relaxed) != 0 {
            self.unanswered.store(0, Ordering::Relaxed);
        }
    }

    /// A heartbeat is about to be written, or would be if there were room. `read`: how far the job has read, if that is known.
    pub(super) fn beats(&self, read: Option<u64>) {
        let last = *lock(&self.last_beat);
        let has_read = last.zip(read).is_some_and(|(beat, read)| read.wrapping_sub(beat).cast_signed() >= 0);
        if has_read || !self.listens.load(Ordering::Relaxed) {
            self.heard();
        }
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// It was written; `end`: the position behind it, if that is known.
    pub(super) fn has_beaten(&self, end: Option<u64>) {
        *lock(&self.last_beat) = end;
    }

    /// Whether the job has been silent for so long that it counts as stopped. One heartbeat more than it has left unanswered is under way.
    pub(super) fn is_silent(&self) -> bool {
        let listens = self.listens.load(Ordering::Relaxed);
        self.after.is_some_and(|after| listens && self.unanswered.load(Ordering::Relaxed) > after)
    }

    /// Keeps the job's memory from being evicted or restored meanwhile, wherever it is.
    pub(super) fn stay(&self) -> RwLockReadGuard<'_, ()> {
        read_lock(&self.in_use)
    }

    /// What a call holds while it is executed; `None` if the job's memory is not there, or `lock` does not get the lock.
    pub(super) fn enter<'e>(&'e self, call: u16, lock: impl FnOnce() -> Option<RwLockReadGuard<'e, ()>>) -> Option<InUse<'e>> {
        // The last call frees the memory, wherever it is. The others do not use it, and calls before them may wait for them: they must not be
        // queued behind these. What a stream does after them is not over before the GPU is idle, so nothing is evicted below it.
        if !self.is_on()
            || matches!(call, GOODBYE | id::HOST_DONE | id::HOST_BYTES | id::HOST_RUNS | id::HOST_BLOCK | id::HOST_PIN)
        {
            return Some(InUse(None));
        }
        let stays = lock()?;
        (!self.evicted.load(Ordering::Acquire)).then_some(InUse(Some(stays)))
    }

    /// Takes the daemon's answer.
    pub(super) fn take_answer(&self, number: u64, why_not: Option<String>) {
        *lock(&self.answer) = Some((number, why_not));
        self.answered.notify_all();
    }
}

/// What a job sends. Each part of it is a sign of life, also one of a long body.
#[derive(Debug)]
pub(super) struct Heard<R> {
    pub(super) from: R,
    pub(super) eviction: Arc<Eviction>,
}

impl<R: Read> Read for Heard<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(to);
        self.eviction.heard();
        read
    }
}

impl Ahead for Heard<Box<dyn Ahead>> {
    fn is_ready(&self) -> bool {
        self.from.is_ready()
    }
}

/// As long as it exists the job's memory stays where it is, if it is used.
#[derive(Debug)]
pub(super) struct InUse<'e>(#[expect(dead_code, reason = "it is held")] Option<RwLockReadGuard<'e, ()>>);

impl InUse<'_> {
    /// For what does not use it.
    pub(super) const NOT: InUse<'static> = InUse(None);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening() -> Arc<Eviction> {
        let job = Eviction::new(Some(2));
        job.listen();
        Arc::new(job)
    }

    #[test]
    fn a_job_is_silent_when_it_leaves_more_heartbeats_unanswered_than_it_may() {
        let job = listening();
        let silent = |beats: usize| {
            (0..beats).for_each(|_| job.beats(None));
            job.is_silent()
        };
        assert_eq!((silent(2), silent(1)), (false, true));
        job.heard();
        assert_eq!((silent(2), silent(1)), (false, true));
        // Bytes of a long body are signs of life, too; the end of the stream comes once.
        let mut body = Heard { from: &[1u8; 4][..], eviction: job.clone() };
        for _ in 0..4 {
            assert_eq!((body.read(&mut [0]).unwrap(), silent(2)), (1, false));
        }
        assert!(silent(1));
        let never = Eviction::new(None);
        never.listen();
        (0..1000).for_each(|_| never.beats(None));
        assert!(!never.is_silent() && !never.is_on());
    }

    #[test]
    fn a_job_is_not_silent_while_nobody_listens() {
        let job = listening();
        let silent = |beats: usize| {
            (0..beats).for_each(|_| job.beats(None));
            job.is_silent()
        };
        assert!(silent(3));
        job.does_not_listen();
        assert!(!job.is_silent() && !silent(100));
        // From then on it has the whole time.
        job.listen();
        assert_eq!((silent(2), silent(1)), (false, true));
    }

    #[test]
    fn in_shared_memory_a_heartbeat_that_was_read_is_a_sign_of_life() {
        let job = listening();
        // Positions wrap; the job reads up to just before each heartbeat, then up to it.
        let start = u64::MAX - 20;
        for beat in 0..9u64 {
            job.beats(Some(start.wrapping_add(16 * beat)));
            assert!(!job.is_silent(), "{beat}");
            job.has_beaten(Some(start.wrapping_add(16 * (beat + 1))));
        }
        let read = start.wrapping_add(16 * 9 - 1);
        (0..3).for_each(|_| job.beats(Some(read)));
        assert!(job.is_silent());
        job.beats(Some(read.wrapping_add(1)));
        assert!(!job.is_silent());
    }

    #[test]
    fn attempts_go_on_for_room_for_ever_and_after_errors_for_a_minute() {
        let (start, mut attempts) = (Instant::now(), Attempts::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!attempts.is_too_early(at(0)));
        assert_eq!((attempts.no_room(at(0), at(1)), attempts.no_room(at(9), at(9))), (true, false));
        assert_eq!((attempts.is_too_early(at(9)), attempts.is_too_early(at(10))), (true, false));
        assert_eq!((attempts.error(at(20), at(21)), attempts.error(at(78), at(79))), ((true, true), (false, true)));
        assert!(attempts.is_too_early(at(79)));
        // Between them the driver has answered as it should.
        assert!(!attempts.no_room(at(79), at(79)));
        assert_eq!((attempts.error(at(100), at(159)), attempts.error(at(159), at(160))), ((true, true), (false, false)));
        assert_eq!(attempts.success(at(170)), at(0));
        assert_eq!((attempts.is_too_early(at(170)), attempts.success(at(200))), (false, at(200)));
    }

    #[test]
    fn calls_wait_for_evicted_memory_except_those_that_do_not_use_it() {
        let job = Eviction::new(Some(2));
        let enters = |call| job.enter(call, || Some(job.stay())).is_some();
        assert!(enters(id::LAUNCH) && enters(GOODBYE));
        job.evicted.store(true, Ordering::Release);
        let calls = [
            id::LAUNCH,
            id::BATCH,
            id::STREAM_SYNC,
            id::HOST_DONE,
            GOODBYE,
            id::HOST_BYTES,
            id::HOST_RUNS,
            id::HOST_BLOCK,
            id::HOST_PIN,
        ];
        assert_eq!(calls.map(enters), [false, false, false, true, true, true, true, true, true]);
        // Nor do these wait for the lock.
        let alone = job.in_use.try_write();
        assert!(alone.is_ok() && job.enter(id::HOST_DONE, || None).is_some() && job.enter(id::LAUNCH, || None).is_none());
    }
}
