//! Whole programs of tests/programs/apps: alone, and moved after a part of their run.

use super::lab::{At, Findings, Lab, NATIVE, SHM, TLS};
use crate::bench::table::Table;
use crate::error::Error;
use models::fit::median;
use models::plot::{Axes, Plot, Series};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Rest of a small program between its steps, in microseconds, if it is to be moved: without it, it would end before.
const PACE: &str = "20000";
/// Pause between two attempts to move a program that is not ready to be moved yet.
const AGAIN: Duration = Duration::from_millis(5);

/// A run of a program.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) seconds: f64,
    /// What it has printed: a digest of its memory, and whether it was right.
    pub(super) output: Vec<String>,
    /// What its move took, if it was moved.
    pub(super) report: Option<Value>,
}

/// A program by its name, if it is there.
pub(super) fn find(lab: &Lab<'_>, name: &str, findings: &mut Findings) -> Option<PathBuf> {
    let path = lab.apps.join(name);
    if path.is_file() {
        return Some(path);
    }
    findings.miss(name, format!("{} is not there; --apps says where the programs are", path.display()));
    None
}

/// Runs a program to its end, with a rest between its steps where it is small and `paced`; moved to a place after so many seconds, if that
/// is given.
pub(super) fn run(lab: &Lab<'_>, program: &Path, at: &At, paced: bool, moved: Option<(f64, &str)>) -> Result<Run, Error> {
    let stage = lab.bench.stage;
    let mut args = vec!["--size", lab.scale("small", "large")];
    if paced && lab.is_small() {
        args.extend(["--pace", PACE]);
    }
    let place = if let At::Place(place) = at { Some(place.as_str()) } else { None };
    let since = Instant::now();
    let mut process = stage.program(program, &args, place, lab.soft)?;
    let (pid, ended) = (process.pid(), AtomicBool::new(false));
    let mover = |after: f64, to: &str| {
        std::thread::sleep(Duration::from_secs_f64(after));
        // It may not have begun to use its GPU, or its GPU may be busy.
        loop {
            let done = stage.migrate(pid, to);
            if done.is_ok() || ended.load(Ordering::SeqCst) {
                return done;
            }
            std::thread::sleep(AGAIN);
        }
    };
    let mover = &mover;
    std::thread::scope(|scope| {
        let moving = moved.map(|(after, to)| scope.spawn(move || mover(after, to)));
        let output = process.all_lines();
        let seconds = since.elapsed().as_secs_f64();
        ended.store(true, Ordering::SeqCst);
        let output = output?;
        process.finish()?;
        let report = match moving.map(|thread| thread.join()) {
            Some(Ok(report)) => Some(report.map_err(|why| format!("it was not moved: {why}"))?),
            Some(Err(_)) => return Err("the thread that moves it panicked".into()),
            None => None,
        };
        Ok(Run { seconds, output, report })
    })
}

/// A program as a whole, natively and at a server, several times.
pub(super) fn whole(
    lab: &Lab<'_>,
    findings: &mut Findings,
    name: &str,
    plot: &str,
    title: &str,
    ours: &'static str,
) -> Result<(), Error> {
    let Some(program) = find(lab, name, findings) else { return Ok(()) };
    let ways = [(NATIVE, At::Native(0)), (SHM, At::Place(lab.bench.servers[0].unix.clone())), (TLS, At::Place(lab.remote(0, 0)))];
    let mut points = vec![Vec::new(); ways.len()];
    let mut outputs = Vec::new();
    for round in 1..=lab.pick(2, 3) {
        for ((_, at), points) in ways.iter().zip(&mut points) {
            let run = run(lab, &program, at, false, None)?;
            points.push((f64::from(round), run.seconds));
            outputs.push(run.output);
        }
    }
    let same = outputs.iter().all(|output| output == &outputs[0]);
    let mut table = Table::new(
        format!(
            "{name} ({}), seconds; its output was {}",
            lab.scale("small", "large"),
            if same { "the same in all runs" } else { "NOT THE SAME" }
        ),
        ["path", "median", "all"],
    );
    let middle = |points: &[(f64, f64)]| median(&points.iter().map(|p| p.1).collect::<Vec<_>>());
    for ((name, _), points) in ways.iter().zip(&points) {
        let all: Vec<String> = points.iter().map(|p| format!("{:.2}", p.1)).collect();
        table.row([(*name).to_owned(), format!("{:.3}", middle(points)), all.join(" ")]);
    }
    findings.table(table);
    let of = |way: usize| middle(&points[way]) / middle(&points[0]);
    findings.ours(ours, format!("{:.2} over TLS, {:.2} over shared memory", of(2), of(1)));
    let series: Vec<Series> = ways.iter().zip(points).map(|((name, _), points)| Series::new(*name, points)).collect();
    let shown = Plot { title, x: "run", y: "time, s", lines: true, axes: Axes::FromZero, ..Plot::default() };
    findings.plot(lab, plot, &shown, &series)
}
