//! What a stream and its setup need of a queue pair.

use cuda_api::wire_struct;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

wire_struct! {
    /// What one end tells the other about its queue pair.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Parameters {
        /// Address of the port.
        pub(crate) gid: [u8; 16],
        /// Number of the queue pair.
        pub(crate) number: u32,
        /// Number of the first packet.
        pub(crate) first: u32,
        /// The memory to which the other end may write,
        pub(crate) address: u64,
        /// and its key.
        pub(crate) key: u32,
        /// Size of packets, as the verbs encode it.
        pub(crate) mtu: u32,
    }
}

/// The address of a port as RoCE v2 has it; IPv4 addresses are mapped.
pub(super) fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A queue pair that is not connected yet.
pub(crate) trait Prepared: Send {
    /// What the other end has to know.
    fn parameters(&self) -> Parameters;

    /// Connects it to the queue pair of the other end.
    fn connect(self: Box<Self>, other: &Parameters) -> io::Result<Box<dyn Queue>>;
}

/// Something that was completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(any(test, feature = "rdma")), expect(dead_code, reason = "without RDMA there are no queue pairs"))]
pub(crate) enum Done {
    /// One of our writes has arrived.
    Written,
    /// The other end has written, with this number.
    Received(u32),
}

/// A connected queue pair with its two rings of registered memory.
pub(crate) trait Queue: std::fmt::Debug + Send + Sync {
    /// Bytes of each of the two memories.
    fn ring(&self) -> usize;

    /// The memory whose bytes our writes take.
    fn outgoing(&self) -> *mut u8;

    /// The memory to which the other end writes.
    fn incoming(&self) -> *const u8;

    /// Writes bytes of the outgoing memory to the same offset of the other end's incoming memory, with a number. Such writes arrive in
    /// order. Each uses one receive of the other end.
    fn post_write(&self, offset: usize, bytes: usize, number: u32) -> io::Result<()>;

    /// Lets the other end write once more.
    fn post_receive(&self) -> io::Result<()>;

    /// Takes a completion. An error means that the queue pair has failed.
    fn poll(&self) -> io::Result<Option<Done>>;

    /// Asks for an event when the next receive completes.
    fn arm(&self) -> io::Result<()>;

    /// Readable when there are events.
    fn events(&self) -> BorrowedFd<'_>;

    /// Takes all events.
    fn clear_events(&self) -> io::Result<()>;
}
