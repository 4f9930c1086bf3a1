//! Copies between two GPUs of a job: on one machine, where one place maps the memory of the other, and between machines, where they go
//! from place to place; beside the same bytes by way of the program's own memory, and on one connection of a raw socket.

use super::figures::Figures;
use super::paths::{Bench, Path};
use super::table::Table;
use crate::cases::size;
use crate::error::Error;
use models::fit::median;
use models::plot::{Plot, Series};
use serde_json::{Value, json};

/// Name of the raw control.
const RAW: &str = "raw tcp";

/// Median seconds of copies of one size on one path.
struct Row {
    path: String,
    bytes: usize,
    direct: f64,
    /// `None` for the control.
    staged: Option<f64>,
}

/// The second GPU of a place's machine, if it has one.
fn second(place: &str) -> String {
    place.strip_suffix("/0").map_or_else(|| place.to_owned(), |server| format!("{server}/1"))
}

/// Measures all sizes on a path.
fn measure(bench: &Bench<'_>, path: &Path, sizes: &[usize]) -> Result<Vec<Row>, Error> {
    let count = if bench.ask.quick { "5" } else { "30" };
    let named: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let args: Vec<&str> = ["between", "--count", count].into_iter().chain(named.iter().map(String::as_str)).collect();
    let mut process = path.start(bench.stage, &args, &[])?;
    let mut rows = Vec::new();
    for bytes in sizes.iter().copied() {
        let answer = process.answer()?;
        let seconds = |key: &str| -> Result<f64, Error> {
            let ns = answer[key].as_array().ok_or_else(|| format!("it says {answer}"))?;
            Ok(median(&ns.iter().filter_map(Value::as_f64).map(|ns| ns / 1e9).collect::<Vec<f64>>()))
        };
        rows.push(Row { path: path.name.clone(), bytes, direct: seconds("direct")?, staged: Some(seconds("staged")?) });
    }
    process.finish()?;
    Ok(rows)
}

/// Measures all paths, size by size.
pub(super) fn run(bench: &Bench<'_>, figures: &mut Figures) -> Result<(), Error> {
    let Bench { servers, others, controls, ask, .. } = *bench;
    let (kib, mib) = (1 << 10, 1 << 20);
    let sizes: &[usize] =
        if ask.quick { &[256 * kib, 8 * mib] } else { &[64 * kib, 256 * kib, mib, 8 * mib, 64 * mib, 256 * mib] };
    let pairs = match &others.places[..] {
        [] => {
            let of = |place: fn(&super::stage::Server) -> &String| [place(&servers[0]).clone(), place(&servers[1]).clone()];
            vec![("mapped", of(|s| &s.unix)), ("tcp", of(|s| &s.tcp)), ("tls", of(|s| &s.tls))]
        }
        [one] => vec![("between", [one.clone(), second(one)])],
        [one, two, ..] => vec![("between", [one.clone(), two.clone()])],
    };
    let mut rows = Vec::new();
    for (name, [one, two]) in pairs {
        // Another GPU than the first one, if the machine has one.
        let measured = measure(bench, &Path::at(name, &format!("{one},{}", second(&two))), sizes)
            .or_else(|_| measure(bench, &Path::at(name, &format!("{one},{two}")), sizes));
        match measured {
            Ok(more) => rows.extend(more),
            Err(why) => figures.miss(&format!("peer on {name}"), why),
        }
    }
    if let Some(path) = others.against() {
        match measure(bench, &path, sizes) {
            Ok(more) => rows.extend(more),
            Err(why) => figures.miss(&format!("peer on {}", path.name), why),
        }
    }
    for bytes in sizes.iter().copied() {
        let raw = controls.exchanges(if ask.quick { 5 } else { 20 }, 1, bytes as u64).map_err(Error::Control)?;
        rows.push(Row { path: RAW.into(), bytes, direct: median(&raw), staged: None });
    }
    show(&rows, bench.out, figures)
}

fn show(rows: &[Row], out: &std::path::Path, figures: &mut Figures) -> Result<(), Error> {
    let columns = ["bytes", "path", "ms", "GB/s", "by way of the program, ms", "GB/s"];
    let mut table = Table::new("Copies between two GPUs of a job", columns);
    for row in rows {
        let cells = |seconds: f64| [format!("{:.2}", seconds * 1e3), format!("{:.2}", row.bytes as f64 / seconds / 1e9)];
        let [direct, rate] = cells(row.direct);
        let [staged, other] = row.staged.map_or_else(|| ["absent".to_owned(), "absent".to_owned()], cells);
        table.row([size(row.bytes), row.path.clone(), direct, rate, staged, other]);
    }
    figures.table(table);
    let mut names: Vec<&str> = rows.iter().map(|r| r.path.as_str()).collect();
    names.dedup();
    let points = |name: &str, seconds: fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
        rows.iter().filter(|r| r.path == name).filter_map(|r| Some((r.bytes as f64, seconds(r)?))).collect()
    };
    let series: Vec<Series> = names
        .into_iter()
        .flat_map(|name| {
            let control = format!("{name}, by way of the program");
            [(name, points(name, |r| Some(r.direct))), (&*control, points(name, |r| r.staged))]
                .into_iter()
                .filter(|(_, points)| !points.is_empty())
                .map(|(name, points)| Series::rates(name, &points))
                .collect::<Vec<_>>()
        })
        .collect();
    let plot = Plot { title: "Copies between two GPUs of a job, beside a raw socket", x: "bytes", y: "GB/s", ..Plot::default() };
    figures.plot(out, "peer", &plot, &series)?;
    let kept = rows.iter().map(|r| json!({"path": r.path, "bytes": r.bytes, "seconds": r.direct, "staged_seconds": r.staged}));
    figures.parts.insert("peer".into(), kept.collect());
    Ok(())
}
