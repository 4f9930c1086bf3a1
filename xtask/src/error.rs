//! Why a command failed.

use compare::ListError;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use tests::JobError;
use tests::conformance::TranscriptError;
use tests::install::BuildError;
use tests::kill::CellError;
use tests::transport::TransportError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file or directory could not be read or written.
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    /// A program could not be started.
    #[error("cannot start {program}: {error}")]
    Start { program: String, error: io::Error },
    /// A program reported an error.
    #[error("{program} failed ({status})")]
    Program { program: String, status: ExitStatus },
    /// A pipe or a process failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Something could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A job gave no answer.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The program of the kill matrix fails natively.
    #[error(transparent)]
    Cell(#[from] CellError),
    /// The programs to compare cannot be listed.
    #[error(transparent)]
    List(#[from] ListError),
    /// The program `conformance` failed.
    #[error(transparent)]
    Transcript(#[from] TranscriptError),
    /// The transport cannot be tried.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// What the command has found to be wrong.
    #[error("{0}")]
    Found(String),
}

impl Error {
    /// Adds the path to an error of the system.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Error {
        |error| Error::File { path: path.to_owned(), error }
    }

    /// Adds the program to the error of its start.
    pub(crate) fn start(program: &str) -> impl FnOnce(io::Error) -> Error {
        |error| Error::Start { program: program.to_owned(), error }
    }

    /// An error unless a program has succeeded.
    pub(crate) fn unless_success(program: &str, status: ExitStatus) -> Result<(), Error> {
        if status.success() { Ok(()) } else { Err(Error::Program { program: program.to_owned(), status }) }
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
