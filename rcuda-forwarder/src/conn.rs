//! A connected socket, TCP or Unix, with deadlines; protected by TLS after a handshake. What follows a greeting may be carried by RDMA.

use crate::endpoint::Endpoint;
use crate::fork::NotInherited;
use crate::pipe::Spin;
use crate::rdma::stream::Stream;
use crate::records::{Records, Session};
use nix::cmsg_space;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, SockaddrStorage, UnixAddr,
    getpeername, getsockname, getsockopt, recv, recvmsg, send, sendmsg, setsockopt, shutdown, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Interval between retries while a listener's queue is full.
const QUEUE: Duration = Duration::from_millis(5);

/// Time limit for one sleep of a read without a limit.
const ONE_SLEEP: Duration = Duration::from_secs(60);

/// A connection. Reading and writing raise no SIGPIPE; two threads may do them concurrently.
#[derive(Debug)]
pub struct Conn {
    /// Must be dropped before the socket is closed, because the descriptor's number may then be reused.
    _not_inherited: Option<NotInherited>,
    fd: OwnedFd,
    /// The protection of everything that is written and read, once the handshake is complete.
    records: OnceLock<Records>,
    /// What carries everything instead of the socket, once it is set up. The socket's end is then the connection's.
    rdma: OnceLock<Stream>,
}

fn again<T>(mut call: impl FnMut() -> nix::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(nix::Error::EINTR) => {}
            r => return Ok(r?),
        }
    }
}

fn ip_address(name: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = name.as_sockaddr_in().map(|a| SocketAddr::V4((*a).into()));
    v4.or_else(|| name.as_sockaddr_in6().map(|a| SocketAddr::V6((*a).into())))
}

impl Conn {
    /// Creates a connection from a connected stream socket.
    pub(crate) fn new(fd: OwnedFd) -> Conn {
        Conn { _not_inherited: None, fd, records: OnceLock::new(), rdma: OnceLock::new() }
    }

    /// As [`Conn::new`], and forked children of this process do not keep the socket.
    pub(crate) fn apart(fd: OwnedFd) -> Conn {
        Conn { _not_inherited: NotInherited::note(fd.as_raw_fd()), ..Conn::new(fd) }
    }

    /// Creates a connection that another process has begun, from its socket and what it knows ([`Conn::session`]).
    pub(crate) fn handed_over(fd: OwnedFd, session: Option<Session>) -> io::Result<Conn> {
        let conn = Conn::new(fd);
        if let Some(session) = session {
            conn.protect(Records::new(session)?);
        }
        Ok(conn)
    }

    /// Protects everything that is written and read from now on.
    pub(crate) fn protect(&self, records: Records) {
        // A connection has one handshake.
        let _ = self.records.set(records);
    }

    /// Everything that is written and read from now on travels over RDMA, unprotected.
    pub(crate) fn carry_by(&self, stream: Stream) {
        // A connection has one setup.
        let _ = self.rdma.set(stream);
    }

    /// Whether RDMA carries everything.
    pub(crate) fn is_rdma(&self) -> bool {
        self.rdma.get().is_some()
    }

    /// Waits until what was written has left this process, for a limited time: the end of the process would discard it. A kernel keeps
    /// what was written to a socket.
    pub(crate) fn wait_written(&self, limit: Duration) {
        if let Some(stream) = self.rdma.get() {
            stream.wait_arrived(limit);
        }
    }

    /// What another process needs to use this connection: nothing if it is not protected. From then on only that process
    /// may use it: this one must not write any more. An error if the peer has sent something that was not read.
    pub(crate) fn session(&self) -> io::Result<Option<Session>> {
        let Some(records) = self.records.get() else { return Ok(None) };
        let early = || io::Error::new(io::ErrorKind::InvalidData, "it sent something before it was served");
        records.session().map(Some).ok_or_else(early)
    }

    /// Whether everything is encrypted.
    pub(crate) fn is_tls(&self) -> bool {
        self.records.get().is_some()
    }

    /// Connects to a server before `deadline`, at an address that `allowed` accepts; if there is none, the error is
    /// `PermissionDenied`. Forked children of this process do not keep the socket.
    pub(crate) fn open_if(to: &Endpoint, deadline: Instant, allowed: &dyn Fn(Address<'_>) -> bool) -> io::Result<Conn> {
        let fd = match to.unix_path() {
            Some(path) if !allowed(Address::Unix(Path::new(path))) => return Err(io::ErrorKind::PermissionDenied.into()),
            Some(path) => connect_unix(Path::new(path), deadline)?,
            None => connect(&to.host, to.port, deadline, allowed)?,
        };
        let conn = Conn::apart(fd);
        conn.tune()?;
        Ok(conn)
    }

    /// Sets the options of a TCP connection: data is sent without delay, and an idle connection to a machine that is
    /// gone is closed.
    pub(crate) fn tune(&self) -> io::Result<()> {
        if self.is_tcp() {
            setsockopt(&self.fd, sockopt::TcpNoDelay, &true)?;
            setsockopt(&self.fd, sockopt::KeepAlive, &true)?;
            setsockopt(&self.fd, sockopt::TcpKeepIdle, &5)?;
            setsockopt(&self.fd, sockopt::TcpKeepInterval, &5)?;
            setsockopt(&self.fd, sockopt::TcpKeepCount, &3)?;
        }
        Ok(())
    }

    /// Closes a TCP connection if the peer acknowledges no data for `limit`, whether it has ended or is stopped.
    pub(crate) fn limit_unacknowledged(&self, limit: Duration) -> io::Result<()> {
        if self.is_tcp() {
            let ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            setsockopt(&self.fd, sockopt::TcpUserTimeout, &ms)?;
        }
        Ok(())
    }

    /// Sets a limit for reads: after that time without data they fail with `WouldBlock`.
    pub(crate) fn limit_silence(&self, limit: Duration) -> io::Result<()> {
        Ok(setsockopt(&self.fd, sockopt::ReceiveTimeout, &TimeVal::seconds(limit.as_secs() as i64))?)
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.ip_peer().is_some()
    }

    /// Our IP address; mapped IPv4 addresses are converted to IPv4.
    pub(crate) fn ip_local(&self) -> Option<IpAddr> {
        let name = getsockname::<SockaddrStorage>(self.fd.as_raw_fd()).ok()?;
        ip_address(&name).map(|a| a.ip().to_canonical())
    }

    fn peer_name(&self) -> Option<SocketAddr> {
        ip_address(&getpeername::<SockaddrStorage>(self.fd.as_raw_fd()).ok()?)
    }

    /// The peer's IP address; mapped IPv4 addresses are converted to IPv4.
    pub(crate) fn ip_peer(&self) -> Option<IpAddr> {
        self.peer_name().map(|a| a.ip().to_canonical())
    }

    /// Waits for one of the events `wanted`, or until the peer has closed; empty on timeout.
    pub(crate) fn ready(&self, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags> {
        let is_carried = self.rdma.get().is_some();
        if wanted.contains(PollFlags::POLLIN) && !is_carried && self.records.get().is_some_and(Records::is_ready) {
            return Ok(PollFlags::POLLIN);
        }
        // The end of the socket is its own event.
        if let Some(stream) = self.rdma.get() {
            if wanted.contains(PollFlags::POLLIN) {
                let seen = stream.wait_readable(self.fd.as_fd(), limit)?;
                return Ok(if seen { PollFlags::POLLIN } else { PollFlags::empty() });
            }
            if wanted.contains(PollFlags::POLLOUT) {
                return Ok(if stream.has_room() { PollFlags::POLLOUT } else { PollFlags::empty() });
            }
        }
        let mut fds = [PollFd::new(self.fd.as_fd(), wanted)];
        // Rounded up: a remainder below a millisecond must not cause a busy loop.
        let ms = limit.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        again(|| poll(&mut fds, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)))?;
        // Bits without a name in the library, such as POLLRDHUP, mean that the peer has closed.
        Ok(fds[0].revents().unwrap_or(PollFlags::POLLERR))
    }

    /// Waits until the peer has closed its end or is gone; false on timeout.
    pub(crate) fn wait_gone(&self, limit: Duration) -> bool {
        let hung_up = PollFlags::from_bits_retain(libc::POLLRDHUP);
        !self.ready(hung_up, limit).is_ok_and(|seen| seen.is_empty())
    }

    /// Fills `to` before `deadline`.
    pub(crate) fn read_exact_by(&self, mut to: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !to.is_empty() {
            match self.try_read(to) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => to = &mut to[n..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() || self.ready(PollFlags::POLLIN, left)?.is_empty() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes several pieces in order.
    pub(crate) fn write_pieces(&self, pieces: &[&[u8]]) -> io::Result<()> {
        if let Some(stream) = self.rdma.get() {
            return stream.write(self.fd.as_fd(), pieces);
        }
        if let Some(records) = self.records.get() {
            return records.write(pieces, |bytes| self.send_all(bytes));
        }
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().filter(|p| !p.is_empty()).map(|p| IoSlice::new(p)).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            // The kernel accepts at most 1024 pieces at a time.
            let some = &rest[..rest.len().min(1024)];
            let n = again(|| sendmsg::<()>(self.fd.as_raw_fd(), some, &[], MsgFlags::MSG_NOSIGNAL, None))?;
            IoSlice::advance_slices(&mut rest, n);
        }
        Ok(())
    }

    fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = &bytes[again(|| send(self.fd.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL))?..];
        }
        Ok(())
    }

    /// Sends one or two descriptors with one byte, over a Unix socket.
    pub(crate) fn send_descriptors(&self, first: BorrowedFd<'_>, second: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let fds: Vec<RawFd> = std::iter::once(first).chain(second).map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        again(|| sendmsg::<()>(self.fd.as_raw_fd(), &[IoSlice::new(&[0])], &rights, MsgFlags::MSG_NOSIGNAL, None)).map(drop)
    }

    /// Receives the one or two descriptors that the peer sends before `deadline`.
    pub(crate) fn receive_descriptors(&self, deadline: Instant) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
        let left = deadline.saturating_duration_since(Instant::now());
        if self.ready(PollFlags::POLLIN, left)?.is_empty() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut byte = [0];
        let mut space = cmsg_space!([RawFd; 4]);
        let mut fds = Vec::new();
        let bytes = again(|| {
            let mut slices = [IoSliceMut::new(&mut byte)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
            let got = recvmsg::<()>(self.fd.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
            for c in got.cmsgs()? {
                if let ControlMessageOwned::ScmRights(list) = c {
                    // SAFETY: just received; nobody else owns them.
                    fds.extend(list.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
                }
            }
            Ok(got.bytes)
        })?;
        if bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it went away before it had sent its memory"));
        }
        let mut fds = fds.into_iter();
        match (fds.next(), fds.next(), fds.next()) {
            (Some(first), second, None) => Ok((first, second)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "one or two descriptors were expected")),
        }
    }

    /// Shuts down both directions: blocked reads and writes return, at both ends.
    pub(crate) fn shutdown(&self) {
        self.close_records();
        self.cut();
    }

    /// As [`Conn::shutdown`], without a message to the peer.
    pub(crate) fn cut(&self) {
        // A disconnected socket needs no shutdown.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both);
    }

    /// Tells the peer of a protected connection that this is its orderly end.
    fn close_records(&self) {
        if let Some(records) = self.records.get() {
            // If there is no room, or no peer, it learns of the end in another way.
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            records.close(|bytes| {
                let _ = send(self.fd.as_raw_fd(), bytes, flags);
            });
        }
    }

    /// Shuts down the receiving direction: reads return the end of the stream.
    pub(crate) fn shutdown_reading(&self) {
        // As in `shutdown`.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Read);
    }

    /// Closes a connection so that the peer receives the last message: unread input would make the kernel discard our
    /// output.
    pub(crate) fn part(&self, deadline: Instant) {
        self.close_records();
        // Errors are ignored, because the connection ends anyway.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Write);
        let mut unread = [0; 4096];
        for _ in 0..64 {
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.ready(PollFlags::POLLIN, left).is_ok_and(|seen| !seen.is_empty())
                || !again(|| recv(self.fd.as_raw_fd(), &mut unread, MsgFlags::MSG_DONTWAIT)).is_ok_and(|n| n > 0)
            {
                return;
            }
        }
    }

    /// Reads what is available; `WouldBlock` if there is nothing.
    pub(crate) fn try_read(&self, to: &mut [u8]) -> io::Result<usize> {
        self.receive(to, MsgFlags::MSG_DONTWAIT)
    }

    fn receive(&self, to: &mut [u8], flags: MsgFlags) -> io::Result<usize> {
        if let Some(stream) = self.rdma.get() {
            return loop {
                match stream.try_read(to) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock && !flags.contains(MsgFlags::MSG_DONTWAIT) => {
                        stream.wait_readable(self.fd.as_fd(), ONE_SLEEP)?;
                    }
                    read => break read,
                }
            };
        }
        let from_socket = |to: &mut [u8]| again(|| recv(self.fd.as_raw_fd(), to, flags));
        match self.records.get() {
            None => from_socket(to),
            Some(records) => records.read(to, from_socket),
        }
    }

    /// Describes the peer for logs, as far as the kernel knows it.
    pub(crate) fn peer(&self) -> String {
        if let Some(address) = self.peer_name() {
            return address.to_string();
        }
        match getsockopt(&self.fd, sockopt::PeerCredentials) {
            Ok(who) => format!("a Unix socket (user {}, process {})", who.uid(), who.pid()),
            Err(_) => "a Unix socket".to_owned(),
        }
    }

    /// The socket.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
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
fn connect_unix(path: &Path, deadline: Instant) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let to = UnixAddr::new(path)?;
    loop {
        match nix::sys::socket::connect(fd.as_raw_fd(), &to) {
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

impl Read for Conn {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        (&*self).read(to)
    }
}

impl Write for Conn {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&*self).write(from)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for &Conn {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.receive(to, MsgFlags::empty())
    }
}

/// A stream that can be polled for readability.
pub(crate) trait Ahead: Read {
    /// Whether a read would not block. The end of the stream counts as readable.
    fn is_ready(&self) -> bool;
}

/// Reads a connection; polls for a short time before it sleeps.
#[derive(Debug)]
pub(crate) struct Eager<'a> {
    conn: &'a Conn,
    spin: Spin,
}

impl<'a> Eager<'a> {
    pub(crate) fn new(conn: &'a Conn) -> Eager<'a> {
        Eager { conn, spin: Spin::firm() }
    }
}

impl Read for Eager<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let (conn, mut got) = (self.conn, None);
        self.spin.until(|| {
            got = Some(conn.try_read(to)).filter(|r| !matches!(r, Err(e) if e.kind() == io::ErrorKind::WouldBlock));
            got.is_some()
        });
        if let Some(got) = got {
            return got;
        }
        let began = Instant::now();
        let got = (&mut &*conn).read(to);
        self.spin.learn(began.elapsed());
        got
    }
}

impl Ahead for Eager<'_> {
    fn is_ready(&self) -> bool {
        // Errors are detected by reading.
        !self.conn.ready(PollFlags::POLLIN, Duration::ZERO).is_ok_and(|seen| seen.is_empty())
    }
}

impl Write for &Conn {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if let Some(stream) = self.rdma.get() {
            return stream.write(self.fd.as_fd(), &[from]).map(|()| from.len());
        }
        match self.records.get() {
            None => again(|| send(self.fd.as_raw_fd(), from, MsgFlags::MSG_NOSIGNAL)),
            Some(records) => records.write(&[from], |bytes| self.send_all(bytes)).map(|()| from.len()),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) fn pair() -> (Conn, Conn) {
    let (a, b) = UnixStream::pair().unwrap();
    (Conn::new(a.into()), Conn::new(b.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_hold_though_bytes_drip() {
        let (a, mut b) = pair();
        std::thread::spawn(move || {
            while b.write_all(&[1]).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let began = Instant::now();
        let e = a.read_exact_by(&mut [0; 100], began + Duration::from_millis(200)).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_millis(1500));
    }

    #[test]
    fn a_unix_socket_whose_queue_is_full_is_not_waited_for_longer_than_asked() {
        let path = std::env::temp_dir().join(format!("mrcuda-queue-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // SAFETY: an open socket; a shorter queue takes nothing away.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let to: Endpoint = format!("unix:{}", path.display()).parse().unwrap();
        let mut queued = Vec::new();
        let began = Instant::now();
        let why = loop {
            match Conn::open_if(&to, began + Duration::from_millis(300), &|_| true) {
                Ok(conn) => queued.push(conn),
                Err(e) => break e,
            }
            assert!(queued.len() < 10_000, "the queue has an end");
        };
        assert_eq!(why.kind(), io::ErrorKind::TimedOut);
        drop(listener.accept().unwrap());
        Conn::open_if(&to, Instant::now() + Duration::from_secs(20), &|_| true).unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_peer_that_goes_before_it_sends_its_descriptors_is_named_so() {
        let (a, b) = pair();
        drop(b);
        let why = a.receive_descriptors(Instant::now() + Duration::from_secs(5)).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::UnexpectedEof);
        assert!(why.to_string().contains("went away"), "{why}");
    }

    #[test]
    fn pieces_arrive_in_order_and_whole() {
        let (a, mut b) = pair();
        let big = vec![5u8; 3 << 20];
        let parts: Vec<&[u8]> = std::iter::once(&big[..]).chain((0..3000).map(|_| &b"xy"[..])).chain([&b""[..]]).collect();
        let want = parts.concat();
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            b.read_to_end(&mut got).unwrap();
            got
        });
        a.write_pieces(&parts).unwrap();
        drop(a);
        assert!(reader.join().unwrap() == want);
    }

    #[test]
    fn a_gone_peer_is_an_error_and_no_signal() {
        let (mut a, b) = pair();
        drop(b);
        assert!(a.write_all(&[0; 10]).is_err());
        assert_eq!(
            a.read_exact_by(&mut [0], Instant::now() + Duration::from_secs(5)).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
