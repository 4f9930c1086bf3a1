//! The parameters and results of a round.

use std::io::{Read, Write};

/// A connection between the two places.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

cuda_api::wire_enum! {
    /// Whether and how a round proves that the target holds the source's bytes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
    pub enum Verify {
        /// No proof: a round while the job runs.
        Skip = 0,
        /// By bytes if both places use the same GPU, which reads no more than hashing does; by hashes otherwise.
        #[default]
        Auto = 1,
        /// By 256-bit keyed hashes of all pages, except those of arrays, whose hashes are BLAKE3 without a key: memories that differ pass with a
        /// probability of at most 2^-127 (docs/page-hash.md).
        Hash = 2,
        /// By comparing all bytes at the target; pages that are not in view are sent a second time.
        Bytes = 3,
    }
}

/// Statistics of a round.
#[derive(Debug, Clone, PartialEq, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Round {
    /// Regions that both ends have.
    pub regions: u64,
    /// Bytes in them.
    pub bytes_total: u64,
    /// Bytes of the pages that were sent.
    pub bytes_sent: u64,
    /// Bytes that the connections carried for them: fewer if some were compressed.
    pub bytes_carried: u64,
    /// Bytes of the pages that the target copied from memory in view; unknown to the source.
    pub bytes_fetched: u64,
    /// Bytes of the chunks whose memory the target has adopted, at the target.
    pub bytes_adopted: u64,
    /// The round verifies, and the target has adopted all allocations of the source, which knows this. What was copied beside them is the
    /// code's.
    pub handed_over: bool,
    /// Why the target could not map all chunks; empty if it could, or at the source.
    pub not_in_view: String,
    /// Pages hashed at this end; a page hashed twice counts twice.
    pub pages_hashed: u64,
    /// Milliseconds spent on hashing at this end.
    pub hash_ms: f64,
    /// Milliseconds from the first page to the last.
    pub copy_ms: f64,
    /// Digest of the regions and of the hashes that prove their pages; zeros where the round does not verify. It is the same at both ends.
    /// Keys differ from round to round, so digests of different rounds cannot be compared. Of memory that was compared by bytes, only the
    /// region is part of the digest.
    pub digest: [u8; 32],
    /// What identifies the file of a store that was the target, if the round has verified it; zeros otherwise.
    pub seal: [u8; 32],
}

/// Rows of memory at one end of a copy of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Part {
    /// Address of the first row.
    pub address: u64,
    /// Bytes from row to row.
    pub pitch: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub rows: u64,
}
