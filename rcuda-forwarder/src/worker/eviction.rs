//! Whether the job of a worker is stopped, and where its memory is.

use crate::frame::GOODBYE;
use crate::sync::lock;
use cuda_api::lock::read_lock;
use cuda_api::ops::id;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, RwLock, RwLockReadGuard};
use std::time::Instant;

/// What is known of the job's life, and where its memory is.
#[derive(Debug)]
pub(super) struct Eviction {
    /// Number of heartbeats in a row that a stopped job has left unanswered; `None`: memory is never evicted.
    after: Option<u32>,
    /// Those that the job has left unanswered.
    unanswered: AtomicU32,
    /// In shared memory: the position behind the last heartbeat.
    last_beat: Mutex<Option<u64>>,
    /// Held for reading while something is executed for the job, for writing while memory is evicted or restored.
    pub(super) in_use: RwLock<()>,
    pub(super) evicted: AtomicBool,
    /// Since when the GPU has had no room for it.
    pub(super) waits: Mutex<Option<Instant>>,
    /// The job knows that its calls wait.
    pub(super) has_told: AtomicBool,
    /// The daemon's answer: whether, or why not, so many bytes may be evicted.
    pub(super) answer: Mutex<Option<(u64, Option<String>)>>,
    pub(super) answered: Condvar,
}

impl Eviction {
    pub(super) fn new(after: Option<u32>) -> Eviction {
        Eviction {
            after,
            unanswered: AtomicU32::new(0),
            last_beat: Mutex::default(),
            in_use: RwLock::default(),
            evicted: AtomicBool::new(false),
            waits: Mutex::default(),
            has_told: AtomicBool::new(false),
            answer: Mutex::default(),
            answered: Condvar::new(),
        }
    }

    /// Whether memory is evicted at all, so that the job is to answer heartbeats.
    pub(super) fn is_on(&self) -> bool {
        self.after.is_some()
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
        if last.zip(read).is_some_and(|(beat, read)| read.wrapping_sub(beat).cast_signed() >= 0) {
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
        self.after.is_some_and(|after| self.unanswered.load(Ordering::Relaxed) > after)
    }

    /// Keeps the job's memory from being evicted or restored meanwhile, wherever it is.
    pub(super) fn stay(&self) -> RwLockReadGuard<'_, ()> {
        read_lock(&self.in_use)
    }

    /// What a call holds while it is executed; `None` if the job's memory is not there, or `lock` does not get the lock.
    pub(super) fn enter<'e>(&'e self, call: u16, lock: impl FnOnce() -> Option<RwLockReadGuard<'e, ()>>) -> Option<InUse<'e>> {
        // The last call frees the memory, wherever it is. The others do not use it, and those behind them may need them.
        if !self.is_on() || matches!(call, GOODBYE | id::HOST_BYTES | id::HOST_BLOCK | id::HOST_PIN) {
            return Some(InUse(None));
        }
        let stays = lock()?;
        (!self.evicted.load(Ordering::Acquire)).then_some(InUse(Some(stays)))
    }

    /// Takes the daemon's answer.
    pub(super) fn take_answer(&self, bytes: u64, why_not: Option<String>) {
        *lock(&self.answer) = Some((bytes, why_not));
        self.answered.notify_all();
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

    #[test]
    fn a_job_is_silent_when_it_leaves_more_heartbeats_unanswered_than_it_may() {
        let job = Eviction::new(Some(2));
        let silent = |beats: usize| {
            (0..beats).for_each(|_| job.beats(None));
            job.is_silent()
        };
        assert_eq!((silent(2), silent(1)), (false, true));
        job.heard();
        assert_eq!((silent(2), silent(1)), (false, true));
        let never = Eviction::new(None);
        (0..1000).for_each(|_| never.beats(None));
        assert!(!never.is_silent() && !never.is_on());
    }

    #[test]
    fn in_shared_memory_a_heartbeat_that_was_read_is_a_sign_of_life() {
        let job = Eviction::new(Some(2));
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
    fn calls_wait_for_evicted_memory_except_those_that_do_not_use_it() {
        let job = Eviction::new(Some(2));
        let enters = |call| job.enter(call, || Some(job.stay())).is_some();
        assert!(enters(id::LAUNCH) && enters(GOODBYE));
        job.evicted.store(true, Ordering::Release);
        let calls =
            [id::LAUNCH, id::HOST_DONE, id::BATCH, id::STREAM_SYNC, GOODBYE, id::HOST_BYTES, id::HOST_BLOCK, id::HOST_PIN];
        assert_eq!(calls.map(enters), [false, false, false, false, true, true, true, true]);
    }
}
