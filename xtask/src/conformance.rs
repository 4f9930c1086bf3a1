//! `cargo xtask conformance`: every driver function, natively and under mrcuda, compared.

use crate::error::Error;
use ::tests::conformance::{self, MODES, Plan, REMOTE_MODES, TranscriptError};
use ::tests::scene::Hardware;
use ::tests::{Scene, Server, Transport};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `cargo xtask conformance`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConformanceArgs {
    /// The driver: of this machine, or the one for the CPU
    #[arg(long, value_parser = ["soft", "real"], default_value = "soft")]
    driver: String,
    /// Only sections whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// How many sections at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Only the modes at a server, which is reached in this way: tls, plain, shm, rdma, or
    /// nearest for an address without a prefix [default: all modes, by TLS]
    #[arg(long)]
    transport: Option<Transport>,
    /// How many seconds one transcript may take
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// Also write everything to this file: the native transcript, and all differences of the others
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Makes the transcripts, all at a time, and compares them; unexplained differences are a failure.
pub(crate) fn run(args: &ConformanceArgs) -> Result<(), Error> {
    let hardware = if args.driver == "real" { Hardware::Real } else { Hardware::Soft };
    let scene = Scene::on("conformance", hardware);
    let transport = args.transport.unwrap_or(Transport::Tls);
    transport.check()?;
    let modes = if args.transport.is_some() { &REMOTE_MODES[..] } else { &MODES };
    let plan = Plan { only: args.only.as_deref(), jobs: args.jobs, limit: Duration::from_secs(args.limit), transport };
    // All places but two have a worker there for each section that runs; one of them has two while it moves.
    let workers = (args.jobs * 4 * modes.len() as u32).to_string();
    let options = ["--max-workers", &workers, "--max-client-workers", &workers];
    let server = Server::start_for(transport, &scene, "local", &options, &[]);
    let (native, others) = std::thread::scope(|s| {
        let native = s.spawn(|| conformance::native(&scene, plan));
        let others: Vec<_> =
            modes.iter().map(|mode| (*mode, s.spawn(|| conformance::under_mrcuda(&scene, &server, mode, plan)))).collect();
        let joined = |handle: std::thread::ScopedJoinHandle<'_, Result<String, TranscriptError>>| match handle.join() {
            Ok(transcript) => transcript.map_err(Error::from),
            Err(_) => Err(Error::Found("the runner failed".to_owned())),
        };
        (joined(native), others.into_iter().map(|(mode, h)| (mode, joined(h))).collect::<Vec<_>>())
    });
    let native = native?;
    let (mut whole, mut failures) = (format!("== native\n{native}"), 0);
    for (mode, other) in others {
        let other = match other {
            Ok(other) => other,
            Err(why) => {
                println!("{mode}: FAILED: {why}");
                failures += 1;
                continue;
            }
        };
        let result = conformance::compare(&native, &other);
        // Formatting into a string cannot fail.
        let _ = write!(whole, "== {mode}: what differs (natively | here)\n{}", result.lines);
        let explained: usize = result.explained.values().sum();
        println!("{mode}: {} cases, {explained} differences with a reason, {} without", result.cases, result.unexplained.len());
        for (reason, count) in &result.explained {
            println!("  {count:5} {reason}");
        }
        for line in &result.unexplained {
            println!("  UNEXPLAINED {line}");
        }
        failures += result.unexplained.len();
    }
    if let Some(path) = &args.out {
        std::fs::write(path, whole).map_err(Error::file(path))?;
    }
    if failures == 0 {
        println!("conformance: OK");
        return Ok(());
    }
    println!("conformance: FAILED: {failures}");
    // A lost worker is a difference whose cause only the server knows.
    println!("the server's messages:\n{}", server.errors());
    // The server and its files end with their owners, which leaving this process here would not let them do.
    drop((server, scene));
    std::process::exit(1)
}
