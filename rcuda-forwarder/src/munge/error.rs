//! Why munge cannot be used, or refuses a credential.

/// Why munge has made no credential, or does not accept one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MungeError {
    /// There is no libmunge.
    #[error("munge: its library cannot be loaded (packages libmunge2, munge-libs): {0}")]
    Library(String),
    /// munged cannot be reached.
    #[error("munge: munged does not answer on this machine: {0}")]
    Daemon(String),
    /// No such user.
    #[error("munge: MRCUDA_MUNGE must name the user that servers run as; there is no user `{0}` here")]
    ServerUser(String),
    /// It was made too long ago.
    #[error("the munge credential has expired: the clocks of both machines must agree")]
    Expired,
    /// It was made in the future.
    #[error("the munge credential is of the future: the clocks of both machines must agree")]
    Rewound,
    /// It was decoded before.
    #[error("the munge credential was used before")]
    Replayed,
    /// It is for a process of another user.
    #[error("the munge credential is for a server of another user: MRCUDA_MUNGE must name the user that this server runs as")]
    Unauthorized,
    /// The server has not shown that it has decoded it.
    #[error("the server cannot read the munge credential: it is not the expected server")]
    NotRead,
    /// It is for another greeting.
    #[error("the munge credential is for another connection")]
    OtherConnection,
    /// A server cannot check it.
    #[error("munge at the server: {0}")]
    AtServer(String),
    /// Any other reason.
    #[error("munge: {0}")]
    Failed(String),
}
