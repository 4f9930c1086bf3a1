//! Why a device has no journal.

use crate::config::ConfigError;
use journal::JournalError;
use std::path::PathBuf;

/// Why a device has no journal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoJournal {
    /// What the job was started with is wrong.
    #[error(transparent)]
    Config(#[from] &'static ConfigError),
    /// There is no memory for one.
    #[error(transparent)]
    Memory(JournalError),
    /// Its file cannot be made.
    #[error("cannot write the journal {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: JournalError,
    },
}
