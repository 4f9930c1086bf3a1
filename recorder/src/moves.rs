//! The moves of this job: who asked for which, what they are doing, and how one gives them up.
//!
//! Requests come from the control socket and the signal; one thread carries them out, one after the other. What is told of a
//! move lies here, apart from the mover: neither a list nor a report waits for a place.

use crate::job::{Device, Job};
use crate::log::{self, lock};
use crate::place::Spec;
use crate::{control, internal_error, mover};
use ::control::{ErrorCode, Event, EventKind, Leg, Migrate, Move, MoveState, Refusal};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Moves that are over and can still be asked about.
const KEPT: usize = 1000;
/// Moves that may wait.
const WAITING: usize = 16;
/// Events that a slow reader can be behind.
const EVENTS: usize = 1024;
/// Between two looks at whether a move was given up, while something else is waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// Why a move is to be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stop {
    /// Someone asked for it.
    Cancelled = 1,
    /// It took too long.
    Deadline = 2,
    /// The calls were held up for too long.
    Downtime = 3,
    /// The program ends.
    Ending = 4,
}

/// Limits of a move and what they are measured against.
#[derive(Debug, Default)]
struct Clock {
    /// Since when calls are held up.
    held: Option<Instant>,
    over: bool,
}

type Stopper = Box<dyn Fn() + Send>;

/// A move that was asked for, as the mover sees it: what it tells of its progress, and whether it should go on.
pub(crate) struct Task {
    id: String,
    wanted: Migrate,
    devices: Vec<u32>,
    to: Vec<Spec>,
    asked: Instant,
    stop: AtomicU8,
    /// What makes the mover's waits end at once.
    stoppers: Mutex<Vec<Stopper>>,
    clock: Mutex<Clock>,
    tick: Condvar,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("id", &self.id).field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

/// A move and what is told of it.
#[derive(Debug)]
struct Entry {
    task: Arc<Task>,
    it: Move,
    begun: Option<Instant>,
}

impl Entry {
    fn told(&self) -> Move {
        let mut it = self.it.clone();
        if let (Some(begun), false) = (self.begun, it.state.is_over()) {
            it.total_ms = begun.elapsed().as_secs_f64() * 1e3;
        }
        it
    }
}

/// All moves, the oldest first.
#[derive(Debug)]
struct Registry {
    entries: VecDeque<Entry>,
    /// Moves that were asked for so far.
    count: u64,
    /// Whether a thread carries moves out.
    mover: bool,
    /// Whether the program ends: it does not move any more.
    closed: bool,
    events: VecDeque<Event>,
    seq: u64,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { entries: VecDeque::new(), count: 0, mover: false, closed: false, events: VecDeque::new(), seq: 0 });
static CHANGED: Condvar = Condvar::new();

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    fn find(&mut self, id: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().rev().find(|e| e.task.id == id)
    }

    /// The move that is being carried out.
    fn running(&self) -> Option<&Entry> {
        self.entries.iter().find(|e| matches!(e.it.state, MoveState::Running | MoveState::Stopping | MoveState::Committed))
    }

    fn queued(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|e| e.it.state == MoveState::Queued)
    }

    /// Changes what is told of a move, and tells whoever listens.
    fn change(&mut self, id: &str, event: Option<EventKind>, change: impl FnOnce(&mut Move)) {
        let Some(entry) = self.find(id) else { return };
        change(&mut entry.it);
        entry.it.sum_up();
        let it = entry.told();
        if let Some(event) = event {
            self.seq += 1;
            self.events.push_back(Event { seq: self.seq, event, it });
            if self.events.len() > EVENTS {
                self.events.pop_front();
            }
        }
        CHANGED.notify_all();
    }

    fn end(&mut self, id: &str, state: MoveState, reason: Option<String>) {
        self.change(id, Some(EventKind::Ended), |it| {
            it.state = state;
            it.ok = state == MoveState::Done;
            it.phase = None;
            it.reason = reason;
        });
        let over = self.entries.iter().filter(|e| e.it.state.is_over()).count();
        if over > KEPT
            && let Some(oldest) = self.entries.iter().position(|e| e.it.state.is_over())
        {
            self.entries.remove(oldest);
        }
    }
}

impl Task {
    /// The devices that move, each with where it goes.
    pub(crate) fn targets<'a>(&'a self, job: &'static Job) -> impl Iterator<Item = (&'static Device, Spec)> + 'a {
        self.devices.iter().zip(&self.to).filter_map(|(d, to)| Some((job.devices.get(*d as usize)?, to.clone())))
    }

    /// How the copy is proved to be identical.
    pub(crate) fn verify(&self) -> memsync::Verify {
        match self.wanted.verify {
            ::control::Verify::Auto => memsync::Verify::Auto,
            ::control::Verify::Hash => memsync::Verify::Hash,
            ::control::Verify::Bytes => memsync::Verify::Bytes,
        }
    }

    fn stopped(&self) -> Option<Stop> {
        match self.stop.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Stop::Cancelled),
            2 => Some(Stop::Deadline),
            3 => Some(Stop::Downtime),
            _ => Some(Stop::Ending),
        }
    }

    /// Whether the move should go on; the error ends it.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.stopped().map_or(Ok(()), |_| Err("the move was abandoned".to_owned()))
    }

    /// Calls `stopper` from another thread when the move was abandoned: it makes something end that the mover waits for.
    pub(crate) fn on_stop(&self, stopper: impl Fn() + Send + 'static) -> Result<(), String> {
        lock(&self.stoppers).push(Box::new(stopper));
        // One that was given up before this has not called it.
        self.check()
    }

    /// Does something on a thread of its own that may wait long and cannot be made to end. If the move was abandoned meanwhile,
    /// the result is dropped when it comes.
    pub(crate) fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        // Without a limit it always ends.
        self.apart_within(None, work).unwrap_or_else(|| Err("the move was abandoned".to_owned()))
    }

    /// As [`Task::apart`]; nothing if it takes longer than the limit.
    pub(crate) fn apart_within<T: Send + 'static>(
        &self,
        limit: Option<Duration>,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Option<Result<T, String>> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        if let Err(e) = control::spawn("mrcuda-apart", move || drop(tell.send(work()))) {
            return Some(Err(format!("cannot start a thread: {e}")));
        }
        let since = Instant::now();
        loop {
            match told.recv_timeout(POLL_INTERVAL) {
                Ok(result) => return Some(result),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => match self.check() {
                    Ok(()) if limit.is_some_and(|limit| since.elapsed() > limit) => return None,
                    Ok(()) => {}
                    Err(why) => return Some(Err(why)),
                },
                Err(_) => return Some(Err("a thread of the move failed".to_owned())),
            }
        }
    }

    /// A phase begins.
    pub(crate) fn phase(&self, name: &str) -> Result<(), String> {
        self.check()?;
        let mut registry = lock(&REGISTRY);
        // Of several devices the first one to get there counts.
        if registry.find(&self.id).is_some_and(|e| e.it.phase.as_deref() != Some(name)) {
            registry.change(&self.id, Some(EventKind::Phase), |it| it.phase = Some(name.to_owned()));
        }
        Ok(())
    }

    /// Changes what is told of the whole move.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Move)) {
        lock(&REGISTRY).change(&self.id, None, change);
    }

    /// Replaces what is told of one GPU.
    pub(crate) fn tell(&self, leg: &Leg, event: Option<EventKind>) {
        lock(&REGISTRY).change(&self.id, event, |it| {
            if let Some(told) = it.legs.iter_mut().find(|l| l.gpu == leg.gpu) {
                told.clone_from(leg);
            }
        });
    }

    /// The longest time that calls may wait for the GPU in one attempt: half of what they may be held up, so that the other
    /// half is left for the copy.
    pub(crate) fn patience(&self, limit: Duration) -> Duration {
        self.wanted.max_downtime_ms.map_or(limit, |ms| limit.min(Duration::from_millis(ms) / 2))
    }

    /// From now on calls are held up.
    pub(crate) fn hold(&self) {
        lock(&self.clock).held = Some(Instant::now());
        self.tick.notify_all();
    }

    /// Calls go on.
    pub(crate) fn release(&self) {
        let Some(since) = lock(&self.clock).held.take() else { return };
        let held_ms = since.elapsed().as_secs_f64() * 1e3;
        self.note(|it| it.downtime_ms = it.downtime_ms.max(held_ms));
    }

    /// The last moment to give the move up has come: after success it is carried to its end.
    pub(crate) fn commit(&self) -> Result<(), String> {
        let mut registry = lock(&REGISTRY);
        self.check()?;
        registry.change(&self.id, Some(EventKind::Committed), |it| it.state = MoveState::Committed);
        Ok(())
    }

    /// Gives the move up, unless it is too late for that.
    fn give_up(&self, why: Stop) -> Result<(), Refusal> {
        {
            let mut registry = lock(&REGISTRY);
            let Some(entry) = registry.find(&self.id) else { return Err(no_such(&self.id)) };
            match entry.it.state {
                MoveState::Queued => {
                    let (state, reason) = self.outcome(why, None);
                    registry.end(&self.id, state, Some(reason));
                    return Ok(());
                }
                MoveState::Running => {
                    self.stop.store(why as u8, Ordering::Release);
                    registry.change(&self.id, Some(EventKind::Stopping), |it| it.state = MoveState::Stopping);
                }
                // For another reason, which counts.
                MoveState::Stopping => return Ok(()),
                MoveState::Committed => {
                    let why = format!("too late: move {} has been committed, the job is at {}", self.id, self.wanted.to);
                    return Err(Refusal::about(ErrorCode::TooLate, &self.id, why));
                }
                over => {
                    let how = match over {
                        MoveState::Done => "has succeeded",
                        MoveState::Cancelled => "was cancelled",
                        _ => "has failed",
                    };
                    let why = format!("too late: move {} {how} already", self.id);
                    return Err(Refusal::about(ErrorCode::TooLate, &self.id, why));
                }
            }
        }
        lock(&self.stoppers).iter().for_each(|stop| stop());
        Ok(())
    }

    fn outcome(&self, why: Stop, phase: Option<&str>) -> (MoveState, String) {
        let at = phase.map_or_else(|| "before it began".to_owned(), |p| format!("in the phase {p}"));
        let ms = |limit: Option<u64>| limit.unwrap_or_default();
        match why {
            Stop::Cancelled => (MoveState::Cancelled, format!("cancelled {at}")),
            Stop::Ending => (MoveState::Cancelled, format!("cancelled {at}: the program ends")),
            Stop::Deadline => {
                let limit = ms(self.wanted.deadline_ms);
                (MoveState::Failed, format!("abandoned {at}: not committed within {limit} ms of the request (the deadline)"))
            }
            Stop::Downtime => {
                let limit = ms(self.wanted.max_downtime_ms);
                (MoveState::Failed, format!("abandoned {at}: calls waited for {limit} ms (the longest downtime allowed)"))
            }
        }
    }

    /// Watches the limits until the move is over.
    fn watch(&self) {
        let deadline = self.wanted.deadline_ms.map(Duration::from_millis);
        let downtime = self.wanted.max_downtime_ms.map(Duration::from_millis);
        let mut clock = lock(&self.clock);
        while !clock.over {
            let left = |limit: Duration, since: Instant| limit.saturating_sub(since.elapsed());
            let limits = [
                deadline.map(|limit| (left(limit, self.asked), Stop::Deadline)),
                downtime.zip(clock.held).map(|(limit, since)| (left(limit, since), Stop::Downtime)),
            ];
            clock = match limits.into_iter().flatten().min_by_key(|(left, _)| *left) {
                None => wait(&self.tick, clock),
                Some((left, why)) if left.is_zero() => {
                    drop(clock);
                    // One that is committed has kept its limits.
                    let _ = self.give_up(why);
                    return;
                }
                Some((left, _)) => self.tick.wait_timeout(clock, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    fn run(&self, job: &'static Job) {
        let begun = Instant::now();
        // A mover that failed has opened the gate on its way out; the next move must find a thread that carries it out.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| mover::run(job, self)))
            .unwrap_or_else(|_| Err(internal_error::blocker().unwrap_or_default()));
        self.release();
        {
            let mut clock = lock(&self.clock);
            clock.over = true;
            self.tick.notify_all();
        }
        lock(&self.stoppers).clear();
        let total_ms = begun.elapsed().as_secs_f64() * 1e3;
        let told = {
            let mut registry = lock(&REGISTRY);
            let phase = registry.find(&self.id).and_then(|e| e.it.phase.clone());
            registry.change(&self.id, None, |it| it.total_ms = total_ms);
            let (state, reason) = match (result, self.stopped()) {
                (Ok(()), _) => (MoveState::Done, None),
                (Err(_), Some(why)) => {
                    let (state, reason) = self.outcome(why, phase.as_deref());
                    (state, Some(reason))
                }
                (Err(why), None) => (MoveState::Failed, Some(why)),
            };
            registry.end(&self.id, state, reason);
            registry.find(&self.id).map(|e| e.told())
        };
        let Some(told) = told else { return };
        if let (MoveState::Failed, Some(why)) = (told.state, &told.reason) {
            for leg in &told.legs {
                log::tell(&format!("GPU {} stays at {}: {why}", leg.gpu, leg.from));
            }
        }
        log::trace(|| format!("move: {}", ::control::Answer::Move(told).line().trim_end()));
    }
}

fn no_such(id: &str) -> Refusal {
    Refusal::about(ErrorCode::NoSuchMove, id, format!("this job knows no move {id} (mrcuda moves lists them)"))
}

/// A place for each of `n` devices: one for all, or a list.
pub(crate) fn targets(to: &str, n: usize) -> Result<Vec<Spec>, String> {
    let list = to.split(',').map(str::parse).collect::<Result<Vec<Spec>, String>>()?;
    match list.len() {
        1 => Ok(vec![list[0].clone(); n]),
        m if m == n => Ok(list),
        m => Err(format!(
            "{m} places were named, and {n} of this job's GPUs would move: name one place for all of them, or one for each"
        )),
    }
}

/// The devices that a request means, and where they are to go.
pub(crate) fn understand(job: &'static Job, gpu: Option<u32>, to: &str) -> Result<(Vec<&'static Device>, Vec<Spec>), Refusal> {
    let devices: Vec<&'static Device> = match gpu {
        Some(n) => vec![job.devices.get(n as usize).ok_or_else(|| {
            let last = job.devices.len().saturating_sub(1);
            Refusal::new(ErrorCode::NoSuchGpu, format!("there is no GPU {n}: the last one of this job is GPU {last}"))
        })?],
        None => job.devices.iter().collect(),
    };
    let specs = targets(to, devices.len()).map_err(|why| Refusal::new(ErrorCode::BadPlace, why))?;
    Ok((devices, specs))
}

/// Takes a move on; it is carried out by a thread of its own. Gives its id.
pub(crate) fn request(job: &'static Job, wanted: Migrate, by: &str) -> Result<String, Refusal> {
    let (devices, to) = understand(job, wanted.gpu, &wanted.to)?;
    let legs = devices.iter().zip(&to).map(|(device, to)| Leg {
        gpu: device.index,
        from: device.whereabouts().place,
        to: to.to_string(),
        ..Leg::default()
    });
    let legs: Vec<Leg> = legs.collect();
    let mut registry = lock(&REGISTRY);
    if registry.closed {
        return Err(Refusal::new(ErrorCode::TooLate, "too late: the program ends"));
    }
    if let Some(id) = &wanted.id
        && registry.find(id).is_some()
    {
        let why = format!("this job has a move {id} already (mrcuda moves shows what became of it)");
        return Err(Refusal::about(ErrorCode::DuplicateId, id, why));
    }
    let waiting = registry.queued().count();
    let ahead = registry.running().or_else(|| registry.queued().next()).map(|e| e.task.id.clone());
    match ahead {
        Some(id) if !wanted.queue => {
            let why = format!("move {id} is under way: wait for it, cancel it, or ask to be queued behind it");
            return Err(Refusal::about(ErrorCode::Busy, &id, why));
        }
        Some(id) if waiting >= WAITING => {
            return Err(Refusal::about(ErrorCode::Busy, &id, format!("{waiting} moves are waiting already")));
        }
        _ => {}
    }
    registry.count += 1;
    let id = match &wanted.id {
        Some(id) => id.clone(),
        None => {
            // One that a requester has chosen may look like ours.
            let mut number = registry.count;
            while registry.find(&format!("m{number}")).is_some() {
                number += 1;
            }
            format!("m{number}")
        }
    };
    let task = Arc::new(Task {
        id: id.clone(),
        devices: devices.iter().map(|d| d.index).collect(),
        to,
        asked: Instant::now(),
        stop: AtomicU8::new(0),
        stoppers: Mutex::default(),
        clock: Mutex::default(),
        tick: Condvar::new(),
        wanted,
    });
    let it =
        Move { id: id.clone(), by: by.to_owned(), to: task.wanted.to.clone(), at_unix_ms: unix_ms(), legs, ..Move::default() };
    registry.entries.push_back(Entry { task: task.clone(), it, begun: None });
    registry.change(&id, Some(EventKind::Queued), |_| {});
    let needs_mover = !std::mem::replace(&mut registry.mover, true);
    drop(registry);
    let mut started = Ok(());
    if task.wanted.deadline_ms.is_some() || task.wanted.max_downtime_ms.is_some() {
        started = control::spawn("mrcuda-limits", move || task.watch());
    }
    if needs_mover {
        started = started.and_then(|()| control::spawn("mrcuda-mover", move || carry_out(job)));
        if started.is_err() {
            lock(&REGISTRY).mover = false;
        }
    }
    if let Err(e) = started {
        lock(&REGISTRY).end(&id, MoveState::Failed, Some(format!("cannot start a thread: {e}")));
    }
    Ok(id)
}

/// Carries out what was asked for, one move after the other.
fn carry_out(job: &'static Job) {
    loop {
        let task = {
            let mut registry = lock(&REGISTRY);
            let next = registry.entries.iter_mut().find(|e| e.it.state == MoveState::Queued);
            let Some(entry) = next else {
                registry.mover = false;
                CHANGED.notify_all();
                return;
            };
            entry.begun = Some(Instant::now());
            let task = entry.task.clone();
            registry.change(&task.id, Some(EventKind::Started), |it| {
                it.state = MoveState::Running;
                // Another move may have come between.
                for (leg, (device, _)) in it.legs.iter_mut().zip(task.targets(job)) {
                    leg.from = device.whereabouts().place;
                }
            });
            task
        };
        task.run(job);
    }
}

/// Waits until a move is over.
pub(crate) fn wait_for(id: &str) -> Result<Move, Refusal> {
    let mut registry = lock(&REGISTRY);
    loop {
        let told = registry.find(id).ok_or_else(|| no_such(id))?.told();
        if told.state.is_over() {
            return Ok(told);
        }
        registry = wait(&CHANGED, registry);
    }
}

/// Gives a move up, or the one that is under way, and waits until it is over.
pub(crate) fn cancel(id: Option<&str>) -> Result<Move, Refusal> {
    let task = {
        let mut registry = lock(&REGISTRY);
        match id {
            Some(id) => registry.find(id).ok_or_else(|| no_such(id))?.task.clone(),
            None => {
                let now = registry.running().or_else(|| registry.queued().next());
                now.ok_or_else(|| Refusal::new(ErrorCode::NoSuchMove, "no move is under way"))?.task.clone()
            }
        }
    };
    task.give_up(Stop::Cancelled)?;
    wait_for(&task.id)
}

/// Gives every move up that is not committed, takes none any more, and waits until nobody moves anything: a mover that loads a
/// driver, say, must not meet the destructors of a process that ends. No longer than `limit`.
pub(crate) fn close(limit: Duration) {
    let tasks: Vec<Arc<Task>> = {
        let mut registry = lock(&REGISTRY);
        registry.closed = true;
        registry.entries.iter().filter(|e| !e.it.state.is_over()).map(|e| e.task.clone()).collect()
    };
    for task in tasks {
        // One that is committed is waited for.
        let _ = task.give_up(Stop::Ending);
    }
    let registry = lock(&REGISTRY);
    drop(CHANGED.wait_timeout_while(registry, limit, |r| r.mover));
}

/// What one move did, or all of them.
pub(crate) fn report(id: Option<&str>) -> Result<Vec<Move>, Refusal> {
    let mut registry = lock(&REGISTRY);
    match id {
        Some(id) => Ok(vec![registry.find(id).ok_or_else(|| no_such(id))?.told()]),
        None => Ok(registry.entries.iter().map(Entry::told).collect()),
    }
}

/// The move that is under way with the devices it moves, and those that wait.
pub(crate) fn now() -> (Option<(String, Vec<u32>)>, Vec<String>) {
    let registry = lock(&REGISTRY);
    let running = registry.running().map(|e| (e.task.id.clone(), e.task.devices.clone()));
    (running, registry.queued().map(|e| e.task.id.clone()).collect())
}

/// Number of the last event.
pub(crate) fn last_event() -> u64 {
    lock(&REGISTRY).seq
}

/// Events after number `seen`; waits up to `limit` for one.
pub(crate) fn events_after(seen: u64, limit: Duration) -> Vec<Event> {
    let mut registry = lock(&REGISTRY);
    if registry.seq <= seen {
        registry = CHANGED.wait_timeout(registry, limit).unwrap_or_else(PoisonError::into_inner).0;
    }
    registry.events.iter().filter(|e| e.seq > seen).cloned().collect()
}
