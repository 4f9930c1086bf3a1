//! The sockets at which a daemon listens, each with a thread that accepts connections. Accepting ends without a shutdown of the socket,
//! because another process may have it, too: a service manager, or the daemon that takes over.

use super::log::{LogLine, RateLimitedLog};
use super::socket::{accept_each, identity};
use crate::sync::lock;
use crate::threads;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::fmt;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What comes in at a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Clients over TCP.
    Tcp,
    /// Clients at the Unix socket.
    Unix,
    /// Those who read metrics.
    Metrics,
    /// Jobs of this machine that were invited over TCP.
    Local,
    /// A daemon that takes over.
    TakeOver,
}

impl Kind {
    /// Those that a daemon gives to the one that takes over.
    pub(super) const GIVEN: [Kind; 3] = [Kind::Tcp, Kind::Unix, Kind::Metrics];

    fn thread(self) -> &'static str {
        match self {
            Kind::Tcp => "accept-tcp",
            Kind::Unix => "accept-unix",
            Kind::Metrics => "accept-metrics",
            Kind::Local => "accept-local",
            Kind::TakeOver => "accept-daemon",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Kind::Metrics => "a connection for metrics",
            _ => "a connection",
        }
    }
}

/// Does something with each connection.
pub(super) type Each = Box<dyn FnMut(OwnedFd) + Send>;

struct Listener {
    kind: Kind,
    fd: Arc<OwnedFd>,
    state: State,
}

enum State {
    Closed(Each),
    /// The thread ends when the pipe is closed.
    Open(PipeWriter, JoinHandle<()>),
}

/// A Unix socket's path, with the identity of its file.
pub(super) type SocketFile = (PathBuf, (u64, u64));

/// All sockets of a daemon.
#[derive(Default)]
pub(super) struct Listeners {
    all: Mutex<Vec<Listener>>,
    /// The file of its Unix socket, if it removes it at its end.
    file: Mutex<Option<SocketFile>>,
    /// It has begun to accept. Before, the file is that of another daemon, from which it was to take over.
    has_opened: AtomicBool,
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(lock(&self.all).iter().map(|listener| listener.kind)).finish()
    }
}

impl Listeners {
    /// Adds a socket, at which nothing is accepted yet.
    pub(super) fn add(&self, kind: Kind, fd: OwnedFd, each: Each) -> io::Result<()> {
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        lock(&self.all).push(Listener { kind, fd: Arc::new(fd), state: State::Closed(each) });
        Ok(())
    }

    /// Has the file of the Unix socket removed at the end.
    pub(super) fn remove_at_end(&self, file: SocketFile) {
        *lock(&self.file) = Some(file);
    }

    /// Begins to accept at all sockets at which nothing is accepted yet.
    pub(super) fn open(&self, refusals: &Arc<RateLimitedLog>) -> io::Result<()> {
        self.has_opened.store(true, Ordering::SeqCst);
        let mut all = lock(&self.all);
        for listener in std::mem::take(&mut *all) {
            let Listener { kind, fd, state } = listener;
            let state = match state {
                State::Closed(mut each) => {
                    let (stop, end) = io::pipe()?;
                    let (fd, refusals) = (fd.clone(), refusals.clone());
                    let accept = move || accept_each(fd.as_fd(), stop.as_fd(), (&refusals, kind.what()), &mut *each);
                    State::Open(end, threads::spawn(kind.thread(), accept)?)
                }
                open @ State::Open(..) => open,
            };
            all.push(Listener { kind, fd, state });
        }
        Ok(())
    }

    /// Gives up the sockets of these kinds. What has connected and was not accepted stays in the socket, for another process that has it.
    pub(super) fn close(&self, kinds: &[Kind]) {
        let closed: Vec<Listener> = lock(&self.all).extract_if(.., |listener| kinds.contains(&listener.kind)).collect();
        for listener in closed {
            if let State::Open(end, thread) = listener.state {
                drop(end);
                // A panic there has been reported.
                let _ = thread.join();
            }
        }
    }

    /// Gives up all sockets, and removes the file.
    pub(super) fn end(&self) {
        self.close(&[Kind::Tcp, Kind::Unix, Kind::Metrics, Kind::Local, Kind::TakeOver]);
        if !self.has_opened.load(Ordering::SeqCst) {
            return;
        }
        // The file may have been removed or replaced already.
        if let Some((path, _)) = self.keep_file().filter(|(path, file)| identity(path).is_ok_and(|now| now == *file)) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Leaves the file of the Unix socket to another process. Returns it, unless this daemon would not have removed it.
    pub(super) fn keep_file(&self) -> Option<SocketFile> {
        lock(&self.file).take()
    }

    /// The socket of a kind.
    pub(super) fn socket(&self, kind: Kind) -> Option<Arc<OwnedFd>> {
        lock(&self.all).iter().find(|listener| listener.kind == kind).map(|listener| listener.fd.clone())
    }
}

/// The descriptor of what a service manager or another daemon has passed, as one at which a program listens.
pub(super) fn as_listener(fd: BorrowedFd<'_>) -> io::Result<()> {
    use nix::sys::socket::{SockType, getsockopt, sockopt};
    match (getsockopt(&fd, sockopt::SockType)?, getsockopt(&fd, sockopt::AcceptConn)?) {
        (SockType::Stream, true) => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no socket at which a server can accept connections")),
    }
}

/// The line for a socket that cannot be set up.
pub(super) fn cannot_be_taken_over(why: &io::Error) -> LogLine {
    LogLine::warning(format!("no other process can take over from this one (mrcuda serve --take-over): {why}"))
}
