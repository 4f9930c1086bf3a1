//! `xtask gpu`: what the bundle runs on a machine with GPUs. One table: are outputs identical, what do calls and moves cost.

use crate::soak::run::{self, Plan, References, Subject, Verdict};
use ::tests::scene::{Hardware, Scene, wait_for};
use ::tests::{Install, Job, Linkage, Programs, Server, json, programs};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `xtask gpu`.
#[derive(Debug, clap::Args)]
pub(crate) struct GpuArgs {
    /// On CPU drivers instead: shows that this program works
    #[arg(long)]
    soft: bool,
    /// About how long each program should work, in seconds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Memory to move, in MiB, one figure for each measurement
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 4096, 16384])]
    live: Vec<u64>,
    /// Only programs whose name contains this
    #[arg(long)]
    only: Option<String>,
}

/// How long anything may take before it is a failure.
const LIMIT: Duration = Duration::from_secs(240);
/// The phases of a move that are worth a column.
const PHASES: [&str; 7] = ["prepare", "replay", "connect", "precopy", "quiesce", "delta", "verify"];

/// Runs everything; failures are in the table and in the exit code.
pub(crate) fn gpu(args: &GpuArgs) -> Result<(), String> {
    let hardware = if args.soft { Hardware::Soft } else { Hardware::Real };
    let mut failures = 0;
    println!("program              native   remote    moved  moves  counted  output");
    let folder = std::env::temp_dir().join(format!("mrcuda-gpu-{}", std::process::id()));
    let mut references = References::new(folder.join("native"), hardware, args.seconds);
    for subject in subjects(args.only.as_deref()) {
        match program(&folder, hardware, &subject, &mut references) {
            Ok(line) => println!("{:<18} {line}", subject.name),
            Err(why) => {
                failures += 1;
                println!("{:<18} FAILED: {why}", subject.name);
            }
        }
    }
    for (title, part) in [
        ("cost of a call in microseconds, half of the calls and 99 % of them", costs(hardware)),
        ("phases of moves in milliseconds", moves(hardware, &args.live)),
    ] {
        println!("\n{title}");
        match part {
            Ok(text) => print!("{text}"),
            Err(why) => {
                failures += 1;
                println!("FAILED: {why}");
            }
        }
    }
    // Runs that failed have said where their folders are; the rest is empty.
    let _ = std::fs::remove_dir(&folder);
    if failures == 0 {
        println!("gpu: OK");
        return Ok(());
    }
    println!("gpu: FAILED: {failures} parts");
    std::process::exit(1)
}

/// Every program that is there.
fn subjects(only: Option<&str>) -> Vec<Subject> {
    let compiled = Programs::get();
    let mut all = Vec::new();
    for linkage in [Linkage::Static, Linkage::Shared] {
        for name in programs::NAMES.into_iter().chain(["sgemm"]) {
            let path = compiled.path(linkage, name);
            if path.is_file() {
                all.push(Subject { name: format!("{name}/{}", linkage.name()), path, probe_steps: run::probe_steps(name) });
            }
        }
    }
    all.push(Subject { name: "orbit".into(), path: Install::get().file("orbit"), probe_steps: run::probe_steps("orbit") });
    all.retain(|s| only.is_none_or(|only| s.name.contains(only)));
    all
}

/// One program: native, remote without a move, remote with three moves.
fn program(folder: &Path, hardware: Hardware, subject: &Subject, references: &mut References) -> Result<String, String> {
    let reference = references.get(subject)?;
    let moved = run::run(&folder.join("moved"), hardware, subject, &reference, &Plan::tour());
    if let Verdict::Failed(why) = moved.verdict {
        return Err(format!("moved: {why}"));
    }
    if let Some((_, refused)) = moved.moves.iter().find(|(_, m)| !m.ok()) {
        return Err(format!("{}: {}", refused.direction(), refused.reason()));
    }
    if moved.moves.len() < Plan::tour().moves() {
        return Err(format!("it ended after {} moves", moved.moves.len()));
    }
    let counted = moved.moves.iter().filter(|(_, m)| m.counts()).count();
    Ok(format!(
        "{:6.2} s {:6.2} s {:6.2} s {:6} {counted:8}  identical",
        reference.native.as_secs_f64(),
        reference.expected.as_secs_f64(),
        moved.wall.as_secs_f64(),
        moved.moves.len(),
    ))
}

/// What calls cost natively, remote, and after a move into the process.
fn costs(hardware: Hardware) -> Result<String, String> {
    let scene = Scene::on("costs", hardware);
    let server = Server::start(&scene, "one");
    let bench = scene.install.file("microbench");
    let native = Job::native(&scene, "native", &bench, &["calls"]).wait(LIMIT);
    let place = server.place(0);
    let remote = Job::start(&scene, "remote", &["--server", &place], &bench, &["calls", "--label", "remote"], &[]).wait(LIMIT);
    let go = scene.path.join("go");
    let go_text = go.display().to_string();
    let args = ["calls", "--label", "after the move", "--after", &go_text];
    let mut job = Job::start(&scene, "after", &["--server", &place], &bench, &args, &[]);
    job.wait_ready(LIMIT)?;
    let report = job.migrate("local")?;
    if !report.ok() {
        return Err(report.reason().to_owned());
    }
    touch(&go)?;
    let after = job.wait(LIMIT);
    let mut columns = Vec::new();
    for outcome in [&native, &remote, &after] {
        columns.push(json::object(outcome.stdout.trim()).ok_or_else(|| format!("microbench: {}", outcome.stderr.trim()))?);
    }
    let mut text = format!("{:<28}{:>20}{:>20}{:>20}\n", "", "native", "remote", "after the move");
    for name in json::keys(&columns[0], "calls") {
        let cell = |column| {
            let us = |key| json::number(column, &["calls", &name, key]) / 1000.0;
            format!("{:>11.2} {:>8.2}", us("p50"), us("p99"))
        };
        text.push_str(&format!("{name:<28}{}{}{}\n", cell(&columns[0]), cell(&columns[1]), cell(&columns[2])));
    }
    Ok(text)
}

/// What moves of much memory cost: into the process, to a second server, and back to the first.
fn moves(hardware: Hardware, live: &[u64]) -> Result<String, String> {
    let mut text = format!("{:>8}  {:<17}", "live", "direction");
    for phase in PHASES {
        text.push_str(&format!("{phase:>9}"));
    }
    text.push_str("    total  stood still  GPU idle\n");
    for mib in live {
        let scene = Scene::on("moves", hardware);
        let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
        let (first, second) = (servers[0].place(0), servers[1].place(0));
        let stop = scene.path.join("stop");
        let args = ["live", "--mib", &mib.to_string(), "--until", &stop.display().to_string()].map(str::to_owned);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut job = Job::start(&scene, "live", &["--server", &first], &scene.install.file("microbench"), &args, &[]);
        let ready = wait_for(LIMIT, || (job.stdout().contains("ready") || !job.runs()).then(|| job.runs()));
        if ready != Some(true) {
            return Err(format!("{mib} MiB: {}", job.stderr().trim()));
        }
        for to in ["local", &second, &first] {
            let report = job.migrate(to)?;
            if !report.ok() {
                return Err(format!("{mib} MiB to {to}: {}", report.reason()));
            }
            text.push_str(&format!("{mib:>4} MiB  {:<17}", report.direction()));
            for phase in PHASES {
                text.push_str(&format!("{:>9.1}", report.number(&["phases", phase])));
            }
            let total = ["total_ms", "downtime_ms", "gpu_idle_ms"].map(|key| report.number(&[key]));
            text.push_str(&format!("{:>9.1}{:>13.1}{:>10.1}\n", total[0], total[1], total[2]));
        }
        touch(&stop)?;
        let end = job.wait(LIMIT);
        if !end.ok() {
            return Err(format!("{mib} MiB: {}{}", end.stdout, end.stderr.trim()));
        }
    }
    Ok(text)
}

fn touch(path: &PathBuf) -> Result<(), String> {
    std::fs::write(path, "").map_err(|e| format!("{}: {e}", path.display()))
}
