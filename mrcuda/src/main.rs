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
mod jobs;
mod journal_show;
mod layout;
mod migrate;
mod models;
mod places;
mod predict;
mod probe;
mod run;
mod serve;
mod table;
mod timeline;

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
    /// Run a program; its GPU work is done where --server says, and can be moved
    Run(run::RunArgs),
    /// Lend this machine's GPUs to jobs on other machines
    Serve(serve::ServeArgs),
    /// List the jobs of this user on this machine
    Ps(jobs::PsArgs),
    /// Move the GPU side of a running job
    Migrate(migrate::MigrateArgs),
    /// Say whether a running job could move, and what it would take
    Plan(migrate::PlanArgs),
    /// Give up a move that is under way; the job stays where it was
    Cancel(migrate::CancelArgs),
    /// Show the moves that a running job has made and is making
    Moves(jobs::MovesArgs),
    /// Say what will not work on this machine, and why
    Doctor(doctor::DoctorArgs),
    /// List the driver functions and what mrcuda makes of each
    Calls(calls::CallsArgs),
    /// Measure what calls, start-up, recording and moves cost on this machine
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        args: Vec<OsString>,
    },
    /// Make models of benchmarks, and test them
    #[command(subcommand)]
    Models(models::ModelsCommand),
    /// Work with journal files
    #[command(subcommand)]
    Journal(JournalCommand),
    /// One client's GPU work; started by `mrcuda serve`
    #[command(hide = true, disable_help_flag = true)]
    Worker {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Load a driver library and say what it is; started by `mrcuda doctor`
    #[command(hide = true)]
    Probe(probe::ProbeArgs),
    /// Tell the NVML library of a job about the GPUs; started by that library
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
        Command::Ps(args) => jobs::ps(&args),
        Command::Migrate(args) => migrate::migrate(&args),
        Command::Plan(args) => migrate::plan(&args),
        Command::Cancel(args) => migrate::cancel(&args),
        Command::Moves(args) => jobs::moves(&args),
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
