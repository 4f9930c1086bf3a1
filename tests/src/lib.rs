//! What the whole-system tests, the demo and the soak share: servers, jobs and test programs as real processes.
//!
//! * [`install`]: where `mrcuda` and its libraries are; builds them when nobody else has.
//! * [`scene`]: a scratch folder with a runtime folder and a token of its own, so that tests do not see each other.
//! * [`server`], [`job`]: processes under test.
//! * [`json`]: reading what they print.
//! * [`report`]: what a move reports.
//! * [`programs`], [`toolchain`]: the programs in `programs/` and the compiler for them.
//! * [`clock`]: time limits that do not depend on how busy the machine is.
//! * [`conformance`]: transcripts of the program that calls everything.
//! * [`driver`]: what programs share that call the driver's functions one by one.
//! * [`random`]: repeatable random numbers.
//! * [`kill`]: the kill matrix.

pub mod clock;
pub mod conformance;
pub mod driver;
pub mod install;
pub mod job;
pub mod json;
pub mod kill;
pub mod programs;
pub mod random;
pub mod report;
pub mod scene;
pub mod server;
pub mod toolchain;

pub use clock::Clock;
pub use install::Install;
pub use job::{Job, JobError, Outcome};
pub use programs::{Linkage, Programs};
pub use random::Random;
pub use report::Report;
pub use scene::Scene;
pub use server::Server;
