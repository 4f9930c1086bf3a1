//! What a stream and its setup need of a queue pair.

use cuda_api::wire_struct;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

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

/// Registered memory, of this end or the other, from this address on. What a key does not allow fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

impl Memory {
    /// What lies so many bytes further.
    pub(crate) fn at(self, offset: u64) -> Memory {
        Memory { address: self.address.wrapping_add(offset), ..self }
    }
}

/// The keys of registered memory: for this end's own writes, and for those of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) ours: u32,
    pub(crate) theirs: u32,
}

/// One end of a write: an offset in the memory of the ring, or other memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Ring(usize),
    Other(Memory),
}

/// A write: so many bytes from this end's outgoing or other memory, to the other end's incoming or other memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) from: Side,
    pub(crate) to: Side,
    pub(crate) bytes: usize,
    /// What the other end receives with it.
    pub(crate) number: u32,
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

/// Memory to register.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(any(test, feature = "rdma")), expect(dead_code, reason = "without RDMA there are no queue pairs"))]
pub(crate) struct Registrable<'a> {
    /// Its address, by which writes name it,
    pub(crate) at: usize,
    /// and its size.
    pub(crate) bytes: usize,
    /// The dma-buf that begins with it, if it is memory of a GPU.
    pub(crate) dma_buf: Option<BorrowedFd<'a>>,
}

/// Whose memory is registered.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    /// It keeps the memory mapped. Several connections may have registered it.
    #[expect(dead_code, reason = "kept, not used")]
    pub(crate) keeper: Arc<dyn std::any::Any + Send + Sync>,
    /// Whether the memory is used any more, other than by registrations.
    pub(crate) used: std::sync::Weak<dyn std::any::Any + Send + Sync>,
}

/// Forgets registrations whose memory is not used: nothing is on its way there any more.
#[cfg_attr(not(any(test, feature = "rdma")), expect(dead_code, reason = "without RDMA there are no queue pairs"))]
pub(crate) fn forget_unused<T>(lent: &mut Vec<(T, Owner)>) {
    lent.retain(|(_, owner)| owner.used.strong_count() > 0);
}

/// A connected queue pair with its two rings of registered memory.
pub(crate) trait Queue: std::fmt::Debug + Send + Sync {
    /// Bytes of each of the two memories.
    fn ring(&self) -> usize;

    /// The memory whose bytes our writes take.
    fn outgoing(&self) -> *mut u8;

    /// The memory to which the other end writes.
    fn incoming(&self) -> *const u8;

    /// Writes, with a number. Writes arrive in order. Each uses one receive of the other end.
    fn post_write(&self, write: &Write) -> io::Result<()>;

    /// Registers memory, and keeps its owner, at least until memory is registered while it is not used. Children of this process
    /// do not have it.
    fn register(&self, memory: Registrable<'_>, owner: Owner) -> io::Result<Keys>;

    /// Forgets registrations whose memory is not used.
    fn forget_unused(&self);

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
