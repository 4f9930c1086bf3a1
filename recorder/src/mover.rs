//! The move: plan, prepare, pre-copy, quiesce, delta, verify, commit, release (docs/design.md, "A move").
//!
//! Until the commit the source is untouched and whatever fails leaves the job where it was. The commit is one store in this
//! process; the target has said before it that it holds the same bytes at the same addresses.

use crate::gate::{self, Closed};
use crate::job::{Device, Job};
use crate::log::{self, lock};
use crate::place::{Place, Spec, Waiting};
use cuda_api::arg::LEGACY;
use cuda_api::calls::Call;
use cuda_api::calls::stream::{cuEventCreate, cuEventDestroy_v2};
use cuda_api::code::{self, Code};
use cuda_api::ops;
use cuda_api::wire::Wire;
use journal::OwnedRecord;
use rcuda_forwarder::{Control, ControlReply, Link, RoundInfo};
use replayer::replay::{Record, Sink, replay};
use replayer::{Applied, Executor};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Proof that this thread is the one that moves the job.
#[derive(Debug)]
pub(crate) struct Moving(());

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static HISTORY: Mutex<Vec<Value>> = Mutex::new(Vec::new());

/// Connections that carry a move's bytes.
const STRIPES: u32 = 4;
/// Records on their way to the target at a time.
const WINDOW: usize = 256;
/// Limits of the attempts to quiesce: short ones first, since a job that waits for itself is then hardly disturbed, longer ones
/// for kernels that simply take long.
const QUIESCE: [Duration; 4] = [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(5)];
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

/// Closes the gate and waits until the source is idle: every attempt is bounded and can be abandoned.
fn quiesce(device: &'static Device, source: &Place, report: &mut Report) -> Result<Closed, String> {
    let mut why = String::new();
    for (attempt, limit) in QUIESCE.into_iter().enumerate() {
        if attempt > 0 {
            // A random pause: two programs that disturb each other should not meet again.
            std::thread::sleep(Duration::from_micros(2000 + u64::from(Instant::now().elapsed().subsec_nanos()) % 20_000));
        }
        let since = Instant::now();
        let Some(closed) = gate::close(limit) else {
            why = "a thread stays inside a CUDA call (a module is being loaded, or a copy waits)".into();
            continue;
        };
        let drained = drain(source, limit.saturating_sub(since.elapsed()).max(Duration::from_millis(50)))?;
        report.kernel_running |= drained.was_busy;
        if !drained.idle {
            why = drained.what;
            continue;
        }
        while device.waiters.load(Ordering::Acquire) != 0 && since.elapsed() < limit + Duration::from_secs(1) {
            std::thread::yield_now();
        }
        if device.waiters.load(Ordering::Acquire) != 0 {
            why = "a thread waits for an answer that does not come".into();
            continue;
        }
        return Ok(closed);
    }
    Err(format!("cannot move now: the GPU did not become idle: {why}"))
}

struct Drained {
    idle: bool,
    was_busy: bool,
    what: String,
}

fn drain(source: &Place, limit: Duration) -> Result<Drained, String> {
    match source {
        Place::Remote { link, .. } => {
            let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            match link.control(&Control::Drain { limit_ms }).map_err(|e| e.to_string())? {
                ControlReply::Drained { idle, was_busy, waits_for } => Ok(Drained { idle, was_busy, what: waits_for }),
                other => Err(unexpected(&other)),
            }
        }
        Place::Local { exec, .. } => {
            let since = Instant::now();
            let mut bytes = Vec::new();
            let mut pending = match exec.apply(ops::id::CONTEXT_SYNC, &[], &mut bytes) {
                Applied::Done(code::SUCCESS) => return Ok(Drained { idle: true, was_busy: false, what: String::new() }),
                Applied::Done(rc) => return Err(format!("error {rc} on waiting for the GPU")),
                Applied::Pending(p) => p,
            };
            let mut was_busy = false;
            loop {
                match pending.poll(exec, &mut bytes) {
                    Some(code::SUCCESS) => return Ok(Drained { idle: true, was_busy, what: String::new() }),
                    Some(rc) => return Err(format!("error {rc} on waiting for the GPU")),
                    None => was_busy = true,
                }
                if since.elapsed() > limit {
                    // Its events must be waited for all the same before they are used again.
                    let exec = exec.clone();
                    std::thread::spawn(move || pending.wait(&exec, &mut Vec::new()));
                    return Ok(Drained { idle: false, was_busy, what: "kernels are still running".into() });
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

/// Both places must have the same globals at the same addresses, the same heap and the same chunks.
fn compare(source: &Place, target: &Place) -> Result<(), String> {
    let (a, b) = (shape(source)?, shape(target)?);
    if a == b {
        return Ok(());
    }
    let first = a.iter().zip(&b).find(|(x, y)| x != y);
    Err(match first {
        Some((x, y)) => format!("cannot move: {} lies at {:#x} here and {} at {:#x} in the target", x.0, x.1, y.0, y.1),
        None => format!("cannot move: {} ranges of memory here, {} in the target", a.len(), b.len()),
    })
}

/// Names, addresses and sizes of all memory that a place holds for the job.
fn shape(place: &Place) -> Result<Vec<(String, u64, u64)>, String> {
    let failed = |rc: Code| format!("error {rc} on listing memory");
    let (globals, heap, chunks) = match place {
        Place::Remote { link, .. } => match link.control(&Control::Regions).map_err(|e| e.to_string())? {
            ControlReply::Regions { globals, heap, chunks } => {
                (globals.into_iter().map(|g| (g.name, g.address, g.bytes)).collect::<Vec<_>>(), heap, chunks)
            }
            other => return Err(unexpected(&other)),
        },
        Place::Local { exec, .. } => (
            exec.globals().map_err(failed)?.into_iter().map(|g| (g.name, g.address, g.bytes)).collect(),
            exec.heap().map_err(failed)?,
            exec.chunks().into_iter().map(|c| (c.address, c.bytes)).collect(),
        ),
    };
    let heap = heap.map(|(a, n)| ("the device heap".to_owned(), a, n));
    let chunks = chunks.into_iter().map(|(a, n)| ("a chunk".to_owned(), a, n));
    Ok(globals.into_iter().chain(heap).chain(chunks).collect())
}

/// Runs an operation on a quiet place and waits for it.
fn ask(place: &Place, id: u16, body: &[u8]) -> Result<Vec<u8>, String> {
    let failed = |rc: Code| format!("{} failed with error {rc}", ops::name(id).unwrap_or("a call"));
    let (rc, bytes) = place.begin(id, &[body]).map_err(failed)?.finish();
    if rc == code::SUCCESS { Ok(bytes) } else { Err(failed(rc)) }
}

fn encoded<T: Wire>(value: &T) -> Vec<u8> {
    let mut body = Vec::new();
    value.put(&mut body);
    body
}

/// When the reference event of a quiet place happened, on the job's clock: an event recorded now is a known time after it.
fn reference_ms(job: &Job, device: &Device, place: &Place) -> Result<f64, String> {
    let event = job.tables.events.make(device.index).map_err(|rc| format!("error {rc}"))?;
    let measure = || {
        ask(place, cuEventCreate::Fn::ID, &encoded(&cuEventCreate::Sent { phEvent: event, Flags: 0 }))?;
        ask(place, ops::id::EVENT_RECORD, &encoded(&ops::EventRecord { event, stream: LEGACY, flags: 0 }))?;
        ask(place, ops::id::EVENT_SYNC, &event.to_le_bytes())?;
        let now = job.now_ms();
        let bytes = ask(place, ops::id::EVENT_TIME, &event.to_le_bytes())?;
        ask(place, cuEventDestroy_v2::Fn::ID, &encoded(&cuEventDestroy_v2::Sent { hEvent: event }))?;
        f64::get(&mut &bytes[..]).map(|t| now - t).map_err(|e| e.to_string())
    };
    let result = measure();
    job.tables.events.end(event);
    result
}

/// Asks the quiet source when each event happened: the next place cannot know.
fn keep_event_times(job: &Job, device: &Device, source: &Place) -> Result<(), String> {
    const DISABLE_TIMING: u32 = 2;
    let epoch = device.epoch.load(Ordering::Relaxed);
    let events = job.tables.events.all(device.index);
    let timed: Vec<_> = events
        .into_iter()
        .filter(|(_, e)| e.data.epoch.load(Ordering::Relaxed) == epoch && e.data.flags.load(Ordering::Relaxed) & DISABLE_TIMING == 0)
        .collect();
    if timed.is_empty() {
        return Ok(());
    }
    let reference = reference_ms(job, device, source)?;
    for window in timed.chunks(WINDOW) {
        let mut waiting = Vec::with_capacity(WINDOW);
        for (h, e) in window {
            let w = source.begin(ops::id::EVENT_TIME, &[&h.to_le_bytes()]).map_err(|rc| format!("error {rc} on asking for an event's time"))?;
            waiting.push((w, e));
        }
        for (w, e) in waiting {
            let (rc, bytes) = w.finish();
            if rc != code::SUCCESS {
                return Err(format!("error {rc} on asking for an event's time"));
            }
            let t = f64::get(&mut &bytes[..]).map_err(|e| e.to_string())?;
            e.data.happened_ms.store((reference + t).to_bits(), Ordering::Relaxed);
        }
    }
    Ok(())
}

/// The connections between source and target, and who sits at their ends.
enum Wires {
    /// From server to server, not through this process.
    Servers { source: Arc<Link>, target: Arc<Link>, ticket: [u8; 32] },
    /// From a server into this process.
    Home { source: Arc<Link>, exec: Arc<Executor>, conns: Vec<Box<dyn memsync::Stream>>, ticket: [u8; 32] },
    /// From this process to a server.
    Away { exec: Arc<Executor>, target: Arc<Link>, conns: Vec<Box<dyn memsync::Stream>>, ticket: [u8; 32] },
}

fn control(link: &Link, c: &Control) -> Result<ControlReply, String> {
    match link.control(c).map_err(|e| e.to_string())? {
        ControlReply::Refused(why) => Err(why),
        reply => Ok(reply),
    }
}

fn ticket() -> Result<[u8; 32], String> {
    let mut t = [0u8; 32];
    // SAFETY: the buffer has 32 bytes.
    let n = unsafe { libc::getrandom(t.as_mut_ptr().cast(), t.len(), 0) };
    if n == 32 { Ok(t) } else { Err("no random numbers".into()) }
}

impl Wires {
    fn connect(source: &Place, target: &Place) -> Result<Wires, String> {
        let ticket = ticket()?;
        let expect = Control::Expect { ticket, stripes: STRIPES };
        match (source, target) {
            (Place::Remote { link: s, .. }, Place::Remote { link: t, endpoint }) => {
                control(t, &expect)?;
                control(s, &Control::Connect { to: endpoint.to_string(), ticket, stripes: STRIPES })?;
                control(t, &Control::Accept { ticket })?;
                Ok(Wires::Servers { source: s.clone(), target: t.clone(), ticket })
            }
            (Place::Remote { link, endpoint }, Place::Local { exec, .. }) => {
                control(link, &expect)?;
                let conns = rcuda_forwarder::bulk_connect(endpoint, &ticket, STRIPES).map_err(|e| e.to_string())?;
                control(link, &Control::Accept { ticket })?;
                Ok(Wires::Home { source: link.clone(), exec: exec.clone(), conns, ticket })
            }
            (Place::Local { exec, .. }, Place::Remote { link, endpoint }) => {
                control(link, &expect)?;
                let conns = rcuda_forwarder::bulk_connect(endpoint, &ticket, STRIPES).map_err(|e| e.to_string())?;
                control(link, &Control::Accept { ticket })?;
                Ok(Wires::Away { exec: exec.clone(), target: link.clone(), conns, ticket })
            }
            (Place::Local { .. }, Place::Local { .. }) => Err("cannot move inside this process".into()),
        }
    }

    /// One round of memsync: both ends run at the same time, and both must succeed.
    fn round(&mut self, verify: bool) -> Result<RoundInfo, String> {
        let remote = |link: &Link, c: Control| match control(link, &c)? {
            ControlReply::Round(r) => Ok(r),
            other => Err(unexpected(&other)),
        };
        std::thread::scope(|s| {
            let (from, to) = match self {
                Wires::Servers { source, target, ticket } => {
                    let ticket = *ticket;
                    let from = s.spawn(move || remote(source, Control::RoundSource { ticket }));
                    let to = remote(target, Control::RoundTarget { ticket, verify });
                    (from.join(), to)
                }
                Wires::Home { source, exec, conns, ticket } => {
                    let ticket = *ticket;
                    let from = s.spawn(move || remote(source, Control::RoundSource { ticket }));
                    let to = memsync::run_target(exec, conns, verify).map(RoundInfo::from).map_err(|e| e.to_string());
                    (from.join(), to)
                }
                Wires::Away { exec, target, conns, ticket } => {
                    let ticket = *ticket;
                    let to = s.spawn(move || remote(target, Control::RoundTarget { ticket, verify }));
                    let from = memsync::run_source(exec, conns, memsync::Faults::from_env()).map(RoundInfo::from).map_err(|e| e.to_string());
                    (Ok(from), to.join().unwrap_or_else(|_| Err("the copying thread failed".into())))
                }
            };
            let from = from.unwrap_or_else(|_| Err("the copying thread failed".into()))?;
            let to = to?;
            if verify && from.digest != to.digest {
                return Err("the target holds other bytes than the source".into());
            }
            Ok(RoundInfo { digest: to.digest, ..from })
        })
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        let hang_up = |link: &Link, ticket: [u8; 32]| drop(link.control(&Control::HangUp { ticket }));
        match self {
            Wires::Servers { source, target, ticket } => {
                hang_up(source, *ticket);
                hang_up(target, *ticket);
            }
            Wires::Home { source, ticket, .. } => hang_up(source, *ticket),
            Wires::Away { target, ticket, .. } => hang_up(target, *ticket),
        }
    }
}
