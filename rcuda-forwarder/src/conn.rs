//! A connection: a [`ByteStream`] and what carries bytes over it, with deadlines. It is protected by TLS after a handshake. What follows a
//! greeting may be carried by RDMA.

use crate::byte_stream::ByteStream;
use crate::carried::Carried;
use crate::carrier::{Carrier, ONE_SLEEP, Plain};
use crate::endpoint::Endpoint;
use crate::pipe::Spin;
use crate::rdma::stream::Stream;
use crate::records::{Records, Session};
use crate::socket::{self, Socket};
use nix::poll::PollFlags;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A connection. Reading and writing raise no SIGPIPE; two threads may do them concurrently.
#[derive(Debug)]
pub struct Conn {
    stream: Box<dyn ByteStream>,
    /// The protection of everything that is written and read, once the handshake is complete.
    records: OnceLock<Records>,
    /// What carries everything instead of the stream, once it is set up. The stream's end is then the connection's.
    rdma: OnceLock<Stream>,
}

impl Conn {
    /// Creates a connection over a stream.
    pub(crate) fn over(stream: impl ByteStream + 'static) -> Conn {
        Conn { stream: Box::new(stream), records: OnceLock::new(), rdma: OnceLock::new() }
    }

    /// Creates a connection from a connected stream socket.
    pub(crate) fn new(fd: OwnedFd) -> Conn {
        Conn::over(Socket::new(fd))
    }

    /// As [`Conn::new`], and forked children of this process do not keep the socket.
    pub(crate) fn apart(fd: OwnedFd) -> Conn {
        Conn::over(Socket::apart(fd))
    }

    /// Creates a connection that another process has begun, from its socket and what it knows ([`Conn::session`]).
    pub(crate) fn handed_over(fd: OwnedFd, session: Option<Session>) -> io::Result<Conn> {
        let conn = Conn::new(fd);
        if let Some(session) = session {
            conn.protect(Records::new(session)?);
        }
        Ok(conn)
    }

    /// Connects to a server before `deadline`. Forked children of this process do not keep the socket.
    pub(crate) fn open(to: &Endpoint, deadline: Instant) -> io::Result<Conn> {
        Conn::connected(Socket::connect(to, deadline, &|_| true)?)
    }

    /// Creates a connection to a server from its socket, which another process has connected.
    pub(crate) fn opened(fd: OwnedFd) -> io::Result<Conn> {
        Conn::connected(Socket::new(fd))
    }

    fn connected(socket: Socket) -> io::Result<Conn> {
        let conn = Conn::over(socket);
        conn.tune()?;
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

    /// What carries the bytes now.
    fn carrier(&self) -> &dyn Carrier {
        match (self.rdma.get(), self.records.get()) {
            (Some(rdma), _) => rdma,
            (None, Some(records)) => records,
            (None, None) => &Plain,
        }
    }

    /// Waits until what was written has left this process, for a limited time: the end of the process would discard it.
    pub(crate) fn wait_written(&self, limit: Duration) {
        self.carrier().wait_written(limit);
    }

    /// What another process needs to use this connection: nothing if it is not protected. From then on only that process
    /// may use it: this one must not write any more. An error if the peer has sent something that was not read.
    pub(crate) fn session(&self) -> io::Result<Option<Session>> {
        let Some(records) = self.records.get() else { return Ok(None) };
        let early = || io::Error::new(io::ErrorKind::InvalidData, "it sent something before it was served");
        records.session().map(Some).ok_or_else(early)
    }

    /// What another process needs to tell the peer why the connection ends: it can write, but not read.
    pub(crate) fn session_to_part(&self) -> Option<Session> {
        self.records.get().map(Records::session_to_part)
    }

    /// Whether everything is encrypted.
    #[cfg(test)]
    pub(crate) fn is_tls(&self) -> bool {
        self.records.get().is_some()
    }

    /// Sets the options of a TCP connection, see [`socket::tune`].
    pub(crate) fn tune(&self) -> io::Result<()> {
        if self.is_tcp() { socket::tune(self.socket()?) } else { Ok(()) }
    }

    /// Closes a TCP connection if the peer acknowledges no data for `limit`, whether it has ended or is stopped.
    pub(crate) fn limit_unacknowledged(&self, limit: Duration) -> io::Result<()> {
        if self.is_tcp() { socket::limit_unacknowledged(self.socket()?, limit) } else { Ok(()) }
    }

    /// As [`Conn::limit_unacknowledged`], also on a Unix socket: a write that the peer makes no room for fails after this time.
    pub(crate) fn limit_unread(&self, limit: Duration) -> io::Result<()> {
        self.limit_unacknowledged(limit)?;
        let limit = TimeVal::milliseconds(i64::try_from(limit.as_millis()).unwrap_or(i64::MAX));
        Ok(setsockopt(&self.socket()?, sockopt::SendTimeout, &limit)?)
    }

    /// Sets a limit for reads: after that time without data they fail with `WouldBlock`.
    pub(crate) fn limit_silence(&self, limit: Duration) -> io::Result<()> {
        self.rdma.get().into_iter().for_each(|rdma| rdma.limit_silence(limit));
        self.stream.limit_silence(limit)
    }

    /// The RDMA stream that carries it, if one does.
    pub(crate) fn rdma(&self) -> Option<&Stream> {
        self.rdma.get()
    }

    /// Waits until the peer has written so many bytes of the RDMA stream to other memory, however long it is silent.
    pub(crate) fn skip(&self, mut bytes: usize) -> io::Result<()> {
        let rdma = self.rdma().ok_or(io::ErrorKind::Unsupported)?;
        while bytes > 0 {
            match rdma.try_skip(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => bytes -= n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => drop(rdma.wait_readable(self.socket()?, ONE_SLEEP)?),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// How its bytes travel.
    pub(crate) fn carried(&self) -> Carried {
        match (self.rdma.get(), self.records.get()) {
            (Some(_), _) => Carried::RDMA,
            (None, Some(_)) => Carried::TLS,
            (None, None) if self.is_tcp() => Carried::TCP,
            (None, None) => Carried::UNIX,
        }
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.ip_peer().is_some()
    }

    /// Our IP address; mapped IPv4 addresses are converted to IPv4.
    pub(crate) fn ip_local(&self) -> Option<IpAddr> {
        socket::name(self.socket().ok()?).map(|a| a.ip().to_canonical())
    }

    /// The peer's IP address; mapped IPv4 addresses are converted to IPv4.
    pub(crate) fn ip_peer(&self) -> Option<IpAddr> {
        socket::peer_name(self.socket().ok()?).map(|a| a.ip().to_canonical())
    }

    /// The user of the process that has connected over a Unix socket, as the kernel knows it.
    pub(crate) fn unix_peer(&self) -> Option<u32> {
        socket::peer_user(self.socket().ok()?).ok()
    }

    /// Describes the peer for logs, as far as the kernel knows it.
    pub(crate) fn peer(&self) -> String {
        self.socket().map_or_else(|e| e.to_string(), socket::peer)
    }

    /// The socket; an error if the stream is none.
    pub(crate) fn socket(&self) -> io::Result<BorrowedFd<'_>> {
        self.stream.socket()
    }

    /// Whether a read needs nothing from the socket, so that a thread which sleeps there would not notice.
    pub(crate) fn has_read_ahead(&self) -> bool {
        self.carrier().has_read_ahead()
    }

    /// Waits for one of the events `wanted`, or until the peer has closed; empty on timeout.
    pub(crate) fn ready(&self, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags> {
        self.carrier().ready(&*self.stream, wanted, limit)
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

    /// Reads what is available; `WouldBlock` if there is nothing.
    pub(crate) fn try_read(&self, to: &mut [u8]) -> io::Result<usize> {
        self.carrier().read(&*self.stream, to, false)
    }

    /// Writes several pieces in order.
    pub(crate) fn write_pieces(&self, pieces: &[&[u8]]) -> io::Result<()> {
        self.carrier().write(&*self.stream, pieces)
    }

    /// Sends one or two descriptors with one byte, over a Unix socket.
    pub(crate) fn send_descriptors(&self, first: BorrowedFd<'_>, second: Option<BorrowedFd<'_>>) -> io::Result<()> {
        socket::send_descriptors(self.socket()?, first, second)
    }

    /// Receives the one or two descriptors that the peer sends before `deadline`.
    pub(crate) fn receive_descriptors(&self, deadline: Instant) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
        let left = deadline.saturating_duration_since(Instant::now());
        if self.ready(PollFlags::POLLIN, left)?.is_empty() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket::receive_descriptors(self.socket()?)
    }

    /// Shuts down both directions: blocked reads and writes return, at both ends.
    pub(crate) fn shutdown(&self) {
        self.close_records();
        self.cut();
    }

    /// As [`Conn::shutdown`], without a message to the peer.
    pub(crate) fn cut(&self) {
        // A disconnected stream needs no shutdown.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Tells the peer of a protected connection that this is its orderly end.
    fn close_records(&self) {
        if let Some(records) = self.records.get() {
            // If there is no room, or no peer, it learns of the end in another way.
            records.close(|bytes| drop(self.stream.send(&[IoSlice::new(bytes)], false)));
        }
    }

    /// Shuts down the receiving direction: reads return the end of the stream.
    pub(crate) fn shutdown_reading(&self) {
        // As in `cut`.
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    /// Closes a connection so that the peer receives the last message: unread input would make the kernel discard our
    /// output.
    pub(crate) fn part(&self, deadline: Instant) {
        self.close_records();
        // Errors are ignored, because the connection ends anyway.
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut unread = [0; 4096];
        for _ in 0..64 {
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.ready(PollFlags::POLLIN, left).is_ok_and(|seen| !seen.is_empty())
                || !Plain.read(&*self.stream, &mut unread, false).is_ok_and(|n| n > 0)
            {
                return;
            }
        }
    }
}

impl Read for &Conn {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.carrier().read(&*self.stream, to, true)
    }
}

impl Write for &Conn {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.carrier().write_some(&*self.stream, from)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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

/// A stream that can be polled for readability.
pub(crate) trait Ahead: Read + Send {
    /// Whether a read would not block. The end of the stream counts as readable.
    fn is_ready(&self) -> bool;
}

/// Reads a connection; polls for a short time before it sleeps.
#[derive(Debug)]
pub(crate) struct Eager {
    conn: Arc<Conn>,
    spin: Spin,
}

impl Eager {
    pub(crate) fn new(conn: Arc<Conn>) -> Eager {
        Eager { conn, spin: Spin::firm() }
    }
}

impl Read for Eager {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let (conn, mut got) = (&*self.conn, None);
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

impl Ahead for Eager {
    fn is_ready(&self) -> bool {
        // Errors are detected by reading.
        !self.conn.ready(PollFlags::POLLIN, Duration::ZERO).is_ok_and(|seen| seen.is_empty())
    }
}

#[cfg(test)]
pub(crate) fn pair() -> (Conn, Conn) {
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    (Conn::new(a.into()), Conn::new(b.into()))
}

/// As [`pair`], over TCP.
#[cfg(test)]
pub(crate) fn tcp_pair() -> (Conn, Conn) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Conn::new(listener.accept().unwrap().0.into()), Conn::new(client.into()))
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod network_tests;
#[cfg(test)]
mod tests;
