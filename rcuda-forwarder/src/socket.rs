//! Sockets, TCP or Unix: how they are connected, their options, and the descriptors that Unix sockets carry.

use crate::byte_stream::ByteStream;
use crate::endpoint::Endpoint;
use executor::fork::NotInherited;
use nix::cmsg_space;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    self, AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrStorage, UnixAddr,
    getpeername, getsockname, getsockopt, recv, recvmsg, sendmsg, setsockopt, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The most descriptors that the kernel passes in a message (`SCM_MAX_FD`).
pub(crate) const MOST_DESCRIPTORS: usize = 253;
/// Interval between retries while a listener's queue is full.
const QUEUE: Duration = Duration::from_millis(5);

/// A connected stream socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Must be dropped before the socket is closed, because the descriptor's number may then be reused.
    _not_inherited: Option<NotInherited>,
    fd: OwnedFd,
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd) -> Socket {
        Socket { _not_inherited: None, fd }
    }

    /// As [`Socket::new`], and forked children of this process do not keep it.
    pub(crate) fn apart(fd: OwnedFd) -> Socket {
        Socket { _not_inherited: NotInherited::note(fd.as_raw_fd()), fd }
    }

    /// Connects to a server before `deadline`, at an address that `allowed` accepts; if there is none, the error is
    /// `PermissionDenied`. Forked children of this process do not keep the socket.
    pub(crate) fn connect(to: &Endpoint, deadline: Instant, allowed: &dyn Fn(Address<'_>) -> bool) -> io::Result<Socket> {
        let fd = match to.unix_path() {
            Some(path) if !allowed(Address::Unix(Path::new(path))) => return Err(io::ErrorKind::PermissionDenied.into()),
            Some(path) => {
                let by_name = to.name_without_file().map(|name| UnixAddr::new_abstract(name.as_bytes()));
                connect_unix(&by_name.unwrap_or_else(|| UnixAddr::new(path))?, deadline)?
            }
            None => connect(&to.host, to.port, deadline, allowed)?,
        };
        Ok(Socket::apart(fd))
    }
}

fn again<T>(mut call: impl FnMut() -> nix::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(nix::Error::EINTR) => {}
            r => return Ok(r?),
        }
    }
}

impl ByteStream for Socket {
    fn receive(&self, to: &mut [u8], wait: bool) -> io::Result<usize> {
        let flags = if wait { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT };
        Ok(recv(self.fd.as_raw_fd(), to, flags)?)
    }

    fn send(&self, pieces: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        let flags = MsgFlags::MSG_NOSIGNAL | if wait { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT };
        let fd = self.fd.as_raw_fd();
        Ok(match pieces {
            [one] => socket::send(fd, one, flags),
            pieces => sendmsg::<()>(fd, pieces, &[], flags, None),
        }?)
    }

    fn poll(&self, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags> {
        let mut fds = [PollFd::new(self.fd.as_fd(), wanted)];
        // Rounded up: a remainder below a millisecond must not cause a busy loop.
        let ms = limit.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        poll(&mut fds, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX))?;
        // Bits without a name in the library, such as POLLRDHUP, mean that the peer has closed.
        Ok(fds[0].revents().unwrap_or(PollFlags::POLLERR))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => socket::Shutdown::Read,
            Shutdown::Write => socket::Shutdown::Write,
            Shutdown::Both => socket::Shutdown::Both,
        };
        Ok(socket::shutdown(self.fd.as_raw_fd(), how)?)
    }

    fn limit_silence(&self, limit: Duration) -> io::Result<()> {
        Ok(setsockopt(&self.fd, sockopt::ReceiveTimeout, &TimeVal::seconds(limit.as_secs() as i64))?)
    }

    fn socket(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.fd.as_fd())
    }
}

/// The user of the process that has connected to a Unix socket, as the kernel knows it.
pub(crate) fn peer_user(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(getsockopt(&fd, sockopt::PeerCredentials)?.uid())
}

/// Address of the other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Address<'a> {
    /// Over TCP.
    Ip(SocketAddr),
    /// To the Unix socket at this path.
    Unix(&'a Path),
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn connect(host: &str, port: u16, deadline: Instant, allowed: &dyn Fn(Address<'_>) -> bool) -> io::Result<OwnedFd> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        if !allowed(Address::Ip(address)) {
            last = io::ErrorKind::PermissionDenied.into();
            continue;
        }
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(s) => return Ok(s.into()),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Connects to a Unix socket. If the listener's queue is full, the kernel would wait without a limit.
fn connect_unix(to: &UnixAddr, deadline: Instant) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    loop {
        match socket::connect(fd.as_raw_fd(), to) {
            Ok(()) => break,
            Err(nix::Error::EAGAIN) => std::thread::sleep(left(deadline)?.min(QUEUE)),
            Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream.into())
}

fn ip_address(name: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = name.as_sockaddr_in().map(|a| SocketAddr::V4((*a).into()));
    v4.or_else(|| name.as_sockaddr_in6().map(|a| SocketAddr::V6((*a).into())))
}

/// The address of this end of a TCP connection.
pub(crate) fn name(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    ip_address(&getsockname::<SockaddrStorage>(fd.as_raw_fd()).ok()?)
}

/// The address of the other end of a TCP connection.
pub(crate) fn peer_name(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    ip_address(&getpeername::<SockaddrStorage>(fd.as_raw_fd()).ok()?)
}

/// Describes the peer for logs, as far as the kernel knows it.
pub(crate) fn peer(fd: BorrowedFd<'_>) -> String {
    if let Some(address) = peer_name(fd) {
        return address.to_string();
    }
    match getsockopt(&fd, sockopt::PeerCredentials) {
        Ok(who) => format!("a Unix socket (user {}, process {})", who.uid(), who.pid()),
        Err(_) => "a Unix socket".to_owned(),
    }
}

/// Sets the options of a TCP connection: data is sent without delay, and an idle connection to a machine that is gone
/// is closed.
pub(crate) fn tune(fd: BorrowedFd<'_>) -> io::Result<()> {
    setsockopt(&fd, sockopt::TcpNoDelay, &true)?;
    setsockopt(&fd, sockopt::KeepAlive, &true)?;
    setsockopt(&fd, sockopt::TcpKeepIdle, &5)?;
    setsockopt(&fd, sockopt::TcpKeepInterval, &5)?;
    Ok(setsockopt(&fd, sockopt::TcpKeepCount, &3)?)
}

/// Closes a TCP connection if the peer acknowledges no data for `limit`, whether it has ended or is stopped. If RDMA carries the
/// connection, that is the limit for data that the peer does not read.
pub(crate) fn limit_unacknowledged(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    let ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    Ok(setsockopt(&fd, sockopt::TcpUserTimeout, &ms)?)
}

/// The limit that [`limit_unacknowledged`] has set, if it has.
pub(crate) fn unacknowledged(fd: BorrowedFd<'_>) -> Option<Duration> {
    let ms = getsockopt(&fd, sockopt::TcpUserTimeout).ok()?;
    (ms > 0).then(|| Duration::from_millis(ms.into()))
}

/// Copies what has arrived, which can still be read: fewer bytes if there are not more, none at the end of the stream too.
pub(crate) fn peek(fd: BorrowedFd<'_>, to: &mut [u8]) -> io::Result<usize> {
    match again(|| recv(fd.as_raw_fd(), to, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
        r => r,
    }
}

/// Sends one or two descriptors with one byte, over a Unix socket.
pub(crate) fn send_descriptors(to: BorrowedFd<'_>, first: BorrowedFd<'_>, second: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let fds: Vec<RawFd> = std::iter::once(first).chain(second).map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    again(|| sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(&[0])], &rights, MsgFlags::MSG_NOSIGNAL, None)).map(drop)
}

/// Receives bytes or a message of a Unix socket: their number, the flags, and the descriptors with them. There is room for as
/// many as a message can have: of others, this process would keep the first ones, which nothing closes.
pub(crate) fn receive_with_descriptors(
    from: BorrowedFd<'_>,
    to: &mut [u8],
    flags: MsgFlags,
) -> io::Result<(usize, MsgFlags, Vec<OwnedFd>)> {
    let mut space = cmsg_space!([RawFd; MOST_DESCRIPTORS]);
    let mut fds = Vec::new();
    again(|| {
        let mut slices = [IoSliceMut::new(to)];
        let got = recvmsg::<()>(from.as_raw_fd(), &mut slices, Some(&mut space), flags | MsgFlags::MSG_CMSG_CLOEXEC)?;
        for c in got.cmsgs()? {
            if let ControlMessageOwned::ScmRights(list) = c {
                // SAFETY: just received; nothing else owns them.
                fds.extend(list.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        Ok((got.bytes, got.flags))
    })
    .map(|(bytes, flags)| (bytes, flags, fds))
}

/// Receives the one or two descriptors that have arrived.
pub(crate) fn receive_descriptors(from: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let mut byte = [0];
    let (bytes, _, fds) = receive_with_descriptors(from, &mut byte, MsgFlags::MSG_DONTWAIT)?;
    if bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it went away before it had sent its memory"));
    }
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next(), fds.next()) {
        (Some(first), second, None) => Ok((first, second)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "one or two descriptors were expected")),
    }
}
