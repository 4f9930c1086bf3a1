//! Moves of jobs with much memory: the costs of replay, memsync and the quiesce, by bytes, regions, records and path.
//!
//! One job for each load. It visits the available places, working all the time, and checks every word at its end. Loads
//! alternate; if time is left they are all repeated, so that medians are of runs at different times.

use super::figures::{Ask, Figures};
use super::goals::Goal;
use super::stage::{Server, Stage, home};
use super::table::Table;
use super::times::Times;
use crate::cases::{Case, size};
use crate::error::Error;
use crate::peer::{Controls, Way, copy_bandwidth};
use models::Sample;
use models::fit::{median, one};
use models::form;
use models::plot::{Plot, Series};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The memory and objects of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Load {
    mib: u64,
    regions: u64,
    events: u32,
    modules: u32,
    /// Pages that its kernels change all the time.
    touched: u32,
}

/// Connections that carry a move's bytes: the control that is the path's limit has as many.
const STRIPES: u32 = 4;
/// The control that is the limit where the GPU copies by itself.
const ON_GPU: &str = "copy on the GPU";
/// Numbers of connections that are measured.
const WIDTHS: [u32; 3] = [1, STRIPES, 8];
/// Times that all loads are done, if time is left: quick, and otherwise.
const PASSES: [usize; 2] = [1, 3];
/// Phases that are printed.
const PHASES: [&str; 8] = ["prepare", "replay", "connect", "precopy", "quiesce", "delta", "verify", "release"];

/// The loads: every number of regions with every size, the rest varied with them.
fn loads(ask: Ask) -> Vec<Load> {
    let (sizes, regions): (&[u64], &[u64]) = match (ask.quick, ask.validation) {
        (true, false) => (&[4, 16], &[1, 8]),
        (true, true) => (&[8], &[4]),
        (false, false) => (&[1024, 64, 4096, 256, 16384], &[1, 4096, 64]),
        (false, true) => (&[8192, 128, 2048, 512], &[16, 1024]),
    };
    let (events, modules, touched): (&[u32], &[u32], &[u32]) = match (ask.quick, ask.validation) {
        (true, _) => (&[0, 300], &[1, 3], &[16]),
        (false, false) => (&[0, 20_000, 2_000], &[1, 16], &[256, 16, 800]),
        (false, true) => (&[5_000, 500], &[8, 2], &[64, 500]),
    };
    let all = regions.iter().flat_map(|regions| sizes.iter().map(move |mib| (*mib, *regions)));
    let load = |(number, (mib, regions)): (usize, (u64, u64))| Load {
        mib,
        regions,
        events: events[number % events.len()],
        modules: modules[number % modules.len()],
        touched: touched[number % touched.len()],
    };
    all.enumerate().map(load).collect()
}

/// The places of a tour, in an order that takes every way between two kinds of places, if they are there.
fn tour(servers: &[Server; 2]) -> Vec<String> {
    let (one, two) = (&servers[0], &servers[1]);
    let [local, helper] = ["local".to_owned(), "helper".to_owned()];
    [&two.tls, &local, &one.tls, &helper, &local, &helper, &one.unix, &two.unix, &local, &one.unix, &helper, &one.tls]
        .into_iter()
        .cloned()
        .collect()
}

/// A move, with its job's load.
struct Moved {
    load: Load,
    way: String,
    to: &'static str,
    report: Value,
}

impl Moved {
    fn number(&self, key: &str) -> f64 {
        self.report[key].as_f64().unwrap_or(0.0)
    }

    fn phase(&self, name: &str) -> f64 {
        self.report["phases"][name].as_f64().unwrap_or(0.0)
    }

    /// What models are fitted to: each overhead of this move.
    fn overheads(&self) -> [Sample; 5] {
        let n = |key| self.number(key);
        let (bytes, regions) = (n("chunk_bytes"), n("chunks"));
        let sample = |what: &str, path: &str, terms: &[(&str, f64)], ms: f64| Sample {
            what: what.to_owned(),
            path: path.to_owned(),
            terms: terms.iter().map(|(term, amount)| ((*term).to_owned(), *amount)).collect(),
            seconds: ms / 1e3,
            runs: 1,
        };
        let opening = ["plan", "prepare", "connect"].iter().map(|p| self.phase(p)).sum();
        let records = [("records", n("records")), ("chunks", regions), ("modules", n("modules"))];
        let held = [("held", bytes), ("sent", n("delta_bytes")), ("regions", regions)];
        let copied = [("bytes", bytes), ("regions", regions)];
        [
            sample("replay", self.to, &records, self.phase("replay")),
            sample("memsync", &self.way, &copied, self.phase("precopy")),
            sample("downtime", &self.way, &held, n("downtime_ms")),
            sample("prepare", &self.way, &[], opening),
            sample("release", &self.way, &copied, self.phase("release")),
        ]
    }
}

/// Moves jobs until all loads are done or the time is over.
pub(super) fn run(
    stage: &Stage,
    servers: &[Server; 2],
    controls: &Controls,
    ask: Ask,
    out: &Path,
    figures: &mut Figures,
) -> Result<(), Error> {
    let limit = Duration::from_secs(ask.seconds);
    let loads = loads(ask);
    // The first tour on a machine finds everything cold, once: no model is about that.
    if let Some(smallest) = loads.iter().min_by_key(|load| load.mib) {
        job(stage, servers, *smallest, Memory::Copied, Instant::now() + limit, figures)?;
    }
    let start = Instant::now();
    let mut moved = Vec::new();
    let mut widths: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    'passes: for pass in 0..PASSES[usize::from(!ask.quick)] {
        for (number, load) in loads.iter().enumerate() {
            if start.elapsed() > limit {
                if pass == 0 {
                    figures.miss("moves", format!("only {number} of {} loads fitted into {} s", loads.len(), ask.seconds));
                }
                break 'passes;
            }
            eprint!("\rmoves: {:?} of {limit:?}, load {} of {} ", start.elapsed(), number + 1, loads.len());
            raw(stage, controls, ask, &mut widths)?;
            match job(stage, servers, *load, Memory::Copied, start + limit, figures) {
                Ok(more) => moved.extend(more),
                Err(why) => figures.miss(&format!("moves of {} MiB in {} regions", load.mib, load.regions), why),
            }
        }
    }
    eprintln!();
    if moved.is_empty() {
        return Err(Error::Found("no job could be moved".to_owned()));
    }
    figures.table(table("Moves, phases in milliseconds", &moved));
    // Between places of one GPU, which the models do not describe.
    let handed: Result<Vec<_>, _> = [1, 64, 4096]
        .iter()
        .filter_map(|regions| loads.iter().filter(|load| load.regions == *regions).max_by_key(|load| load.mib))
        .map(|load| job(stage, servers, *load, Memory::HandedOver, Instant::now() + limit, figures))
        .collect();
    match handed {
        Ok(all) => figures
            .table(table("Moves that hand memory over, phases in milliseconds", &all.into_iter().flatten().collect::<Vec<_>>())),
        Err(why) => figures.miss("moves that hand memory over", why),
    }
    let limits: BTreeMap<String, f64> = widths.iter().map(|(name, all)| (name.clone(), median(all))).collect();
    let mut raw = Table::new("Raw bandwidth, GB/s", ["way", "GB/s"]);
    limits.iter().for_each(|(name, n)| raw.row([name.clone(), format!("{:.2}", n / 1e9)]));
    figures.table(raw);
    figures.parts.insert("raw_bandwidth".into(), json!({"unit": "bytes/s", "ways": limits}));
    let reports = moved.iter().map(|m| {
        let Load { mib, regions, events, modules, touched } = m.load;
        json!({"way": m.way, "load": {"mib": mib, "regions": regions, "events": events, "modules": modules, "touched": touched},
            "report": m.report})
    });
    figures.parts.insert("moves".into(), reports.collect());
    let samples = samples(&moved);
    goals(&moved, &samples, &limits, figures);
    plot(&samples, out, figures)?;
    figures.samples.extend(samples);
    Ok(())
}

/// What sockets carry and the GPU copies, just before a job.
fn raw(stage: &Stage, controls: &Controls, ask: Ask, widths: &mut BTreeMap<String, Vec<f64>>) -> Result<(), Error> {
    let bytes = if ask.quick { 16 << 20 } else { 256 << 20 };
    for (way, name) in [(Way::Tcp, "tcp"), (Way::Unix, "unix")] {
        for width in WIDTHS {
            let n = controls.bandwidth(way, width, bytes).map_err(Error::Control)?;
            widths.entry(format!("{name}, {width} connections")).or_default().push(n);
        }
    }
    widths.entry("copy by one core".into()).or_default().push(copy_bandwidth(1, bytes as usize));
    let mut client = stage.native(&["client"])?;
    client.answer()?;
    let bytes = bytes * 4;
    let answer = client.ask(&format!("{} 20 500", Case::Inside(bytes as usize)))?;
    let times: Vec<f64> = answer["ns"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    if times.is_empty() {
        return Err(Error::Found(format!("a control failed: the GPU does not copy: {answer}")));
    }
    widths.entry(ON_GPU.into()).or_default().push(bytes as f64 / median(&times) * 1e9);
    client.finish()?;
    Ok(())
}

/// What becomes of memory between places of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Copied,
    HandedOver,
}

/// One job's tour. Moves that would hand memory over and cannot, because the places are treated as of two machines, are left out.
fn job(
    stage: &Stage,
    servers: &[Server; 2],
    load: Load,
    memory: Memory,
    until: Instant,
    figures: &mut Figures,
) -> Result<Vec<Moved>, Error> {
    let stop = stage.directory.join("stop");
    // There from the job before.
    let _ = std::fs::remove_file(&stop);
    let args = [
        ("--mib", load.mib.to_string()),
        ("--regions", load.regions.to_string()),
        ("--events", load.events.to_string()),
        ("--modules", load.modules.to_string()),
        ("--touched", load.touched.to_string()),
        ("--until", stop.display().to_string()),
    ];
    let args: Vec<&str> = ["live"].into_iter().chain(args.iter().flat_map(|(key, value)| [*key, value.as_str()])).collect();
    let copied = if memory == Memory::Copied { "1" } else { "0" };
    let mut job = stage.job(home(servers), &args, &[("MRCUDA_FAULT_NO_ADOPTION", copied)])?;
    job.answer()?;
    let mut asked = home(servers).to_owned();
    let mut moved = Vec::new();
    for to in tour(servers) {
        if to == asked || Instant::now() > until {
            continue;
        }
        match stage.migrate(job.pid(), &to) {
            Ok(report) => {
                // The job may have been taken elsewhere than where it was asked to go.
                let [from, there] = ["from", "to"].map(|end| report["legs"][0][end].as_str().unwrap_or_default());
                if let (wanted @ ("tls" | "tcp"), by) = (form::transport(there), report["transport"].as_str())
                    && by != Some(wanted)
                {
                    return Err(format!("{there} is reached by {}, not by {wanted}", by.unwrap_or("nothing")).into());
                }
                if memory == Memory::Copied || report["bytes_adopted"].as_u64() > Some(0) {
                    moved.push(Moved { load, way: form::way(from, there), to: form::transport(there), report });
                }
                asked = to;
            }
            Err(why) => figures.miss(&format!("moves {}", form::way(&asked, &to)), why),
        }
    }
    std::fs::write(&stop, "")?;
    let end = job.answer()?;
    job.finish().map_err(|why| format!("{why}: {end}"))?;
    Ok(moved)
}

/// One sample for each overhead, path and load: the medians of its runs.
fn samples(moved: &[Moved]) -> Vec<Sample> {
    let mut groups: BTreeMap<(String, String, Load), Vec<Sample>> = BTreeMap::new();
    for m in moved {
        for s in m.overheads() {
            groups.entry((s.what.clone(), s.path.clone(), m.load)).or_default().push(s);
        }
    }
    let middle = |runs: &[Sample], f: &dyn Fn(&Sample) -> f64| median(&runs.iter().map(f).collect::<Vec<_>>());
    let one = |((what, path, _), runs): ((String, String, Load), Vec<Sample>)| Sample {
        what,
        path,
        terms: runs[0].terms.keys().map(|term| (term.clone(), middle(&runs, &|s| s.amount(term)))).collect(),
        seconds: middle(&runs, &|s| s.seconds),
        runs: runs.len() as u64,
    };
    groups.into_iter().map(one).collect()
}

/// Phases in milliseconds: the median of each load and way.
fn table(title: &str, moved: &[Moved]) -> Table {
    let mut groups: BTreeMap<(&str, u64, u64), Vec<&Moved>> = BTreeMap::new();
    for m in moved {
        groups.entry((&m.way, m.load.mib, m.load.regions)).or_default().push(m);
    }
    let heads = ["move", "live", "regions"].into_iter().chain(PHASES).chain(["total", "downtime", "n"]);
    let mut table = Table::new(title, heads);
    for ((way, mib, regions), all) in groups {
        let middle = |f: &dyn Fn(&Moved) -> f64| median(&all.iter().map(|m| f(m)).collect::<Vec<_>>());
        let mut cells = vec![way.to_owned(), size((mib << 20) as usize), regions.to_string()];
        cells.extend(PHASES.iter().map(|p| format!("{:.2}", middle(&|m| m.phase(p)))));
        cells.push(format!("{:.1}", middle(&|m| m.number("total_ms"))));
        cells.push(format!("{:.2}", middle(&|m| m.number("downtime_ms"))));
        cells.push(all.len().to_string());
        table.row(cells);
    }
    table
}

/// The raw control that limits a path: sockets of its kind, as many as a move uses, or the GPU's own copies where it has made
/// them.
fn limit<'a>(way: &str, on_gpu: bool, limits: &'a BTreeMap<String, f64>) -> Option<&'a f64> {
    let kind = if way.contains("tls") { "tcp" } else { "unix" };
    if on_gpu { limits.get(ON_GPU) } else { limits.get(&format!("{kind}, {STRIPES} connections")) }
}

fn goals(moved: &[Moved], samples: &[Sample], limits: &BTreeMap<String, f64>, figures: &mut Figures) {
    let mut paths: BTreeMap<(&str, &str), Vec<&Sample>> = BTreeMap::new();
    for s in samples {
        paths.entry((&s.what, &s.path)).or_default().push(s);
    }
    for ((what, path), all) in &paths {
        if let (&"replay", Some(model)) = (what, form::of(what).and_then(|form| one(form, path, all))) {
            let us = model.cost("records") * 1e6;
            figures.goals.push(Goal::at_most(format!("replay to {path}: a record, besides modules"), us, 5.0, "us"));
        }
    }
    let largest = moved.iter().map(|m| m.load.mib).max().unwrap_or(0);
    let mut rates: BTreeMap<(&str, bool), Times> = BTreeMap::new();
    for m in moved.iter().filter(|m| m.load.mib == largest && m.phase("precopy") > 0.0) {
        // Bytes of a nanosecond's fractions would be lost: per gibibyte.
        let ns = m.phase("precopy") * 1e6 / (m.number("chunk_bytes") / (1u64 << 30) as f64);
        rates.entry((&m.way, m.number("bytes_by_descriptor") > 0.0)).or_default().extend([ns as u64]);
    }
    for ((way, on_gpu), times) in rates {
        if let Some(limit) = limit(way, on_gpu, limits) {
            let rate = (1u64 << 30) as f64 / times.median() * 1e9;
            let how = if on_gpu { ", copied by the GPU" } else { "" };
            let what = format!("memsync {way}, {}{how}: {:.1} GB/s", size((largest << 20) as usize), rate / 1e9);
            figures.goals.push(Goal::at_least(what, rate / limit * 100.0, 60.0, "%"));
        }
    }
}

/// Copies and pauses by the bytes that a job keeps.
fn plot(samples: &[Sample], out: &Path, figures: &mut Figures) -> Result<(), Error> {
    for (what, term, title) in [
        ("memsync", "bytes", "First copy while the job works"),
        ("downtime", "held", "Downtime"),
        ("replay", "records", "Replay"),
    ] {
        let mut series: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for s in samples.iter().filter(|s| s.what == what) {
            series.entry(&s.path).or_default().push((s.amount(term), s.seconds));
        }
        let x = if term == "records" { "records" } else { "bytes" };
        let series: Vec<Series> = series.into_iter().map(|(name, points)| Series::times(name, points, x)).collect();
        let plot = Plot { title, x, y: "s", ..Plot::default() };
        figures.plot(out, what, &plot, &series)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_cover_what_they_should() {
        let ask = |quick, validation| Ask { quick, validation, seconds: 1 };
        let all = loads(ask(false, false));
        for mib in [64, 16384] {
            for regions in [1, 4096] {
                assert!(all.iter().any(|l| l.mib == mib && l.regions == regions));
            }
        }
        assert!(loads(ask(false, true)).iter().all(|l| all.iter().all(|m| m.mib != l.mib && m.regions != l.regions)));
        assert!(loads(ask(true, true)).iter().all(|l| loads(ask(true, false)).iter().all(|m| m.mib != l.mib)));
    }

    #[test]
    fn runs_of_one_load_become_one_sample() {
        let load = Load { mib: 1, regions: 1, events: 0, modules: 1, touched: 1 };
        let run = |ms: f64| Moved {
            load,
            way: "tls->in-process".into(),
            to: "in-process",
            report: json!({"chunk_bytes": 1000, "chunks": 2, "records": 10, "downtime_ms": ms, "phases": {"precopy": 10.0 * ms}}),
        };
        let samples = samples(&[run(1.0), run(100.0), run(2.0)]);
        let copy = samples.iter().find(|s| s.what == "memsync").unwrap();
        assert_eq!((copy.seconds, copy.runs, copy.amount("bytes"), copy.amount("regions")), (0.02, 3, 1000.0, 2.0));
        assert_eq!(samples.iter().filter(|s| s.what == "downtime").count(), 1);
    }
}
