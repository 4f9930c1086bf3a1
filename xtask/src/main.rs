//! `cargo xtask`: what is done with the whole workspace.
//!
//! | command | what it does |
//! |---|---|
//! | `demo` | moves a running program between two servers and this machine, on CPU drivers, and shows it |
//! | `test` | installs what the tests need, builds everything, runs all tests |
//! | `lint` | checks format, clippy, rustdoc, the links of the documentation, the circles of modules, spelling, and the licences of what we use |
//! | `modules` | writes `docs/modules.md`: which files of each crate use which, in layers |
//! | `verify` | feeds every parser of what others wrote with changed inputs, for as long as is wanted |
//! | `soak` | runs the test programs again and again, moved at random moments |
//! | `kill-matrix` | kills, stops and cuts off everybody at every point |
//! | `conformance` | calls every driver function natively and under mrcuda, and compares the answers |
//! | `apps` | programs of any folder natively, in each place and moved: outputs, times, pauses |
//! | `programs` | compiles the test programs |
//! | `bundle` | makes `target/bundle/`, to be carried to a machine with GPUs |

mod apps;
mod bundle;
mod conformance;
mod demo;
mod gpu;
mod kill_matrix;
mod lint;
mod modules;
mod soak;
mod step;
mod suite;
mod verify;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "What is done with the whole workspace")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Move a running program between two servers and this machine, and show it
    Demo(demo::DemoArgs),
    /// Install what the tests need, build everything, run all tests
    Test(suite::TestArgs),
    /// Check format, clippy, rustdoc, links, the circles of modules, spelling and licences
    Lint,
    /// Write docs/modules.md: which files of each crate use which, in layers, and which are in circles
    Modules(modules::ModulesArgs),
    /// Feed every parser of what others wrote with changed inputs
    Verify(verify::VerifyArgs),
    /// Run the test programs, moved at random moments, and compare with native runs
    Soak(soak::SoakArgs),
    /// Kill, stop, cut off everybody at every point: the job ends natively or sees an error, and nothing is left
    KillMatrix(kill_matrix::KillArgs),
    /// Call every driver function natively and under mrcuda, and compare the answers
    Conformance(conformance::ConformanceArgs),
    /// Run the programs of a folder natively, in each place and moved, and compare outputs and times
    Apps(apps::AppsArgs),
    /// Compile the test programs; nvcc comes from PyPI at the first time
    Programs,
    /// Make target/bundle, to be carried to a machine with GPUs
    Bundle,
    /// What run-gpu.sh of the bundle runs on a machine with GPUs
    Gpu(gpu::GpuArgs),
}

fn main() {
    let done = match Cli::parse().command {
        Command::Demo(args) => demo::demo(&args),
        Command::Test(args) => suite::test(&args),
        Command::Lint => lint::lint(),
        Command::Modules(args) => modules::modules(&args),
        Command::Verify(args) => verify::verify(&args),
        Command::Soak(args) => soak::soak(&args),
        Command::KillMatrix(args) => kill_matrix::kill_matrix(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Apps(args) => apps::apps(&args),
        Command::Programs => suite::programs(),
        Command::Bundle => bundle::bundle(),
        Command::Gpu(args) => gpu::gpu(&args),
    };
    if let Err(why) = done {
        eprintln!("{why}");
        std::process::exit(1);
    }
}
