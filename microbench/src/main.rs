//! `microbench`: measures the costs of calls, moves and softgpu.
//!
//! | command | what it does |
//! |---|---|
//! | `bench` | measures everything: what `mrcuda bench` starts |
//! | `between` | copies from one GPU to another |
//! | `client` | the program under measurement: makes the calls that its input names |
//! | `graphs` | calls of small graphs: time and allocations of host memory |
//! | `live` | keeps memory alive and works on a little of it, to be moved meanwhile |
//! | `journal` | appending to a journal, and a plan of what is live of it: the least processor time of many runs |
//! | `link` | a network link with a delay and a rate, as a proxy |
//! | `many` | many threads of one client |
//! | `paper` | repeats an experiment of a paper: what `mrcuda bench paper` starts |
//! | `peer` | the other end of the raw controls |
//! | `softgpu` | thread-level PTX instructions a second of the CPU driver, on a tiled matrix product |
//! | `work` | a job that works in steps and says how far it is |

mod bench;
mod between;
mod cases;
mod client;
mod error;
mod gpu;
mod graphs;
mod link;
mod live;
mod many;
mod peer;
mod work;

use clap::{Parser, Subcommand};
use error::Error;
use serde_json::json;

/// The end of the help of `mrcuda bench`.
const BENCH_EXAMPLES: &str = "\
Examples:
  mrcuda bench --quick
      Measure this machine roughly, in a minute or two
  mrcuda bench --only calls,moves --out results
      Measure only calls and moves, and write the results to this directory
  mrcuda bench --server gpubox:7878 --only bulk
      Measure large copies at a server that runs already
  mrcuda bench --only rdma
      Show what links with RDMA would give on this machine, by a model
  mrcuda bench --only wan --delay 10ms,50ms --rate 1G
      Measure steps of a program over long links
  mrcuda bench paper --help
      Repeat the experiments of the papers behind mrcuda";

/// The end of the help of `mrcuda bench paper`.
const PAPER_EXAMPLES: &str = "\
Examples:
  mrcuda bench paper --list
      List the experiments
  mrcuda bench paper mrcuda-runtime
      Repeat one of them
  mrcuda bench paper migration --quick --out results
      Repeat all of a paper roughly, and write the results to this directory";

#[derive(Debug, Parser)]
#[command(name = "microbench", about = "What calls, moves and the CPU driver cost", max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure calls, start-up, recording, moves, large copies, copies between GPUs, RDMA, many clients and long links
    #[command(override_usage = "mrcuda bench [OPTIONS]", after_help = BENCH_EXAMPLES)]
    Bench(bench::BenchArgs),
    /// Copy from one GPU to another
    Between(between::BetweenArgs),
    /// Make the calls that the input names, line by line
    Client(client::ClientArgs),
    /// Make, launch, change and destroy small graphs, and print what each call takes
    Graphs(graphs::GraphsArgs),
    /// Keep memory alive, to be moved
    Live(live::LiveArgs),
    /// Cost of appending to a journal and of a plan, in processor time
    Journal,
    /// Be a network link with a delay and a rate
    Link(link::LinkArgs),
    /// Make calls in many threads
    Many(many::ManyArgs),
    /// Repeat experiments of the papers behind mrcuda on this machine, and show their figures beside ours
    #[command(override_usage = "mrcuda bench paper [OPTIONS] [NAME]...", after_help = PAPER_EXAMPLES)]
    Paper(bench::paper::PaperArgs),
    /// Be the other end of the raw controls
    Peer(peer::PeerArgs),
    /// Speed of the CPU driver's interpreter
    Softgpu {
        /// Rows of the matrices that are multiplied
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=4096))]
        size: u32,
    },
    /// Work in steps when a line comes, and say how far it is
    Work(work::WorkArgs),
}

/// The command line. Errors and help end the process; help that cannot be written is an error.
fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|answer| {
        if let Err(e) = answer.print()
            && e.kind() != std::io::ErrorKind::BrokenPipe
            && answer.exit_code() == 0
        {
            eprintln!("microbench: cannot write the help: {e}");
            std::process::exit(1);
        }
        std::process::exit(answer.exit_code())
    })
}

fn main() {
    let done = match parse().command {
        Command::Bench(args) => bench::bench(&args),
        Command::Between(args) => between::between(&args),
        Command::Client(args) => client::client(&args),
        Command::Graphs(args) => graphs::graphs(&args),
        Command::Live(args) => live::live(&args),
        Command::Journal => bench::journals::least(),
        Command::Link(args) => link::link(&args),
        Command::Many(args) => many::many(&args),
        Command::Paper(args) => bench::paper::paper(&args),
        Command::Peer(args) => peer::peer(&args),
        Command::Softgpu { size } => softgpu_speed(size),
        Command::Work(args) => work::work(&args),
    };
    if let Err(why) = done {
        eprintln!("microbench: {why}");
        std::process::exit(1);
    }
}

/// The best of three runs, since other programs may interfere.
fn softgpu_speed(size: u32) -> Result<(), Error> {
    let runs = (0..3).map(|_| softgpu::ptx::bench_tiled_matmul(size));
    let speed = runs.filter(|(_, seconds)| *seconds > 0.0).map(|(count, seconds)| count as f64 / seconds).fold(0.0, f64::max);
    if speed == 0.0 {
        return Err(Error::Found("the kernel did not run".to_owned()));
    }
    println!("{}", json!({"measures": "softgpu", "size": size, "threads": 1, "instructions_per_second": speed.round()}));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// The help of a command as in a terminal of 80 columns.
    fn help(command: &str) -> String {
        let help = Cli::command().find_subcommand(command).unwrap().clone().term_width(80).render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        help.join("\n").trim_end().to_owned()
    }

    #[test]
    fn the_page_of_mrcuda_bench_is_up_to_date() {
        let page = format!(
            "# The options of mrcuda bench\n\nWhat it measures, and how: [measurements.md](measurements.md). Written by \
             `UPDATE=1 cargo test -p microbench up_to_date`.\n\n```text\n{}\n```\n\n## The options of mrcuda bench paper\n\n\
             The experiments: [papers.md](papers.md).\n\n```text\n{}\n```\n",
            help("bench"),
            help("paper")
        );
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli-bench.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert!(std::fs::read_to_string(path).unwrap_or_default() == page, "docs/cli-bench.md is old: UPDATE=1 writes it");
    }

    #[test]
    fn helps_have_examples_that_parse_and_fit_80_columns() {
        let mut root = Cli::command();
        root.build();
        for (name, line) in [("bench", "mrcuda bench"), ("paper", "mrcuda bench paper")] {
            let help = root.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty() && help.contains("\nExamples:\n"), "{long:#?}");
            let examples = help.lines().filter_map(|text| text.strip_prefix(&format!("  {line} ")));
            // The last example of one is of the other.
            for example in examples.filter(|example| *example != "paper --help") {
                let args = ["microbench", name].into_iter().chain(example.split_whitespace());
                Cli::try_parse_from(args.chain(["--mrcuda", "m", "--driver", "soft"])).unwrap();
            }
        }
    }
}
