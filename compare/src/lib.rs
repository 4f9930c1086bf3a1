//! Runs CUDA programs natively and under mrcuda, moves them while they run, and compares output and time: `cargo xtask
//! apps`, `mrcuda bench --only apps` and the test of tests/programs/apps.
//!
//! Each program runs twice natively, then once in each [`Mode`]. A run is *as native* if its exit status and its stdout
//! equal the native ones, by these rules ([`output`]):
//!
//! * in lines with times, rates or free memory ([`output::MEASURE`]) all numbers are masked, and addresses (`0x…`)
//!   everywhere;
//! * lines that only one of the two native runs has are not compared; all other lines must be present;
//! * `order`: all lines are present in another order, as in programs whose threads or blocks print;
//! * `numbers`: the native runs differ from each other, and this one differs from them only in numbers.
//!
//! The last two count as native and are reported. Times are whole runs, from start to end of the process; ratios are
//! relative to the faster native run. For a run over TCP the round trips and the bytes sent are shown beside its time, since they explain most
//! of what it takes longer than natively.

mod list;
mod mover;
pub mod output;
mod run;
mod summary;

pub use list::{LineError, ListError, Program, executables, read_list};
pub use mover::Pause;
pub use output::{Ending, Verdict};
pub use run::{Cell, Comparison, Places, RunError, Setup, Traffic, compare};
pub use summary::Summary;

/// Where a program runs, other than natively.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// At a server on this machine, over TCP.
    Tcp,
    /// At a server on this machine, over shared memory.
    Unix,
    /// In its own process.
    Local,
    /// In a helper process.
    Helper,
    /// It starts at a server and is moved to one place after another until it ends.
    Moved,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 5] = [Mode::Tcp, Mode::Unix, Mode::Local, Mode::Helper, Mode::Moved];

    /// Name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Tcp => "tcp",
            Mode::Unix => "unix",
            Mode::Local => "local",
            Mode::Helper => "helper",
            Mode::Moved => "moved",
        }
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        let known = || Mode::ALL.map(Mode::name).join(", ");
        Mode::ALL.into_iter().find(|m| m.name() == text).ok_or_else(|| format!("`{text}` is none of {}", known()))
    }
}
