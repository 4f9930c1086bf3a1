//! The move: plan, prepare, pre-copy, quiesce, delta, verify, commit, release (docs/design.md, "A move").
//!
//! Until the commit the sources are untouched and whatever fails leaves the job where it was. The commit is one store for each
//! device in this process while the gate is closed; the targets have said before it that they hold the same bytes at the same
//! addresses. Several devices are moved in one pause: each has its [`Leg`], and all commit or none.

use crate::job::{Device, Job};
use crate::log::{self, lock};
use crate::place::{Place, Spec};
use leg::Leg;
use quiesce::quiesce;
use rcuda_forwarder::ControlReply;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::time::{Duration, Instant};

mod compare;
mod leg;
mod quiesce;
mod times;
mod wires;

/// Proof that this thread is the one that moves the job.
#[derive(Debug)]
pub(crate) struct Moving(());

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static HISTORY: Mutex<Vec<Value>> = Mutex::new(Vec::new());

/// What a device's move did, in the words of `mrcuda migrate --json`.
#[derive(Debug, Default)]
struct Report {
    phases: Vec<(&'static str, f64)>,
    bytes: u64,
    records: u64,
    downtime: Duration,
    gpu_idle: Duration,
    digest: String,
    kernel_running: bool,
    live_objects: u64,
    total_bytes: u64,
}

/// Moves one device, or with `None` all of them in one pause. `to` is a place, or a list with one for each device. The answer is
/// the report of the move, or for several devices one that sums up, with theirs as `moves`; each is kept for `moves`.
pub(crate) fn migrate(job: &'static Job, device: Option<u32>, to: &str, dry_run: bool) -> Value {
    let chosen: Vec<&'static Device> = match device {
        Some(d) => match job.devices.get(d as usize) {
            Some(device) => vec![device],
            None => return refused(to, &format!("this job has {} GPUs: there is no GPU {d}", job.devices.len())),
        },
        None => job.devices.iter().collect(),
    };
    let specs = match targets(to, chosen.len()) {
        Ok(specs) => specs,
        Err(why) => return refused(to, &why),
    };
    let _one = lock(&ONE_AT_A_TIME);
    let moving = Moving(());
    let since = Instant::now();
    let mut legs: Vec<Leg> = chosen.into_iter().zip(specs).map(|(d, to)| Leg::new(d, d.place_for_mover(&moving), to)).collect();
    let result = if dry_run { plan(job, &mut legs) } else { run(job, &mut legs, &moving) };
    let reports: Vec<Value> = legs.iter().map(|leg| describe(job, leg, &result, since.elapsed(), dry_run)).collect();
    if !dry_run {
        lock(&HISTORY).extend(reports.iter().cloned());
    }
    drop(legs);
    reports.iter().for_each(|r| log::trace(|| format!("move: {r}")));
    match <[Value; 1]>::try_from(reports) {
        Ok([report]) => report,
        Err(reports) => sum(to, reports),
    }
}

/// A place for each of `n` devices: one for all, or a list.
fn targets(to: &str, n: usize) -> Result<Vec<Spec>, String> {
    if let Ok(one) = to.parse::<Spec>() {
        return Ok(vec![one; n]);
    }
    let list = to.split(',').map(str::parse).collect::<Result<Vec<Spec>, String>>()?;
    if list.len() == n { Ok(list) } else { Err(format!("{} places for {n} GPUs", list.len())) }
}

fn refused(to: &str, why: &str) -> Value {
    json!({ "v": 1, "ok": false, "to": to, "reason": why })
}

/// The report of one device's move. When a move of several has failed, each names the reason.
fn describe(job: &Job, leg: &Leg, result: &Result<(), String>, total: Duration, dry_run: bool) -> Value {
    let report = &leg.report;
    if let (Err(why), false) = (result, dry_run) {
        log::tell(&format!("GPU {} stays at {}: {why}", leg.device.index, leg.from));
    }
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let phases: serde_json::Map<String, Value> = report.phases.iter().map(|(n, t)| ((*n).to_owned(), json!(t))).collect();
    json!({
        "v": 1,
        "ok": result.is_ok(),
        "dry_run": dry_run,
        "gpu": leg.device.index,
        "from": leg.from.to_string(),
        "to": leg.to.to_string(),
        "bytes": report.bytes,
        "live_bytes": report.total_bytes,
        "records": report.records,
        "downtime_ms": ms(report.downtime),
        "gpu_idle_ms": ms(report.gpu_idle),
        "total_ms": ms(total),
        "phases": phases,
        "digest": report.digest,
        "kernel_running": report.kernel_running,
        "live_objects": report.live_objects,
        "at_ms": job.now_ms(),
        "reason": result.as_ref().err(),
    })
}

/// What the reports of devices that moved together come to.
fn sum(to: &str, reports: Vec<Value>) -> Value {
    let add = |key: &str| reports.iter().filter_map(|r| r[key].as_u64()).sum::<u64>();
    let most = |key: &str| reports.iter().filter_map(|r| r[key].as_f64()).fold(0.0, f64::max);
    let from: Vec<&str> = reports.iter().filter_map(|r| r["from"].as_str()).collect();
    json!({
        "v": 1,
        "ok": reports.iter().all(|r| r["ok"] == json!(true)),
        "gpu": null,
        "from": from.join(","),
        "to": to,
        "bytes": add("bytes"),
        "live_bytes": add("live_bytes"),
        "records": add("records"),
        "downtime_ms": most("downtime_ms"),
        "gpu_idle_ms": most("gpu_idle_ms"),
        "total_ms": most("total_ms"),
        "reason": reports.iter().find_map(|r| r["reason"].as_str()),
        "moves": reports,
    })
}

/// Reports of all moves so far.
pub(crate) fn history() -> Vec<Value> {
    lock(&HISTORY).clone()
}

fn unexpected(reply: &ControlReply) -> String {
    format!("an answer of the wrong kind: {reply:?}")
}

/// A dry run: opens the targets far enough to compare, and closes them again.
fn plan(job: &'static Job, legs: &mut [Leg]) -> Result<(), String> {
    each(legs, |leg| leg.check_source(job))?;
    for leg in legs.iter_mut() {
        if let Spec::Remote(_) = leg.to {
            leg.prepare()?;
        }
    }
    Ok(())
}

/// Does the same for all legs at a time. The first failure counts.
fn each(legs: &mut [Leg], step: impl Fn(&mut Leg) -> Result<(), String> + Sync) -> Result<(), String> {
    match legs {
        [one] => step(one),
        several => {
            let results: Vec<Result<(), String>> = std::thread::scope(|s| {
                let running: Vec<_> = several.iter_mut().map(|leg| s.spawn(|| step(leg))).collect();
                running.into_iter().map(|r| r.join().unwrap_or_else(|_| Err("a thread of the move failed".into()))).collect()
            });
            let named =
                results.into_iter().zip(several).map(|(r, leg)| r.map_err(|why| format!("GPU {}: {why}", leg.device.index)));
            named.collect()
        }
    }
}

fn run(job: &'static Job, legs: &mut [Leg], moving: &Moving) -> Result<(), String> {
    each(legs, |leg| leg.check_source(job))?;
    each(legs, Leg::prepare)?;
    each(legs, |leg| leg.replay(job))?;
    each(legs, Leg::connect)?;
    each(legs, Leg::precopy)?;
    let since = Instant::now();
    let quiet = {
        let sources: Vec<(&'static Device, &Place)> = legs.iter().map(|leg| (leg.device, &leg.source)).collect();
        quiesce(&sources)
    };
    legs.iter_mut().for_each(|leg| leg.note("quiesce", since));
    let quiet = quiet.map_err(|why| if why.starts_with("cannot") { why } else { format!("quiesce: {why}") })?;
    for (leg, was_busy) in legs.iter_mut().zip(&quiet.was_busy) {
        leg.report.kernel_running = *was_busy;
    }
    let idle_since = Instant::now();
    let finished = each(legs, |leg| leg.delta(job)).and_then(|()| each(legs, Leg::verify));
    let old: Vec<Box<Place>> = match &finished {
        Ok(()) => legs.iter_mut().filter_map(|leg| leg.commit(&quiet.gate, moving)).collect(),
        Err(_) => Vec::new(),
    };
    let gpu_idle = idle_since.elapsed();
    let downtime = quiet.gate.open();
    for leg in legs.iter_mut() {
        leg.report.downtime = downtime;
        if finished.is_ok() {
            leg.report.gpu_idle = gpu_idle;
        }
    }
    finished?;
    let since = Instant::now();
    legs.iter_mut().for_each(Leg::hang_up);
    old.into_iter().for_each(|place| place.release());
    legs.iter_mut().for_each(|leg| leg.note("release", since));
    Ok(())
}

/// Random bytes of the system.
fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0u8; N];
    // SAFETY: the buffer has N bytes.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(n) == Ok(N) { Ok(bytes) } else { Err("no random numbers".into()) }
}
