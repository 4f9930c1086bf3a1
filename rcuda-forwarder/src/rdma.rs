//! Connections over RDMA: the greeting runs over TCP, and then the two ends exchange the parameters of a queue pair there, which carries
//! everything from then on (docs/formats.md, "RDMA"). The TCP connection stays open: its end is the end of the connection.
//!
//! The network card writes to the memory of the two processes without encryption, so both ends must have said that they want that: the
//! client with `rdma://`, the server with `--allow-plain`.

pub(crate) mod queue;
pub(crate) mod setup;
pub(crate) mod stream;
#[cfg(feature = "rdma")]
mod verbs;

/// Bytes of each ring of a connection that carries calls: they are short.
pub(crate) const CALL_RING: usize = 1 << 20;
/// Bytes of each ring of a data connection: one end fills it while the other empties it, each with a pause when its thread sleeps.
pub(crate) const DATA_RING: usize = 4 << 20;
