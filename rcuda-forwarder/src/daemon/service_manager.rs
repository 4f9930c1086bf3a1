//! Sockets that a service manager (systemd) or another daemon has passed, and the message to the service manager that this process serves.

use super::listeners::as_listener;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::ffi::OsStr;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{self as unix, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};

/// The first descriptor that systemd passes.
const FIRST: RawFd = 3;
/// What the socket for metrics is called (`FileDescriptorName=`).
pub(super) const METRICS: &str = "metrics";
/// A socket whose file the daemon that passes it would have removed at its end.
pub(super) const WITH_FILE: &str = "with-file";

/// Sockets at which somebody else has begun to listen.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    tcp: Option<(OwnedFd, SocketAddr)>,
    unix: Option<(OwnedFd, PathBuf)>,
    metrics: Option<(OwnedFd, SocketAddr)>,
    removes_file: bool,
}

impl Sockets {
    /// Those that systemd has passed to this process. It must be asked once, before the process opens anything.
    pub(super) fn passed() -> io::Result<Sockets> {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
        if number("LISTEN_PID") != Some(std::process::id()) {
            return Ok(Sockets::default());
        }
        let n = RawFd::try_from(number("LISTEN_FDS").unwrap_or(0)).ok().filter(|n| *n <= 16);
        let n = n.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "LISTEN_FDS is too large"))?;
        // SAFETY: systemd has opened them for this process, which has not used them.
        let fds = (FIRST..FIRST + n).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect::<Vec<_>>();
        for fd in &fds {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        Sockets::named(names.split(':'), fds)
    }

    /// Sockets with their names, as far as they have any. What a socket is for follows from its address, except that for metrics.
    pub(super) fn named<'a>(names: impl Iterator<Item = &'a str>, fds: Vec<OwnedFd>) -> io::Result<Sockets> {
        let invalid = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let mut sockets = Sockets::default();
        for (fd, name) in fds.into_iter().zip(names.chain(std::iter::repeat(""))) {
            as_listener(fd.as_fd())?;
            let at = TcpListener::from(fd.try_clone()?).local_addr();
            let has_had_one = match at {
                Ok(at) if name == METRICS => sockets.metrics.replace((fd, at)).is_some(),
                Ok(at) => sockets.tcp.replace((fd, at)).is_some(),
                Err(_) => {
                    let at = UnixListener::from(fd.try_clone()?).local_addr()?;
                    let Some(path) = at.as_pathname().map(PathBuf::from) else {
                        return invalid("it is neither a TCP socket nor a Unix socket with a path");
                    };
                    sockets.removes_file = name == WITH_FILE;
                    sockets.unix.replace((fd, path)).is_some()
                }
            };
            if has_had_one {
                return invalid("at most one TCP socket, one Unix socket, and one TCP socket for metrics can be used");
            }
        }
        Ok(sockets)
    }

    /// Where clients connect over TCP.
    pub(super) fn listen(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|(_, at)| *at)
    }

    /// Where clients connect at a Unix socket.
    pub(super) fn unix(&self) -> Option<&PathBuf> {
        self.unix.as_ref().map(|(_, path)| path)
    }

    /// Where metrics are read.
    pub(super) fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, at)| *at)
    }

    /// Whether there are none for clients.
    pub(super) fn is_empty(&self) -> bool {
        self.tcp.is_none() && self.unix.is_none()
    }

    /// A socket for clients that a daemon which listens at these places does not use: the option that names its place, and its place.
    pub(super) fn beside(&self, listen: Option<SocketAddr>, unix: Option<&Path>) -> Option<(&'static str, String)> {
        let tcp = self.tcp.as_ref().filter(|(_, at)| listen != Some(*at)).map(|(_, at)| ("--listen", at.to_string()));
        let path = self.unix.as_ref().filter(|(_, at)| !unix.is_some_and(|path| is_same(path, at)));
        tcp.or_else(|| path.map(|(_, at)| ("--unix", at.display().to_string())))
    }

    /// The socket for clients at this address, if it is one of them.
    pub(super) fn take_tcp(&mut self, at: SocketAddr) -> Option<OwnedFd> {
        self.tcp.take_if(|(_, is_at)| *is_at == at).map(|(fd, _)| fd)
    }

    /// As [`Sockets::take_tcp`], for metrics.
    pub(super) fn take_metrics(&mut self, at: SocketAddr) -> Option<OwnedFd> {
        self.metrics.take_if(|(_, is_at)| *is_at == at).map(|(fd, _)| fd)
    }

    /// The Unix socket at this path, and whether its file is to be removed at the end.
    pub(super) fn take_unix(&mut self, path: &Path) -> Option<(OwnedFd, bool)> {
        self.unix.take_if(|(_, is_at)| is_same(path, is_at)).map(|(fd, _)| (fd, self.removes_file))
    }
}

/// Whether two paths lead to the same file.
fn is_same(a: &Path, b: &Path) -> bool {
    a == b || a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

/// Tells systemd, if it wants to know (`Type=notify`), that this process is the service's main one and serves.
pub(super) fn notify_ready() -> io::Result<()> {
    let Some(at) = std::env::var_os("NOTIFY_SOCKET").filter(|at| !at.is_empty()) else { return Ok(()) };
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(format!("READY=1\nMAINPID={}\n", std::process::id()).as_bytes(), &address(&at)?).map(drop)
}

/// A path, or behind `@` a name without a file.
fn address(at: &OsStr) -> io::Result<unix::SocketAddr> {
    match at.as_bytes().strip_prefix(b"@") {
        Some(name) => unix::SocketAddr::from_abstract_name(name),
        None => unix::SocketAddr::from_pathname(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_told_apart_by_their_addresses_and_names() {
        let tcp = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
        let path = std::env::temp_dir().join(format!("mrcuda-passed-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let unix = OwnedFd::from(UnixListener::bind(&path).unwrap());
        let mut sockets = Sockets::named(["a", WITH_FILE, METRICS].into_iter(), vec![tcp(), unix, tcp()]).unwrap();
        let (at, metrics) = (sockets.listen().unwrap(), sockets.metrics().unwrap());
        assert!(at != metrics && sockets.unix() == Some(&path) && !sockets.is_empty());
        // All that are for clients have to be used.
        let directory = path.parent().unwrap();
        let other_words = directory.join("..").join(directory.file_name().unwrap()).join(path.file_name().unwrap());
        assert_eq!(sockets.beside(Some(at), Some(&other_words)), None);
        assert_eq!(sockets.beside(Some(at), None), Some(("--unix", path.display().to_string())));
        for listen in [None, Some(metrics)] {
            assert_eq!(sockets.beside(listen, Some(&path)), Some(("--listen", at.to_string())));
        }
        assert!(sockets.take_tcp(metrics).is_none() && sockets.take_tcp(at).is_some() && sockets.take_tcp(at).is_none());
        assert!(sockets.take_unix(Path::new("/other")).is_none() && sockets.take_unix(&path).unwrap().1);
        assert!(sockets.take_metrics(metrics).is_some() && sockets.is_empty());
        std::fs::remove_file(path).unwrap();
        // Two for the same purpose, what is not listened at, and what is no socket.
        assert!(Sockets::named([].into_iter(), vec![tcp(), tcp()]).is_err());
        let connected = std::os::unix::net::UnixStream::pair().unwrap().0;
        assert!(Sockets::named([].into_iter(), vec![connected.into()]).is_err());
        assert!(Sockets::named([].into_iter(), vec![std::fs::File::open("/dev/null").unwrap().into()]).is_err());
        assert!(Sockets::named([].into_iter(), Vec::new()).unwrap().is_empty());
    }

    #[test]
    fn a_service_manager_is_found_by_a_path_or_a_name() {
        assert_eq!(address(OsStr::new("/run/x")).unwrap().as_pathname().unwrap().to_str(), Some("/run/x"));
        assert_eq!(address(OsStr::new("@x")).unwrap().as_abstract_name(), Some(&b"x"[..]));
    }
}
