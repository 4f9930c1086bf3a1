//! The uses of migration that the paper on it shows: consolidation, balance and priorities, each as a schedule of jobs.

use super::lab::{At, Findings, Lab, ms};
use super::play::{Action, Job, Load, Outcome, Step, When, play};
use super::power::Meter;
use crate::bench::table::Table;
use crate::error::Error;
use models::plot::{Axes, Plot, Series};
use std::time::Duration;

/// The progress of jobs, as series.
fn progress(all: &Outcome, jobs: &[Job], of: &str) -> Vec<Series> {
    let of = if of.is_empty() { String::new() } else { format!(", {of}") };
    jobs.iter().zip(&all.jobs).map(|(job, ran)| Series::new(format!("{}{of}", job.name), ran.marks.clone())).collect()
}

/// Draws how far jobs are at each moment.
fn show(lab: &Lab<'_>, findings: &mut Findings, name: &str, title: &str, series: &[Series]) -> Result<(), Error> {
    let plot =
        Plot { title, x: "seconds since the beginning", y: "done, %", lines: true, axes: Axes::FromZero, ..Plot::default() };
    findings.plot(lab, name, &plot, series)
}

/// Says what is wrong with actions that were not done in time.
fn complain(all: &Outcome, actions: &[Action], jobs: &[Job], findings: &mut Findings) {
    for (number, action) in actions.iter().enumerate() {
        if let Err(why) = all.report(number, action) {
            findings.miss(&format!("what is done to {}", jobs[action.job].name), why);
        }
    }
}

pub(super) const POWER_OURS: &str = "power of all GPUs of the machine, before and after";
pub(super) const CONSOLIDATED_OURS: &str = "run of both jobs, apart and on one GPU from 40 % on";

/// Two jobs that leave their GPUs idle half of the time: apart, and on one GPU from some time on.
pub(super) fn consolidation(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let Some(_) = lab.gpus(2, 2, "consolidation", findings) else { return Ok(()) };
    let (busy, seconds) = (Load::heavy(lab), lab.pick(1.0, 6.0));
    let steps = busy.lasting(lab, &At::Native(0), seconds)?.steps;
    let half = Load { steps: steps.div_ceil(2), rest: (seconds / steps as f64 * 1e6) as u64, ..busy };
    let places = [lab.remote(0, 0), lab.remote(1, 1)];
    let jobs = ["job A", "job B"].iter().zip(&places).map(|(name, place)| Job::new(name, &At::Place(place.clone()), half));
    let jobs: Vec<Job> = jobs.collect();
    let apart = play(lab, &jobs, &[])?;
    let action = Action { job: 1, when: When { job: 1, percent: 40 }, step: Step::Move(places[0].clone()) };
    let actions = [action];
    let meter = Meter::start();
    let together = play(lab, &jobs, &actions)?;
    match meter.map(Meter::stop) {
        Ok(watts) => {
            let at = |seconds: f64| together.began + Duration::from_secs_f64(seconds);
            let moved = together.jobs[1].marks.iter().find(|mark| mark.1 >= 40.0).map_or(0.0, |mark| mark.0);
            let over = together.actions[0].as_ref().map_or(moved, |acted| acted.over);
            let end = together.jobs.iter().map(|job| job.ended).fold(f64::INFINITY, f64::min);
            match (watts.mean(at(0.0), at(moved)), watts.mean(at(over), at(end))) {
                (Some(before), Some(after)) => findings.ours(POWER_OURS, format!("{before:.0} W, {after:.0} W")),
                _ => findings.miss("power", "the run was too short for NVML's figures"),
            }
        }
        Err(why) => findings.miss("power", why),
    }
    complain(&together, &actions, &jobs, findings);
    let mut table = Table::new("Two jobs that use half of a GPU each, seconds", ["schedule", "job A", "job B", "all"]);
    for (name, all) in [("on two GPUs", &apart), ("on one GPU from 40 % on", &together)] {
        let row = all.jobs.iter().map(|job| job.ended).chain([all.makespan()]);
        table.row(std::iter::once(name.to_owned()).chain(row.map(|s| format!("{s:.2}"))));
    }
    findings.table(table);
    findings.ours(CONSOLIDATED_OURS, format!("{:.2} s, {:.2} s", apart.makespan(), together.makespan()));
    let series = [progress(&apart, &jobs, "two GPUs"), progress(&together, &jobs, "then one")].concat();
    show(lab, findings, "migration-consolidation", "Two half-idle GPUs consolidated into one", &series)
}

pub(super) const BALANCE_OURS: &str = "end of all jobs, unmoved and spread over the GPUs";

/// Three jobs on one GPU: left there, and spread over all.
pub(super) fn balance(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let Some(gpus) = lab.gpus(2, 3, "balance", findings) else { return Ok(()) };
    let load = Load::heavy(lab).lasting(lab, &At::Native(0), lab.pick(0.7, 4.0))?;
    let crowded = At::Place(lab.remote(0, 0));
    let jobs = ["job A", "job B", "job C"].map(|name| Job::new(name, &crowded, load));
    let unmoved = play(lab, &jobs, &[])?;
    let away = |job: usize| {
        let gpu = job as u32 % gpus;
        Action { job, when: When { job: 0, percent: 20 }, step: Step::Move(lab.remote(1, gpu)) }
    };
    let actions: Vec<Action> = (1..jobs.len()).filter(|job| job % gpus as usize != 0).map(away).collect();
    let spread = play(lab, &jobs, &actions)?;
    complain(&spread, &actions, &jobs, findings);
    let mut table =
        Table::new(format!("Three jobs on one GPU, then on {gpus}, seconds"), ["schedule", "job A", "job B", "job C", "all"]);
    for (name, all) in [("on one GPU", &unmoved), ("spread from 20 % on", &spread)] {
        let row = all.jobs.iter().map(|job| job.ended).chain([all.makespan()]);
        table.row(std::iter::once(name.to_owned()).chain(row.map(|s| format!("{s:.2}"))));
    }
    findings.table(table);
    findings.ours(BALANCE_OURS, format!("{:.2} s, {:.2} s ({gpus} GPUs)", unmoved.makespan(), spread.makespan()));
    let series = [progress(&unmoved, &jobs, "unmoved"), progress(&spread, &jobs, "spread")].concat();
    show(lab, findings, "migration-balance", "Three jobs on one GPU, spread over all", &series)
}

pub(super) const URGENT_OURS: &str = "run of the urgent job, beside the other one and alone on the GPU";
pub(super) const AWAY_OURS: &str = "pause of the other job";

/// A job makes room for an urgent one: it goes to another GPU, or into memory if there is none.
pub(super) fn priority(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let load = Load::heavy(lab).lasting(lab, &At::Native(0), lab.pick(0.8, 3.0))?;
    let urgent = Load { steps: load.steps.div_ceil(2), ..load };
    let fast = lab.remote(0, 0);
    let now = When { job: 0, percent: 30 };
    let mut jobs =
        [Job::new("long job", &At::Place(fast.clone()), load), Job::new("urgent job", &At::Place(fast.clone()), urgent)];
    jobs[1].begins = Some(now);
    let shared = play(lab, &jobs, &[])?;
    let (actions, how) = if lab.gpus > 1 {
        (vec![Action { job: 0, when: now, step: Step::Move(lab.remote(1, 1)) }], "moved to another GPU")
    } else {
        let park = Action { job: 0, when: now, step: Step::Park };
        let resume = Action { job: 0, when: When { job: 1, percent: 100 }, step: Step::Resume(fast) };
        (vec![park, resume], "parked in memory")
    };
    let away = play(lab, &jobs, &actions)?;
    complain(&away, &actions, &jobs, findings);
    let mut table = Table::new(
        "An urgent job comes when a long one is at 30 %, seconds",
        ["schedule", "long job ends", "urgent job takes", "all"],
    );
    for (name, all) in [("both on one GPU".to_owned(), &shared), (format!("the long job {how}"), &away)] {
        let row = [all.jobs[0].ended, all.jobs[1].seconds(), all.makespan()];
        table.row(std::iter::once(name).chain(row.map(|s| format!("{s:.2}"))));
    }
    findings.table(table);
    findings.ours(
        URGENT_OURS,
        format!("{:.2} s, {:.2} s (the other one is {how})", shared.jobs[1].seconds(), away.jobs[1].seconds()),
    );
    findings.ours(AWAY_OURS, format!("{} ms", ms(away.jobs[0].number("longest_step_seconds"))));
    let series = [progress(&shared, &jobs, "both there"), progress(&away, &jobs, "long one away")].concat();
    show(lab, findings, "migration-priority", "A job makes room for an urgent one", &series)
}
