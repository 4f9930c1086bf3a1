//! The move: plan, prepare, pre-copy, quiesce, delta, verify, commit, release (docs/migration.md, "Phases of a move").
//!
//! Until the commit the sources are untouched and any failure leaves the job where it was. The commit is one store for each device in
//! this process while the gate is closed; before it, the targets have confirmed that they hold the same bytes at the same addresses.
//! Several devices are moved in one pause: each has its [`Leg`], and either all commit or none.

use crate::base::log::lock;
use crate::calls::registry;
use crate::enter::CallContext;
use crate::internal_error;
use crate::job::{Device, Job, Moving};
use crate::move_error::{Failure, MoveError};
use crate::moves::{self, Task};
use crate::place::{self, Place, Spec};
use ::control::Plan;
use faults::Point;
use leg::Leg;
use quiesce::{Quiet, quiesce};
use rcuda_forwarder::{Control, ControlReply};
use std::time::Instant;

mod compare;
mod data_channels;
mod late;
mod leg;
mod quiesce;
pub(crate) mod random;
mod times;

/// Returns the blockers of a move and the amount of state to transfer. Opens the targets only to compare them, and closes them again; the
/// job continues meanwhile.
pub(crate) fn plan(job: &'static Job, gpu: Option<u32>, to: &str) -> Result<Plan, MoveError> {
    let (devices, specs) = moves::understand(job, gpu, to)?;
    let mut plan = Plan { gpus: devices.iter().map(|d| d.index).collect(), to: to.to_owned(), ..Plan::default() };
    plan.from = devices.iter().map(|d| d.whereabouts().place).collect::<Vec<_>>().join(",");
    // While a move is under way it owns the places.
    let sources: Vec<Place> = match Moving::try_begin() {
        Some(moving) => devices.iter().map(|d| d.place_for_mover(&moving).clone()).collect(),
        None => Vec::new(),
    };
    let mut blockers = Vec::new();
    if sources.is_empty() {
        blockers.push(MoveError::Busy { id: moves::now().0.map(|(id, _)| id) });
    }
    let specs = chosen(job, &devices, specs, |d| d.whereabouts().place.parse().ok());
    for (number, (device, to)) in devices.iter().zip(&specs).enumerate() {
        let figures = registry::figures(job, device);
        plan.live_bytes += figures.used_bytes;
        plan.live_objects += figures.live.values().sum::<u64>();
        let Some(source) = sources.get(number) else { continue };
        if let Err(why) = look(device, source, &mut plan) {
            blockers.push(why);
        }
        blockers.extend(leg::blockers(device, source, to));
    }
    blockers.extend(internal_error::blocker());
    blockers.extend(registry::blockers_among(&devices));
    plan.ok = blockers.is_empty();
    plan.blockers = blockers.iter().map(MoveError::to_string).collect();
    plan.codes = blockers.iter().map(MoveError::code).collect();
    plan.code = plan.codes.first().cloned();
    plan.reason = (!plan.ok).then(|| plan.blockers.join("; "));
    Ok(plan)
}

/// Adds to the plan what a move of this device would transfer.
fn look(device: &Device, source: &Place, plan: &mut Plan) -> Result<(), MoveError> {
    let count = leg::Count::of(lock(&device.ledger).live()?)?;
    plan.records += count.records;
    plan.chunks += count.chunks;
    plan.chunk_bytes += count.chunk_bytes;
    plan.modules += count.modules;
    match source.control(&Control::Regions)? {
        ControlReply::Regions { globals, heap, chunks } => {
            plan.regions += (globals.len() + chunks.len() + usize::from(heap.is_some())) as u64;
            Ok(())
        }
        other => Err(MoveError::unexpected(&other)),
    }
}

/// Runs a step for all legs in parallel. Returns the first failure.
fn each<'a>(legs: &mut [Leg<'a>], step: impl Fn(&mut Leg<'a>) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    match legs {
        [one] => step(one),
        several => {
            let results: Vec<Result<(), Failure>> = std::thread::scope(|s| {
                let running: Vec<_> = several.iter_mut().map(|leg| s.spawn(|| step(leg))).collect();
                running.into_iter().map(|r| r.join().unwrap_or_else(|_| Err(internal_error::of_thread().into()))).collect()
            });
            results.into_iter().zip(several).try_for_each(|(r, leg)| r.map_err(|why| why.of_gpu(leg.device.index)))
        }
    }
}

/// Carries out a move and reports progress to its task. A failure before the commit leaves the job where it was.
pub(crate) fn run(job: &'static Job, task: &Task) -> Result<(), Failure> {
    let moving = Moving::begin();
    let mut legs = legs(job, task, &moving)?;
    let result = go(job, task, &mut legs, &moving);
    if result.is_err() && task.check().is_ok() && legs.iter().any(|leg| leg.unfit.is_some()) {
        tracing::debug!(target: "migrate", "move: a helper is tried instead of this process: {result:?}");
        legs = legs.into_iter().map(|leg| leg.again(&moving)).collect();
        return go(job, task, &mut legs, &moving);
    }
    result
}

/// The targets of the devices, with the GPUs of this machine chosen; `at` returns the current place of a device.
fn chosen(job: &'static Job, devices: &[&'static Device], to: Vec<Spec>, at: impl Fn(&Device) -> Option<Spec>) -> Vec<Spec> {
    let stay = job.devices.iter().filter(|d| devices.iter().all(|c| c.index != d.index));
    let taken: Vec<u32> = stay.filter_map(|d| at(d)?.near()).collect();
    place::choose(devices.iter().map(|d| d.index).zip(to).collect(), &taken, place::bound())
}

/// Creates a leg for each device that moves.
fn legs<'a>(job: &'static Job, task: &'a Task, moving: &Moving) -> Result<Vec<Leg<'a>>, MoveError> {
    let (devices, to): (Vec<&'static Device>, Vec<Spec>) = task.targets(job).unzip();
    let to = chosen(job, &devices, to, |d| Some(d.place_for_mover(moving).spec()));
    let source = |d: &Device| d.place_for_mover(moving).clone();
    let all = devices.into_iter().zip(to).map(|(device, to)| (device, source(device), to));
    let legs: Vec<Leg<'a>> = all
        .filter(|(_, source, to)| !leg::is_there(source, to))
        .map(|(device, source, to)| Leg::new(device, source, to, task))
        .collect();
    if legs.is_empty() { Err(MoveError::AlreadyThere) } else { Ok(legs) }
}

/// How often the quiesce is undone because the job loaded code at the last moment: a job that loads code all the time has to wait for the
/// loading in the end.
const LAST_LOADS: usize = 3;

/// Quiesces the job, with its code loaded at the targets: loading code takes longer than everything else that is done while calls wait.
fn bring_to_rest(task: &Task, legs: &mut [Leg<'_>]) -> Result<Quiet, Failure> {
    let mut left = LAST_LOADS;
    loop {
        each(legs, Leg::load_new_code)?;
        task.phase("quiesce")?;
        let span = task.span("quiesce", None);
        faults::at(Point::Quiesce);
        let since = Instant::now();
        let quiet = {
            let sources: Vec<(&'static Device, &Place)> = legs.iter().map(|leg| (leg.device, &leg.source)).collect();
            quiesce(&sources, task)
        };
        drop(span);
        legs.iter_mut().for_each(|leg| leg.note("quiesce", since));
        let quiet = quiet.map_err(|why| Failure::from(why).in_phase("quiesce"))?;
        if left == 0 || !legs.iter().any(Leg::has_new_code) {
            return Ok(quiet);
        }
        left -= 1;
        drop(quiet);
        task.release();
    }
}

fn go(job: &'static Job, task: &Task, legs: &mut [Leg<'_>], moving: &Moving) -> Result<(), Failure> {
    internal_error::blocker().map_or(Ok(()), Err)?;
    each(legs, |leg| leg.check_source(job))?;
    let together: Vec<&'static Device> = legs.iter().map(|leg| leg.device).collect();
    together_or_not(&together)?;
    legs.iter().for_each(|leg| crate::device_memory::supply::drop_spare(&CallContext::inside(job), leg.device));
    each(legs, Leg::prepare)?;
    each(legs, |leg| leg.replay(job))?;
    each(legs, Leg::connect)?;
    each(legs, Leg::precopy)?;
    let quiet = bring_to_rest(task, legs)?;
    for (leg, was_busy) in legs.iter_mut().zip(&quiet.was_busy) {
        leg.told.kernel_running = *was_busy;
    }
    let idle_since = Instant::now();
    let finished = together_or_not(&together)
        .and_then(|()| each(legs, |leg| leg.delta(job)))
        .and_then(|()| {
            let targets = legs.iter().map(|leg| Ok((leg.device, leg.target()?))).collect::<Result<Vec<_>, MoveError>>()?;
            Ok(registry::rebuild(&targets)?)
        })
        .and_then(|()| each(legs, |leg| leg.replay_late(job)))
        .and_then(|()| each(legs, Leg::verify))
        .and_then(|()| Ok(internal_error::blocker().map_or(Ok(()), Err)?))
        .and_then(|()| Ok(task.commit()?));
    let old: Vec<Box<Place>> = match &finished {
        Ok(()) => legs.iter_mut().filter_map(|leg| leg.commit(&quiet.gate, moving)).collect(),
        Err(_) => Vec::new(),
    };
    if finished.is_ok() {
        faults::at(Point::Committed);
    }
    let gpu_idle_ms = idle_since.elapsed().as_secs_f64() * 1e3;
    drop(quiet.gate);
    task.release();
    finished?;
    legs.iter().for_each(|leg| crate::host_memory::system_atomics::place_changed(leg.device.place_for_mover(moving)));
    task.note(|it| it.gpu_idle_ms = gpu_idle_ms);
    let _span = task.span("release", None);
    faults::at(Point::Release);
    let since = Instant::now();
    legs.iter_mut().for_each(Leg::hang_up);
    old.into_iter().for_each(|place| place.release());
    legs.iter_mut().for_each(|leg| leg.note("release", since));
    Ok(())
}

/// Checks that devices and processes that use each other's memory move all together or not at all. Checked again after the quiesce: the
/// program may have begun sharing meanwhile.
fn together_or_not(devices: &[&'static Device]) -> Result<(), Failure> {
    let mut why = registry::blockers_among(devices);
    why.extend(devices.iter().flat_map(|d| registry::blockers(d)));
    Failure::unless_empty(why)
}
