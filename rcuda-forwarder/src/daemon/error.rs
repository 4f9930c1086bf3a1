//! Why the daemon cannot serve.

use crate::certificate::CertificateError;
use crate::token::TokenError;
use std::io;
use std::path::PathBuf;

/// Why the daemon cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Neither an address nor a socket was given.
    #[error("nothing to listen on: neither an address nor a Unix socket was given")]
    Nowhere,
    /// The token cannot be read or created.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A file with certificates cannot be read or created.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The certificate cannot be used.
    #[error("the certificate cannot be used: {0}")]
    Tls(String),
    /// The address cannot be used.
    #[error("cannot listen on {at}: {source}")]
    Listen {
        /// The address or path.
        at: String,
        /// The system's error.
        source: io::Error,
    },
    /// The driver cannot be used.
    #[error("cannot use the CUDA driver {driver}: {why}")]
    Driver {
        /// Its path.
        driver: PathBuf,
        /// The reason.
        why: String,
    },
    /// None of the GPUs can be opened.
    #[error("no worker can open a GPU: {0}")]
    NoWorker(String),
    /// More GPUs are to be offered than the driver has.
    #[error("{wanted} GPUs cannot be lent: the driver has {there}")]
    Gpus {
        /// Number of GPUs of the driver.
        there: u32,
        /// Number of GPUs requested.
        wanted: u32,
    },
    /// The environment selects GPUs in an unsupported syntax.
    #[error("CUDA_VISIBLE_DEVICES={0}: a server understands GPU numbers only")]
    Visible(String),
    /// A thread or a signal mask could not be set up.
    #[error("cannot start serving: {0}")]
    Start(io::Error),
}
