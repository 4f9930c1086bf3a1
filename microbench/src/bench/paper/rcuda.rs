//! The experiments of the rCUDA paper: start-up, pipelined and asynchronous copies, several clients of a GPU, and several processes with
//! a GPU each.

use super::apps;
use super::lab::{At, Findings, KIB, Lab, MIB, NATIVE, SHM, TLS, ms, seconds};
use super::play::{Job, Load, play};
use crate::bench::stage::Process;
use crate::bench::table::Table;
use crate::cases::{Case, Memory, QUEUED, WHOLE, size};
use crate::error::Error;
use crate::peer::Way;
use models::fit::median;
use models::plot::{Axes, Plot, Series};
use std::time::Instant;

/// The raw control's name.
const RAW: &str = "raw tcp";

pub(super) const START_OURS: &str = "start of a program to the end of its first kernel";

/// Starts of a program, natively and at servers whose workers have begun before.
pub(super) fn start(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let paths =
        [(NATIVE, At::Native(0)), (SHM, At::Place(lab.bench.servers[0].unix.clone())), (TLS, At::Place(lab.remote(0, 0)))];
    let mut points = vec![Vec::new(); paths.len()];
    for run in 1..=lab.pick(3, 8) {
        for ((name, at), points) in paths.iter().zip(&mut points) {
            let since = Instant::now();
            let first = |mut process: Process| {
                process.answer()?;
                let took = since.elapsed().as_secs_f64();
                process.finish().map(|()| took)
            };
            match lab.start(at, &["client", "--first"], &[]).and_then(first) {
                Ok(took) => points.push((f64::from(run), took)),
                Err(why) => findings.miss(&format!("start on {name}"), why),
            }
        }
    }
    let mut table = Table::new("Start of a program to the end of its first kernel, milliseconds", ["path", "median", "all"]);
    let middle = |points: &[(f64, f64)]| median(&points.iter().map(|p| p.1).collect::<Vec<_>>());
    for ((name, _), points) in paths.iter().zip(&points).filter(|(_, points)| !points.is_empty()) {
        let all: Vec<String> = points.iter().map(|p| format!("{:.0}", p.1 * 1e3)).collect();
        table.row([(*name).to_owned(), ms(middle(points)), all.join(" ")]);
    }
    findings.table(table);
    if let [native, _, remote] = &points[..]
        && !native.is_empty()
        && !remote.is_empty()
    {
        let (native, remote) = (middle(native), middle(remote));
        let times = remote / native;
        findings.ours(START_OURS, format!("{:.0} ms natively, {:.0} ms over TLS: {times:.2} times", native * 1e3, remote * 1e3));
    }
    let series: Vec<Series> = paths.iter().zip(points).map(|((name, _), points)| Series::new(*name, points)).collect();
    let plot = Plot {
        title: "Start of a program to the end of its first kernel",
        x: "run",
        y: "time, s",
        lines: true,
        axes: Axes::FromZero,
        ..Plot::default()
    };
    findings.plot(lab, "rcuda-start", &plot, &series)
}

/// Median seconds of a case.
fn ask(client: &mut Process, case: Case, lab: &Lab<'_>) -> Result<f64, Error> {
    let (count, limit) = lab.pick((5, 300), (20, 700));
    Ok(median(&seconds(&client.ask(&format!("{case} {count} {limit}"))?)?))
}

/// Programs at a place over each way.
fn clients(lab: &Lab<'_>, ways: &[(&'static str, At)]) -> Result<Vec<(&'static str, Process)>, Error> {
    ways.iter().map(|(name, at)| lab.client(at).map(|client| (*name, client))).collect()
}

/// The driver itself, and a server over shared memory and over TLS.
fn ways(lab: &Lab<'_>) -> [(&'static str, At); 3] {
    [(NATIVE, At::Native(0)), (SHM, At::Place(lab.bench.servers[0].unix.clone())), (TLS, At::Place(lab.remote(0, 0)))]
}

pub(super) const CHUNKS_OURS: &str = "best size of a piece over the network";
pub(super) const WHOLE_OURS: &str = "copy in one call, compared with the best pieces";

/// A copy that the program pipelines itself, by the size of its pieces, beside the same copy in one call.
pub(super) fn chunks(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let all = [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB];
    let pieces: Vec<usize> = all.into_iter().step_by(lab.pick(3, 1)).collect();
    let mut clients = clients(lab, &ways(lab))?;
    let heads = std::iter::once("pieces of".to_owned()).chain(clients.iter().map(|(name, _)| (*name).to_owned()));
    let mut table = Table::new(format!("Copy of {} of pageable memory to the device, GB/s", size(WHOLE)), heads);
    let mut rates: Vec<Vec<(f64, f64)>> = vec![Vec::new(); clients.len()];
    for piece in &pieces {
        let mut cells = vec![size(*piece)];
        for ((_, client), rates) in clients.iter_mut().zip(&mut rates) {
            let rate = WHOLE as f64 / ask(client, Case::Pieces(*piece), lab)? / 1e9;
            rates.push((*piece as f64, rate));
            cells.push(format!("{rate:.2}"));
        }
        table.row(cells);
    }
    let mut cells = vec!["one call".to_owned()];
    let mut series = Vec::new();
    for ((name, client), rates) in clients.iter_mut().zip(rates) {
        let whole = WHOLE as f64 / ask(client, Case::In(Memory::Pageable, WHOLE), lab)? / 1e9;
        cells.push(format!("{whole:.2}"));
        let best = rates.iter().copied().fold((0.0, 0.0), |best, at| if at.1 > best.1 { at } else { best });
        if *name == TLS {
            findings.ours(CHUNKS_OURS, format!("{} ({:.2} GB/s)", size(best.0 as usize), best.1));
            findings.ours(WHOLE_OURS, format!("{:.2} GB/s: {:.2} times", whole, whole / best.1));
        }
        let ends = [pieces.first(), pieces.last()].map(|piece| (piece.copied().unwrap_or(1) as f64, whole));
        series.push(Series::new(*name, rates));
        series.push(Series::new(format!("{name}, in one call"), ends.to_vec()));
    }
    table.row(cells);
    findings.table(table);
    clients.into_iter().try_for_each(|(_, client)| client.finish())?;
    let plot = Plot {
        title: "A copy that the program pipelines itself, by the size of its pieces",
        x: "bytes",
        y: "GB/s",
        lines: true,
        ..Plot::default()
    };
    findings.plot(lab, "rcuda-chunks", &plot, &series)
}

pub(super) const ASYNC_OURS: &str = "asynchronous copies, a socket's rate is 100";
pub(super) const SYNC_OURS: &str = "synchronous copies of pageable memory, native ones are 1";

/// Copies that are waited for one by one, beside copies that are queued.
pub(super) fn asynchronous(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let sizes: &[usize] = lab.pick(&[256 * KIB, 4 * MIB], &[64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]);
    let mut clients = clients(lab, &ways(lab))?;
    let kinds: [(&str, fn(usize) -> Case); 3] = [
        ("pageable", |n| Case::In(Memory::Pageable, n)),
        ("pinned", |n| Case::In(Memory::Pinned, n)),
        ("pinned, queued", Case::Later),
    ];
    let names = clients.iter().flat_map(|(way, _)| kinds.map(|(kind, _)| format!("{way}, {kind}"))).collect::<Vec<_>>();
    let heads = std::iter::once("copies of".to_owned()).chain(names.iter().cloned()).chain([RAW.to_owned()]);
    let title = format!("Copies to the device, GB/s: synchronous ones, and {QUEUED} asynchronous ones before a wait");
    let mut table = Table::new(title, heads);
    let mut series: Vec<Vec<(f64, f64)>> = vec![Vec::new(); names.len() + 1];
    for bytes in sizes.iter().copied() {
        let (mut cells, mut column) = (vec![size(bytes)], 0);
        for (_, client) in &mut clients {
            for (_, case) in kinds {
                let case = case(bytes);
                let each = ask(client, case, lab)? / case.parts() as f64;
                let rate = bytes as f64 / each / 1e9;
                cells.push(format!("{rate:.2}"));
                series[column].push((bytes as f64, rate));
                column += 1;
            }
        }
        let rates = (0..lab.pick(2, 5)).map(|_| lab.bench.controls.bandwidth(Way::Tcp, 1, (bytes as u64) * u64::from(QUEUED)));
        let rate = median(&rates.collect::<Result<Vec<_>, _>>().map_err(Error::Control)?) / 1e9;
        cells.push(format!("{rate:.2}"));
        series[column].push((bytes as f64, rate));
        table.row(cells);
    }
    findings.table(table);
    clients.into_iter().try_for_each(|(_, client)| client.finish())?;
    let last = |name: &str| {
        let column = names.iter().position(|n| n == name).unwrap_or(names.len());
        series[column].last().map_or(f64::NAN, |p| p.1)
    };
    let (queued, raw) = (last(&format!("{TLS}, pinned, queued")), last(RAW));
    findings.ours(ASYNC_OURS, format!("{:.0} % of one raw connection ({queued:.2} GB/s, encrypted)", queued / raw * 100.0));
    let (own, native) = (last(&format!("{TLS}, pageable")), last(&format!("{NATIVE}, pageable")));
    findings.ours(SYNC_OURS, format!("{:.2} over TLS", own / native));
    let all: Vec<Series> =
        names.iter().map(String::as_str).chain([RAW]).zip(series).map(|(name, points)| Series::new(name, points)).collect();
    let plot = Plot {
        title: "Synchronous and asynchronous copies to the device",
        x: "bytes",
        y: "GB/s",
        lines: true,
        ..Plot::default()
    };
    findings.plot(lab, "rcuda-async", &plot, &all)
}

pub(super) const CLIENTS_OURS: &str = "steps a second of all clients together, the most of them";

/// Several clients of one GPU, natively and at a server.
pub(super) fn clients_of_a_gpu(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let counts: &[usize] = lab.pick(&[1, 3], &[1, 2, 4, 8]);
    let ways = ways(lab);
    let load = Load::simulation(lab).lasting(lab, &ways[0].1, lab.pick(0.4, 0.8))?;
    let mut table = Table::new("Clients of one GPU: steps a second of all together", ["clients", NATIVE, SHM, TLS]);
    let mut series = vec![Vec::new(); ways.len()];
    for count in counts.iter().copied() {
        let mut cells = vec![count.to_string()];
        for ((name, at), series) in ways.iter().zip(&mut series) {
            let jobs: Vec<Job> = (1..=count).map(|n| Job::new(&format!("client {n}"), at, load)).collect();
            match play(lab, &jobs, &[]) {
                Ok(all) => {
                    let rate = load.steps as f64 * count as f64 / all.makespan();
                    cells.push(format!("{rate:.0}"));
                    series.push((count as f64, rate));
                }
                Err(why) => {
                    cells.push("absent".to_owned());
                    findings.miss(&format!("{count} clients on {name}"), why);
                }
            }
        }
        table.row(cells);
    }
    findings.table(table);
    if let [Some(native), _, Some(remote)] = [0, 1, 2].map(|n: usize| series[n].last()) {
        findings.ours(CLIENTS_OURS, format!("{:.0} natively, {:.0} over TLS ({} clients)", native.1, remote.1, remote.0));
    }
    let series: Vec<Series> = ways.iter().zip(series).map(|((name, _), points)| Series::new(*name, points)).collect();
    let plot = Plot {
        title: "Several clients of one GPU",
        x: "clients",
        y: "steps a second of all together",
        lines: true,
        ..Plot::default()
    };
    findings.plot(lab, "rcuda-clients", &plot, &series)
}

pub(super) const LOOSE_OURS: &str = "overhead of a process per GPU";
pub(super) const TIGHT_OURS: &str = "overhead when tightly coupled";

/// Several processes with a GPU of several servers each, alone and exchanging what they have in each step.
pub(super) fn ranks(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let counts: &[u32] = lab.pick(&[1, 2], &[1, 2, 4]);
    let load = Load::simulation(lab).lasting(lab, &At::Native(0), lab.pick(0.4, 0.8))?;
    let mut table = Table::new(
        format!("Processes that make {} steps each, with a GPU of two servers by turns, seconds", load.steps),
        ["processes", "native", "remote", "overhead", "coupled, native", "coupled, remote", "overhead"],
    );
    let mut series = vec![Vec::new(); 4];
    let mut worst = [0.0f64; 2];
    for count in counts.iter().copied() {
        let mut cells = vec![count.to_string()];
        for (number, coupled) in [false, true].into_iter().enumerate() {
            let mut took = [0.0; 2];
            for (way, took) in took.iter_mut().enumerate() {
                *took = one_ring(lab, load, count, way == 1, coupled)?;
                series[number * 2 + way].push((f64::from(count), *took));
                cells.push(format!("{took:.3}"));
            }
            let overhead = (took[1] / took[0] - 1.0) * 100.0;
            worst[number] = worst[number].max(overhead);
            cells.push(format!("{overhead:.0} %"));
        }
        table.row(cells);
    }
    findings.table(table);
    findings.ours(LOOSE_OURS, format!("up to {:.0} %", worst[0]));
    findings.ours(TIGHT_OURS, format!("up to {:.0} %", worst[1]));
    if lab.gpus < 2 {
        findings.miss("GPUs of their own", format!("the machine has {}: all processes share it, natively too", lab.gpus));
    }
    let names = [NATIVE.to_owned(), TLS.to_owned(), format!("{NATIVE}, coupled"), format!("{TLS}, coupled")];
    let series: Vec<Series> = names.into_iter().zip(series).map(|(name, points)| Series::new(name, points)).collect();
    let plot = Plot {
        title: "Processes of one job with a GPU each",
        x: "processes",
        y: "time, s",
        lines: true,
        axes: Axes::FromZero,
        ..Plot::default()
    };
    findings.plot(lab, "rcuda-ranks", &plot, &series)
}

/// Seconds of the slowest of several processes.
fn one_ring(lab: &Lab<'_>, load: Load, count: u32, remote: bool, coupled: bool) -> Result<f64, Error> {
    let ring = lab.bench.stage.directory.join("ring");
    // There from the run before.
    let _ = std::fs::remove_dir_all(&ring);
    std::fs::create_dir(&ring).map_err(Error::file(&ring))?;
    let job = |rank: u32| {
        let gpu = rank % lab.gpus.max(1);
        let at = if remote { At::Place(lab.remote(rank as usize, gpu)) } else { At::Native(gpu) };
        let mut job = Job::new(&format!("rank {rank}"), &at, load);
        if coupled {
            let [rank, ranks] = [rank, count].map(|n| n.to_string());
            job.more = vec!["--ring".into(), ring.display().to_string(), "--rank".into(), rank, "--ranks".into(), ranks];
        }
        job
    };
    let all = play(lab, &(0..count).map(job).collect::<Vec<_>>(), &[])?;
    Ok(all.jobs.iter().map(super::play::Ran::seconds).fold(0.0, f64::max))
}

pub(super) const PRODUCT_OURS: &str = "time of a matrix product, natively it is 1";

/// A matrix product with its copies, as a whole program.
pub(super) fn product(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    apps::whole(lab, findings, "gemm", "rcuda-product", "Matrix products as a whole program", PRODUCT_OURS)
}
