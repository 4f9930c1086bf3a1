//! `mrcuda`: run a CUDA program on a GPU somewhere else, and move it while it runs.
//!
//! One file per command. [`ask`] connects commands to a running job, [`drivers`] finds CUDA drivers, [`places`]
//! validates place specifications, [`layout`] locates the files of this installation.

#![allow(rustdoc::broken_intra_doc_links, reason = "doc comments are help texts, in which brackets mean what may be left out")]

mod ask;
mod bench;
mod calls;
mod doctor;
mod drivers;
mod elf;
mod failure;
mod follow;
mod gpus;
mod jobs;
mod journal_show;
mod layout;
mod migrate;
mod models;
mod moves;
mod places;
mod predict;
mod probe;
mod run;
mod serve;
mod table;
mod time;
mod timeline;
mod trace;

use clap::{Parser, Subcommand};
use std::ffi::OsString;

#[derive(Debug, Parser)]
#[command(name = "mrcuda", version, about = "Run a CUDA program on a GPU somewhere else, and move it while it runs")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program with its GPU work at the places given by --server; the job can be moved
    Run(run::RunArgs),
    /// Share this machine's GPUs with jobs on this and other machines
    Serve(serve::ServeArgs),
    /// List the GPUs of servers, and the jobs that use them
    Gpus(gpus::GpusArgs),
    /// List the jobs of this user on this machine
    Ps(jobs::PsArgs),
    /// Move the GPU side of a running job
    Migrate(migrate::MigrateArgs),
    /// Park a running job: its GPUs become free, its memory is kept, and its CUDA calls wait
    Suspend(migrate::SuspendArgs),
    /// Let a parked job go on, where it came from or elsewhere
    Resume(migrate::ResumeArgs),
    /// Report whether a running job could move, and what the move would take
    Plan(migrate::PlanArgs),
    /// Abandon a move that is not committed yet; the job stays where it was
    Cancel(migrate::CancelArgs),
    /// List the moves of a job, also of one that has ended, or of all jobs; or show one of them phase by phase
    Moves(moves::MovesArgs),
    /// Report what will not work on this machine, and why
    Doctor(doctor::DoctorArgs),
    /// List how each driver function is supported
    Calls(calls::CallsArgs),
    /// Measure calls, start-up, recording and moves on this machine
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        args: Vec<OsString>,
    },
    /// Fit performance models to benchmarks, and validate them
    #[command(subcommand)]
    Models(models::ModelsCommand),
    /// Inspect journal files
    #[command(subcommand)]
    Journal(JournalCommand),
    /// Execute the calls of one client; started by `mrcuda serve`
    #[command(hide = true, disable_help_flag = true)]
    Worker {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Load a driver library and report its version; started by `mrcuda doctor`
    #[command(hide = true)]
    Probe(probe::ProbeArgs),
    /// Report the GPUs to the NVML library of a job; started by that library
    #[command(hide = true)]
    Facts,
}

#[derive(Debug, Subcommand)]
enum JournalCommand {
    /// Print the records of a journal file
    Show(journal_show::ShowArgs),
}

fn main() {
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Gpus(args) => gpus::gpus(&args),
        Command::Ps(args) => jobs::ps(&args),
        Command::Migrate(args) => migrate::migrate(&args),
        Command::Suspend(args) => migrate::suspend(&args),
        Command::Resume(args) => migrate::resume(&args),
        Command::Plan(args) => migrate::plan(&args),
        Command::Cancel(args) => migrate::cancel(&args),
        Command::Moves(args) => moves::moves(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Calls(args) => calls::calls(&args),
        Command::Bench { args } => bench::bench(&args),
        Command::Models(command) => models::models(&command),
        Command::Journal(JournalCommand::Show(args)) => journal_show::show(&args),
        Command::Worker { args } => std::process::exit(serve::worker(args)),
        Command::Probe(args) => probe::probe(&args),
        Command::Facts => probe::facts(),
    };
    if let Err(failure) = done {
        failure.exit();
    }
}
