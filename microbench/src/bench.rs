//! `mrcuda bench`: measures everything on this machine, in rounds, so that drift affects all measurements equally.
//!
//! Native runs, the paths and the raw controls alternate within each round. What is unavailable is reported as absent,
//! never as zero.

mod apps;
mod calls;
mod figures;
mod goals;
pub(crate) mod journals;
mod machine;
mod moves;
mod report;
mod stage;
mod start;
mod times;

use crate::peer::Controls;
use figures::{Ask, Figures};
use serde_json::json;
use stage::Stage;
use std::path::PathBuf;
use std::time::Instant;

/// Measure calls, start-up, recording and moves on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Few repetitions and little memory; the figures are rough
    #[arg(long)]
    quick: bool,
    /// Only these parts [default: all but `apps`]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…")]
    only: Vec<Part>,
    /// Sizes between those of other runs, for `mrcuda models validate`
    #[arg(long)]
    validation: bool,
    /// Approximate time for the moves, in seconds [default: 120; with --quick: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86400))]
    seconds: Option<u64>,
    /// Directory of the programs of the part `apps` [default: programs/apps beside the directory of mrcuda]
    #[arg(long, value_name = "DIR")]
    apps: Option<PathBuf>,
    /// Directory for bench.json and the plots
    #[arg(long, value_name = "DIR", default_value = "mrcuda-bench")]
    out: PathBuf,
    /// The `mrcuda` under measurement
    #[arg(long, hide = true)]
    mrcuda: PathBuf,
    /// CUDA driver of this machine; `mrcuda bench` finds it, or takes the one that needs no GPU
    #[arg(long, hide = true)]
    driver: PathBuf,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Cost of calls on every path, with the controls.
    Calls,
    /// From the start of a program to the end of its first kernel.
    Start,
    /// Appending to the journal.
    Record,
    /// Moves between places: replay, memsync, downtime.
    Moves,
    /// Whole programs natively, in each place and moved; only if requested explicitly.
    Apps,
}

/// Measures, prints tables, writes the file and the plots.
pub(crate) fn bench(args: &BenchArgs) -> Result<(), String> {
    let began = Instant::now();
    let seconds = args.seconds.unwrap_or(if args.quick { 20 } else { 120 });
    let ask = Ask { quick: args.quick, validation: args.validation, seconds };
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    std::fs::create_dir_all(&args.out).map_err(|e| format!("{}: {e}", args.out.display()))?;
    let stage = Stage::new(&args.mrcuda, &args.driver)?;
    let machine = machine::describe(&stage)?;
    println!("{machine}");
    let servers = [stage.server("one")?, stage.server("two")?];
    let mut peer = stage.plain(&["peer", "--folder", &stage.folder.display().to_string()])?;
    let controls = Controls::new(&stage.folder, &peer.line()?)?;

    let mut figures = Figures::default();
    if wanted(Part::Calls) {
        calls::run(&stage, &servers, &controls, ask, &args.out, &mut figures)?;
    }
    if wanted(Part::Start) {
        start::run(&stage, &servers, ask, &mut figures)?;
    }
    if wanted(Part::Record) {
        journals::run(ask, &mut figures)?;
    }
    if wanted(Part::Moves) {
        moves::run(&stage, &servers, &controls, ask, &args.out, &mut figures)?;
    }
    if args.only.contains(&Part::Apps) {
        // bin/ and programs/ of a bundle, release/ and programs/ of a target directory.
        let beside = || Some(args.mrcuda.parent()?.parent()?.join("programs/apps"));
        let folder = args.apps.clone().or_else(beside).unwrap_or_default();
        apps::run(&stage, &servers, &folder, machine.soft, ask, &mut figures)?;
    }
    goals::print(&figures.goals);
    for (what, why) in &figures.absent {
        println!("absent: {what}: {why}");
    }
    let mut file = json!({
        "kind": models::bench::KIND,
        "v": models::bench::VERSION,
        "machine": machine,
        "mrcuda": env!("CARGO_PKG_VERSION"),
        "date": machine::date(),
        "seconds": began.elapsed().as_secs(),
        "quick": ask.quick,
        "validation": ask.validation,
        "absent": figures.absent,
        "goals": figures.goals.iter().map(goals::Goal::json).collect::<Vec<_>>(),
        "samples": figures.samples,
    });
    if let Some(fields) = file.as_object_mut() {
        fields.append(&mut figures.parts);
    }
    let path = args.out.join("bench.json");
    std::fs::write(&path, format!("{file:#}\n")).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("{}: {} samples, {} s", path.display(), figures.samples.len(), began.elapsed().as_secs());
    Ok(())
}
