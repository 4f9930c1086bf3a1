//! The job's end of a connection to a worker.
//!
//! Calls go into the [`crate::ring`]. Over TCP a sender thread drains it to the socket, and a receiver thread completes
//! answers. A worker on the same machine maps the ring as shared memory and drains it itself; answers return through
//! shared memory as well. Only [`Reply::wait`], [`Link::control`] and a full ring wait for the worker.

use crate::carried::Carried;
use crate::channel::Channel;
use crate::conn::Conn;
use crate::control::{Control, ControlReply};
use crate::endpoint::Endpoint;
use crate::frame;
use crate::greet::{self, GreetError, JobHello, Locality, NotGreeted, Opening, Proof, Protection};
use crate::handshake::Trust;
use crate::helper::{self, HelperOptions};
use crate::leave_request::LeaveRequest;
use crate::local_socket::{self, Invitation};
use crate::munge::Munge;
use crate::pipe::Closed;
use crate::rdma::CALL_RING;
use crate::rdma::setup::{self, Rings};
use crate::ring::{self, PushError, Ring};
use crate::sync::lock;
use crate::threads;
use crate::token::{self, Token, TokenError, random};
use crate::traffic;
use cuda_api::code::Code;
use cuda_api::ops;
use cuda_api::wire::Wire;
use executor::fork::NotInherited;
use executor::host_mirror::Line;
use executor::{Budget, DeviceInfo};
use faults::Faults;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod answers;
mod bulk;
mod bulk_copy;
mod bulk_way;
mod common;
mod data_connections;
mod error;
mod host_mirror;
mod inquiry;
mod open;
mod receive;
mod replies;
mod reply;
mod shared;
mod socket;
mod time_limits;
mod transport;

pub use bulk::{BeforeSent, BulkMemory, read_registered};
pub use bulk_copy::BulkCopy;
pub use common::Fault;
pub use data_connections::bulk_connect;
pub use error::LinkError;
pub use replies::{Landing, Lost};
pub use reply::Reply;
pub use time_limits::TimeLimits;
pub use transport::Transport;

pub(crate) use data_connections::{BULK_UNACKNOWLEDGED, RDMA, Terms, bulk_connect_within, connect_all};
pub(crate) use error::refused;

use answers::Answers;
use bulk::Bulk;
use bulk_way::BulkWay;
use common::{Common, Hook};
use host_mirror::{Alike, Watch};
use inquiry::Inquiry;
use open::{Opened, open};
use replies::{Replies, Waiter};
use shared::Shared;
use socket::Socket;
use transport::CallTransport;

/// What a client needs to use servers on a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The secret that it shares with them; `None`: it has munge only.
    pub token: Option<Token>,
    /// What it uses in place of the token at servers that accept it.
    pub munge: Option<Munge>,
    /// How it recognizes them.
    pub trust: Trust,
}

impl Credentials {
    /// Those of this user, with the token in a file if there is one; `None`: there is nothing by which a server could let this user in.
    pub fn load(token_file: &Path, munge: Option<Munge>, trust: Trust) -> Result<Option<Credentials>, TokenError> {
        let token = match Token::load(token_file) {
            Err(TokenError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            token => Some(token?),
        };
        let has_any = token.is_some() || munge.is_some();
        Ok(has_any.then_some(Credentials { token, munge, trust }))
    }
}

/// Whose worker is at the other end.
#[derive(Debug)]
enum Peer {
    /// A server's.
    Server {
        /// Its address as the user has named it.
        named: Endpoint,
        /// That by which it is reached, which may be a socket of this machine.
        reached: Endpoint,
    },
    /// The job's own: a helper that it has started, with the channel to it.
    Helper(Channel),
}

impl Peer {
    /// A failure of this machine.
    fn failed(&self, source: io::Error) -> LinkError {
        match self {
            Peer::Server { named, .. } => LinkError::Setup { to: named.clone(), source },
            Peer::Helper(_) => LinkError::Helper(source),
        }
    }

    /// Makes connections to a worker that expects their ticket.
    fn connect(&self, ticket: &[u8; 32], connections: u32) -> Result<Vec<Conn>, LinkError> {
        match self {
            Peer::Server { named, reached } => bulk_connect(reached, ticket, connections).map_err(|why| why.at(named)),
            Peer::Helper(channel) => {
                let connect = |_| helper::connect(channel, ticket);
                (0..connections).map(connect).collect::<io::Result<_>>().map_err(LinkError::Helper)
            }
        }
    }
}

/// A connection to a worker, for one GPU of a server or of this machine. All threads of the job use it concurrently.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    device: DeviceInfo,
    transport: Transport,
    tickets: AtomicU64,
    peer: Peer,
    /// The connections for large copies in each direction.
    bulk: [BulkWay; 2],
    /// Held while these are made: one direction brings the worker the file for both.
    opening: Mutex<()>,
}

/// What a link has carried, to show it to people. A worker on this machine can falsify it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Calls and other messages to the worker, as far as it or the sender has taken them.
    pub calls: u64,
    /// Their bytes, and those of large copies to the GPU that have begun.
    pub bytes_sent: u64,
    /// Bytes of answers and of large copies from the GPU.
    pub bytes_received: u64,
}

/// Time limits for asking a server how a worker has ended: for the connection, for each message of the greeting, and for the answer. The job's
/// calls wait meanwhile.
const INQUIRY: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(3)];

/// Total time limit for a job to be let in at a server's socket on its machine, where the listener needs no time: afterwards it
/// uses TCP.
const LOCAL: Duration = Duration::from_secs(2);

/// Connects to a server for anything that needs the token or munge, and greets. The opening may depend on the secret of the greeting. Returns
/// what [`open()`] does.
pub(crate) fn greeted(
    to: &Endpoint,
    credentials: Option<&Credentials>,
    opening: &dyn Fn(&[u8; 32]) -> Opening,
    limits: &TimeLimits,
) -> Result<(Conn, [u8; 32]), LinkError> {
    faults::at(faults::Point::Connect);
    let open_by = |by: Proof<'_>, protection| {
        open(to, &opening(by.key), (by, protection), &Opened::of(limits), &|until| Conn::open(to, until))
    };
    let (credentials, protection) = match (to.unix_path(), credentials) {
        (Some(_), _) => return open_by((&[0; 32]).into(), Protection::Plain),
        (None, Some(c)) if to.is_plain() => (c, Protection::Plain),
        (None, Some(c)) => (c, Protection::Server(to, &c.trust)),
        (None, None) => return Err(LinkError::NoToken { to: to.clone() }),
    };
    if let Some(munge) = &credentials.munge {
        let key = random().map_err(|source| LinkError::Setup { to: to.clone(), source })?;
        match open_by(Proof { key: &key, munge: Some(munge) }, protection) {
            // Somebody on the way may have removed the offer: a program that nobody has identified is shown no token instead.
            Err(LinkError::Greeting { why: NotGreeted::NoMunge, .. })
                if credentials.token.is_some() && (to.is_plain() || credentials.trust.knows(to)) => {}
            opened => return opened,
        }
    }
    let token = credentials.token.as_ref().ok_or_else(|| LinkError::NoToken { to: to.clone() })?;
    open_by((&token.0).into(), protection)
}

/// Waits for the worker's first answer. A server that is full says again and again that the job has to wait.
fn wait_for_worker(conn: &Conn, to: &Endpoint, limits: &TimeLimits) -> Result<Vec<u8>, GreetError> {
    let (began, mut told) = (Instant::now(), false);
    loop {
        match greet::read_answer(conn, Instant::now() + limits.worker) {
            Err(GreetError::Waiting(why)) if began.elapsed() < limits.queue => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(target: "connect", "waiting for {to}: {why}");
                }
            }
            answer => return answer,
        }
    }
}

/// Asks a server, later, how this worker of it has ended.
fn inquiry(to: &Endpoint, credentials: Option<&Credentials>, worker: u32) -> Inquiry {
    let (to, credentials) = (to.clone(), credentials.cloned());
    Inquiry::by(move || {
        let limits = TimeLimits { connection: INQUIRY[0], greeting: INQUIRY[1], ..TimeLimits::default() };
        // A server that is gone, too, says nothing.
        let (conn, _) = greeted(&to, credentials.as_ref(), &|_| Opening::WorkerEnd(worker), &limits).ok()?;
        inquiry::shown(&greet::read_answer(&conn, Instant::now() + INQUIRY[2]).ok()?)
    })
}

/// What a worker says first: the properties of its GPU, and its process.
fn first_answer(mut about: &[u8]) -> Result<(DeviceInfo, u32), GreetError> {
    <(DeviceInfo, u32)>::get(&mut about).map_err(|_| GreetError::Garbage)
}

/// Why a job does not share memory with a server on its machine.
enum NotLocal {
    /// The server does not take the job, and would not over TCP.
    Refused(GreetError),
    /// Only this way cannot be used.
    Unusable(String),
}

impl Link {
    /// Connects to a GPU of a server and waits until its worker is ready. A worker on this machine gets `pinned`, the
    /// file of the job's pinned memory, if there is one.
    pub fn connect(
        to: &Endpoint,
        credentials: Option<&Credentials>,
        hello: &JobHello,
        pinned: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<Link>, LinkError> {
        Link::connect_with(to, credentials, hello, pinned, TimeLimits::default())
    }

    /// As [`Link::connect`], with other time limits.
    pub fn connect_with(
        to: &Endpoint,
        credentials: Option<&Credentials>,
        hello: &JobHello,
        pinned: Option<BorrowedFd<'_>>,
        limits: TimeLimits,
    ) -> Result<Arc<Link>, LinkError> {
        let opening = |locality| Opening::Job {
            gpu: to.gpu,
            rdma: to.is_rdma(),
            waits: !limits.queue.is_zero(),
            locality,
            hello: hello.clone(),
        };
        let asks = credentials.is_some() && to.may_share_memory() && !Faults::from_env().tcp_is_other_machine;
        let machine = |key: &[u8; 32]| asks.then(|| local_socket::machine(key)).flatten();
        let asking = |key: &[u8; 32]| opening(machine(key).map_or(Locality::None, Locality::Machine));
        let (mut conn, binding) = greeted(to, credentials, &asking, &limits)?;
        let about = match wait_for_worker(&conn, to, &limits) {
            Err(GreetError::Invited(invitation)) if asks => {
                let opening_there = opening(Locality::Invited(invitation.name()));
                let secret = (&invitation, &invitation.key(&binding));
                match Link::at_local_socket((to, credentials), secret, &opening_there, pinned, limits) {
                    Ok(link) => return Ok(link),
                    Err(NotLocal::Refused(why)) => return Err(refused(to, &why)),
                    Err(NotLocal::Unusable(why)) => {
                        tracing::debug!(target: "place", "{to} is on this machine, but TCP is used: {why}");
                        conn = greeted(to, credentials, &|_| opening(Locality::None), &limits)?.0;
                        wait_for_worker(&conn, to, &limits)
                    }
                }
            }
            about => about,
        };
        let about = about.map_err(|why| refused(to, &why))?;
        let (device, worker) = first_answer(&about).map_err(|why| refused(to, &why))?;
        if to.is_rdma() {
            let rings = Rings { bytes: CALL_RING, budget: &Budget::new(u64::MAX), others: 0 };
            let set_up = setup::connect(&conn, rings, Instant::now() + limits.greeting);
            set_up.map_err(|why| refused(to, &why.into()))?;
        }
        let failed = |source| LinkError::Setup { to: to.clone(), source };
        let peer = Peer::Server { named: to.clone(), reached: to.clone() };
        Link::start(conn, (peer, inquiry(to, credentials, worker)), device, limits, Transport::of(to), pinned).map_err(failed)
    }

    /// Connects to a server on this machine at the socket to which it has invited this job.
    fn at_local_socket(
        (to, credentials): (&Endpoint, Option<&Credentials>),
        (invitation, key): (&Invitation, &[u8; 32]),
        opening: &Opening,
        pinned: Option<BorrowedFd<'_>>,
        limits: TimeLimits,
    ) -> Result<Arc<Link>, NotLocal> {
        let reached = invitation.endpoint(to.gpu);
        let limit = Opened { connection: LOCAL, greeting: LOCAL, all: LOCAL };
        let opened = open(&reached, opening, (key.into(), Protection::Plain), &limit, &|until| invitation.connect(until));
        let (conn, _) = opened.map_err(|why| NotLocal::Unusable(why.to_string()))?;
        let about = wait_for_worker(&conn, to, &limits).map_err(NotLocal::Refused)?;
        let (device, worker) = first_answer(&about).map_err(NotLocal::Refused)?;
        let (transport, peer) = (Transport::of(&reached), Peer::Server { named: to.clone(), reached });
        // The server is asked where it is known: an invitation is for one connection.
        let peer = (peer, inquiry(to, credentials, worker));
        Link::start(conn, peer, device, limits, transport, pinned).map_err(|why| NotLocal::Unusable(why.to_string()))
    }

    /// Starts a helper and waits until it is ready. It ends with this process, or when the link is closed.
    pub fn to_helper(options: &HelperOptions, hello: &JobHello, pinned: Option<BorrowedFd<'_>>) -> Result<Arc<Link>, LinkError> {
        let limits = TimeLimits::default();
        let (channel, conn) = helper::start(options, hello).map_err(LinkError::Helper)?;
        let strange = |e: GreetError| LinkError::Helper(io::Error::other(e.to_string()));
        let about = greet::read_answer(&conn, Instant::now() + limits.greeting).map_err(strange)?;
        let (device, _) = first_answer(&about).map_err(strange)?;
        Link::start(conn, (Peer::Helper(channel), Inquiry::default()), device, limits, Transport::Shm, pinned)
            .map_err(LinkError::Helper)
    }

    /// Hands a helper its end of a connection whose ticket it expects. Other processes cannot connect to it.
    pub fn hand_over(&self, ticket: &[u8; 32], socket: UnixStream) -> Result<(), LinkError> {
        let Peer::Helper(channel) = &self.peer else { return Err(LinkError::Answer) };
        helper::hand_over(channel, ticket, socket.as_fd()).map_err(LinkError::Helper)
    }

    /// Creates the link over a greeted connection.
    fn start(
        conn: Conn,
        (peer, inquiry): (Peer, Inquiry),
        device: DeviceInfo,
        limits: TimeLimits,
        transport: Transport,
        pinned: Option<BorrowedFd<'_>>,
    ) -> io::Result<Arc<Link>> {
        let conn = Arc::new(conn);
        let (ring, carrier, other): (Ring, Box<dyn CallTransport>, _) = if transport.is_network() {
            (Ring::new(ring::CAPACITY)?, Box::new(Socket::new(conn.clone(), limits.silence)), "mrcuda-send")
        } else {
            let (memory, closed) = (answers::share(&conn, pinned, limits.greeting)?, Closed::default());
            let answers = Answers::new(memory.clone(), closed.clone());
            (Ring::shared(memory, closed), Box::new(answers), "mrcuda-watch")
        };
        let (replies, faults, texts, alike) = (Replies::default(), Mutex::default(), Mutex::default(), Alike::default());
        let leaves = Mutex::default();
        let (bulk, answers_heartbeats) = (Bulk::default(), transport.is_network());
        let common = Common { ring, conn, replies, faults, texts, leaves, alike, bulk, inquiry, limits, answers_heartbeats };
        let shared = Arc::new(Shared { common, transport: carrier });
        let (tickets, bulk, opening) = (AtomicU64::new(1), Default::default(), Mutex::default());
        let link = Arc::new(Link { shared: shared.clone(), device, transport, tickets, peer, bulk, opening });
        let (theirs, warm) = (shared.clone(), shared.clone());
        threads::spawn(other, move || theirs.transport.send_all(&theirs.common))?;
        // On failure the first calls are only slower.
        let _ = threads::spawn("mrcuda-warm", move || warm.common.ring.warm());
        threads::spawn("mrcuda-receive", move || shared.transport.receive_all(&shared.common))?;
        Ok(link)
    }

    /// The address by which the server is reached, which may be a socket of this machine although a TCP port was named.
    pub fn server(&self) -> Option<&Endpoint> {
        match &self.peer {
            Peer::Server { reached, .. } => Some(reached),
            Peer::Helper(_) => None,
        }
    }

    /// The transport to its worker.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Properties of the GPU.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// Sends a call: no allocation, no system call while the sender is awake, no wait unless the ring is full or the
    /// body is longer than [`ring::INLINE`]. If the call fails, a [`Fault`] reports it. Returns the call's range of
    /// positions.
    pub fn send(&self, id: u16, parts: &[&[u8]]) -> Result<Range<u64>, Lost> {
        traffic::sent(id, parts);
        self.shared
            .common
            .before(id)
            .and_then(|()| self.shared.common.ring.push(id, frame::NO_TICKET, parts))
            .map_err(|e| self.not_sent(e))
    }

    /// As [`Link::send`], if no call has been sent since `position` and the body is short; otherwise `None`.
    pub fn send_at(&self, position: u64, id: u16, parts: &[&[u8]]) -> Result<Option<Range<u64>>, Lost> {
        let sent = self
            .shared
            .common
            .before(id)
            .and_then(|()| self.shared.common.ring.push_at(position, id, parts))
            .map_err(|e| self.not_sent(e))?;
        if sent.is_some() {
            traffic::sent(id, parts);
        }
        Ok(sent)
    }

    #[cold]
    fn not_sent(&self, e: PushError) -> Lost {
        match (e, self.shared.common.replies.lost()) {
            (PushError::Gone, Some(lost)) => lost,
            (e, _) => Lost { why: e.to_string().into() },
        }
    }

    /// Sends a call whose answer is awaited with [`Reply::wait`], or dropped.
    pub fn request(&self, id: u16, parts: &[&[u8]]) -> Result<Reply, Lost> {
        self.ask(id, parts, Waiter::new(None))
    }

    /// As [`Link::request`]; a thread of the link calls `then` with the answer, or with the error that it will not
    /// arrive. `then` must not wait. By then, the bytes of copies that the GPU completed before are at their
    /// destination. If this returns an error, `then` is not called.
    pub fn request_then(
        &self,
        id: u16,
        parts: &[&[u8]],
        then: impl FnOnce(Result<(Code, Vec<u8>), Lost>) + Send + 'static,
    ) -> Result<(), Lost> {
        self.ask(id, parts, Waiter::calling(Box::new(then))).map(drop)
    }

    /// As [`Link::request`]; the bytes of a successful answer are written directly to `landing`, and [`Reply::wait`]
    /// returns none. Answers arrive in the order of execution on the GPU: after a later wait for the stream, the bytes
    /// have landed.
    ///
    /// # Safety
    /// The landing must stay writable until the answer has arrived or the link is lost, even if the reply is dropped.
    pub unsafe fn request_into(&self, id: u16, parts: &[&[u8]], landing: Landing) -> Result<Reply, Lost> {
        self.ask(id, parts, Waiter::new(Some(landing)))
    }

    /// As [`Link::request_into`] for a call whose result is not checked: if it fails, a [`Fault`] reports it. Only
    /// [`Reply::is_here`] may be used on the reply.
    ///
    /// # Safety
    /// As for [`Link::request_into`].
    pub unsafe fn send_into(&self, id: u16, parts: &[&[u8]], landing: Landing) -> Result<Reply, Lost> {
        self.ask(id, parts, Waiter::unread(id, landing))
    }

    /// Whether large copies in this direction have connections of their own; makes them when it is called first, and tries again some time after a
    /// failure. There are none if they cannot be made, or if `connections` says 0.
    pub fn has_bulk(&self, to_device: bool, connections: impl FnOnce() -> u32) -> bool {
        let way = &self.bulk[usize::from(to_device)];
        if way.carried.get().is_some() {
            return true;
        }
        let connections = connections();
        if connections == 0 || !way.may_try() {
            return false;
        }
        let _one_at_a_time = lock(&self.opening);
        // Another thread may have tried meanwhile.
        if way.carried.get().is_some() || !way.may_try() {
            return way.carried.get().is_some();
        }
        match self.open_bulk(to_device, connections) {
            Ok(by) => {
                tracing::debug!(target: "place", "large copies use {connections} connections by {by}");
                way.carried.get_or_init(|| by);
                true
            }
            Err(why) => {
                tracing::info!(target: "place", "large copies use the connection of the calls: {why}");
                way.note_failure();
                false
            }
        }
    }

    /// How the bytes of large copies travel; nothing until there was one.
    pub fn bulk_carried(&self) -> Carried {
        self.bulk.iter().filter_map(|way| way.carried.get().copied()).collect()
    }

    fn open_bulk(&self, to_device: bool, connections: u32) -> Result<Carried, LinkError> {
        let failed = |source| self.peer.failed(source);
        // Without the file the bytes travel over the connections.
        let file = if self.transport.is_network() { None } else { self.shared.common.bulk.share() };
        let _not_inherited = file.as_ref().map(|file| NotInherited::note(file.as_raw_fd()));
        let ticket = token::random().map_err(failed)?;
        let opened = self.control(&Control::Expect { ticket, stripes: connections }).and_then(|_| {
            let opened = self.peer.connect(&ticket, connections)?;
            self.control(&Control::Accept { ticket })?;
            if let (Some(file), Some(first)) = (&file, opened.first()) {
                first.send_descriptors(file.as_fd(), None).map_err(failed)?;
            }
            let begun = self.control(&Control::Bulk { ticket, to_device, shared: file.is_some() });
            // Unless it has refused, the worker may use them, and they are about to be closed here.
            begun.inspect_err(|why| {
                if !matches!(why, LinkError::Refused(_)) {
                    self.abandon()
                }
            })?;
            Ok(opened)
        });
        match opened {
            Ok(opened) => {
                let carried = opened.iter().map(Conn::carried).collect();
                let connections = opened.into_iter().map(Arc::new).collect();
                // Without its threads the connections would only hold up the copies.
                let started = bulk_copy::start(&self.shared, connections, to_device);
                started.map(|()| carried).map_err(failed).inspect_err(|_| self.abandon())
            }
            Err(why) => {
                // A lost worker has forgotten it.
                let _ = self.control(&Control::HangUp { ticket });
                Err(why)
            }
        }
    }

    /// Begins a copy if the worker has room for it; it may have to make a staging area for the stream first.
    fn begin_bulk(&self, memory: &BulkMemory) -> Option<(u64, bulk::End)> {
        let bulk = &self.shared.common.bulk;
        while let Some(wanted) = bulk.wanted_areas(memory.stream) {
            let made = self.control(&Control::Areas { at_least: wanted as u32 });
            bulk.note_areas(made.is_ok().then_some(wanted));
        }
        bulk.begin(memory)
    }

    /// Requests a large copy in a direction that [has connections](Link::has_bulk) for it. When it is answered, the caller
    /// [ends](BulkCopy::finish) it. `None` if too many such copies are under way.
    ///
    /// # Safety
    /// The program keeps the memory until [`BulkCopy::finish`] returns. An address that is not mapped does no harm over a plain
    /// connection; over an encrypted one all of the memory can be accessed.
    pub unsafe fn request_bulk(&self, memory: &BulkMemory) -> Result<Option<(Reply, BulkCopy)>, Lost> {
        let Some((token, end)) = self.begin_bulk(memory) else { return Ok(None) };
        let (id, body) = operation(memory, token);
        let reply = self.ask(id, &[&body], Waiter::new(None)).inspect_err(|_| self.shared.common.bulk.close(token))?;
        Ok(Some((reply, BulkCopy::new(self.shared.clone(), token, end))))
    }

    /// As [`Link::request_bulk`]; a thread of the link ends the copy and calls `then` with its result, as
    /// [`Link::request_then`] does, and with whether some of the memory could not be accessed.
    ///
    /// # Safety
    /// The program keeps the memory until the flag [`BulkCopy::over`] is set.
    pub unsafe fn send_bulk(
        &self,
        memory: &BulkMemory,
        then: impl FnOnce(Result<(Code, bool), Lost>) + Send + 'static,
    ) -> Result<Option<BulkCopy>, Lost> {
        let Some((token, end)) = self.begin_bulk(memory) else { return Ok(None) };
        let (id, body) = operation(memory, token);
        let (shared, known) = (self.shared.clone(), end.clone());
        let ended = move |answer: Result<(Code, Vec<u8>), Lost>| {
            shared.common.bulk.close(token);
            then(answer.map(|(rc, _)| (rc, known.is_bad())));
        };
        let asked = self.ask(id, &[&body], Waiter::calling(Box::new(ended)));
        asked.inspect_err(|_| self.shared.common.bulk.close(token))?;
        Ok(Some(BulkCopy::new(self.shared.clone(), token, end)))
    }

    /// Waits until no large copy that was requested before uses this memory of the program, which is about to get it back.
    pub fn wait_unused(&self, memory: &Range<u64>) {
        self.shared.common.bulk.wait_unused(memory);
    }

    fn ask(&self, id: u16, parts: &[&[u8]], waiter: Waiter) -> Result<Reply, Lost> {
        // As for the ring: if the program's signal handler leaves the call because of a bad pointer, no answer may be
        // registered.
        ring::touch(parts);
        traffic::sent(id, parts);
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let waiter = Arc::new(waiter);
        self.shared.common.replies.expect(ticket, waiter.clone())?;
        match self.shared.common.before(id).and_then(|()| self.shared.common.ring.push(id, ticket, parts)) {
            Ok(span) => Ok(Reply::new(id, waiter, self.shared.clone(), span)),
            Err(e) if self.shared.common.replies.forget(ticket) => Err(self.not_sent(e)),
            // The link was lost in the meantime, and the waiter has received the error.
            Err(_) => Ok(Reply::new(id, waiter, self.shared.clone(), 0..0)),
        }
    }

    /// Sends a control request and waits for the answer. A refusal is an error. Only a round has no time limit; it ends
    /// when no data arrives on its connections. A worker that sends heartbeats but does not answer another request in
    /// time is treated as unusable.
    pub fn control(&self, request: &Control) -> Result<ControlReply, LinkError> {
        self.begin_control(request)?.finish()
    }

    /// Sends a control request. The place carries it out at the same time as others.
    pub fn begin_control(&self, request: &Control) -> Result<ControlUnderWay, LinkError> {
        let bytes = request.encode().map_err(|_| LinkError::Answer)?;
        let reply = self.ask(frame::CONTROL, &[&bytes], Waiter::control())?;
        Ok(ControlUnderWay { reply, limit: request.limit() })
    }

    /// The position of the next call; unchanged as long as no call is sent.
    pub fn position(&self) -> u64 {
        self.shared.common.ring.position()
    }

    /// What it has carried so far. Nothing is counted for it on the path of a call.
    pub fn counts(&self) -> LinkCounts {
        let ((calls, sent), [copied_in, copied_out]) = (self.shared.common.ring.taken(), self.shared.common.bulk.bytes());
        let bytes_received = self.shared.transport.received().saturating_add(copied_in);
        LinkCounts { calls, bytes_sent: sent.saturating_add(copied_out), bytes_received }
    }

    /// Number of outstanding answers, without those to control requests.
    pub fn outstanding(&self) -> usize {
        self.shared.common.replies.outstanding()
    }

    /// Whether the link is lost.
    pub fn is_lost(&self) -> bool {
        self.shared.common.replies.is_lost()
    }

    /// Takes the first fault since the last call.
    pub fn take_fault(&self) -> Option<Fault> {
        lock(&self.shared.common.faults).first.take()
    }

    /// Sets a hook that a thread of the link calls for every fault as soon as it arrives, and at once for one that has
    /// not been taken. The hook must not wait for answers of this link.
    pub fn set_fault_hook(&self, hook: impl Fn(Fault) + Send + Sync + 'static) {
        let hook: Arc<Hook> = Arc::new(Box::new(hook));
        let before = {
            let mut f = lock(&self.shared.common.faults);
            f.hook = Some(hook.clone());
            f.first
        };
        if let Some(fault) = before {
            hook(fault);
        }
    }

    /// Sets a hook for what the driver writes to the worker's standard output (1) and error (2), called by a thread of
    /// the link. Text of device code arrives before the answer of the call at which it appears natively. The hook must
    /// not wait for answers of this link.
    pub fn set_text_hook(&self, hook: impl Fn(i32, &[u8]) + Send + Sync + 'static) {
        let mut texts = lock(&self.shared.common.texts);
        texts.before.drain(..).for_each(|(to, text)| hook(to, &text));
        texts.hook = Some(Arc::new(hook));
    }

    /// Sets a hook for the server's request that the job move away, called by a thread of the link. The hook must not wait for
    /// answers of this link.
    pub fn set_leave_hook(&self, hook: impl Fn(LeaveRequest) + Send + Sync + 'static) {
        let mut leaves = lock(&self.shared.common.leaves);
        let before = std::mem::take(&mut leaves.before);
        let hook = leaves.hook.insert(Arc::new(hook)).clone();
        drop(leaves);
        before.into_iter().for_each(|request| hook(request));
    }

    /// Closes the link: the worker frees everything and exits. Waits for that for a limited time.
    pub fn close(&self) {
        self.shared.common.inquiry.end();
        // The worker does the same before it exits.
        self.shared.common.alike.forget_all();
        if let Ok(reply) = self.request(frame::GOODBYE, &[]) {
            // A worker that cannot free its memory ends with the connection.
            let _ = reply.wait_for(self.shared.common.limits.goodbye);
        }
        self.end();
    }

    /// Closes the connection at once: waiting threads get an error, and the worker detects the end by itself.
    pub fn abandon(&self) {
        self.end();
    }

    /// Mirrors memory of this process at the worker, at the same address, by whole pages. The worker's copy must be
    /// zero at first. `exclusive`: the program does not touch it while kernels run.
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable until [`Link::forget_memory`] or the link's end.
    ///
    /// # Errors
    /// There is no memory or no thread for that.
    pub unsafe fn keep_alike(&self, at: u64, bytes: u64, exclusive: bool) -> io::Result<()> {
        // SAFETY: as the caller says; the link's end forgets all memory.
        let begins = unsafe { self.shared.common.alike.add(at, bytes, exclusive) }?;
        self.begin_to_mirror(begins)
    }

    /// As [`Link::keep_alike`], for a block in a slab that the worker has registered; `body`: of the call that requests it. It is not
    /// waited for. Returns its position, as [`Link::send`] does.
    ///
    /// # Safety
    /// As for [`Link::keep_alike`].
    ///
    /// # Errors
    /// There is no memory or no thread for that; [`Lost`] if the link is lost.
    pub unsafe fn keep_block_alike(&self, body: &[u8], at: u64, bytes: u64) -> io::Result<Result<Range<u64>, Lost>> {
        let id = ops::id::HOST_BLOCK;
        traffic::sent(id, &[body]);
        let push = || self.shared.common.ring.push(id, frame::NO_TICKET, &[body]).map_err(|e| self.not_sent(e));
        // SAFETY: as the caller says; the link's end forgets all memory.
        match unsafe { self.shared.common.alike.add_block(at, bytes, push) }? {
            Ok((span, begins)) => self.begin_to_mirror(begins).map(|()| Ok(span)),
            Err(lost) => Ok(Err(lost)),
        }
    }

    fn begin_to_mirror(&self, begins: bool) -> io::Result<()> {
        if begins {
            let shared = self.shared.clone();
            let keep = move || shared.common.alike.keep(&shared.common.ring, || shared.common.replies.is_lost());
            threads::spawn("mrcuda-alike", keep).inspect_err(|_| self.shared.common.alike.not_started())?;
        }
        Ok(())
    }

    /// As [`Link::forget_memory`]; also waits until no change found in it is being sent.
    pub fn give_up_memory(&self, at: u64) {
        self.shared.common.alike.give_up(at);
    }

    /// Stops mirroring, so the memory may be freed. What the worker does to its copy no longer matters.
    pub fn forget_memory(&self, at: u64) {
        self.shared.common.alike.forget(at);
    }

    /// Sends the job's changes to the worker now.
    pub fn send_changes(&self) -> Result<(), Lost> {
        self.shared.common.alike.send_changes(&self.shared.common.ring, true).map(drop).map_err(|e| self.not_sent(e))
    }

    /// Sets a callback that sees the job's changes before they are sent; it returns true if it has made the link mirror
    /// more memory, whose contents are sent first. It may wait for answers, and must not send work. `may_name`: whether there may be
    /// addresses of memory for it among the words of a page; it must not wait.
    pub fn set_watch(
        &self,
        may_name: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
        name: impl Fn(&[Line]) -> bool + Send + Sync + 'static,
    ) {
        self.shared.common.alike.set_watch(Watch { may_name: Box::new(may_name), name: Box::new(name) });
    }

    fn end(&self) {
        self.shared.common.alike.forget_all();
        self.shared.common.lose("the connection was closed");
        self.shared.common.ring.stop();
    }
}

/// A control request that was sent.
#[derive(Debug)]
pub struct ControlUnderWay {
    reply: Reply,
    limit: Option<Duration>,
}

impl ControlUnderWay {
    /// Waits for the answer, as [`Link::control`] does.
    pub fn finish(self) -> Result<ControlReply, LinkError> {
        let (_, answer) = match self.limit {
            None => self.reply.wait()?,
            Some(limit) => self.reply.wait_for(limit).ok_or(LinkError::Unanswered(limit))??,
        };
        match ControlReply::of_answer(&answer).map_err(|_| LinkError::Answer)? {
            ControlReply::Refused(why) => Err(LinkError::Refused(why)),
            reply => Ok(reply),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

/// The call for a large copy: its id and its body.
fn operation(memory: &BulkMemory, token: u64) -> (u16, Vec<u8>) {
    let BulkMemory { device: address, bytes, stream, late, to_device, .. } = *memory;
    let mut body = Vec::new();
    ops::BulkCopy { token, address, bytes, stream, late }.put(&mut body);
    (bulk::operation(to_device), body)
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod network_tests;
#[cfg(test)]
mod tests;
