//! Connections over a fake network.

use super::Conn;
use crate::byte_stream::ByteStream;
use crate::records::{Records, Session, Traffic};
use fake_network::{End, Network};
use nix::poll::PollFlags;
use std::io::{self, ErrorKind, IoSlice};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::time::Duration;

impl ByteStream for End {
    fn receive(&self, to: &mut [u8], wait: bool) -> io::Result<usize> {
        End::receive(self, to, wait)
    }

    fn send(&self, pieces: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        End::send(self, pieces, wait)
    }

    fn poll(&self, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags> {
        let peer_closed = PollFlags::from_bits_retain(libc::POLLRDHUP);
        let seen = |events: &fake_network::Events| {
            let all =
                [(events.readable, PollFlags::POLLIN), (events.writable, PollFlags::POLLOUT), (events.peer_closed, peer_closed)];
            let some = all.into_iter().filter(|(is_so, flag)| *is_so && wanted.contains(*flag)).map(|(_, flag)| flag);
            // Nobody has to ask for this one.
            some.chain(events.hung_up.then_some(PollFlags::POLLHUP)).fold(PollFlags::empty(), |all, flag| all | flag)
        };
        End::poll(self, limit, |events| !seen(events).is_empty()).map(|events| seen(&events))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        End::shutdown(self, how);
        Ok(())
    }

    fn limit_silence(&self, limit: Duration) -> io::Result<()> {
        End::limit_silence(self, limit);
        Ok(())
    }

    fn socket(&self) -> io::Result<BorrowedFd<'_>> {
        Err(io::Error::new(ErrorKind::Unsupported, "a fake connection is no socket"))
    }
}

/// How the bytes of a fake connection travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Plain,
    Tls,
}

/// A connection over this network; it breaks before an end has sent `breaks` bytes.
pub(crate) fn connect(network: &mut Network, by: By, breaks: Option<u64>) -> (Conn, Conn) {
    let (a, b) = match breaks {
        Some(bytes) => network.connect_breaking(bytes),
        None => network.connect(),
    };
    let (a, b) = (Conn::over(a), Conn::over(b));
    if by == By::Tls {
        let traffic = |n| Traffic { secret: [n; 32], number: 0 };
        a.protect(Records::new(Session { read: traffic(1), write: traffic(2) }).unwrap());
        b.protect(Records::new(Session { read: traffic(2), write: traffic(1) }).unwrap());
    }
    (a, b)
}
