//! The sockets of a daemon: the loop that accepts connections; the file of its Unix socket, and its access check.

use super::log::{LogLine, RateLimitedLog};
use super::permitted::Permitted;
use crate::conn::Conn;
use crate::greet::GreetError;
use crate::socket::peer_user;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Pause after a failed accept (for example too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Passes on each connection of a listener that does not block, until `stop` is closed. `what` it cannot accept is for the log.
pub(super) fn accept_each(
    listener: BorrowedFd<'_>,
    stop: BorrowedFd<'_>,
    (refusals, what): (&Arc<RateLimitedLog>, &str),
    each: &mut dyn FnMut(OwnedFd),
) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::POLLIN), PollFd::new(stop, PollFlags::POLLIN)];
        let polled = poll(&mut fds, PollTimeout::NONE);
        if polled.is_ok() && fds[1].any() != Some(false) {
            return;
        }
        // Another process that has the socket may have been faster.
        match polled.and_then(|_| nix::sys::socket::accept4(listener.as_raw_fd(), nix::sys::socket::SockFlag::SOCK_CLOEXEC)) {
            // SAFETY: just made by accept4; nothing else owns it.
            Ok(fd) => each(unsafe { OwnedFd::from_raw_fd(fd) }),
            Err(nix::Error::EINTR | nix::Error::ECONNABORTED | nix::Error::EAGAIN) => {}
            Err(e) => {
                refusals.say(&LogLine::warning(format!("cannot accept {what}: {e}")));
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Who may connect to a Unix socket, as far as its file says: all, where users other than the server's and root are named. Which of them
/// are served is decided by what the kernel says of their processes.
pub(super) fn set_mode(path: &Path, has_others: bool) -> io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(if has_others { 0o666 } else { 0o600 }))
}

/// Binds a Unix socket; one that a dead daemon has left is replaced. Any other existing file is left alone.
pub(super) fn bind(path: &Path, has_others: bool) -> io::Result<(UnixListener, (u64, u64))> {
    // If two daemons start at once, one must not remove what the other has just bound: a lock serializes them.
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _turn = Flock::lock(File::open(directory)?, FlockArg::LockExclusive).map_err(|(_, e)| io::Error::from(e))?;
    let listener = match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(io::Error::other("there is a file of that name, and it is no socket"));
            }
            match UnixStream::connect(path) {
                Ok(_) => return Err(io::Error::other("another process listens there")),
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                Err(e) => return Err(e),
            }
            UnixListener::bind(path)?
        }
        r => r?,
    };
    set_mode(path, has_others)?;
    Ok((listener, identity(path)?))
}

/// The identity of a file, by which a replacement at the same path is detected: device and inode.
pub(super) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

/// The user of the peer of a Unix socket, if it is of those `named`; `None`: it is the server's user or root, who always may use it.
pub(super) fn permitted_user(conn: &Conn, named: Option<&Permitted>) -> Result<Option<u32>, GreetError> {
    let peer = peer_user(conn.socket().map_err(GreetError::Io)?).map_err(GreetError::Io)?;
    may_use(peer, nix::unistd::geteuid().as_raw(), named)
}

/// Whether the process at the other end of a Unix socket is of this process' user or of root.
pub(super) fn is_of_same_user(fd: &impl AsFd) -> io::Result<bool> {
    Ok(may_use(peer_user(fd.as_fd())?, nix::unistd::geteuid().as_raw(), None).is_ok())
}

fn may_use(peer: u32, own: u32, named: Option<&Permitted>) -> Result<Option<u32>, GreetError> {
    match named {
        _ if peer == own || peer == 0 => Ok(None),
        Some(named) if named.has(peer, own) => Ok(Some(peer)),
        Some(named) => Err(named.refusal(peer)),
        None => Err(GreetError::Refused(format!("this socket serves uid {own} only; you are uid {peer}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, socket};

    #[test]
    fn only_the_user_and_root() {
        assert!([7, 0].iter().all(|peer| matches!(may_use(*peer, 7, None), Ok(None))));
        assert_eq!(may_use(8, 7, None).unwrap_err().to_string(), "this socket serves uid 7 only; you are uid 8");
        let named = Permitted::find("--unix-users", &["4000001".parse().unwrap()]).unwrap();
        assert!([7, 0].iter().all(|peer| matches!(may_use(*peer, 7, Some(&named)), Ok(None))));
        assert!(matches!(may_use(4_000_001, 7, Some(&named)), Ok(Some(4_000_001))));
        let refused = may_use(4_000_002, 7, Some(&named)).unwrap_err().to_string();
        assert_eq!(refused, "uid 4000002 may not use this server (mrcuda serve --unix-users)");
    }

    #[test]
    fn of_daemons_that_start_at_once_one_has_the_socket() {
        let path = std::env::temp_dir().join(format!("mrcuda-at-once-{}", std::process::id()));
        for _ in 0..20 {
            // Left by a dead daemon. It does not listen: a process that another test has just forked may still have it.
            let _ = std::fs::remove_file(&path);
            let left = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
            nix::sys::socket::bind(left.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
            drop(left);
            let bound: Vec<_> = std::thread::scope(|s| {
                let all: Vec<_> = (0..4).map(|_| s.spawn(|| bind(&path, false).ok())).collect();
                all.into_iter().filter_map(|t| t.join().unwrap()).collect()
            });
            assert_eq!(bound.len(), 1);
            UnixStream::connect(&path).unwrap();
        }
        std::fs::remove_file(path).unwrap();
    }
}
