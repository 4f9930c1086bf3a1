//! The setup of a queue pair over a connection that was greeted. Each end tells the other of a failure, so both know whether there is
//! RDMA, and a connection without it can be used as it is.

use super::queue::{Parameters, Prepared, gid_of};
use super::stream::Stream;
#[cfg(feature = "rdma")]
use super::verbs;
use crate::conn::Conn;
use crate::greet::{self, GreetError};
use cuda_api::wire::Wire;
use executor::{Budget, Held};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What each end sends the other over RDMA before it is used: that the parameters fit does not mean that packets arrive.
const PROBE: [u8; 8] = *b"mrcuda\r\n";
/// How long a probe may take. One that gets lost costs so much of a start, or of a move.
const PROBING: Duration = Duration::from_secs(3);

/// Why RDMA does not carry a connection.
#[derive(Debug)]
pub(crate) enum NoRdma {
    /// It cannot be set up. Both ends know, and may use the connection as it is.
    Unavailable(String),
    /// The connection itself has failed.
    Failed(GreetError),
}

impl From<io::Error> for NoRdma {
    fn from(e: io::Error) -> NoRdma {
        NoRdma::Failed(e.into())
    }
}

impl From<NoRdma> for GreetError {
    fn from(why: NoRdma) -> GreetError {
        match why {
            NoRdma::Unavailable(why) => GreetError::Refused(why),
            NoRdma::Failed(why) => why,
        }
    }
}

/// Makes a queue pair at the device with this address. It keeps `held`, which is for the memory of its rings.
#[cfg(feature = "rdma")]
fn prepare(address: IpAddr, ring: usize, held: Held) -> io::Result<Box<dyn Prepared>> {
    Ok(Box::new(verbs::Pair::new(address, ring, held)?))
}

#[cfg(not(feature = "rdma"))]
fn prepare(_: IpAddr, _: usize, _: Held) -> io::Result<Box<dyn Prepared>> {
    Err(io::Error::other("this mrcuda was built without RDMA (cargo build --release --features rdma)"))
}

/// The two rings of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rings<'a> {
    /// Bytes of each.
    pub(crate) bytes: usize,
    /// What they are a part of,
    pub(crate) budget: &'a Arc<Budget>,
    /// and how many bytes of it must be left for something that is more important.
    pub(crate) others: u64,
}

fn prepare_for(conn: &Conn, rings: Rings<'_>) -> io::Result<Box<dyn Prepared>> {
    let address = conn.ip_local().ok_or_else(|| io::Error::other("RDMA needs a TCP connection for its setup"))?;
    let bytes = 2 * rings.bytes as u64;
    let held = rings.budget.hold_beside(bytes, rings.others).ok_or_else(|| {
        let (wanted, limit) = (bytes >> 20, rings.budget.limit() >> 20);
        let why =
            format!("{wanted} MiB more would be more pinned memory than the {limit} MiB for a job (mrcuda serve --max-pinned)");
        io::Error::new(io::ErrorKind::OutOfMemory, why)
    })?;
    prepare(address, rings.bytes, held)
}

fn read(bytes: &[u8]) -> io::Result<Parameters> {
    let mut rest = bytes;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "malformed parameters of a queue pair");
    let parameters = Parameters::get(&mut rest).map_err(|_| malformed())?;
    if rest.is_empty() { Ok(parameters) } else { Err(malformed()) }
}

/// The parameters of the peer: writes go to no other machine than that of the connection.
fn of_peer(conn: &Conn, bytes: &[u8]) -> io::Result<Parameters> {
    check(read(bytes)?, conn.ip_peer())
}

fn check(parameters: Parameters, peer: Option<IpAddr>) -> io::Result<Parameters> {
    if peer.map(gid_of) == Some(parameters.gid) {
        Ok(parameters)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "the queue pair is not at the address of the connection"))
    }
}

fn written(parameters: &Parameters) -> Vec<u8> {
    let mut out = Vec::new();
    parameters.put(&mut out);
    out
}

/// One end of a setup.
struct Setup<'a> {
    conn: &'a Conn,
    /// Whose end it is, for the other one.
    name: &'static str,
    deadline: Instant,
}

impl Setup<'_> {
    /// What this end has tried; the other end is notified if it has failed.
    fn tried<T>(&self, tried: io::Result<T>) -> Result<T, NoRdma> {
        match tried {
            Ok(made) => Ok(made),
            Err(why) => {
                let why = format!("RDMA at the {}: {why}", self.name);
                greet::answer(self.conn, Err(&why))?;
                Err(NoRdma::Unavailable(why))
            }
        }
    }

    /// What the other end says.
    fn hear(&self) -> Result<Vec<u8>, NoRdma> {
        greet::read_answer(self.conn, self.deadline).map_err(|why| match why {
            GreetError::Refused(why) => NoRdma::Unavailable(why),
            why => NoRdma::Failed(why),
        })
    }

    fn say(&self, body: &[u8]) -> Result<(), NoRdma> {
        Ok(greet::answer(self.conn, Ok(body))?)
    }

    fn connect(&self, pair: Box<dyn Prepared>, theirs: &[u8]) -> io::Result<Stream> {
        Ok(Stream::new(pair.connect(&of_peer(self.conn, theirs)?)?))
    }

    /// Sends the probe, once both ends are connected.
    fn probe(&self, stream: &Stream) -> io::Result<()> {
        stream.write(self.conn.socket()?, &[&PROBE])
    }

    /// Waits for the probe of the other end.
    fn wait_for_probe(&self, stream: &Stream) -> io::Result<()> {
        let mut said = [0; PROBE.len()];
        stream.read_exact_apart(&mut said, self.deadline.min(Instant::now() + PROBING)).map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => io::Error::new(e.kind(), "no packets arrive from the other end"),
            _ => e,
        })?;
        if said == PROBE {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the other end has sent something else"))
        }
    }
}

/// The worker's part of the setup.
pub(crate) fn accept(conn: &Conn, rings: Rings<'_>, deadline: Instant) -> Result<(), NoRdma> {
    accept_with(conn, deadline, prepare_for(conn, rings))
}

/// The worker's part if it does not want RDMA.
pub(crate) fn decline(conn: &Conn, why: &str) -> io::Result<()> {
    greet::answer(conn, Err(why))
}

fn accept_with(conn: &Conn, deadline: Instant, prepared: io::Result<Box<dyn Prepared>>) -> Result<(), NoRdma> {
    let setup = Setup { conn, name: "server", deadline };
    let pair = setup.tried(prepared)?;
    setup.say(&written(&pair.parameters()))?;
    let theirs = setup.hear()?;
    let stream = setup.tried(setup.connect(pair, &theirs))?;
    setup.tried(setup.probe(&stream))?;
    setup.say(&[])?;
    // The client has received the probe, and has sent its own.
    setup.hear()?;
    setup.tried(setup.wait_for_probe(&stream))?;
    setup.say(&[])?;
    conn.carry_by(stream);
    Ok(())
}

/// The client's part.
pub(crate) fn connect(conn: &Conn, rings: Rings<'_>, deadline: Instant) -> Result<(), NoRdma> {
    connect_with(conn, deadline, || prepare_for(conn, rings))
}

fn connect_with(conn: &Conn, deadline: Instant, prepare: impl FnOnce() -> io::Result<Box<dyn Prepared>>) -> Result<(), NoRdma> {
    let setup = Setup { conn, name: "client", deadline };
    let theirs = setup.hear()?;
    let pair = setup.tried(prepare())?;
    let ours = pair.parameters();
    let stream = setup.tried(setup.connect(pair, &theirs))?;
    setup.say(&written(&ours))?;
    setup.hear()?;
    setup.tried(setup.probe(&stream))?;
    setup.tried(setup.wait_for_probe(&stream))?;
    setup.say(&[])?;
    setup.hear()?;
    conn.carry_by(stream);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::tcp_pair;
    use crate::rdma::DATA_RING;
    use crate::rdma::stream::tests::{Nature, Unconnected, unconnected};
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    fn tcp() -> [Conn; 2] {
        tcp_pair().into()
    }

    type Pairs = [io::Result<Box<dyn Prepared>>; 2];

    /// Sets RDMA up between a server and a client, with what each of them has prepared.
    fn set_up([server, client]: &[Conn; 2], [theirs, ours]: Pairs) -> [Result<(), NoRdma>; 2] {
        thread::scope(|s| {
            let accepted = s.spawn(|| accept_with(server, Instant::now() + LONG, theirs));
            let connected = connect_with(client, Instant::now() + LONG, || ours);
            [accepted.join().unwrap(), connected]
        })
    }

    /// What is written at one end arrives at the other, in both directions.
    fn works([server, client]: &[Conn; 2]) {
        for (from, to) in [(server, client), (client, server)] {
            from.write_pieces(&[b"to", b"gether"]).unwrap();
            let mut got = [0; 8];
            to.read_exact_by(&mut got, Instant::now() + LONG).unwrap();
            assert_eq!(&got, b"together");
        }
    }

    /// Both ends at a network of this nature; `change` may spoil one of them.
    fn ends(nature: Nature, change: impl FnOnce(&mut [Box<Unconnected>; 2])) -> (Pairs, impl Drop) {
        let (mut pairs, carrier) = unconnected(nature, gid_of("127.0.0.1".parse().unwrap()));
        change(&mut pairs);
        (pairs.map(|pair| Ok(pair as Box<dyn Prepared>)), carrier)
    }

    #[test]
    fn after_a_setup_rdma_carries_the_connection() {
        for seed in 1..4 {
            let conns = tcp();
            let (pairs, _carrier) = ends(Nature::good(seed, DATA_RING), |_| {});
            let done = set_up(&conns, pairs);
            assert!(done.iter().all(Result::is_ok), "{done:?}");
            assert!(conns.iter().all(|c| c.carried().to_string() == "rdma"));
            works(&conns);
        }
    }

    /// Whatever fails: both ends know it, and use the connection without RDMA.
    #[test]
    fn a_setup_that_fails_leaves_a_connection_that_works() {
        let good = Nature::good(5, DATA_RING);
        let at = |delivers, is_silent| Nature { delivers, is_silent, ..good };
        type Spoil = fn(&mut Pairs);
        let none: Spoil = |_| {};
        let missing = |end: usize| move |pairs: &mut Pairs| pairs[end] = Err(io::Error::other("no device"));
        type Case = (&'static str, Nature, Option<usize>, Box<dyn FnOnce(&mut Pairs) + Send>);
        let cases: Vec<Case> = vec![
            ("RDMA at the server: no device", good, None, Box::new(missing(0))),
            ("RDMA at the client: no device", good, None, Box::new(missing(1))),
            ("RDMA at the server: it cannot be connected", good, Some(0), Box::new(none)),
            ("RDMA at the client: it cannot be connected", good, Some(1), Box::new(none)),
            // Who waits learns of a failure; with silence only the limit helps.
            ("the queue pair has failed", at([0, 0], false), None, Box::new(none)),
            ("the queue pair has failed", at([1, 0], false), None, Box::new(none)),
            ("RDMA at the client: no packets arrive", at([0, 1], true), None, Box::new(none)),
            ("RDMA at the server: no packets arrive", at([1, 0], true), None, Box::new(none)),
        ];
        thread::scope(|s| {
            for (why, nature, refuses, spoil) in cases {
                s.spawn(move || {
                    let conns = tcp();
                    let (mut pairs, _carrier) = ends(nature, |pairs| {
                        refuses.into_iter().for_each(|end| pairs[end].refuses = true);
                    });
                    spoil(&mut pairs);
                    for end in set_up(&conns, pairs) {
                        assert!(matches!(&end, Err(NoRdma::Unavailable(said)) if said.contains(why)), "{why}: {end:?}");
                    }
                    assert!(conns.iter().all(|c| c.carried().to_string() == "tcp"));
                    works(&conns);
                });
            }
        });
    }

    #[test]
    fn an_end_that_does_not_want_rdma_keeps_the_connection() {
        let [server, client] = tcp();
        decline(&server, "no").unwrap();
        let (pairs, _carrier) = ends(Nature::good(6, DATA_RING), |_| {});
        let [_, ours] = pairs;
        let said = connect_with(&client, Instant::now() + LONG, || ours);
        assert!(matches!(&said, Err(NoRdma::Unavailable(why)) if why == "no"), "{said:?}");
        works(&[server, client]);
    }

    /// Whichever end it is.
    #[test]
    fn without_room_for_its_rings_a_connection_stays_as_it_is() {
        let budget = Budget::new(2 * DATA_RING as u64 - 1);
        for end in 0..2 {
            let conns = tcp();
            let (mut pairs, _carrier) = ends(Nature::good(8, DATA_RING), |_| {});
            pairs[end] = prepare_for(&conns[end], Rings { bytes: DATA_RING, budget: &budget, others: 0 });
            for end in set_up(&conns, pairs) {
                assert!(
                    matches!(&end, Err(NoRdma::Unavailable(why)) if why.contains("7 MiB") && why.contains("--max-pinned")),
                    "{end:?}"
                );
            }
            assert!(conns.iter().all(|c| c.carried().to_string() == "tcp"));
            works(&conns);
        }
        // What was not set up takes no room.
        assert!(budget.hold(budget.limit()).is_some());
    }

    /// Nothing is known of the other end then, so the connection is of no use.
    #[test]
    fn a_connection_that_ends_in_a_setup_has_failed() {
        let of_client =
            written(&Parameters { gid: gid_of("127.0.0.1".parse().unwrap()), number: 1, first: 0, address: 0, key: 0, mtu: 0 });
        for said in [vec![], vec![&of_client[..]], vec![&of_client[..], &[]]] {
            let [server, client] = tcp();
            let (pairs, _carrier) = ends(Nature::good(7, DATA_RING), |_| {});
            let [theirs, _] = pairs;
            for body in said {
                greet::answer(&client, Ok(body)).unwrap();
            }
            client.shutdown();
            let end = accept_with(&server, Instant::now() + LONG, theirs);
            assert!(matches!(end, Err(NoRdma::Failed(_))), "{end:?}");
            assert_ne!(server.carried().to_string(), "rdma");
        }
    }

    #[test]
    fn a_queue_pair_of_another_machine_is_refused() {
        let at = |gid| Parameters { gid, number: 2, first: 3, address: 4, key: 5, mtu: 6 };
        let v4: IpAddr = "10.1.2.3".parse().unwrap();
        let v6: IpAddr = "fd00::7".parse().unwrap();
        let mapped = "::ffff:10.1.2.3".parse::<std::net::Ipv6Addr>().unwrap().octets();
        let seven = "fd00::7".parse::<std::net::Ipv6Addr>().unwrap().octets();
        assert!(check(at(mapped), Some(v4)).is_ok() && check(at(seven), Some(v6)).is_ok());
        for (gid, peer) in [(mapped, Some(v6)), (seven, Some(v4)), ([0; 16], Some(v4)), (mapped, None)] {
            assert_eq!(check(at(gid), peer).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn parameters_of_another_length_are_errors() {
        let all = written(&Parameters { gid: [1; 16], number: 2, first: 3, address: 4, key: 5, mtu: 6 });
        assert_eq!(written(&read(&all).unwrap()), all);
        for bytes in [&all[..all.len() - 1], &[], &[&all[..], &[0]].concat()] {
            assert_eq!(read(bytes).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
