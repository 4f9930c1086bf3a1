//! The experiments of the paper on copies between GPUs of different nodes.

use super::apps;
use super::lab::{Findings, KIB, Lab, MIB, ms, seconds};
use crate::bench::table::Table;
use crate::cases::size;
use crate::error::Error;
use crate::peer::Way;
use models::fit::median;
use models::plot::{Axes, Plot, Series};
use serde_json::Value;

/// Names of the two ways of a copy.
const DIRECT: &str = "from place to place";
const STAGED: &str = "by way of the program";
const RAW: &str = "raw tcp";

/// Two GPUs of servers that represent two machines.
fn pair(lab: &Lab<'_>) -> String {
    format!("{},{}", lab.remote(0, 0), lab.remote(1, 1))
}

/// Seconds of copies of these sizes between two GPUs: direct ones, and by way of the program.
fn copies(lab: &Lab<'_>, args: &[&str], sizes: &[usize], env: &[(&str, &str)]) -> Result<Vec<[Vec<f64>; 2]>, Error> {
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let args: Vec<&str> = ["between"].into_iter().chain(args.iter().copied()).chain(sizes.iter().map(String::as_str)).collect();
    let mut process = lab.bench.stage.job(&pair(lab), &args, env)?;
    let read = |answer: &Value, key: &str| seconds(&serde_json::json!({ "ns": answer[key] }));
    let mut all = Vec::new();
    for _ in &sizes {
        let answer = process.answer()?;
        all.push([read(&answer, "direct")?, read(&answer, "staged")?]);
    }
    process.finish()?;
    Ok(all)
}

/// Says so if both GPUs are one.
fn say_what_is_shared(lab: &Lab<'_>, findings: &mut Findings) {
    if lab.gpus < 2 {
        findings.miss("two GPUs", "the machine has one: both ends are places on it, and all bytes cross TCP all the same");
    }
}

pub(super) const LATENCY_OURS: &str = "least time of a copy";
pub(super) const RATE_OURS: &str = "best rate";
pub(super) const CROSSING_OURS: &str = "size from which a copy from server to server is the faster one";

/// Copies between two GPUs, by size.
pub(super) fn sizes(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let sizes: &[usize] = lab.pick(
        &[4 * KIB, 256 * KIB, 4 * MIB],
        &[4 * KIB, 16 * KIB, 64 * KIB, 200 * KIB, 300 * KIB, 600 * KIB, 2 * MIB, 4 * MIB, 14 * MIB, 64 * MIB, 256 * MIB],
    );
    let all = copies(lab, &["--count", lab.pick("5", "30")], sizes, &[])?;
    let mut table =
        Table::new("Copies between GPUs of two servers over TLS", ["bytes", "direct, ms", "GB/s", "staged, ms", "GB/s"]);
    let mut points = [Vec::new(), Vec::new()];
    for (bytes, ways) in sizes.iter().zip(&all) {
        let mut cells = vec![size(*bytes)];
        for (way, points) in ways.iter().zip(&mut points) {
            let took = median(way);
            cells.extend([ms(took), format!("{:.2}", *bytes as f64 / took / 1e9)]);
            points.push((*bytes as f64, took));
        }
        table.row(cells);
    }
    findings.table(table);
    let [direct, staged] = points;
    let least = direct.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let best = direct.iter().map(|p| p.0 / p.1).fold(0.0, f64::max);
    findings.ours(LATENCY_OURS, format!("{:.0} us", least * 1e6));
    findings.ours(RATE_OURS, format!("{:.2} GB/s, encrypted", best / 1e9));
    // Where it is the faster one, and is so for all larger sizes.
    let slower = direct.iter().zip(&staged).rposition(|(direct, staged)| direct.1 >= staged.1);
    let first = direct.get(slower.map_or(0, |last| last + 1));
    findings.ours(
        CROSSING_OURS,
        first.map_or_else(|| "no measured size".to_owned(), |p| format!("{}, than by way of the program", size(p.0 as usize))),
    );
    say_what_is_shared(lab, findings);
    let series = [Series::rates(DIRECT, &direct), Series::rates(STAGED, &staged)];
    let plot = Plot { title: "Copies between GPUs of two servers", x: "bytes", y: "GB/s", ..Plot::default() };
    findings.plot(lab, "p2p-sizes", &plot, &series)
}

pub(super) const CONNECTIONS_OURS: &str = "rate with one connection and with the best number of them";

/// Large copies between two GPUs, by the number of connections that share their bytes.
pub(super) fn connections(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let counts: &[u32] = lab.pick(&[1, 4], &[1, 2, 4, 8, 16]);
    let sizes: &[usize] = lab.pick(&[4 * MIB], &[MIB, 14 * MIB, 256 * MIB]);
    let heads = std::iter::once("connections".to_owned()).chain(sizes.iter().map(|n| size(*n))).chain([RAW.to_owned()]);
    let mut table = Table::new("Copies between GPUs of two servers over TLS, GB/s", heads);
    let mut series: Vec<Vec<(f64, f64)>> = vec![Vec::new(); sizes.len() + 1];
    for count in counts.iter().copied() {
        let number = count.to_string();
        let all = copies(lab, &["--count", lab.pick("5", "10")], sizes, &[("MRCUDA_MOVE_CONNECTIONS", &number)])?;
        let raw = lab.bench.controls.bandwidth(Way::Tcp, count, lab.pick(32 << 20, 512 << 20)).map_err(Error::Control)?;
        let rates = sizes.iter().zip(&all).map(|(bytes, [direct, _])| *bytes as f64 / median(direct)).chain([raw]);
        let rates: Vec<f64> = rates.map(|rate| rate / 1e9).collect();
        for (points, rate) in series.iter_mut().zip(&rates) {
            points.push((f64::from(count), *rate));
        }
        table.row(std::iter::once(number).chain(rates.iter().map(|rate| format!("{rate:.2}"))));
    }
    findings.table(table);
    let largest = &series[sizes.len() - 1];
    let best = largest.iter().copied().fold((0.0, 0.0), |best, at| if at.1 > best.1 { at } else { best });
    if let Some(one) = largest.first() {
        findings.ours(CONNECTIONS_OURS, format!("{:.2} GB/s; {:.2} GB/s with {:.0}", one.1, best.1, best.0));
    }
    say_what_is_shared(lab, findings);
    let names = sizes.iter().map(|n| format!("copies of {}", size(*n))).chain([RAW.to_owned()]);
    let series: Vec<Series> = names.zip(series).map(|(name, points)| Series::new(name, points)).collect();
    let plot = Plot {
        title: "Copies between GPUs, by the number of connections",
        x: "connections",
        y: "GB/s",
        lines: true,
        ..Plot::default()
    };
    findings.plot(lab, "p2p-connections", &plot, &series)
}

pub(super) const FIRST_OURS: &str = "the first copy, more than a later one";

/// The first copies of a program between two GPUs.
pub(super) fn first(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    const BYTES: usize = 1 << 20;
    let count = "8";
    let mut runs = Vec::new();
    for _ in 0..lab.pick(2, 5) {
        runs.extend(copies(lab, &["--cold", "--count", count], &[BYTES], &[])?.into_iter().map(|[direct, _]| direct));
    }
    let number = runs.iter().map(Vec::len).min().unwrap_or(0);
    let middle = |n: usize| median(&runs.iter().map(|run| run[n]).collect::<Vec<_>>());
    let points: Vec<(f64, f64)> = (0..number).map(|n| ((n + 1) as f64, middle(n))).collect();
    let mut table =
        Table::new(format!("Copies of {} from the beginning of a program, milliseconds", size(BYTES)), ["copy", "median"]);
    points.iter().for_each(|(n, took)| table.row([format!("{n:.0}"), ms(*took)]));
    findings.table(table);
    if let Some(((_, first), later)) = points.split_first().filter(|(_, later)| !later.is_empty()) {
        let later = median(&later.iter().map(|p| p.1).collect::<Vec<_>>());
        findings.ours(FIRST_OURS, format!("{:.1} ms", (first - later) * 1e3));
    }
    say_what_is_shared(lab, findings);
    let plot = Plot {
        title: "The first copies of a program between two GPUs",
        x: "number of the copy",
        y: "time, s",
        lines: true,
        axes: Axes::FromZero,
        ..Plot::default()
    };
    findings.plot(lab, "p2p-first", &plot, &[Series::new(DIRECT, points)])
}

pub(super) const TRIANGLES_OURS: &str = "time of the program, natively it is 1";

/// Triangle counting as a whole program.
pub(super) fn triangles(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    apps::whole(lab, findings, "triangles", "p2p-triangles", "Triangle counting as a whole program", TRIANGLES_OURS)
}
