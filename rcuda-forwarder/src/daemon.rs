//! The daemon: authenticates clients and hands each to a worker process.
//!
//! It never uses a GPU and never sees a call: after the greeting, the worker takes over the client's socket, with the
//! keys of its TLS connection. The server's private key never leaves this process, and what comes before a client has proved who it is
//! is spoken by another one, which has no privileges ([`crate::greeter`]).
//!
//! # Take-over
//!
//! A daemon can take over the listening sockets of another one of its user, which then stays until its jobs have left. Whatever has to do with
//! those jobs and arrives at the sockets is a data connection, whose client says by which ticket ([`crate::greet::Route`]) before anything
//! else: one that the new daemon does not know is passed on to the former one, unread, so both may be different builds.

use crate::carried::Carried;
use crate::certificate::Certificate;
use crate::channel::{Message, OPENING, StartReader};
use crate::config_file;
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::greet::{self, GreetError, Greeted, Heard, JobHello, Locality, Offer, Opening, Route, Shown};
use crate::handshake::{HandshakeError, ServerTls};
use crate::limits::{JOB_UNACKNOWLEDGED, Limits};
use crate::link::BULK_UNACKNOWLEDGED;
use crate::local_socket::LocalSocket;
use crate::rlimit::raise_descriptors;
use crate::secret::Secret;
use crate::sync::lock;
use crate::targets::Targets;
use crate::threads;
use crate::token::{Token, random};
use crate::user::User;
use crate::user_tokens::TokensFile;
use accepted_tokens::AcceptedTokens;
use accounting::Accounting;
use admission::{AT_TCP, Budget, Door, Greeting, Source};
use client::Client;
use closed::Closing;
use cluster_users::ClusterUsers;
use counters::Wish;
use cuda_api::clock::unix_ms;
use diagnostics::{Format, Program};
use earlier::Earlier;
use faults::Point;
use greeters::Greeters;
use line::Lines;
use listeners::{Each, Kind, Listeners, cannot_be_taken_over};
use log::{Log, LogLine, RateLimitedLog};
use nix::sys::signal::{SigSet, Signal};
use nvml::{Nvml, Pace};
use pool::{Permissions, Pool, Profile};
use request_seats::Requests;
use retirement::Retirement;
use selection::VISIBLE;
use service_manager::Sockets;
use setup::Setup;
use socket::{bind, identity, permitted_user, set_mode};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickets::Tickets;
use warming::Warming;
use worker_users::ClientUsers;

mod accepted_tokens;
mod accounting;
mod admission;
mod asker;
mod cgroups;
mod client;
mod closed;
mod closing;
mod cluster_users;
mod counters;
mod drain;
mod earlier;
mod ending;
mod env;
mod error;
mod events;
mod evicted;
mod eviction;
mod gpu_users;
mod greeters;
mod inspect;
mod leavers;
mod leaving;
mod line;
mod listeners;
mod log;
mod metrics;
mod metrics_options;
mod moving;
mod nvml;
mod options;
mod outgoing;
mod packets;
mod permitted;
mod pool;
mod privileges;
mod process;
mod rate;
mod request_seats;
mod requested;
mod requests;
mod retirement;
mod seats;
mod selection;
mod service_manager;
mod setup;
mod socket;
mod stays;
mod successor;
mod take_over;
mod tickets;
mod turn;
mod users;
mod warming;
mod worker_command;
mod worker_end;
mod worker_users;

pub use cluster_users::MungeOptions;
pub use drain::Drain;
pub use error::ServeError;
use error::{AssignError, WelcomeError};
pub use gpu_users::GpuUsers;
pub use metrics::MetricsServer;
pub use metrics_options::MetricsOptions;
pub use nvml::NoReadings;
pub use options::ServeOptions;
use permitted::Permitted;
pub use permitted::{UserSpec, UserSpecError};
pub use selection::{GpuName, SharedGpus, SharedGpusError};
pub use worker_users::{WorkerUserSpec, WorkerUserSpecError};

/// Time limit for a client's greeting.
const GREETING: Duration = Duration::from_secs(5);
/// Connections that may be greeting concurrently over the Unix socket.
const AT_UNIX: Budget = Budget { all: 64, of_one: 64 };
/// Maximum number of dropped connections that are being notified concurrently.
const PARTING_AT_ONCE: usize = 64;

/// State shared by all threads of the daemon.
#[derive(Debug)]
struct State {
    /// Since when it serves.
    since_unix_ms: u64,
    /// The tokens of clients over TCP, if it listens there.
    tokens: Option<AcceptedTokens>,
    /// Clients of its cluster, which need no token.
    cluster: Option<ClusterUsers>,
    /// Users of its machine besides its own and root, who may use its Unix socket.
    unix_users: Option<Permitted>,
    /// The users that workers run as, if each is that of its job.
    client_users: Option<ClientUsers>,
    tls: Option<Arc<ServerTls>>,
    /// Who greets clients over TCP; `None`: this process itself.
    greeters: Option<Greeters>,
    /// The same for clients at Unix sockets: whoever takes over the process that the network reaches has none of their connections.
    local_greeters: Option<Greeters>,
    allow_plain: bool,
    /// Where jobs on this machine that come over TCP are invited to.
    local_socket: Option<LocalSocket>,
    pool: Pool,
    /// What its GPUs measure.
    nvml: Nvml,
    tickets: Tickets,
    parting: AtomicUsize,
    /// What clients ask for that need no worker.
    requests: Requests,
    /// Jobs that wait for a turn.
    lines: Lines,
    /// The starts of workers that are to be kept warm.
    warming: Warming,
    stopping: AtomicBool,
    /// It takes no new jobs, and waits until those that it serves have left.
    draining: AtomicBool,
    /// The same, because an administrator has asked for it; it does not end.
    closing: Closing,
    /// The daemon that this one has taken over from.
    earlier: Option<Arc<Earlier>>,
    /// Whether another one has taken over from this one.
    retirement: Retirement,
    log: Log,
    /// Log of refusals, rate-limited because anyone can cause them.
    refusals: Arc<RateLimitedLog>,
    /// Log of what happens to the memory of stopped jobs, likewise.
    evictions: Arc<RateLimitedLog>,
}

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    state: Arc<State>,
    /// The TCP address that it listens on.
    pub(crate) address: Option<SocketAddr>,
    /// The fingerprint of its certificate.
    fingerprint: Option<String>,
    /// The Unix socket's path.
    unix: Option<PathBuf>,
    listeners: Arc<Listeners>,
    /// The worker that was started first for each GPU, by the GPU's number.
    first: Vec<Result<Arc<pool::Worker>, AssignError>>,
}

/// The server's certificate; without a file of the user's choice, one that is made at the first start.
fn certificate(o: &ServeOptions) -> Result<Certificate, ServeError> {
    Ok(match &o.certificate {
        Some(file) => Certificate::load(file)?,
        None => Certificate::load_or_create(&config_file::parent(&o.token).join("server.pem"))?,
    })
}

/// The tokens that the server accepts: its own, which is made at its first start, and those of its users.
fn accepted_tokens(o: &ServeOptions, log: Log) -> Result<AcceptedTokens, ServeError> {
    let file = o.tokens.clone().map_or_else(|| TokensFile::beside(&o.token), TokensFile::new);
    Ok(AcceptedTokens::open(Token::load_or_create(&o.token)?, file, log)?)
}

/// How lines are written.
fn log_in(format: Format) -> Log {
    match format {
        Format::Text => LogLine::write_text,
        Format::Json => LogLine::write_fields,
    }
}

/// Has a panic of a thread be a line of the log, too.
fn log_panics() {
    std::panic::set_hook(Box::new(|what| tracing::error!(target: "serve", "{what}")));
}

/// Serves until SIGTERM or SIGINT. Workers end with it; on SIGTERM their jobs are asked to move away before, if the options say where
/// to, and a second signal ends them at once.
///
/// SIGUSR2 has it start another process of its program, which takes over.
pub fn serve(mut o: ServeOptions) -> Result<(), ServeError> {
    // First: the descriptors have numbers that are given to whatever is opened next.
    let mut sockets = Sockets::passed().map_err(ServeError::Passed)?;
    diagnostics::start(Program::Server(o.log_format));
    let log = log_in(o.log_format);
    if o.log_format == Format::Json {
        log_panics();
    }
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGUSR2);
    // Before any thread starts, so that all of them leave these signals to this one.
    signals.thread_block().map_err(|e| ServeError::Start(e.into()))?;
    raise_descriptors();
    let mut setup = Setup::of(&o, log)?;
    let gpus = selection::select(&setup.command, &o.driver, &o.gpus)?;
    o.drain.iter().try_for_each(|drain| drain.check(gpus.len()))?;
    setup.command.variables.push((VISIBLE, gpus.join(",").into()));
    let gpus = (0u32..).take(gpus.len()).collect();
    use_sockets(&mut o, &mut sockets)?;
    let mut daemon = Daemon::start(&o, gpus, setup, sockets, log)?;
    // Waiting for workers must not delay the end of the daemon, so another thread does it.
    let failed = Arc::new(Mutex::new(None));
    let (state, listeners, first) = (daemon.state.clone(), daemon.listeners.clone(), std::mem::take(&mut daemon.first));
    let (theirs, announce, words) = (failed.clone(), o.announce, daemon.describe(&o));
    let begin = move || {
        wait_for_first_workers(&state, &first)?;
        if let Some(earlier) = &state.earlier {
            // Not before it can serve: until then the other one does.
            earlier.retire().map_err(ServeError::TakeOver)?;
            state.open(&listeners)?;
        }
        if let Err(e) = service_manager::notify_ready() {
            (state.log)(&LogLine::warning(format!("cannot tell the service manager that this server is ready: {e}")));
        }
        Ok(())
    };
    let opened = move || match begin() {
        Ok(()) => announce(&words),
        Err(why) => {
            *lock(&theirs) = Some(why);
            // Blocked in all threads, so the wait below receives it.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), Signal::SIGTERM);
        }
    };
    threads::spawn("first", opened).map_err(ServeError::Start)?;
    let state = daemon.state.clone();
    let retired = move || {
        while !state.retirement.wait_over(Duration::from_secs(3600)) {}
        // As above: its jobs have left.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), Signal::SIGTERM);
    };
    threads::spawn("retired", retired).map_err(ServeError::Start)?;
    let signal = successor::wait_for_end(&signals, log)?;
    if let Some(why) = lock(&failed).take() {
        daemon.stop();
        return Err(why);
    }
    let drained = match o.drain.as_ref().filter(|_| signal == Signal::SIGTERM) {
        Some(drain) => {
            let at_once = Arc::new(AtomicBool::new(false));
            let second = at_once.clone();
            let wait = move || second.store(successor::wait_for_end(&signals, log).is_ok(), Ordering::SeqCst);
            threads::spawn("signal", wait).map_err(ServeError::Start).and_then(|_| daemon.drain(drain, &at_once))
        }
        None => {
            daemon.name_jobs();
            Ok(())
        }
    };
    daemon.stop();
    drained
}

/// Has the options say what the sockets that others have passed say, and asks another daemon for its sockets.
fn use_sockets(o: &mut ServeOptions, sockets: &mut Sockets) -> Result<(), ServeError> {
    if !sockets.is_empty() {
        if o.take_over {
            return Err(ServeError::PassedAndTaken);
        }
        (o.listen, o.unix) = (sockets.listen(), sockets.unix().cloned());
    }
    match (&mut o.metrics, sockets.metrics()) {
        (Some(metrics), Some(at)) => metrics.at = at,
        (None, Some(_)) => return Err(ServeError::PassedMetrics),
        (_, None) => {}
    }
    Ok(())
}

/// Waits until the first worker of each GPU has opened it. One usable GPU is enough to serve; the log names the others.
fn wait_for_first_workers(state: &State, first: &[Result<Arc<pool::Worker>, AssignError>]) -> Result<(), ServeError> {
    let until = Instant::now() + OPENING;
    let failure = |worker: &Result<Arc<pool::Worker>, AssignError>| match worker {
        // A client may have taken it and left in the meantime.
        Ok(worker) => worker.wait_ready(until).err().filter(|_| !worker.has_opened()).map(|why| why.to_string()),
        Err(why) => Some(why.to_string()),
    };
    let failed: Vec<(u32, String)> =
        (0..).zip(first).filter_map(|(gpu, w)| failure(w).map(|why| (gpu, format!("GPU {gpu}: {why}")))).collect();
    if failed.len() == first.len() {
        let reasons: Vec<String> = failed.into_iter().map(|(_, why)| why).collect();
        return Err(ServeError::NoWorker(reasons.join("; ")));
    }
    for (gpu, why) in failed {
        (state.log)(&LogLine::warning(format!("cannot be used: {why}")).at_gpu(gpu));
    }
    Ok(())
}

impl Daemon {
    /// Listens, and starts one worker for each GPU. A daemon that takes over accepts nothing before [`State::open`].
    fn start(
        o: &ServeOptions,
        gpus: Vec<u32>,
        Setup { command, greeter, confinement, cgroups, client_users }: Setup,
        mut sockets: Sockets,
        log: Log,
    ) -> Result<Daemon, ServeError> {
        if o.listen.is_none() && o.unix.is_none() {
            return Err(ServeError::Nowhere);
        }
        let tokens = o.listen.map(|_| accepted_tokens(o, log)).transpose()?;
        let cluster = o.listen.and(o.munge.as_ref()).map(ClusterUsers::open).transpose()?;
        let unix_users = (!o.unix_users.is_empty()).then(|| Permitted::find("--unix-users", &o.unix_users)).transpose()?;
        let certificate = o.listen.map(|_| certificate(o)).transpose()?;
        let tls = certificate.as_ref().map(|c| ServerTls::new(c, o.client_ca.as_deref())).transpose();
        let tls = tls.map_err(|why| match why {
            HandshakeError::File(why) => ServeError::Certificate(why),
            why => ServeError::Tls(why.to_string()),
        })?;
        let tls = tls.map(Arc::new);
        let (greeters, local_greeters) = match &greeter {
            Some(greeter) => {
                let over_tcp = tls.as_ref().map(|tls| greeter.start("clients over TCP", Some(tls.clone()), log)).transpose()?;
                (over_tcp.flatten(), greeter.start("clients at Unix sockets", None, log)?)
            }
            None => (None, None),
        };
        let limits =
            Limits::new(gpus.len() as u32, o.max_workers, o.max_client_workers, o.clients, o.warm, o.of_worker, o.evict_stopped);
        let open =
            |file: &PathBuf| Accounting::open(file, log).map_err(|source| ServeError::Accounting { file: file.clone(), source });
        let accounting = o.accounting.as_ref().map(open).transpose()?;
        let local_socket = o.listen.and_then(|_| {
            // Without it jobs on this machine use TCP.
            LocalSocket::listen()
                .map_err(|e| log(&LogLine::warning(format!("jobs on this machine use TCP if they name an address: {e}"))))
                .ok()
        });
        let (local_socket, local_listener) = local_socket.unzip();
        // Where workers are processes of their jobs' users, they are not asked how much memory is free.
        let reader = StartReader {
            driver: o.driver.to_string_lossy().into_owned(),
            usage: client_users.is_some(),
            confinement: confinement.clone(),
        };
        let nvml = Nvml::new(command.clone(), reader, Pace::USUAL, log);
        let permissions =
            Permissions { targets: Targets::new(&o.targets), plain: o.allow_plain, gpudirect: o.gpudirect, confinement, cgroups };
        // When all else that may fail has not: the other one is asked once.
        let listens_at = o.listen.map(|at| at.to_string()).or_else(|| o.unix.as_deref().map(earlier::of_path));
        let earlier = match listens_at.filter(|_| o.take_over) {
            Some(at) => {
                let (earlier, theirs) = Earlier::ask(&at).map_err(ServeError::TakeOver)?;
                if let Some((option, at)) = theirs.beside(o.listen, o.unix.as_deref()) {
                    earlier.close();
                    return Err(ServeError::NotRepeated { option, at });
                }
                sockets = theirs;
                Some(earlier)
            }
            None => None,
        };
        let pool = Pool::new(command, o.driver.clone(), gpus, limits, permissions, accounting, log);
        let state = Arc::new(State {
            since_unix_ms: unix_ms(),
            tokens,
            cluster,
            unix_users,
            client_users,
            tls,
            greeters,
            local_greeters,
            allow_plain: o.allow_plain,
            local_socket,
            pool: pool.after(earlier.clone()),
            nvml,
            tickets: Tickets::default(),
            parting: AtomicUsize::new(0),
            requests: Requests::new(log),
            lines: Lines::default(),
            warming: Warming::default(),
            stopping: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            closing: Closing::default(),
            earlier,
            retirement: Retirement::default(),
            log,
            refusals: RateLimitedLog::new(log, "refusals of clients"),
            evictions: RateLimitedLog::new(log, "lines about jobs that are stopped"),
        });
        let mut daemon = Daemon {
            state: state.clone(),
            address: None,
            fingerprint: certificate.map(|c| c.fingerprint().to_string()),
            unix: None,
            listeners: Arc::default(),
            first: Vec::new(),
        };
        if let Some(options) = &o.metrics {
            daemon.serve_metrics(options, &mut sockets, log)?;
        }
        if let Some(at) = o.listen {
            let failed = |source| ServeError::Listen { at: at.to_string(), source };
            let listener = match sockets.take_tcp(at) {
                Some(passed) => TcpListener::from(passed),
                None => TcpListener::bind(at).map_err(failed)?,
            };
            daemon.address = Some(listener.local_addr().map_err(failed)?);
            daemon.accept(Kind::Tcp, listener.into(), AT_TCP, Entrance::Tcp)?;
        }
        if let Some(listener) = local_listener {
            // As many as over TCP: every process of this machine can connect to either.
            daemon.accept(Kind::Local, listener.into(), AT_TCP, Entrance::LocalSocket)?;
        }
        if let Some(path) = &o.unix {
            let failed = |source| ServeError::Listen { at: path.display().to_string(), source };
            let has_others = state.unix_users.is_some();
            let (listener, file) = match sockets.take_unix(path) {
                Some((passed, removes)) => {
                    // Its options may be others than those of the daemon that has made the file.
                    let own = removes.then(|| set_mode(path, has_others).and_then(|()| identity(path)));
                    (passed, own.transpose().map_err(failed)?)
                }
                None => bind(path, has_others).map(|(listener, file)| (listener.into(), Some(file))).map_err(failed)?,
            };
            daemon.unix = Some(path.clone());
            file.into_iter().for_each(|file| daemon.listeners.remove_at_end((path.clone(), file)));
            daemon.accept(Kind::Unix, listener, AT_UNIX, Entrance::Unix)?;
        }
        // Another one may still have these; then it goes on accepting until it retires.
        if state.earlier.is_none() {
            state.open(&daemon.listeners)?;
        }
        let first = |gpu| {
            let profile = Profile { gpu, virtual_device: 0, env: Vec::new(), user: None };
            let worker = warm(&state, profile.clone());
            if o.warm > 1 {
                warm_later(&state, profile);
            }
            worker
        };
        daemon.first = (0..state.pool.gpus()).map(first).collect();
        Ok(daemon)
    }

    fn accept(&self, kind: Kind, listener: OwnedFd, budget: Budget, by: Entrance) -> Result<(), ServeError> {
        let (state, door) = (self.state.clone(), Door::new(budget));
        let each: Each = Box::new(move |fd| welcome_in_thread(&state, &door, Arc::new(Conn::new(fd)), by));
        self.listeners.add(kind, listener, each).map_err(ServeError::Start)
    }

    /// One line that says what is served and where.
    fn describe(&self, o: &ServeOptions) -> String {
        let n = self.state.pool.gpus();
        let gpus = if n == 1 { "1 GPU".to_owned() } else { format!("{n} GPUs") };
        let (token, fingerprint) = (o.token.display(), self.fingerprint.as_deref().unwrap_or_default());
        let plain = if o.allow_plain { ", also without encryption" } else { "" };
        let users = match self.state.tokens.as_ref().map(|tokens| (tokens.users(), tokens.file().path().display())) {
            None | Some((0, _)) => String::new(),
            Some((1, file)) => format!(", tokens file {file} with 1 user"),
            Some((n, file)) => format!(", tokens file {file} with {n} users"),
        };
        let munge = if self.state.cluster.is_some() { ", munge" } else { "" };
        let tcp = self.address.map(|a| format!("{a} (token file {token}{users}{munge}, certificate {fingerprint}{plain})"));
        let others: Vec<String> = o.unix_users.iter().map(ToString::to_string).collect();
        let others = if others.is_empty() { String::new() } else { format!(" (also for {})", others.join(", ")) };
        let unix = self.unix.as_ref().map(|path| format!("unix:{}{others}", path.display()));
        let places: Vec<String> = tcp.into_iter().chain(unix).collect();
        let after = self.state.earlier.as_ref().map(|earlier| format!(", after process {}", earlier.pid())).unwrap_or_default();
        format!("mrcuda: serving {gpus} on {}{after}", places.join(" and "))
    }

    /// Stops listening and ends all workers.
    pub(crate) fn stop(&self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        self.listeners.end();
        self.state.earlier.iter().for_each(|earlier| earlier.close());
        self.state.nvml.end();
        self.state.greeters.iter().chain(&self.state.local_greeters).for_each(Greeters::end);
        self.state.pool.end_all();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where a connection has come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entrance {
    Tcp,
    Unix,
    /// The socket to which jobs of this machine are invited over TCP.
    LocalSocket,
    /// As the first two, at the daemon that has taken over: for data connections only.
    PassedTcp,
    PassedUnix,
}

impl Entrance {
    fn is_passed(self) -> bool {
        matches!(self, Entrance::PassedTcp | Entrance::PassedUnix)
    }
}

/// Greets a client in a thread of its own.
fn welcome_in_thread(state: &Arc<State>, door: &Arc<Door>, conn: Arc<Conn>, by: Entrance) {
    let theirs = state.clone();
    let greeting = door.admit(&conn);
    let started = threads::spawn("greeting", move || {
        if let Err(why) = welcome(&theirs, greeting, &conn, by) {
            theirs.pool.counters().refuse(&why);
            theirs.refusals.say(&why.line());
        }
    });
    if let Err(e) = started {
        state.refusals.say(&LogLine::warning(format!("cannot greet a client: {e}")));
    }
}

/// Greets a client and hands it to a worker.
fn welcome(state: &Arc<State>, greeting: Greeting, conn: &Conn, by: Entrance) -> Result<(), WelcomeError> {
    let peer = conn.peer();
    faults::at(Point::Welcome);
    if let Some(earlier) = state.earlier.as_ref().filter(|earlier| {
        // Once that has ended, its clients are to hear that their tickets are unknown.
        by != Entrance::LocalSocket && !earlier.has_ended() && state.is_for_earlier(conn)
    }) {
        match earlier.pass(conn) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                // Others would take the answer for one of a server that they cannot talk to; they try again when they are hung up on.
                if greet::is_of_this_build(conn) {
                    // It may have disconnected, so errors are ignored.
                    let _ = greet::introduce(conn, state.offer(by));
                    drop(greeting);
                    part_busy(state, conn);
                }
                return Err(WelcomeError::Client { peer, error: GreetError::Busy });
            }
            // It has just ended.
            Err(_) => {}
        }
    }
    let trusted = state.check(by, conn).inspect_err(|_| {
        // It may have disconnected, so errors are ignored.
        let _ = greet::introduce(conn, state.offer(by));
    });
    let heard = trusted.and_then(|()| {
        let nonce = random().map_err(GreetError::Io)?;
        let heard = state.hear(conn, by, &nonce, &greeting)?;
        greet::admit(conn, &heard, state.offer(by), nonce, |opening, shown| match opening {
            Opening::Bulk { name, .. } => Ok([Secret::of_nobody(state.tickets.key(name)?)].into()),
            _ if by.is_passed() => Err(GreetError::UnknownTicket),
            _ if !shown.is_certified && state.requires_certificate(by) => Err(GreetError::Refused(
                "this server requires a certificate from its clients (MRCUDA_CERTIFICATE, MRCUDA_CA)".into(),
            )),
            Opening::Job { rdma: true, .. } if !state.offer(by).plain => Err(GreetError::RdmaRefused),
            Opening::Job { locality, .. } if by == Entrance::LocalSocket => Ok([state.invited(*locality, conn)?].into()),
            _ if by == Entrance::LocalSocket => Err(GreetError::UnknownTicket),
            _ => state.secrets(by, conn, &shown),
        })
    });
    let heard = heard.map_err(|why| if greeting.was_dropped() { GreetError::Busy } else { why });
    match &heard {
        Err(GreetError::Busy) => part_busy(state, conn),
        Err(why) => greet::refuse(conn, why),
        Ok(_) => {}
    }
    drop(greeting);
    // It may have disconnected, so errors are ignored.
    let answer = |error: &AssignError| drop(greet::answer(conn, Err(&error.to_string())));
    // The invitation contains a secret, so it is sent only over an encrypted connection.
    if let Ok(Greeted { opening: Opening::Job { locality: Locality::Machine(machine), .. }, binding, secret }) = &heard
        && conn.carried() == Carried::TLS
        && let Some(socket) = state.local_socket.as_ref().filter(|socket| socket.is_here(&secret.key, machine))
    {
        let invited = socket.invite(binding, secret.user.clone()).and_then(|invitation| greet::invite(conn, &invitation));
        return invited.map_err(|e| WelcomeError::Client { peer, error: e.into() });
    }
    let Greeted { opening, secret, .. } = heard.map_err(|error| WelcomeError::Client { peer: peer.clone(), error })?;
    match opening {
        Opening::Job { gpu, rdma, waits, hello, .. } => {
            let served = job(state, conn, (gpu, rdma, waits), &hello, &secret).inspect_err(answer);
            let served =
                served.inspect_err(|why| state.pool.events().refused(gpu, hello.pid, secret.user.as_ref(), &why.to_string()));
            served.map_err(|error| WelcomeError::Job { peer, user: secret.user.clone(), gpu, pid: hello.pid, error })?;
            state.pool.counters().accept(Wish::Job);
            Ok(())
        }
        // The worker answers when it has the connection.
        Opening::Bulk { name, rdma } => {
            let served = state.bulk(&name, conn, rdma).inspect_err(answer);
            served.map_err(|error| WelcomeError::Bulk { peer, error })?;
            state.pool.counters().accept(Wish::Copy);
            Ok(())
        }
        request => state.answer(conn, request, &secret),
    }
}

/// Tells a client, which no longer counts as greeting, that it is to try again.
fn part_busy(state: &State, conn: &Conn) {
    if state.parting.fetch_add(1, Ordering::AcqRel) < PARTING_AT_ONCE {
        greet::refuse(conn, &GreetError::Busy);
    }
    state.parting.fetch_sub(1, Ordering::AcqRel);
}

/// Finds a worker for a job, which may have to wait for its turn, and hands the connection to it. The worker sets up RDMA, if the job wants
/// it.
fn job(
    state: &Arc<State>,
    conn: &Conn,
    (gpu, rdma, waits): (u32, bool, bool),
    hello: &JobHello,
    secret: &Secret,
) -> Result<(), AssignError> {
    conn.limit_unacknowledged(JOB_UNACKNOWLEDGED)?;
    let n = state.pool.gpus();
    let is_store = gpu == Endpoint::MEMORY;
    state.check_open()?;
    if gpu >= n && !is_store {
        return Err(AssignError::Gpu { gpu, offered: n });
    }
    let env = env::accepted(&hello.env)?;
    let mut admitted = state.admit(conn, secret, gpu, waits)?;
    // Among those that wait for the name service are so only jobs that were admitted, and the groups are those of now.
    let user = state.client_users.as_ref().map(|users| users.of(secret.user.as_ref())).transpose()?.flatten();
    let profile = Profile { gpu, virtual_device: hello.virtual_device, env, user };
    // After the last message that this process sends: the keys are used by the worker from here on.
    let message = Message::Job(hello.clone(), conn.session()?, rdma);
    let client = Client::of(conn, hello, secret.user.clone(), state.pool.worker_uid(&profile));
    let began = Instant::now();
    // A warm worker may have died or be blocked; then a new one is used, within the same total time.
    let mut warm = state.pool.take_warm(&profile).filter(|warm| warm.wait_ready(began + OPENING / 2).is_ok());
    loop {
        let (worker, until, fresh) = match warm.take() {
            Some(warm) => (warm, began + OPENING / 2, false),
            None => {
                let fresh = start(state, profile.clone())?;
                fresh.wait_ready(began + OPENING)?;
                (fresh, began + OPENING, true)
            }
        };
        faults::at(Point::Handover);
        match worker.serve(&message, conn, &client, admitted, until) {
            Ok(()) => {
                let by = profile.user.as_ref().map(|user| format!(" as user {}", user.name)).unwrap_or_default();
                let text = format!("worker {} serves {} {}{by}", worker.pid(), client.words(), profile.place());
                let line = LogLine::info(text).of_worker(worker.pid(), gpu);
                (state.log)(&client.on(line));
                state.pool.events().came(worker.pid(), gpu, &client);
                state.pool.counters().place(gpu).served.add(1);
                if !is_store && !state.retirement.has_begun() {
                    warm_later(state, profile);
                }
                return Ok(());
            }
            Err((_, Some(back))) if !fresh => admitted = back,
            Err((why, back)) => {
                if back.is_none() {
                    // The worker may have used the connection.
                    conn.cut();
                }
                return Err(why);
            }
        }
    }
}

fn start(state: &Arc<State>, profile: Profile) -> Result<Arc<pool::Worker>, AssignError> {
    state.check_open()?;
    let theirs = Arc::downgrade(state);
    let heard = move |worker: &Arc<pool::Worker>, message: Message| match (theirs.upgrade(), message) {
        (Some(state), Message::Expect(secret, n)) => state.expect(worker, secret, n),
        (Some(state), Message::Stays(request, why)) => state.note_stay(worker, request, &why),
        (Some(state), Message::Connect(number, to, ms)) => outgoing::connect(worker, state.pool.targets(), number, to, ms),
        (Some(state), Message::Forget(secret)) => state.tickets.forget(worker, &secret),
        (Some(state), Message::Eviction(news)) => state.note_eviction(worker, news),
        _ => {}
    };
    state.pool.start(profile, heard)
}

/// Keeps workers warm for clients like the one that has just connected, which are probably the next ones. Not at once:
/// while one process creates a context, address-related operations of other processes are delayed by a millisecond a
/// call (docs/measurements.md), and the new client makes its first allocations, or those of a move, at that time.
fn warm_later(state: &Arc<State>, profile: Profile) {
    const LATER: Duration = Duration::from_millis(500);
    let theirs = Arc::downgrade(state);
    let started = threads::spawn("warm", move || {
        std::thread::sleep(LATER);
        let Some(state) = theirs.upgrade() else { return };
        state.warming.run(profile, |profile| {
            while state.pool.lacks(&profile) > 0 && !state.retirement.has_begun() {
                // The error has been logged.
                let Ok(worker) = warm(&state, profile.clone()) else { return };
                // One after the other, for the same reason.
                if state.pool.lacks(&profile) > 0 && worker.wait_ready(Instant::now() + OPENING).is_err() {
                    return;
                }
            }
        });
    });
    if let Err(e) = started {
        (state.log)(&LogLine::warning(format!("no worker is kept ready: {e}")));
    }
}

/// Keeps a worker warm for clients with this profile. The log reports a failure to start one.
fn warm(state: &Arc<State>, profile: Profile) -> Result<Arc<pool::Worker>, AssignError> {
    let gpu = profile.gpu;
    let started = start(state, profile);
    match &started {
        Ok(worker) => state.pool.keep_warm(worker.clone()),
        Err(_) if state.takes_no_jobs() => {}
        Err(why) => (state.log)(&LogLine::warning(format!("cannot start a worker for GPU {gpu}: {why}")).at_gpu(gpu)),
    }
    started
}

impl State {
    /// Begins to accept at the sockets, and waits for a daemon that takes over.
    fn open(self: &Arc<Self>, listeners: &Arc<Listeners>) -> Result<(), ServeError> {
        listeners.open(&self.refusals).map_err(ServeError::Start)?;
        self.await_take_over(listeners).unwrap_or_else(|why| (self.log)(&cannot_be_taken_over(&why)));
        Ok(())
    }

    /// Whether a client's first words say that it has a ticket which is none of this daemon.
    fn is_for_earlier(&self, conn: &Conn) -> bool {
        let route = greet::peek_route(conn, GREETING / 2).filter(|route| *route != Route::default());
        route.is_some_and(|wanted| !self.tickets.have(&wanted))
    }

    /// Decides whether a client may connect, as far as that is known before it has said anything.
    fn check(&self, by: Entrance, conn: &Conn) -> Result<(), GreetError> {
        match by {
            Entrance::Tcp | Entrance::PassedTcp => {
                conn.tune().map_err(GreetError::Io)?;
                // A client that reads nothing must not hold up a thread that writes to it.
                conn.limit_unacknowledged(GREETING).map_err(GreetError::Io)
            }
            Entrance::Unix | Entrance::PassedUnix => permitted_user(conn, self.unix_users.as_ref()).map(drop),
            // Jobs that were invited, and their data connections: all of this user or of root.
            Entrance::LocalSocket => permitted_user(conn, None).map(drop),
        }
    }

    /// What a client says in its greeting.
    fn hear(&self, conn: &Conn, by: Entrance, nonce: &[u8; 32], greeting: &Greeting) -> Result<Heard, GreetError> {
        let greeters = match by {
            Entrance::Tcp | Entrance::PassedTcp => &self.greeters,
            Entrance::Unix | Entrance::LocalSocket | Entrance::PassedUnix => &self.local_greeters,
        };
        match greeters {
            Some(greeters) => greeters.hear(conn, GREETING, self.offer(by), nonce, || greeting.was_dropped()),
            None => greet::hear(conn, Instant::now() + GREETING, self.offer(by), nonce),
        }
    }

    /// The secrets by which jobs and questions are let in now.
    fn secrets(&self, by: Entrance, conn: &Conn, shown: &Shown) -> Result<Arc<[Secret]>, GreetError> {
        if let (Some(cluster), Some(credential)) = (&self.cluster, &shown.credential) {
            return Ok([cluster.secret(Source::of(conn), credential, shown)?].into());
        }
        match by {
            Entrance::Tcp => self.tokens.as_ref().map(AcceptedTokens::current).ok_or(GreetError::WrongToken),
            // The kernel identifies the peer, which is sufficient proof.
            Entrance::Unix => {
                let other = permitted_user(conn, self.unix_users.as_ref())?;
                Ok([Secret { key: [0; 32], user: other.map(|uid| User::System(Arc::new(users::account(uid)))) }].into())
            }
            Entrance::LocalSocket | Entrance::PassedTcp | Entrance::PassedUnix => Err(GreetError::UnknownTicket),
        }
    }

    /// Whether a job may still start: its user may have been shut out since the greeting.
    fn still_accepts(&self, secret: &Secret) -> bool {
        secret.user.as_ref().is_none_or(|user| match user {
            User::Token(_) => self.tokens.as_ref().is_some_and(|tokens| tokens.accepts(user)),
            User::Munge(account) => self.cluster.as_ref().is_some_and(|cluster| cluster.permits(account.uid)),
            User::System(account) => {
                self.unix_users.as_ref().is_some_and(|named| named.has(account.uid, nix::unistd::geteuid().as_raw()))
            }
        })
    }

    /// Whether it takes no new jobs.
    fn is_ending(&self) -> bool {
        self.stopping.load(Ordering::SeqCst) || self.draining.load(Ordering::SeqCst)
    }

    /// What clients may choose.
    fn offer(&self, by: Entrance) -> Offer<'_> {
        match by {
            Entrance::Tcp => Offer { munge: self.cluster.is_some(), ..self.offer(Entrance::PassedTcp) },
            Entrance::PassedTcp => Offer { tls: self.tls.as_deref(), plain: self.allow_plain, munge: false },
            Entrance::Unix | Entrance::LocalSocket | Entrance::PassedUnix => Offer::LOCAL,
        }
    }

    /// The secret of a job's invitation, which is its user's. Memory is shared only with the server's user and root.
    fn invited(&self, locality: Locality, conn: &Conn) -> Result<Secret, GreetError> {
        permitted_user(conn, None)?;
        let Locality::Invited(name) = locality else { return Err(GreetError::UnknownTicket) };
        let secret = self.local_socket.as_ref().and_then(|socket| socket.take(&name)).ok_or(GreetError::UnknownTicket)?;
        if self.still_accepts(&secret) { Ok(secret) } else { Err(GreetError::WrongToken) }
    }

    fn expect(&self, worker: &Arc<pool::Worker>, secret: [u8; 32], left: u32) {
        if self.tickets.expect(worker, secret, left) {
            // If the worker has ended, no answer is needed.
            let _ = worker.send(&Message::Expecting(secret), None);
        } else {
            let text = format!("worker {} asked for a ticket that it cannot have", worker.pid());
            (self.log)(&LogLine::warning(text).of_worker(worker.pid(), worker.gpu()));
        }
    }

    /// Hands a connection that has proved its ticket to the worker.
    fn bulk(&self, name: &[u8; 32], conn: &Conn, rdma: bool) -> Result<(), AssignError> {
        conn.limit_unacknowledged(BULK_UNACKNOWLEDGED)?;
        let session = conn.session()?;
        let (secret, worker) = self.tickets.take(name)?;
        Ok(conn.socket().and_then(|fd| worker.send(&Message::Bulk(secret, session, rdma), Some(fd)))?)
    }

    /// Whether jobs must have a certificate.
    fn requires_certificate(&self, by: Entrance) -> bool {
        by == Entrance::Tcp && self.tls.as_ref().is_some_and(|tls| tls.certified_only)
    }
}

#[cfg(test)]
mod tests;
