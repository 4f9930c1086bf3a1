//! The greeting: the first messages on a connection (docs/formats.md, "Greeting").
//!
//! The server sends first. Over TCP the two then make the connection a TLS connection, unless both were started to do
//! without. Both ends prove that they know the secret (a token, or the ticket of a data connection) without sending
//! it; on a Unix socket the kernel identifies the peer to the server, and the secret is all zero. The proofs cover what
//! the server has offered, what the client has chosen, and the TLS connection itself. A client does not say whose token it
//! has: the server compares the proof with one for each token that it accepts.

use crate::certificate::Fingerprint;
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::handshake::{self, Established, HandshakeError, ServerTls, Trust};
use crate::known_servers;
use crate::local_socket::Invitation;
use crate::secret::Secret;
use crate::socket;
use crate::token::random;
use cuda_api::wire::{Short, Wire, take};
use cuda_api::{calls, ops, wire_struct};
use nix::poll::PollFlags;
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const MAGIC: [u8; 8] = *b"mrcuda\r\n";
/// Version of the greeting and of the frames.
pub(crate) const PROTOCOL: u32 = 22;
/// Maximum length of the body of an opening and of the text of a refusal.
const BODY: usize = 64 << 10;
/// Bytes of a preamble: magic, protocol, build.
const PREAMBLE: usize = 8 + 4 + 32;
/// Bytes of a route, and of all that a client says at once: preamble, choice, route.
const ROUTE: usize = 8;
const FIRST: usize = PREAMBLE + 1 + ROUTE;
/// What a server offers, as bits, and a client chooses: TLS, or no encryption.
const TLS: u8 = 1;
const PLAIN: u8 = 2;
/// How long to wait for a refused client to disconnect.
const PARTING: Duration = Duration::from_millis(300);
/// Maximum length of the name of a job.
const LONGEST_NAME: usize = 256;
/// Maximum number of environment variables in an opening.
const VARIABLES: usize = 256;

/// Digest of everything that both ends must have in common: version, protocol, pieces of memory, rows, operations.
pub fn build_digest() -> [u8; 32] {
    static DIGEST: OnceLock<[u8; 32]> = OnceLock::new();
    *DIGEST.get_or_init(|| {
        let mut h = blake3::Hasher::new();
        h.update(format!("{} {PROTOCOL} {}\n", env!("CARGO_PKG_VERSION"), memsync::BATCH).as_bytes());
        for row in calls::rows() {
            h.update(
                format!("{:04x} {} {:?} {:?} {:?} {:?}\n", row.id, row.name, row.class, row.how, row.params, row.forms)
                    .as_bytes(),
            );
        }
        for op in ops::Op::ALL {
            h.update(format!("{:04x} {}\n", op.id(), op.name()).as_bytes());
        }
        *h.finalize().as_bytes()
    })
}

wire_struct! {
    /// A job's description of itself for a worker's server.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JobHello {
        /// Number of the device in the job (0 to 31), which determines the addresses.
        pub virtual_device: u32,
        /// The job's process.
        pub pid: u32,
        /// The job's `CUDA_*` environment.
        pub env: Vec<(String, String)>,
        /// The job's name, by its own word.
        pub name: String,
    }
}

/// What a job says about a socket of the server on its machine (see [`crate::local_socket`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locality {
    /// Nothing: it stays on this connection.
    None,
    /// Over TCP: it would rather use that socket, if the server is on this machine.
    Machine([u8; 32]),
    /// At the socket: it has an invitation of this name.
    Invited([u8; 32]),
}

impl Wire for Locality {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Locality::None => 0u8.put(out),
            Locality::Machine(machine) => (1u8, *machine).put(out),
            Locality::Invited(name) => (2u8, *name).put(out),
        }
    }

    fn get(src: &mut &[u8]) -> Result<Locality, Short> {
        match u8::get(src)? {
            0 => Ok(Locality::None),
            1 => Ok(Locality::Machine(Wire::get(src)?)),
            2 => Ok(Locality::Invited(Wire::get(src)?)),
            _ => Err(Short),
        }
    }
}

/// The purpose of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The calls of a job for one GPU of the server.
    Job {
        /// Number of the GPU.
        gpu: u32,
        /// RDMA is to carry its calls.
        rdma: bool,
        /// The job waits if the server is full.
        waits: bool,
        /// What it says about a socket of the server on its machine.
        locality: Locality,
        /// The job.
        hello: JobHello,
    },
    /// One data connection of a copy between places.
    Bulk {
        /// Digest of the ticket.
        name: [u8; 32],
        /// RDMA is to carry it, if possible.
        rdma: bool,
    },
    /// A question about the server: the client gets its [`crate::ServerState`].
    Inspect,
    /// A measurement of the connection.
    Trial,
}

impl Opening {
    pub(crate) fn role(&self) -> u8 {
        match self {
            Opening::Job { .. } => 1,
            Opening::Bulk { .. } => 2,
            Opening::Inspect => 3,
            Opening::Trial => 4,
        }
    }

    /// What the client says of its ticket before the greeting.
    fn route(&self) -> Route {
        match self {
            Opening::Bulk { name, .. } => route(name),
            Opening::Job { .. } | Opening::Inspect | Opening::Trial => Route::default(),
        }
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Opening::Job { gpu, rdma, waits, locality, hello } => {
                gpu.put(&mut out);
                (*rdma, *waits).put(&mut out);
                locality.put(&mut out);
                hello.put(&mut out);
            }
            Opening::Bulk { name, rdma } => (*name, *rdma).put(&mut out),
            Opening::Inspect | Opening::Trial => {}
        }
        out
    }

    pub(crate) fn read(role: u8, mut body: &[u8]) -> Result<Opening, Short> {
        let src = &mut body;
        let opening = match role {
            1 => {
                let (gpu, rdma, waits) = (Wire::get(src)?, Wire::get(src)?, Wire::get(src)?);
                Opening::Job { gpu, rdma, waits, locality: Wire::get(src)?, hello: Wire::get(src)? }
            }
            2 => Opening::Bulk { name: Wire::get(src)?, rdma: Wire::get(src)? },
            3 => Opening::Inspect,
            4 => Opening::Trial,
            _ => return Err(Short),
        };
        match &opening {
            Opening::Job { hello, .. }
                if hello.virtual_device >= 32 || hello.env.len() > VARIABLES || hello.name.len() > LONGEST_NAME =>
            {
                Err(Short)
            }
            _ if src.is_empty() => Ok(opening),
            _ => Err(Short),
        }
    }
}

/// The public name of a ticket, which does not reveal the ticket.
pub(crate) fn ticket_name(ticket: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("mrcuda 2026 ticket name", ticket)
}

/// What a client says unencrypted of the ticket that it has, by which a server finds the daemon that knows it (see
/// [`crate::daemon`], "take-over"); zeros without one.
pub(crate) type Route = [u8; ROUTE];

/// The route of a ticket of this name, which does not reveal the name.
pub(crate) fn route(ticket_name: &[u8; 32]) -> Route {
    let digest = blake3::derive_key("mrcuda 2026 ticket route", ticket_name);
    std::array::from_fn(|i| digest[i])
}

/// Key by which a data connection proves its ticket.
pub(crate) fn ticket_key(ticket: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("mrcuda 2026 ticket key", ticket)
}

/// Why a server was not greeted, as far as users do different things about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotGreeted {
    /// The server does not have this end's token.
    #[error("the server does not know this token: it is not the expected server")]
    WrongToken,
    /// The server did not answer in time.
    #[error("the server does not answer")]
    NoAnswer,
    /// The server is another build.
    #[error("the peer is another build of mrcuda: install the same build at both ends")]
    OtherBuild,
    /// Another program listens there.
    #[error("the peer does not speak the mrcuda protocol")]
    OtherProtocol,
    /// Any other reason, such as a refusal of the server in its own words.
    #[error("{0}")]
    Other(String),
}

/// Why a greeting failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GreetError {
    /// The peer sent something else.
    #[error("{}", NotGreeted::OtherProtocol)]
    Garbage,
    /// The peer is a different build.
    #[error("{}", NotGreeted::OtherBuild)]
    OtherBuild,
    /// The peer's secret is wrong.
    #[error("wrong token")]
    WrongToken,
    /// The peer says that this end's secret is wrong.
    #[error(
        "wrong token: copy the server's token file to this machine, to $MRCUDA_TOKEN_FILE or ~/.config/mrcuda/token; a token of your own \
         may have been revoked: ask who runs the server for a new one (mrcuda token add)"
    )]
    TokenRefused,
    /// The server encrypts, and the client does not want that.
    #[error("this server accepts encrypted connections only: name it without plain://, or start it with --allow-plain")]
    PlainRefused,
    /// The server encrypts, and RDMA does not.
    #[error(
        "this server accepts encrypted connections only, and RDMA is not encrypted: name it without rdma://, or start it with --allow-plain"
    )]
    RdmaRefused,
    /// The client wants encryption, and the server does not offer it.
    #[error("the server offers no encryption, or somebody on the way has removed the offer")]
    NoTls,
    /// The handshake failed.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    /// The server's certificate is not the expected one, or a file with certificates cannot be used.
    #[error("{0}")]
    Untrusted(String),
    /// The ticket of a data connection is unknown or used up.
    #[error("unknown ticket")]
    UnknownTicket,
    /// The peer took too long.
    #[error("too slow")]
    TooSlow,
    /// Too many clients are greeting; retry soon.
    #[error("the server is busy: too many clients are connecting at the same time")]
    Busy,
    /// The server closed the connection without a reason that arrived; retry soon.
    #[error("the server closed the connection during the greeting ({0})")]
    HungUp(io::Error),
    /// The peer refused.
    #[error("{0}")]
    Refused(String),
    /// The server is full, and answers later.
    #[error("it has no room: {0}")]
    Waiting(String),
    /// The server is on this machine, and expects the job at its socket there.
    #[error("the server expects this job at a socket of this machine")]
    Invited(Invitation),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(io::Error),
}

impl GreetError {
    /// What [`GreetError::reason`] says of clients that a daemon refuses.
    pub(crate) const REASONS: [&str; 9] =
        ["wrong_token", "other_build", "garbage", "encryption", "unknown_ticket", "too_slow", "busy", "refused", "connection"];

    /// In one word, for those who count.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            GreetError::Garbage => "garbage",
            GreetError::OtherBuild => "other_build",
            GreetError::WrongToken | GreetError::TokenRefused => "wrong_token",
            GreetError::PlainRefused
            | GreetError::RdmaRefused
            | GreetError::NoTls
            | GreetError::Tls(_)
            | GreetError::Untrusted(_) => "encryption",
            GreetError::UnknownTicket => "unknown_ticket",
            GreetError::TooSlow => "too_slow",
            GreetError::Busy => "busy",
            GreetError::Refused(_) | GreetError::Waiting(_) | GreetError::Invited(_) => "refused",
            GreetError::HungUp(_) | GreetError::Io(_) => "connection",
        }
    }
}

impl From<io::Error> for GreetError {
    fn from(e: io::Error) -> GreetError {
        if e.kind() == io::ErrorKind::TimedOut { GreetError::TooSlow } else { GreetError::Io(e) }
    }
}

impl From<HandshakeError> for GreetError {
    fn from(e: HandshakeError) -> GreetError {
        match e {
            HandshakeError::Io(e) => e.into(),
            HandshakeError::Tls(e) => GreetError::Tls(e),
            HandshakeError::Plain(_) => GreetError::Garbage,
            HandshakeError::File(_) | HandshakeError::Untrusted(_) => GreetError::Untrusted(e.to_string()),
        }
    }
}

pub(crate) fn preamble() -> Vec<u8> {
    [&MAGIC[..], &PROTOCOL.to_le_bytes(), &build_digest()].concat()
}

fn check_preamble(said: &[u8; PREAMBLE]) -> Result<(), GreetError> {
    if said[..8] != MAGIC {
        Err(GreetError::Garbage)
    } else if said[..] != preamble() {
        Err(GreetError::OtherBuild)
    } else {
        Ok(())
    }
}

/// What both ends have said and seen of each other.
struct Transcript<'a> {
    offer: u8,
    choice: u8,
    route: Route,
    /// Bytes that only the two ends of a TLS connection have; zeros without one.
    binding: [u8; 32],
    /// The server's and the client's.
    nonces: [[u8; 32]; 2],
    role: u8,
    body: &'a [u8],
}

impl Transcript<'_> {
    /// A hash of it, so that a proof takes the same short time however long the body is.
    fn digest(&self) -> Digest {
        let mut h = blake3::Hasher::new();
        h.update(&build_digest()).update(&[self.offer, self.choice]).update(&self.route).update(&self.binding);
        h.update(&self.nonces[0]).update(&self.nonces[1]).update(&[self.role]).update(self.body);
        Digest(h.finalize())
    }
}

/// Digest of a [`Transcript`].
struct Digest(blake3::Hash);

impl Digest {
    /// The proof of one end, `client` or `server`, that it knows the key and has seen the same.
    fn proof(&self, key: &[u8; 32], who: &str) -> blake3::Hash {
        let mut h = blake3::Hasher::new_keyed(key);
        h.update(who.as_bytes()).update(self.0.as_bytes());
        h.finalize()
    }
}

/// A client that has proved a secret.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub(crate) opening: Opening,
    /// The binding of the TLS connection, or zeros.
    pub(crate) binding: [u8; 32],
    /// The secret that it has proved.
    pub(crate) secret: Secret,
}

/// First byte of an answer.
const ACCEPTED: u8 = 0;
const REFUSED: u8 = 1;
const BUSY: u8 = 2;
const WRONG_TOKEN: u8 = 3;
const WAITING: u8 = 4;
const INVITED: u8 = 5;

/// Sends an answer: bytes, or the text of a refusal.
pub(crate) fn answer(conn: &Conn, answer: Result<&[u8], &str>) -> io::Result<()> {
    match answer {
        Ok(body) => say(conn, ACCEPTED, body),
        Err(text) => say(conn, REFUSED, text.as_bytes()),
    }
}

/// Tells a job that it has to wait, and why; an answer follows later.
pub(crate) fn keep_waiting(conn: &Conn, why: &str) -> io::Result<()> {
    say(conn, WAITING, why.as_bytes())
}

/// Invites a job that is on the server's machine to the server's socket there, and ends the connection.
pub(crate) fn invite(conn: &Conn, invitation: &Invitation) -> io::Result<()> {
    say(conn, INVITED, &invitation.bytes())?;
    conn.part(Instant::now() + PARTING);
    Ok(())
}

fn say(conn: &Conn, status: u8, body: &[u8]) -> io::Result<()> {
    let body = &body[..body.len().min(BODY)];
    let mut out = vec![status];
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(body);
    (&mut &*conn).write_all(&out)
}

/// Reads an answer.
pub(crate) fn read_answer(conn: &Conn, deadline: Instant) -> Result<Vec<u8>, GreetError> {
    let mut head = [0; 5];
    conn.read_exact_by(&mut head, deadline)?;
    read_rest(head, conn, deadline)
}

/// Reads the rest of an answer.
fn read_rest(head: [u8; 5], conn: &Conn, deadline: Instant) -> Result<Vec<u8>, GreetError> {
    let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if len > BODY || head[0] > INVITED {
        return Err(GreetError::Garbage);
    }
    let mut body = vec![0; len];
    conn.read_exact_by(&mut body, deadline)?;
    match head[0] {
        ACCEPTED => Ok(body),
        BUSY => Err(GreetError::Busy),
        WRONG_TOKEN => Err(GreetError::TokenRefused),
        INVITED => Err(Invitation::read(&body).map_or(GreetError::Garbage, GreetError::Invited)),
        other => {
            let text = String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).collect();
            Err(if other == WAITING { GreetError::Waiting(text) } else { GreetError::Refused(text) })
        }
    }
}

/// Time limits of a client: for the next message of a server, and for the whole greeting. A server that sends the next
/// message is alive; on a busy machine it may be slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) silence: Duration,
    pub(crate) end: Instant,
}

impl Limits {
    /// Deadline of the next message.
    pub(crate) fn next(&self) -> Instant {
        self.end.min(Instant::now() + self.silence)
    }
}

/// How a client protects a connection, and how it identifies the server in addition to the secret.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Protection<'a> {
    /// No encryption: a Unix socket, or TCP if the user has asked for it.
    Plain,
    /// TLS with any server that knows the secret.
    AnyServer,
    /// TLS with this server.
    Server(&'a Endpoint, &'a Trust),
}

/// The client's part. Returns the binding of the TLS connection, or zeros, when the server has accepted; the messages that
/// follow depend on the opening.
pub(crate) fn greet(
    conn: &Conn,
    opening: &Opening,
    key: &[u8; 32],
    protection: Protection<'_>,
    limits: Limits,
) -> Result<[u8; 32], GreetError> {
    let choice = if matches!(protection, Protection::Plain) { PLAIN } else { TLS };
    let meet = || {
        preambles(conn, choice, opening.route(), limits)?;
        prove(conn, opening, key, (protection, choice), limits)
    };
    meet().map_err(|why| match why {
        GreetError::Io(e) if has_hung_up(&e) => GreetError::HungUp(e),
        why => why,
    })
}

/// The client's part of the preambles, in which each end identifies itself. The client's is sent without waiting for the server's: a server
/// may have to see it before it knows which daemon greets.
fn preambles(conn: &Conn, choice: u8, route: Route, limits: Limits) -> Result<(), GreetError> {
    send(conn, &[&preamble()[..], &[choice], &route].concat())?;
    let mut said = [0; PREAMBLE];
    // Other servers send less than that and then wait.
    conn.read_exact_by(&mut said[..MAGIC.len()], limits.next())?;
    if said[..MAGIC.len()] != MAGIC {
        return Err(GreetError::Garbage);
    }
    conn.read_exact_by(&mut said[MAGIC.len()..], limits.next())?;
    check_preamble(&said)
}

/// Writes to a server that may have closed the connection already: its reason is read next.
fn send(mut conn: &Conn, bytes: &[u8]) -> io::Result<()> {
    conn.write_all(bytes).or_else(|e| if has_hung_up(&e) { Ok(()) } else { Err(e) })
}

/// The client's part after the preambles: encryption, and each end proves that it knows the secret.
fn prove(
    conn: &Conn,
    opening: &Opening,
    key: &[u8; 32],
    (protection, choice): (Protection<'_>, u8),
    limits: Limits,
) -> Result<[u8; 32], GreetError> {
    let (mut offer, mut theirs) = ([0], [0; 32]);
    conn.read_exact_by(&mut offer, limits.next())?;
    conn.read_exact_by(&mut theirs, limits.next())?;
    if offer[0] & choice == 0 {
        return Err(if choice == PLAIN { GreetError::PlainRefused } else { GreetError::NoTls });
    }
    let established = encrypt(conn, protection, limits)?;
    let ours = random()?;
    let body = opening.body();
    if body.len() > BODY {
        return Err(GreetError::Refused("the CUDA_* environment is too long".into()));
    }
    let binding = established.as_ref().map_or([0; 32], |e| e.binding);
    let (role, route, nonces) = (opening.role(), opening.route(), [theirs, ours]);
    let digest = Transcript { offer: offer[0], choice, route, binding, nonces, role, body: &body }.digest();
    let mut out = vec![role];
    out.extend(ours);
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(&body);
    out.extend(digest.proof(key, "client").as_bytes());
    send(conn, &out)?;
    let answer = read_answer(conn, limits.next())?;
    // A server that does not know the secret must not get the job's data. The comparison takes constant time.
    match <[u8; 32]>::try_from(answer) {
        Ok(said) if digest.proof(key, "server") == said => {}
        _ => return Err(GreetError::WrongToken),
    }
    // Only now: no other server can have its certificate recorded.
    if let (Protection::Server(to, trust), Some(Established { peer: Some(peer), .. })) = (protection, established)
        && trust.authorities.is_none()
        && let Err(e) = known_servers::record(&trust.known_servers, &to.server(), &peer)
    {
        let file = trust.known_servers.display();
        tracing::warn!(target: "connect", "the certificate of {to} cannot be recorded in {file}: {e}");
    }
    Ok(binding)
}

/// The client's handshake, and its check of the server's certificate.
fn encrypt(conn: &Conn, protection: Protection<'_>, limits: Limits) -> Result<Option<Established>, GreetError> {
    let server = match protection {
        Protection::Plain => return Ok(None),
        Protection::AnyServer => None,
        Protection::Server(to, trust) => Some((trust, &*to.host)),
    };
    let established = match handshake::connect(conn, server, || limits.next()) {
        Err(HandshakeError::Plain(head)) => {
            return Err(read_rest(head, conn, limits.next()).map_or_else(|why| why, |_| GreetError::Garbage));
        }
        established => established?,
    };
    if let Protection::Server(to, Trust { authorities: None, known_servers: file, .. }) = protection {
        let seen = established.peer.ok_or(GreetError::Garbage)?;
        let failed = |e: io::Error| GreetError::Untrusted(format!("cannot read {}: {e}", file.display()));
        let known = known_servers::recorded(file, &to.server()).map_err(failed)?;
        if !known.is_empty() && !known.contains(&seen.to_string()) {
            return Err(GreetError::Untrusted(changed(to, &known, &seen, file)));
        }
    }
    Ok(Some(established))
}

/// The error for a server with another certificate than before.
fn changed(to: &Endpoint, known: &[String], seen: &Fingerprint, file: &std::path::Path) -> String {
    format!(
        "its certificate has changed: it is {seen}, and {} records {} for {}. Either its certificate file was replaced, or \
         another machine answers at its address. If you know why, remove that line from the file",
        file.display(),
        known.join(" and "),
        to.server()
    )
}

fn has_hung_up(e: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// What a server accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer<'a> {
    /// TLS, with this certificate.
    pub(crate) tls: Option<&'a ServerTls>,
    /// Connections without encryption.
    pub(crate) plain: bool,
}

impl Offer<'_> {
    /// A Unix socket.
    pub(crate) const LOCAL: Offer<'static> = Offer { tls: None, plain: true };

    fn bits(&self) -> u8 {
        (u8::from(self.tls.is_some()) * TLS) | (u8::from(self.plain) * PLAIN)
    }
}

/// The server's part: `secrets_for` returns the secrets of which one opens the server for an opening, and learns whether the
/// client has a certificate of an authority. On an error the client has not been told yet: see [`refuse`].
pub(crate) fn receive(
    conn: &Conn,
    limit: Duration,
    offer: Offer<'_>,
    secrets_for: impl FnOnce(&Opening, bool) -> Result<Arc<[Secret]>, GreetError>,
) -> Result<Greeted, GreetError> {
    hear(conn, Instant::now() + limit, offer, secrets_for)
}

/// The secret that a client has proved.
fn proved<'a>(secrets: &'a [Secret], digest: &Digest, said: &[u8; 32]) -> Option<&'a Secret> {
    let mut found = None;
    // All are compared, and each comparison takes constant time: the time tells nobody whose token comes close, or where it stands.
    for secret in secrets {
        if digest.proof(&secret.key, "client") == *said {
            found = Some(secret);
        }
    }
    found
}

/// The route that a client has sent, whatever its build, without reading anything: another daemon can still greet it. `None` if none
/// arrives in time, or something else.
pub(crate) fn peek_route(conn: &Conn, limit: Duration) -> Option<Route> {
    /// A peek does not wait for the rest of what has arrived in part.
    const POLL_INTERVAL: Duration = Duration::from_millis(1);
    let until = Instant::now() + limit;
    let mut said = [0; FIRST];
    loop {
        let n = socket::peek(conn.socket().ok()?, &mut said).ok()?;
        if n == FIRST {
            return (said[..MAGIC.len()] == MAGIC).then(|| std::array::from_fn(|i| said[PREAMBLE + 1 + i]));
        }
        let left = until.saturating_duration_since(Instant::now());
        // The end of the stream is readable, too.
        if left.is_zero() || conn.ready(PollFlags::POLLIN, left).ok()?.is_empty() || conn.wait_gone(Duration::ZERO) {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Whether a client, of which nothing has been read, has said that it is this build.
pub(crate) fn is_of_this_build(conn: &Conn) -> bool {
    let mut said = [0; PREAMBLE];
    conn.socket().and_then(|fd| socket::peek(fd, &mut said)).is_ok_and(|n| n == PREAMBLE && check_preamble(&said).is_ok())
}

/// Sends our preamble to a client that is refused before its greeting is read; without it the client could not decode
/// the refusal.
pub(crate) fn introduce(mut conn: &Conn, offer: Offer<'_>) -> io::Result<()> {
    conn.write_all(&[&preamble()[..], &[offer.bits()], &random()?].concat())
}

/// Sends the reason for a refusal to the client.
pub(crate) fn refuse(conn: &Conn, why: &GreetError) {
    // The peer may have disconnected, or not be a client at all, so errors are ignored.
    let _ = match why {
        GreetError::Busy => say(conn, BUSY, &[]),
        GreetError::WrongToken => say(conn, WRONG_TOKEN, why.to_string().as_bytes()),
        why => say(conn, REFUSED, why.to_string().as_bytes()),
    };
    conn.part(Instant::now() + PARTING);
}

fn hear(
    mut conn: &Conn,
    deadline: Instant,
    offer: Offer<'_>,
    secrets_for: impl FnOnce(&Opening, bool) -> Result<Arc<[Secret]>, GreetError>,
) -> Result<Greeted, GreetError> {
    let ours = random()?;
    conn.write_all(&[&preamble()[..], &[offer.bits()], &ours].concat())?;
    let mut said = [0; PREAMBLE];
    conn.read_exact_by(&mut said[..8], deadline)?;
    if said[..8] != MAGIC {
        return Err(GreetError::Garbage);
    }
    conn.read_exact_by(&mut said[8..], deadline)?;
    check_preamble(&said)?;
    let (mut choice, mut route) = ([0], [0; ROUTE]);
    conn.read_exact_by(&mut choice, deadline)?;
    conn.read_exact_by(&mut route, deadline)?;
    let established = match (choice[0], offer.tls) {
        (TLS, Some(tls)) => Some(tls.accept(conn, deadline)?),
        (PLAIN, _) if offer.plain => None,
        (PLAIN, _) => return Err(GreetError::PlainRefused),
        _ => return Err(GreetError::Garbage),
    };
    let mut head = [0; 1 + 32 + 4];
    conn.read_exact_by(&mut head, deadline)?;
    let mut rest = &head[..];
    let parts = (|| -> Result<_, Short> {
        let role = u8::get(&mut rest)?;
        let theirs: [u8; 32] = take(&mut rest, 32)?.try_into().map_err(|_| Short)?;
        Ok((role, theirs, u32::get(&mut rest)? as usize))
    })();
    let (role, theirs, len) = parts.map_err(|_| GreetError::Garbage)?;
    if len > BODY {
        return Err(GreetError::Garbage);
    }
    let mut body = vec![0; len];
    conn.read_exact_by(&mut body, deadline)?;
    let mut proof = [0; 32];
    conn.read_exact_by(&mut proof, deadline)?;
    let opening = Opening::read(role, &body).map_err(|_| GreetError::Garbage)?;
    // It may have come here by its route.
    if route != opening.route() {
        return Err(GreetError::UnknownTicket);
    }
    let secrets = secrets_for(&opening, established.as_ref().is_some_and(|e| e.peer.is_some()))?;
    let binding = established.map_or([0; 32], |e| e.binding);
    let nonces = [ours, theirs];
    let digest = Transcript { offer: offer.bits(), choice: choice[0], route, binding, nonces, role, body: &body }.digest();
    let secret = proved(&secrets, &digest, &proof).ok_or(GreetError::WrongToken)?.clone();
    answer(conn, Ok(digest.proof(&secret.key, "server").as_bytes()))?;
    Ok(Greeted { opening, binding, secret })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::pair;
    use crate::token::Token;
    use crate::user_tokens::UserToken;
    use std::thread;

    const LIMIT: Duration = Duration::from_secs(5);

    fn within(limit: Duration) -> Limits {
        Limits { silence: limit, end: Instant::now() + limit }
    }

    fn job(pid: u32) -> Opening {
        let hello =
            JobHello { virtual_device: 3, pid, env: vec![("CUDA_LAUNCH_BLOCKING".into(), "1".into())], name: String::new() };
        Opening::Job { gpu: 1, rdma: false, waits: false, locality: Locality::Machine([6; 32]), hello }
    }

    /// Runs both ends; returns the result of each.
    fn meet(opening: Opening, client: [u8; 32], server: [u8; 32]) -> (Result<(), GreetError>, Result<Opening, GreetError>) {
        let (here, there) = meet_one_of(opening, client, vec![Secret::of_nobody(server)]);
        (here, there.map(|greeted| greeted.opening))
    }

    /// The same with a server that accepts several secrets.
    fn meet_one_of(
        opening: Opening,
        client: [u8; 32],
        secrets: Vec<Secret>,
    ) -> (Result<(), GreetError>, Result<Greeted, GreetError>) {
        let (a, b) = pair();
        let there =
            thread::spawn(move || receive(&b, LIMIT, Offer::LOCAL, |_, _| Ok(secrets.into())).inspect_err(|why| refuse(&b, why)));
        let here = greet(&a, &opening, &client, Protection::Plain, within(LIMIT));
        (here.map(drop), there.join().unwrap())
    }

    fn of_user(name: &str, key: u8) -> Secret {
        Secret::of_user(UserToken { name: name.to_owned(), token: Token([key; 32]), added_unix_ms: 5 })
    }

    #[test]
    fn each_user_is_recognized_by_their_own_token_alone() {
        let all = || vec![Secret::of_nobody([1; 32]), of_user("ann", 2), of_user("bob", 3)];
        for (key, user) in [(1, None), (2, Some("ann")), (3, Some("bob"))] {
            // The server proves the same token: the client would not go on with another one.
            let (here, there) = meet_one_of(job(7), [key; 32], all());
            here.unwrap();
            assert_eq!(there.unwrap().secret.user_name().as_deref(), user);
        }
        let (here, there) = meet_one_of(job(7), [4; 32], all());
        assert!(matches!((here, there), (Err(GreetError::TokenRefused), Err(GreetError::WrongToken))));
        // One that was revoked, and a server without any.
        for secrets in [vec![Secret::of_nobody([1; 32]), of_user("bob", 3)], Vec::new()] {
            let (here, there) = meet_one_of(job(7), [2; 32], secrets);
            assert!(matches!((here, there), (Err(GreetError::TokenRefused), Err(GreetError::WrongToken))));
        }
    }

    #[test]
    fn a_server_that_answers_with_another_token_is_not_believed() {
        let (a, mut b) = pair();
        let (ann, bob) = ([2; 32], [3; 32]);
        let there = thread::spawn(move || {
            b.write_all(&[&preamble()[..], &[PLAIN], &[9; 32]].concat()).unwrap();
            let mut said = vec![0; FIRST + 37 + job(7).body().len() + 32];
            b.read_exact_by(&mut said, Instant::now() + LIMIT).unwrap();
            // Bob knows his own token, and has seen all that Ann has sent.
            let theirs = said[FIRST + 1..FIRST + 33].try_into().unwrap();
            let nonces = [[9; 32], theirs];
            let body = job(7).body();
            let route = Route::default();
            let digest =
                Transcript { offer: PLAIN, choice: PLAIN, route, binding: [0; 32], nonces, role: 1, body: &body }.digest();
            let is_ann = digest.proof(&ann, "client").as_bytes()[..] == said[said.len() - 32..];
            answer(&b, Ok(digest.proof(&bob, "server").as_bytes())).unwrap();
            is_ann
        });
        let here = greet(&a, &job(7), &ann, Protection::Plain, within(LIMIT));
        assert!(matches!(here, Err(GreetError::WrongToken)));
        assert!(there.join().unwrap(), "the test reads what was sent");
    }

    /// Runs a client that sends `bytes`; returns the server's error, and what the server sends after its preamble.
    fn hears(bytes: Vec<u8>, limit: Duration) -> (GreetError, String) {
        let (mut a, b) = pair();
        let there = thread::spawn(move || {
            let secrets = |_: &Opening, _| Ok(Arc::from([Secret::of_nobody([1; 32])]));
            receive(&b, limit, Offer::LOCAL, secrets).inspect_err(|why| refuse(&b, why)).unwrap_err()
        });
        a.read_exact_by(&mut [0; PREAMBLE + 33], Instant::now() + LIMIT).unwrap();
        a.write_all(&bytes).unwrap();
        let said = read_answer(&a, Instant::now() + LIMIT).unwrap_err().to_string();
        (there.join().unwrap(), said)
    }

    #[test]
    fn equal_secrets_meet() {
        let (here, there) = meet(job(7), [1; 32], [1; 32]);
        here.unwrap();
        assert_eq!(there.unwrap(), job(7));
        let (here, there) = meet(Opening::Inspect, [1; 32], [1; 32]);
        here.unwrap();
        assert_eq!(there.unwrap(), Opening::Inspect);
        let bulk = Opening::Bulk { name: ticket_name(&[5; 32]), rdma: true };
        let (here, there) = meet(bulk.clone(), ticket_key(&[5; 32]), ticket_key(&[5; 32]));
        here.unwrap();
        assert_eq!(there.unwrap(), bulk);
    }

    #[test]
    fn a_wrong_token_is_named_on_both_sides() {
        let (here, there) = meet(job(7), [1; 32], [2; 32]);
        assert!(matches!(here, Err(GreetError::TokenRefused)), "{here:?}");
        assert!(matches!(there, Err(GreetError::WrongToken)));
    }

    #[test]
    fn a_server_without_the_token_is_refused() {
        let (a, mut b) = pair();
        let there = thread::spawn(move || {
            b.write_all(&[&preamble()[..], &[PLAIN], &[9; 32]].concat()).unwrap();
            b.read_exact_by(&mut [0; FIRST + 37], Instant::now() + LIMIT).unwrap();
            answer(&b, Ok(&[0; 32])).unwrap();
            b
        });
        assert!(matches!(greet(&a, &job(1), &[1; 32], Protection::Plain, within(LIMIT)), Err(GreetError::WrongToken)));
        there.join().unwrap();
    }

    #[test]
    fn another_build_is_named_on_both_sides() {
        let mut other = preamble();
        other[20] ^= 1;
        let (server, said) = hears(other.clone(), LIMIT);
        assert!(matches!(server, GreetError::OtherBuild));
        assert!(said.contains("another build"), "{said}");
        let (a, mut b) = pair();
        b.write_all(&other).unwrap();
        assert!(matches!(greet(&a, &job(1), &[1; 32], Protection::Plain, within(LIMIT)), Err(GreetError::OtherBuild)));
    }

    #[test]
    fn garbage_is_named() {
        let (server, _) = hears(b"GET / HTTP/1.1\r\nHost: gpubox\r\n\r\n".to_vec(), LIMIT);
        assert!(matches!(server, GreetError::Garbage));
        for (role, len) in [(1u8, u32::MAX), (1, BODY as u32 + 1), (9, 0), (1, 3), (3, 1)] {
            let mut bytes = preamble();
            bytes.push(PLAIN);
            bytes.extend(Route::default());
            bytes.push(role);
            bytes.extend([0; 32]);
            bytes.extend(len.to_le_bytes());
            bytes.extend([0; 64]);
            let (server, _) = hears(bytes, LIMIT);
            assert!(matches!(server, GreetError::Garbage), "{role} {len}: {server}");
        }
        let (a, mut b) = pair();
        b.write_all(&[0x20; 200]).unwrap();
        assert!(matches!(greet(&a, &job(1), &[1; 32], Protection::Plain, within(LIMIT)), Err(GreetError::Garbage)));
    }

    #[test]
    fn slow_peers_are_left() {
        let began = Instant::now();
        let (server, said) = hears(preamble(), Duration::from_millis(150));
        assert!(matches!(server, GreetError::TooSlow));
        assert_eq!(said, "too slow");
        let (a, _b) = pair();
        assert!(matches!(
            greet(&a, &job(1), &[1; 32], Protection::Plain, within(Duration::from_millis(150))),
            Err(GreetError::TooSlow)
        ));
        assert!(began.elapsed() < LIMIT);
    }

    /// A server that sends its messages with a pause before each, until the client disconnects.
    fn dawdles(pause: Duration, parts: impl IntoIterator<Item = Vec<u8>> + Send + 'static) -> Conn {
        let (a, mut b) = pair();
        thread::spawn(move || {
            for part in parts {
                thread::sleep(pause);
                if b.write_all(&part).is_err() {
                    return;
                }
            }
        });
        a
    }

    #[test]
    fn a_server_that_says_something_is_waited_for() {
        let pause = Duration::from_millis(400);
        let busy = || [preamble()[..8].to_vec(), preamble()[8..].to_vec(), vec![PLAIN; 33], [&[BUSY][..], &[0; 4]].concat()];
        let patient = Limits { silence: Duration::from_secs(60), end: Instant::now() + Duration::from_secs(60) };
        assert!(matches!(greet(&dawdles(pause, busy()), &job(1), &[1; 32], Protection::Plain, patient), Err(GreetError::Busy)));
        // But not forever if the server keeps sending, and not if it sends nothing.
        let hasty = Limits { end: Instant::now() + 2 * pause, ..patient };
        let said = greet(&dawdles(pause, busy()), &job(1), &[1; 32], Protection::Plain, hasty);
        assert!(matches!(said, Err(GreetError::TooSlow)), "{said:?}");
        let quiet = Limits { silence: pause / 4, ..patient };
        assert!(matches!(
            greet(&dawdles(4 * pause, busy()), &job(1), &[1; 32], Protection::Plain, quiet),
            Err(GreetError::TooSlow)
        ));
    }

    #[test]
    fn what_is_waited_for_is_the_next_thing_and_no_more_than_all() {
        let limits = Limits { silence: Duration::from_secs(1000), end: Instant::now() + Duration::from_secs(4000) };
        let first = limits.next();
        thread::sleep(Duration::from_millis(5));
        assert!(limits.next() > first && limits.next() < limits.end);
        let short = Limits { end: Instant::now() + Duration::from_secs(10), ..limits };
        assert_eq!(short.next(), short.end);
    }

    #[test]
    fn a_recorded_greeting_cannot_be_used_again() {
        // Everything the client sends is recorded and replayed to a second server, whose nonce differs.
        let (a, mut b) = pair();
        let recorder = thread::spawn(move || {
            b.write_all(&[&preamble()[..], &[PLAIN], &[9; 32]].concat()).unwrap();
            let mut said = vec![0; FIRST + 37 + job(7).body().len() + 32];
            b.read_exact_by(&mut said, Instant::now() + LIMIT).unwrap();
            said
        });
        let _ = greet(&a, &job(7), &[1; 32], Protection::Plain, within(LIMIT));
        let (server, _) = hears(recorder.join().unwrap(), LIMIT);
        assert!(matches!(server, GreetError::WrongToken));
    }

    #[test]
    fn a_refusal_before_the_greeting_and_a_busy_server_are_understood() {
        for why in [GreetError::Refused("this socket serves uid 7 only; you are uid 8".into()), GreetError::Busy] {
            let wanted = why.to_string();
            let (a, b) = pair();
            let there = thread::spawn(move || {
                introduce(&b, Offer::LOCAL).unwrap();
                refuse(&b, &why);
            });
            let said = greet(&a, &job(1), &[1; 32], Protection::Plain, within(LIMIT)).unwrap_err();
            assert_eq!(said.to_string(), wanted);
            drop(a);
            there.join().unwrap();
        }
    }

    #[test]
    fn what_a_server_said_before_it_hung_up_is_heard() {
        for (word, wanted) in [(vec![BUSY, 0, 0, 0, 0], "busy"), (vec![], "closed the connection")] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            // Unread bytes: closing the connection causes a reset, and later writes fail.
            (&client).write_all(&[0; 8]).unwrap();
            server.write_all(&[&preamble()[..], &[PLAIN; 33], &word].concat()).unwrap();
            drop(server);
            let conn = Conn::new(client.into());
            let said = greet(&conn, &job(1), &[1; 32], Protection::Plain, within(LIMIT)).unwrap_err();
            assert!(said.to_string().contains(wanted), "{said}");
        }
    }

    #[test]
    fn impossible_jobs_are_refused() {
        let Opening::Job { gpu, rdma, waits, locality, hello } = job(1) else { unreachable!() };
        let far = Opening::Job { gpu, rdma, waits, locality, hello: JobHello { virtual_device: 32, ..hello.clone() } };
        let many = Opening::Job {
            gpu,
            rdma,
            waits,
            locality,
            hello: JobHello { env: vec![(String::new(), String::new()); VARIABLES + 1], ..hello },
        };
        for bad in [far, many] {
            assert!(matches!(meet(bad, [1; 32], [1; 32]).1, Err(GreetError::Garbage)));
        }
    }
}
