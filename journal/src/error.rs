//! What can go wrong with a journal.

use std::io;
use std::path::PathBuf;

/// A failed operation on a journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The operating system refused an operation on the file.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// There is no more memory for a journal in memory.
    #[error("cannot get memory: {0}")]
    Memory(#[source] io::Error),
    /// The file does not begin with a journal's magic number.
    #[error("not a journal: the magic number is missing")]
    NotAJournal,
    /// The file has another format version than [`crate::Reader`] knows.
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
    /// A record is damaged; the ones before it were whole.
    #[error("record {number} of the journal, at byte {offset}, is damaged: {what}")]
    Record {
        /// Number of the record in the file, from 0.
        number: u64,
        /// Where it begins, in bytes from the beginning of the file.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A part of a record is longer than the format allows.
    #[error("a record's {what} of {len} is beyond the format's limit of {limit}")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The longest that can be kept.
        limit: usize,
    },
    /// An earlier record is missing, so later ones are worthless: nothing is appended any more.
    #[error("the journal is not complete: an earlier record could not be written")]
    Incomplete,
}
