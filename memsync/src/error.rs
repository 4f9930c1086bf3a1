//! Errors of a round.

use cuda_api::code::{self, Code};
use std::io;
use std::path::PathBuf;

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A connection failed, usually because the other end failed.
    #[error("the connection between the places failed while {what}: {why}")]
    Io {
        /// The operation that was in progress.
        what: &'static str,
        /// The system's error.
        why: io::Error,
    },
    /// The other end violated the protocol.
    #[error("the other place sent malformed data: {0}")]
    Protocol(&'static str),
    /// The GPU or its driver returned an error.
    #[error("{what} failed on the GPU: {} ({code})", code_name(*code))]
    Gpu {
        /// The operation that was in progress.
        what: &'static str,
        /// The driver's code.
        code: Code,
    },
    /// The other end has listed more memory than there can be.
    #[error("the other place lists {pages} pages of memory, and this one can have {most} at most")]
    TooManyPages {
        /// Number of pages in its list.
        pages: u64,
        /// Maximum number that this end can have.
        most: u64,
    },
    /// The places do not have the same regions.
    #[error("the places do not hold the same memory: {0}")]
    Regions(String),
    /// The bytes at the target are not those of the source.
    #[error("the copy is not identical: the source has {source_digest}, the target {target_digest}")]
    Digest {
        /// Digest of the source, in hexadecimal.
        source_digest: String,
        /// Digest of the target, in hexadecimal.
        target_digest: String,
    },
    /// Bytes at the target are not those of the source.
    #[error("the copy is not identical: {pages} pages differ, one of them at {address:#x}")]
    Bytes {
        /// Number of pages that differ.
        pages: usize,
        /// Address of one of them.
        address: u64,
    },
    /// A file of a store cannot be used.
    #[error("cannot {what} {}: {why}", path.display())]
    File {
        /// The operation that failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// A store may hold no more.
    #[error("more than {} MiB would be held for the parked job (mrcuda serve --max-parked)", limit >> 20)]
    Full {
        /// Its limit in bytes.
        limit: u64,
    },
    /// The machine of a store in memory would have too little left for anything else.
    #[error("too little memory is free on the machine that would hold that of the parked job")]
    Scarce,
    /// A file of a store does not hold what was written.
    #[error("the file {} cannot be used: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        why: String,
    },
    /// The other end failed, with this error text.
    #[error("at the other place: {0}")]
    Peer(String),
    /// The system starts no thread now.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// There is no decompressor, usually for want of memory.
    #[error("cannot decompress memory: {0}")]
    Decompressor(io::Error),
    /// There is no connection.
    #[error("a round needs at least one connection")]
    NoConnection,
}

fn code_name(rc: Code) -> &'static str {
    code::describe(rc).map_or("unknown error", |(name, _)| name.trim_end_matches('\0'))
}

impl SyncError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> SyncError {
        move |why| SyncError::Io { what, why }
    }

    pub(crate) fn gpu(what: &'static str) -> impl FnOnce(Code) -> SyncError {
        move |code| SyncError::Gpu { what, code }
    }

    /// The error for digests that differ; it shows them in hexadecimal.
    pub(crate) fn digest(source: &[u8; 32], target: &[u8; 32]) -> SyncError {
        let hex = |d: &[u8; 32]| d.iter().map(|b| format!("{b:02x}")).collect();
        SyncError::Digest { source_digest: hex(source), target_digest: hex(target) }
    }

    /// The text for the peer, without local paths.
    pub(crate) fn for_the_peer(&self) -> String {
        match self {
            SyncError::File { what, why, .. } => format!("cannot {what} the file of the parked job: {why}"),
            SyncError::Damaged { why, .. } => format!("the file of the parked job cannot be used: {why}"),
            other => other.to_string(),
        }
    }

    /// Whether the connection itself failed, so that no error can be sent over it.
    pub(crate) fn is_io(&self) -> bool {
        matches!(self, SyncError::Io { .. })
    }
}
