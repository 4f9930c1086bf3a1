//! Connections to sockets whose listeners may never accept them.

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Timeout for a connection that is only to show whether anybody listens.
const PROBING: Duration = Duration::from_millis(1);

/// The time that is left; an error if there is none.
pub(crate) fn left_until(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Connects to a socket, and gives up if nothing accepts the connection in time because its queue is full.
pub(crate) fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = UnixAddr::new(path)?;
    let stream = UnixStream::from(socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?);
    let until = Instant::now() + limit;
    loop {
        // The timeout for writing is that for connecting as well.
        stream.set_write_timeout(Some(left_until(until)?))?;
        match connect(stream.as_raw_fd(), &address) {
            Err(Errno::EINTR) => {}
            other => return other.map(|()| stream).map_err(io::Error::from),
        }
    }
}

/// Whether no process listens at a socket. A listener that accepts no connection yet counts as one that listens.
pub(crate) fn has_no_listener(socket: &Path) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    connect_within(socket, PROBING).is_err_and(|e| kinds.contains(&e.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_job_that_accepts_nothing_is_given_up() {
        let dir = std::env::temp_dir().join(format!("mrcuda-control-{}-full", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("1");
        let listener = UnixListener::bind(&path).unwrap();
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let (sender, failed) = std::sync::mpsc::channel();
        let full = path.clone();
        std::thread::spawn(move || {
            let mut waiting = Vec::new();
            let failed = loop {
                match connect_within(&full, Duration::from_millis(50)) {
                    Ok(stream) => waiting.push(stream),
                    Err(e) => break e,
                }
            };
            sender.send(failed).unwrap();
        });
        let failed = failed.recv_timeout(Duration::from_secs(60)).expect("no timeout");
        assert!(matches!(failed.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{failed}");
        assert!(has_no_listener(&dir.join("absent")) && !has_no_listener(&path));
        drop(listener);
        assert!(has_no_listener(&path));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
