//! How a job and a server that are on the same machine find that out, and meet at a Unix socket of the server instead of its
//! TCP port.
//!
//! The job asks over its TLS connection, when the server has proved itself. A server that sees the same kernel and network, and
//! the same user or root, answers with an [`Invitation`]: what the socket's name is derived from, and a secret. At the socket
//! the job first makes sure that it is one of its own user or of root, since it is about to share memory with that process.
//! Then both prove that they are the ends of the TLS connection: the key of that greeting is derived from the secret and from
//! that connection, and is used once.

use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::secret::Secret;
use crate::sync::lock;
use crate::token::random;
use crate::user::User;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The user that the kernel reports for those who do not exist in this process' user namespace.
const UNKNOWN_USER: u32 = 65534;
/// How long an invitation is valid. A job gives up the socket earlier.
const VALID: Duration = Duration::from_secs(10);
/// Number of valid invitations that a server keeps. If there are more, the oldest is forgotten, and its job uses TCP.
const KEPT: usize = 256;

/// This machine, as far as sockets without a file can be found on it.
#[derive(Debug)]
struct Machine {
    /// The kernel since the last boot.
    boot: String,
    /// Device and inode of the network namespace, which containers may have for themselves.
    network: [u64; 2],
}

impl Machine {
    /// `None` if the system does not say.
    fn here() -> Option<Machine> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let network = fs::metadata("/proc/self/ns/net").ok()?;
        Some(Machine { boot: boot.trim().to_owned(), network: [network.dev(), network.ino()] })
    }

    /// Identifies it, and a user on it, to those who have the token. Tells others nothing.
    fn digest(&self, token: &[u8; 32], user: u32) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key("mrcuda 2026 machine", token));
        hasher.update(self.boot.as_bytes());
        for number in self.network {
            hasher.update(&number.to_le_bytes());
        }
        *hasher.update(&user.to_le_bytes()).finalize().as_bytes()
    }
}

/// Identifies this machine and this process' user to those who have the token; `None` if the system does not say.
pub(crate) fn machine(token: &[u8; 32]) -> Option<[u8; 32]> {
    Some(Machine::here()?.digest(token, geteuid().as_raw()))
}

/// The socket of the server with this id.
fn endpoint(id: &[u8; 32], gpu: u32) -> Endpoint {
    Endpoint::local_socket(&blake3::derive_key("mrcuda 2026 local socket", id), gpu)
}

/// Whether a job may share its memory with a process of the user `listener`, who could read that memory in any case.
fn may_listen(listener: u32, own: u32) -> bool {
    // To a process in a user namespace all users outside of it are the unknown one.
    own != UNKNOWN_USER && (listener == own || listener == 0)
}

/// What a server tells a job that is on its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Invitation {
    /// The server's id, from which the socket's name is derived: a server cannot send a job to another program's socket.
    pub(crate) socket: [u8; 32],
    /// By which both prove there that they have met over TLS.
    pub(crate) secret: [u8; 32],
}

impl Invitation {
    pub(crate) fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&self.socket);
        bytes[32..].copy_from_slice(&self.secret);
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Invitation> {
        let (socket, secret) = bytes.split_at_checked(32)?;
        Some(Invitation { socket: socket.try_into().ok()?, secret: secret.try_into().ok()? })
    }

    /// Its public name, which does not reveal the secret.
    pub(crate) fn name(&self) -> [u8; 32] {
        blake3::derive_key("mrcuda 2026 invitation name", &self.secret)
    }

    /// The key of the greeting at the socket. `binding`: of the TLS connection on which the job was invited.
    pub(crate) fn key(&self, binding: &[u8; 32]) -> [u8; 32] {
        *blake3::keyed_hash(&blake3::derive_key("mrcuda 2026 invitation key", &self.secret), binding).as_bytes()
    }

    /// The socket, for a GPU of the server.
    pub(crate) fn endpoint(&self, gpu: u32) -> Endpoint {
        endpoint(&self.socket, gpu)
    }

    /// Connects to the socket, if a process of this user or of root listens there. Sends nothing.
    pub(crate) fn connect(&self, deadline: Instant) -> io::Result<Conn> {
        let conn = Conn::open(&self.endpoint(0), deadline)?;
        // Of the process that listens there.
        let listener = getsockopt(&conn.socket()?, sockopt::PeerCredentials)?.uid();
        match may_listen(listener, geteuid().as_raw()) {
            true => Ok(conn),
            false => Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("uid {listener} listens there"))),
        }
    }
}

/// An invitation that is valid.
#[derive(Debug)]
struct Open {
    name: [u8; 32],
    key: [u8; 32],
    /// The user, by what the job has shown over TLS.
    user: Option<User>,
    since: Instant,
}

/// What a server needs to meet jobs on its machine.
#[derive(Debug)]
pub(crate) struct LocalSocket {
    machine: Machine,
    id: [u8; 32],
    /// The oldest first.
    open: Mutex<VecDeque<Open>>,
}

impl LocalSocket {
    /// Binds the socket.
    pub(crate) fn listen() -> io::Result<(LocalSocket, UnixListener)> {
        let machine = Machine::here().ok_or(io::ErrorKind::Unsupported)?;
        let socket = LocalSocket { machine, id: random()?, open: Mutex::default() };
        let at = endpoint(&socket.id, 0);
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(at.name_without_file().unwrap_or_default())?)?;
        Ok((socket, listener))
    }

    /// Whether a job with this token is on this machine, and runs as the server's user or root: other users may not share memory with
    /// workers.
    pub(crate) fn is_here(&self, token: &[u8; 32], machine: &[u8; 32]) -> bool {
        [geteuid().as_raw(), 0].iter().any(|user| self.machine.digest(token, *user) == *machine)
    }

    /// Invites a job that has come over the TLS connection with this binding, of this user.
    pub(crate) fn invite(&self, binding: &[u8; 32], user: Option<User>) -> io::Result<Invitation> {
        let invitation = Invitation { socket: self.id, secret: random()? };
        let mut open = lock(&self.open);
        open.retain(|open| open.since.elapsed() < VALID);
        if open.len() >= KEPT {
            open.pop_front();
        }
        open.push_back(Open { name: invitation.name(), key: invitation.key(binding), user, since: Instant::now() });
        Ok(invitation)
    }

    /// Returns what proves a valid invitation, and removes it, because each is valid for one use.
    pub(crate) fn take(&self, name: &[u8; 32]) -> Option<Secret> {
        let mut open = lock(&self.open);
        let at = open.iter().position(|open| open.name == *name && open.since.elapsed() < VALID)?;
        open.remove(at).map(|Open { key, user, .. }| Secret { key, user })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;
    use crate::user_tokens::UserToken;
    use std::sync::Arc;

    const BINDING: [u8; 32] = [3; 32];

    #[test]
    fn a_machine_and_a_user_are_recognized_by_those_who_have_the_token() {
        let here = machine(&[1; 32]).unwrap();
        assert_eq!(Some(here), machine(&[1; 32]));
        let (socket, _listener) = LocalSocket::listen().unwrap();
        let of = |user| Machine::here().unwrap().digest(&[1; 32], user);
        assert!(socket.is_here(&[1; 32], &here) && socket.is_here(&[1; 32], &of(0)));
        assert!(!socket.is_here(&[1; 32], &of(geteuid().as_raw() + 1)));
        // What the job has said under one token means nothing under another one.
        assert!(!socket.is_here(&[2; 32], &here) && socket.is_here(&[2; 32], &machine(&[2; 32]).unwrap()));
    }

    #[test]
    fn memory_is_shared_with_the_own_user_and_root_only() {
        assert!(may_listen(7, 7) && may_listen(0, 7) && may_listen(0, 0));
        assert!(!may_listen(8, 7) && !may_listen(7, 0) && !may_listen(UNKNOWN_USER, UNKNOWN_USER));
    }

    #[test]
    fn an_invitation_is_for_one_connection_and_one_use() {
        let (socket, _listener) = LocalSocket::listen().unwrap();
        let ann = User::Token(Arc::new(UserToken { name: "ann".into(), token: Token([5; 32]), added_unix_ms: 5 }));
        let (first, second) = (socket.invite(&BINDING, None).unwrap(), socket.invite(&BINDING, Some(ann.clone())).unwrap());
        assert!(first.socket == second.socket && first.secret != second.secret);
        let proof = socket.take(&second.name()).unwrap();
        assert_eq!((proof.key, proof.user), (second.key(&BINDING), Some(ann)));
        assert!(socket.take(&second.name()).is_none() && socket.take(&[0; 32]).is_none());
        assert_ne!(first.key(&BINDING), first.key(&[4; 32]));
        // Another server, or the same one after a restart.
        assert!(LocalSocket::listen().unwrap().0.take(&first.name()).is_none());
        for _ in 0..KEPT {
            socket.invite(&BINDING, None).unwrap();
        }
        assert!(socket.take(&first.name()).is_none());
        assert_eq!(lock(&socket.open).len(), KEPT);
        let old = socket.invite(&BINDING, None).unwrap();
        lock(&socket.open).back_mut().unwrap().since -= VALID;
        assert!(socket.take(&old.name()).is_none());
    }

    #[test]
    fn invitations_and_names_are_written_and_read_back() {
        let invitation = Invitation { socket: [7; 32], secret: [8; 32] };
        assert_eq!(Invitation::read(&invitation.bytes()), Some(invitation));
        for bytes in [0, 31, 32, 63, 65] {
            assert_eq!(Invitation::read(&[1; 65][..bytes]), None, "{bytes}");
        }
        let to = invitation.endpoint(3);
        assert_eq!(Endpoint::of_place(&to.to_string()).unwrap(), to);
        assert!(to.is_local_socket() && !to.may_share_memory());
        assert!(to.to_string().parse::<Endpoint>().is_err(), "users do not name it");
    }
}
