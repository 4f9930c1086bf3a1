//! The move: plan, prepare, pre-copy, quiesce, delta, verify, commit, release (docs/migration.md, "Phases of a move").
//!
//! Until the commit the sources are untouched and any failure leaves the job where it was. The commit is one store for each device in
//! this process while the gate is closed; before it, the targets have confirmed that they hold the same bytes at the same addresses.
//! Several devices are moved in one pause: each has its [`DeviceMove`], and either all commit or none.

use crate::base::log::lock;
use crate::base::spawn;
use crate::calls::{cross_device, registry};
use crate::device_memory::imports;
use crate::device_memory::peer::TargetMappings;
use crate::gate::Closed;
use crate::internal_error;
use crate::job::{Device, Job, Moving};
use crate::move_error::{Failure, MoveError};
use crate::moves::{self, Task, Track};
use crate::place::{self, Place};
use ::control::{Plan, without_numbers};
use device_move::DeviceMove;
use faults::Point;
use journal::OwnedRecord;
use parked::{Kept, Parked, Taken};
use protocol::{Action, Attempt, Event, Failed, Joint, Parking, Protocol, Report, Request, Step};
use quiesce::NotYet;
use rcuda_forwarder::PlaceSpec;
use rcuda_forwarder::{Control, ControlReply};
use serde_json::json;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

mod compare;
mod data_channels;
mod deferred;
mod device_move;
mod fit;
pub(crate) mod parked;
mod protocol;
mod quiesce;
mod rehearsal;
mod residence;
pub(crate) mod standing;
mod times;
mod to_place;

/// Held by the only thread that makes a plan.
static PLANNING: Mutex<()> = Mutex::new(());

/// Returns the blockers of a move and the amount of state to transfer. Opens the targets to compare them, to connect them with the sources
/// and to load the job's code, and closes them again; the job continues meanwhile.
pub(crate) fn plan(job: &'static Job, gpu: Option<u32>, to: &str, allow_different: bool) -> Result<Plan, MoveError> {
    let (devices, specs) = moves::understand(job, gpu, to)?;
    // Each loads the job's code at its target.
    let _alone = match PLANNING.try_lock() {
        Ok(alone) => alone,
        // A planner has panicked, which was noted.
        Err(TryLockError::Poisoned(alone)) => alone.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(MoveError::Planning),
    };
    // While a move is under way it owns the places.
    let places = |moving: Moving| devices.iter().map(|d| d.place_for_mover(&moving).clone()).collect::<Vec<Place>>();
    let sources = Moving::try_begin().map(places);
    let specs = chosen(job, &devices, specs, |d| d.whereabouts().place.parse().ok());
    let mut plan = Plan { to: to.to_owned(), ..Plan::default() };
    let task = Task::of_a_plan(allow_different);
    // A plan leaves nothing behind.
    let made = specs.iter().filter_map(|to| if let PlaceSpec::File(directory) = to { Some(directory.clone()) } else { None });
    let made: Vec<PathBuf> = made.filter(|directory| !directory.exists()).collect();
    let all: Vec<(&'static Device, PlaceSpec)> = devices.iter().copied().zip(specs.iter().cloned()).collect();
    let (mut blockers, mut from, mut moving, mut rooms) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut targets: Vec<(&'static Device, Place)> = Vec::new();
    // Files of a parked job that were opened again.
    let mut opened: Vec<Place> = Vec::new();
    if sources.is_none() {
        blockers.push(MoveError::Busy { id: moves::now().0.map(|(id, _)| id) });
    }
    for (number, (device, to)) in devices.iter().zip(&specs).enumerate() {
        let source = sources.as_ref().and_then(|sources| sources.get(number));
        if source.is_some_and(|source| device_move::is_there(source, to)) {
            continue;
        }
        plan.gpus.push(device.index);
        from.push(device.whereabouts().place);
        moving.push(*device);
        let figures = registry::figures(job, device);
        plan.live_bytes += figures.used_bytes;
        plan.live_objects += figures.live.values().sum::<u64>();
        let Some(source) = source else { continue };
        let again = match store_again(source, device, &task) {
            Ok(again) => again,
            Err(why) => {
                blockers.push(why);
                continue;
            }
        };
        let source = again.as_ref().unwrap_or(source);
        match add_to_plan(device, source, &mut plan) {
            Ok(found) => blockers.extend(found),
            Err(why) => blockers.push(why),
        }
        let estimate = device_move::estimate(job, device, source, to, device_move::beside(job, &all, number), &task);
        blockers.extend(estimate.blockers);
        plan.adoptable_bytes += estimate.adoptable;
        rooms.extend(estimate.room);
        targets.extend(estimate.target.map(|target| (*device, target)));
        opened.extend(again);
        let notes = estimate.different.notes().into_iter().filter(|_| allow_different);
        plan.notes.extend(notes.filter(|note| !plan.notes.contains(note)).collect::<Vec<_>>());
    }
    if moving.is_empty() {
        blockers.push(MoveError::AlreadyThere);
        from.extend(devices.iter().map(|d| d.whereabouts().place));
    }
    plan.from = from.join(",");
    blockers.extend(device_move::too_little_together(&rooms));
    if blockers.is_empty() {
        blockers.extend(registry::try_out(&targets.iter().map(|(device, target)| (*device, target)).collect::<Vec<_>>()));
    }
    targets.into_iter().map(|(_, target)| target).chain(opened).for_each(Place::release);
    // It stays if somebody else uses it.
    made.iter().for_each(|directory| drop(std::fs::remove_dir(directory)));
    blockers.extend(internal_error::blocker());
    blockers.extend(registry::blockers_among(&moving));
    blockers.extend((!crate::gate::can_close()).then_some(MoveError::NoMembarrier));
    plan.ok = blockers.is_empty();
    plan.blockers = blockers.iter().map(|why| without_numbers(&why.to_string())).collect();
    plan.codes = blockers.iter().map(MoveError::code).collect();
    plan.code = plan.codes.first().cloned();
    plan.reason = (!plan.ok).then(|| plan.blockers.join("; "));
    Ok(plan)
}

/// Adds to the plan what a move of this device would transfer. Returns why records cannot be replayed.
fn add_to_plan(device: &Device, source: &Place, plan: &mut Plan) -> Result<Vec<MoveError>, MoveError> {
    let mut deferred: Vec<OwnedRecord> = Vec::new();
    let count = {
        let ledger = lock(&device.ledger);
        let live = ledger.live()?.inspect(|record| {
            deferred
                .extend(record.as_ref().ok().filter(|r| registry::deferred_object(r).is_some()).map(|r| OwnedRecord::from(*r)));
        });
        device_move::Count::of(live)?
    };
    // These take locks that may not be taken under the ledger's.
    let blockers = deferred.iter().filter_map(|record| registry::record_blocker(&record.as_record())).collect();
    plan.records += count.records;
    plan.chunks += count.chunks;
    plan.chunk_bytes += count.chunk_bytes;
    plan.modules += count.modules;
    match source.control(&Control::Regions)? {
        ControlReply::Regions { globals, heap, chunks } => {
            plan.regions += (globals.len() + chunks.len() + usize::from(heap.is_some())) as u64;
            Ok(blockers)
        }
        other => Err(MoveError::unexpected(&other)),
    }
}

/// Carries out a move and reports progress to its task. A failure before the commit leaves the job where it was.
pub(crate) fn run(job: &'static Job, task: &Task) -> Result<(), Failure> {
    let moving = Moving::begin();
    let mut parked = Taken::take();
    let device_moves = device_moves(job, task, &moving, &mut parked)?;
    carry_out(job, task, device_moves, &moving, parked)
}

/// Checks that either all devices of the job are parked or none.
fn all_or_none(job: &Job, to: &[(&'static Device, PlaceSpec)], is_parked: bool) -> Result<(), MoveError> {
    let parks = to.iter().filter(|(_, to)| to.is_store()).count();
    let whole = to.len() == job.devices.len() && (parks == 0 || parks == to.len());
    if whole || (parks == 0 && !is_parked) { Ok(()) } else { Err(MoveError::ParkedTogether) }
}

/// The targets of the devices, with the GPUs of this machine chosen; `at` returns the current place of a device.
fn chosen(
    job: &'static Job,
    devices: &[&'static Device],
    to: Vec<PlaceSpec>,
    at: impl Fn(&Device) -> Option<PlaceSpec>,
) -> Vec<PlaceSpec> {
    let stay = job.devices.iter().filter(|d| devices.iter().all(|c| c.index != d.index));
    let taken: Vec<u32> = stay.filter_map(|d| at(d)?.local_number()).collect();
    place::choose(devices.iter().map(|d| d.index).zip(to).collect(), &taken, place::bound())
}

/// Asks the source whether it still has what is parked there. Returns a place that has opened its file again if its helper was lost.
fn store_again(source: &Place, device: &Device, task: &Task) -> Result<Option<Place>, MoveError> {
    if !source.spec().is_store() {
        return Ok(None);
    }
    let (source, device, most) = (source.clone(), device.index, device_move::most_parked(device));
    // Opening the file reads the list of pages, which may take long.
    task.apart(move || {
        if source.answers() {
            return Ok(None);
        }
        let opened = source.file_again(device, most).ok_or(MoveError::PlaceLost(None))?;
        opened.map(Some).map_err(|why| MoveError::ParkedFile(why.to_string()))
    })
}

/// The devices that are to move, and where they go.
fn targets(job: &'static Job, task: &Task) -> Result<(Vec<&'static Device>, Vec<PlaceSpec>), MoveError> {
    if task.resumes() {
        let home = parked::home().ok_or(MoveError::NotParked)?.join(",");
        if task.resumes_at_previous_place() {
            task.note(|it| it.to.clone_from(&home));
            return moves::understand(job, None, &home);
        }
    }
    Ok(task.targets(job).unzip())
}

/// Creates the moves of the devices that are not there already.
fn device_moves<'a>(
    job: &'static Job,
    task: &'a Task,
    moving: &Moving,
    parked: &mut Taken,
) -> Result<Vec<DeviceMove<'a>>, MoveError> {
    let (devices, to) = targets(job, task)?;
    let to = chosen(job, &devices, to, |d| Some(d.place_for_mover(moving).spec()));
    let all: Vec<(&'static Device, PlaceSpec)> = devices.into_iter().zip(to).collect();
    all_or_none(job, &all, parked.get().is_some())?;
    if task.is_for_a_running_job() && parked.get().is_some() {
        // It was parked a moment ago. Where a device has no memory is not where it is now.
        return Err(MoveError::AlreadyThere);
    }
    let mut device_moves = Vec::new();
    for (number, (device, to)) in all.iter().cloned().enumerate() {
        let source = device.place_for_mover(moving).clone();
        if device_move::is_there(&source, &to) {
            continue;
        }
        let again = store_again(&source, device, task).inspect_err(|why| {
            if matches!(why, MoveError::PlaceLost(_)) {
                parked.give_up(job);
            }
        })?;
        let (is_again, source) = (again.is_some(), again.unwrap_or(source));
        let shape = parked.get().and_then(|parked| Some(parked.kept.get(&device.index)?.shape.clone()));
        let mut device_move = DeviceMove::new(device, source, to, task, shape);
        (device_move.owns_source, device_move.beside) = (is_again, device_move::beside(job, &all, number));
        device_moves.push(device_move);
    }
    if device_moves.is_empty() { Err(MoveError::AlreadyThere) } else { Ok(device_moves) }
}

/// Between two attempts, a patient move lets the job run for this multiple of the time that the attempt has held up its calls.
const RUN_TIME_FACTOR: u32 = 20;
/// Minimum time that the job runs between two attempts.
const MIN_RUN_TIME: Duration = Duration::from_millis(100);
/// Minimum duration of a patient move's last attempt: the reason of a shorter one would only be that a thread is inside a call.
const MIN_LAST_ATTEMPT: Duration = Duration::from_millis(100);

/// The end of a device move's step, with the device move, which had left the mover for the step.
type Ended<'a> = (usize, DeviceMove<'a>, Event<Failure>);

/// Carries out what the protocol says until the move is over. A device move takes its steps on a thread of its own if there are several.
fn carry_out(
    job: &'static Job,
    task: &Task,
    device_moves: Vec<DeviceMove<'_>>,
    moving: &Moving,
    parked: Taken,
) -> Result<(), Failure> {
    let parks = device_moves.iter().all(DeviceMove::parks);
    let parking = Parking { before: parked.get().is_some(), after: parks && !task.copies(), copies: task.copies() };
    let mut protocol =
        Protocol::new(device_moves.len(), task.max_downtime(), task.patience().is_some(), parking).until(task.deadline());
    let mut mover = Mover::new(job, task, moving, device_moves, parked);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|threads| {
        loop {
            let mut event = None;
            while let Some(action) = protocol.poll() {
                match action {
                    Action::Run(ticket, Request::Joint(joint)) => {
                        let answer = mover.take(joint).map_err(|why| Failed { why, unfit: false });
                        event = Some(Event::Answer(ticket, answer));
                    }
                    Action::Run(ticket, Request::Device(number, step)) => {
                        let device_move = mover.device_moves[number].take().ok_or_else(|| MoveError::missing("device move"))?;
                        // The receiver lives as long as this scope.
                        let end = move |sender: &Sender<_>, device_move, answer| {
                            drop(sender.send((number, device_move, Event::Answer(ticket, answer))))
                        };
                        if mover.device_moves.len() == 1 {
                            let mut device_move = device_move;
                            let answer = take(&mut device_move, step, job, false);
                            end(&sender, device_move, answer);
                            continue;
                        }
                        // The device move is not lost if there is no thread for it.
                        let device_move = Arc::new(Mutex::new(Some(device_move)));
                        let (theirs, ended) = (device_move.clone(), sender.clone());
                        let started = spawn::scoped(threads, "mrcuda-gpu-move", move || {
                            let Some(mut device_move) = lock(&theirs).take() else { return };
                            let answer = take(&mut device_move, step, job, true);
                            end(&ended, device_move, answer);
                        });
                        if let Err(error) = started
                            && let Some(device_move) = lock(&device_move).take()
                        {
                            let why = MoveError::no_thread(error).into();
                            end(&sender, device_move, Err(Failed { why, unfit: false }));
                        }
                    }
                    Action::Interrupt(number) => task.interrupt(mover.devices[number].index),
                    Action::OpenGate => mover.open_gate(),
                    Action::StayParked => mover.stay_parked(),
                    Action::ReleaseSource(number) => mover.with_device_move(number, |it| it.release_source(moving)),
                    Action::ReleaseTarget(number) => mover.with_device_move(number, DeviceMove::close),
                    Action::Restart { device, helper } => {
                        // The targets are closed.
                        mover.target_mappings = TargetMappings::default();
                        let old = mover.device_moves[device].take();
                        mover.device_moves[device] = old.map(|old| old.again(helper));
                    }
                    Action::End(result) => return result,
                }
            }
            let event = match event {
                Some(event) => event,
                None => {
                    let (number, device_move, event): Ended<'_> = receiver.recv().map_err(|_| internal_error::of_thread())?;
                    mover.device_moves[number] = Some(device_move);
                    event
                }
            };
            if let Err(why) = task.check() {
                protocol.handle(Event::Stop(why.into()));
            }
            protocol.handle(event);
        }
    })
}

/// A step of a device move. A panic in it, which was noted, fails the move.
fn take(
    device_move: &mut DeviceMove<'_>,
    step: Step,
    job: &'static Job,
    several: bool,
) -> Result<Report<Failure>, Failed<Failure>> {
    std::panic::catch_unwind(AssertUnwindSafe(|| device_move.take(step, job)))
        .unwrap_or_else(|_| Err(internal_error::of_thread().into()))
        .map_err(|why| Failed {
            why: if several { why.of_gpu(device_move.device.index) } else { why },
            unfit: device_move.unfit.is_some(),
        })
}

/// What carries out the protocol's actions.
struct Mover<'m, 'a> {
    /// The gate, while this move has closed it. Dropped before the device moves: calls need not wait for what these close.
    gate: Option<Closed>,
    /// The state of a parked job, with its gate.
    parked: Taken,
    task: &'a Task,
    moving: &'m Moving,
    job: &'static Job,
    devices: Vec<&'static Device>,
    /// The device moves that take no step now.
    device_moves: Vec<Option<DeviceMove<'a>>>,
    /// What the targets have mapped of each other's memory.
    target_mappings: TargetMappings,
    /// For each device move, whether its source was still busy when the gate was closed.
    was_busy: Vec<bool>,
    /// Since when the sources are idle.
    idle_since: Option<Instant>,
    /// Since when the move waits for an idle moment.
    tries_since: Option<Instant>,
    /// What the last attempt was waiting for, and since when attempts find just that.
    obstacle: Option<(String, Instant)>,
    committed: bool,
}

impl<'m, 'a> Mover<'m, 'a> {
    fn new(
        job: &'static Job,
        task: &'a Task,
        moving: &'m Moving,
        device_moves: Vec<DeviceMove<'a>>,
        parked: Taken,
    ) -> Mover<'m, 'a> {
        let (devices, was_busy) =
            (device_moves.iter().map(|device_move| device_move.device).collect(), vec![false; device_moves.len()]);
        let device_moves = device_moves.into_iter().map(Some).collect();
        Mover {
            gate: None,
            parked,
            task,
            moving,
            job,
            devices,
            device_moves,
            target_mappings: TargetMappings::default(),
            was_busy,
            idle_since: None,
            tries_since: None,
            obstacle: None,
            committed: false,
        }
    }

    fn with_device_move(&mut self, number: usize, run: impl FnOnce(&mut DeviceMove<'a>)) {
        if let Some(device_move) = &mut self.device_moves[number] {
            run(device_move);
        }
    }

    /// Takes a step for all device moves together, during which no device move takes one.
    fn take(&mut self, joint: Joint) -> Result<Report<Failure>, Failure> {
        match joint {
            Joint::Sound => internal_error::blocker().map_or(Ok(()), Err)?,
            Joint::Sharing => together_or_not(&self.devices)?,
            Joint::Weigh => {
                self.give_up_ended()?;
                return Ok(Report::Tails(self.device_moves.iter().flatten().map(DeviceMove::tail_weight).collect()));
            }
            Joint::AtRest => self.rest()?,
            Joint::Quiesce(attempt) => return self.quiesce(attempt).map_err(|why| why.in_phase("quiesce")),
            Joint::PeerAccessAhead => self.rebuild(registry::rebuild_ahead)?,
            Joint::PeerAccess => self.rebuild(registry::rebuild)?,
            Joint::Commit => self.commit()?,
        }
        Ok(Report::Done)
    }

    /// Gives the targets access to each other's memory.
    fn rebuild(
        &mut self,
        rebuild: fn(&[(&'static Device, &Place)], &mut TargetMappings) -> Result<(), MoveError>,
    ) -> Result<(), MoveError> {
        let since = Instant::now();
        let targets = executing_targets(&mut self.device_moves, &mut self.target_mappings)?;
        if targets.len() < 2 {
            return Ok(());
        }
        rebuild(&targets, &mut self.target_mappings)?;
        self.task.trace(Track::Gate, "access of targets to each other", since, &[]);
        Ok(())
    }

    /// Has targets give up what they have mapped of memory that others are about to end. What the job ends between this and the next round
    /// while it runs may lack room there, and then the move fails.
    fn give_up_ended(&mut self) -> Result<(), MoveError> {
        if self.target_mappings.is_empty() {
            return Ok(());
        }
        let tails: HashMap<u32, _> = self
            .device_moves
            .iter()
            .flatten()
            .map(|device_move| (device_move.device.index, lock(&device_move.device.ledger).tail_ends()))
            .collect();
        let targets = executing_targets(&mut self.device_moves, &mut self.target_mappings)?;
        self.target_mappings.give_up(&targets, |owner, address| tails.get(&owner).is_some_and(|ends| ends(address)))
    }

    /// From now on the limit of the downtime counts for a parked job, whose calls wait since long.
    fn rest(&mut self) -> Result<(), MoveError> {
        let parked = self.parked.get().ok_or_else(|| MoveError::missing("parked job"))?;
        self.task.hold(
            Duration::ZERO,
            device_move::downtime_limit(
                self.device_moves.iter().flatten().map(|device_move| device_move.report.live_bytes).sum(),
            ),
        );
        if !parked.gate.shut_side_door(|| self.task.check().is_ok()) {
            self.task.check()?;
        }
        self.idle_since = Some(Instant::now());
        Ok(())
    }

    fn quiesce(&mut self, attempt: Attempt) -> Result<Report<Failure>, Failure> {
        if !attempt.again {
            self.task.phase("quiesce")?;
            faults::at(Point::Quiesce);
        }
        let span = self.task.span("quiesce", None);
        let since = Instant::now();
        let sources: Vec<(&'static Device, &Place)> =
            self.device_moves.iter().flatten().map(|device_move| (device_move.device, &device_move.source)).collect();
        self.task.note(|it| it.closings += 1);
        let tries_since = *self.tries_since.get_or_insert_with(Instant::now);
        let left = |patience: Duration| patience.saturating_sub(tries_since.elapsed());
        let attempt = match self.task.patience() {
            Some(patience) => Attempt { limit: attempt.limit.min(left(patience).max(MIN_LAST_ATTEMPT)), ..attempt },
            None => attempt,
        };
        let downtime = device_move::downtime_limit(
            self.device_moves.iter().flatten().map(|device_move| device_move.report.live_bytes).sum(),
        );
        let attempted = quiesce::quiesce(self.job, &sources, attempt, downtime, &mut self.was_busy, self.task);
        drop(span);
        self.device_moves.iter_mut().flatten().for_each(|device_move| device_move.note("quiesce", since));
        let attempted = attempted?;
        let waits_for = attempted.as_ref().err().map(|not_yet| not_yet.why.to_string());
        self.task.trace(Track::Gate, "attempt to quiesce", since, &[("waits for", json!(waits_for))]);
        match attempted {
            Ok(gate) => (self.gate, self.obstacle) = (Some(gate), None),
            Err(NotYet { function, why }) => {
                let held = crate::gate::held_for().unwrap_or_default();
                let why = MoveError::NotIdle(why);
                let text = why.to_string();
                let since =
                    self.obstacle.take().filter(|(before, _)| *before == text).map_or_else(Instant::now, |(_, since)| since);
                let lasts = since.elapsed().as_secs();
                let lasting = if lasts == 0 { text.clone() } else { format!("{text} (found so for {lasts} s)") };
                self.task.note(|it| it.waits_for = Some(lasting));
                self.obstacle = Some((text, since));
                if let Some(patience) = self.task.patience() {
                    // A patient move goes on until its time is over. The job must not spend its time waiting for attempts.
                    self.open_gate();
                    if left(patience).is_zero() {
                        return Err(why.into());
                    }
                    self.task.rest((held * RUN_TIME_FACTOR).max(MIN_RUN_TIME).min(left(patience)))?;
                }
                return Ok(Report::Busy { function, why: why.into() });
            }
        }
        self.idle_since = Some(Instant::now());
        self.give_up_ended()?;
        self.device_moves
            .iter_mut()
            .flatten()
            .zip(&self.was_busy)
            .for_each(|(device_move, was_busy)| device_move.report.kernel_running = *was_busy);
        Ok(Report::Done)
    }

    /// Commits all device moves or none: nothing can fail between the first one and the last one.
    fn commit(&mut self) -> Result<(), MoveError> {
        let parked = self.parked.get().map(|parked| &parked.gate);
        let gate = self.gate.as_ref().or(parked).ok_or_else(|| MoveError::missing("closed gate"))?;
        // A target may have been lost since it was verified, while another device move took its steps.
        self.device_moves
            .iter()
            .flatten()
            .try_for_each(|device_move| if device_move.target()?.is_lost() { Err(MoveError::PlaceLost(None)) } else { Ok(()) })?;
        // Mapped and connected again by the next copies that need it.
        imports::leave(&self.job.devices, &self.devices, self.moving);
        cross_device::leave(&self.devices);
        self.task.commit()?;
        self.device_moves.iter().for_each(|_| faults::at(Point::Commit));
        self.device_moves.iter_mut().flatten().for_each(|device_move| device_move.commit(gate, self.moving));
        self.committed = true;
        self.devices.iter().for_each(|device| device.watch(device.place_for_mover(self.moving)));
        faults::at(Point::Committed);
        Ok(())
    }

    fn open_gate(&mut self) {
        self.gate = None;
        self.parked.end();
        self.note_idle();
    }

    /// The gate stays closed: the job was parked, or stays so.
    fn stay_parked(&mut self) {
        if let Some(gate) = self.gate.take() {
            let kept = self.device_moves.iter_mut().flatten().map(|device_move| {
                let (from, shape) = (device_move.report.from.clone(), device_move.shape.take().unwrap_or_default());
                (device_move.device.index, Kept { from, shape })
            });
            let kept = kept.collect();
            gate.open_side_door();
            self.parked.begin(Parked { gate, kept });
            parked::watch(self.job);
        }
        self.note_idle();
    }

    fn note_idle(&mut self) {
        let gpu_idle_ms = self.idle_since.take().map(|since| since.elapsed().as_secs_f64() * 1e3);
        self.task.release();
        if let Some(gpu_idle_ms) = gpu_idle_ms.filter(|_| self.committed) {
            self.task.note(|it| it.gpu_idle_ms = gpu_idle_ms);
        }
    }
}

/// The devices whose targets execute, with these. What the target of one that was reset had mapped is forgotten.
fn executing_targets<'t>(
    device_moves: &'t mut [Option<DeviceMove<'_>>],
    mappings: &mut TargetMappings,
) -> Result<Vec<(&'static Device, &'t Place)>, MoveError> {
    let mut targets = Vec::new();
    for device_move in device_moves.iter_mut().flatten().filter(|device_move| !device_move.parks()) {
        if std::mem::take(&mut device_move.has_reset) {
            mappings.forget(device_move.device.index);
        }
        targets.push((device_move.device, device_move.target()?));
    }
    Ok(targets)
}

/// Checks that devices and processes that use each other's memory move all together or not at all. Checked again after the quiesce: the
/// program may have begun sharing meanwhile.
fn together_or_not(devices: &[&'static Device]) -> Result<(), Failure> {
    let mut why = registry::blockers_among(devices);
    why.extend(devices.iter().flat_map(|d| registry::blockers(d)));
    Failure::unless_empty(why)
}
