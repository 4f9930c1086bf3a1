//! The control socket of a job: how schedulers, `mrcuda` and tests request moves of a running job (docs/scheduler.md).
//!
//! A job listens on a Unix socket named after its process id, in a directory of its user ([`directory`]). A [`Request`] is
//! one line of JSON; the answer is one line of JSON: the result, or a [`Refusal`]. [`Client`] is the requesting side;
//! the recorder implements the answering side. Both use the types of this crate, so the protocol is defined once.

#![deny(unsafe_code)]
#![warn(missing_debug_implementations, unreachable_pub)]

mod answer;
mod client;
mod code;
pub mod directory;
#[cfg(test)]
mod fuzz;
pub mod history;
pub mod name;
pub mod process;
mod reason;
mod request;
mod socket;
mod trace;

pub use answer::{
    Answer, Carried, Device, DeviceState, Event, EventKind, GpuMove, Job, KeptCopy, Move, MoveState, Plan, ReadError, Refusal,
};
pub use client::{AskError, Client, NoAnswer};
pub use code::{ErrorCode, ReasonCode};
pub use reason::without_numbers;
pub use request::{Migrate, Park, Request, Verify};
use std::time::Duration;
pub use trace::{Trace, TraceEvent};

/// Version of the protocol. It changes when something that a client may rely on is removed or changes its meaning. New
/// requests, options and fields of answers do not change it. Version 1 had `status`, `moves` and `migrate`.
pub const VERSION: u64 = 2;

/// Maximum length of a request in bytes, including its newline.
pub const LONGEST_REQUEST: usize = 64 << 10;

/// Maximum length of an answer that a client reads. A job with many moves has long reports, but none longer than this.
pub const LONGEST_ANSWER: u64 = 16 << 20;

/// The downtime that a move without a limit aims at. A longer one is reported, and the move does not fail because of it.
pub const TARGET_DOWNTIME: Duration = Duration::from_millis(300);

/// Maximum length of a move's id, and of a job's name.
pub const LONGEST_ID: usize = 64;
