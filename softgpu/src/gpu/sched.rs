//! Queues of work and the threads that run them.
//!
//! Each stream is a queue. A piece of work may start when its predecessor in the queue and all its dependencies have
//! completed, and its random delay is over; among those that may start, one is selected at random. With seed 0 there
//! are no delays and the oldest one starts. A device runs a few kernels at once ([`KERNELS_AT_ONCE`]), and one copy in each
//! direction between it and the host ([`engines`](super::engines)); other work is not limited, so host functions and kernels
//! that wait for each other make progress.
//!
//! One of the idle threads is the watcher: it sleeps until the next delay is over, the others until they are woken. A
//! thread that takes work makes sure that there is a watcher. So there are as many threads as pieces of work that
//! really run concurrently, and one more, however many streams have work.

use super::device;
use super::engines::Engine;
use super::live::Live;
use super::lock;
use super::mark::Mark;
use crate::config;
use crate::result::Res;
use cuda_api::lock::{self, wait_timeout};
use cuda_api::sys::CUdevice;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Kernels that one device runs at the same time.
pub(crate) const KERNELS_AT_ONCE: usize = 16;
/// Maximum number of threads; beyond it, ready queues wait for a free thread.
const MAX_WORKERS: usize = 256;
/// Idle timeout of a thread.
const IDLE: Duration = Duration::from_secs(2);
/// Poll interval for conditions on memory.
const POLL: Duration = Duration::from_micros(50);

/// A condition that becomes true over time and is polled.
pub(crate) type Condition = Box<dyn Fn(&Live) -> Res<bool> + Send>;

/// The action of a piece of work.
pub(crate) enum Work {
    /// Nothing: only the mark matters (events, waits for events).
    Nothing,
    /// A copy or a host function. It is skipped if the context has failed.
    Run(Box<dyn FnOnce(&Live) -> Res + Send>),
    /// As `Run`: a copy by one of the device's engines.
    Copy(Engine, Box<dyn FnOnce(&Live) -> Res + Send>),
    /// As `Run`, and counts as one of the device's running kernels.
    Kernel(Box<dyn FnOnce(&Live) -> Res + Send>),
    /// As `Run`, but also in a failed context: a callback gets the error.
    Always(Box<dyn FnOnce(&Live) -> Res + Send>),
    /// Completes when the condition is true or fails.
    Until(Condition),
}

struct Op {
    work: Work,
    after: Vec<Arc<Mark>>,
    not_before: Instant,
    mark: Arc<Mark>,
    live: Arc<Live>,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    busy: bool,
}

struct State {
    /// Queues with queued or running work, by stream number (in creation order).
    queues: BTreeMap<u64, Queue>,
    workers: usize,
    /// Number of idle threads, without the watcher.
    idle: usize,
    /// Whether a thread is the watcher.
    watched: bool,
    /// A thread was woken to become the watcher.
    called: bool,
    random: u64,
}

struct Scheduler {
    state: Mutex<State>,
    /// Wakes the watcher: work may be ready earlier than expected.
    watch: Condvar,
    /// Wakes an idle thread to become the watcher.
    work: Condvar,
    /// Signals the completion of work.
    ended: Condvar,
    /// Threads that have done their work and wait for the lock to look for more.
    returning: AtomicUsize,
}

fn scheduler() -> &'static Scheduler {
    static ONE: OnceLock<Scheduler> = OnceLock::new();
    ONE.get_or_init(|| Scheduler {
        state: Mutex::new(State {
            queues: BTreeMap::new(),
            workers: 0,
            idle: 0,
            watched: false,
            called: false,
            random: config::get().seed | 1 << 63,
        }),
        watch: Condvar::new(),
        work: Condvar::new(),
        ended: Condvar::new(),
        returning: AtomicUsize::new(0),
    })
}

/// Nanoseconds since the driver was first used.
pub(crate) fn clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Exclusive right to add work; while it is held there is no other submission, so that dependencies on "all that was
/// submitted before" are exact.
pub(crate) struct Submission<'a>(MutexGuard<'a, State>);

/// Begins a submission.
pub(crate) fn submit<'a>() -> Submission<'a> {
    Submission(lock(&scheduler().state))
}

impl Submission<'_> {
    /// Adds work to the queue of stream number `queue`; returns the mark of its completion.
    pub fn push(&mut self, queue: u64, live: &Arc<Live>, work: Work, mut after: Vec<Arc<Mark>>) -> Arc<Mark> {
        after.retain(|mark| !mark.done());
        let mark = Arc::new(Mark::default());
        let delay = self.0.delay();
        let op = Op { work, after, not_before: Instant::now() + delay, mark: mark.clone(), live: live.clone() };
        self.0.queues.entry(queue).or_default().ops.push_back(op);
        self.0.look_again();
        mark
    }
}

impl Queue {
    /// The next piece of work, if it is a copy by an engine: the device's number and the engine.
    fn copy(&self) -> Option<(CUdevice, Engine)> {
        match self.ops.front()? {
            Op { work: Work::Copy(engine, _), live, .. } => Some((live.device.ordinal, *engine)),
            _ => None,
        }
    }

    /// Whether an engine that has made a copy goes on with another one of this queue: what is before that must be over.
    fn keeps(&self, engine: Engine) -> bool {
        for op in &self.ops {
            if !op.after.iter().all(|mark| mark.done()) {
                return false;
            }
            match op.work {
                Work::Nothing => {}
                Work::Copy(e, _) => return e == engine,
                _ => return false,
            }
        }
        false
    }
}

impl State {
    fn next_random(&mut self) -> u64 {
        // xorshift64: any sequence will do that differs by seed.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn delay(&mut self) -> Duration {
        let config = config::get();
        if config.seed == 0 || config.max_delay_us == 0 {
            return Duration::ZERO;
        }
        let random = self.next_random();
        // Every other piece of work starts at once, so that both orders of two streams are common.
        if random & 1 == 0 { Duration::ZERO } else { Duration::from_micros((random >> 1) % config.max_delay_us) }
    }

    /// Makes the thread on watch look; if there is none, an idle or a new one takes the watch. Beyond the limit the next
    /// thread that has ended its work does.
    fn look_again(&mut self) {
        if self.watched {
            scheduler().watch.notify_one();
        } else if self.called || scheduler().returning.load(Ordering::Relaxed) > 0 {
            // A thread that is arriving will check the queues.
        } else if self.idle > 0 {
            scheduler().work.notify_one();
            self.called = true;
        } else if self.workers < MAX_WORKERS {
            self.called = self.spawn();
        }
    }

    /// With no thread at all the work waits for the next submission.
    fn spawn(&mut self) -> bool {
        let started = std::thread::Builder::new().name("softgpu".into()).spawn(worker).is_ok();
        self.workers += usize::from(started);
        started
    }

    /// Stream number of a queue whose first piece of work may start now, or how long it takes until some may.
    fn pick(&mut self) -> Result<u64, Duration> {
        let now = Instant::now();
        let mut ready = Vec::new();
        let mut again = IDLE;
        for (number, queue) in &self.queues {
            let Some(op) = queue.ops.front().filter(|_| !queue.busy) else {
                continue;
            };
            if !op.after.iter().all(|mark| mark.done()) {
                continue;
            }
            if op.not_before > now && !op.live.cancelled() {
                again = again.min(op.not_before - now);
                continue;
            }
            match &op.work {
                Work::Kernel(_) if op.live.device.running.load(Ordering::Relaxed) >= KERNELS_AT_ONCE => {
                    continue;
                }
                Work::Copy(engine, _) if !op.live.device.engines.is_free(*engine, *number) => {
                    continue;
                }
                Work::Until(condition)
                    if op.live.error().is_none() && !op.live.cancelled() && matches!(condition(&op.live), Ok(false)) =>
                {
                    again = again.min(POLL);
                    continue;
                }
                _ => ready.push(*number),
            }
        }
        let copies: Vec<_> = ready.iter().filter_map(|number| Some((*number, self.queues.get(number)?.copy()?))).collect();
        for (number, copy) in &copies {
            let yields = device::all().iter().any(|d| d.ordinal == copy.0 && d.engines.yields(copy.1, *number));
            if yields && copies.iter().any(|(n, c)| n != number && c == copy) {
                ready.retain(|n| n != number);
            }
        }
        if ready.is_empty() {
            return Err(again);
        }
        let index = if config::get().seed == 0 { 0 } else { self.next_random() as usize % ready.len() };
        Ok(ready[index])
    }
}

fn worker() {
    let scheduler = scheduler();
    let mut state = lock(&scheduler.state);
    state.called = false;
    loop {
        let number = match state.pick() {
            Ok(number) => number,
            Err(again) if state.watched => {
                if again < IDLE {
                    // What was waited for has ended, and a delay begins that the thread on watch did not know of.
                    scheduler.watch.notify_one();
                }
                state.idle += 1;
                let (guard, timeout) = wait_timeout(&scheduler.work, state, IDLE);
                state = guard;
                state.idle -= 1;
                state.called = false;
                // It may have been called just then.
                if timeout.timed_out() && state.watched {
                    state.workers -= 1;
                    return;
                }
                continue;
            }
            Err(again) => {
                state.watched = true;
                let (guard, timeout) = wait_timeout(&scheduler.watch, state, again);
                state = guard;
                state.watched = false;
                if timeout.timed_out() && again == IDLE && state.queues.is_empty() {
                    state.workers -= 1;
                    return;
                }
                continue;
            }
        };
        let Some(queue) = state.queues.get_mut(&number) else {
            continue;
        };
        let Some(op) = queue.ops.pop_front() else {
            continue;
        };
        queue.busy = true;
        let kernel = matches!(op.work, Work::Kernel(_));
        let engine = if let Work::Copy(engine, _) = op.work { Some(engine) } else { None };
        if let Some(engine) = engine {
            op.live.device.engines.begin(engine, number);
        }
        let running: &AtomicUsize = &op.live.device.running;
        if kernel {
            running.fetch_add(1, Ordering::Relaxed);
        }
        // More may be ready now, or soon.
        if state.queues.values().any(|queue| !queue.busy) {
            state.look_again();
        }
        drop(state);
        perform(op.work, &op.live);
        scheduler.returning.fetch_add(1, Ordering::Relaxed);
        state = lock(&scheduler.state);
        scheduler.returning.fetch_sub(1, Ordering::Relaxed);
        if kernel {
            running.fetch_sub(1, Ordering::Relaxed);
        }
        op.mark.complete(clock());
        if let Some(engine) = engine {
            let keeps = state.queues.get(&number).is_some_and(|queue| queue.keeps(engine));
            op.live.device.engines.end(engine, number, keeps);
        }
        if let Some(queue) = state.queues.get_mut(&number) {
            queue.busy = false;
            if queue.ops.is_empty() {
                state.queues.remove(&number);
            }
        }
        // What may start now is picked by this thread, which calls another if it may be more than one.
        scheduler.ended.notify_all();
        // The context may end with its last piece of work, which takes locks of its own.
        scheduler.returning.fetch_add(1, Ordering::Relaxed);
        drop(state);
        drop(op.live);
        state = lock(&scheduler.state);
        scheduler.returning.fetch_sub(1, Ordering::Relaxed);
    }
}

fn perform(work: Work, live: &Live) {
    let failed = live.error().is_some() || live.cancelled();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match work {
        Work::Nothing | Work::Until(_) => Ok(()),
        Work::Run(f) | Work::Copy(_, f) | Work::Kernel(f) => {
            if failed {
                Ok(())
            } else {
                f(live)
            }
        }
        Work::Always(f) => f(live),
    }));
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(code)) => live.fail(code),
        Err(_) => live.fail(cuda_api::sys::CUresult::CUDA_ERROR_UNKNOWN),
    }
}

/// Waits until every mark has completed.
pub(crate) fn wait(marks: &[Arc<Mark>]) {
    if marks.iter().all(|mark| mark.done()) {
        return;
    }
    let scheduler = scheduler();
    let mut state = lock(&scheduler.state);
    while !marks.iter().all(|mark| mark.done()) {
        state = lock::wait(&scheduler.ended, state);
    }
}

/// Wakes the thread on watch, after a cancellation has made delays and conditions void.
pub(crate) fn wake() {
    scheduler().watch.notify_all();
}
