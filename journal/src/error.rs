//! Errors of journals.

use std::io;
use std::path::PathBuf;

/// A failed operation on a journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The operating system refused an operation on the file.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The operation that was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No memory is left for a journal in memory.
    #[error("cannot get memory: {0}")]
    Memory(#[source] io::Error),
    /// The file does not begin with a journal's magic number.
    #[error("not a journal (with MRCUDA_KEEP_JOURNAL=DIR, jobs keep theirs in that directory)")]
    NotAJournal,
    /// The file has a different format version from the one that [`crate::Reader`] reads.
    #[error("the journal has format version {found}; this build reads version {known}")]
    Version {
        /// Version of the file.
        found: u32,
        /// Version that this build reads.
        known: u32,
    },
    /// The header of the file is damaged.
    #[error("the journal's header is damaged: {what}")]
    Header {
        /// What is wrong with it.
        what: &'static str,
    },
    /// A record is damaged; the records before it are intact.
    #[error("record {number} of the journal, at byte {offset}, is damaged: {what}")]
    Record {
        /// Number of the record in the file, starting at 0.
        number: u64,
        /// Its offset in the file, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A part of a record is longer than the format allows.
    #[error("a record's {what} of {len} is beyond the format's limit of {limit}")]
    TooLarge {
        /// The part of the record.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The maximum length.
        limit: usize,
    },
    /// An earlier record is missing, so later ones would be useless and are not appended.
    #[error("the journal is not complete: an earlier record could not be written")]
    Incomplete,
}
