//! What the experiments work with: places and programs, and what they have found.

use crate::bench::figures::Figures;
use crate::bench::paths::Bench;
use crate::bench::stage::Process;
use crate::bench::table::Table;
use crate::error::Error;
use models::plot::{Plot, Series};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

pub(super) const KIB: usize = 1 << 10;
pub(super) const MIB: usize = 1 << 20;
/// Names of series, which decide their colours.
pub(super) const NATIVE: &str = "native";
pub(super) const TLS: &str = "tls";
pub(super) const SHM: &str = "shm";
pub(super) const HELPER: &str = "helper";
pub(super) const IN_PROCESS: &str = "in-process";

/// The machine and its places.
#[derive(Debug)]
pub(super) struct Lab<'b> {
    pub(super) bench: Bench<'b>,
    /// Whether the GPUs are softgpu's.
    pub(super) soft: bool,
    /// Number of GPUs.
    pub(super) gpus: u32,
    /// Directory of the programs of tests/programs/apps.
    pub(super) apps: PathBuf,
}

/// Where a program's calls go.
#[derive(Debug, Clone)]
pub(super) enum At {
    /// To this GPU of the machine, without mrcuda.
    Native(u32),
    /// To a place.
    Place(String),
}

impl Lab<'_> {
    /// Whether little memory and few steps are wanted: on softgpu always.
    pub(super) fn is_small(&self) -> bool {
        self.bench.ask.quick || self.soft
    }

    /// One of these: what a quick run has, and what a full one has.
    pub(super) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.bench.ask.quick { quick } else { full }
    }

    /// One of these: what softgpu or a quick run can do in time, and what a GPU can.
    pub(super) fn scale<T>(&self, small: T, large: T) -> T {
        if self.is_small() { small } else { large }
    }

    /// A GPU of one of the two servers, over TLS.
    pub(super) fn remote(&self, server: usize, gpu: u32) -> String {
        let place = &self.bench.servers[server % 2].tls;
        format!("{}/{}", place.trim_end_matches("/0"), gpu % self.gpus.max(1))
    }

    /// Ourselves, by this way.
    pub(super) fn start(&self, at: &At, args: &[&str], env: &[(&str, &str)]) -> Result<Process, Error> {
        match at {
            At::Native(gpu) => self.bench.stage.native_on(*gpu, args),
            At::Place(place) => self.bench.stage.job(place, args, env),
        }
    }

    /// A program that answers requests for measurements.
    pub(super) fn client(&self, at: &At) -> Result<Process, Error> {
        let mut process = self.start(at, &["client"], &[])?;
        process.answer()?;
        Ok(process)
    }

    /// The GPUs that an experiment uses: `wanted`, or fewer if the machine has no more; `None`, and a word about it, if it has fewer than
    /// `least`.
    pub(super) fn gpus(&self, least: u32, wanted: u32, what: &str, findings: &mut Findings) -> Option<u32> {
        if self.gpus < least {
            findings.miss(what, format!("it needs {least} GPUs, and this machine has {}", self.gpus));
            return None;
        }
        Some(wanted.min(self.gpus))
    }
}

/// What an experiment has found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) figures: Figures,
    /// Our figure beside one of the paper's, by what it is.
    pub(super) ours: BTreeMap<&'static str, String>,
    /// What the plots show, for the file.
    pub(super) plotted: Vec<Value>,
}

impl Findings {
    /// Puts a figure beside one of the paper's.
    pub(super) fn ours(&mut self, what: &'static str, value: impl Into<String>) {
        self.ours.insert(what, value.into());
    }

    /// Prints a table and keeps it for the page.
    pub(super) fn table(&mut self, table: Table) {
        self.figures.table(table);
    }

    /// Records that something is unavailable.
    pub(super) fn miss(&mut self, what: &str, why: impl Display) {
        self.figures.miss(what, why);
    }

    /// Draws a plot and keeps what it shows.
    pub(super) fn plot(&mut self, lab: &Lab<'_>, name: &str, plot: &Plot<'_>, series: &[Series]) -> Result<(), Error> {
        let shown = series.iter().map(|s| json!({"name": s.name, "points": s.points})).collect::<Vec<_>>();
        self.plotted.push(json!({"title": plot.title, "x": plot.x, "y": plot.y, "series": shown}));
        self.figures.plot(lab.bench.out, name, plot, series)
    }
}

/// A number of a report, or 0.
pub(super) fn number(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or(0.0)
}

/// Seconds of a phase of a move.
pub(super) fn phase(report: &Value, name: &str) -> f64 {
    report["phases"][name].as_f64().unwrap_or(0.0) / 1e3
}

/// Seconds in which the calls of a job waited for its move.
pub(super) fn downtime(report: &Value) -> f64 {
    number(report, "downtime_ms") / 1e3
}

/// Seconds of a whole move.
pub(super) fn total(report: &Value) -> f64 {
    number(report, "total_ms") / 1e3
}

/// A table's cell: milliseconds.
pub(super) fn ms(seconds: f64) -> String {
    format!("{:.2}", seconds * 1e3)
}

/// The nanoseconds of an answer, in seconds; an error with the reason if there are none.
pub(super) fn seconds(answer: &Value) -> Result<Vec<f64>, Error> {
    let all = answer["ns"].as_array().ok_or_else(|| answer["absent"].as_str().unwrap_or("no reason").to_owned())?;
    Ok(all.iter().filter_map(Value::as_f64).map(|ns| ns / 1e9).collect())
}

/// A model's curve: a series of points that are joined.
pub(super) fn model(name: &str, amounts: &[f64], f: impl Fn(f64) -> f64) -> Series {
    Series::new(name, amounts.iter().map(|n| (*n, f(*n))).collect())
}
