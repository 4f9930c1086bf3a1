//! `mrcuda`: run a CUDA program on a GPU somewhere else, and move it while it runs.
//!
//! One file per command; the examples of their help texts are in [`examples`]. [`ask`] connects commands to a running job, [`drivers`] finds CUDA drivers, [`places`]
//! validates place specifications, [`config`] reads configuration files, [`layout`] locates the files of this installation.

#![allow(rustdoc::broken_intra_doc_links, reason = "doc comments are help texts, in which brackets mean what may be left out")]

mod agent;
mod ask;
mod auto;
mod bench;
mod calls;
mod config;
mod doctor;
mod drain;
mod drivers;
mod elf;
mod events;
mod examples;
mod failure;
mod follow;
mod gpus;
mod jobs;
mod journal_show;
mod layout;
mod limited;
mod migrate;
mod models;
mod moves;
mod pages;
mod places;
mod predict;
mod probe;
mod processes;
mod progress;
mod run;
#[cfg(test)]
mod schema;
mod second_screen;
mod serve;
mod server_moves;
mod table;
mod terminal;
mod time;
mod timeline;
mod token;
mod top;
mod trace;
mod value_error;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use config::{Config, ConfigError};
use failure::Failure;
use std::ffi::OsString;
use std::io::IsTerminal;

#[derive(Debug, Parser)]
#[command(name = "mrcuda", version = pages::VERSION, about = "Run a CUDA program on a GPU somewhere else, and move it while it runs")]
#[command(max_term_width = 80, after_help = examples::ALL)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program with its GPU work at the places given by --server; the job can be moved
    #[command(after_help = examples::RUN)]
    Run(run::RunArgs),
    /// Share this machine's GPUs with jobs on this and other machines
    #[command(after_help = examples::SERVE)]
    Serve(Box<serve::ServeArgs>),
    /// Give users of this server tokens of their own, list them, and revoke them
    #[command(subcommand, after_help = examples::TOKEN)]
    Token(token::TokenCommand),
    /// List the GPUs of servers, and the jobs that use them
    #[command(after_help = examples::GPUS)]
    Gpus(gpus::GpusArgs),
    /// Print what happens at a server: jobs that come, move and leave
    #[command(after_help = examples::EVENTS)]
    Events(events::EventsArgs),
    /// Have a server take no new jobs, and ask those that it serves to move away
    #[command(after_help = examples::DRAIN)]
    Drain(drain::DrainArgs),
    /// Show jobs, moves and the GPUs of servers on a screen that refreshes itself
    #[command(after_help = examples::TOP)]
    Top(top::TopArgs),
    /// Move jobs by policies: go home, drain, yield, consolidate, balance
    #[command(after_help = examples::AGENT)]
    Agent(agent::AgentArgs),
    /// List the jobs of this user on this machine
    #[command(after_help = examples::PS)]
    Ps(jobs::PsArgs),
    /// Move the GPU side of a running job
    #[command(after_help = examples::MIGRATE)]
    Migrate(migrate::MigrateArgs),
    /// Park a running job: its GPUs become free, its memory is kept, and its CUDA calls wait
    #[command(after_help = examples::SUSPEND)]
    Suspend(migrate::SuspendArgs),
    /// Let a parked job go on, where it came from or elsewhere
    #[command(after_help = examples::RESUME)]
    Resume(migrate::ResumeArgs),
    /// Report whether a running job could move, and what the move would take
    #[command(after_help = examples::PLAN)]
    Plan(migrate::PlanArgs),
    /// Abandon a move that is not committed yet; the job stays where it was
    #[command(after_help = examples::CANCEL)]
    Cancel(migrate::CancelArgs),
    /// List the moves of a job, also of one that has ended, or of all jobs; or show one of them phase by phase
    #[command(after_help = examples::MOVES)]
    Moves(moves::MovesArgs),
    /// Report what will not work on this machine, and why
    #[command(after_help = examples::DOCTOR)]
    Doctor(doctor::DoctorArgs),
    /// List how each driver function is supported
    #[command(after_help = examples::CALLS)]
    Calls(calls::CallsArgs),
    /// Measure calls, start-up, recording and moves on this machine
    #[command(disable_help_flag = true, after_help = examples::BENCH)]
    Bench {
        /// Options, which `mrcuda bench --help` lists
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        args: Vec<OsString>,
    },
    /// Fit performance models to benchmarks, and validate them
    #[command(subcommand, after_help = examples::MODELS)]
    Models(models::ModelsCommand),
    /// Inspect journal files
    #[command(subcommand, after_help = examples::JOURNAL)]
    Journal(JournalCommand),
    /// Show the settings of configuration files and the environment, or check a file
    #[command(subcommand, after_help = examples::CONFIG)]
    Config(config::show::ConfigCommand),
    /// Print a script that completes commands and options in a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(pages::CompletionsArgs),
    /// Print the manual page, or write the pages of all commands to a directory
    #[command(after_help = examples::MAN)]
    Man(pages::ManArgs),
    /// Execute the calls of one client; started by `mrcuda serve`
    #[command(hide = true, disable_help_flag = true)]
    Worker {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Greet clients, with no privileges; started by `mrcuda serve`
    #[command(hide = true, disable_help_flag = true)]
    Greeter {
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
    #[command(after_help = examples::SHOW)]
    Show(journal_show::ShowArgs),
}

/// A command with its options.
struct Called {
    command: Command,
    /// Variables that configuration files set for the command and the processes that it starts.
    variables: Vec<(&'static str, OsString)>,
    /// Why the files were not read, for a command that goes on without them.
    unread: Option<ConfigError>,
}

/// The command line, over what configuration files and the environment say. Errors, help and the version end the process.
fn parse() -> Called {
    let mut matches = matches(Cli::command());
    let (mut variables, mut unread) = (Vec::new(), None);
    if let Some(command) = matches.subcommand_name().filter(|command| config::is_read_by(command)).map(str::to_owned) {
        let read = Config::read(&Cli::command()).and_then(|config| Ok((config.as_defaults(Cli::command(), &command)?, config)));
        match read {
            Ok((with_defaults, config)) => {
                matches = self::matches(with_defaults);
                variables = config.variables();
            }
            // It reports this among its findings.
            Err(why) if command == "doctor" => unread = Some(why),
            Err(why) => Failure::with_code(2, why).exit(),
        }
    }
    match Cli::from_arg_matches(&matches) {
        Ok(cli) => Called { command: cli.command, variables, unread },
        Err(why) => why.format(&mut Cli::command()).exit(),
    }
}

fn matches(command: clap::Command) -> clap::ArgMatches {
    command.try_get_matches().unwrap_or_else(|answer| {
        // Help that cannot be written is an error; on a terminal it has colours.
        if answer.exit_code() == 0 && !std::io::stdout().is_terminal() {
            table::write(answer.render().to_string().as_bytes());
            std::process::exit(0);
        }
        answer.exit()
    })
}

fn main() {
    let Called { command, variables, unread } = parse();
    for (name, value) in &variables {
        // SAFETY: this process has no other thread yet that could read the environment.
        unsafe { std::env::set_var(name, value) };
    }
    let done = match command {
        Command::Run(args) => run::run(&args, variables),
        Command::Serve(args) => serve::serve(&args),
        Command::Token(command) => token::token(&command),
        Command::Gpus(args) => gpus::gpus(&args),
        Command::Events(args) => events::events(&args),
        Command::Drain(args) => drain::drain(&args),
        Command::Top(args) => top::top(&args),
        Command::Agent(args) => agent::agent(&args),
        Command::Ps(args) => jobs::ps(&args),
        Command::Migrate(args) => migrate::migrate(&args),
        Command::Suspend(args) => migrate::suspend(&args),
        Command::Resume(args) => migrate::resume(&args),
        Command::Plan(args) => migrate::plan(&args),
        Command::Cancel(args) => migrate::cancel(&args),
        Command::Moves(args) => moves::moves(&args),
        Command::Doctor(args) => doctor::doctor(&args, unread.as_ref()),
        Command::Calls(args) => calls::calls(&args),
        Command::Bench { args } => bench::bench(&args),
        Command::Models(command) => models::models(&command),
        Command::Journal(JournalCommand::Show(args)) => journal_show::show(&args),
        Command::Config(command) => config::show::config(&command, &Cli::command()),
        Command::Completions(args) => pages::completions(&Cli::command(), &args),
        Command::Man(args) => pages::man(&Cli::command(), &args),
        Command::Worker { args } => std::process::exit(serve::worker(args)),
        Command::Greeter { args } => std::process::exit(serve::greeter(&args)),
        Command::Probe(args) => probe::probe(&args),
        Command::Facts => probe::facts(),
    };
    if let Err(failure) = done {
        failure.exit();
    }
}
