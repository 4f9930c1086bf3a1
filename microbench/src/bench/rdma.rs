//! RDMA: calls and large copies at a place that is reached over it, beside the same place over TLS and beside raw sockets; and what links of
//! several rates would give on this machine, by a [`model`].

mod device;
mod model;

use super::bulk::copies;
use super::figures::{Ask, Figures};
use super::paths::{Bench, Path};
use super::stage::Process;
use super::table::Table;
use crate::cases::{Case, Memory};
use crate::error::Error;
use crate::peer::{Controls, Way, copy_bandwidth};
use model::{LINKS, Machine};
use models::fit::median;
use models::plot::{Plot, Series};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path;

const MIB: usize = 1 << 20;
/// Names of the ways that are compared.
const RDMA: &str = "rdma";
const TLS: &str = "tls";
const RAW: &str = "raw tcp";
/// The prefix of places over RDMA.
const PREFIX: &str = "rdma://";

/// Median time of a case in one way.
struct Row {
    case: Case,
    way: &'static str,
    seconds: f64,
}

/// Measures the first place over RDMA, if there is one, and shows the model.
pub(super) fn run(bench: &Bench<'_>, figures: &mut Figures) -> Result<(), Error> {
    let named = bench.others.places.iter().find(|place| place.starts_with(PREFIX));
    // On this machine: only a server that listens at the address of a device can use it.
    let server = device::address().filter(|_| named.is_none()).map(|address| bench.stage.server_at(RDMA, address)).transpose()?;
    let place = named.cloned().or_else(|| server.as_ref().map(|server| server.tls.replacen("tls://", PREFIX, 1)));
    let measured = match &place {
        Some(place) => {
            let rows = measure(bench, place, figures)?;
            show(place, &rows, bench.out, figures)?;
            let kept = rows.iter().map(|r| json!({"case": r.case.to_string(), "way": r.way, "seconds": r.seconds}));
            json!({"place": place, "rows": kept.collect::<Vec<_>>()})
        }
        None => {
            let hint = "--server rdma://HOST:PORT measures a server that has one";
            figures.miss(RDMA, format!("this machine has no RDMA device with an IPv4 address ({hint})"));
            Value::Null
        }
    };
    let model = match machine(bench) {
        Ok(machine) => predict(&machine, bench.out, figures)?,
        Err(why) => {
            figures.miss("model of RDMA", why);
            Value::Null
        }
    };
    figures.parts.insert("rdma".into(), json!({"measured": measured, "model": model}));
    Ok(())
}

/// What is measured at a place: a launch with a wait, which is a round trip, and large copies.
fn cases(ask: Ask) -> Vec<Case> {
    let sizes: &[usize] = if ask.quick { &[MIB, 8 * MIB] } else { &[MIB, 8 * MIB, 64 * MIB, 512 * MIB] };
    let both = |n: &usize| [Case::In(Memory::Pageable, *n), Case::Out(Memory::Pageable, *n)];
    std::iter::once(Case::Launches(1)).chain(sizes.iter().flat_map(both)).collect()
}

/// Measures a place, the same one over TLS, and the control, case by case.
fn measure(bench: &Bench<'_>, place: &str, figures: &mut Figures) -> Result<Vec<Row>, Error> {
    let mut clients: Vec<(&'static str, Process)> = Vec::new();
    for (way, to) in [(RDMA, place.to_owned()), (TLS, place.replacen(PREFIX, "tls://", 1))] {
        match Path::at(way, &to).open(bench.stage) {
            Ok(process) => clients.push((way, process)),
            Err(why) => figures.miss(&to, why),
        }
    }
    let mut rows = Vec::new();
    for case in cases(bench.ask) {
        for (way, process) in &mut clients {
            match copies(process, None, case, bench.ask) {
                Ok((seconds, _)) => rows.push(Row { case, way, seconds: median(&seconds) }),
                Err(why) => figures.miss(&format!("{case} at {place} by {way}"), why),
            }
        }
        rows.push(Row { case, way: RAW, seconds: raw(bench.controls, case, bench.ask).map_err(Error::Control)? });
    }
    clients.into_iter().try_for_each(|(_, process)| process.finish())?;
    Ok(rows)
}

/// Median seconds of a socket that does as much as a case.
fn raw(controls: &Controls, case: Case, ask: Ask) -> std::io::Result<f64> {
    let count = if ask.quick { 5 } else { 20 };
    let seconds = match case {
        Case::In(_, bytes) => controls.exchanges(count, 1, bytes as u64)?,
        Case::Out(_, bytes) => controls.fetches(count, bytes as u64)?,
        _ => controls.ping(Way::Tcp, 10 * count)?.into_iter().map(|ns| ns as f64 / 1e9).collect(),
    };
    Ok(median(&seconds))
}

fn show(place: &str, rows: &[Row], out: &path::Path, figures: &mut Figures) -> Result<(), Error> {
    let title = format!("RDMA at {place}: microseconds, and GB/s of copies");
    let mut table = Table::new(title, ["case", RDMA, TLS, RAW]);
    let by_case: BTreeMap<Case, Vec<&Row>> = rows.iter().fold(BTreeMap::new(), |mut all, row| {
        all.entry(row.case).or_insert_with(Vec::new).push(row);
        all
    });
    for (case, rows) in by_case {
        let cell = |way: &str| {
            let seconds = rows.iter().find(|r| r.way == way)?.seconds;
            let rate = case.bytes().map(|n| format!(" ({:.2})", n as f64 / seconds / 1e9)).unwrap_or_default();
            Some(format!("{:.1}{rate}", seconds * 1e6))
        };
        let cells = [RDMA, TLS, RAW].map(|way| cell(way).unwrap_or_else(|| "absent".to_owned()));
        table.row(std::iter::once(case.words()).chain(cells));
    }
    figures.table(table);
    for inward in [true, false] {
        let point = |row: &Row| match row.case {
            Case::In(_, n) if inward => Some((n as f64, row.seconds)),
            Case::Out(_, n) if !inward => Some((n as f64, row.seconds)),
            _ => None,
        };
        let points = |way: &str| rows.iter().filter(|r| r.way == way).filter_map(point).collect::<Vec<_>>();
        let series = [RDMA, TLS, RAW].map(|way| Series::rates(way, &points(way)));
        let title = format!("Large copies {} by RDMA", if inward { "to the device" } else { "from the device" });
        let plot = Plot { title: &title, x: "bytes", y: "GB/s", ..Plot::default() };
        figures.plot(out, if inward { "rdma-in" } else { "rdma-out" }, &plot, &series)?;
    }
    Ok(())
}

/// Measures what the model needs of this machine.
fn machine(bench: &Bench<'_>) -> Result<Machine, Error> {
    let (bytes, runs) = if bench.ask.quick { (32 * MIB, 3) } else { (64 * MIB, 7) };
    let mut process = Path::native().open(bench.stage)?;
    let mut gpu = |case: Case| copies(&mut process, None, case, bench.ask).map(|(seconds, _)| bytes as f64 / median(&seconds));
    let (to_gpu, from_gpu) = (gpu(Case::In(Memory::Pinned, bytes))?, gpu(Case::Out(Memory::Pinned, bytes))?);
    process.finish()?;
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let copying = |threads: u32| (threads, median(&(0..runs).map(|_| copy_bandwidth(threads, bytes)).collect::<Vec<_>>()));
    Ok(Machine { copying: model::threads(processors).into_iter().map(copying).collect(), processors, to_gpu, from_gpu })
}

/// Shows what the model says for each link.
fn predict(machine: &Machine, out: &path::Path, figures: &mut Figures) -> Result<Value, Error> {
    let mut measured = Table::new("What the model of RDMA rests on, measured here", ["part", "GB/s"]);
    for (threads, rate) in &machine.copying {
        let who = if *threads == 1 { "one thread".to_owned() } else { format!("{threads} threads together") };
        measured.row([format!("copying by {who}"), format!("{:.1}", rate / 1e9)]);
    }
    measured.row(["copies of pinned memory to the GPU".to_owned(), format!("{:.1}", machine.to_gpu / 1e9)]);
    measured.row(["copies of pinned memory from the GPU".to_owned(), format!("{:.1}", machine.from_gpu / 1e9)]);
    figures.table(measured);
    let ways = model::ways(machine);
    let title = "What links with RDMA would give, GB/s, and what limits it: a model, not measured";
    let mut table = Table::new(title, std::iter::once("link").chain(ways.iter().map(|way| way.name)));
    for link in LINKS {
        let cells = ways.iter().map(|way| {
            let (rate, part) = way.rate(link);
            format!("{:.1} ({part})", rate / 1e9)
        });
        table.row(std::iter::once(format!("{:.0} Gbit/s", link / 1e9)).chain(cells));
    }
    figures.table(table);
    let points = |way: &model::Way| LINKS.iter().map(|link| (link / 1e9, way.rate(*link).0 / 1e9)).collect();
    let series: Vec<Series> = ways.iter().map(|way| Series::new(way.name, points(way))).collect();
    let plot =
        Plot { title: "What links with RDMA would give: a model", x: "link, Gbit/s", y: "GB/s", lines: true, ..Plot::default() };
    figures.plot(out, "rdma-model", &plot, &series)?;
    let links = LINKS.iter().map(|link| {
        let of = |way: &model::Way| {
            let (rate, part) = way.rate(*link);
            json!({"way": way.name, "bytes_per_second": rate, "limited_by": part.to_string()})
        };
        json!({"bits_per_second": link, "ways": ways.iter().map(of).collect::<Vec<_>>()})
    });
    Ok(json!({
        "copying_bytes_per_second": machine.copying,
        "to_gpu_bytes_per_second": machine.to_gpu,
        "from_gpu_bytes_per_second": machine.from_gpu,
        "links": links.collect::<Vec<_>>(),
    }))
}
