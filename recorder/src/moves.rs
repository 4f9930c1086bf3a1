//! The moves of this job: who requested them, their progress, and their cancellation.
//!
//! Requests come from the control socket, the signal and servers that are ending; one thread carries them out one after the other. The reported state of moves is
//! kept here, apart from the mover, so that neither a list nor a report waits for a place.

use crate::base::log::lock;
use crate::base::spawn;
use crate::gate;
use crate::internal_error;
use crate::job::{Device, Job};
use crate::move_error::{Failure, Moment, MoveEnd, MoveError};
use ::control::{Event, EventKind, GpuMove, Migrate, Move, MoveState, TARGET_DOWNTIME, Trace};
use cuda_api::clock::unix_ms;
use cuda_api::lock::{wait, wait_timeout};
use rcuda_forwarder::PlaceSpec;
use serde_json::json;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tracing::Span;
use tracing::span::EnteredSpan;

mod history;
mod registry;
mod trace;

use registry::{CHANGED, Entry, Registry, Requested};
pub(crate) use trace::{Details, Track};

/// Maximum number of queued moves.
const WAITING: usize = 16;
/// Interval between two checks whether a move was abandoned, while waiting for something else.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Why a move is to be abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stop {
    /// A client requested it.
    Cancelled = 1,
    /// The move exceeded its deadline.
    Deadline = 2,
    /// Calls were held up for too long.
    Downtime = 3,
    /// The program is ending.
    Ending = 4,
}

impl Stop {
    /// The final state of a move that is abandoned for this reason.
    fn state(self) -> MoveState {
        match self {
            Stop::Cancelled | Stop::Ending => MoveState::Cancelled,
            Stop::Deadline | Stop::Downtime => MoveState::Failed,
        }
    }
}

/// Limits of a move and the times they apply to.
#[derive(Debug, Default)]
struct Clock {
    /// When the calls were held up; `None` while they are not.
    held: Option<Instant>,
    /// For how long they may be held up.
    longest: Duration,
    over: bool,
}

type Stopper = Box<dyn Fn() + Send>;

/// Carries out a move, and reports its progress to the task.
pub(crate) type Run = fn(&'static Job, &Task) -> Result<(), Failure>;

/// A requested move as the mover sees it: reports its progress and checks whether it should continue.
pub(crate) struct Task {
    id: String,
    wanted: Migrate,
    devices: Vec<u32>,
    /// Empty for a resume to where the job was: that is looked up when it is carried out.
    to: Vec<PlaceSpec>,
    /// Whether it is refused unless the job is parked when it is carried out.
    resumes: bool,
    /// Memory that the target must have beside what the device has.
    room: u64,
    /// Whether only a copy is made: the job goes on where it is.
    copies: bool,
    asked: Instant,
    stop: AtomicU8,
    /// Callbacks that interrupt the mover's waits, with the GPU whose part of the move waits.
    stoppers: Mutex<Vec<(u32, Stopper)>>,
    clock: Mutex<Clock>,
    tick: Condvar,
    /// The span of the move, while it is carried out.
    span: Mutex<Span>,
    /// Collects a trace, if the request asks for one.
    tracer: Option<trace::Tracer>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("id", &self.id).field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

static REGISTRY: Mutex<Registry<Task>> = Mutex::new(Registry::new());

impl Requested for Task {
    fn id(&self) -> &str {
        &self.id
    }

    fn is_copy(&self) -> bool {
        self.copies
    }
}

impl Task {
    /// The task of a plan: nothing is reported of it, and it is not abandoned.
    pub(crate) fn of_a_plan(allow_different: bool) -> Task {
        Task {
            id: String::new(),
            devices: Vec::new(),
            to: Vec::new(),
            resumes: false,
            room: 0,
            copies: false,
            asked: Instant::now(),
            stop: AtomicU8::new(0),
            stoppers: Mutex::default(),
            clock: Mutex::default(),
            tick: Condvar::new(),
            span: Mutex::new(Span::none()),
            tracer: None,
            wanted: Migrate { allow_different, ..Migrate::to("") },
        }
    }

    /// Adds something to the trace that has taken from `since` until now.
    pub(crate) fn trace(&self, track: Track, name: &str, since: Instant, details: Details<'_>) {
        self.tracer.iter().for_each(|tracer| tracer.span(track, name, since, details));
    }

    /// Adds the value of a figure to the trace.
    pub(crate) fn trace_figure(&self, track: Track, name: &str, value: u64) {
        self.tracer.iter().for_each(|tracer| tracer.figure(track, name, value));
    }

    /// The devices that move, each with its target.
    pub(crate) fn targets<'a>(&'a self, job: &'static Job) -> impl Iterator<Item = (&'static Device, PlaceSpec)> + 'a {
        self.devices.iter().zip(&self.to).filter_map(|(d, to)| Some((job.devices.get(*d as usize)?, to.clone())))
    }

    /// Whether it is a resume.
    pub(crate) fn resumes(&self) -> bool {
        self.resumes
    }

    /// Whether the job goes on where it is, and the target is to be a copy.
    pub(crate) fn copies(&self) -> bool {
        self.copies
    }

    /// How much memory the target must have beside what the device has.
    pub(crate) fn room(&self) -> u64 {
        self.room
    }

    /// Whether it is only of use while the job executes: it must not let a job go on that was parked since it was requested.
    pub(crate) fn is_for_a_running_job(&self) -> bool {
        self.copies || self.room > 0
    }

    /// Whether it is a resume that names no place.
    pub(crate) fn resumes_at_previous_place(&self) -> bool {
        self.resumes && self.to.is_empty()
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

    /// Lets time pass, unless the move is abandoned.
    pub(crate) fn rest(&self, time: Duration) -> Result<(), MoveError> {
        let since = Instant::now();
        while since.elapsed() < time {
            self.check()?;
            std::thread::sleep(POLL_INTERVAL.min(time.saturating_sub(since.elapsed())));
        }
        Ok(())
    }

    /// Checks whether the move should continue; an error ends it.
    pub(crate) fn check(&self) -> Result<(), MoveError> {
        self.stopped().map_or(Ok(()), |why| Err(self.abandoned(why, None)))
    }

    /// Whether it is a copy that is abandoned, as for the sake of a move: then its target stays and serves the next copy.
    pub(crate) fn gives_way(&self) -> bool {
        self.copies && self.stopped().is_some()
    }

    /// Registers `stopper`, which another thread calls when the move is abandoned, or another GPU's part of it has failed: it interrupts
    /// something that this GPU's part waits for.
    pub(crate) fn on_stop(&self, gpu: u32, stopper: impl Fn() + Send + 'static) -> Result<(), MoveError> {
        lock(&self.stoppers).push((gpu, Box::new(stopper)));
        // If the move was abandoned before the registration, the stopper was not called.
        self.check()
    }

    /// Interrupts what a GPU's part of the move waits for.
    pub(crate) fn interrupt(&self, gpu: u32) {
        lock(&self.stoppers).iter().filter(|(of, _)| *of == gpu).for_each(|(_, stop)| stop());
    }

    /// Runs work that may take long and cannot be interrupted on a separate thread. If the move is abandoned meanwhile, the result is
    /// dropped when it arrives.
    pub(crate) fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, MoveError> + Send + 'static,
    ) -> Result<T, MoveError> {
        // Without a limit a result always arrives.
        self.apart_within(None, work).unwrap_or_else(|| Err(internal_error::of_thread()))
    }

    /// As [`Task::apart`]; returns `None` if the work takes longer than the limit.
    pub(crate) fn apart_within<T: Send + 'static>(
        &self,
        limit: Option<Duration>,
        work: impl FnOnce() -> Result<T, MoveError> + Send + 'static,
    ) -> Option<Result<T, MoveError>> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        if let Err(error) = spawn::spawn("mrcuda-apart", move || drop(sender.send(work()))) {
            return Some(Err(MoveError::no_thread(error)));
        }
        let since = Instant::now();
        loop {
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok(result) => return Some(result),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => match self.check() {
                    Ok(()) if limit.is_some_and(|limit| since.elapsed() > limit) => return None,
                    Ok(()) => {}
                    Err(why) => return Some(Err(why)),
                },
                Err(_) => return Some(Err(internal_error::of_thread())),
            }
        }
    }

    /// A span for a phase of this move, of one GPU or of all. It is entered on the thread that carries out the phase.
    pub(crate) fn span(&self, phase: &str, gpu: Option<u32>) -> EnteredSpan {
        let whole = lock(&self.span).clone();
        match gpu {
            Some(gpu) => tracing::debug_span!(target: "migrate", parent: &whole, "phase", name = phase, gpu).entered(),
            None => tracing::debug_span!(target: "migrate", parent: &whole, "phase", name = phase).entered(),
        }
    }

    /// Reports the beginning of a phase.
    pub(crate) fn phase(&self, name: &str) -> Result<(), MoveError> {
        self.check()?;
        let mut registry = lock(&REGISTRY);
        // Of several devices, the first one to begin the phase counts.
        if registry.find(&self.id).is_some_and(|e| e.it.phase.as_deref() != Some(name)) {
            registry.change(&self.id, Some(EventKind::Phase), |it| it.phase = Some(name.to_owned()));
        }
        Ok(())
    }

    /// Changes the reported state of the whole move.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Move)) {
        lock(&REGISTRY).change(&self.id, None, change);
    }

    /// Replaces the reported state of one GPU.
    pub(crate) fn report_gpu(&self, gpu: &GpuMove, event: Option<EventKind>) {
        lock(&REGISTRY).change(&self.id, event, |it| {
            if let Some(report) = it.legs.iter_mut().find(|l| l.gpu == gpu.gpu) {
                report.clone_from(gpu);
            }
        });
    }

    /// Whether the target's driver and GPU may differ from those with which the job started.
    pub(crate) fn allow_different(&self) -> bool {
        self.wanted.allow_different
    }

    /// The downtime that the move aims at.
    fn target_downtime(&self) -> Duration {
        self.max_downtime().unwrap_or(TARGET_DOWNTIME)
    }

    /// The longest time for which calls may be held up, if the request limits it.
    pub(crate) fn max_downtime(&self) -> Option<Duration> {
        self.wanted.max_downtime_ms.map(Duration::from_millis)
    }

    /// How long after the request the move may be committed, if the request limits that.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.wanted.deadline_ms.map(Duration::from_millis)
    }

    /// For how long the mover goes on trying if the GPU does not become idle, if the request says so.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.wanted.patience_ms.map(Duration::from_millis)
    }

    /// Notes that calls are held up, the first one for so long already; for at most `limit` if the request does not say for how long they
    /// may be.
    pub(crate) fn hold(&self, already: Duration, limit: Duration) {
        let mut clock = lock(&self.clock);
        (clock.held, clock.longest) = (Instant::now().checked_sub(already), self.max_downtime().unwrap_or(limit));
        self.tick.notify_all();
    }

    /// Notes that calls continue.
    pub(crate) fn release(&self) {
        let Some(since) = lock(&self.clock).held.take() else { return };
        self.trace(Track::Gate, "calls wait", since, &[]);
        let held_ms = since.elapsed().as_secs_f64() * 1e3;
        self.note(|it| it.downtime_ms = it.downtime_ms.max(held_ms));
    }

    /// The last moment at which the move can be abandoned: after success it is completed.
    pub(crate) fn commit(&self) -> Result<(), MoveError> {
        let mut registry = lock(&REGISTRY);
        self.check()?;
        registry.change(&self.id, Some(EventKind::Committed), |it| it.state = MoveState::Committed);
        drop(registry);
        self.tracer.iter().for_each(|tracer| {
            tracer.moment(Track::Whole, "commit");
            gate::trace_commit();
        });
        Ok(())
    }

    /// Abandons the move, unless it is already committed.
    fn give_up(&self, why: Stop) -> Result<(), MoveError> {
        {
            let mut registry = lock(&REGISTRY);
            let Some(entry) = registry.find(&self.id) else { return Err(no_such(&self.id)) };
            match entry.it.state {
                MoveState::Queued => {
                    registry.end(&self.id, why.state(), Some(&self.abandoned(why, None).into()));
                    let report = registry.find(&self.id).map(|e| e.report());
                    drop(registry);
                    self.end_limits();
                    report.iter().for_each(history::keep);
                    return Ok(());
                }
                MoveState::Running => {
                    self.stop.store(why as u8, Ordering::Release);
                    registry.change(&self.id, Some(EventKind::Stopping), |it| it.state = MoveState::Stopping);
                }
                // It is already being abandoned for another reason, which counts.
                MoveState::Stopping => return Ok(()),
                late => {
                    let how = match late {
                        MoveState::Committed => MoveEnd::Committed { to: self.wanted.to.clone() },
                        MoveState::Done => MoveEnd::Done,
                        MoveState::Cancelled => MoveEnd::Cancelled,
                        _ => MoveEnd::Failed,
                    };
                    return Err(MoveError::TooLate { id: self.id.clone(), how });
                }
            }
        }
        lock(&self.stoppers).iter().for_each(|(_, stop)| stop());
        Ok(())
    }

    fn abandoned(&self, why: Stop, phase: Option<String>) -> MoveError {
        let at = phase.map_or(Moment::BeforeStart, Moment::Phase);
        match why {
            Stop::Cancelled => MoveError::Cancelled { at },
            Stop::Ending => MoveError::JobEnded { at: Some(at) },
            Stop::Deadline => MoveError::DeadlineExceeded { at, limit_ms: self.wanted.deadline_ms.unwrap_or_default() },
            Stop::Downtime => {
                MoveError::DowntimeExceeded { at, limit_ms: lock(&self.clock).longest.as_millis().try_into().unwrap_or(u64::MAX) }
            }
        }
    }

    /// Ends the thread that enforces the limits.
    fn end_limits(&self) {
        lock(&self.clock).over = true;
        self.tick.notify_all();
    }

    /// Enforces the limits until the move is over.
    fn watch(&self) {
        let deadline = self.wanted.deadline_ms.map(Duration::from_millis);
        let mut clock = lock(&self.clock);
        while !clock.over {
            let left = |limit: Duration, since: Instant| limit.saturating_sub(since.elapsed());
            let limits = [
                deadline.map(|limit| (left(limit, self.asked), Stop::Deadline)),
                clock.held.map(|since| (left(clock.longest, since), Stop::Downtime)),
            ];
            clock = match limits.into_iter().flatten().min_by_key(|(left, _)| *left) {
                None => wait(&self.tick, clock),
                Some((left, why)) if left.is_zero() => {
                    drop(clock);
                    // A committed move has met its limits.
                    let _ = self.give_up(why);
                    return;
                }
                Some((left, _)) => wait_timeout(&self.tick, clock, left).0,
            };
        }
    }

    fn run(&self, job: &'static Job, carry_out: Run) {
        let begun = Instant::now();
        let span = tracing::info_span!(target: "migrate", "move", id = %self.id, to = %self.wanted.to);
        lock(&self.span).clone_from(&span);
        let _inside = span.enter();
        let tracing = self.tracer.as_ref().map(|_| gate::trace());
        // A mover that panicked has opened the gate while unwinding; later moves still need this thread.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| carry_out(job, self)))
            .unwrap_or_else(|_| Err(internal_error::of_thread().into()));
        self.release();
        *lock(&self.span) = Span::none();
        self.end_limits();
        lock(&self.stoppers).clear();
        let total_ms = begun.elapsed().as_secs_f64() * 1e3;
        let (state, why, ended) = {
            let mut registry = lock(&REGISTRY);
            let phase = registry.find(&self.id).and_then(|e| e.it.phase.clone());
            registry.change(&self.id, None, |it| it.total_ms = total_ms);
            let (state, why) = match (result, self.stopped()) {
                (Ok(()), _) => (MoveState::Done, None),
                (Err(_), Some(why)) => (why.state(), Some(self.abandoned(why, phase).into())),
                (Err(why), None) => (MoveState::Failed, Some(why)),
            };
            let ended = registry.ended(&self.id, state, why.as_ref()).map(|it| Move { total_ms, ..it });
            (state, why, ended)
        };
        let Some(report) = ended else { return };
        let trace = self.tracer.as_ref().zip(tracing).map(|(tracer, tracing)| {
            let details = [("result", json!(report.state)), ("reason", json!(report.reason)), ("bytes", json!(report.bytes))];
            tracer.span(Track::Whole, &format!("move {}", self.id), begun, &details);
            let gpus = report.legs.iter().map(|gpu| (gpu.gpu, format!("{} -> {}", gpu.from, gpu.to)));
            Arc::new(tracer.end(tracing.end(), &gpus.collect::<Vec<_>>()))
        });
        // Before the end is reported: the job may end as well then.
        if !self.copies {
            history::keep(&report);
        }
        {
            let mut registry = lock(&REGISTRY);
            registry.keep_trace(&self.id, trace);
            registry.end(&self.id, state, why.as_ref());
        }
        if let (MoveState::Failed, Some(why)) = (report.state, &report.reason) {
            for gpu in report.legs.iter().filter(|_| self.copies) {
                tracing::warn!(target: "migrate", "the copy of GPU {} in {} is not current: {why}", gpu.gpu, gpu.to);
            }
            for gpu in report.legs.iter().filter(|_| !self.copies) {
                tracing::warn!(target: "migrate", "GPU {} stays at {}: {why}", gpu.gpu, gpu.from);
            }
        }
        tracing::debug!(target: "migrate", "move: {}", ::control::Answer::Move(report).line().trim_end());
    }
}

fn no_such(id: &str) -> MoveError {
    MoveError::NoSuchMove { id: Some(id.to_owned()) }
}

/// A target for each of `n` devices: one for all, or a list.
pub(crate) fn targets(to: &str, n: usize) -> Result<Vec<PlaceSpec>, MoveError> {
    let list = to.split(',').map(str::parse).collect::<Result<Vec<PlaceSpec>, _>>()?;
    match list.len() {
        1 => Ok(vec![list[0].clone(); n]),
        m if m == n => Ok(list),
        m => Err(MoveError::PlaceCount { places: m, gpus: n }),
    }
}

/// The devices that a request refers to, and their targets.
pub(crate) fn understand(
    job: &'static Job,
    gpu: Option<u32>,
    to: &str,
) -> Result<(Vec<&'static Device>, Vec<PlaceSpec>), MoveError> {
    let devices: Vec<&'static Device> = match gpu {
        Some(n) => vec![
            job.devices
                .get(n as usize)
                .ok_or_else(|| MoveError::NoSuchGpu { gpu: n, last: job.devices.len().saturating_sub(1) })?,
        ],
        None => job.devices.iter().collect(),
    };
    let specs = targets(to, devices.len())?;
    Ok((devices, specs))
}

/// Who requests a move, and on what conditions.
#[derive(Debug, Default)]
struct Terms<'a> {
    by: &'a str,
    /// Where devices must still be.
    from: Vec<(u32, String)>,
    /// Whether the job must be parked.
    resumes: bool,
    /// Memory that the target must have beside what the device has.
    room: u64,
    /// Whether only a copy is made.
    copies: bool,
}

/// Accepts a move, which a separate thread carries out. Returns its id.
pub(crate) fn request(job: &'static Job, wanted: Migrate, by: &str, run: Run) -> Result<String, MoveError> {
    let targets = understand(job, wanted.gpu, &wanted.to)?;
    accept(job, wanted, targets, Terms { by, ..Terms::default() }, run)
}

/// As [`request`], for a copy of all devices. It is not made behind a move, and another copy gives way to it.
pub(crate) fn request_copy(job: &'static Job, wanted: Migrate, run: Run) -> Result<String, MoveError> {
    let targets = understand(job, None, &wanted.to)?;
    accept(job, wanted, targets, Terms { by: "every", copies: true, ..Terms::default() }, run)
}

/// As [`request`], for a device whose place has no memory for so many bytes more: the target must have it.
pub(crate) fn request_for_room(job: &'static Job, wanted: Migrate, room: u64, run: Run) -> Result<String, MoveError> {
    let targets = understand(job, wanted.gpu, &wanted.to)?;
    accept(job, wanted, targets, Terms { by: "out-of-memory", room, ..Terms::default() }, run)
}

/// As [`request`], for a resume; without a place, to where the job was. An earlier move may park the job before it is carried out.
pub(crate) fn request_resume(job: &'static Job, wanted: Migrate, run: Run) -> Result<String, MoveError> {
    let targets = match wanted.to.is_empty() {
        true => (job.devices.iter().collect(), Vec::new()),
        false => understand(job, None, &wanted.to)?,
    };
    accept(job, wanted, targets, Terms { by: "request", resumes: true, ..Terms::default() }, run)
}

/// As [`request`], for a server that is ending, or was asked to have the job moved, as `by` says: each of these devices has its target. `from` says where devices must still be: a server has
/// no say in where a job goes that has left it.
pub(crate) fn request_by_server(
    job: &'static Job,
    wanted: Migrate,
    targets: Vec<(&'static Device, PlaceSpec)>,
    from: Vec<(u32, String)>,
    by: &str,
    run: Run,
) -> Result<String, MoveError> {
    accept(job, wanted, targets.into_iter().unzip(), Terms { by, from, ..Terms::default() }, run)
}

fn accept(
    job: &'static Job,
    wanted: Migrate,
    (devices, to): (Vec<&'static Device>, Vec<PlaceSpec>),
    Terms { by, from, resumes, room, copies }: Terms<'_>,
    run: Run,
) -> Result<String, MoveError> {
    let legs = devices.iter().enumerate().map(|(number, device)| GpuMove {
        gpu: device.index,
        from: device.whereabouts().place,
        to: to.get(number).map(PlaceSpec::to_string).unwrap_or_default(),
        ..GpuMove::default()
    });
    let legs: Vec<GpuMove> = legs.collect();
    let mut registry = lock(&REGISTRY);
    if registry.closed {
        return Err(MoveError::JobEnded { at: None });
    }
    if let Some(id) = &wanted.id
        && registry.find(id).is_some()
    {
        return Err(MoveError::DuplicateId { id: id.clone() });
    }
    let waiting = registry.queued().count();
    let ahead = registry.moving().or_else(|| registry.queued().next()).map(|e| e.task.id.clone());
    match ahead {
        // No move is under way: devices stay where they are while the registry is locked.
        None if from.iter().any(|(device, place)| job.devices[*device as usize].whereabouts().place != *place) => {
            return Err(MoveError::AlreadyThere);
        }
        Some(id) if !wanted.queue => return Err(MoveError::Busy { id: Some(id) }),
        Some(ahead) if waiting >= WAITING => return Err(MoveError::QueueFull { waiting, ahead }),
        _ => {}
    }
    // Copies have ids of their own, so that they do not shift those of moves.
    let (prefix, count) = if copies { ("copy", &mut registry.copies) } else { ("m", &mut registry.count) };
    *count += 1;
    let count = *count;
    let id = match &wanted.id {
        Some(id) => id.clone(),
        None => {
            // An id that a client has chosen may have the form of a generated one.
            let mut number = count;
            while registry.find(&format!("{prefix}{number}")).is_some() {
                number += 1;
            }
            format!("{prefix}{number}")
        }
    };
    let task = Arc::new(Task {
        id: id.clone(),
        devices: devices.iter().map(|d| d.index).collect(),
        to,
        resumes,
        room,
        copies,
        tracer: wanted.trace.then(|| trace::Tracer::new(Instant::now())),
        wanted,
        ..Task::of_a_plan(false)
    });
    let it = Move {
        id: id.clone(),
        by: by.to_owned(),
        to: task.wanted.to.clone(),
        at_unix_ms: unix_ms(),
        legs,
        target_downtime_ms: task.target_downtime().as_secs_f64() * 1e3,
        ..Move::default()
    };
    // The threads find the move when they get the lock. Without them it is not accepted.
    let limits = task.clone();
    spawn::spawn("mrcuda-limits", move || limits.watch()).map_err(MoveError::no_thread)?;
    if !registry.mover {
        let started = spawn::spawn("mrcuda-mover", move || carry_out(job, run)).inspect_err(|_| task.end_limits());
        started.map_err(MoveError::no_thread)?;
        registry.mover = true;
    }
    for copying in registry.copying() {
        // It ends at its next step. A round that it waits for hangs up its own connections, so no stopper is called here, under the lock.
        let _ = copying.task.stop.compare_exchange(0, Stop::Cancelled as u8, Ordering::AcqRel, Ordering::Acquire);
    }
    registry.entries.push_back(Entry { task, it, begun: None, trace: None });
    registry.change(&id, Some(EventKind::Queued), |_| {});
    Ok(id)
}

/// Carries out the requested moves, one after the other.
fn carry_out(job: &'static Job, run: Run) {
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
                // Another move may have changed the places meanwhile.
                for (gpu, (device, _)) in it.legs.iter_mut().zip(task.targets(job)) {
                    gpu.from = device.whereabouts().place;
                }
            });
            task
        };
        task.run(job, run);
    }
}

/// Waits until a move is over.
pub(crate) fn wait_for(id: &str) -> Result<Move, MoveError> {
    let mut registry = lock(&REGISTRY);
    loop {
        let (report, trace) = registry.find(id).ok_or_else(|| no_such(id))?.report_with_trace();
        if report.state.is_over() {
            drop(registry);
            return Ok(with(report, trace));
        }
        registry = wait(&CHANGED, registry);
    }
}

/// A report with its trace.
fn with(report: Move, trace: Option<Arc<Trace>>) -> Move {
    Move { trace: trace.map(|trace| Box::new(Trace::clone(&trace))), ..report }
}

/// Cancels the given move, or the one that is under way, and waits until it is over.
pub(crate) fn cancel(id: Option<&str>) -> Result<Move, MoveError> {
    let task = {
        let mut registry = lock(&REGISTRY);
        match id {
            Some(id) => registry.find(id).ok_or_else(|| no_such(id))?.task.clone(),
            None => {
                let now = registry.moving().or_else(|| registry.queued().next());
                now.ok_or(MoveError::NoSuchMove { id: None })?.task.clone()
            }
        }
    };
    task.give_up(Stop::Cancelled)?;
    wait_for(&task.id)
}

/// Abandons every move that is not committed, accepts no further ones, and waits, at most `limit`, until no move is under way: a mover
/// that loads a driver, for example, must not run concurrently with the destructors of a process that ends.
pub(crate) fn close(limit: Duration) {
    let tasks: Vec<Arc<Task>> = {
        let mut registry = lock(&REGISTRY);
        registry.closed = true;
        registry.entries.iter().filter(|e| !e.it.state.is_over()).map(|e| e.task.clone()).collect()
    };
    for task in tasks {
        // A committed move is waited for.
        let _ = task.give_up(Stop::Ending);
    }
    let registry = lock(&REGISTRY);
    drop(CHANGED.wait_timeout_while(registry, limit, |r| r.mover));
}

/// The reports of one move, with its trace, or of all.
pub(crate) fn report(id: Option<&str>) -> Result<Vec<Move>, MoveError> {
    let mut registry = lock(&REGISTRY);
    match id {
        Some(id) => {
            let (report, trace) = registry.find(id).ok_or_else(|| no_such(id))?.report_with_trace();
            drop(registry);
            Ok(vec![with(report, trace)])
        }
        None => Ok(registry.entries.iter().map(Entry::report).collect()),
    }
}

/// The move that is under way with its devices, and the queued ones.
pub(crate) fn now() -> (Option<(String, Vec<u32>)>, Vec<String>) {
    let registry = lock(&REGISTRY);
    let running = registry.moving().map(|e| (e.task.id.clone(), e.task.devices.clone()));
    (running, registry.queued().map(|e| e.task.id.clone()).collect())
}

/// Number of the latest event.
pub(crate) fn last_event() -> u64 {
    lock(&REGISTRY).seq
}

/// Events after number `seen`; waits up to `limit` for one.
pub(crate) fn events_after(seen: u64, limit: Duration) -> Vec<Event> {
    let mut registry = lock(&REGISTRY);
    if registry.seq <= seen {
        registry = wait_timeout(&CHANGED, registry, limit).0;
    }
    registry.events.iter().filter(|e| e.seq > seen).cloned().collect()
}

#[cfg(test)]
mod tests;
