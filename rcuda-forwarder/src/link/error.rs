//! Why a link cannot be established or used, in words for the job's user.

use super::replies::Lost;
use crate::control::Refused;
use crate::endpoint::Endpoint;
use crate::greet::{GreetError, NotGreeted};
use std::io;
use std::time::Duration;

/// Why a link could not be established or a control request failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No connection.
    #[error("cannot connect to {to}: {source}{}", hint(source))]
    Connect {
        /// The server.
        to: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// A server on a network requires a token.
    #[error("{to} requires a token, and there is none (copy the server's token file; on a cluster: MRCUDA_MUNGE)")]
    NoToken {
        /// The server.
        to: Endpoint,
    },
    /// The server refused, or is not a mrcuda server.
    #[error("{to} cannot be used: {why}")]
    Greeting {
        /// The server.
        to: Endpoint,
        /// Its reason.
        why: NotGreeted,
    },
    /// The threads or the memory of a link could not be created.
    #[error("cannot set up the connection to {to}: {source}")]
    Setup {
        /// The server.
        to: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// A helper could not be started, or has ended.
    #[error("no helper process: {0}")]
    Helper(io::Error),
    /// The worker refused a request.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The worker's answer is malformed.
    #[error("the worker's answer is malformed")]
    Answer,
    /// The worker sends heartbeats but no answer.
    #[error("the worker has not answered a request within {} s", .0.as_secs())]
    Unanswered(Duration),
    /// The link is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl LinkError {
    /// The same error with the address that the user knows.
    pub(super) fn at(self, named: &Endpoint) -> LinkError {
        let to = named.clone();
        match self {
            LinkError::Connect { source, .. } => LinkError::Connect { to, source },
            LinkError::Greeting { why, .. } => LinkError::Greeting { to, why },
            LinkError::Setup { source, .. } => LinkError::Setup { to, source },
            other => other,
        }
    }
}

/// A hint for the user if no server listens.
fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => " (does `mrcuda serve` run there?)",
        _ => "",
    }
}

/// The error for the job's user.
pub(crate) fn refused(to: &Endpoint, why: &GreetError) -> LinkError {
    let why = match why {
        GreetError::WrongToken => NotGreeted::WrongToken,
        GreetError::TooSlow => NotGreeted::NoAnswer,
        GreetError::OtherBuild => NotGreeted::OtherBuild,
        GreetError::Garbage => NotGreeted::OtherProtocol,
        GreetError::NoMunge => NotGreeted::NoMunge,
        other => NotGreeted::Other(other.to_string()),
    };
    LinkError::Greeting { to: to.clone(), why }
}
