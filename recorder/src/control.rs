//! The job's control socket, on which `mrcuda` and schedulers send requests, and the signal that starts a move
//! (docs/scheduler.md).
//!
//! Every connection has its own thread, so that a slow or silent client delays no other. Requests are answered from the state of
//! this process; a separate thread carries out moves ([`crate::moves`]).

use crate::base::config;
use crate::base::log::lock;
use crate::base::spawn::spawn;
use crate::calls::registry;
use crate::copies;
use crate::job::{self, Job};
use crate::move_error::MoveError;
use crate::mover;
use crate::moves;
use ::control::{Answer, Carried, Device, DeviceState, LONGEST_REQUEST, Migrate, Move, ReasonCode, Refusal, Request, directory};
use nix::sys::signal::Signal;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rcuda_forwarder::NotInherited;
use rcuda_forwarder::{LinkCounts, PlaceSpec, PlaceSpecError};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod signals;

pub(crate) use signals::in_forked_child;

/// Maximum number of open connections.
const CONNECTIONS: usize = 64;
/// How long a connection may be idle between requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a request, from its first byte to its last.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a client to read an answer.
const READING: Duration = Duration::from_secs(5);
/// Maximum number of connections that subscribe to events.
const LISTENERS: usize = 16;

static SOCKET: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Opens the control socket. A failure is reported, and the job continues without the socket.
pub(crate) fn start() {
    if let Err(e) = listen() {
        tracing::warn!(target: "job", "no control socket, so this job cannot be asked to move: {e}");
    }
    if let Err(e) = signals::watch_signal().and_then(|()| signals::watch_stop()) {
        tracing::warn!(target: "job", "cannot watch for the signal: {e}");
    }
}

/// Removes the control socket when the process ends.
pub(crate) fn stop() {
    if let Some(path) = lock(&SOCKET).take() {
        let _ = std::fs::remove_file(path);
    }
}

fn listen() -> io::Result<()> {
    let path = directory::make()?.join(std::process::id().to_string());
    if let Some(given) = std::env::var_os("XDG_RUNTIME_DIR").filter(|given| !given.is_empty() && !path.starts_with(given)) {
        let (given, path) = (given.display(), path.display());
        tracing::info!(target: "job", "XDG_RUNTIME_DIR={given} is no directory of this user here: the control socket is {path}");
    }
    // Killed jobs leave their sockets behind. Failing to remove one does no harm.
    directory::pids().into_iter().flatten().for_each(directory::remove_stale);
    // A file of this name belonged to a process that has ended, since process ids are unique at any one time. But the directory
    // may be shared with containers that have their own process ids.
    if UnixStream::connect(&path).is_ok() {
        return Err(io::Error::other(format!("another process listens at {}", path.display())));
    }
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    // If a child inherited the listener, clients could still connect after the job has ended.
    let not_inherited = NotInherited::note(listener.as_raw_fd());
    *lock(&SOCKET) = Some(path);
    spawn("mrcuda-control", move || {
        let _not_inherited = not_inherited;
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => admit(stream),
                // Out of descriptors or memory, which may be temporary.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    })
}

/// An open connection.
#[derive(Debug)]
struct Connection {
    /// Closes the socket in forked children: otherwise the client would not notice that the job has ended. Declared first because
    /// it must be dropped first.
    _not_inherited: Option<NotInherited>,
    stream: UnixStream,
    /// When the connection became idle; `None` while it waits for an answer or listens to events.
    idle_since: Mutex<Option<Instant>>,
}

impl Connection {
    /// Sends a final refusal and closes the connection; a client that does not read it misses it.
    fn dismiss(&self, why: &Refusal) {
        let _ = self.stream.set_nonblocking(true);
        let _ = (&self.stream).write_all(why.line().as_bytes());
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

static SUBSCRIBERS: AtomicUsize = AtomicUsize::new(0);
static OPEN: Mutex<Vec<Arc<Connection>>> = Mutex::new(Vec::new());

/// Starts a thread for a connection. If there are too many connections, closes the one that has been idle longest.
fn admit(stream: UnixStream) {
    let idle_since = Mutex::new(Some(Instant::now()));
    let connection = Arc::new(Connection { _not_inherited: NotInherited::note(stream.as_raw_fd()), stream, idle_since });
    if let Err(why) = check_peer(&connection.stream) {
        return connection.dismiss(&why);
    }
    let too_many = Refusal::new(ReasonCode::TooMany, format!("the job has {CONNECTIONS} connections: close some and try again"));
    {
        let mut open = lock(&OPEN);
        if open.len() >= CONNECTIONS {
            let idle = open.iter().enumerate().filter_map(|(i, connection)| Some((i, (*lock(&connection.idle_since))?)));
            let Some((longest, _)) = idle.min_by_key(|(_, since)| *since) else {
                drop(open);
                return connection.dismiss(&too_many);
            };
            open.swap_remove(longest).dismiss(&too_many);
        }
        open.push(connection.clone());
    }
    let theirs = connection.clone();
    let served = spawn("mrcuda-client", move || {
        // A failed connection has no client left to inform.
        let _ = serve(&theirs);
        leave(&theirs);
    });
    if served.is_err() {
        leave(&connection);
        connection.dismiss(&too_many);
    }
}

fn leave(connection: &Arc<Connection>) {
    lock(&OPEN).retain(|other| !Arc::ptr_eq(other, connection));
    let _ = connection.stream.shutdown(std::net::Shutdown::Both);
}

/// Only processes of this user and of root, which has all rights anyway, are served.
fn check_peer(stream: &UnixStream) -> Result<(), Refusal> {
    let refused = |why: String| Refusal::new(ReasonCode::Forbidden, why);
    let peer = getsockopt(stream, PeerCredentials).map_err(|e| refused(format!("cannot read the peer's credentials: {e}")))?;
    let me = nix::unistd::Uid::effective().as_raw();
    if peer.uid() != me && peer.uid() != 0 {
        return Err(refused(format!("this job belongs to user {me}, and you are user {}", peer.uid())));
    }
    Ok(())
}

/// Reads the requests of a connection, line by line.
struct Lines<'a> {
    stream: &'a UnixStream,
    /// Bytes that were read but not yet consumed.
    held: Vec<u8>,
}

impl Lines<'_> {
    /// The next line without its newline; `None` at the end of the connection.
    fn next(&mut self) -> io::Result<Option<Result<Vec<u8>, Refusal>>> {
        let mut searched = 0;
        let mut first_byte = (!self.held.is_empty()).then(Instant::now);
        loop {
            if let Some(at) = self.held[searched..].iter().position(|b| *b == b'\n') {
                let rest = self.held.split_off(searched + at + 1);
                let mut line = std::mem::replace(&mut self.held, rest);
                line.pop();
                return Ok(Some(Ok(line)));
            }
            searched = self.held.len();
            if searched >= LONGEST_REQUEST {
                let why = format!("a request has at most {LONGEST_REQUEST} bytes");
                return Ok(Some(Err(Refusal::new(ReasonCode::TooLong, why))));
            }
            let left = first_byte.map_or(IDLE_TIMEOUT, |since| REQUEST_TIMEOUT.saturating_sub(since.elapsed()));
            let mut piece = [0; 4096];
            match self.read(&mut piece, left) {
                Ok(0) if searched == 0 => return Ok(None),
                Ok(0) => return Ok(Some(Err(Refusal::new(ReasonCode::BadRequest, "a request ends with a newline")))),
                Ok(n) => self.held.extend_from_slice(&piece[..n]),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if first_byte.is_none() {
                        return Ok(None);
                    }
                    let why = format!("the request did not come to its end within {} s", REQUEST_TIMEOUT.as_secs());
                    return Ok(Some(Err(Refusal::new(ReasonCode::TooLong, why))));
                }
                Err(e) => return Err(e),
            }
            first_byte.get_or_insert_with(Instant::now);
        }
    }

    fn read(&self, to: &mut [u8], limit: Duration) -> io::Result<usize> {
        if limit.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(limit))?;
        loop {
            match (&mut &*self.stream).read(to) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

fn serve(connection: &Connection) -> io::Result<()> {
    let mut writer = &connection.stream;
    writer.set_write_timeout(Some(READING))?;
    let mut lines = Lines { stream: &connection.stream, held: Vec::new() };
    while let Some(line) = lines.next()? {
        *lock(&connection.idle_since) = None;
        let request = match line {
            Ok(line) => Request::read(&line),
            // The next bytes on this connection are not the beginning of a request.
            Err(why) => return writer.write_all(why.line().as_bytes()),
        };
        if request == Ok(Request::Subscribe {}) {
            let heard = SUBSCRIBERS.fetch_add(1, Ordering::AcqRel);
            let sent = if heard < LISTENERS {
                send_events(connection)
            } else {
                let why = format!("{LISTENERS} connections listen to this job's events already");
                writer.write_all(Refusal::new(ReasonCode::TooMany, why).line().as_bytes())
            };
            SUBSCRIBERS.fetch_sub(1, Ordering::AcqRel);
            return sent;
        }
        let answer = request.and_then(|request| {
            let job = job::opened().ok_or(MoveError::NoGpu)?;
            answer(job, request)
        });
        writer.write_all(answer.map_or_else(|why| why.line(), |a| a.line()).as_bytes())?;
        *lock(&connection.idle_since) = Some(Instant::now());
    }
    Ok(())
}

fn answer(job: &'static Job, request: Request) -> Result<Answer, Refusal> {
    Ok(match request {
        // Subscriptions are handled elsewhere.
        Request::List {} | Request::Subscribe {} => Answer::Job(list(job)),
        Request::Plan { to, gpu, allow_different } => Answer::Plan(mover::plan(job, gpu, &to, allow_different)?),
        Request::Migrate(wanted) => Answer::Move(carry_out(job, wanted)?),
        Request::Suspend(wanted) => {
            let wanted = wanted.or_to(&PlaceSpec::Memory.to_string());
            if !moves::targets(&wanted.to, job.devices.len())?.iter().all(PlaceSpec::is_store) {
                return Err(MoveError::BadPlace(PlaceSpecError::Executes(wanted.to)).into());
            }
            Answer::Move(carry_out(job, wanted)?)
        }
        Request::KeepCopy { every_ms: 0, .. } => {
            copies::end();
            Answer::Job(list(job))
        }
        Request::KeepCopy { to, every_ms, wait } => {
            let to = to.unwrap_or_else(|| PlaceSpec::Memory.to_string());
            if !moves::targets(&to, job.devices.len())?.iter().all(PlaceSpec::is_store) {
                return Err(MoveError::BadPlace(PlaceSpecError::Executes(to)).into());
            }
            Answer::Move(accepted(&copies::begin(job, &to, Duration::from_millis(every_ms))?, wait)?)
        }
        Request::Resume(wanted) => {
            // A move that is under way or queued may park it.
            if mover::parked::home().is_none() && moves::now() == (None, Vec::new()) {
                return Err(MoveError::NotParked.into());
            }
            let (wait, wanted) = (wanted.wait, wanted.or_to(""));
            Answer::Move(accepted(&moves::request_resume(job, wanted, mover::run)?, wait)?)
        }
        Request::Cancel { id } => Answer::Move(moves::cancel(id.as_deref())?),
        Request::Report { id: Some(id), wait: true } => Answer::Moves(vec![moves::wait_for(&id)?]),
        Request::Report { id, .. } => Answer::Moves(moves::report(id.as_deref())?),
    })
}

/// Accepts a move, and waits for its end if the client does.
fn carry_out(job: &'static Job, wanted: Migrate) -> Result<Move, MoveError> {
    let wait = wanted.wait;
    accepted(&moves::request(job, wanted, "request", mover::run)?, wait)
}

/// The report of a move that was accepted, at its end if the client waits for that.
fn accepted(id: &str, wait: bool) -> Result<Move, MoveError> {
    if wait { moves::wait_for(id) } else { Ok(moves::report(Some(id))?.remove(0)) }
}

/// Sends all events from now on to the client.
fn send_events(connection: &Connection) -> io::Result<()> {
    let mut writer = &connection.stream;
    let mut seen = moves::last_event();
    writer.write_all(Answer::Subscribed(seen).line().as_bytes())?;
    loop {
        for event in moves::events_after(seen, Duration::from_secs(1)) {
            writer.write_all(event.line().as_bytes())?;
            seen = event.seq;
        }
        if has_gone(&connection.stream)? {
            return Ok(());
        }
    }
}

/// Returns whether the client has closed the connection.
fn has_gone(stream: &UnixStream) -> io::Result<bool> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::from_bits_retain(libc::POLLRDHUP))];
    poll(&mut fds, PollTimeout::ZERO)?;
    Ok(fds[0].any() != Some(false))
}

fn list(job: &'static Job) -> ::control::Job {
    let (moving, queued) = moves::now();
    let config = config::get().ok();
    let is_parked = mover::parked::home().is_some();
    let devices = job.devices.iter().map(|d| {
        let at = d.whereabouts();
        let counts = at.counts();
        let figures = registry::figures(job, d);
        let is_moving = moving.as_ref().is_some_and(|(_, devices)| devices.contains(&d.index));
        Device {
            device: d.index,
            name: d.info.name.clone(),
            uuid: cuda_api::hex::hex(&d.info.uuid),
            capability: format!("{}.{}", d.info.capability[0], d.info.capability[1]),
            total_bytes: d.info.total_bytes,
            large_copies: at.large_copies(),
            place: at.place,
            transport: at.transport.to_owned(),
            since_unix_ms: at.since_unix_ms,
            link: counts.map(|LinkCounts { calls, bytes_sent, bytes_received }| Carried { calls, bytes_sent, bytes_received }),
            state: match (d.sticky(), is_moving) {
                (0, true) => DeviceState::Moving,
                (0, false) if is_parked => DeviceState::Parked,
                (0, false) => DeviceState::Running,
                _ => DeviceState::Failed,
            },
            used_bytes: figures.used_bytes,
            live: figures.live.iter().map(|(kind, n)| ((*kind).to_owned(), *n)).collect(),
            records: figures.records,
            journal_bytes: figures.journal_bytes,
            moves: d.epoch.load(Ordering::Relaxed) - 1,
            error: d.sticky(),
        }
    });
    ::control::Job {
        pid: std::process::id(),
        program: crate::base::program().display().to_string(),
        name: crate::base::job_name().to_owned(),
        signal: config
            .filter(|c| signals::is_watched(c.signal))
            .and_then(|c| Signal::try_from(c.signal).ok())
            .map(|s| s.as_str().to_owned()),
        on_signal: config.map(|c| c.on_signal.clone()).unwrap_or_default(),
        home: config.and_then(|c| c.home.as_ref()).map(PlaceSpec::to_string).unwrap_or_default(),
        policy: config.and_then(|c| c.policy.clone()).unwrap_or_default(),
        when_full: config.map(|c| c.when_full.iter().map(PlaceSpec::to_string).collect::<Vec<_>>().join(",")).unwrap_or_default(),
        copy: copies::now(),
        moving: moving.as_ref().map(|(id, _)| id.clone()),
        queued,
        devices: devices.collect(),
    }
}
