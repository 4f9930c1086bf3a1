//! Calls over RDMA: the greeting runs over TCP, and then the two ends exchange the parameters of a queue pair there, which carries
//! everything from then on (docs/formats.md, "RDMA"). The TCP connection stays open: its end is the end of the connection.
//!
//! The network card writes to the memory of the two processes without encryption, so both ends must have said that they want that: the
//! client with `rdma://`, the server with `--allow-plain`.

mod queue;
mod stream;
#[cfg(feature = "rdma")]
mod verbs;

pub(crate) use stream::Stream;

use crate::conn::Conn;
use crate::greet::{self, GreetError};
use cuda_api::wire::Wire;
use cuda_api::wire_struct;
use queue::Queue;
use std::io;
use std::net::IpAddr;
use std::time::Instant;

wire_struct! {
    /// What one end tells the other about its queue pair.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Parameters {
        /// Address of the port.
        gid: [u8; 16],
        /// Number of the queue pair.
        number: u32,
        /// Number of the first packet.
        first: u32,
        /// The memory to which the other end may write, and its key.
        address: u64,
        key: u32,
        /// Size of packets, as the verbs encode it.
        mtu: u32,
    }
}

/// A queue pair that is not connected yet.
trait Prepared {
    fn parameters(&self) -> Parameters;
    fn connect(self: Box<Self>, other: &Parameters) -> io::Result<Box<dyn Queue>>;
}

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
        pair.connect(&read(&theirs)?)
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
        Ok((ours, pair.connect(&read(&theirs)?)?))
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
