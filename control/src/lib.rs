//! The control socket of a job: how schedulers, `mrcuda` and tests ask a running job to move (docs/scheduler.md).
//!
//! A job listens on a Unix socket named after its process id, in a folder of its user ([`folder`]). A [`Request`] is one line of
//! JSON, its answer is one line of JSON: what was asked for, or a [`Refusal`]. [`Client`] is the asking side; the answering side
//! is in the recorder. Both use the types of this crate, so that the protocol is written down once.

#![deny(unsafe_code)]
#![warn(missing_debug_implementations, unreachable_pub)]

mod answer;
mod client;
mod code;
pub mod folder;
#[cfg(test)]
mod fuzz;
mod request;

pub use answer::{Answer, Device, DeviceState, Event, EventKind, Job, Leg, Move, MoveState, Plan, Refusal};
pub use client::{AskError, Client};
pub use code::{ErrorCode, ReasonCode};
pub use request::{Migrate, Request, Verify};

/// Version of the protocol. It changes when something that a client may rely on goes or changes its meaning; new requests,
/// options and fields of answers come without a change. Version 1 knew `status`, `moves` and `migrate`.
pub const VERSION: u64 = 2;

/// The longest request in bytes, its newline included.
pub const LONGEST_REQUEST: usize = 64 << 10;

/// The longest answer that a client reads: a job with many moves has long reports, but not longer ones than this.
pub const LONGEST_ANSWER: u64 = 16 << 20;

/// The longest id of a move.
pub const LONGEST_ID: usize = 64;
