//! Many threads of one client, and many clients of one server: calls a second, and memory of each client.

use super::figures::Figures;
use super::paths::{Bench, Path};
use super::stage::{Process, Server, Stage, private_bytes};
use super::table::Table;
use crate::error::Error;
use models::plot::{Plot, Series};
use serde_json::{Value, json};
use std::path;

/// What several threads or clients have done together.
struct Row {
    path: String,
    /// Threads of one client, or clients with one thread each.
    clients: bool,
    count: u32,
    launches_a_second: f64,
    waits_a_second: f64,
    /// Private memory of a job and of a worker, in bytes.
    memory: Option<[f64; 2]>,
}

/// Lets all of them make calls at the same time.
fn together(processes: &mut [Process]) -> Result<[f64; 2], Error> {
    processes.iter_mut().try_for_each(|p| p.send_line("go"))?;
    let mut sum = [0.0; 2];
    for process in processes {
        let done = process.answer()?;
        let seconds = done["seconds"].as_f64().filter(|s| *s > 0.0).ok_or_else(|| format!("it says {done}"))?;
        let each = ["launches", "waits"].map(|key| done[key].as_f64().unwrap_or(0.0) / seconds);
        sum = [sum[0] + each[0], sum[1] + each[1]];
    }
    Ok(sum)
}

fn mean(pids: &[u32]) -> f64 {
    pids.iter().map(|pid| private_bytes(*pid) as f64).sum::<f64>() / pids.len().max(1) as f64
}

fn row(stage: &Stage, path: &Path, ours: Option<&Server>, (clients, count, ms): (bool, u32, u64)) -> Result<Row, Error> {
    let (processes, threads) = if clients { (count, 1) } else { (1, count) };
    let args = ["many", "--threads", &threads.to_string(), "--ms", &ms.to_string()];
    let warm = ours.map(Server::workers).unwrap_or_default();
    let mut all = (0..processes).map(|_| path.start(stage, &args, &[])).collect::<Result<Vec<_>, _>>()?;
    all.iter_mut().try_for_each(|p| p.answer().map(drop))?;
    let [launches_a_second, waits_a_second] = together(&mut all)?;
    let memory = ours.map(|server| {
        let jobs: Vec<u32> = all.iter().map(Process::pid).collect();
        // A warm worker from before may serve one of them, and another one is warm now: they differ by the memory of a client.
        let new: Vec<u32> = server.workers().into_iter().filter(|pid| !warm.contains(pid)).collect();
        [mean(&jobs), if new.is_empty() { mean(&server.workers()) } else { mean(&new) }]
    });
    all.into_iter().try_for_each(Process::finish)?;
    Ok(Row { path: path.name.clone(), clients, count, launches_a_second, waits_a_second, memory })
}

/// Measures powers of two of threads and of clients.
pub(super) fn run(bench: &Bench<'_>, figures: &mut Figures) -> Result<(), Error> {
    let Bench { stage, servers, others, controls, ask, out } = *bench;
    let counts: &[u32] = if ask.quick { &[1, 4] } else { &[1, 2, 4, 8, 16, 32, 64] };
    let ms = if ask.quick { 100 } else { 1000 };
    let ours = others.places.is_empty().then_some(&servers[0]);
    let mut rows = Vec::new();
    for count in counts.iter().copied() {
        for clients in [false, true] {
            // What serves the other replacement is not known, so neither is its memory.
            let with_servers =
                others.remote(servers).into_iter().map(|path| (path, ours)).chain(others.against().map(|path| (path, None)));
            for (path, server) in with_servers {
                match row(stage, &path, server, (clients, count, ms)) {
                    Ok(row) => rows.push(row),
                    Err(why) => {
                        figures.miss(&format!("{count} {} on {}", if clients { "clients" } else { "threads" }, path.name), why)
                    }
                }
            }
        }
        let raw = controls.pings_a_second(count, if ask.quick { 200 } else { 5000 }).map_err(Error::Control)?;
        rows.push(Row {
            path: "raw tcp".into(),
            clients: true,
            count,
            launches_a_second: 0.0,
            waits_a_second: raw,
            memory: None,
        });
    }
    show(&rows, out, figures)
}

fn show(rows: &[Row], out: &path::Path, figures: &mut Figures) -> Result<(), Error> {
    let mut table = Table::new(
        "Threads of a client, clients of a server: together, twenty launches and a wait again and again",
        ["path", "count", "of", "launches/s", "waits/s", "job, MiB", "worker, MiB"],
    );
    for r in rows {
        let memory = |end: usize| r.memory.map_or_else(|| "absent".to_owned(), |m| format!("{:.1}", m[end] / f64::from(1 << 20)));
        table.row([
            r.path.clone(),
            r.count.to_string(),
            if r.clients { "clients" } else { "threads" }.to_owned(),
            format!("{:.0}", r.launches_a_second),
            format!("{:.0}", r.waits_a_second),
            memory(0),
            memory(1),
        ]);
    }
    figures.table(table);
    for (clients, name, title, x) in [
        (false, "scale-threads", "Launches a second by the threads of one client", "threads"),
        (true, "scale-clients", "Launches a second by the clients of one server", "clients"),
    ] {
        let mut names: Vec<&str> = rows.iter().map(|r| r.path.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let points = |name: &str| -> Vec<(f64, f64)> {
            let mine = rows.iter().filter(|r| r.clients == clients && r.path == name);
            mine.map(|r| (f64::from(r.count), r.launches_a_second)).collect()
        };
        let series: Vec<Series> = names.into_iter().map(|name| Series::new(name, points(name))).collect();
        let plot = Plot { title, x, y: "launches a second", lines: true, ..Plot::default() };
        figures.plot(out, name, &plot, &series)?;
    }
    let kept = rows.iter().map(|r| -> Value {
        json!({"path": r.path, "clients": r.clients, "count": r.count, "launches_a_second": r.launches_a_second,
            "waits_a_second": r.waits_a_second, "private_bytes": r.memory})
    });
    figures.parts.insert("scale".into(), kept.collect());
    Ok(())
}
