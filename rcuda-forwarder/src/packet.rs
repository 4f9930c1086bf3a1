//! Packets with descriptors over a socket pair, by which processes of a server talk to each other.

use crate::socket::receive_with_descriptors;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    self, AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, getsockopt, recv, sendmsg, setsockopt, socketpair, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// How long a packet waits for a peer that reads nothing.
const UNREAD: Duration = Duration::from_secs(5);
/// Maximum length of a packet.
const LONGEST: usize = 128 << 10;

/// What a packet contains, and its descriptors.
pub(crate) type Packet = (Vec<u8>, Vec<OwnedFd>);

/// Creates both ends, closed on exec.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    // The other end reads its packets at once; a process that was stopped or taken over must not hold up the daemon.
    setsockopt(&a, sockopt::SendTimeout, &TimeVal::seconds(UNREAD.as_secs() as i64))?;
    Ok((a, b))
}

/// The end that a process has as its standard input, which is replaced by an empty one.
pub(crate) fn from_stdin() -> io::Result<OwnedFd> {
    let stdin = io::stdin();
    let ours = stdin.as_fd().try_clone_to_owned()?;
    if !matches!(getsockopt(&ours, sockopt::SockType), Ok(SockType::SeqPacket)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "workers, helpers and greeters are started by mrcuda only"));
    }
    let null = std::fs::File::open("/dev/null")?;
    // SAFETY: both descriptors are open; standard input belongs to this process as a whole and is replaced at its start.
    if unsafe { libc::dup2(null.as_raw_fd(), stdin.as_raw_fd()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ours)
}

/// Sends a packet. Fails if the other end reads nothing for some time, or, with `MSG_DONTWAIT`, if it has not read what was sent before.
pub(crate) fn send(to: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: MsgFlags) -> io::Result<()> {
    let (to, flags) = (to.as_raw_fd(), MsgFlags::MSG_NOSIGNAL | flags);
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    loop {
        let sent = if fds.is_empty() {
            // A process that may pass on no descriptor cannot use the other call.
            socket::send(to, bytes, flags)
        } else {
            sendmsg::<()>(to, &[IoSlice::new(bytes)], &[ControlMessage::ScmRights(&fds)], flags, None)
        };
        match sent {
            Err(nix::Error::EINTR) => {}
            r => return Ok(r.map(drop)?),
        }
    }
}

/// Waits until a packet, or the end, can be read; `TimedOut` if that takes longer than until `deadline`.
pub(crate) fn wait(from: &OwnedFd, deadline: Instant) -> io::Result<()> {
    wait_for(from, PollFlags::POLLIN, deadline)
}

/// Waits until there is room for a packet, or the other end is closed; `TimedOut` if that takes longer than until `deadline`.
pub(crate) fn wait_for_room(to: &OwnedFd, deadline: Instant) -> io::Result<()> {
    wait_for(to, PollFlags::POLLOUT, deadline)
}

fn wait_for(fd: &OwnedFd, what: PollFlags, deadline: Instant) -> io::Result<()> {
    // Rounded up: a remainder below a millisecond must not cause a busy loop.
    let left = deadline.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
    let mut fds = [PollFd::new(fd.as_fd(), what)];
    let limit = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    loop {
        match poll(&mut fds, limit) {
            Err(nix::Error::EINTR) => {}
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// The next packet, with `most` descriptors at most; `None` if the other end is closed. One thread receives at a time.
pub(crate) fn receive(from: &OwnedFd, most: usize) -> io::Result<Option<Packet>> {
    let Some(length) = next_length(from)? else { return Ok(None) };
    let mut bytes = vec![0; length.min(LONGEST)];
    let (n, flags, fds) = receive_with_descriptors(from.as_fd(), &mut bytes, MsgFlags::empty())?;
    if n != length || flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) || fds.len() > most {
        return Err(invalid("a message between processes of the server was cut"));
    }
    Ok(Some((bytes, fds)))
}

/// The next packet, which has no descriptors: those that were sent with it are closed. `None` if the other end is closed. By a call that cannot
/// receive any, so a process may use it on sockets by which it is to get none. One thread receives at a time.
pub(crate) fn receive_plain(from: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let Some(length) = next_length(from)? else { return Ok(None) };
    let mut bytes = vec![0; length.min(LONGEST)];
    loop {
        match recv(from.as_raw_fd(), &mut bytes, MsgFlags::MSG_TRUNC) {
            Err(nix::Error::EINTR) => {}
            Ok(n) if n != length || n > LONGEST => return Err(invalid("a message between processes of the server was cut")),
            r => return Ok(r.map(|_| Some(bytes))?),
        }
    }
}

/// Waits for the next packet, and says how long it is; `None` if the other end is closed.
fn next_length(from: &OwnedFd) -> io::Result<Option<usize>> {
    loop {
        match recv(from.as_raw_fd(), &mut [], MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC) {
            Err(nix::Error::EINTR) => {}
            Ok(0) | Err(nix::Error::ECONNRESET) => return Ok(None),
            r => return Ok(Some(r?)),
        }
    }
}

/// The error of a packet that is not what it should be.
pub(crate) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
