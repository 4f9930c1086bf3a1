//! `cargo xtask soak`: every test program again and again, moved at random moments; the output must be that of a native run.
//!
//! A run is repeated by its number and the seed. A run that fails leaves its directory in `target/soak/`: output, logs of job and
//! servers, journal, reports of its moves.
//!
//! `cargo xtask soak service`: many clients at one server for a while.

pub(crate) mod run;
mod service;
mod summary;

use crate::error::Error;
use crate::step::step;
use ::tests::scene::Hardware;
use ::tests::{Install, Linkage, Programs, Random, Transport, programs};
use cuda_api::lock::lock;
use run::{Direction, Plan, Subject};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use summary::Summary;

/// Arguments of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct SoakArgs {
    #[command(subcommand)]
    of: Option<Of>,
    /// How many runs
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Seed of everything that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these programs: orbit, or of tests/programs/cuda
    #[arg(long, visible_alias = "only", value_delimiter = ',', value_name = "NAME,…")]
    program: Vec<String>,
    /// Direction of the first move of each run
    #[arg(long, value_enum, default_value_t = Direction::Any)]
    direction: Direction,
    /// Runs are only at two servers that are reached in this way: tls, plain, shm, rdma, or
    /// nearest for an address without a prefix [default: at places of all kinds]
    #[arg(long)]
    transport: Option<Transport>,
    /// About how long a run should work, in seconds
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=7200))]
    seconds: u32,
    /// Each run must see so many moves succeed, or it has failed: crowd, storm, differences and simulations
    /// work until they have, for others they must fit into the seconds
    #[arg(long, value_name = "N")]
    moves_at_least: Option<usize>,
    /// Begin no run and no move after so many seconds; what was begun is carried to its end
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    limit: Option<u64>,
    /// How many runs at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: u32,
    /// On this machine's GPU instead of CPU drivers
    #[arg(long)]
    hardware: bool,
    /// How many GPUs there are to move among
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: u32,
}

/// What is soaked, if it is not one program at a time.
#[derive(Debug, clap::Subcommand)]
enum Of {
    /// A server with many clients, of which each runs one job after the other; jobs move, the agent is killed and the server replaced in the
    /// middle: every output is native, and the server's memory and descriptors stay flat
    Service(service::ServiceArgs),
}

/// The share of runs that must contain three moves that count.
const WANTED_SHARE: f64 = 0.9;
/// Runs the soak; the last line says how it went.
pub(crate) fn soak(args: &SoakArgs) -> Result<(), Error> {
    if let Some(Of::Service(args)) = &args.of {
        return service::service(args);
    }
    if let Some(transport) = args.transport {
        transport.check()?;
        if !matches!(args.direction, Direction::Any | Direction::RemoteRemote) {
            return Err(Error::Found("with --transport runs are at servers only".to_owned()));
        }
    }
    step("building what runs");
    let install = Install::get();
    let subjects = subjects(&args.program)?;
    let hardware = if args.hardware { Hardware::Real } else { Hardware::Soft };
    let directory = install.target.join("soak");
    // Its runs would be written over each other's.
    std::fs::create_dir_all(&directory)?;
    let in_use = std::fs::File::create(directory.join("lock"))?;
    in_use.try_lock().map_err(|e| Error::Found(format!("another soak uses {}: {e}", directory.display())))?;
    // On a GPU the pace says how long a run takes, wherever it is.
    let stoppable = args.moves_at_least.is_some();
    let references =
        run::References::new(directory.join("native"), hardware, args.seconds, !args.hardware, stoppable, args.transport);
    let end = args.limit.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (summary, failed) = (Mutex::new(Summary::default()), Mutex::new(Vec::new()));
    step(&format!("{} runs with seed {}", args.runs, args.seed));
    let next = AtomicU32::new(1);
    let one = |number: u32| {
        let mut random = Random::new(args.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(number)));
        let mut subject = subjects[(number as usize - 1) % subjects.len()].clone();
        // Each of its runs is another program.
        subject.seed = (subject.program() == "mix").then(|| random.below(1 << 40));
        let reference = match references.get(&subject) {
            Ok(reference) => reference,
            Err(why) => {
                println!("{number:4} {why}");
                return lock(&failed).push(format!("run {number}: {why}"));
            }
        };
        let plan = Plan::new(&mut random, (args.direction, args.transport), args.moves_at_least, args.gpus).until(end);
        let outcome = run::run(&directory.join(format!("{number:04}")), hardware, &subject, &reference, &plan);
        println!("{number:4} {:<18} {}", subject.to_string(), outcome);
        references.learn(&subject, outcome.wall);
        if let Some(why) = outcome.verdict.why() {
            lock(&failed).push(format!("run {number} ({subject}): {why}"));
        }
        lock(&summary).add(&outcome);
    };
    std::thread::scope(|s| {
        for _ in 0..args.jobs {
            s.spawn(|| {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        number if number <= args.runs && end.is_none_or(|end| Instant::now() < end) => one(number),
                        _ => break,
                    }
                }
            });
        }
    });
    let (summary, failed) = (std::mem::take(&mut *lock(&summary)), std::mem::take(&mut *lock(&failed)));
    print!("{summary}");
    for line in &failed {
        println!("{line}");
    }
    let (share, counted, runs) = (summary.share(), summary.counted(), summary.runs());
    if runs < args.runs as usize {
        println!("{runs} of {} runs were made", args.runs);
    }
    if failed.is_empty() && share >= WANTED_SHARE {
        println!("soak: OK, {runs} runs identical, {counted} moves counted, {:.0} % of the runs with three", share * 100.0);
        return Ok(());
    }
    println!(
        "soak: FAILED: {} of {runs} runs failed, {:.0} % of the runs with three counted moves (traces in {})",
        failed.len(),
        share * 100.0,
        directory.display()
    );
    std::process::exit(1)
}

/// What is run: the programs with static and shared runtime, and the one on the driver API.
fn subjects(only: &[String]) -> Result<Vec<Subject>, Error> {
    let mut all: Vec<Subject> = Vec::new();
    if only != ["orbit"] {
        let compiled = Programs::get();
        // At once: one after the other they take minutes.
        compiled.compile()?;
        for linkage in [Linkage::Static, Linkage::Shared] {
            all.extend(programs::NAMES.iter().map(|name| Subject {
                name: format!("{name}/{}", linkage.name()),
                path: compiled.path(linkage, name),
                probe_steps: run::probe_steps(name),
                seed: None,
            }));
        }
    }
    all.push(Subject {
        name: "orbit".into(),
        path: Install::get().file("orbit"),
        probe_steps: run::probe_steps("orbit"),
        seed: None,
    });
    let is_called = |s: &Subject, name: &String| s.program() == name;
    if let Some(unknown) = only.iter().find(|name| !all.iter().any(|s| is_called(s, name))) {
        return Err(Error::Found(format!("there is no program called {unknown}")));
    }
    all.retain(|s| only.is_empty() || only.iter().any(|name| is_called(s, name)));
    Ok(all)
}
