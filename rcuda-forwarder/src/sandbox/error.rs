//! Why a worker is not in its sandbox.

use std::io;

/// Why a worker is not confined as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    /// Landlock.
    #[error("Landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// Landlock was there when the daemon started.
    #[error("Landlock: it is not enforced")]
    NotEnforced,
    /// The filter could not be made.
    #[error("seccomp: {0}")]
    Filter(#[from] seccompiler::BackendError),
    /// The filter could not be installed.
    #[error("seccomp: {0}")]
    Seccomp(#[from] seccompiler::Error),
    /// The sockets at which it listens could not be created.
    #[error("cannot create sockets: {0}")]
    Sockets(io::Error),
    /// The limits of the process could not be set.
    #[error("cannot set limits: {0}")]
    Limits(io::Error),
}
