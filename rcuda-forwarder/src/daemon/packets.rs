//! The connection between a daemon and the one that takes over from it: packets of text, some with descriptors. Both may be different builds, so
//! nothing else of the program appears in it (docs/formats.md, "Take-over").

use crate::socket::receive_with_descriptors;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Longest packet.
const LONGEST: usize = 4096;
/// Interval between two looks at whether there is room.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Processes that may wait to be accepted.
const QUEUE: i32 = 16;

/// What a packet says, and its descriptors.
pub(super) type Packet = (String, Vec<OwnedFd>);

/// Listens at a name that needs no file.
pub(super) fn listen(name: &[u8]) -> io::Result<OwnedFd> {
    let fd = socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    socket::bind(fd.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
    socket::listen(&fd, Backlog::new(QUEUE)?)?;
    Ok(fd)
}

/// One end of the connection.
#[derive(Debug)]
pub(super) struct Packets(OwnedFd);

impl Packets {
    pub(super) fn over(fd: OwnedFd) -> Packets {
        Packets(fd)
    }

    /// Connects to the daemon that listens at this name. It does not wait: the daemon accepts at once.
    pub(super) fn connect(name: &[u8]) -> io::Result<Packets> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        socket::connect(fd.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
        Ok(Packets(fd))
    }

    /// Sends a packet; fails if the other end has not read what was sent before.
    pub(super) fn send(&self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        loop {
            match sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(text.as_bytes())], control, flags, None) {
                Err(nix::Error::EINTR) => {}
                r => return Ok(r.map(drop)?),
            }
        }
    }

    /// As [`Packets::send`], but gives the other end some time to read.
    pub(super) fn send_within(&self, text: &str, limit: Duration) -> io::Result<()> {
        let until = Instant::now() + limit;
        loop {
            match self.send(text, &[]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
                r => return r,
            }
        }
    }

    /// The next packet; `TimedOut` if none comes within the time, `UnexpectedEof` at the end of the connection.
    pub(super) fn receive(&self, limit: Duration) -> io::Result<Packet> {
        let until = Instant::now() + limit;
        loop {
            // Rounded up: a remainder below a millisecond must not cause a busy loop.
            let left = until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Err(nix::Error::EINTR) => {}
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => match self.receive_now() {
                    // A reset is told once, before what was sent ahead of it, and its end.
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionReset) => {}
                    r => return r,
                },
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn receive_now(&self) -> io::Result<Packet> {
        let mut bytes = [0; LONGEST];
        let (n, flags, fds) = receive_with_descriptors(self.0.as_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT)?;
        let was_cut = flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
        match std::str::from_utf8(&bytes[..n]) {
            _ if n == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(text) if !was_cut => Ok((text.to_owned(), fds)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it has sent something else than a packet of a take-over")),
        }
    }

    /// Ends the connection, also for the other end and for a thread that receives.
    pub(super) fn close(&self) {
        // If the other end has closed it, no shutdown is needed.
        let _ = socket::shutdown(self.0.as_raw_fd(), socket::Shutdown::Both);
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::MOST_DESCRIPTORS;
    use crate::token::random;
    use std::io::{Read, Write};
    use std::os::fd::FromRawFd;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn packets_and_descriptors_arrive() {
        let name = random().unwrap();
        assert_eq!(Packets::connect(&name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = listen(&name).unwrap();
        assert_eq!(listen(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let a = Packets::connect(&name).unwrap();
        // SAFETY: just made by accept; nothing else owns it.
        let b = Packets::over(unsafe { OwnedFd::from_raw_fd(socket::accept(listener.as_raw_fd()).unwrap()) });
        let (mut reader, writer) = io::pipe().unwrap();
        a.send("with two", &[writer.as_fd(), writer.as_fd()]).unwrap();
        a.send("without", &[]).unwrap();
        drop(writer);
        let (text, fds) = b.receive(LONG).unwrap();
        assert_eq!((&*text, fds.len()), ("with two", 2));
        fds.into_iter().for_each(|fd| std::fs::File::from(fd).write_all(b"x").unwrap());
        let mut written = String::new();
        reader.read_to_string(&mut written).unwrap();
        assert_eq!(written, "xx");
        assert_eq!(b.receive(LONG).unwrap().0, "without");
        assert_eq!(b.receive(Duration::from_millis(1)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        a.send(&"x".repeat(LONGEST + 1), &[]).unwrap();
        assert_eq!(b.receive(LONG).unwrap_err().kind(), io::ErrorKind::InvalidData);
        // However many come along, they are this process' to close.
        let (mut reader, writer) = io::pipe().unwrap();
        a.send("with all", &vec![writer.as_fd(); MOST_DESCRIPTORS]).unwrap();
        a.send(&"x".repeat(LONGEST + 1), &[writer.as_fd(), writer.as_fd()]).unwrap();
        drop(writer);
        assert_eq!(b.receive(LONG).unwrap().1.len(), MOST_DESCRIPTORS);
        assert_eq!(b.receive(LONG).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        let refused = (0..1_000_000).find_map(|_| a.send("again", &[]).err());
        assert_eq!(refused.map(|e| e.kind()), Some(io::ErrorKind::WouldBlock), "nobody is held up");
        drop(a);
        assert!((0..1_000_000).any(|_| b.receive(LONG).is_err_and(|e| e.kind() == io::ErrorKind::UnexpectedEof)));
    }
}
