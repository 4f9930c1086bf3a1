//! `mrcuda bench`: measures everything on this machine, in rounds, so that drift affects all measurements equally.
//!
//! Native runs, the paths and the raw controls alternate within each round. What is unavailable is reported as absent,
//! never as zero.

mod apps;
mod between;
mod bulk;
mod calls;
mod figures;
mod goals;
mod html;
pub(crate) mod journals;
mod machine;
mod moves;
pub(crate) mod paper;
mod paths;
mod rdma;
mod report;
mod scale;
mod stage;
mod start;
mod table;
mod times;
mod wan;

use crate::error::Error;
use crate::link;
use crate::peer::Controls;
use figures::{Ask, Figures};
use paths::{Bench, Others};
use serde_json::json;
use stage::Stage;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Measure calls, start-up, recording, moves, large copies, copies between GPUs, RDMA, many clients and long links.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Few repetitions and little memory; the figures are rough
    #[arg(long)]
    quick: bool,
    /// Only these parts [default: calls,start,record,moves]
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
    /// Measure these places, on servers that run already, in place of servers that the benchmark starts on this machine. Moves
    /// and whole programs are measured between the latter in any case
    #[arg(long, value_delimiter = ',', value_name = "PLACE,…")]
    server: Vec<String>,
    /// Where `microbench peer --listen` runs for the raw controls, beside the server [default: on this machine]
    #[arg(long, value_name = "HOST:PORT")]
    peer: Option<String>,
    /// Measure another replacement of libcuda.so beside mrcuda, in the parts calls, start, bulk, peer and scale
    #[arg(long, value_name = "LIBCUDA")]
    against: Option<PathBuf>,
    /// Round-trip times of the links of the part `wan`, the only one with links
    #[arg(long, value_delimiter = ',', value_name = "TIME,…", value_parser = link::duration, default_value = "1ms,10ms,50ms")]
    delay: Vec<Duration>,
    /// Rate of these links in bits a second, such as 1G [default: without a limit]
    #[arg(long, value_name = "RATE", value_parser = link::bits)]
    rate: Option<u64>,
    /// Directory for bench.json, the plots, and report.html, which contains everything
    #[arg(long, value_name = "DIR", default_value = "mrcuda-bench")]
    out: PathBuf,
    /// The `mrcuda` under measurement
    #[arg(long, hide = true)]
    mrcuda: PathBuf,
    /// CUDA driver: a path, or soft [default: this machine's, or softgpu if it has none]
    #[arg(long)]
    driver: PathBuf,
    /// The user's token file, for servers that run already
    #[arg(long, hide = true)]
    token: Option<PathBuf>,
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
    /// Large copies of pageable memory, beside raw sockets, with the processor time.
    Bulk,
    /// Copies between two GPUs of a job, beside copies by way of the program's memory.
    Peer,
    /// Calls and large copies by RDMA, where there is a device, and what links would give by a model.
    Rdma,
    /// 1 to 64 threads of a client, 1 to 64 clients of a server.
    Scale,
    /// Start and steps of a program over long links.
    Wan,
    /// Whole programs natively, in each place and moved.
    Apps,
}

/// Parts that are measured without being named.
const USUAL: [Part; 4] = [Part::Calls, Part::Start, Part::Record, Part::Moves];

/// Measures, prints tables, writes the file and the plots.
pub(crate) fn bench(args: &BenchArgs) -> Result<(), Error> {
    let began = Instant::now();
    let seconds = args.seconds.unwrap_or(if args.quick { 20 } else { 120 });
    let ask = Ask { quick: args.quick, validation: args.validation, seconds };
    let wanted = |part| if args.only.is_empty() { USUAL.contains(&part) } else { args.only.contains(&part) };
    let others = Others { places: args.server.clone(), against: args.against.clone() };
    std::fs::create_dir_all(&args.out).map_err(Error::file(&args.out))?;
    let stage = Stage::new(&args.mrcuda, &args.driver, args.token.clone().filter(|_| !args.server.is_empty()))?;
    let machine = machine::describe(&stage)?;
    println!("{machine}");
    let servers = [stage.server("one")?, stage.server("two")?];
    let mut peer = stage.plain(&["peer", "--directory", &stage.directory.display().to_string()])?;
    let mut controls = Controls::new(&stage.directory, &peer.line()?)?;
    if let Some(there) = &args.peer {
        let address = there.to_socket_addrs().map_err(|e| format!("{there}: {e}"))?.next();
        controls = controls.by(address.ok_or_else(|| format!("{there}: the name has no address"))?);
    }

    let bench = Bench { stage: &stage, servers: &servers, others: &others, controls: &controls, ask, out: &args.out };
    let mut figures = Figures::default();
    if wanted(Part::Calls) {
        calls::run(&bench, &mut figures)?;
    }
    if wanted(Part::Start) {
        start::run(&bench, &mut figures)?;
    }
    if wanted(Part::Record) {
        journals::run(ask, &mut figures)?;
    }
    if wanted(Part::Moves) {
        moves::run(&stage, &servers, &controls, ask, &args.out, &mut figures)?;
    }
    if wanted(Part::Bulk) {
        bulk::run(&bench, &mut figures)?;
    }
    if wanted(Part::Peer) {
        between::run(&bench, &mut figures)?;
    }
    if wanted(Part::Rdma) {
        rdma::run(&bench, &mut figures)?;
    }
    if wanted(Part::Scale) {
        scale::run(&bench, &mut figures)?;
    }
    if wanted(Part::Wan) {
        let links = wan::Links { delays: args.delay.clone(), rate: args.rate };
        wan::run(&stage, others.tcp(&servers).as_deref(), &controls, &links, ask, &args.out, &mut figures)?;
    }
    if wanted(Part::Apps) {
        // bin/ and programs/ of a bundle, release/ and programs/ of a target directory.
        let beside = || Some(args.mrcuda.parent()?.parent()?.join("programs/apps"));
        let directory = args.apps.clone().or_else(beside).unwrap_or_default();
        apps::run(&stage, &servers, &directory, machine.soft, ask, &mut figures)?;
    }
    if let Some(table) = goals::table(&figures.goals) {
        figures.table(table);
    }
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
        "tables": figures.tables.iter().map(table::Table::json).collect::<Vec<_>>(),
    });
    if let Some(fields) = file.as_object_mut() {
        fields.append(&mut figures.parts);
    }
    let path = args.out.join("bench.json");
    std::fs::write(&path, format!("{file:#}\n")).map_err(Error::file(&path))?;
    let about = [machine.to_string(), format!("{}, mrcuda {}", machine::date(), env!("CARGO_PKG_VERSION"))];
    let absent = figures.absent.iter().map(|(what, why)| format!("absent: {what}: {why}"));
    let about: Vec<String> = about.into_iter().chain(absent).collect();
    let section = html::Section { tables: figures.tables, plots: figures.plots, ..html::Section::default() };
    let report = html::write(&args.out, "mrcuda bench", &about, &[section])?;
    println!("{}", report.display());
    println!("{}: {} samples, {} s", path.display(), figures.samples.len(), began.elapsed().as_secs());
    Ok(())
}
