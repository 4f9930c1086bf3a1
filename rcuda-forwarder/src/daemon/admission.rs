//! Limits the number of connections that are greeting and have not yet proved their identity.
//!
//! Each costs a thread and a descriptor until it has greeted or timed out, and anyone can open one. New connections are
//! not refused: if there are too many, one of the existing ones is dropped, chosen at random (random early drop). A
//! genuine client greets within a few round trips, so it is rarely chosen; if it is, it is told that the server is
//! busy, and retries. The dropped connection is one of the source that has the most, and each listener has its own
//! budget: strangers on the network cannot lock out clients of other addresses, nor those of this machine.

use crate::conn::Conn;
use crate::secret::Secret;
use crate::sync::lock;
use crate::user::User;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Connections that may be greeting concurrently over TCP.
pub(super) const AT_TCP: Budget = Budget { all: 512, of_one: 128 };

/// The source of a connection, as far as clients can be distinguished by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// A user with a token of their own, by name, from whatever address.
    TokenUser(Arc<str>),
    /// A user of the cluster or of this machine, by number: a name service that fails for a moment makes nobody another client.
    Account(u32),
    /// An address; for IPv6 the /64 network, in which one machine can use any address.
    Address(IpAddr),
    /// The server's user or root on this machine, by a Unix socket.
    Here,
}

impl Source {
    /// The source of a connection whose client has proved this.
    pub(super) fn of_client(conn: &Conn, secret: &Secret) -> Source {
        match &secret.user {
            Some(User::Token(token)) => Source::TokenUser(token.name.as_str().into()),
            Some(User::Munge(account) | User::System(account)) => Source::Account(account.uid),
            None => Source::of(conn),
        }
    }

    /// The source of a connection whose client has proved nothing so far.
    pub(super) fn of(conn: &Conn) -> Source {
        match conn.ip_peer() {
            Some(IpAddr::V6(a)) => Source::Address(Ipv6Addr::from_bits(a.to_bits() & !u128::from(u64::MAX)).into()),
            Some(a) => Source::Address(a),
            None => match conn.unix_peer() {
                Some(user) if user != 0 && user != nix::unistd::geteuid().as_raw() => Source::Account(user),
                _ => Source::Here,
            },
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::TokenUser(name) => f.write_str(name),
            Source::Account(uid) => write!(f, "uid {uid}"),
            Source::Address(a) => a.fmt(f),
            Source::Here => f.write_str("this machine"),
        }
    }
}

/// The budget of a listener.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// Maximum number of connections that are greeting.
    pub(super) all: usize,
    /// Maximum from one source.
    pub(super) of_one: usize,
}

#[derive(Debug)]
struct Guest {
    source: Source,
    conn: Arc<Conn>,
    dropped: Arc<AtomicBool>,
}

/// The connections of a listener that are greeting.
#[derive(Debug)]
pub(super) struct Door {
    budget: Budget,
    guests: Mutex<(u64, HashMap<u64, Guest>)>,
    random: RandomState,
}

/// The slot of a connection among those that are greeting.
#[derive(Debug)]
pub(super) struct Greeting {
    door: Arc<Door>,
    number: u64,
    dropped: Arc<AtomicBool>,
}

impl Door {
    pub(super) fn new(budget: Budget) -> Arc<Door> {
        Arc::new(Door { budget, guests: Mutex::default(), random: RandomState::new() })
    }

    /// Admits a connection to the greeting; another one may be dropped for it.
    pub(super) fn admit(self: &Arc<Self>, conn: &Arc<Conn>) -> Greeting {
        let source = Source::of(conn);
        let dropped = Arc::new(AtomicBool::new(false));
        let mut guests = lock(&self.guests);
        let (next, table) = &mut *guests;
        let number = *next;
        *next += 1;
        let mut counts: HashMap<Source, usize> = HashMap::new();
        table.values().for_each(|g| *counts.entry(g.source.clone()).or_default() += 1);
        let from = if counts.get(&source).is_some_and(|n| *n >= self.budget.of_one) {
            Some(source.clone())
        } else if table.len() >= self.budget.all {
            counts.into_iter().max_by_key(|(_, n)| *n).map(|(source, _)| source)
        } else {
            None
        };
        if let Some(from) = from {
            let mut those: Vec<u64> = table.iter().filter(|(_, g)| g.source == from).map(|(number, _)| *number).collect();
            // Unpredictable to outsiders, because the hasher has a secret.
            let chosen = self.random.hash_one(number) as usize % those.len().max(1);
            if let Some(guest) = those.drain(..).nth(chosen).and_then(|number| table.remove(&number)) {
                guest.dropped.store(true, Ordering::Release);
                guest.conn.shutdown_reading();
            }
        }
        table.insert(number, Guest { source, conn: conn.clone(), dropped: dropped.clone() });
        drop(guests);
        Greeting { door: self.clone(), number, dropped }
    }

    /// Number of connections that are greeting.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.guests).1.len()
    }
}

impl Greeting {
    /// Whether it was dropped in favour of another one.
    pub(super) fn was_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        lock(&self.door.guests).1.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// A connection from an address of this machine, and its other end.
    fn from(address: &str) -> (Arc<Conn>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet,
            nix::sys::socket::SockType::Stream,
            nix::sys::socket::SockFlag::empty(),
            None,
        )
        .unwrap();
        let at = |a: std::net::SocketAddrV4| nix::sys::socket::SockaddrIn::from(a);
        let raw = std::os::fd::AsRawFd::as_raw_fd(&socket);
        nix::sys::socket::bind(raw, &at(std::net::SocketAddrV4::new(address.parse().unwrap(), 0))).unwrap();
        let std::net::SocketAddr::V4(to) = listener.local_addr().unwrap() else { panic!() };
        nix::sys::socket::connect(raw, &at(to)).unwrap();
        (Arc::new(Conn::new(listener.accept().unwrap().0.into())), socket.into())
    }

    #[test]
    fn one_source_cannot_keep_others_out_nor_its_own_newcomers() {
        let door = Door::new(Budget { all: 8, of_one: 4 });
        let mut kept = Vec::new();
        let mut enter = |address: &str| {
            let (conn, peer) = from(address);
            let greeting = door.admit(&conn);
            kept.push((conn, peer, greeting));
            let ends: Vec<bool> = kept.iter().map(|(.., greeting)| greeting.was_dropped()).collect();
            ends
        };
        for _ in 0..4 {
            assert_eq!(enter("127.0.0.2").iter().filter(|d| **d).count(), 0);
        }
        for n in 1..=20 {
            let ends = enter("127.0.0.2");
            assert_eq!(ends.iter().filter(|d| **d).count(), n, "one goes for each that comes");
            assert!(!ends[ends.len() - 1], "and never the newcomer");
        }
        // Others are admitted beside it; when all slots are taken, the source with the most loses one.
        for n in 0..8 {
            let ends = enter(&format!("127.0.0.{}", 10 + n));
            assert!(ends[24..].iter().all(|d| !d) || n >= 7, "{n}: {ends:?}");
        }
        assert_eq!(door.count(), 8);
        // Dropped connections read the end of the stream at once.
        let (conn, ..) = kept.iter().find(|(.., g)| g.was_dropped()).unwrap();
        assert_eq!(conn.try_read(&mut [0; 8]).unwrap(), 0);
        drop(kept);
        assert_eq!(door.count(), 0);
    }

    #[test]
    fn networks_of_ipv6_are_one_source() {
        let source = |a: &str| match a.parse::<IpAddr>().unwrap() {
            IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & !u128::from(u64::MAX)),
            IpAddr::V4(_) => panic!(),
        };
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
    }
}
