//! The targets to which a worker may connect when its job moves, as decided by the server.

use crate::socket::Address;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// Excludes the ports of system services, which mrcuda never uses.
const PORTS: RangeInclusive<u16> = 1024..=u16::MAX;

/// Targets that a worker may connect to, as given to `mrcuda serve --allow-target`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// All.
    Any,
    /// None.
    None,
    /// A network: its address, the length of its prefix, and ports.
    Net(IpAddr, u8, RangeInclusive<u16>),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Why a text is not a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a target is any, none, ADDRESS[/BITS][:PORT[-PORT]] (an IPv6 address in brackets if ports follow) or unix:PATH")]
pub struct TargetError;

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        match text.strip_prefix("unix:") {
            // A socket without a file is not a target.
            Some(path) if path.is_empty() || path.starts_with('@') => return Err(TargetError),
            Some(path) => return Ok(Target::Unix(path.into())),
            None => {}
        }
        match text {
            "any" => return Ok(Target::Any),
            "none" => return Ok(Target::None),
            _ => {}
        }
        // A bare IPv6 address cannot have ports.
        let (network, ports) = match text.rsplit_once(':') {
            Some((network, ports)) if network.contains(']') || !network.contains(':') => (network, Some(ports)),
            _ => (text, None),
        };
        let (address, bits) = match network.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (network, None),
        };
        let bare = address.strip_prefix('[').map_or(Some(address), |rest| rest.strip_suffix(']')).ok_or(TargetError)?;
        let address: IpAddr = bare.parse().map_err(|_| TargetError)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |b| b.parse::<u8>().ok().filter(|b| *b <= most).ok_or(TargetError))?;
        let port = |text: &str| text.parse::<u16>().ok().filter(|p| *p > 0).ok_or(TargetError);
        let ports = match ports.map(|p| p.split_once('-').unwrap_or((p, p))) {
            Some((from, to)) => port(from)?..=port(to)?,
            None => PORTS,
        };
        if ports.is_empty() { Err(TargetError) } else { Ok(Target::Net(address, bits, ports)) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Any => f.write_str("any"),
            Target::None => f.write_str("none"),
            Target::Net(address, bits, ports) => write!(f, "[{address}]/{bits}:{}-{}", ports.start(), ports.end()),
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The job that sends a worker to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A job of the server's user, or of root, on this machine, which could connect by itself. Its worker is a process of the server's user.
    SameUser,
    /// A job at this address.
    At(IpAddr),
}

impl Sender {
    /// The job at an address, or, without one, of a user at the Unix socket of a server of the user `own`. Another user's job is at this
    /// machine, and may do through the server what it could do over TCP. So is any job whose worker is a process of another user than the
    /// server's: that user may have the worker ask for anything, and could not connect everywhere.
    pub(crate) fn of(address: Option<IpAddr>, user: Option<u32>, worker: u32, own: u32) -> Sender {
        match (address, user) {
            (Some(address), _) => Sender::At(address),
            (None, Some(user)) if (user == own || user == 0) && worker == own => Sender::SameUser,
            (None, _) => Sender::At(Ipv4Addr::LOCALHOST.into()),
        }
    }
}

/// The targets that a server allows. An empty list: the default, see [`Targets::allow`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Targets(Vec<Target>);

impl Targets {
    pub(crate) fn new(list: &[Target]) -> Targets {
        Targets(list.to_vec())
    }

    /// Whether a job may send its worker to an address. By default, a job that connected over TCP may name addresses in
    /// this machine's networks and its own address, with ports from 1024 on; loopback only if it connected from there;
    /// no Unix sockets. A job of the same user may name any address in any case.
    pub(crate) fn allow(&self, sender: Sender, to: Address<'_>) -> bool {
        self.allow_in(sender, to, networks)
    }

    fn allow_in(&self, sender: Sender, to: Address<'_>, networks: impl FnOnce() -> Vec<(IpAddr, u8)>) -> bool {
        let Sender::At(from) = sender else { return true };
        let listed = |target: &Target| match (target, to) {
            (Target::Any, _) => true,
            (Target::Net(network, bits, ports), Address::Ip(a)) => inside(a.ip(), *network, *bits) && ports.contains(&a.port()),
            (Target::Unix(path), Address::Unix(to)) => path == to,
            _ => false,
        };
        if !self.0.is_empty() {
            return self.0.iter().any(listed);
        }
        let Address::Ip(to) = to else { return false };
        let (ip, is_from_here) = (to.ip().to_canonical(), from.is_loopback());
        let known = if ip.is_loopback() {
            is_from_here
        } else {
            ip == from || networks().into_iter().any(|(network, bits)| inside(ip, network, bits))
        };
        known && PORTS.contains(&to.port())
    }
}

fn inside(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let shifted = |value: u128, width: u8| value.checked_shr((width - bits.min(width)).into()).unwrap_or(0);
    match (address.to_canonical(), network.to_canonical()) {
        (IpAddr::V4(a), IpAddr::V4(n)) => shifted(a.to_bits().into(), 32) == shifted(n.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(n)) => shifted(a.to_bits(), 128) == shifted(n.to_bits(), 128),
        _ => false,
    }
}

/// The networks in which this machine has an address, without loopback and link-local ones, where clouds have services
/// that answer every process on the machine.
fn networks() -> Vec<(IpAddr, u8)> {
    let Ok(all) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let network = |i: nix::ifaddrs::InterfaceAddress| {
        let (address, mask) = (i.address?, i.netmask?);
        let v4 = || Some((IpAddr::V4(address.as_sockaddr_in()?.ip()), mask.as_sockaddr_in()?.ip().to_bits().leading_ones()));
        let v6 = || Some((IpAddr::V6(address.as_sockaddr_in6()?.ip()), mask.as_sockaddr_in6()?.ip().to_bits().leading_ones()));
        let (ip, bits) = v4().or_else(v6)?;
        let local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        (!ip.is_loopback() && !local && bits > 0).then_some((ip, bits as u8))
    };
    all.filter_map(network).collect()
}

/// The error for a target that is not allowed.
pub(crate) fn not_allowed(to: &str) -> String {
    format!("this server does not connect to {to} (mrcuda serve --allow-target says where it does)")
}

/// Whether a host is an IP address or a path, so that the check of its permission reveals nothing about the network.
pub(crate) fn is_literal(host: &str) -> bool {
    host.starts_with("unix:") || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::path::Path;

    fn ip(text: &str) -> Address<'static> {
        Address::Ip(text.parse::<SocketAddr>().unwrap())
    }

    fn targets(list: &[&str]) -> Targets {
        Targets(list.iter().map(|t| t.parse().unwrap()).collect())
    }

    #[test]
    fn written_and_read_back() {
        for text in [
            "any",
            "none",
            "10.0.0.0/8",
            "10.1.2.3:7878",
            "10.0.0.0/8:7000-7999",
            "fd00::/8",
            "[fd00::]/8:7878",
            "[::1]:7878",
            "unix:/run/m.sock",
        ] {
            let t: Target = text.parse().unwrap();
            assert_eq!(t.to_string().parse::<Target>().unwrap(), t, "{text}");
        }
        for bad in [
            "",
            "host",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.1:0",
            "10.0.0.1:9-8",
            "10.0.0.1:",
            "[::1",
            "fd00::/129",
            "unix:",
            "10.0.0.1:a",
        ] {
            assert_eq!(bad.parse::<Target>(), Err(TargetError), "{bad}");
        }
    }

    #[test]
    fn what_is_listed_is_all_there_is() {
        let from = Sender::At("10.9.9.9".parse().unwrap());
        let allowed = |list: &[&str], to| targets(list).allow_in(from, to, || panic!("nobody asks for the networks"));
        assert!(allowed(&["10.0.0.0/8"], ip("10.255.0.1:7878")) && !allowed(&["10.0.0.0/8"], ip("10.255.0.1:22")));
        assert!(!allowed(&["10.0.0.0/8"], ip("11.0.0.1:7878")) && !allowed(&["10.0.0.0/8"], ip("[fd00::1]:7878")));
        assert!(allowed(&["10.1.2.3:22"], ip("10.1.2.3:22")) && !allowed(&["10.1.2.3:22"], ip("10.1.2.3:7878")));
        assert!(allowed(&["10.0.0.0/8"], ip("[::ffff:10.0.0.1]:7878")), "the same address in other words");
        assert!(allowed(&["0.0.0.0/0"], ip("1.2.3.4:7878")) && !allowed(&["0.0.0.0/0"], ip("[2001:db8::1]:7878")));
        assert!(allowed(&["any"], Address::Unix(Path::new("/x"))) && allowed(&["any"], ip("127.0.0.1:1")));
        assert!(!allowed(&["none"], ip("10.9.9.9:7878")));
        let unix = |path| allowed(&["unix:/run/m.sock", "10.0.0.0/8"], Address::Unix(Path::new(path)));
        assert!(unix("/run/m.sock") && !unix("/run/docker.sock"));
        assert!(targets(&["none"]).allow(Sender::SameUser, Address::Unix(Path::new("/x"))), "it could go there itself");
    }

    #[test]
    fn a_users_job_at_the_unix_socket_is_one_of_this_machine() {
        let (own, ann) = (990, 1000);
        assert_eq!([own, 0].map(|user| Sender::of(None, Some(user), own, own)), [Sender::SameUser; 2]);
        let loopback = Sender::At(Ipv4Addr::LOCALHOST.into());
        assert_eq!([Some(ann), None].map(|user| Sender::of(None, user, own, own)), [loopback; 2]);
        // The worker of each of these jobs is another user's, who may trace it.
        for (user, worker, own) in [(own, ann, own), (0, ann, own), (0, ann, 0), (ann, ann, own), (0, 0, own)] {
            assert_eq!(Sender::of(None, Some(user), worker, own), loopback, "{user} {worker} {own}");
        }
        assert_eq!(Sender::of(None, Some(0), 0, 0), Sender::SameUser);
        let address = "10.9.9.9".parse().unwrap();
        // As munge says it over TCP.
        assert_eq!(Sender::of(Some(address), Some(own), own, own), Sender::At(address));
        let to = |text: &str| text.parse().unwrap();
        let allowed = |list: &[&str], to| {
            let list: Vec<Target> = list.iter().map(|target| target.parse().unwrap()).collect();
            Targets::new(&list).allow_in(loopback, to, Vec::new)
        };
        assert!(allowed(&[], Address::Ip(to("127.0.0.1:7878"))) && !allowed(&[], Address::Ip(to("127.0.0.1:22"))));
        let socket = Address::Unix(Path::new("/run/mrcuda/socket"));
        assert!(!allowed(&[], socket) && allowed(&["unix:/run/mrcuda/socket"], socket));
    }

    #[test]
    fn by_default_the_networks_of_the_machine() {
        let networks = || vec![("192.168.7.20".parse().unwrap(), 24)];
        let allowed = |from: &str, to| Targets::default().allow_in(Sender::At(from.parse().unwrap()), to, networks);
        assert!(allowed("10.9.9.9", ip("192.168.7.1:7878")) && !allowed("10.9.9.9", ip("192.168.8.1:7878")));
        assert!(allowed("10.9.9.9", ip("10.9.9.9:7878")), "back to the job's own machine");
        assert!(!allowed("10.9.9.9", ip("192.168.7.1:80")) && !allowed("10.9.9.9", ip("169.254.169.254:8080")));
        assert!(!allowed("10.9.9.9", ip("127.0.0.1:7878")) && !allowed("10.9.9.9", ip("[::ffff:127.0.0.1]:7878")));
        assert!(allowed("127.0.0.1", ip("127.0.0.1:7878")) && allowed("::1", ip("127.0.0.1:7878")));
        assert!(!allowed("127.0.0.1", Address::Unix(Path::new("/run/m.sock"))));
        // Whatever this machine has: no panic, and none of the excluded networks.
        assert!(super::networks().iter().all(|(ip, bits)| !ip.is_loopback() && *bits > 0));
    }
}
