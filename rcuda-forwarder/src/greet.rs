//! The greeting: the first messages on a connection (docs/formats.md, "Greeting").
//!
//! The server sends first. Over TCP the two then make the connection a TLS connection, unless both were started to do
//! without. Both ends prove that they know the secret (a token, or the ticket of a data connection) without sending
//! it; on a Unix socket the kernel identifies the peer to the server, and the secret is all zero. The proofs cover what
//! the server has offered, what the client has chosen, and the TLS connection itself. A client does not say whose token it
//! has: the server compares the proof with one for each token that it accepts. A client of a cluster may send a credential of munge
//! instead, which says whose it is, and from which the server gets a secret for this greeting ([`crate::munge`]).

mod error;
mod heard;
mod offer;
mod opening;
mod ticket;

use crate::certificate::Fingerprint;
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::handshake::{self, Established, HandshakeError, Trust};
use crate::known_servers;
use crate::local_socket::Invitation;
use crate::munge::{self, Bound, Credential, Munge, MungeError};
use crate::secret::Secret;
use crate::socket;
use crate::token::random;
use cuda_api::{calls, ops};
use heard::BODY;
use nix::poll::PollFlags;
use offer::{MUNGE, PLAIN, TLS};
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use ticket::ROUTE;

pub(crate) use error::GreetError;
pub use error::NotGreeted;
pub(crate) use heard::Heard;
pub(crate) use offer::Offer;
pub use opening::JobHello;
pub(crate) use opening::{Locality, Opening};
pub(crate) use ticket::{Route, route, ticket_key, ticket_name};

const MAGIC: [u8; 8] = *b"mrcuda\r\n";
/// Version of the greeting and of the frames.
pub(crate) const PROTOCOL: u32 = 27;
/// Maximum length of the body of an answer: what became of a request to move has a place and a reason for each GPU.
pub(crate) const ANSWER: usize = 256 << 10;
/// Bytes of a preamble: magic, protocol, build.
const PREAMBLE: usize = 8 + 4 + 32;
/// Bytes of all that a client says at once: preamble, choice, route.
const FIRST: usize = PREAMBLE + 1 + ROUTE;
/// How long to wait for a refused client to disconnect.
const PARTING: Duration = Duration::from_millis(300);

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

    /// Identifies the greeting in a credential of munge.
    fn greeting(&self) -> [u8; 32] {
        blake3::derive_key("mrcuda 2026 munge greeting", self.0.as_bytes())
    }
}

/// By what a client is let in.
#[derive(Clone, Copy)]
pub(crate) struct Proof<'a> {
    /// The secret that it proves.
    pub(crate) key: &'a [u8; 32],
    /// The server gets the secret in a credential of munge, because it is for this greeting only.
    pub(crate) munge: Option<&'a Munge>,
}

impl<'a> From<&'a [u8; 32]> for Proof<'a> {
    fn from(key: &'a [u8; 32]) -> Proof<'a> {
        Proof { key, munge: None }
    }
}

/// What a server knows of a client in addition to its opening, when it looks for the secrets that let the client in.
pub(crate) struct Shown {
    /// It has a certificate of an authority.
    pub(crate) is_certified: bool,
    /// It has sent this credential of munge.
    pub(crate) credential: Option<Credential>,
    /// Identifies the greeting.
    greeting: [u8; 32],
}

impl Shown {
    /// Whether what a credential contains was made for this greeting.
    pub(crate) fn is_bound_by(&self, bound: &Bound) -> bool {
        bound.greeting == self.greeting
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
    if body.len() > ANSWER {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an answer is too long"));
    }
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
    if len > ANSWER || head[0] > INVITED {
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
pub(crate) fn greet<'a>(
    conn: &Conn,
    opening: &Opening,
    by: impl Into<Proof<'a>>,
    protection: Protection<'_>,
    limits: Limits,
) -> Result<[u8; 32], GreetError> {
    let by = by.into();
    let choice = if matches!(protection, Protection::Plain) { PLAIN } else { TLS };
    let meet = || {
        preambles(conn, choice, opening.route(), limits)?;
        prove(conn, opening, by, (protection, choice), limits)
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
    by: Proof<'_>,
    (protection, choice): (Protection<'_>, u8),
    limits: Limits,
) -> Result<[u8; 32], GreetError> {
    let (mut offer, mut theirs) = ([0], [0; 32]);
    conn.read_exact_by(&mut offer, limits.next())?;
    conn.read_exact_by(&mut theirs, limits.next())?;
    if offer[0] & choice == 0 {
        return Err(if choice == PLAIN { GreetError::PlainRefused } else { GreetError::NoTls });
    }
    if by.munge.is_some() && offer[0] & MUNGE == 0 {
        return Err(GreetError::NoMunge);
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
    let bound = Bound { greeting: digest.greeting(), key: *by.key };
    let credential = by.munge.map(|munge| munge.encode(&bound)).transpose()?;
    let credential = credential.as_ref().map_or(&[][..], Credential::bytes);
    let mut out = vec![role];
    out.extend(ours);
    for part in [&body, credential] {
        out.extend((part.len() as u32).to_le_bytes());
        out.extend(part);
    }
    out.extend(digest.proof(by.key, "client").as_bytes());
    send(conn, &out)?;
    let answer = read_answer(conn, limits.next())?;
    // A server that does not know the secret must not get the job's data. The comparison takes constant time.
    match <[u8; 32]>::try_from(answer) {
        Ok(said) if digest.proof(by.key, "server") == said => {}
        _ if by.munge.is_some() => return Err(MungeError::NotRead.into()),
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

/// Whether the other end has closed a connection, or has ended.
pub(crate) fn has_hung_up(e: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Both parts of a server, [`hear`] and [`admit`]: `secrets_for` returns the secrets of which one opens the server for an opening. On an error the
/// client has not been told yet: see [`refuse`].
#[cfg(test)]
pub(crate) fn receive(
    conn: &Conn,
    limit: Duration,
    offer: Offer<'_>,
    secrets_for: impl FnOnce(&Opening, Shown) -> Result<Arc<[Secret]>, GreetError>,
) -> Result<Greeted, GreetError> {
    let nonce = random()?;
    let heard = hear(conn, Instant::now() + limit, offer, &nonce)?;
    admit(conn, &heard, offer, nonce, secrets_for)
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

/// The first part of a server, for which it needs no secret but a signature: it exchanges the messages up to the client's proof. `nonce` is the
/// server's; no other greeting has the same.
pub(crate) fn hear(mut conn: &Conn, deadline: Instant, offer: Offer<'_>, nonce: &[u8; 32]) -> Result<Heard, GreetError> {
    conn.write_all(&[&preamble()[..], &[offer.bits()], nonce].concat())?;
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
    let mut head = [0; 1 + 32];
    conn.read_exact_by(&mut head, deadline)?;
    let (role, theirs) = (head[0], std::array::from_fn(|i| head[1 + i]));
    let body = read_part(conn, BODY, deadline)?;
    let credential = read_part(conn, munge::LONGEST, deadline)?;
    let mut proof = [0; 32];
    conn.read_exact_by(&mut proof, deadline)?;
    let heard = Heard {
        choice: choice[0],
        route,
        is_certified: established.as_ref().is_some_and(|e| e.peer.is_some()),
        binding: established.map_or([0; 32], |e| e.binding),
        nonce: theirs,
        role,
        body,
        credential,
        proof,
    };
    // Of what has no meaning nothing is checked that needs a secret.
    heard.read(offer)?;
    Ok(heard)
}

/// The second part of a server, which may be another process than that of the first one. Of what that has heard it believes only whether the
/// client has shown a certificate: `secrets_for` returns the secrets of which one opens the server for an opening, and the client must have proved
/// one, over `nonce` and all that was said. On an error the client has not been told yet: see [`refuse`].
pub(crate) fn admit(
    conn: &Conn,
    heard: &Heard,
    offer: Offer<'_>,
    nonce: [u8; 32],
    secrets_for: impl FnOnce(&Opening, Shown) -> Result<Arc<[Secret]>, GreetError>,
) -> Result<Greeted, GreetError> {
    let (opening, credential) = heard.read(offer)?;
    let Heard { choice, route, is_certified, binding, nonce: theirs, role, ref body, proof, .. } = *heard;
    let digest = Transcript { offer: offer.bits(), choice, route, binding, nonces: [nonce, theirs], role, body }.digest();
    let secrets = secrets_for(&opening, Shown { is_certified, credential, greeting: digest.greeting() })?;
    let secret = proved(&secrets, &digest, &proof).ok_or(GreetError::WrongToken)?.clone();
    answer(conn, Ok(digest.proof(&secret.key, "server").as_bytes()))?;
    Ok(Greeted { opening, binding, secret })
}

/// Reads a length, which may be `most`, and so many bytes.
fn read_part(conn: &Conn, most: usize, deadline: Instant) -> Result<Vec<u8>, GreetError> {
    let mut len = [0; 4];
    conn.read_exact_by(&mut len, deadline)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > most {
        return Err(GreetError::Garbage);
    }
    let mut part = vec![0; len];
    conn.read_exact_by(&mut part, deadline)?;
    Ok(part)
}

#[cfg(test)]
mod tests;
