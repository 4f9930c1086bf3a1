//! Eviction: while a job is stopped, its device memory is in host memory, if the server says so (`mrcuda serve --evict-stopped`).
//!
//! A job that runs has a thread that reads heartbeats, whatever the program does. It counts as stopped when it has left some in a row unread, or
//! unanswered: over a network the worker asks for an answer, in shared memory it sees how far the job has read. So a process that is stopped, one
//! in a frozen cgroup, one on a machine that sleeps and one behind a network that is down look alike. If one of them runs all the same, its memory
//! comes back as soon as the GPU has room for it.
//!
//! Whatever is executed for the job holds `in_use` for reading ([`Worker::enter`]), and nothing is before evicted memory is back.

use super::ending::leave;
use super::eviction::InUse;
use super::text::complain;
use super::{HEARTBEAT_EVERY, STDERR, Worker};
use crate::channel::Message;
use crate::control::{Control, Refused};
use crate::eviction::{EvictedMemory, EvictionNews, WantedMemory};
use crate::frame::{CONTROL, MEMORY, TEXT};
use crate::place::Place;
use crate::sync::lock;
use cuda_api::code;
use cuda_api::lock::wait_timeout;
use executor::{Evictable, NotEvicted};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// How long the daemon may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Poll interval of a thread that waits until no other one restores memory.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time between two attempts to bring memory back: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// What those hear who ask for something else meanwhile.
const REFUSED: &str = "the job was stopped, so the server has its GPU memory in host memory, and the GPU has no room for it; it goes on as soon as there is room";

/// Whether a request is carried out wherever the job's memory is.
fn needs_no_memory(request: &Control) -> bool {
    matches!(request, Control::Stay { .. } | Control::Readings | Control::HangUp { .. } | Control::EndLink { .. })
}

impl<P: Place> Worker<P> {
    /// Before a call is executed: waits until the job's memory is on the GPU, and keeps it there until the result is dropped.
    pub(super) fn enter(&self, call: u16) -> InUse<'_> {
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(in_use) = self.eviction.enter(call, || Some(self.eviction.stay())) {
                return in_use;
            }
            if !self.restore(true) {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// As [`Worker::enter`]; `None` if it would have to wait.
    pub(super) fn enter_now(&self, call: u16) -> Option<InUse<'_>> {
        self.eviction.enter(call, || match self.eviction.in_use.try_read() {
            Ok(stays) => Some(stays),
            Err(TryLockError::Poisoned(stays)) => Some(stays.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    /// As [`Worker::enter`], for a request: if the GPU has no room, it is refused, since whoever asks is not the program.
    pub(super) fn enter_for(&self, request: &Control) -> Result<InUse<'_>, Refused> {
        if needs_no_memory(request) {
            return Ok(InUse::NOT);
        }
        let enter = || self.eviction.enter(CONTROL, || Some(self.eviction.stay()));
        // Requests may come at any rate.
        let restore = || !lock(&self.eviction.attempts).is_too_early(Instant::now()) && self.restore(false);
        enter().or_else(|| if restore() { enter() } else { None }).ok_or_else(|| Refused::Other(REFUSED.to_owned()))
    }

    /// Tries to bring evicted memory back; false if that has to be tried again, mostly because the GPU has no room. `for_call`: a call
    /// waits for it.
    fn restore(&self, for_call: bool) -> bool {
        // It does not wait for the lock: meanwhile the standard library would let no reader in, and the one that holds it may need another.
        let alone = loop {
            if !self.eviction.evicted.load(Ordering::Acquire) {
                return true;
            }
            match self.eviction.in_use.try_write() {
                Ok(alone) => break alone,
                Err(TryLockError::Poisoned(alone)) => break alone.into_inner(),
                Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_INTERVAL),
            }
        };
        if !self.eviction.evicted.load(Ordering::Acquire) {
            return true;
        }
        let began = Instant::now();
        match self.place.restore() {
            Ok(()) => {
                let since = lock(&self.eviction.attempts).success(began);
                self.eviction.calls_wait.store(false, Ordering::Release);
                self.eviction.evicted.store(false, Ordering::Release);
                // News are told in the order of what happens.
                self.tell(EvictionNews::Restored(ms(since.elapsed())));
                drop(alone);
                self.tell_job();
                true
            }
            Err(code::ERROR_OUT_OF_MEMORY) => {
                let first = lock(&self.eviction.attempts).no_room(began, Instant::now());
                if first {
                    self.tell(EvictionNews::Waits);
                }
                if for_call {
                    self.eviction.calls_wait.store(true, Ordering::Release);
                }
                drop(alone);
                self.tell_job();
                false
            }
            Err(rc) => {
                let (first, again) = lock(&self.eviction.attempts).error(began, Instant::now());
                let why =
                    format!("the memory of the job, which was stopped, cannot be brought back to the GPU (CUDA error {rc})");
                if again && !code::is_sticky(rc) {
                    drop(alone);
                    if first {
                        complain(&format!("{why}; it is tried again"));
                    }
                    return false;
                }
                // The job cannot go on without its memory, and must not go on with other contents.
                complain(&why);
                self.send(STDERR, TEXT, format!("mrcuda: {why}\n").as_bytes());
                leave(1, &self.conn)
            }
        }
    }

    /// Tells the job whether its calls wait for memory, if it does not know. Another thread may have changed that meanwhile, so what holds
    /// now is told, and the last one to change it tells last.
    fn tell_job(&self) {
        let mut knows = lock(&self.eviction.job_knows);
        let waits = self.eviction.calls_wait.load(Ordering::Acquire);
        if *knows != waits {
            *knows = waits;
            self.send(i32::from(waits), MEMORY, &[]);
        }
    }

    fn tell(&self, news: EvictionNews) {
        // A daemon that has ended ends this process.
        let _ = self.channel.send(&Message::Eviction(news), None);
    }

    /// Evicts the memory of the job whenever it is stopped, and restores it when it goes on. Ends with the process.
    pub(super) fn watch_for_stops(&self) {
        // Why its memory stays, as far as the daemon knows.
        let mut told: Option<String> = None;
        let mut pause = FIRST_PAUSE;
        loop {
            std::thread::sleep(HEARTBEAT_EVERY / 4);
            let silent = self.eviction.is_silent();
            if self.eviction.evicted.load(Ordering::Acquire) {
                if !silent && !self.restore(false) {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                continue;
            }
            pause = FIRST_PAUSE;
            if !silent {
                told = None;
                continue;
            }
            if let Err(why) = self.evict() {
                // Once, however often it is tried. The message also gives back what the daemon has granted.
                let text =
                    Some(why.to_string()).filter(|text| !matches!(why, NotEvicted::CalledOff) && told.as_ref() != Some(text));
                told = text.clone().or(told);
                self.tell(EvictionNews::Stays(text));
                std::thread::sleep(HEARTBEAT_EVERY);
            }
        }
    }

    /// Evicts the memory of a stopped job, if nothing is under way and the daemon gives leave.
    fn evict(&self) -> Result<(), NotEvicted> {
        let evictable = {
            let _alone = self.alone()?;
            self.place.evictable()?
        };
        // Not alone while the daemon is asked: it may be stopped.
        self.ask_daemon(evictable.bytes)?;
        let _alone = self.alone()?;
        let began = Instant::now();
        let evicted = self.place.evict(evictable.bytes, &|| !self.eviction.is_silent());
        let bytes = self.place.evicted_bytes();
        if bytes > 0 {
            self.eviction.evicted.store(true, Ordering::Release);
        }
        let memory = match evicted {
            Ok(memory) => memory,
            // What could not be mapped again at once comes back like all else.
            Err(why) if bytes > 0 => {
                complain(&format!("the memory of a stopped job was evicted in part: {why}"));
                Evictable { bytes, rest: self.place.used_bytes() }
            }
            Err(why) => return Err(why),
        };
        let memory = EvictedMemory { bytes: memory.bytes, rest: memory.rest, ms: ms(began.elapsed()) };
        self.tell(EvictionNews::Evicted(memory));
        Ok(())
    }

    /// Makes sure that nothing is executed for the job, and none of its calls waits for anything, until the result is dropped.
    fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>, NotEvicted> {
        // First without the lock, which holds up calls.
        self.under_way().map_or(Ok(()), |what| Err(self.busy_with(what)))?;
        let alone = match self.eviction.in_use.try_write() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(alone)) => alone.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(NotEvicted::Busy("a call or a request is being carried out".to_owned())),
        };
        // Calls may have begun and left something behind before that.
        if let Some(what) = self.under_way() {
            drop(alone);
            return Err(self.busy_with(what));
        }
        if !self.attendant.stripes().is_empty() {
            return Err(NotEvicted::Moving);
        }
        Ok(alone)
    }

    /// What is under way for the job, or waits for it.
    fn under_way(&self) -> Option<&'static str> {
        if [false, true].iter().any(|kind| self.counter(*kind).load(Ordering::Acquire) != 0) {
            return Some("a request is being carried out");
        }
        let calls_wait = !self.late_calls.is_empty() || !self.messages.is_empty() || !self.completion.is_empty();
        let streams_wait = || {
            self.place.host_calls() > 0
                || self.place.awaits_job()
                || self.place.staging().awaits_bytes()
                || self.place.has_copies_at_rest()
        };
        (calls_wait || streams_wait()).then_some("calls wait for it")
    }

    /// Why nothing is evicted: the place knows better, if anything waits there. Asks the driver, so not while calls are held up.
    fn busy_with(&self, what: &str) -> NotEvicted {
        // Not while the place is being closed.
        let asking = self.eviction.asking.try_lock();
        let known = asking.ok().and_then(|_asking| self.place.busy().ok()).map(|busy| busy.what).unwrap_or_default();
        NotEvicted::Busy(if known.is_empty() { what.to_owned() } else { known })
    }

    /// Asks the daemon whether so many bytes may be in host memory.
    fn ask_daemon(&self, bytes: u64) -> Result<(), NotEvicted> {
        let refused = |why: &str| NotEvicted::HostMemory(io::Error::other(why.to_owned()));
        let until = Instant::now() + ANSWER;
        let mut answer = lock(&self.eviction.answer);
        *answer = None;
        let number = self.eviction.asked.fetch_add(1, Ordering::Relaxed);
        self.tell(EvictionNews::Wanted(WantedMemory { number, bytes }));
        loop {
            // One to an earlier question does not count.
            match answer.take().filter(|(asked, _)| *asked == number) {
                Some((_, None)) => return Ok(()),
                Some((_, Some(why))) => return Err(refused(&why)),
                None => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(refused("the server does not answer its worker"));
            }
            answer = wait_timeout(&self.eviction.answered, answer, left).0;
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
