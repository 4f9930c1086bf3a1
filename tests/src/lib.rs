//! Common code of the whole-system tests, the demo and the soak test: servers, jobs and test programs as real
//! processes.
//!
//! * [`install`]: locates `mrcuda` and its libraries; builds them if necessary.
//! * [`scene`]: a scratch directory with a separate runtime directory and token, which isolates tests from each other.
//! * [`server`], [`agent`], [`job`]: processes under test; [`transport`]: how a server is reached.
//! * [`json`]: reads their JSON output.
//! * [`report`]: the report of a move.
//! * [`programs`], [`toolchain`]: the programs in `programs/cuda/` and `programs/apps/`, and the compiler for them.
//! * [`clock`]: time limits that are independent of the machine's load.
//! * [`conformance`]: transcripts of the program that calls everything.
//! * [`driver`]: helpers of programs that call the driver's functions directly.
//! * [`random`]: repeatable random numbers.
//! * [`kill`]: the kill matrix.
//! * [`service`]: a server at work for a while, with an agent.
//! * [`proxy`]: a bad network between real processes.

pub mod agent;
pub mod clock;
pub mod conformance;
pub mod driver;
pub mod install;
pub mod job;
pub mod json;
pub mod kill;
pub mod programs;
pub mod proxy;
pub mod random;
pub mod report;
pub mod scene;
pub mod server;
pub mod service;
pub mod toolchain;
pub mod transport;

pub use agent::Agent;
pub use clock::Clock;
pub use install::Install;
pub use job::{Job, JobError, Outcome};
pub use programs::{Linkage, Programs};
pub use random::Random;
pub use report::Report;
pub use scene::Scene;
pub use server::Server;
pub use transport::Transport;
