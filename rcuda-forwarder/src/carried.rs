//! How the bytes of data connections travel, for those who watch a job.

use rkyv::{Archive, Deserialize, Serialize};
use std::fmt;

/// The ways of the bytes of some connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Archive, Serialize, Deserialize)]
pub struct Carried(u8);

/// Those of all connections.
impl FromIterator<Carried> for Carried {
    fn from_iter<I: IntoIterator<Item = Carried>>(all: I) -> Carried {
        Carried(all.into_iter().fold(0, |ways, one| ways | one.0))
    }
}

impl Carried {
    /// RDMA, without encryption.
    pub(crate) const RDMA: Carried = Carried(1);
    /// TLS.
    pub(crate) const TLS: Carried = Carried(2);
    /// TCP without encryption.
    pub(crate) const TCP: Carried = Carried(4);
    /// A Unix socket.
    pub(crate) const UNIX: Carried = Carried(8);
}

/// For example `rdma`, or `rdma+tls` if some connections are carried in one way and some in the other; empty without connections.
impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = [(Carried::RDMA, "rdma"), (Carried::TLS, "tls"), (Carried::TCP, "tcp"), (Carried::UNIX, "unix")];
        let names: Vec<&str> = ways.iter().filter(|(way, _)| self.0 & way.0 != 0).map(|(_, name)| *name).collect();
        f.write_str(&names.join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_named_once() {
        let of = |ways: &[Carried]| ways.iter().copied().collect::<Carried>().to_string();
        assert_eq!(of(&[]), "");
        assert_eq!(of(&[Carried::TLS, Carried::RDMA, Carried::TLS]), "rdma+tls");
        assert_eq!(of(&[Carried::TCP, Carried::UNIX]), "tcp+unix");
    }
}
