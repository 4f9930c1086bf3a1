//! How a job and a server that are on the same machine find that out, and meet at a Unix socket instead of a TCP port.
//!
//! The job asks over its TLS connection, when the server has proved itself. A server that sees the same kernel and network answers with a
//! secret, from which both derive the name of a socket without a file, and by which both prove there that they are those of the TLS
//! connection. So no server can send a job to a socket of another program, and no other program can take the server's place there.

use crate::endpoint::{Endpoint, Scheme};
use crate::token::random;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Precedes the name of a socket that has no file.
pub(crate) const NO_FILE: char = '@';

/// Identifies this machine to those who have the token: its kernel since the last boot, and the network in which sockets without a file
/// are found, which containers may have for themselves. Tells others nothing. `None` if the system does not say.
pub(crate) fn machine(token: &[u8; 32]) -> Option<[u8; 32]> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let network = fs::metadata("/proc/self/ns/net").ok()?;
    let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key("mrcuda 2026 machine", token));
    hasher.update(boot.trim().as_bytes()).update(&network.dev().to_le_bytes()).update(&network.ino().to_le_bytes());
    Some(*hasher.finalize().as_bytes())
}

/// The name of the socket, behind [`NO_FILE`].
fn name(secret: &[u8; 32]) -> String {
    let digest = blake3::Hash::from_bytes(blake3::derive_key("mrcuda 2026 near socket", secret));
    format!("mrcuda-{}", &digest.to_hex()[..32])
}

/// The server's socket that has been agreed on, for a GPU.
pub(crate) fn endpoint(secret: &[u8; 32], gpu: u32) -> Endpoint {
    Endpoint { host: format!("unix:{NO_FILE}{}", name(secret)), port: 0, gpu, scheme: Scheme::Best }
}

/// What a server needs to be found by jobs on its machine.
#[derive(Debug)]
pub(crate) struct Near {
    machine: [u8; 32],
    /// By which both ends prove that they have met over TLS.
    pub(crate) secret: [u8; 32],
}

impl Near {
    /// Binds the socket.
    pub(crate) fn listen(token: &[u8; 32]) -> io::Result<(Near, UnixListener)> {
        let machine = machine(token).ok_or(io::ErrorKind::Unsupported)?;
        let near = Near { machine, secret: random()? };
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(&near.secret))?)?;
        Ok((near, listener))
    }

    /// Whether a job is on this machine.
    pub(crate) fn is_here(&self, machine: Option<[u8; 32]>) -> bool {
        machine == Some(self.machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_recognized_by_those_who_have_the_token() {
        assert!(machine(&[1; 32]).is_some());
        assert_eq!(machine(&[1; 32]), machine(&[1; 32]));
        assert_ne!(machine(&[1; 32]), machine(&[2; 32]));
        let (near, _listener) = Near::listen(&[1; 32]).unwrap();
        assert!(near.is_here(machine(&[1; 32])) && !near.is_here(machine(&[2; 32])) && !near.is_here(None));
    }

    #[test]
    fn the_socket_is_written_and_read_back_as_an_endpoint() {
        let to = endpoint(&[7; 32], 3);
        assert_eq!(to.to_string().parse::<Endpoint>().unwrap(), to);
        assert!(to.unix_path().unwrap().starts_with("@mrcuda-") && !to.may_be_near());
        assert!(!to.to_string().contains(&blake3::Hash::from_bytes([7; 32]).to_hex()[..8]), "the secret is not its name");
    }
}
