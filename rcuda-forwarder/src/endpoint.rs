//! Parses the addresses of servers.

use cuda_api::address_map::DEVICES;
use std::fmt;
use std::str::FromStr;

/// A GPU of a server: `HOST:PORT[/GPU]`, `tls://HOST:PORT[/GPU]`, `plain://HOST:PORT[/GPU]`, `rdma://HOST:PORT[/GPU]` or `unix:PATH[/GPU]`; an
/// IPv6 address is in brackets. Without a GPU it is number 0. With `/memory` instead of a GPU, it is host memory of the server, in which
/// a parked device is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Name or address; `unix:PATH` for a Unix socket.
    pub host: String,
    /// TCP port; 0 with a Unix socket.
    pub port: u16,
    /// Number of the GPU at that server, or [`Endpoint::MEMORY`].
    pub gpu: u32,
    /// How it is to be reached over a network.
    pub scheme: Scheme,
}

/// How a server on a network is to be reached: what the user has written before its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Nothing: encrypted TCP connections, or shared memory if the server is on the job's machine.
    Best,
    /// `tls://`: encrypted TCP connections.
    Tls,
    /// `plain://`: TCP connections that are not encrypted.
    Plain,
    /// `rdma://`: calls are carried by RDMA, not encrypted; everything else by encrypted TCP connections.
    Rdma,
}

impl Scheme {
    /// All that have a prefix.
    const NAMED: [(Scheme, &'static str); 3] = [(Scheme::Tls, "tls://"), (Scheme::Plain, "plain://"), (Scheme::Rdma, "rdma://")];

    /// What is written before the address.
    fn prefix(self) -> &'static str {
        Scheme::NAMED.iter().find(|(scheme, _)| *scheme == self).map_or("", |(_, prefix)| prefix)
    }
}

/// Why a text is not an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Neither a port nor `unix:`.
    #[error("a server is [tls://]HOST:PORT[/GPU], plain://HOST:PORT[/GPU], rdma://HOST:PORT[/GPU] or unix:PATH[/GPU]")]
    Shape,
    /// A prefix that this version does not have.
    #[error("`{0}` is not supported: expected tls://, plain:// or rdma://")]
    Scheme(String),
    /// The port is invalid.
    #[error("invalid port `{0}`: expected 1 to 65535")]
    Port(String),
    /// The GPU number is invalid.
    #[error("invalid GPU number `{0}`: expected 0 to {last}, or memory", last = GPUS - 1)]
    Gpu(String),
    /// A socket without a file, which only mrcuda itself names.
    #[error("`unix:{NO_FILE}{0}` is not the path of a socket: for a file of that name write unix:./{NO_FILE}{0}")]
    NoFile(String),
}

/// Maximum number of GPUs of a server: as many as a job can have devices.
pub(crate) const GPUS: u32 = DEVICES;
const UNIX: &str = "unix:";
/// Precedes the name of a Unix socket that has no file.
const NO_FILE: char = '@';
/// The names of servers' sockets without a file begin so.
const LOCAL_SOCKET: &str = "mrcuda-";
/// So many hexadecimal digits follow.
const DIGITS: usize = 32;
/// Instead of a GPU's number.
const IN_MEMORY: &str = "memory";

fn gpu(text: &str) -> Result<u32, EndpointError> {
    if text == IN_MEMORY {
        return Ok(Endpoint::MEMORY);
    }
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let n = plain.then(|| text.parse::<u32>().ok()).flatten();
    n.filter(|n| *n < GPUS).ok_or_else(|| EndpointError::Gpu(text.to_owned()))
}

impl FromStr for Endpoint {
    type Err = EndpointError;
    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        let endpoint = Endpoint::read(text)?;
        match endpoint.name_without_file() {
            Some(name) => Err(EndpointError::NoFile(name.to_owned())),
            None => Ok(endpoint),
        }
    }
}

impl Endpoint {
    /// Reads what a job says that a place is to connect to: an address as its user writes it, or a server's socket without a
    /// file, whose name the job knows from the server. Other sockets without a file are none of ours.
    pub(crate) fn of_place(text: &str) -> Result<Endpoint, EndpointError> {
        match Endpoint::read(text)? {
            endpoint if endpoint.is_local_socket() => Ok(endpoint),
            _ => text.parse(),
        }
    }

    fn read(text: &str) -> Result<Endpoint, EndpointError> {
        if let Some(rest) = text.strip_prefix(UNIX) {
            // A last path component of digits is the GPU: for a socket with such a name, the GPU must be given
            // explicitly.
            let (path, gpu) = match rest.rsplit_once('/') {
                Some((path, last)) if gpu(last).is_ok() => (path, gpu(last)?),
                _ => (rest, 0),
            };
            if path.is_empty() {
                return Err(EndpointError::Shape);
            }
            return Ok(Endpoint { host: format!("{UNIX}{path}"), port: 0, gpu, scheme: Scheme::Best });
        }
        let named = Scheme::NAMED.iter().find_map(|(scheme, prefix)| Some((*scheme, text.strip_prefix(prefix)?)));
        let (scheme, text) = named.unwrap_or((Scheme::Best, text));
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(EndpointError::Scheme(format!("{scheme}://")));
        }
        let (server, gpu) = match text.split_once('/') {
            Some((server, number)) => (server, gpu(number)?),
            None => (text, 0),
        };
        let (host, port) = server.rsplit_once(':').ok_or(EndpointError::Shape)?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        // The last group of an IPv6 address without brackets would be taken for the port.
        if host.is_empty() || bare.is_none() && host.contains([':', '[', ']']) || bare == Some("") {
            return Err(EndpointError::Shape);
        }
        let port = port.parse().ok().filter(|p| *p != 0).ok_or_else(|| EndpointError::Port(port.to_owned()))?;
        Ok(Endpoint { host: bare.unwrap_or(host).to_owned(), port, gpu, scheme })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.scheme.prefix();
        let server = self.server();
        match self.gpu {
            Endpoint::MEMORY => write!(f, "{scheme}{server}/{IN_MEMORY}"),
            gpu => write!(f, "{scheme}{server}/{gpu}"),
        }
    }
}

impl Endpoint {
    /// Stands for host memory instead of a GPU's number.
    pub const MEMORY: u32 = u32::MAX;

    /// Whether it is host memory, where nothing is executed.
    pub fn is_store(&self) -> bool {
        self.gpu == Endpoint::MEMORY
    }

    /// Whether TCP connections to it are encrypted.
    pub fn is_tls(&self) -> bool {
        self.unix_path().is_none() && !self.is_plain()
    }

    /// Whether TCP connections to it are not encrypted because its user has said so.
    pub fn is_plain(&self) -> bool {
        self.scheme == Scheme::Plain
    }

    /// Whether RDMA is to carry the calls.
    pub fn is_rdma(&self) -> bool {
        self.scheme == Scheme::Rdma
    }

    /// Whether calls may reach it through shared memory, if it is on the same machine.
    pub(crate) fn may_share_memory(&self) -> bool {
        self.unix_path().is_none() && self.scheme == Scheme::Best
    }

    /// The same without RDMA.
    pub fn without_rdma(self) -> Endpoint {
        let scheme = if self.is_rdma() { Scheme::Best } else { self.scheme };
        Endpoint { scheme, ..self }
    }

    /// The address without the GPU: `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`.
    pub fn server(&self) -> String {
        match (self.unix_path(), self.host.contains(':')) {
            (Some(_), _) => self.host.clone(),
            (None, true) => format!("[{}]:{}", self.host, self.port),
            (None, false) => format!("{}:{}", self.host, self.port),
        }
    }

    /// The socket without a file of a server on this machine, whose name these bytes determine.
    pub(crate) fn local_socket(digest: &[u8; 32], gpu: u32) -> Endpoint {
        let digits = &blake3::Hash::from_bytes(*digest).to_hex()[..DIGITS];
        Endpoint { host: format!("{UNIX}{NO_FILE}{LOCAL_SOCKET}{digits}"), port: 0, gpu, scheme: Scheme::Best }
    }

    /// Whether it is such a socket, which no user names.
    pub fn is_local_socket(&self) -> bool {
        let digits = self.name_without_file().and_then(|name| name.strip_prefix(LOCAL_SOCKET));
        digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
    }

    /// The name of a Unix socket without a file.
    pub(crate) fn name_without_file(&self) -> Option<&str> {
        self.unix_path()?.strip_prefix(NO_FILE)
    }

    /// The path of a Unix socket.
    pub fn unix_path(&self) -> Option<&str> {
        self.host.strip_prefix(UNIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read_back() {
        for (text, host, port, gpu) in [
            ("gpubox:7878", "gpubox", 7878, 0),
            ("10.0.0.1:1/31", "10.0.0.1", 1, 31),
            ("[::1]:7878/2", "::1", 7878, 2),
            ("unix:/run/m.sock", "unix:/run/m.sock", 0, 0),
            ("unix:/run/m.sock/3", "unix:/run/m.sock", 0, 3),
            ("tls://gpubox:7878/1", "gpubox", 7878, 1),
            ("plain://[::1]:7878/1", "::1", 7878, 1),
            ("rdma://gpubox:7878/3", "gpubox", 7878, 3),
            ("gpubox:7878/memory", "gpubox", 7878, Endpoint::MEMORY),
            ("unix:/run/m.sock/memory", "unix:/run/m.sock", 0, Endpoint::MEMORY),
        ] {
            let e: Endpoint = text.parse().unwrap();
            assert_eq!((e.host.as_str(), e.port, e.gpu), (host, port, gpu));
            assert_eq!(e.to_string().parse::<Endpoint>().unwrap(), e);
            assert_eq!((e.is_rdma(), e.is_plain()), (text.starts_with("rdma"), text.starts_with("plain")));
            assert_eq!((e.is_tls(), e.may_share_memory()), (!e.is_plain() && e.port != 0, e.port != 0 && !text.contains("//")));
            assert_eq!(e.clone().without_rdma().is_tls(), e.is_tls());
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "",
            ":",
            "a",
            "a:",
            "a:0",
            "a:b",
            ":1",
            "a:1/",
            "a:1/32",
            "a:1/+1",
            "a:1/-1",
            "a:1/4294967295",
            "a:1/Memory",
            "::1:7",
            "[]:1",
            "unix:",
            "unix:/3",
            "unix:@x",
            "unix:@mrcuda-00000000000000000000000000000000/0",
            "a:65536",
            "tls://",
            "plain://a",
            "quic://a:1",
            "rdma://plain://a:1",
            "rdma://unix:/run/m.sock",
            "tls://plain://a:1",
            "plain://unix:/run/m.sock",
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
        let said = "unix:@x/0".parse::<Endpoint>().unwrap_err().to_string();
        assert!(said.contains("unix:./@x"), "{said}");
        let digits = "0".repeat(DIGITS);
        let name = |name: &str| Endpoint::of_place(&format!("unix:@{name}/1")).is_ok_and(|at| at.is_local_socket());
        assert!(name(&format!("mrcuda-{digits}")));
        for other in ["x", "mrcuda-", &digits, &format!("mrcuda-{digits}0"), &format!("mrcuda-{}A", &digits[1..])] {
            assert!(!name(other), "{other}");
        }
        assert!(!format!("unix:mrcuda-{digits}/1").parse::<Endpoint>().unwrap().is_local_socket(), "it has a file");
    }
}
