//! `xtask gpu`: what the bundle runs on a machine with GPUs. One table: are outputs identical?

use crate::error::Error;
use crate::soak::run::{self, Plan, References, Subject};
use ::tests::scene::Hardware;
use ::tests::{Install, Linkage, Programs, programs};
use cuda_api::lock::lock;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Arguments of `xtask gpu`.
#[derive(Debug, clap::Args)]
pub(crate) struct GpuArgs {
    /// On CPU drivers instead: shows that this program works
    #[arg(long)]
    soft: bool,
    /// About how long each program should work, in seconds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// How many programs at a time; the times in the table then say little
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Only programs whose name contains this
    #[arg(long)]
    only: Option<String>,
}

/// Runs everything; failures are in the table and in the exit code.
pub(crate) fn gpu(args: &GpuArgs) -> Result<(), Error> {
    let hardware = if args.soft { Hardware::Soft } else { Hardware::Real };
    let failures = AtomicU32::new(0);
    println!("program              native   remote    moved  moves  counted  output");
    let directory = std::env::temp_dir().join(format!("mrcuda-gpu-{}", std::process::id()));
    let references = References::new(directory.join("native"), hardware, args.seconds, true, false, None);
    let subjects = Mutex::new(subjects(args.only.as_deref()).into_iter());
    std::thread::scope(|s| {
        for _ in 0..args.jobs {
            s.spawn(|| {
                while let Some(subject) = { lock(&subjects).next() } {
                    match program(&directory, hardware, &subject, &references) {
                        Ok(line) => println!("{:<18} {line}", subject.name),
                        Err(why) => {
                            failures.fetch_add(1, Ordering::Relaxed);
                            println!("{:<18} FAILED: {why}", subject.name);
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    // Runs that failed have said where their directories are; the rest is empty.
    let _ = std::fs::remove_dir(&directory);
    if failures == 0 {
        println!("gpu: OK");
        return Ok(());
    }
    println!("gpu: FAILED: {failures} programs");
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
                all.push(Subject {
                    name: format!("{name}/{}", linkage.name()),
                    path,
                    probe_steps: run::probe_steps(name),
                    seed: None,
                });
            }
        }
    }
    all.push(Subject {
        name: "orbit".into(),
        path: Install::get().file("orbit"),
        probe_steps: run::probe_steps("orbit"),
        seed: None,
    });
    all.retain(|s| only.is_none_or(|only| s.name.contains(only)));
    all
}

/// One program: native, remote without a move, remote with three moves.
fn program(directory: &Path, hardware: Hardware, subject: &Subject, references: &References) -> Result<String, Error> {
    let reference = references.get(subject)?;
    let moved = run::run(&directory.join(subject.name.replace('/', "-")), hardware, subject, &reference, &Plan::tour());
    if let Some(why) = moved.verdict.why() {
        return Err(Error::Found(format!("moved: {why}")));
    }
    if let Some((_, refused)) = moved.moves.iter().find(|(_, m)| !m.ok()) {
        return Err(Error::Found(format!("{}: {}", refused.direction(), refused.reason())));
    }
    if moved.moves.len() < Plan::tour().moves() {
        return Err(Error::Found(format!("it ended after {} moves", moved.moves.len())));
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
