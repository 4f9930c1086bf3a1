//! The setup of a queue pair over a connection that was greeted.

use super::queue::{Parameters, Prepared, gid_of};
use super::stream::Stream;
#[cfg(feature = "rdma")]
use super::verbs;
use crate::conn::Conn;
use crate::greet::{self, GreetError};
use cuda_api::wire::Wire;
use std::io;
use std::net::IpAddr;
use std::time::Instant;

/// Makes a queue pair at the device with this address.
#[cfg(feature = "rdma")]
fn prepare(address: IpAddr) -> io::Result<Box<dyn Prepared>> {
    Ok(Box::new(verbs::Pair::new(address)?))
}

#[cfg(not(feature = "rdma"))]
fn prepare(_: IpAddr) -> io::Result<Box<dyn Prepared>> {
    Err(io::Error::other("this mrcuda was built without RDMA (cargo build --release --features rdma)"))
}

fn prepare_for(conn: &Conn) -> io::Result<Box<dyn Prepared>> {
    prepare(conn.ip_local().ok_or_else(|| io::Error::other("RDMA needs a TCP connection for its setup"))?)
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

/// The worker's part of the setup. On an error the client has been told.
pub(crate) fn accept(conn: &Conn, deadline: Instant) -> io::Result<()> {
    let made = prepare_for(conn).and_then(|pair| {
        greet::answer(conn, Ok(&written(&pair.parameters())))?;
        let theirs = greet::read_answer(conn, deadline).map_err(io::Error::other)?;
        pair.connect(&of_peer(conn, &theirs)?)
    });
    match made {
        Ok(queue) => {
            greet::answer(conn, Ok(&[]))?;
            conn.carry_by(Stream::new(queue));
            Ok(())
        }
        Err(why) => {
            // It may have disconnected.
            let _ = greet::answer(conn, Err(&format!("RDMA at the server: {why}")));
            Err(why)
        }
    }
}

/// The client's part.
pub(crate) fn connect(conn: &Conn, deadline: Instant) -> Result<(), GreetError> {
    let theirs = greet::read_answer(conn, deadline)?;
    let made = prepare_for(conn).and_then(|pair| {
        let ours = pair.parameters();
        Ok((ours, pair.connect(&of_peer(conn, &theirs)?)?))
    });
    let (ours, queue) = made.map_err(|why| {
        // Its log then has the reason.
        let _ = greet::answer(conn, Err(&format!("RDMA at the client: {why}")));
        GreetError::Refused(format!("RDMA at this end: {why}"))
    })?;
    greet::answer(conn, Ok(&written(&ours))).map_err(GreetError::from)?;
    greet::read_answer(conn, deadline)?;
    conn.carry_by(Stream::new(queue));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
