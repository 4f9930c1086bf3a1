//! The experiments of the paper on migration of GPU jobs that are about single moves: their cost by regions, size and link, moves of
//! applications, a busy server, and parking.

use super::apps;
use super::lab::{At, Findings, Lab, NATIVE, SHM, TLS, downtime, ms, number, phase, total};
use super::live::{Kept, acted, moved};
use super::play::{Job, Load, play};
use crate::bench::table::Table;
use crate::cases::size;
use crate::error::Error;
use crate::link::{Proxy, Shape};
use crate::peer::Way;
use models::plot::{Axes, Plot, Series};
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WHOLE: &str = "whole move";
const DOWNTIME: &str = "downtime";
const COPY: &str = "copy while the job works";
const RAW: &str = "raw tcp";

pub(super) const REGIONS_OURS: &str = "management besides the copy, 1 and most regions";

/// Moves between two servers, by the number of regions of the same memory.
pub(super) fn regions(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let numbers: &[u64] = lab.pick(&[1, 16, 128], &[1, 2, 4, 8, 16, 32, 64, 128]);
    let mib = lab.scale(128, lab.pick(256, 4096));
    let (from, to) = (lab.remote(0, 0), lab.remote(1, 1));
    let mut table = Table::new(
        format!("Moves of {} between two servers over TLS, milliseconds", size((mib << 20) as usize)),
        ["regions", "copy while the job works", "everything else", "downtime", "whole move"],
    );
    let mut series = [Vec::new(), Vec::new(), Vec::new()];
    for number in numbers.iter().copied() {
        match moved(lab, &from, &to, Kept { mib, regions: number, events: 0 }) {
            Ok(report) => {
                let (copy, pause, all) = (phase(&report, "precopy"), downtime(&report), total(&report));
                table.row([number.to_string(), ms(copy), ms(all - copy), ms(pause), ms(all)]);
                for (points, took) in series.iter_mut().zip([all, all - copy, pause]) {
                    points.push((number as f64, took));
                }
            }
            Err(why) => findings.miss(&format!("a move of {number} regions"), why),
        }
    }
    findings.table(table);
    if let [Some(first), Some(last)] = [series[1].first(), series[1].last()] {
        let paused = series[2].last().map_or(0.0, |p| p.1);
        findings.ours(REGIONS_OURS, format!("{:.3} s, {:.3} s; downtime with the most regions {paused:.3} s", first.1, last.1));
    }
    let names = [WHOLE, "all but the copy", DOWNTIME];
    let theirs = Series::new("rCUDA 2019, besides the copy", vec![(1.0, 0.10), (128.0, 0.28)]);
    let series: Vec<Series> =
        names.into_iter().zip(series).map(|(name, points)| Series::new(name, points)).chain([theirs]).collect();
    let plot =
        Plot { title: "Moves by the number of memory regions", x: "regions", y: "time, s", lines: true, ..Plot::default() };
    findings.plot(lab, "migration-regions", &plot, &series)
}

pub(super) const SIZES_OURS: &str = "copies have 90 % of the best rate from";

/// Moves between two servers, by the memory of the job.
pub(super) fn sizes(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let sizes: &[u64] =
        lab.scale(lab.pick(&[1, 8, 32], &[1, 4, 16, 64, 256]), lab.pick(&[1, 16, 256], &[1, 4, 16, 64, 256, 1024, 4096]));
    let (from, to) = (lab.remote(0, 0), lab.remote(1, 1));
    let mut table =
        Table::new("Moves between two servers over TLS", ["memory", "copy, ms", "copy, GB/s", "downtime, ms", "whole move, ms"]);
    let mut series = [Vec::new(), Vec::new(), Vec::new()];
    for mib in sizes.iter().copied() {
        match moved(lab, &from, &to, Kept { mib, regions: 1, events: 0 }) {
            Ok(report) => {
                let bytes = (mib << 20) as f64;
                let (copy, pause, all) = (phase(&report, "precopy"), downtime(&report), total(&report));
                table.row([size((mib << 20) as usize), ms(copy), format!("{:.2}", bytes / copy / 1e9), ms(pause), ms(all)]);
                for (points, took) in series.iter_mut().zip([copy, pause, all]) {
                    points.push((bytes, took));
                }
            }
            Err(why) => findings.miss(&format!("a move of {mib} MiB"), why),
        }
    }
    findings.table(table);
    let rates: Vec<(f64, f64)> = series[0].iter().map(|(bytes, took)| (*bytes, bytes / took)).collect();
    let best = rates.iter().map(|p| p.1).fold(0.0, f64::max);
    if let Some((bytes, _)) = rates.iter().find(|(_, rate)| *rate >= 0.9 * best) {
        findings.ours(SIZES_OURS, format!("{} ({:.2} GB/s at best, encrypted)", size(*bytes as usize), best / 1e9));
    }
    let series: Vec<Series> =
        [COPY, DOWNTIME, WHOLE].into_iter().zip(series).map(|(name, points)| Series::times(name, points, "bytes")).collect();
    let plot = Plot { title: "Moves between two servers by the memory of the job", x: "bytes", y: "time, s", ..Plot::default() };
    findings.plot(lab, "migration-sizes", &plot, &series)
}

pub(super) const SLOW_LINK_OURS: &str = "downtime over the slowest link";
pub(super) const FAST_LINK_OURS: &str = "downtime over the fastest link";

/// Moves between two servers over links of several rates.
pub(super) fn links(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let rates: &[u64] = lab.pick(&[1, 10], &[1, 2, 5, 10, 25, 40]);
    let mib = lab.scale(16, lab.pick(64, 512));
    let bytes = mib << 20;
    let from = lab.remote(0, 0);
    let server = lab.remote(1, 1);
    let (address, gpu) = server.trim_start_matches("tls://").split_once('/').ok_or_else(|| format!("odd place {server}"))?;
    let to = address.to_socket_addrs()?.next().ok_or_else(|| format!("{address}: the name has no address"))?;
    let mut table = Table::new(
        format!("Moves of {} between two servers, milliseconds; links are proxies that limit the rate", size(bytes as usize)),
        ["Gbit/s", "copy while the job works", "downtime", "whole move", "the same bytes by raw sockets"],
    );
    let mut series = [Vec::new(), Vec::new(), Vec::new()];
    for rate in rates.iter().copied() {
        let shape = Shape { delay: Duration::ZERO, rate: Some(rate * 1_000_000_000) };
        let proxy = Proxy::start(to, shape)?;
        let peer = Proxy::start(lab.bench.controls.address(), shape)?;
        let place = format!("tls://{}/{gpu}", proxy.address);
        let raw = lab.bench.controls.by(peer.address).bandwidth(Way::Tcp, 4, bytes).map_err(Error::Control)?;
        match moved(lab, &from, &place, Kept { mib, regions: 4, events: 0 }) {
            Ok(report) => {
                let (copy, pause, all) = (phase(&report, "precopy"), downtime(&report), total(&report));
                let raw = bytes as f64 / raw;
                table.row([rate.to_string(), ms(copy), ms(pause), ms(all), ms(raw)]);
                for (points, took) in series.iter_mut().zip([all, pause, raw]) {
                    points.push((rate as f64, took));
                }
            }
            Err(why) => findings.miss(&format!("a move over {rate} Gbit/s"), why),
        }
    }
    findings.table(table);
    for (what, at) in [(SLOW_LINK_OURS, series[1].first()), (FAST_LINK_OURS, series[1].last())] {
        if let Some((rate, took)) = at {
            findings.ours(what, format!("{:.3} s ({rate:.0} Gbit/s, {})", took, size(bytes as usize)));
        }
    }
    let series: Vec<Series> =
        [WHOLE, DOWNTIME, RAW].into_iter().zip(series).map(|(name, points)| Series::new(name, points)).collect();
    let plot =
        Plot { title: "Moves over links of several rates", x: "link, Gbit/s", y: "time, s", lines: true, ..Plot::default() };
    findings.plot(lab, "migration-links", &plot, &series)
}

pub(super) const APPS_OURS: &str = "longest downtime of the applications";

/// The applications, and what they are like in the paper.
const APPLICATIONS: [&str; 5] = ["hydro", "heat", "alignment", "particles", "solver"];

/// Applications that are moved between two servers after a part of their run.
pub(super) fn applications(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let (count, percents): (usize, &[u32]) = lab.pick((2, &[50]), (5, &[25, 50, 75]));
    let (from, to) = (At::Place(lab.remote(0, 0)), lab.remote(1, 1));
    let mut table = Table::new(
        "Applications that are moved between two servers",
        [
            "application",
            "native, s",
            "remote, s",
            "moved after",
            "run, s",
            "memory, MiB",
            "regions",
            "downtime, ms",
            "whole move, ms",
            "output",
        ],
    );
    let (mut series, mut longest) = (Vec::new(), 0.0f64);
    for name in &APPLICATIONS[..count] {
        let Some(program) = apps::find(lab, name, findings) else { continue };
        let alone = apps::run(lab, &program, &At::Native(0), true, None)?;
        let remote = apps::run(lab, &program, &from, true, None)?;
        let mut points = Vec::new();
        for percent in percents.iter().copied() {
            let after = remote.seconds * f64::from(percent) / 100.0;
            let run = match apps::run(lab, &program, &from, true, Some((after, &to))) {
                Ok(run) => run,
                Err(why) => {
                    findings.miss(&format!("{name} moved after {percent} %"), why);
                    continue;
                }
            };
            let Some(report) = &run.report else { continue };
            let pause = downtime(report);
            table.row([
                (*name).to_owned(),
                format!("{:.2}", alone.seconds),
                format!("{:.2}", remote.seconds),
                format!("{percent} %"),
                format!("{:.2}", run.seconds),
                format!("{:.1}", number(report, "live_bytes") / f64::from(1 << 20)),
                format!("{:.0}", number(report, "chunks")),
                ms(pause),
                ms(total(report)),
                if run.output == alone.output { "as native" } else { "NOT AS NATIVE" }.to_owned(),
            ]);
            points.push((f64::from(percent), pause));
            longest = longest.max(pause);
        }
        series.push(Series::new(*name, points));
    }
    findings.table(table);
    if longest > 0.0 {
        findings.ours(APPS_OURS, format!("{longest:.3} s"));
    }
    let plot = Plot {
        title: "Downtime of applications that are moved after a part of their run",
        x: "part of the run before the move, %",
        y: "downtime, s",
        lines: true,
        axes: Axes::FromZero,
        ..Plot::default()
    };
    findings.plot(lab, "migration-apps", &plot, &series)
}

pub(super) const INTERFERENCE_OURS: &str = "a remote run beside as many busy threads as processors, and alone";

/// Runs while other programs use the processors.
pub(super) fn interference(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let busy: Vec<usize> = lab.pick(vec![0, processors], vec![0, processors.div_ceil(2), processors, 2 * processors]);
    let ways = [(NATIVE, At::Native(0)), (SHM, At::Place(lab.bench.servers[0].unix.clone())), (TLS, At::Place(lab.remote(0, 0)))];
    let load = Load::simulation(lab).lasting(lab, &ways[0].1, lab.pick(0.5, 1.0))?;
    let mut table = Table::new(
        format!("A simulation of {} steps beside busy threads, seconds; {processors} processors", load.steps),
        ["busy threads", NATIVE, SHM, TLS],
    );
    let mut series = vec![Vec::new(); ways.len()];
    for threads in busy.iter().copied() {
        let over = AtomicBool::new(false);
        let took = std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut n = 0u64;
                    while !over.load(Ordering::Relaxed) {
                        n = std::hint::black_box(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                    }
                });
            }
            let one = |(_, at): &(&str, At)| play(lab, &[Job::new("simulation", at, load)], &[]).map(|all| all.jobs[0].seconds());
            let took = ways.iter().map(one).collect::<Result<Vec<_>, _>>();
            over.store(true, Ordering::Relaxed);
            took
        })?;
        table.row(std::iter::once(threads.to_string()).chain(took.iter().map(|s| format!("{s:.3}"))));
        for (points, took) in series.iter_mut().zip(took) {
            points.push((threads as f64, took));
        }
    }
    findings.table(table);
    let of = |threads: usize| series[2].iter().find(|p: &&(f64, f64)| p.0 == threads as f64).map(|p| p.1);
    if let (Some(beside), Some(alone)) = (of(processors), of(0)) {
        findings.ours(INTERFERENCE_OURS, format!("{:.2} times as long", beside / alone));
    }
    let series: Vec<Series> = ways.iter().zip(series).map(|((name, _), points)| Series::new(*name, points)).collect();
    let plot = Plot {
        title: "A run beside programs that keep the processors busy",
        x: "busy threads",
        y: "run, s",
        lines: true,
        axes: Axes::FromZero,
        ..Plot::default()
    };
    findings.plot(lab, "migration-interference", &plot, &series)
}

pub(super) const PARK_OURS: &str = "parking the largest job, and resuming it";

/// Jobs that are parked in this machine's memory and resumed, by the memory that they keep.
pub(super) fn park(lab: &Lab<'_>, findings: &mut Findings) -> Result<(), Error> {
    let sizes: &[u64] = lab.scale(lab.pick(&[4, 16], &[4, 16, 64, 256]), lab.pick(&[64, 256], &[64, 256, 1024, 4096]));
    let at = lab.remote(0, 0);
    let mut table = Table::new("Parking in memory and resuming, milliseconds", ["memory", "park", "resume"]);
    let mut series = [Vec::new(), Vec::new()];
    for mib in sizes.iter().copied() {
        let both = acted(lab, &at, Kept { mib, regions: 4, events: 0 }, |stage, pid| {
            let since = Instant::now();
            stage.suspend(pid)?;
            let parked = since.elapsed().as_secs_f64();
            let since = Instant::now();
            stage.resume(pid, &at)?;
            Ok([parked, since.elapsed().as_secs_f64()])
        });
        match both {
            Ok(both) => {
                table.row([size((mib << 20) as usize), ms(both[0]), ms(both[1])]);
                for (points, took) in series.iter_mut().zip(both) {
                    points.push(((mib << 20) as f64, took));
                }
            }
            Err(why) => findings.miss(&format!("parking {mib} MiB"), why),
        }
    }
    findings.table(table);
    if let [Some(parked), Some(resumed)] = [series[0].last(), series[1].last()] {
        findings.ours(PARK_OURS, format!("{:.3} s, {:.3} s ({})", parked.1, resumed.1, size(parked.0 as usize)));
    }
    let series: Vec<Series> =
        ["park", "resume"].into_iter().zip(series).map(|(name, points)| Series::times(name, points, "bytes")).collect();
    let plot = Plot { title: "Parking a job in memory and resuming it", x: "bytes", y: "time, s", ..Plot::default() };
    findings.plot(lab, "migration-park", &plot, &series)
}
