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
    #[error("{path}: {why}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
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
    serde_json::from_slice(&bytes).map_err(|e| content(path, e.to_string()))
}

/// An error about a file's content.
pub(crate) fn content(path: &Path, why: String) -> FileError {
    FileError::Content { path: path.to_owned(), why }
}

/// Checks kind and version of a file.
pub(crate) fn heading(kind: &str, v: u64, want: &str, version: u64) -> Result<(), String> {
    if kind != want {
        return Err(format!("it is not a file of kind `{want}`"));
    }
    if v != version {
        return Err(format!("it is of version {v}, this program reads version {version}"));
    }
    Ok(())
}

/// Validates a name: it must be short and contain no control characters.
pub(crate) fn name(text: &str, what: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > NAME || text.chars().any(char::is_control) {
        return Err(format!("{what} is empty, too long or not printable"));
    }
    Ok(())
}

/// Validates a figure.
pub(crate) fn figure(n: f64, what: &str) -> Result<(), String> {
    if n.is_finite() && (0.0..=1e18).contains(&n) { Ok(()) } else { Err(format!("{what} is {n}: no cost or quantity")) }
}
