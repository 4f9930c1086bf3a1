//! Why a measurement failed.

use cuda_api::code::Code;
use cuda_api::driver::LoadError;
use journal::JournalError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A plot could not be drawn.
    #[error(transparent)]
    Plot(#[from] models::plot::PlotError),
    /// A file or directory could not be read or written.
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    /// A pipe, a socket or a process failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What the same bytes cost without mrcuda could not be measured.
    #[error("a control failed: {0}")]
    Control(io::Error),
    /// The driver could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver lacks a function.
    #[error("the driver has no {0}")]
    NoFunction(&'static str),
    /// A call failed.
    #[error("{call}: {name} ({code})")]
    Call { call: &'static str, name: String, code: Code },
    /// The journal could not be written or read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What the measurement has found to be wrong.
    #[error("{0}")]
    Found(String),
}

impl Error {
    /// Adds the path to an error of the system.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Error {
        |error| Error::File { path: path.to_owned(), error }
    }
}

impl From<String> for Error {
    fn from(found: String) -> Error {
        Error::Found(found)
    }
}

impl From<&str> for Error {
    fn from(found: &str) -> Error {
        Error::Found(found.to_owned())
    }
}
