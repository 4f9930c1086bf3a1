//! `cargo xtask soak service`: a server at work, for as long and with as many clients as one likes.

use crate::error::Error;
use crate::step::step;
use ::tests::Install;
use ::tests::service::{self, MOST_GROWTH_KIB, MOST_LEFT, Plan, Sample, Summary};
use std::time::Duration;

/// Arguments of `cargo xtask soak service`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    /// Clients that are connected at a time; each runs one job after the other
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Moves that are asked for in an hour; an agent makes others, as many at most
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    moves_per_hour: u32,
    /// For how long jobs are started
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    minutes: u32,
    /// Steps of the longest jobs; others have half of them, or a quarter
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(4..=1_000_000))]
    steps: u32,
    /// Milliseconds for which a job rests after each step: what a machine carries
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pace: u32,
    /// Seconds between two measurements of the server
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    every: u32,
    /// Seed of everything that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs it; the last line says how it went.
pub(crate) fn service(args: &ServiceArgs) -> Result<(), Error> {
    step("building what runs");
    let directory = Install::get().target.join("soak/service");
    let plan = Plan {
        clients: args.clients as usize,
        moves_per_hour: args.moves_per_hour,
        length: Duration::from_secs(60 * u64::from(args.minutes)),
        steps: args.steps,
        pace: Duration::from_millis(args.pace.into()),
        every: Duration::from_secs(args.every.into()),
        seed: args.seed,
    };
    step(&format!("{} clients and {} moves an hour, for {} minutes", args.clients, args.moves_per_hour, args.minutes));
    println!("  seconds   server  rss KiB  descriptors  workers  running  ended  failed  moves  refused");
    let summary = service::run(&plan, &directory, tell).map_err(|why| Error::Found(why.to_string()))?;
    show(&summary);
    if summary.problems.is_empty() {
        println!(
            "service: OK, {} jobs identical, {} moves",
            summary.identical,
            summary.moves + summary.of_agent.iter().sum::<usize>()
        );
        return Ok(());
    }
    println!("service: FAILED, {} problems (logs in {})", summary.problems.len(), directory.display());
    std::process::exit(1)
}

fn tell(it: &Sample) {
    let Sample { at, pid, rss_kib, descriptors, workers, running, ended, failed, moves, unmoved } = it;
    println!(
        "{:9.0} {pid:8} {rss_kib:8} {descriptors:12} {workers:8} {running:8} {ended:6} {failed:7} {moves:6} {unmoved:8}",
        at.as_secs_f64()
    );
}

fn show(summary: &Summary) {
    for it in &summary.growth {
        println!(
            "server {}: {} KiB early, {} KiB late (at most {MOST_GROWTH_KIB} more), {} KiB at most; descriptors {:?}",
            it.pid, it.early_kib, it.late_kib, it.most_kib, it.descriptors
        );
    }
    let [before, after] = summary.descriptors;
    println!("descriptors without a job: {before} before the first, {after} after the last (at most {MOST_LEFT} more)");
    let [first, second] = summary.of_agent;
    println!("moves that were asked for: {}; of the agent: {first} before it was killed, {second} after", summary.moves);
    println!("asked for of a job that was ending: {}", summary.ended_before);
    for (whose, refused) in [("asked for", &summary.refused), ("of the agent", &summary.refused_to_agent)] {
        refused.iter().for_each(|(why, count)| println!("refused, {whose}, {count} times: {why}"));
    }
    summary.problems.iter().for_each(|why| println!("{why}"));
}
