//! Calls that the GPU has not reached: a thread polls them, and answers in an order that clients can rely on. The
//! thread that reads the calls polls first, for a short time while it has nothing to read, so that a short wait needs
//! no other thread.
//!
//! The rule: before an answer is sent, every earlier call is polled again, and those that are complete are answered
//! first. A call that followed a copy on the GPU is seen as complete only after the copy was, so its answer cannot
//! overtake the copy's bytes. Calls that complete at once take part while others are pending.

use crate::place::{Outcome, Place};
use crate::sync::lock;
use cuda_api::code::Code;
use cuda_api::lock::wait;
use cuda_api::spin::{Pause, Spinning, spin_time};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long the thread polls without sleeping after the last completion, if no other thread needs the processor,
const YIELD: Duration = Duration::from_micros(1000);
/// the poll interval after that,
const NAP: Duration = Duration::from_micros(10);
/// and after a longer time.
const LONG_NAP: Duration = Duration::from_micros(50);
const WHILE: Duration = Duration::from_millis(20);

/// A pending call.
#[derive(Debug)]
pub(super) struct Item<T> {
    pub(super) ticket: u64,
    pub(super) id: u16,
    pub(super) reply: Vec<u8>,
    pub(super) outcome: Outcome<T>,
    /// What it takes, before its outcome adds to its reply.
    bytes: u64,
}

impl<T> Item<T> {
    pub(super) fn new(ticket: u64, id: u16, reply: Vec<u8>, outcome: Outcome<T>) -> Item<T> {
        let bytes = (size_of::<Item<T>>() + reply.capacity()) as u64;
        Item { ticket, id, reply, outcome, bytes }
    }
}

/// The pending calls.
#[derive(Debug)]
pub(super) struct Completion<T> {
    fresh: Mutex<VecDeque<Item<T>>>,
    arrived: Condvar,
    /// The thread sleeps until a call arrives.
    asleep: AtomicBool,
    /// Number of calls that are not answered yet.
    held: AtomicUsize,
    /// What they take.
    bytes: AtomicU64,
    /// The calls that are polled; locked while the place is polled.
    polling: Mutex<VecDeque<Item<T>>>,
}

impl<T> Default for Completion<T> {
    fn default() -> Self {
        Completion {
            fresh: Mutex::default(),
            arrived: Condvar::new(),
            asleep: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            polling: Mutex::default(),
        }
    }
}

impl<T> Completion<T> {
    /// Whether every call has been answered.
    pub(super) fn is_empty(&self) -> bool {
        self.held.load(Ordering::SeqCst) == 0
    }

    /// Waits while the calls that are not answered take as much memory as this: the GPU has not reached them, or the client does not read the
    /// answers. If the GPU waits for the job, its answer may lie behind the next call: then false after some time without an answer.
    pub(super) fn wait_for_room(&self, limit: u64, timeout: Duration, awaits_job: impl Fn() -> bool) -> bool {
        let held = || self.held.load(Ordering::Relaxed);
        let (mut last, mut since) = (held(), Instant::now());
        while self.bytes.load(Ordering::Relaxed) >= limit {
            self.wake();
            std::thread::sleep(Duration::from_millis(1));
            if held() != last || !awaits_job() {
                (last, since) = (held(), Instant::now());
            }
            if since.elapsed() > timeout {
                return false;
            }
        }
        true
    }

    /// Adds a call. Only the thread that applies calls may do so, which defines their order. It must then
    /// [poll](Completion::poll_while) or [wake](Completion::wake) the polling thread.
    pub(super) fn add(&self, item: Item<T>) {
        self.held.fetch_add(1, Ordering::SeqCst);
        self.bytes.fetch_add(item.bytes, Ordering::Relaxed);
        lock(&self.fresh).push_back(item);
    }

    /// Wakes the thread if there are calls to poll.
    pub(super) fn wake(&self) {
        if !self.is_empty() && self.asleep.swap(false, Ordering::SeqCst) {
            // A thread that is about to sleep holds the lock until it does.
            let _fresh = lock(&self.fresh);
            self.arrived.notify_one();
        }
    }

    /// Polls and answers while `idle` returns true and calls are pending, for as long as a thread [spins](spin_time); the thread does the
    /// rest. With a shorter time, a chain of host functions that the job answers a little later wakes the thread at each of them, which
    /// takes longer than what is waited for.
    /// Does nothing if the thread is polling already.
    pub(super) fn poll_while<P: Place<Pending = T>>(
        &self,
        place: &P,
        answer: impl Fn(&Item<T>, Code),
        mut idle: impl FnMut() -> bool,
    ) {
        let mut spinning = Spinning::begin();
        while !self.is_empty() && idle() {
            // Who holds the lock has either polled what was added before, or sees it when it wakes the thread.
            fence(Ordering::SeqCst);
            let Ok(mut list) = self.polling.try_lock() else { return };
            list.append(&mut lock(&self.fresh));
            if self.poll(place, &mut list, &answer) {
                spinning.found();
            }
            drop(list);
            fence(Ordering::SeqCst);
            if !spinning.goes_on(Pause::Keep(1), spin_time()) {
                break;
            }
        }
        self.wake();
    }

    /// Runs `body` while no thread polls the place.
    pub(super) fn stop_while(&self, body: impl FnOnce()) {
        let _nobody = lock(&self.polling);
        body();
        // The place is no longer usable, so polling stays locked.
        std::mem::forget(_nobody);
    }

    /// Polls, and answers completed calls with `answer`. Never returns.
    pub(super) fn run<P: Place<Pending = T>>(&self, place: &P, answer: impl Fn(&Item<T>, Code)) {
        // SAFETY: affects only how late this thread's sleeps may end.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        let mut spinning = Spinning::begin();
        loop {
            if self.is_empty() {
                self.sleep();
                spinning = Spinning::begin();
            }
            let mut list = lock(&self.polling);
            list.append(&mut lock(&self.fresh));
            let done = self.poll(place, &mut list, &answer);
            drop(list);
            if done {
                spinning = Spinning::begin();
            } else if !spinning.goes_on(Pause::Yield, YIELD) {
                std::thread::sleep(if spinning.elapsed() < WHILE { NAP } else { LONG_NAP });
            }
        }
    }

    /// Sleeps until [`Completion::wake`] signals pending calls.
    fn sleep(&self) {
        let mut fresh = lock(&self.fresh);
        self.asleep.store(true, Ordering::SeqCst);
        // A thread that adds a call and then finds no sleeper has added it before this check.
        if !self.is_empty() {
            self.asleep.store(false, Ordering::SeqCst);
        }
        while self.asleep.load(Ordering::SeqCst) {
            fresh = wait(&self.arrived, fresh);
        }
    }

    /// Polls all calls once; returns whether any was answered.
    fn poll<P: Place<Pending = T>>(&self, place: &P, list: &mut VecDeque<Item<T>>, answer: &impl Fn(&Item<T>, Code)) -> bool {
        let mut poll = |pending: &mut T, reply: &mut Vec<u8>| place.poll(pending, reply);
        let mut tell = |item: &Item<T>, rc| {
            answer(item, rc);
            self.bytes.fetch_sub(item.bytes, Ordering::Relaxed);
            self.held.fetch_sub(1, Ordering::AcqRel);
        };
        let mut any = false;
        while let Some((k, rc)) = first_done(list, list.len(), &mut poll) {
            answer_in_order(list, k, rc, &mut poll, &mut tell);
            any = true;
        }
        any
    }
}

/// Polls whether the GPU has reached a call.
type Poll<'a, T> = &'a mut dyn FnMut(&mut T, &mut Vec<u8>) -> Option<Code>;

/// Answers call `k`, and before it every earlier one that is complete by now. Returns the number of calls answered,
/// which is the number removed from the list; one poll can find more of them than the poll before.
fn answer_in_order<T>(
    list: &mut VecDeque<Item<T>>,
    mut k: usize,
    rc: Code,
    poll: Poll<'_, T>,
    answer: &mut dyn FnMut(&Item<T>, Code),
) -> usize {
    let mut answered = 1;
    while let Some((earlier, rc)) = first_done(list, k, poll) {
        let n = answer_in_order(list, earlier, rc, poll, answer);
        k -= n;
        answered += n;
    }
    if let Some(item) = list.remove(k) {
        answer(&item, rc);
    }
    answered
}

/// The first of the first `n` calls that is complete, with its result.
fn first_done<T>(list: &mut VecDeque<Item<T>>, n: usize, poll: Poll<'_, T>) -> Option<(usize, Code)> {
    list.iter_mut().take(n).enumerate().find_map(|(i, item)| {
        let rc = match &mut item.outcome {
            Outcome::Done(rc) => Some(*rc),
            Outcome::Pending(p) => poll(p, &mut item.reply),
        }?;
        // A call that was seen as complete is not polled again.
        item.outcome = Outcome::Done(rc);
        Some((i, rc))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_api::code;

    /// Calls on several streams that complete while they are being polled: whatever the timing, each is answered once,
    /// with its own bytes, and not before an earlier one of its stream.
    #[test]
    fn each_call_gets_its_own_answer_in_the_order_of_its_stream() {
        let mut random = 1u64;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for _ in 0..5000 {
            let n = 2 + next(9);
            let (mut ends, mut streams, mut at) = (Vec::new(), Vec::new(), [0; 3]);
            for _ in 0..n {
                let stream = next(3);
                at[stream as usize] += next(12);
                ends.push(at[stream as usize]);
                streams.push(stream);
            }
            let item = |i: u64| Item::new(i + 1, 0, Vec::new(), Outcome::Pending(i));
            let mut list: VecDeque<Item<u64>> = (0..n).map(item).collect();
            let mut now = 0;
            let mut answered = Vec::new();
            while !list.is_empty() {
                let mut poll = |i: &mut u64, reply: &mut Vec<u8>| {
                    now += 1;
                    (ends[*i as usize] <= now).then(|| {
                        reply.push(*i as u8);
                        code::SUCCESS
                    })
                };
                let mut answer = |item: &Item<u64>, _| {
                    assert_eq!(item.reply, [item.ticket as u8 - 1], "an answer with its own bytes, once");
                    answered.push(item.ticket);
                };
                let all = list.len();
                if let Some((k, rc)) = first_done(&mut list, all, &mut poll) {
                    answer_in_order(&mut list, k, rc, &mut poll, &mut answer);
                }
            }
            assert_eq!(answered.len() as u64, n);
            for stream in 0..3 {
                let own: Vec<u64> = answered.iter().copied().filter(|t| streams[*t as usize - 1] == stream).collect();
                assert!(own.is_sorted(), "{answered:?} for ends {ends:?} on {streams:?}");
            }
        }
    }

    #[test]
    fn calls_without_answers_wait_for_room_and_no_longer_than_a_job_that_is_waited_for() {
        let calls = Completion::<u64>::default();
        let item = |ticket| Item::new(ticket, 0, vec![0; 1000], Outcome::Pending(ticket));
        (0..4).for_each(|ticket| calls.add(item(ticket)));
        let most = calls.bytes.load(Ordering::Relaxed);
        assert!((4000..8000).contains(&most), "{most}");
        let soon = Duration::from_millis(20);
        assert!(calls.wait_for_room(most + 1, soon, || true), "there is room");
        assert!(!calls.wait_for_room(most, soon, || true), "the job may have to answer something first");
        // Otherwise it waits until one is answered, however long that takes.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| calls.wait_for_room(most, soon, || false));
            std::thread::sleep(10 * soon);
            assert!(!waits.is_finished());
            calls.bytes.fetch_sub(1000, Ordering::Relaxed);
            assert!(waits.join().unwrap());
        });
    }
}
