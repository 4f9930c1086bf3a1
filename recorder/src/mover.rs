//! The move: plan, prepare, pre-copy, quiesce, delta, verify, commit, release (docs/design.md, "A move").
//!
//! Until the commit the source is untouched and whatever fails leaves the job where it was. The commit is one store in this
//! process; the target has said before it that it holds the same bytes at the same addresses.

use crate::job::{Device, Job};
use crate::log::{self, lock};
use crate::place::{Place, Spec, Waiting};
use compare::compare;
use cuda_api::code::Code;
use journal::OwnedRecord;
use quiesce::quiesce;
use rcuda_forwarder::{Control, ControlReply};
use replayer::replay::{Record, Sink, replay};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use times::{keep_event_times, reference_ms};
use wires::Wires;

mod compare;
mod quiesce;
mod times;
mod wires;

/// Proof that this thread is the one that moves the job.
#[derive(Debug)]
pub(crate) struct Moving(());

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static HISTORY: Mutex<Vec<Value>> = Mutex::new(Vec::new());

/// Records on their way to the target at a time.
const WINDOW: usize = 256;
/// Pre-copy ends when a round has sent no more than this...
const SMALL_ROUND: u64 = 64 << 20;
/// ... or after this many rounds.
const ROUNDS: usize = 3;
/// Memory of the target that is left free beside the job's.
const HEADROOM: u64 = 64 << 20;

/// What a move did, in the words of `mrcuda migrate --json`.
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

impl Report {
    fn phase<T>(&mut self, name: &'static str, run: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        let since = Instant::now();
        let r = run(self);
        self.phases.push((name, since.elapsed().as_secs_f64() * 1e3));
        r.map_err(|why| if why.starts_with("cannot") { why } else { format!("{name}: {why}") })
    }
}

/// Moves one device, or with `None` each in turn. The answer is the report of the last move; all are kept for `moves`.
pub(crate) fn migrate(job: &'static Job, device: Option<u32>, to: &str, dry_run: bool) -> Value {
    let spec: Spec = match to.parse() {
        Ok(s) => s,
        Err(why) => return refused(to, &why),
    };
    let chosen: Vec<&'static Device> = match device {
        Some(d) => match job.devices.get(d as usize) {
            Some(device) => vec![device],
            None => return refused(to, &format!("this job has {} GPUs: there is no GPU {d}", job.devices.len())),
        },
        None => job.devices.iter().collect(),
    };
    let mut last = Value::Null;
    for device in chosen {
        last = migrate_one(job, device, &spec, dry_run);
        if last["ok"] != json!(true) {
            break;
        }
    }
    last
}

fn refused(to: &str, why: &str) -> Value {
    json!({ "v": 1, "ok": false, "to": to, "reason": why })
}

fn migrate_one(job: &'static Job, device: &'static Device, to: &Spec, dry_run: bool) -> Value {
    let _one = lock(&ONE_AT_A_TIME);
    let moving = Moving(());
    let from = device.place_for_mover(&moving).spec();
    let since = Instant::now();
    let mut report = Report::default();
    let result = if dry_run { plan(job, device, to, &moving, &mut report) } else { run(job, device, to, &moving, &mut report) };
    lock(&device.ledger).end_move();
    if let (Err(why), false) = (&result, dry_run) {
        log::tell(&format!("GPU {} stays at {from}: {why}", device.index));
    }
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let phases: serde_json::Map<String, Value> = report.phases.iter().map(|(n, t)| ((*n).to_owned(), json!(t))).collect();
    let value = json!({
        "v": 1,
        "ok": result.is_ok(),
        "dry_run": dry_run,
        "gpu": device.index,
        "from": from.to_string(),
        "to": to.to_string(),
        "bytes": report.bytes,
        "live_bytes": report.total_bytes,
        "records": report.records,
        "downtime_ms": ms(report.downtime),
        "gpu_idle_ms": ms(report.gpu_idle),
        "total_ms": ms(since.elapsed()),
        "phases": phases,
        "digest": report.digest,
        "kernel_running": report.kernel_running,
        "live_objects": report.live_objects,
        "at_ms": job.now_ms(),
        "reason": result.err(),
    });
    if !dry_run {
        lock(&HISTORY).push(value.clone());
    }
    log::trace(|| format!("move: {value}"));
    value
}

/// Reports of all moves so far.
pub(crate) fn history() -> Vec<Value> {
    lock(&HISTORY).clone()
}

/// What can be known before anything is opened.
fn check_source(job: &Job, device: &Device, to: &Spec, moving: &Moving, report: &mut Report) -> Result<(), String> {
    report.live_objects = job.live(device.index).values().sum();
    report.total_bytes = device.memory().used();
    report.records = job.records(device.index);
    if device.sticky() != 0 {
        return Err(format!("cannot move: the context has failed with error {}", device.sticky()));
    }
    if let (Place::Local { .. }, Spec::Local(_)) = (device.place_for_mover(moving), to) {
        return Err("cannot move: two GPUs of this machine need a helper process, which is not there yet".into());
    }
    Ok(())
}

/// Whether the target can hold the job, with the figures.
fn check_target(device: &Device, target: &Place) -> Result<(), String> {
    let (have, want) = (target.device(), &device.info);
    if have.driver_version != want.driver_version {
        return Err(format!(
            "cannot move: the target's driver speaks CUDA {}, this job started with {}",
            version(have.driver_version),
            version(want.driver_version)
        ));
    }
    if have.capability != want.capability {
        let dot = |c: [i32; 2]| format!("{}.{}", c[0], c[1]);
        return Err(format!(
            "cannot move: the target is a {} of compute capability {}, the job's code was chosen for {}",
            have.name,
            dot(have.capability),
            dot(want.capability)
        ));
    }
    let need = device.memory().used() + HEADROOM;
    let free = free_bytes(target)?;
    if free < need {
        return Err(format!("cannot move: the job needs {} MiB, the target has {} MiB free", need >> 20, free >> 20));
    }
    Ok(())
}

fn version(v: i32) -> String {
    format!("{}.{}", v / 1000, v % 1000 / 10)
}

fn free_bytes(place: &Place) -> Result<u64, String> {
    match place {
        Place::Remote { link, .. } => match link.control(&Control::FreeBytes).map_err(|e| e.to_string())? {
            ControlReply::FreeBytes(n) => Ok(n),
            other => Err(unexpected(&other)),
        },
        Place::Local { exec, .. } => exec.free_bytes().map_err(|rc| format!("error {rc} on asking for free memory")),
    }
}

fn unexpected(reply: &ControlReply) -> String {
    match reply {
        ControlReply::Refused(why) => why.clone(),
        other => format!("an answer of the wrong kind: {other:?}"),
    }
}

/// A dry run: opens the target far enough to compare, and closes it again.
fn plan(job: &'static Job, device: &'static Device, to: &Spec, moving: &Moving, report: &mut Report) -> Result<(), String> {
    report.phase("plan", |report| {
        check_source(job, device, to, moving, report)?;
        if let Spec::Remote(_) = to {
            let target = Place::open(to, device.index)?;
            let fits = check_target(device, &target);
            release(target);
            fits?;
        }
        Ok(())
    })
}

/// The records of a journal go to a place through this window.
struct ToPlace<'a> {
    place: &'a Place,
    waiting: VecDeque<Waiting>,
}

impl Sink for ToPlace<'_> {
    fn submit(&mut self, id: u16, body: &[u8]) -> Result<(), String> {
        let w = self.place.begin(id, &[body]).map_err(|_| "the target is gone".to_owned())?;
        self.waiting.push_back(w);
        Ok(())
    }

    fn next_result(&mut self) -> Result<(Code, Vec<u8>), String> {
        self.waiting.pop_front().map(Waiting::finish).ok_or_else(|| "no record is on its way".to_owned())
    }
}

fn replay_to(place: &Place, records: &[OwnedRecord]) -> Result<(), String> {
    let mut sink = ToPlace { place, waiting: VecDeque::new() };
    let all = records.iter().map(|r| Record { seq: r.seq, id: r.id, body: &r.body, reply: &r.reply });
    replay(all, &mut sink, WINDOW).map(drop).map_err(|d| d.to_string())
}

/// A target that has not been committed to: freed unless taken.
struct Target(Option<Place>);

impl Target {
    fn place(&self) -> &Place {
        // The place is there until `take`, after which nobody asks.
        self.0.as_ref().expect("a target is taken once, at the end")
    }

    fn take(mut self) -> Option<Place> {
        self.0.take()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(p) = self.0.take() {
            release(p);
        }
    }
}

fn release(place: Place) {
    match place {
        Place::Remote { link, .. } => link.close(),
        Place::Local { exec, .. } => exec.close(),
    }
}

fn run(job: &'static Job, device: &'static Device, to: &Spec, moving: &Moving, report: &mut Report) -> Result<(), String> {
    report.phase("plan", |report| check_source(job, device, to, moving, report))?;
    let target = report.phase("prepare", |_| {
        let target = Target(Some(Place::open(to, device.index)?));
        check_target(device, target.place())?;
        Ok(target)
    })?;
    let source = device.place_for_mover(moving);
    report.phase("replay", |report| {
        let live = lock(&device.ledger).begin_move()?;
        report.records = live.len() as u64;
        replay_to(target.place(), &live)
    })?;
    let target_clock = reference_ms(job, device, target.place())?;
    let mut wires = report.phase("connect", |_| Wires::connect(source, target.place()))?;
    report.phase("precopy", |report| {
        for _ in 0..ROUNDS {
            let tail = lock(&device.ledger).take_tail();
            replay_to(target.place(), &tail)?;
            let sent = wires.round(false)?.bytes_sent;
            report.bytes += sent;
            if sent <= SMALL_ROUND {
                break;
            }
        }
        Ok(())
    })?;
    let quiet = report.phase("quiesce", |report| quiesce(device, source, report))?;
    let idle_since = Instant::now();
    let finish = report.phase("delta", |report| {
        let tail = lock(&device.ledger).take_tail();
        replay_to(target.place(), &tail)?;
        keep_event_times(job, device, source)?;
        let round = wires.round(true)?;
        report.bytes += round.bytes_sent;
        report.digest = crate::context::hex(&round.digest);
        Ok(())
    });
    let finish = finish.and_then(|()| report.phase("verify", |_| compare(source, target.place())));
    if let Err(why) = finish {
        report.downtime = quiet.open();
        return Err(why);
    }
    let Some(place) = target.take() else { return Err("cannot move: the target is gone".into()) };
    device.watch(&place);
    let old = device.commit(place, &quiet, moving);
    lock(&device.clock).reference_ms = target_clock;
    report.gpu_idle = idle_since.elapsed();
    report.downtime = quiet.open();
    report.phase("release", |_| {
        drop(wires);
        release(*old);
        Ok(())
    })
}

/// Random bytes of the system.
fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0u8; N];
    // SAFETY: the buffer has N bytes.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(n) == Ok(N) { Ok(bytes) } else { Err("no random numbers".into()) }
}
