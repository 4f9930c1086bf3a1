//! What a connection lies on: a stream of bytes in both directions. A socket is one; in tests a fake network has others.

use nix::poll::PollFlags;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A stream of bytes. As system calls do, its operations may do less than was asked for, and be interrupted: a
/// [`crate::carrier::Carrier`] asks again. Two threads may receive and send concurrently.
pub(crate) trait ByteStream: Debug + Send + Sync {
    /// Receives some bytes; 0 at the end of the stream. `WouldBlock` if there are none and it may not wait, or has waited for
    /// the time of [`ByteStream::limit_silence`].
    fn receive(&self, to: &mut [u8], wait: bool) -> io::Result<usize>;

    /// Sends some of the bytes, in order; there is at least one. An end that is gone raises no signal.
    fn send(&self, pieces: &[IoSlice<'_>], wait: bool) -> io::Result<usize>;

    /// Waits for one of the events `wanted`, or until the peer has closed; empty on timeout.
    fn poll(&self, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags>;

    /// Shuts down directions: what waits in them returns.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// Sets a limit for waiting receives: after that time without data they fail with `WouldBlock`.
    fn limit_silence(&self, limit: Duration) -> io::Result<()>;

    /// The descriptor of a socket; an error if the stream is no socket.
    fn socket(&self) -> io::Result<BorrowedFd<'_>>;
}
