//! Why a device has no journal.

use crate::base::config::ConfigError;
use journal::JournalError;
use std::path::PathBuf;

/// Why a device has no journal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoJournal {
    /// The job's configuration is invalid.
    #[error(transparent)]
    Config(#[from] &'static ConfigError),
    /// There is not enough memory for one.
    #[error(transparent)]
    Memory(JournalError),
    /// Its file cannot be created.
    #[error("cannot write the journal {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: JournalError,
    },
}
