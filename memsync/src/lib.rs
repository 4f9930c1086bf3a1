//! Brings the memory of one place to another: what differs, and only that, straight from place to place.
//!
//! A **round** compares and copies once. The target tells what it has (regions and a 256-bit hash of each 64 KiB page,
//! computed on its GPU); the source sends the pages whose hashes differ, over several connections at once. Rounds keep no
//! state, so pre-copying is a round while the job works, and the rest is a round after it has come to rest, with
//! verification ([`Verify`]): then both ends hash everything again under a fresh key and the digests must agree, or the target
//! compares all bytes.
//!
//! Chunks whose memory the target can map itself, because it is of the same machine, are **in view**: of their pages the source sends
//! the hashes only, and the target's GPU fetches those that differ. Which those are is found out anew in each round; everything else travels.
//!
//! The source draws the keys of the page hash ([`executor::PageKey`]) from the system's random source for each round: one for the
//! choice of pages, one for the verification. What the hash promises is in docs/page-hash.md.
//!
//! ```text
//! target                                         source
//!                                    ◀─stripe 0─   Show: keys, GPU, where chunks can be had, which they are
//!   Hello: how to verify, regions    ──────────▶
//!   hashes of what travels           ──────────▶
//!                                    ◀──────────   Verdict: the regions fit, or why not
//!                                    ◀──────────   hashes of what is in view
//!                                    ◀─ all ────   batches of pages … end
//!                                    ◀─ all ────   to compare bytes: batches of all pages … end
//!                                    ◀──────────   Summary: digest
//!   Result: digest                   ──────────▶
//! ```
//!
//! After an error the connections are of no further use: whoever called closes them, which ends the other side too.

mod error;
mod frames;
#[cfg(test)]
mod fuzz;
mod memory;
mod region;
mod round;
mod source;
mod target;
#[cfg(test)]
mod tests;

pub use error::SyncError;
pub use faults::Faults;
pub use region::{Kind, PAGE, Region, regions};
pub use round::{Round, Stream, Verify};

use executor::Executor;
use std::sync::Arc;

/// The source's part of a round. `conns` are the same connections, in the same order, as the target's, at least one.
///
/// # Errors
/// See [`SyncError`]. The source's memory is only read.
pub fn run_source(exec: &Arc<Executor>, conns: &mut [Box<dyn Stream>], fault: &Faults) -> Result<Round, SyncError> {
    source::run(exec, conns, fault)
}

/// The target's part of a round. To verify, the job must be at rest at the source, and success means that both ends hold
/// the same bytes in the same regions. Without `near` everything travels, as from another machine.
///
/// # Errors
/// See [`SyncError`]. The target's memory is then of no use until another round has succeeded.
pub fn run_target(
    exec: &Arc<Executor>,
    conns: &mut [Box<dyn Stream>],
    verify: Verify,
    near: bool,
    fault: &Faults,
) -> Result<Round, SyncError> {
    target::run(exec, conns, verify, near, fault)
}
