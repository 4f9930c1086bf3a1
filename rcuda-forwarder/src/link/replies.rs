//! The answers that a link expects.

use crate::sync::lock;
use cuda_api::code::Code;
use cuda_api::lock::{wait, wait_timeout};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The link to the worker is lost, and every call on it fails from now on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the worker is lost: {why}")]
pub struct Lost {
    /// The reason.
    pub why: Arc<str>,
}

/// Destination in host memory for the bytes of an answer: `rows` rows of `width` bytes, at a distance of `pitch` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landing {
    /// First byte.
    pub ptr: *mut u8,
    /// Bytes from row to row.
    pub pitch: usize,
    /// Bytes of a row.
    pub width: usize,
    /// Rows.
    pub rows: usize,
    /// The program has registered the memory, and may unmap it before the answer comes: bytes of one row are then written by the kernel,
    /// as far as they can be.
    pub is_registered: bool,
}

// SAFETY: a plain description; who uses it for writing has the caller's word (`Link::request_into`).
unsafe impl Send for Landing {}
// SAFETY: as above.
unsafe impl Sync for Landing {}

impl Landing {
    /// Number of bytes that fit.
    pub(super) fn bytes(&self) -> Option<usize> {
        self.width.checked_mul(self.rows)
    }
}

type Outcome = Result<(Code, Vec<u8>), Lost>;

type Then = Box<dyn FnOnce(Outcome) + Send>;

/// The state of one outstanding answer.
pub(super) struct Waiter {
    pub(super) landing: Option<Landing>,
    /// The result is not awaited: an error is reported as the fault of a call with this id.
    pub(super) unread: Option<u16>,
    /// Whether it is for the answer to a control request.
    is_control: bool,
    /// Called with the answer, in place of a waiting thread.
    then: Mutex<Option<Then>>,
    here: AtomicBool,
    arrival: Mutex<Arrival>,
    arrived: Condvar,
}

/// What has arrived, and who sleeps until then.
#[derive(Default)]
struct Arrival {
    outcome: Option<Outcome>,
    /// A thread sleeps, or is about to. Mostly none does, because it polls; and waking nobody is a system call, too.
    has_sleeper: bool,
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("landing", &self.landing).field("here", &self.here).finish_non_exhaustive()
    }
}

impl Waiter {
    pub(super) fn new(landing: Option<Landing>) -> Waiter {
        Waiter {
            landing,
            unread: None,
            is_control: false,
            then: Mutex::new(None),
            here: AtomicBool::new(false),
            arrival: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    /// For bytes of which only the arrival is awaited.
    pub(super) fn unread(id: u16, landing: Landing) -> Waiter {
        Waiter { unread: Some(id), ..Waiter::new(Some(landing)) }
    }

    /// For the answer to a control request: it brings no bytes of copies.
    pub(super) fn control() -> Waiter {
        Waiter { is_control: true, ..Waiter::new(None) }
    }

    pub(super) fn calling(then: Then) -> Waiter {
        Waiter { then: Mutex::new(Some(then)), ..Waiter::new(None) }
    }

    pub(super) fn is_here(&self) -> bool {
        self.here.load(Ordering::Acquire)
    }

    pub(super) fn complete(&self, outcome: Outcome) {
        let then = lock(&self.then).take();
        if let Some(then) = then {
            return then(outcome);
        }
        let mut arrival = lock(&self.arrival);
        arrival.outcome = Some(outcome);
        let wakes = arrival.has_sleeper;
        drop(arrival);
        self.here.store(true, Ordering::Release);
        if wakes {
            self.arrived.notify_one();
        }
    }

    /// Waits for the answer.
    pub(super) fn wait(&self) -> Outcome {
        let mut arrival = lock(&self.arrival);
        loop {
            match arrival.outcome.take() {
                Some(found) => return found,
                None => {
                    arrival.has_sleeper = true;
                    arrival = wait(&self.arrived, arrival);
                }
            }
        }
    }

    /// Waits for at most `limit`; `None` if the answer has not arrived.
    pub(super) fn wait_for(&self, limit: Duration) -> Option<Outcome> {
        let until = Instant::now() + limit;
        let mut arrival = lock(&self.arrival);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if arrival.outcome.is_some() || left.is_zero() {
                return arrival.outcome.take();
            }
            arrival.has_sleeper = true;
            arrival = wait_timeout(&self.arrived, arrival, left).0;
        }
    }
}

/// The outstanding answers, until the link is lost.
#[derive(Debug, Default)]
pub(super) struct Replies {
    table: Mutex<Table>,
    waiting: AtomicUsize,
    is_lost: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    waiters: HashMap<u64, Arc<Waiter>>,
    /// How many of them wait for answers to control requests.
    controls: usize,
    /// Why the link is lost.
    lost: Option<Lost>,
}

impl Replies {
    /// Registers an outstanding answer.
    pub(super) fn expect(&self, ticket: u64, waiter: Arc<Waiter>) -> Result<(), Lost> {
        let mut t = lock(&self.table);
        if let Some(lost) = &t.lost {
            return Err(lost.clone());
        }
        t.controls += usize::from(waiter.is_control);
        t.waiters.insert(ticket, waiter);
        self.waiting.store(t.waiters.len() - t.controls, Ordering::Release);
        Ok(())
    }

    /// The waiter for an answer. It stays registered until [`Replies::forget`], so that `outstanding` counts it until
    /// then.
    pub(super) fn find(&self, ticket: u64) -> Option<Arc<Waiter>> {
        lock(&self.table).waiters.get(&ticket).cloned()
    }

    /// Removes an answer; false if it was not registered, because it has arrived or cannot arrive.
    pub(super) fn forget(&self, ticket: u64) -> bool {
        let mut t = lock(&self.table);
        let removed = t.waiters.remove(&ticket);
        t.controls -= usize::from(removed.as_ref().is_some_and(|waiter| waiter.is_control));
        self.waiting.store(t.waiters.len() - t.controls, Ordering::Release);
        removed.is_some()
    }

    /// Marks the link as lost; the first reason is kept.
    pub(super) fn lose(&self, why: &str) {
        lock(&self.table).lost.get_or_insert_with(|| Lost { why: why.into() });
        self.is_lost.store(true, Ordering::Release);
    }

    /// Fails all waiters. Only for the thread that writes to landings, when it will write no more.
    pub(super) fn fail_all(&self) {
        let (waiters, lost) = {
            let mut t = lock(&self.table);
            let lost = t.lost.get_or_insert_with(|| Lost { why: "the connection has ended".into() }).clone();
            t.controls = 0;
            (std::mem::take(&mut t.waiters), lost)
        };
        self.is_lost.store(true, Ordering::Release);
        self.waiting.store(0, Ordering::Release);
        waiters.into_values().for_each(|w| w.complete(Err(lost.clone())));
    }

    /// Why the link is lost.
    pub(super) fn lost(&self) -> Option<Lost> {
        lock(&self.table).lost.clone()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Number of outstanding answers, without those to control requests.
    pub(super) fn outstanding(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }
}
