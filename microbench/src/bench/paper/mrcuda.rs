//! The experiments of mrCUDA's poster: a run that is moved after a part of it, and the four overheads that it has models of.

use super::lab::{
    At, Findings, HELPER, IN_PROCESS, KIB, Lab, MIB, NATIVE, TLS, downtime, model, ms, number, phase, seconds, total,
};
use super::live;
use super::play::{Action, Job, Load, Step, When, play};
use crate::bench::journals;
use crate::bench::table::Table;
use crate::cases::{Case, Memory, size};
use crate::error::Error;
use models::fit::median;
use models::plot::{Axes, Plot, Series};

/// The name of the curves of mrCUDA's published models.
const THEIRS: &str = "mrCUDA 2015, its model";

/// Seconds to record so many calls, by mrCUDA's model.
fn their_record(calls: f64) -> f64 {
    2.825e-7 * calls + 0.34e-3
}

/// Seconds to replay so many records, by mrCUDA's model.
fn their_replay(records: f64) -> f64 {
    1.031e-6 * records + 1.2437
}

/// Seconds of so many calls of its helper with so many bytes, by mrCUDA's model.
fn their_helper(calls: f64, bytes: f64) -> f64 {
    6.87e-10 * bytes + 9.98e-6 * calls + 2.93e-3
}

/// Seconds to copy memory in so many equal regions, by mrCUDA's model.
fn their_memsync(bytes: f64, regions: f64) -> f64 {
    let region = bytes / regions;
    regions * (5.686e-11 * region + region / (4778.5e6f64).min(47_210.0 * region))
}

pub(super) const RUNTIME_OURS: &str = "what the move adds, compared with what remote execution adds";

/// A run that is remote for a part of its steps and then in the job's process.
pub(super) fn runtime(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let percents: &[u64] = lab.pick(&[25, 75], &[10, 25, 50, 75, 90]);
    let (native, remote) = (At::Native(0), At::Place(lab.remote(0, 0)));
    let load = Load::simulation(lab).lasting(lab, &native, lab.pick(0.8, 2.0))?;
    let whole = |at: &At| play(lab, &[Job::new("simulation", at, load)], &[]).map(|all| all.jobs[0].seconds());
    let rounds = lab.pick(1, 2);
    let least = |at: &At| (0..rounds).map(|_| whole(at)).try_fold(f64::INFINITY, |least, s| s.map(|s| least.min(s)));
    let (alone, forwarded) = (least(&native)?, least(&remote)?);
    let mut table = Table::new(
        format!("A simulation of {} steps: natively {alone:.3} s, remote {forwarded:.3} s", load.steps),
        ["remote for", "run, s", "without the move's cost, s", "the move adds, ms", "downtime, ms", "whole move, ms"],
    );
    let (mut runs, mut expected, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for percent in percents.iter().copied() {
        let moved = Action { job: 0, when: When { job: 0, percent }, step: Step::Move("local".to_owned()) };
        let actions = [moved];
        let all = play(lab, &[Job::new("simulation", &remote, load)], &actions)?;
        let report = match all.report(0, &actions[0]) {
            Ok(report) => report,
            Err(why) => {
                findings.miss(&format!("a move after {percent} %"), why);
                continue;
            }
        };
        let part = percent as f64 / 100.0;
        let (run, without) = (all.jobs[0].seconds(), part * forwarded + (1.0 - part) * alone);
        table.row([
            format!("{percent} %"),
            format!("{run:.3}"),
            format!("{without:.3}"),
            ms(run - without),
            ms(downtime(report)),
            ms(total(report)),
        ]);
        runs.push((percent as f64, run));
        expected.push((percent as f64, without));
        added.push(run - without);
    }
    findings.table(table);
    let ends = |seconds: f64| vec![(0.0, seconds), (100.0, seconds)];
    let series = [
        Series::new(NATIVE, ends(alone)),
        Series::new(TLS, ends(forwarded)),
        Series::new("in-process, after a move", runs),
        Series::new("what both parts take alone", expected),
    ];
    let plot = Plot {
        title: "A run that is remote for a part, then in its own process",
        x: "steps made remotely, %",
        y: "run, s",
        lines: true,
        axes: Axes::FromZero,
        ..Plot::default()
    };
    findings.plot(lab, "mrcuda-runtime", &plot, &series)?;
    if !added.is_empty() {
        let remote = forwarded - alone;
        findings
            .ours(RUNTIME_OURS, format!("{:.1} ms (median); remote execution adds {:.1} ms", median(&added) * 1e3, remote * 1e3));
    }
    Ok(())
}

pub(super) const RECORD_OURS: &str = "a recorded call";

/// Recording, by the number of calls.
pub(super) fn record(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let counts: &[u64] = lab.pick(&[1_000, 10_000], &[1_000, 10_000, 100_000, 1_000_000]);
    let mut table = Table::new("Appending to the journal", ["calls", "ms", "ns each"]);
    let mut points = Vec::new();
    for count in counts.iter().copied() {
        let runs = (0..lab.pick(3, 7)).map(|_| journals::append_wall(count)).collect::<Result<Vec<_>, _>>()?;
        let took = median(&runs.iter().map(|ns| *ns as f64 / 1e9).collect::<Vec<_>>());
        table.row([count.to_string(), ms(took), format!("{:.1}", took / count as f64 * 1e9)]);
        points.push((count as f64, took));
    }
    findings.table(table);
    let mut calls = Table::new("Making and ending an event, microseconds", ["path", "p50"]);
    for (name, at) in [(NATIVE, At::Native(0)), (IN_PROCESS, At::Place("local".to_owned()))] {
        match lab.client(&at).and_then(|mut client| ask(&mut client, Case::Event, lab)) {
            Ok(took) => {
                let took = took / Case::Event.parts() as f64;
                calls.row([name.to_owned(), format!("{:.3}", took * 1e6)]);
            }
            Err(why) => findings.miss(&format!("events on {name}"), why),
        }
    }
    findings.table(calls);
    if let Some((count, took)) = points.last() {
        findings.ours(RECORD_OURS, format!("{:.1} ns", took / count * 1e9));
    }
    let amounts: Vec<f64> = points.iter().map(|p| p.0).collect();
    let series = [Series::times("journal", points, "calls"), model(THEIRS, &amounts, their_record)];
    let plot =
        Plot { title: "Recording calls that build state", x: "recorded calls", y: "time, s", lines: true, ..Plot::default() };
    findings.plot(lab, "mrcuda-record", &plot, &series)
}

/// Median seconds of a batch of a case.
fn ask(client: &mut crate::bench::stage::Process, case: Case, lab: &Lab<'_>) -> Result<f64, Error> {
    let (count, limit) = lab.pick((20, 200), (200, 400));
    Ok(median(&seconds(&client.ask(&format!("{case} {count} {limit}"))?)?))
}

pub(super) const REPLAY_OURS: &str = "replay of one record";
pub(super) const REPLAY_ONCE_OURS: &str = "opening the new place, whatever the number of records";

/// Replay, by the number of live records.
pub(super) fn replay(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let counts: &[u32] = lab.pick(&[100, 1_000, 5_000], &[100, 1_000, 10_000, 50_000, 100_000]);
    let from = lab.remote(0, 0);
    let mut table = Table::new("Replay at a new place, milliseconds", ["records", "replay", "prepare", "downtime", "whole move"]);
    let (mut points, mut opening) = (Vec::new(), Vec::new());
    for events in counts.iter().copied() {
        let load = live::Kept { mib: 4, regions: 1, events };
        match live::moved(lab, &from, "local", load) {
            Ok(report) => {
                let (records, prepare) = (number(&report, "records"), phase(&report, "prepare"));
                table.row([
                    format!("{records:.0}"),
                    ms(phase(&report, "replay")),
                    ms(prepare),
                    ms(downtime(&report)),
                    ms(total(&report)),
                ]);
                points.push((records, phase(&report, "replay")));
                opening.push(prepare);
            }
            Err(why) => findings.miss(&format!("a move with {events} events"), why),
        }
    }
    findings.table(table);
    if let Some((once, each)) = models::fit::line(&points) {
        findings.ours(REPLAY_OURS, format!("{:.2} us, and {:.1} ms once", each * 1e6, once * 1e3));
    }
    if !opening.is_empty() {
        findings.ours(REPLAY_ONCE_OURS, format!("{:.1} ms, while the job runs", median(&opening) * 1e3));
    }
    let amounts: Vec<f64> = points.iter().map(|p| p.0).collect();
    let series = [Series::times("in-process", points, "records"), model(THEIRS, &amounts, their_replay)];
    let plot =
        Plot { title: "Replay of live records at a new place", x: "records", y: "time, s", lines: true, ..Plot::default() };
    findings.plot(lab, "mrcuda-replay", &plot, &series)
}

pub(super) const MEMSYNC_RATE_OURS: &str = "rate of the largest copy";
pub(super) const MEMSYNC_PAUSE_OURS: &str = "what the job waits for";
pub(super) const MEMSYNC_REGION_OURS: &str = "a region more";

/// Copying memory, by its size and the number of regions that it is divided into.
pub(super) fn memsync(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let sizes: &[u64] = lab.scale(lab.pick(&[4, 16], &[4, 16, 64]), lab.pick(&[64, 256], &[64, 512, 4096]));
    let numbers: &[u64] = lab.pick(&[2, 32], &[1, 16, 128]);
    let from = lab.remote(0, 0);
    let mut table = Table::new(
        "Moves from a server over TLS to the job's process, milliseconds",
        ["memory", "regions", "copy while the job works", "downtime", "whole move", "mrCUDA's model of the copy"],
    );
    let (mut series, mut largest, mut pauses, mut theirs) = (Vec::new(), (0.0, 0.0), Vec::new(), Vec::new());
    let mut by_regions = Vec::new();
    for regions in numbers.iter().copied() {
        let (mut copies, mut waits) = (Vec::new(), Vec::new());
        for mib in sizes.iter().copied() {
            match live::moved(lab, &from, "local", live::Kept { mib, regions, events: 0 }) {
                Ok(report) => {
                    let bytes = (mib << 20) as f64;
                    let (copy, pause) = (phase(&report, "precopy"), downtime(&report));
                    let model = their_memsync(bytes, regions as f64);
                    let name = size((mib << 20) as usize);
                    table.row([name, regions.to_string(), ms(copy), ms(pause), ms(total(&report)), ms(model)]);
                    copies.push((bytes, copy));
                    waits.push((bytes, pause));
                    pauses.push(pause);
                    if bytes > largest.0 || regions == 1 && bytes >= largest.0 {
                        largest = (bytes, copy);
                    }
                    if Some(&mib) == sizes.last() {
                        by_regions.push((regions as f64, copy + pause));
                    }
                }
                Err(why) => findings.miss(&format!("a move of {mib} MiB in {regions} regions"), why),
            }
        }
        let amounts: Vec<f64> = copies.iter().map(|p| p.0).collect();
        series.push(Series::times(format!("{IN_PROCESS}, {regions} regions, copy"), copies, "bytes"));
        series.push(Series::times(format!("{IN_PROCESS}, {regions} regions, pause"), waits, "bytes"));
        theirs.push(model(&format!("{THEIRS}, {regions} regions"), &amounts, |bytes| their_memsync(bytes, regions as f64)));
    }
    findings.table(table);
    if largest.1 > 0.0 {
        findings.ours(MEMSYNC_RATE_OURS, format!("{:.2} GB/s, while the job runs", largest.0 / largest.1 / 1e9));
        findings.ours(MEMSYNC_PAUSE_OURS, format!("{:.1} ms (median)", median(&pauses) * 1e3));
    }
    if let Some((_, each)) = models::fit::line(&by_regions) {
        findings.ours(MEMSYNC_REGION_OURS, format!("{:.3} ms", each * 1e3));
    }
    series.extend(theirs);
    let plot = Plot { title: "Memory of a move, by size and regions", x: "bytes", y: "time, s", lines: true, ..Plot::default() };
    findings.plot(lab, "mrcuda-memsync", &plot, &series)
}

pub(super) const HELPER_LAUNCH_OURS: &str = "a launch natively and through the helper";
pub(super) const HELPER_COPY_OURS: &str = "rate of copies through the helper, natively is 1";

/// Calls and copies through the helper process, beside native ones.
pub(super) fn helper(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let sizes: &[usize] = lab.pick(&[64 * KIB, MIB], &[4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB]);
    let calls = [Case::Launch, Case::Launches(1), Case::Launches(64)];
    let cases: Vec<Case> = calls.into_iter().chain(sizes.iter().map(|n| Case::In(Memory::Pageable, *n))).collect();
    let mut clients = Vec::new();
    for (name, at) in [(NATIVE, At::Native(0)), (HELPER, At::Place(HELPER.to_owned()))] {
        clients.push((name, lab.client(&at)?));
    }
    let mut table = Table::new("Calls natively and through the helper, microseconds", ["call", NATIVE, HELPER]);
    let (mut points, mut took) = ([Vec::new(), Vec::new()], Vec::new());
    for case in cases {
        let mut cells = Vec::new();
        for ((_, client), points) in clients.iter_mut().zip(&mut points) {
            let batch = ask(client, case, lab)?;
            cells.push(batch / case.parts() as f64);
            if let Case::In(_, bytes) = case {
                points.push((bytes as f64, batch));
            }
        }
        table.row(std::iter::once(case.words()).chain(cells.iter().map(|s| format!("{:.2}", s * 1e6))));
        took.push((case, cells));
    }
    for (_, client) in clients {
        client.finish()?;
    }
    findings.table(table);
    for (case, cells) in &took {
        if let ([native, helper], Case::Launch) = (&cells[..], case) {
            findings.ours(HELPER_LAUNCH_OURS, format!("{:.2} us, {:.2} us", native * 1e6, helper * 1e6));
        }
    }
    if let Some((Case::In(_, bytes), cells)) = took.last()
        && let [native, helper] = cells[..]
    {
        findings.ours(HELPER_COPY_OURS, format!("{:.2} ({} of pageable memory)", native / helper, size(*bytes)));
    }
    let amounts: Vec<f64> = points[0].iter().map(|p| p.0).collect();
    let [native, helper] = points;
    let series = [
        Series::times(NATIVE, native, "bytes"),
        Series::times(HELPER, helper, "bytes"),
        model(THEIRS, &amounts, |bytes| their_helper(1.0, bytes)),
    ];
    let plot = Plot { title: "Copies through the helper process", x: "bytes", y: "time, s", lines: true, ..Plot::default() };
    findings.plot(lab, "mrcuda-helper", &plot, &series)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What mrCUDA's authors measured: 0.97 to 1.69 GB/s, and 1.1 ms a region, are of the same order as their models.
    #[test]
    fn their_models_are_in_seconds_and_bytes() {
        assert!((their_memsync(1e9, 1.0) - 0.266).abs() < 0.001);
        // Small regions take 21 us each.
        assert!((their_memsync(1e6, 1000.0) * 1e3 - 21.2).abs() < 0.1);
        assert!((their_replay(1e6) - 2.2747).abs() < 1e-4 && (their_record(1e6) - 0.28284).abs() < 1e-4);
        assert!((their_helper(1.0, 0.0) - 2.94e-3).abs() < 1e-5);
    }
}
