//! The channel between the daemon and a worker: messages with descriptors over a socket pair, which the worker inherits
//! as its standard input. The process that reads NVML for the daemon has such a channel, too.

use crate::eviction::EvictionNews;
use crate::greet::JobHello;
use crate::limits::WorkerLimits;
use crate::packet;
use crate::records::Session;
use crate::sandbox::Confinement;
use crate::server_state::{GpuFacts, MemoryUse};
use cuda_api::wire::{Short, Wire};
use cuda_api::wire_struct;
use executor::NvmlFacts;
use executor::fork::NotInherited;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, Shutdown, shutdown};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Maximum time for a worker to open its GPU: until it says that it is ready.
pub(crate) const OPENING: Duration = Duration::from_secs(100);

/// Where a worker has its daemon connect to for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// The server of this place, to which its job moves.
    Place(String),
    /// The socket with this name, at which another place of the machine shares memory.
    Share([u8; 16]),
}

impl Wire for Destination {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Destination::Place(place) => (0u8, place.clone()).put(out),
            Destination::Share(name) => (1u8, *name).put(out),
        }
    }

    fn get(src: &mut &[u8]) -> Result<Destination, Short> {
        match u8::get(src)? {
            0 => Ok(Destination::Place(Wire::get(src)?)),
            1 => Ok(Destination::Share(Wire::get(src)?)),
            _ => Err(Short),
        }
    }
}

wire_struct! {
    /// Why a daemon has not connected.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct NotConnected {
        /// The server does not allow it.
        pub(crate) denied: bool,
        /// The reason.
        pub(crate) why: String,
    }
}

/// Where a worker that executes nothing keeps the memory of a parked device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAt {
    /// In its own memory.
    Memory,
    /// In a new file.
    NewFile(String),
    /// In a file that was completed before, with what identifies its contents.
    File(String, [u8; 32]),
}

impl Wire for StoreAt {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            StoreAt::Memory => 0u8.put(out),
            StoreAt::NewFile(path) => (1u8, path.clone()).put(out),
            StoreAt::File(path, seal) => (2u8, (path.clone(), *seal)).put(out),
        }
    }

    fn get(src: &mut &[u8]) -> Result<StoreAt, Short> {
        match u8::get(src)? {
            0 => Ok(StoreAt::Memory),
            1 => Ok(StoreAt::NewFile(Wire::get(src)?)),
            2 => Ok(StoreAt::File(Wire::get(src)?, Wire::get(src)?)),
            _ => Err(Short),
        }
    }
}

wire_struct! {
    /// What a worker is to open.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Start {
        /// Path of the CUDA driver.
        pub(crate) driver: String,
        /// The number of its server's user.
        pub(crate) user: u32,
        /// The GPU's number in the driver.
        pub(crate) gpu: u32,
        /// Number of the device in the job.
        pub(crate) virtual_device: u32,
        /// Its resource limits.
        pub(crate) limits: WorkerLimits,
        /// Connections need not be encrypted.
        pub(crate) plain: bool,
        /// Network cards may write to and read from the GPU's memory.
        pub(crate) gpudirect: bool,
        /// Number of heartbeats in a row that a stopped job leaves unanswered before its memory is evicted; `None`: it is not.
        pub(crate) evict_after: Option<u32>,
        /// Instead of a GPU: where it keeps memory.
        pub(crate) store: Option<StoreAt>,
        /// What it confines itself to first, if to anything.
        pub(crate) confinement: Option<Confinement>,
    }
}

wire_struct! {
    /// How the process that reads NVML is to begin.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct StartReader {
        /// Path of the CUDA driver.
        pub(crate) driver: String,
        /// Who uses the GPUs is read as well.
        pub(crate) usage: bool,
        /// What it confines itself to first, if to anything.
        pub(crate) confinement: Option<Confinement>,
    }
}

#[cfg(test)]
impl Start {
    /// One for a place of a test.
    pub(crate) fn of_test() -> Start {
        Start {
            driver: String::new(),
            user: nix::unistd::geteuid().as_raw(),
            gpu: 0,
            virtual_device: 0,
            limits: WorkerLimits::of_machine(),
            plain: false,
            gpudirect: false,
            evict_after: None,
            store: None,
            confinement: None,
        }
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// Daemon: open this GPU.
    Start(Start),
    /// Worker: the result of opening it: what GPU it is, or the error.
    Ready(Result<GpuFacts, String>),
    /// Daemon: the job to serve, with the descriptor of its connection, what protects it, and whether RDMA is to carry its calls.
    Job(JobHello, Option<Session>, bool),
    /// Worker: expect this many connections with this ticket.
    Expect([u8; 32], u32),
    /// Daemon: the ticket is known now.
    Expecting([u8; 32]),
    /// Daemon: a connection with this ticket, what protects it, and whether RDMA is to carry it; its peer waits for an answer.
    Bulk([u8; 32], Option<Session>, bool),
    /// Job: one end of a connection with this ticket.
    Joined([u8; 32]),
    /// Worker: accept no more connections with this ticket.
    Forget([u8; 32]),
    /// Worker: it has received the job's connection.
    Taken,
    /// Daemon: report the use of memory.
    Measure,
    /// Worker: the use of memory.
    Measured(MemoryUse),
    /// Daemon: pass on that the job is to move to this place within so many milliseconds, for the request with this number; without one
    /// because the daemon is about to end.
    Leave(String, u64, Option<u64>),
    /// Worker: the job stays although this was requested, for this reason.
    Stays(Option<u64>, String),
    /// Daemon: the slot in the client's account, which comes as a descriptor, and the client's limit of GPU memory.
    Account(u32, u64),
    /// Worker: connect there within so many milliseconds. The number is for the answer.
    Connect(u32, Destination, u64),
    /// Daemon: the answer to the request with this number; without an error it comes with the descriptor of the connection.
    Connected(u32, Option<NotConnected>),
    /// Daemon, as the first message instead of [`Message::Start`]: be the process that reads NVML.
    StartReader(StartReader),
    /// Daemon: read what NVML says of the GPUs with these UUIDs.
    Read(Vec<[u8; 16]>),
    /// Reader: that, in the same order, or why NVML cannot be used.
    Readings(Result<Vec<NvmlFacts>, String>),
    /// Worker: what happens to the memory of a job that is stopped.
    Eviction(EvictionNews),
    /// Daemon: so many bytes of it may be in host memory, or why they may not.
    MayEvict(u64, Option<String>),
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Message::Start(s) => (1u8, s.clone()).put(&mut out),
            Message::Ready(Err(why)) => (2u8, why.clone()).put(&mut out),
            Message::Ready(Ok(facts)) => (10u8, facts.clone()).put(&mut out),
            Message::Job(hello, session, rdma) => (3u8, (hello.clone(), (session.clone(), *rdma))).put(&mut out),
            Message::Expect(ticket, n) => (4u8, (*ticket, *n)).put(&mut out),
            Message::Expecting(ticket) => (5u8, *ticket).put(&mut out),
            Message::Bulk(ticket, session, rdma) => (6u8, (*ticket, (session.clone(), *rdma))).put(&mut out),
            Message::Forget(ticket) => (7u8, *ticket).put(&mut out),
            Message::Taken => 8u8.put(&mut out),
            Message::Measure => 11u8.put(&mut out),
            Message::Measured(memory) => (12u8, *memory).put(&mut out),
            Message::Leave(to, ms, request) => (13u8, (to.clone(), (*ms, *request))).put(&mut out),
            Message::Stays(request, why) => (14u8, (*request, why.clone())).put(&mut out),
            Message::Account(slot, limit) => (15u8, (*slot, *limit)).put(&mut out),
            Message::Joined(ticket) => (9u8, *ticket).put(&mut out),
            Message::Connect(number, to, ms) => (16u8, (*number, (to.clone(), *ms))).put(&mut out),
            Message::Connected(number, error) => (17u8, (*number, error.clone())).put(&mut out),
            Message::StartReader(start) => (18u8, start.clone()).put(&mut out),
            Message::Read(gpus) => (19u8, gpus.clone()).put(&mut out),
            Message::Readings(Ok(all)) => (20u8, all.clone()).put(&mut out),
            Message::Readings(Err(why)) => (21u8, why.clone()).put(&mut out),
            Message::Eviction(news) => (22u8, news.clone()).put(&mut out),
            Message::MayEvict(number, why_not) => (23u8, (*number, why_not.clone())).put(&mut out),
        }
        out
    }

    fn read(mut bytes: &[u8]) -> Result<Message, Short> {
        let src = &mut bytes;
        let message = match u8::get(src)? {
            1 => Message::Start(Wire::get(src)?),
            2 => Message::Ready(Err(Wire::get(src)?)),
            3 => Message::Job(Wire::get(src)?, Wire::get(src)?, Wire::get(src)?),
            4 => Message::Expect(Wire::get(src)?, Wire::get(src)?),
            5 => Message::Expecting(Wire::get(src)?),
            6 => Message::Bulk(Wire::get(src)?, Wire::get(src)?, Wire::get(src)?),
            7 => Message::Forget(Wire::get(src)?),
            8 => Message::Taken,
            9 => Message::Joined(Wire::get(src)?),
            10 => Message::Ready(Ok(Wire::get(src)?)),
            11 => Message::Measure,
            12 => Message::Measured(Wire::get(src)?),
            13 => Message::Leave(Wire::get(src)?, Wire::get(src)?, Wire::get(src)?),
            14 => Message::Stays(Wire::get(src)?, Wire::get(src)?),
            15 => Message::Account(Wire::get(src)?, Wire::get(src)?),
            16 => Message::Connect(Wire::get(src)?, Wire::get(src)?, Wire::get(src)?),
            17 => Message::Connected(Wire::get(src)?, Wire::get(src)?),
            18 => Message::StartReader(Wire::get(src)?),
            19 => Message::Read(Wire::get(src)?),
            20 => Message::Readings(Ok(Wire::get(src)?)),
            21 => Message::Readings(Err(Wire::get(src)?)),
            22 => Message::Eviction(Wire::get(src)?),
            23 => Message::MayEvict(Wire::get(src)?, Wire::get(src)?),
            _ => return Err(Short),
        };
        if src.is_empty() { Ok(message) } else { Err(Short) }
    }
}

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Must be dropped before the socket is closed, because the descriptor's number may then be reused.
    _not_inherited: Option<NotInherited>,
    fd: OwnedFd,
}

impl Channel {
    /// Creates both ends, closed on exec.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (a, b) = packet::pair()?;
        Ok((Channel { _not_inherited: None, fd: a }, b))
    }

    /// Creates one end from its socket.
    #[cfg(test)]
    pub(crate) fn over(fd: OwnedFd) -> Channel {
        Channel { _not_inherited: None, fd }
    }

    /// What the other end sends from now on fails.
    #[cfg(test)]
    pub(crate) fn hear_no_more(&self) {
        shutdown(self.fd.as_raw_fd(), Shutdown::Read).unwrap();
    }

    /// As [`Channel::pair`]; forked children of this process do not keep our end.
    pub(crate) fn pair_apart() -> io::Result<(Channel, OwnedFd)> {
        let (channel, theirs) = Channel::pair()?;
        Ok((Channel { _not_inherited: NotInherited::note(channel.fd.as_raw_fd()), ..channel }, theirs))
    }

    /// The end that a worker has as its standard input, which is replaced by an empty one.
    pub(crate) fn from_stdin() -> io::Result<Channel> {
        Ok(Channel { _not_inherited: None, fd: packet::from_stdin()? })
    }

    /// Sends a message, optionally with a descriptor. Fails if the other end reads nothing for some time.
    pub(crate) fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send_with(message, fd, MsgFlags::empty())
    }

    /// Sends a message; fails at once if the other end has not read what was sent before.
    pub(crate) fn send_now(&self, message: &Message) -> io::Result<()> {
        self.send_with(message, None, MsgFlags::MSG_DONTWAIT)
    }

    fn send_with(&self, message: &Message, fd: Option<BorrowedFd<'_>>, flags: MsgFlags) -> io::Result<()> {
        packet::send(&self.fd, &message.bytes(), fd.as_slice(), flags)
    }

    /// The next message, if it arrives before `deadline`.
    pub(crate) fn receive_by(&self, deadline: Instant) -> io::Result<Option<(Message, Option<OwnedFd>)>> {
        packet::wait(&self.fd, deadline)?;
        self.receive()
    }

    /// The next message; `None` if the other end is closed.
    pub(crate) fn receive(&self) -> io::Result<Option<(Message, Option<OwnedFd>)>> {
        let Some((bytes, mut fds)) = packet::receive(&self.fd, 1)? else { return Ok(None) };
        let message = Message::read(&bytes).map_err(|_| packet::invalid("malformed message between daemon and worker"))?;
        Ok(Some((message, fds.pop())))
    }

    /// Whether the other end is closed, also if what it has sent before was not read yet.
    pub(crate) fn has_hung_up(&self) -> bool {
        let hung_up = PollFlags::from_bits_retain(libc::POLLRDHUP);
        poll(&mut [PollFd::new(self.fd.as_fd(), hung_up)], PollTimeout::ZERO).is_ok_and(|seen| seen > 0)
    }

    /// Closes the channel: both ends read the end of the stream.
    pub(crate) fn close(&self) {
        // If the other end is closed, no shutdown is needed.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::{self, Conn};
    use crate::eviction::{EvictedMemory, WantedMemory};
    use crate::records::Traffic;
    use executor::Usage;
    use std::io::{Read, Write};

    #[test]
    fn messages_and_descriptors_arrive() {
        let (a, b) = Channel::pair().unwrap();
        let b = Channel::over(b);
        let hello = JobHello { virtual_device: 1, pid: 2, env: vec![("CUDA_X".into(), "é".into())], name: String::new() };
        let traffic = |n| Traffic { secret: [n; 32], number: u64::from(n) };
        let session = Session { read: traffic(7), write: traffic(9) };
        for m in [
            Message::Start(Start {
                driver: "d".into(),
                user: 3,
                gpu: 1,
                virtual_device: 2,
                limits: WorkerLimits::of_machine(),
                plain: true,
                gpudirect: true,
                evict_after: Some(60),
                store: Some(StoreAt::File("f".into(), [7; 32])),
                confinement: Some(Confinement {
                    landlock: true,
                    seccomp: false,
                    readable: vec!["/r".into()],
                    writable: vec!["/w".into()],
                    unix_sockets: true,
                }),
            }),
            Message::Ready(Err("no".into())),
            Message::Ready(Ok(GpuFacts { name: "é".into(), uuid: [5; 16], total_bytes: 6, driver_version: 13_000 })),
            Message::Leave("b:1/0".into(), 30_000, None),
            Message::Leave("b:1/0".into(), 30_000, Some(3)),
            Message::Stays(None, "it rains".into()),
            Message::Stays(Some(3), "it rains".into()),
            Message::Account(3, 1 << 40),
            Message::Measure,
            Message::Measured(MemoryUse { free_bytes: Some(7), used_bytes: 8, evicted_bytes: 9 }),
            Message::Job(hello.clone(), None, true),
            Message::Job(hello, Some(session.clone()), false),
            Message::Expect([1; 32], 4),
            Message::Expecting([2; 32]),
            Message::Forget([3; 32]),
            Message::Taken,
            Message::Joined([4; 32]),
            Message::Connect(1, Destination::Place("b:1/0".into()), 5_000),
            Message::Connect(2, Destination::Share([5; 16]), 2_000),
            Message::Connected(3, Some(NotConnected { denied: true, why: "no".into() })),
            Message::Connected(4, None),
            Message::StartReader(StartReader { driver: "d".into(), usage: true, confinement: None }),
            Message::Read(vec![[1; 16], [2; 16]]),
            Message::Readings(Ok(vec![
                NvmlFacts { readings: vec![(0, 97), (3, 312_500)], usage: Usage::default() },
                NvmlFacts { readings: Vec::new(), usage: Usage { free_bytes: Some(1 << 40), processes: Some(vec![7]) } },
            ])),
            Message::Readings(Err("no".into())),
            Message::Eviction(EvictionNews::Wanted(WantedMemory { number: 9, bytes: 1 << 40 })),
            Message::Eviction(EvictionNews::Evicted(EvictedMemory { bytes: 1 << 40, rest: 2, ms: 3 })),
            Message::Eviction(EvictionNews::Stays(Some("no".into()))),
            Message::Eviction(EvictionNews::Stays(None)),
            Message::Eviction(EvictionNews::Waits),
            Message::Eviction(EvictionNews::Restored(4)),
            Message::MayEvict(5, None),
            Message::MayEvict(6, Some("no".into())),
        ] {
            a.send(&m, None).unwrap();
            assert_eq!(b.receive().unwrap().unwrap().0, m);
        }
        let (x, mut y) = conn::pair();
        a.send(&Message::Bulk([4; 32], Some(session), true), Some(x.socket().unwrap())).unwrap();
        drop(x);
        let (_, fd) = b.receive().unwrap().unwrap();
        Conn::new(fd.unwrap()).write_all(b"through").unwrap();
        let mut text = String::new();
        y.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        drop(a);
        assert!(b.receive().unwrap().is_none());
    }

    #[test]
    fn an_end_that_reads_nothing_holds_nobody_up() {
        let (a, _b) = Channel::pair().unwrap();
        let refused = (0..1_000_000).find_map(|_| a.send_now(&Message::Measure).err());
        assert_eq!(refused.map(|e| e.kind()), Some(io::ErrorKind::WouldBlock));
        // A message that must arrive is waited for, but not forever.
        assert_eq!(a.send(&Message::Measure, None).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn descriptors_beside_the_one_of_a_message_are_an_error_and_closed() {
        use crate::socket::MOST_DESCRIPTORS;
        use nix::sys::socket::{ControlMessage, sendmsg};
        use std::os::fd::AsRawFd;
        for n in [2, MOST_DESCRIPTORS] {
            let (a, b) = Channel::pair().unwrap();
            let (mut reader, writer) = io::pipe().unwrap();
            let fds = vec![writer.as_raw_fd(); n];
            let (bytes, rights) = (Message::Measure.bytes(), [ControlMessage::ScmRights(&fds)]);
            sendmsg::<()>(a.fd.as_raw_fd(), &[io::IoSlice::new(&bytes)], &rights, MsgFlags::empty(), None).unwrap();
            drop(writer);
            assert_eq!(Channel::over(b).receive().unwrap_err().kind(), io::ErrorKind::InvalidData, "{n}");
            // No end for writing is left here.
            reader.read_to_end(&mut Vec::new()).unwrap();
        }
    }

    #[test]
    fn damaged_messages_are_errors() {
        for m in [Message::Ready(Err("no".into())), Message::Expect([1; 32], 4)] {
            let bytes = m.bytes();
            for n in 0..bytes.len() {
                assert!(Message::read(&bytes[..n]).is_err());
            }
            assert!(Message::read(&[&bytes[..], &[0]].concat()).is_err());
        }
        assert!(Message::read(&[99]).is_err());
    }
}
