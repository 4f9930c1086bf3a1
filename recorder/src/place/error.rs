//! Why a place cannot be opened.

use crate::base::config::ConfigError;
use rcuda_forwarder::PlaceSpec;
use rcuda_forwarder::{LinkError, TokenError};
use std::path::PathBuf;

/// Why a place cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The job's configuration is invalid.
    #[error(transparent)]
    Config(#[from] &'static ConfigError),
    /// A place on this machine needs the driver.
    #[error("there is no CUDA driver on this machine (mrcuda run --driver names one)")]
    NoDriver,
    /// The driver in this process cannot be used.
    #[error("{spec} cannot be used: {source}")]
    Local {
        /// The place.
        spec: PlaceSpec,
        /// The cause.
        source: executor::OpenError,
    },
    /// A helper cannot be started.
    #[error("{spec} cannot be used: {source}")]
    Helper {
        /// The place.
        spec: PlaceSpec,
        /// The cause.
        source: LinkError,
    },
    /// The helper's program is not found because this library's own file is not.
    #[error("cannot find this library's own file{}", .0.as_ref().map(|(path, e)| format!(": {}: {e}", path.display())).unwrap_or_default())]
    OwnFile(Option<(PathBuf, std::io::Error)>),
    /// The helper's program is not at its expected path.
    #[error("the helper program is missing: {}", .0.display())]
    NoHelper(PathBuf),
    /// There is no name for the file of a parked device.
    #[error("cannot name a file: {0}")]
    FileName(String),
    /// A server on a network requires a token.
    #[error("{spec} requires a token, and there is none: copy the server's token file to {} (on a cluster: MRCUDA_MUNGE)", file.display())]
    NoToken {
        /// The place.
        spec: PlaceSpec,
        /// The expected path of the token.
        file: PathBuf,
    },
    /// The token cannot be used.
    #[error(transparent)]
    Token(TokenError),
    /// The server cannot be reached, or refuses.
    #[error(transparent)]
    Server(LinkError),
}
