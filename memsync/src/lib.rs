//! Brings the memory of one place to another: what differs, and only that, straight from place to place.
//!
//! A **round** compares and copies once. The target tells what it has (regions and a 128-bit hash of each 64 KiB page,
//! computed on its GPU); the source sends the pages whose hashes differ, over several connections at once. Rounds keep no
//! state, so pre-copying is a round while the job works, and the rest is a round after it has come to rest, with
//! verification: then both ends hash everything again and the digests must agree.
//!
//! Chunks whose memory the target can map itself, because it is of the same machine, are **in view**: of their pages the source tells
//! the hashes only, and the target's GPU fetches those that differ. Which those are is found out anew in each round; everything else travels.
//!
//! ```text
//! target                                         source
//!                                    ◀─stripe 0─   Show: where chunks can be had, which they are
//!   Hello: regions, in view          ──────────▶
//!   hashes of what travels           ──────────▶
//!                                    ◀──────────   Verdict: the regions fit, or why not
//!                                    ◀──────────   hashes of what is in view
//!                                    ◀─ all ────   batches of pages … end
//!                                    ◀──────────   Summary: digest
//!   Result: digest                   ──────────▶
//! ```
//!
//! After an error the connections are of no further use: whoever called closes them, which ends the other side too.

mod error;
mod frames;
mod memory;
mod region;
mod source;
mod target;
#[cfg(test)]
mod tests;

pub use error::SyncError;
pub use faults::Faults;
pub use region::{Kind, PAGE, Region, regions};

use cuda_api::wire_struct;
use replayer::Executor;
use std::io::{Read, Write};
use std::sync::Arc;

/// A connection between the two places.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

wire_struct! {
    /// What a round did.
    #[derive(Debug, Clone, PartialEq, Default)]
    pub struct Round {
        /// Regions that both ends have.
        pub regions: u64,
        /// Bytes in them.
        pub bytes_total: u64,
        /// Bytes of the pages that were sent.
        pub bytes_sent: u64,
        /// Bytes of the pages that the target has fetched; the source does not know.
        pub bytes_fetched: u64,
        /// Why the target could not have all chunks in view; empty if it could, or if this is the source.
        pub not_in_view: String,
        /// Pages hashed at this end, counted each time.
        pub pages_hashed: u64,
        /// Milliseconds spent on hashing at this end.
        pub hash_ms: f64,
        /// Milliseconds from the first page to the last.
        pub copy_ms: f64,
        /// Digest of the regions after the round (as hashed before it where the round does not verify).
        pub digest: [u8; 32],
    }
}

/// The source's part of a round. `conns` are the same connections, in the same order, as the target's, at least one.
///
/// # Errors
/// See [`SyncError`]. The source's memory is only read.
pub fn run_source(exec: &Arc<Executor>, conns: &mut [Box<dyn Stream>], fault: &Faults) -> Result<Round, SyncError> {
    source::run(exec, conns, fault)
}

/// The target's part of a round. With `verify` the job must be at rest at the source, and success means that both ends hold
/// the same bytes in the same regions. Without `near` everything travels, as from another machine.
///
/// # Errors
/// See [`SyncError`]. The target's memory is then of no use until another round has succeeded.
pub fn run_target(
    exec: &Arc<Executor>,
    conns: &mut [Box<dyn Stream>],
    verify: bool,
    near: bool,
    fault: &Faults,
) -> Result<Round, SyncError> {
    target::run(exec, conns, verify, near, fault)
}
