//! `cargo xtask`: commands for the whole workspace.
//!
//! | command | what it does |
//! |---|---|
//! | `demo` | moves a running program between two servers and this machine, on CPU drivers, and shows it |
//! | `test` | installs what the tests need, builds everything, runs the tests: all, or those that have a turn today |
//! | `lint` | checks format, clippy (also with RDMA, where that can be built), rustdoc, the links and the contents of the documentation, the circles and layers of modules, spelling, and the licences of what we use |
//! | `docs` | makes a book of the documentation, and the documentation of the crates |
//! | `modules` | writes `docs/modules.md` and its pictures: which files of each crate use which, in layers |
//! | `verify` | feeds every parser of untrusted input with mutated inputs; with `--long` for minutes, and runs the models' large bounds |
//! | `soak` | runs the test programs again and again, moved at random moments |
//! | `kill-matrix` | kills, stops and disconnects every process at every named point |
//! | `rdma` | runs jobs over RDMA between two hosts of a virtual machine |
//! | `machine` | in virtual machines: system tests that need another kernel, the packages with systemd, the first tutorial on two hosts |
//! | `slurm` | runs jobs with the plugin for Slurm in a cluster of four nodes on this machine |
//! | `conformance` | calls every driver function natively and under mrcuda, and compares the answers |
//! | `apps` | programs of any directory natively, in each place and moved: outputs, times, pauses |
//! | `programs` | compiles the test programs |
//! | `package` | makes packages for distributions |
//! | `bundle` | makes `target/bundle/`, to be carried to a machine with GPUs |

mod apps;
mod bundle;
mod conformance;
mod demo;
mod docs;
mod error;
mod gpu;
mod kill_matrix;
mod licences;
mod lint;
mod machine;
mod modules;
mod package;
mod pages;
mod rdma;
mod sample;
mod slurm;
mod soak;
mod step;
mod suite;
mod verify;
mod vm;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Commands for the whole workspace")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Move a running program between two servers and this machine, and show it
    Demo(demo::DemoArgs),
    /// Install what the tests need, build everything, run the tests: all, or those that have a turn today
    Test(suite::TestArgs),
    /// Check format, clippy, rustdoc, links, the table of contents, the circles and layers of modules, spelling and licences
    Lint,
    /// Make a book of the documentation (needs mdbook), and the documentation of the crates
    Docs,
    /// Write docs/modules.md and its pictures: which files of each crate use which, in layers, and which are in circles
    Modules(modules::ModulesArgs),
    /// Feed every parser of untrusted input with mutated inputs
    Verify(verify::VerifyArgs),
    /// Run the test programs, moved at random moments, and compare with native runs
    Soak(soak::SoakArgs),
    /// Kill, stop and disconnect every process at every named point: the job ends natively or sees an error, and nothing is left
    KillMatrix(kill_matrix::KillArgs),
    /// Run jobs over RDMA between two hosts of a virtual machine, with moves and a cut of the link
    Rdma(rdma::RdmaArgs),
    /// Run what needs a virtual machine: system tests with cgroups of version 2, the packages with systemd, the first tutorial on two hosts
    Machine(machine::MachineArgs),
    /// Run jobs with the plugin for Slurm in a cluster of four nodes on this machine
    Slurm(slurm::SlurmArgs),
    /// Call every driver function natively and under mrcuda, and compare the answers
    Conformance(conformance::ConformanceArgs),
    /// Run the programs of a directory natively, in each place and moved, and compare outputs and times
    Apps(apps::AppsArgs),
    /// Compile the test programs; nvcc comes from PyPI at the first time
    Programs,
    /// Make packages for distributions: .deb, .rpm, .tar.gz, and debug files; zig comes from PyPI at the first time
    Package(package::PackageArgs),
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
        Command::Docs => docs::docs(),
        Command::Modules(args) => modules::modules(&args),
        Command::Verify(args) => verify::verify(&args),
        Command::Soak(args) => soak::soak(&args),
        Command::KillMatrix(args) => kill_matrix::kill_matrix(&args),
        Command::Rdma(args) => rdma::rdma(&args),
        Command::Machine(args) => machine::machine(&args),
        Command::Slurm(args) => slurm::slurm(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Apps(args) => apps::apps(&args),
        Command::Programs => suite::programs(),
        Command::Package(args) => package::package(&args),
        Command::Bundle => bundle::bundle(),
        Command::Gpu(args) => gpu::gpu(&args),
    };
    if let Err(why) = done {
        eprintln!("{why}");
        std::process::exit(1);
    }
}
