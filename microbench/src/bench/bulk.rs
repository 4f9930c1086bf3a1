//! Copies between pageable host memory and a GPU somewhere else, beside sockets that carry the same bytes; and the processor time that they
//! take.

use super::figures::{Ask, Figures};
use super::goals::Goal;
use super::paths::{Bench, Path};
use super::stage::{Process, Server, processor_seconds};
use super::table::Table;
use crate::cases::{Case, Memory::Pageable, size};
use crate::error::Error;
use models::fit::median;
use models::plot::{Plot, Series};
use serde_json::{Value, json};
use std::path;

/// Name of the raw control.
const RAW: &str = "raw tcp";

/// Figures of one size in one direction on one path.
struct Row {
    path: String,
    inward: bool,
    bytes: usize,
    /// Median of the copies.
    seconds: f64,
    /// Processor time of the job and of the server's workers, per byte; `None` for a server that is not ours, and for copies that are
    /// too short for the kernel's clock.
    processor: Option<[f64; 2]>,
}

impl Row {
    fn way(&self) -> &'static str {
        if self.inward { "to the device" } else { "from the device" }
    }
}

/// Times of one case, and processor time of both ends.
pub(super) fn copies(
    process: &mut Process,
    server: Option<&Server>,
    case: Case,
    ask: Ask,
) -> Result<(Vec<f64>, [f64; 2]), Error> {
    let used = |process: &Process| {
        let workers = server.map(Server::workers).unwrap_or_default();
        [processor_seconds(process.pid()), workers.into_iter().map(processor_seconds).sum()]
    };
    let before = used(process);
    let answer = process.ask(&format!("{case} {} {}", if ask.quick { 5 } else { 30 }, if ask.quick { 200 } else { 2000 }))?;
    let after = used(process);
    let ns = answer["ns"].as_array().ok_or_else(|| answer["absent"].as_str().unwrap_or("no reason").to_owned())?;
    let seconds = ns.iter().filter_map(Value::as_f64).map(|ns| ns / 1e9).collect();
    Ok((seconds, [after[0] - before[0], after[1] - before[1]]))
}

/// Measures all paths and the control, size by size.
pub(super) fn run(bench: &Bench<'_>, figures: &mut Figures) -> Result<(), Error> {
    let Bench { stage, servers, others, controls, ask, out } = *bench;
    let mib = 1 << 20;
    let sizes: &[usize] = if ask.quick { &[mib, 8 * mib] } else { &[mib, 8 * mib, 64 * mib, 512 * mib] };
    let mut clients = Vec::new();
    for path in others.remote(servers).into_iter().chain([Path::native()]).chain(others.against()) {
        match path.open(stage) {
            Ok(process) => clients.push((path.name, process)),
            Err(why) => figures.miss(&format!("bulk on {}", path.name), why),
        }
    }
    let ours = others.places.is_empty().then_some(&servers[0]);
    let mut rows = Vec::new();
    for bytes in sizes.iter().copied() {
        let count = if ask.quick { 5 } else { 20 };
        for inward in [true, false] {
            let case = if inward { Case::In(Pageable, bytes) } else { Case::Out(Pageable, bytes) };
            for (path, process) in &mut clients {
                match copies(process, ours, case, ask) {
                    Ok((seconds, [job, workers])) => {
                        // Two batches come before those that are measured.
                        let all = (seconds.len() + 2) as f64 * bytes as f64;
                        let processor = (ours.is_some() && job + workers >= 0.1).then(|| [job / all, workers / all]);
                        rows.push(Row { path: path.clone(), inward, bytes, seconds: median(&seconds), processor });
                    }
                    Err(why) => figures.miss(&format!("{case} on {path}"), why),
                }
            }
            let raw = if inward { controls.exchanges(count, 1, bytes as u64) } else { controls.fetches(count, bytes as u64) };
            rows.push(Row { path: RAW.into(), inward, bytes, seconds: median(&raw.map_err(Error::Control)?), processor: None });
        }
    }
    clients.into_iter().try_for_each(|(_, process)| process.finish())?;
    show(&rows, out, figures)
}

fn show(rows: &[Row], out: &path::Path, figures: &mut Figures) -> Result<(), Error> {
    let mut table = Table::new(
        "Large copies of pageable memory; processor time of the job and of its worker",
        ["copy", "path", "ms", "GB/s", "job, s/GB", "worker, s/GB"],
    );
    for row in rows {
        let processor = |end: usize| row.processor.map_or_else(|| "absent".to_owned(), |p| format!("{:.2}", p[end] * 1e9));
        table.row([
            format!("{} {}", size(row.bytes), row.way()),
            row.path.clone(),
            format!("{:.2}", row.seconds * 1e3),
            format!("{:.2}", row.bytes as f64 / row.seconds / 1e9),
            processor(0),
            processor(1),
        ]);
    }
    figures.table(table);
    let largest = rows.iter().map(|r| r.bytes).max().unwrap_or(0);
    for inward in [true, false] {
        let of = |path: &str| rows.iter().find(|r| r.inward == inward && r.bytes == largest && r.path == path);
        if let (Some(own), Some(raw)) = (of("tcp"), of(RAW)) {
            let what = format!("copy {} of {} over TCP, a socket is 100", own.way(), size(largest));
            figures.goals.push(Goal::at_least(what, raw.seconds / own.seconds * 100.0, 80.0, "%"));
        }
        let mut names: Vec<&str> = rows.iter().map(|r| r.path.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let points = |name: &str| -> Vec<(f64, f64)> {
            rows.iter().filter(|r| r.inward == inward && r.path == name).map(|r| (r.bytes as f64, r.seconds)).collect()
        };
        let series: Vec<Series> = names.into_iter().map(|name| Series::rates(name, &points(name))).collect();
        let title = format!("Large copies {}, beside a raw socket", if inward { "to the device" } else { "from the device" });
        let plot = Plot { title: &title, x: "bytes", y: "GB/s", ..Plot::default() };
        figures.plot(out, if inward { "bulk-in" } else { "bulk-out" }, &plot, &series)?;
    }
    let kept = rows.iter().map(|r| {
        json!({"path": r.path, "way": r.way(), "bytes": r.bytes, "seconds": r.seconds, "processor_seconds_per_byte": r.processor})
    });
    figures.parts.insert("bulk".into(), kept.collect());
    Ok(())
}
