//! Asks a server for its GPUs and jobs.

use crate::endpoint::Endpoint;
use crate::greet::Opening;
use crate::link::{Credentials, LinkError, TimeLimits, greeted, refused};
use crate::server_state::{ServerState, receive};
use std::time::Instant;

/// Asks a server for its state; the GPU in the endpoint does not matter. `credentials` as for [`crate::Link::connect`].
pub fn inspect(to: &Endpoint, credentials: Option<&Credentials>) -> Result<ServerState, LinkError> {
    let limits = TimeLimits::default();
    let (conn, _) = greeted(to, credentials, &|_| Opening::Inspect, &limits)?;
    receive(&conn, Instant::now() + limits.greeting).map_err(|why| refused(to, &why))
}
