//! How the servers of a suite are reached.

use crate::random;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::str::FromStr;

/// A way to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP, encrypted.
    Tls,
    /// TCP, not encrypted.
    Plain,
    /// Shared memory.
    Shm,
    /// RDMA, not encrypted.
    Rdma,
    /// What mrcuda chooses for an address without a prefix: shared memory, because the servers of a suite are on its machine.
    Nearest,
}

/// A transport that cannot be tried.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// There is none of this name.
    #[error("there is no transport {0}: expected tls, plain, shm, rdma or nearest")]
    Unknown(String),
    /// The machine has no device for RDMA.
    #[error(
        "this machine has no RDMA device with an IPv4 address: a virtual machine can have one in software (SoftRoCE), \
         see `cargo xtask rdma`; MRCUDA_BIN_DIR must then name a build with `--features rdma`"
    )]
    NoDevice,
}

impl Transport {
    const ALL: [Transport; 5] = [Transport::Tls, Transport::Plain, Transport::Shm, Transport::Rdma, Transport::Nearest];

    /// The one for a run of tests with this seed, of those that every machine has. [`random::TURNS`] consecutive seeds have the same, since a test runs
    /// with one of them.
    pub fn of_run(seed: u64) -> Transport {
        let everywhere = [Transport::Tls, Transport::Plain, Transport::Shm, Transport::Nearest];
        everywhere[(seed / random::TURNS % everywhere.len() as u64) as usize]
    }

    fn name(self) -> &'static str {
        match self {
            Transport::Tls => "tls",
            Transport::Plain => "plain",
            Transport::Shm => "shm",
            Transport::Rdma => "rdma",
            Transport::Nearest => "nearest",
        }
    }

    /// Whether this machine has what it takes.
    ///
    /// # Errors
    /// It has no device for RDMA.
    pub fn check(self) -> Result<(), TransportError> {
        if self == Transport::Rdma && rdma_address(Path::new("/sys/class/infiniband")).is_none() {
            return Err(TransportError::NoDevice);
        }
        Ok(())
    }

    /// Whether a proxy can stand between a job and the server.
    pub fn has_proxies(self) -> bool {
        matches!(self, Transport::Tls | Transport::Plain)
    }

    /// The address at which the server listens.
    pub(crate) fn listens_at(self) -> IpAddr {
        let device = || rdma_address(Path::new("/sys/class/infiniband"));
        (self == Transport::Rdma).then(device).flatten().unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    /// Options of the server.
    pub(crate) fn options(self) -> &'static [&'static str] {
        match self {
            Transport::Tls | Transport::Shm | Transport::Nearest => &[],
            Transport::Plain | Transport::Rdma => &["--allow-plain"],
        }
    }
}

impl FromStr for Transport {
    type Err = TransportError;

    fn from_str(text: &str) -> Result<Transport, TransportError> {
        Transport::ALL.into_iter().find(|t| t.name() == text).ok_or_else(|| TransportError::Unknown(text.to_owned()))
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The IPv4 address of a RoCE port: among its addresses (GIDs) are those of its network interface.
fn rdma_address(devices: &Path) -> Option<IpAddr> {
    let entries = |at: &Path| std::fs::read_dir(at).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let ports = entries(devices).flat_map(|device| entries(&device.join("ports")).collect::<Vec<_>>());
    let gids = ports.flat_map(|port| entries(&port.join("gids")).collect::<Vec<_>>());
    gids.filter_map(|gid| std::fs::read_to_string(gid).ok()?.trim().parse::<Ipv6Addr>().ok()?.to_ipv4_mapped())
        .next()
        .map(IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_read_back() {
        for transport in Transport::ALL {
            assert_eq!(transport.to_string().parse::<Transport>().unwrap(), transport);
        }
        assert!("TLS".parse::<Transport>().unwrap_err().to_string().contains("expected tls, plain, shm, rdma or nearest"));
    }

    #[test]
    fn a_test_meets_every_transport_whatever_its_turn() {
        for turn in 0..random::TURNS {
            let met = (0..4).map(|round| Transport::of_run(20_000 + turn + round * random::TURNS)).collect::<HashSet<_>>();
            assert_eq!(met.len(), 4, "{met:?}");
        }
    }

    #[test]
    fn a_port_has_the_address_of_its_interface() {
        let devices = std::env::temp_dir().join(format!("mrt-rdma-{}", std::process::id()));
        assert_eq!(rdma_address(&devices), None);
        let gids = devices.join("rx0/ports/1/gids");
        std::fs::create_dir_all(&gids).unwrap();
        std::fs::write(gids.join("0"), "fe80:0000:0000:0000:5054:00ff:fe12:3456\n").unwrap();
        std::fs::write(gids.join("2"), "0000:0000:0000:0000:0000:0000:0000:0000\n").unwrap();
        assert_eq!(rdma_address(&devices), None);
        std::fs::write(gids.join("1"), "0000:0000:0000:0000:0000:ffff:0a08:0001\n").unwrap();
        assert_eq!(rdma_address(&devices), Some("10.8.0.1".parse().unwrap()));
        std::fs::remove_dir_all(devices).unwrap();
    }
}
