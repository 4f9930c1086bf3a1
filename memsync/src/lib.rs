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
mod source;
mod target;
#[cfg(test)]
mod tests;

pub use error::{BROKEN, SyncError};
pub use faults::Faults;
pub use region::{Kind, PAGE, Region, regions};

use cuda_api::wire::{Short, Wire};
use cuda_api::wire_struct;
use executor::Executor;
use std::io::{Read, Write};
use std::sync::Arc;

/// A connection between the two places.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// Whether and how a round proves that the target holds the source's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[repr(u8)]
pub enum Verify {
    /// Not at all: a round while the job works.
    Skip = 0,
    /// By bytes where both places are of the same GPU, which reads no more than hashing does; by hashes otherwise.
    #[default]
    Auto = 1,
    /// By 256-bit keyed hashes of all pages: two different pages pass with a probability of at most 2^-128.
    Hash = 2,
    /// By comparing all bytes at the target: what is not in view is sent a second time.
    Bytes = 3,
}

impl Wire for Verify {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u8).put(out);
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        match u8::get(src)? {
            0 => Ok(Verify::Skip),
            1 => Ok(Verify::Auto),
            2 => Ok(Verify::Hash),
            3 => Ok(Verify::Bytes),
            _ => Err(Short),
        }
    }
}

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
        /// Digest of the regions and of the hashes of their pages after the round (before it where the round does not verify). Both
        /// ends have the same. Keys differ from round to round, so it says nothing about other rounds; what was compared by bytes is
        /// in it as a region only.
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
