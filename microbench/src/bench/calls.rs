//! Costs of calls on every path, and the raw controls.

use super::figures::{Ask, Figures};
use super::goals::Goal;
use super::paths::Bench;
use super::report;
use super::stage::Process;
use super::times::Times;
use crate::cases::{Case, Memory::*};
use crate::error::Error;
use crate::peer::Way;
use models::Sample;
use models::plot::{Plot, Series};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// A client, where its calls go, and what they cost.
struct Client {
    path: String,
    process: Process,
    times: BTreeMap<Case, Times>,
}

/// The largest copy.
const LARGE: usize = 512 << 20;
/// Calls that go directly to the driver in-process, so they should cost little more than the driver's.
const HOT: [Case; 6] = [Case::Launch, Case::Record, Case::Fill, Case::QueryEvent, Case::QueryStream, Case::Event];

/// Rounds, and batches and milliseconds of a case in a round.
fn effort(ask: Ask) -> (u32, u32, u32) {
    match (ask.quick, ask.validation) {
        (true, _) => (2, 10, 5),
        (false, false) => (6, 200, 20),
        (false, true) => (4, 200, 20),
    }
}

/// What is measured, cheap things first.
fn cases(ask: Ask) -> Vec<Case> {
    let copies = |sizes: &[usize]| -> Vec<Case> {
        let kinds = |n: &usize| [Case::In(Pageable, *n), Case::In(Pinned, *n), Case::Out(Pageable, *n), Case::Out(Pinned, *n)];
        sizes.iter().flat_map(kinds).collect()
    };
    let (kib, mib) = (1 << 10, 1 << 20);
    if ask.validation {
        let sizes: &[usize] = if ask.quick { &[16 * kib, 512 * kib] } else { &[16 * kib, 256 * kib, 4 * mib, 128 * mib] };
        let all = [3, 30, 300].map(Case::Launches).into_iter().chain(copies(sizes));
        return all.filter(|case| case.terms().is_some()).collect();
    }
    let many = if ask.quick { 100 } else { 1000 };
    let mut all =
        vec![Case::Launch, Case::Spaced, Case::Launches(1), Case::Launches(8), Case::Launches(64), Case::Launches(many)];
    all.extend([Case::Wait, Case::Record, Case::Reach, Case::QueryEvent, Case::QueryStream, Case::Fill]);
    all.extend([Case::Event, Case::Stream, Case::MemoryInfo, Case::Attribute, Case::Operation]);
    all.extend([4 * kib, mib, 64 * mib].map(Case::Allocate));
    let sizes: &[usize] = if ask.quick { &[4, 64 * kib, mib] } else { &[4, 64 * kib, mib, 8 * mib, 64 * mib, LARGE] };
    all.extend(copies(sizes));
    all.push(Case::Beside(if ask.quick { 16 * mib } else { 1 << 30 }));
    all
}

/// Measures everything in rounds.
pub(super) fn run(bench: &Bench<'_>, figures: &mut Figures) -> Result<(), Error> {
    let Bench { stage, servers, others, controls, ask, out } = *bench;
    let mut clients = Vec::new();
    let paths = others.all(servers);
    for path in &paths {
        match path.open(stage) {
            Ok(process) => clients.push(Client { path: path.name.clone(), process, times: BTreeMap::new() }),
            Err(why) if path.name == "native" => return Err(why),
            Err(why) => figures.miss(&path.name, why),
        }
    }
    let cases = cases(ask);
    let (rounds, count, ms) = effort(ask);
    let mut pings: BTreeMap<&str, Times> = BTreeMap::new();
    for round in 0..rounds {
        eprint!("\rcalls: round {} of {rounds} ", round + 1);
        pings.entry("tcp").or_default().extend(controls.ping(Way::Tcp, 10 * count).map_err(Error::Control)?);
        pings.entry("unix").or_default().extend(controls.ping(Way::Unix, 10 * count).map_err(Error::Control)?);
        pings.entry("shared memory").or_default().extend(controls.shared(10 * count).map_err(Error::Control)?);
        for case in &cases {
            // Each round begins with another path.
            clients.rotate_left(1);
            for client in &mut clients {
                let answer = client.process.ask(&format!("{case} {count} {ms}"))?;
                match answer["ns"].as_array() {
                    Some(ns) => client.times.entry(*case).or_default().extend(ns.iter().filter_map(Value::as_u64)),
                    None => figures.miss(&format!("{case} on {}", client.path), answer["absent"].as_str().unwrap_or("no reason")),
                }
            }
        }
    }
    eprintln!();
    clients.sort_by_key(|c| paths.iter().position(|path| path.name == c.path));
    let times: Vec<_> = clients.iter().map(|c| (c.path.as_str(), &c.times)).collect();
    report::calls(&cases, &times).into_iter().chain([report::pings(&pings)]).for_each(|table| figures.table(table));
    keep(&clients, &pings, figures);
    // Models are of mrcuda on this machine.
    let own = |c: &&Client| others.places.is_empty() && c.path != "against";
    figures.samples.extend(clients.iter().filter(own).flat_map(samples));
    if !ask.validation {
        goals(&clients, figures);
        plot(&clients, out, figures)?;
    }
    clients.into_iter().try_for_each(|c| c.process.finish())
}

/// The figures in the file: nanoseconds of one call.
fn keep(clients: &[Client], pings: &BTreeMap<&str, Times>, figures: &mut Figures) {
    let mut calls: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for client in clients {
        for (case, times) in &client.times {
            calls.entry(case.to_string()).or_default().insert(client.path.clone(), times.percentiles(case.parts()));
        }
    }
    let pings: Map<String, Value> = pings.iter().map(|(way, times)| ((*way).to_owned(), times.percentiles(1))).collect();
    figures.parts.insert("calls".into(), json!({"unit": "ns", "cases": calls}));
    figures.parts.insert("round_trips".into(), json!({"unit": "ns", "bytes": 64, "ways": pings}));
}

/// What models are fitted to: whatever ends with a wait.
fn samples(client: &Client) -> Vec<Sample> {
    let what = match client.path.as_str() {
        "native" | "in-process" => "native",
        "helper" => "mhelper",
        _ => "forwarding",
    };
    let sample = |(case, times): (&Case, &Times)| {
        let terms = case.terms()?.into_iter().map(|(term, n)| (term.to_owned(), n)).collect();
        let seconds = times.median() / 1e9;
        Some(Sample { what: what.into(), path: client.path.clone(), terms, seconds, runs: times.count() })
    };
    client.times.iter().filter(|(_, times)| !times.is_empty()).filter_map(sample).collect()
}

fn goals(clients: &[Client], figures: &mut Figures) {
    let median = |path: &str, case: Case| {
        let client = clients.iter().find(|c| c.path == path)?;
        Some(client.times.get(&case)?.median() / case.parts() as f64)
    };
    for case in HOT.into_iter().chain([Case::In(Pageable, 4), Case::Out(Pageable, 4)]) {
        if let (Some(native), Some(own)) = (median("native", case), median("in-process", case)) {
            let what = format!("in-process over native: {}", case.words());
            figures.goals.push(Goal::at_most(what, own - native, 50.0, "ns"));
        }
    }
    for case in [Case::In(Pageable, LARGE), Case::Out(Pageable, LARGE)] {
        if let (Some(native), Some(own)) = (median("native", case), median("in-process", case)) {
            let what = format!("speed in-process, native is 100: {}", case.words());
            figures.goals.push(Goal::at_least(what, native / own * 100.0, 100.0, "%"));
        }
    }
    for (memory, least) in [(Pageable, 15.0), (Pinned, 20.0)] {
        for case in [Case::In(memory, LARGE), Case::Out(memory, LARGE)] {
            if let Some(ns) = median("tcp", case) {
                figures.goals.push(Goal::at_least(format!("over TCP: {}", case.words()), LARGE as f64 / ns, least, "GB/s"));
            }
        }
    }
    let beside = Case::Beside(1 << 30);
    if let Some(times) = clients.iter().find(|c| c.path == "tcp").and_then(|c| c.times.get(&beside))
        && let Some(ns) = times.percentiles(beside.parts())["p99"].as_f64()
    {
        figures.goals.push(Goal::at_most(format!("over TCP, p99: {}", beside.words()), ns / 1e6, 1.0, "ms"));
    }
    if let Some(launch) = median("helper", Case::Launch) {
        figures.goals.push(Goal::at_most("launch through the helper, to the caller", launch / 1e3, 1.0, "us"));
    }
}

/// Bandwidth of copies by size.
fn plot(clients: &[Client], out: &Path, figures: &mut Figures) -> Result<(), Error> {
    for (name, wanted) in [("in", Pageable), ("pinned-in", Pinned), ("out", Pageable), ("pinned-out", Pinned)] {
        let inward = name.ends_with("in");
        let point = |(case, times): (&Case, &Times)| match case {
            Case::In(memory, n) if inward && *memory == wanted => Some((*n as f64, times.median() / 1e9)),
            Case::Out(memory, n) if !inward && *memory == wanted => Some((*n as f64, times.median() / 1e9)),
            _ => None,
        };
        let rates = |c: &Client| Series::rates(&c.path, &c.times.iter().filter_map(point).collect::<Vec<_>>());
        let series: Vec<Series> = clients.iter().map(rates).collect();
        let memory = if wanted == Pinned { "pinned" } else { "pageable" };
        let way = if inward { "to the device" } else { "from the device" };
        let title = format!("Copies {way}, {memory} memory: to the caller");
        let plot = Plot { title: &title, x: "bytes", y: "GB/s", ..Plot::default() };
        figures.plot(out, &format!("copies-{name}"), &plot, &series)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_measures_other_amounts() {
        let ask = |validation| Ask { quick: false, validation, seconds: 1 };
        let (fit, other) = (cases(ask(false)), cases(ask(true)));
        assert!(other.iter().all(|case| !fit.contains(case) && case.terms().is_some()));
        assert!(HOT.iter().all(|case| fit.contains(case)));
    }
}
