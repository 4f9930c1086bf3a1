//! Why a greeting failed, as the user is told and as the server counts.

use crate::handshake::HandshakeError;
use crate::local_socket::Invitation;
use crate::munge::MungeError;
use std::io;

/// Why a server was not greeted, as far as users do different things about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotGreeted {
    /// The server does not have this end's token.
    #[error("the server does not know this token: it is not the expected server")]
    WrongToken,
    /// The server did not answer in time.
    #[error("the server does not answer")]
    NoAnswer,
    /// The server is another build.
    #[error("the peer is another build of mrcuda: install the same build at both ends")]
    OtherBuild,
    /// Another program listens there.
    #[error("the peer does not speak the mrcuda protocol")]
    OtherProtocol,
    /// The server accepts no credentials of munge.
    #[error(
        "the server does not accept munge (mrcuda serve --munge), and there is no token for it, or its certificate is not known yet: \
         to show it a token at a first connection, set MRCUDA_MUNGE to nothing"
    )]
    NoMunge,
    /// Any other reason, such as a refusal of the server in its own words.
    #[error("{0}")]
    Other(String),
}

/// Why a greeting failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GreetError {
    /// The peer sent something else.
    #[error("{}", NotGreeted::OtherProtocol)]
    Garbage,
    /// The peer is a different build.
    #[error("{}", NotGreeted::OtherBuild)]
    OtherBuild,
    /// The peer's secret is wrong.
    #[error("wrong token")]
    WrongToken,
    /// The peer says that this end's secret is wrong.
    #[error(
        "wrong token: copy the server's token file to this machine, to $MRCUDA_TOKEN_FILE or ~/.config/mrcuda/token; a token of your own \
         may have been revoked: ask who runs the server for a new one (mrcuda token add)"
    )]
    TokenRefused,
    /// The server encrypts, and the client does not want that.
    #[error("this server accepts encrypted connections only: name it without plain://, or start it with --allow-plain")]
    PlainRefused,
    /// The server encrypts, and RDMA does not.
    #[error(
        "this server accepts encrypted connections only, and RDMA is not encrypted: name it without rdma://, or start it with --allow-plain"
    )]
    RdmaRefused,
    /// The client wants encryption, and the server does not offer it.
    #[error("the server offers no encryption, or somebody on the way has removed the offer")]
    NoTls,
    /// The handshake failed.
    #[error("TLS: {0}")]
    Tls(String),
    /// The server's certificate is not the expected one, or a file with certificates cannot be used.
    #[error("{0}")]
    Untrusted(String),
    /// The server accepts no credentials of munge.
    #[error("{}", NotGreeted::NoMunge)]
    NoMunge,
    /// There is no credential of munge, or it is not accepted.
    #[error("{0}")]
    Munge(#[from] MungeError),
    /// A user whom the server knows by munge, or by the kernel, may not use it.
    #[error("{who} may not use this server (mrcuda serve {option})")]
    NotPermitted {
        /// The user, by name and number.
        who: String,
        /// The option that names those who may.
        option: &'static str,
    },
    /// The ticket of a data connection is unknown or used up.
    #[error("unknown ticket")]
    UnknownTicket,
    /// The peer took too long.
    #[error("too slow")]
    TooSlow,
    /// Too many clients are greeting; retry soon.
    #[error("the server is busy: too many clients are connecting at the same time")]
    Busy,
    /// The process that greets for the server has ended, or does not answer.
    #[error("the process that greets clients {0}")]
    GreeterFailed(&'static str),
    /// The server closed the connection without a reason that arrived; retry soon.
    #[error("the server closed the connection during the greeting ({0})")]
    HungUp(io::Error),
    /// The peer refused.
    #[error("{0}")]
    Refused(String),
    /// The server is full, and answers later.
    #[error("it has no room: {0}")]
    Waiting(String),
    /// The server is on this machine, and expects the job at its socket there.
    #[error("the server expects this job at a socket of this machine")]
    Invited(Invitation),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(io::Error),
}

impl GreetError {
    /// What [`GreetError::reason`] says of clients that a daemon refuses.
    pub(crate) const REASONS: [&str; 12] = [
        "wrong_token",
        "other_build",
        "garbage",
        "encryption",
        "munge",
        "not_permitted",
        "unknown_ticket",
        "too_slow",
        "busy",
        "greeter_failed",
        "refused",
        "connection",
    ];

    /// Whether a server says that this end has taken too long.
    pub(crate) fn says_too_slow(&self) -> bool {
        matches!(self, GreetError::Refused(said) if *said == GreetError::TooSlow.to_string())
    }

    /// In one word, for those who count.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            GreetError::Garbage => "garbage",
            GreetError::OtherBuild => "other_build",
            GreetError::WrongToken | GreetError::TokenRefused => "wrong_token",
            GreetError::PlainRefused
            | GreetError::RdmaRefused
            | GreetError::NoTls
            | GreetError::Tls(_)
            | GreetError::Untrusted(_) => "encryption",
            GreetError::NoMunge | GreetError::Munge(_) => "munge",
            GreetError::NotPermitted { .. } => "not_permitted",
            GreetError::UnknownTicket => "unknown_ticket",
            GreetError::TooSlow => "too_slow",
            GreetError::Busy => "busy",
            GreetError::GreeterFailed(_) => "greeter_failed",
            GreetError::Refused(_) | GreetError::Waiting(_) | GreetError::Invited(_) => "refused",
            GreetError::HungUp(_) | GreetError::Io(_) => "connection",
        }
    }
}

impl From<io::Error> for GreetError {
    fn from(e: io::Error) -> GreetError {
        if e.kind() == io::ErrorKind::TimedOut { GreetError::TooSlow } else { GreetError::Io(e) }
    }
}

impl From<HandshakeError> for GreetError {
    fn from(e: HandshakeError) -> GreetError {
        match e {
            HandshakeError::Io(e) => e.into(),
            HandshakeError::Tls(e) => GreetError::Tls(e.to_string()),
            HandshakeError::Plain(_) => GreetError::Garbage,
            HandshakeError::File(_) | HandshakeError::Untrusted(_) => GreetError::Untrusted(e.to_string()),
        }
    }
}
