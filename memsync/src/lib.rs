//! Copies the memory of one place to another: only the pages that differ, directly from place to place.
//!
//! A **round** compares and copies once. The target sends what it has (regions and a 256-bit hash of each 64 KiB page,
//! computed on its GPU); the source sends the pages whose hashes differ, over several connections in parallel. Rounds
//! keep no state: a pre-copy is a round while the job runs, and the last round takes place while the job is quiesced,
//! with verification ([`Verify`]): both ends hash everything again under a fresh key and the digests must be equal, or
//! the target compares all bytes.
//!
//! Chunks whose memory the target can map itself, because it is on the same machine, are **in view**: of their pages
//! the source sends only the hashes, and the target's GPU copies those that differ. Each round determines anew which
//! chunks are in view; all other pages are sent.
//!
//! Between places of one GPU the target can have **adopted** chunks before: they are the source's own memory, so nothing of them is hashed or
//! copied. The target names them with the numbers of their memory, and the source checks that these are still the ones that it has.
//!
//! A [`Store`] holds the memory of a parked device in host memory or in a file. It takes part in rounds like a place with a GPU.
//!
//! For each round the source draws the keys of the page hash ([`executor::PageKey`]) from the system's random source:
//! one for the selection of pages, one for the verification. docs/page-hash.md states what the hash guarantees.
//!
//! ```text
//! target                                         source
//!                                    ◀─stripe 0─   Show: keys, GPU, where chunks can be had, which they are,
//!                                                  to a store: its regions
//!   Hello: how to verify, regions,   ──────────▶
//!          what it has adopted
//!   hashes of what travels           ──────────▶
//!                                    ◀──────────   Verdict: the regions fit, or why not
//!                                    ◀──────────   hashes of what is in view
//!                                    ◀─ all ────   batches of pages … end
//!                                    ◀─ all ────   to compare bytes: batches of all pages … end
//!                                    ◀──────────   Summary: digest
//!   Result: digest                   ──────────▶
//! ```
//!
//! Batches are compressed on connections that were measured to be slower than that ([`Compression`]); the proof covers what they become at the
//! target.
//!
//! What is copied follows from regions and hashes alone (`diff.rs`); the two ends only read, send, receive and write.
//!
//! After an error the connections are unusable: the caller closes them, which also ends the round at the other end.

mod clock;
mod compression;
mod diff;
mod error;
mod frames;
#[cfg(test)]
mod fuzz;
mod memory;
mod parts;
mod region;
mod round;
mod source;
mod store;
mod target;
#[cfg(test)]
mod tests;
mod threads;
mod transfer;

pub use compression::Compression;
pub use error::SyncError;
pub use faults::Faults;
pub use frames::BATCH;
pub use region::{Kind, PAGE, Region, regions};
pub use round::{Part, Round, Stream, Verify};
pub use store::{Store, free_host_memory};

use executor::Executor;
use std::sync::Arc;

/// Runs the source's part of a round. `conns` are the same connections, in the same order, as the target's; there is at
/// least one. `compression`: what earlier rounds over these connections have measured; empty before the first. `send_regions`: the target is
/// a [`Store`], which has no regions of its own.
///
/// # Errors
/// See [`SyncError`]. The source's memory is only read.
pub fn run_source(
    exec: &Arc<Executor>,
    conns: &mut [Box<dyn Stream>],
    compression: &mut Vec<Compression>,
    send_regions: bool,
    fault: &Faults,
) -> Result<Round, SyncError> {
    source::run(exec, conns, compression, send_regions, fault)
}

/// Runs the target's part of a round. With verification the job must be quiesced, and success means that both ends hold
/// the same bytes in the same regions. Without `by_descriptor`, all pages are sent, as from another machine.
///
/// # Errors
/// See [`SyncError`]. The target's memory is then invalid until another round has succeeded.
pub fn run_target(
    exec: &Arc<Executor>,
    conns: &mut [Box<dyn Stream>],
    verify: Verify,
    by_descriptor: bool,
    fault: &Faults,
) -> Result<Round, SyncError> {
    target::run(exec, conns, verify, by_descriptor, fault)
}

/// Sends what a copy of the job reads. `number` identifies the copy on these connections.
///
/// # Errors
/// See [`SyncError`].
pub fn send_parts(exec: &Arc<Executor>, conns: &mut [Box<dyn Stream>], number: u64, parts: &[Part]) -> Result<(), SyncError> {
    parts::send(exec, conns, number, parts)
}

/// Receives what a copy of the job writes; the parts are as large as those that the other place sends. Returns when everything is written.
///
/// # Errors
/// See [`SyncError`]. The memory then has some of the bytes.
pub fn receive_parts(exec: &Arc<Executor>, conns: &mut [Box<dyn Stream>], number: u64, parts: &[Part]) -> Result<(), SyncError> {
    parts::receive(exec, conns, number, parts)
}
