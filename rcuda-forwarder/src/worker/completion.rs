//! Calls that the GPU has not reached: one thread looks, and answers in an order that clients can rely on.
//!
//! The rule: before an answer goes out, every earlier call is looked at again, and those that are done are answered first.
//! A call that followed a copy on the GPU is seen done only after the copy was, so its answer cannot overtake the copy's
//! bytes. Calls that need not wait take part while others do.

use crate::link::lock;
use crate::place::{Outcome, Place};
use cuda_api::code::Code;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// After the last success: so long the thread looks without pause,
const SPIN: Duration = Duration::from_micros(20);
/// so long it lets others run between two looks,
const YIELD: Duration = Duration::from_micros(1000);
/// then it sleeps this long between two looks,
const NAP: Duration = Duration::from_micros(10);
/// and after a while this long.
const LONG_NAP: Duration = Duration::from_micros(50);
const WHILE: Duration = Duration::from_millis(20);

/// A call on its way.
#[derive(Debug)]
pub(super) struct Item<T> {
    pub(super) ticket: u64,
    pub(super) id: u16,
    pub(super) reply: Vec<u8>,
    pub(super) outcome: Outcome<T>,
}

/// The calls on their way.
#[derive(Debug)]
pub(super) struct Completion<T> {
    fresh: Mutex<VecDeque<Item<T>>>,
    arrived: Condvar,
    /// Calls that are not answered yet.
    held: AtomicUsize,
    /// Held while the place is looked at.
    looking: Mutex<()>,
}

impl<T> Default for Completion<T> {
    fn default() -> Self {
        Completion { fresh: Mutex::default(), arrived: Condvar::new(), held: AtomicUsize::new(0), looking: Mutex::new(()) }
    }
}

impl<T> Completion<T> {
    /// Whether every call is answered.
    pub(super) fn is_empty(&self) -> bool {
        self.held.load(Ordering::Acquire) == 0
    }

    /// Adds a call. Only the thread that applies calls does so: its order is theirs.
    pub(super) fn add(&self, item: Item<T>) {
        self.held.fetch_add(1, Ordering::AcqRel);
        lock(&self.fresh).push_back(item);
        self.arrived.notify_one();
    }

    /// Runs `body` while nobody looks at the place.
    pub(super) fn stop_while(&self, body: impl FnOnce()) {
        let _nobody = lock(&self.looking);
        body();
        // The place is of no use any more: nobody looks at it again.
        std::mem::forget(_nobody);
    }

    /// Looks, and answers what is done with `answer`. Never returns.
    pub(super) fn run<P: Place<Pending = T>>(&self, place: &P, answer: impl Fn(&Item<T>, Code)) {
        // SAFETY: affects only how late this thread's sleeps may end.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        let mut list = VecDeque::new();
        let mut success = Instant::now();
        loop {
            let mut fresh = lock(&self.fresh);
            if list.is_empty() && fresh.is_empty() {
                fresh = self.arrived.wait_while(fresh, |f| f.is_empty()).unwrap_or_else(PoisonError::into_inner);
                success = Instant::now();
            }
            list.append(&mut fresh);
            drop(fresh);
            let looking = lock(&self.looking);
            let done = self.look(place, &mut list, &answer);
            drop(looking);
            if done {
                success = Instant::now();
            } else {
                pause(success.elapsed());
            }
        }
    }

    /// One look at everything; whether anything was answered.
    fn look<P: Place<Pending = T>>(&self, place: &P, list: &mut VecDeque<Item<T>>, answer: &impl Fn(&Item<T>, Code)) -> bool {
        let mut any = false;
        while let Some((k, rc)) = first_done(place, list, list.len()) {
            self.answer_in_order(place, list, k, rc, answer);
            any = true;
        }
        any
    }

    fn answer_in_order<P: Place<Pending = T>>(
        &self,
        place: &P,
        list: &mut VecDeque<Item<T>>,
        mut k: usize,
        rc: Code,
        answer: &impl Fn(&Item<T>, Code),
    ) {
        while let Some((earlier, rc)) = first_done(place, list, k) {
            self.answer_in_order(place, list, earlier, rc, answer);
            k -= 1;
        }
        if let Some(item) = list.remove(k) {
            answer(&item, rc);
            self.held.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The first of the first `n` calls that is done, and how it ended.
fn first_done<P: Place>(place: &P, list: &mut VecDeque<Item<P::Pending>>, n: usize) -> Option<(usize, Code)> {
    list.iter_mut().take(n).enumerate().find_map(|(i, item)| {
        let rc = match &mut item.outcome {
            Outcome::Done(rc) => Some(*rc),
            Outcome::Pending(p) => place.poll(p, &mut item.reply),
        }?;
        // A call that was seen done is not looked at twice.
        item.outcome = Outcome::Done(rc);
        Some((i, rc))
    })
}

fn pause(since: Duration) {
    if since < SPIN {
        std::hint::spin_loop();
    } else if since < YIELD {
        std::thread::yield_now();
    } else {
        std::thread::sleep(if since < WHILE { NAP } else { LONG_NAP });
    }
}
