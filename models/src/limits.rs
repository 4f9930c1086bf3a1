//! Limits for the contents of files of unknown origin.

use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It is longer than the limit.
    #[error("{path}: longer than {limit} bytes")]
    Long {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// Its contents are invalid.
    #[error("{path}: {source}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ContentError,
    },
}

/// What is wrong with the contents of a file.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// They are not JSON of the expected form.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It is a file of another kind.
    #[error("it is not a file of kind `{0}`")]
    Kind(&'static str),
    /// It has another version.
    #[error("it is of version {found}, this program reads version {known}")]
    Version {
        /// The file's version.
        found: u64,
        /// The version that this program reads.
        known: u64,
    },
    /// It has too many models or samples.
    #[error("it has more than {limit} {what}")]
    TooMany {
        /// The limit.
        limit: usize,
        /// What there are too many of.
        what: &'static str,
    },
    /// A name is not acceptable.
    #[error("{0} is empty, too long or not printable")]
    Name(&'static str),
    /// A figure is not acceptable.
    #[error("{what} is {value}: no cost or quantity")]
    Figure {
        /// What the figure is.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// An overhead is unknown.
    #[error("there is no overhead `{}`", .0.escape_debug())]
    Overhead(String),
    /// An overhead does not depend on a quantity that is given for it.
    #[error("`{overhead}` does not depend on `{}`", .term.escape_debug())]
    Term {
        /// The overhead.
        overhead: &'static str,
        /// The quantity.
        term: String,
    },
    /// The cost of one unit is out of range.
    #[error("`{overhead}`: {cost} seconds for one of `{term}` cannot be")]
    Cost {
        /// The overhead.
        overhead: &'static str,
        /// The quantity.
        term: String,
        /// The cost in seconds.
        cost: f64,
    },
    /// There are two models of one overhead on one path.
    #[error("it has two models of `{overhead}` on `{path}`")]
    TwoModels {
        /// The overhead.
        overhead: String,
        /// The path.
        path: String,
    },
}

/// Maximum length of a name in a file.
const NAME: usize = 256;

/// Reads a file of at most `limit` bytes.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<T, FileError> {
    let io = |source| FileError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(limit + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > limit {
        return Err(FileError::Long { path: path.to_owned(), limit });
    }
    serde_json::from_slice(&bytes).map_err(|e| content(path, e.into()))
}

/// An error about a file's content.
pub(crate) fn content(path: &Path, source: ContentError) -> FileError {
    FileError::Content { path: path.to_owned(), source }
}

/// Checks kind and version of a file.
pub(crate) fn heading(kind: &str, v: u64, want: &'static str, version: u64) -> Result<(), ContentError> {
    if kind != want {
        return Err(ContentError::Kind(want));
    }
    if v != version {
        return Err(ContentError::Version { found: v, known: version });
    }
    Ok(())
}

/// Validates a name: it must be short and contain no control characters.
pub(crate) fn name(text: &str, what: &'static str) -> Result<(), ContentError> {
    if text.is_empty() || text.len() > NAME || text.chars().any(char::is_control) {
        return Err(ContentError::Name(what));
    }
    Ok(())
}

/// Validates a figure.
pub(crate) fn figure(n: f64, what: &'static str) -> Result<(), ContentError> {
    if n.is_finite() && (0.0..=1e18).contains(&n) { Ok(()) } else { Err(ContentError::Figure { what, value: n }) }
}
