//! What a daemon is to tell of itself, and where.

use std::net::SocketAddr;

/// Where a daemon serves metrics, and what it tells there to everybody who can connect.
#[derive(Debug, Clone)]
pub struct MetricsOptions {
    /// The address of HTTP; port 0 selects a free one.
    pub at: SocketAddr,
    /// Also each job, with its name, user and host.
    pub jobs: bool,
    /// The version of the program, and the commit that it was built from.
    pub version: String,
    /// See above.
    pub commit: String,
}
