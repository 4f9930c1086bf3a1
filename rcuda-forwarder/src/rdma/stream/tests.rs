//! Streams over a fake queue pair. A thread is the network: it takes the bytes of a write from memory when it delivers it, as a device
//! does, and reports completions later, in any order between the two directions. A write without a receive at the other end fails the test.

use super::*;
use crate::conn::{Conn, pair, tcp_pair};
use crate::rdma::queue::{Done, Keys, Memory, Owner, Parameters, Prepared, Queue, Side, Write, forget_unused};
use crate::rdma::{CALL_RING as RING, DATA_RING};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::thread;

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// One end as the network sees it.
#[derive(Debug)]
struct End {
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    posted: VecDeque<Write>,
    /// Writes that have arrived, whose completion was not reported.
    unreported: usize,
    receives: usize,
    done: VecDeque<Done>,
    armed: bool,
    failed: bool,
    most_under_way: usize,
    event: Arc<EventFd>,
    /// Memory that was registered, with its key.
    lent: Vec<((u32, usize, usize), Owner)>,
    keys: u32,
    reaches_gpus: bool,
}

impl End {
    /// The address of bytes that a write may take or change.
    fn side(&mut self, side: Side, bytes: usize, outgoing: bool, theirs: bool) -> *mut u8 {
        match side {
            Side::Ring(offset) => {
                let ring = if outgoing { &mut self.outgoing } else { &mut self.incoming };
                ring[offset..offset + bytes].as_mut_ptr()
            }
            Side::Other(Memory { address, key }) => {
                let (at, key) = (address as usize, key - u32::from(theirs));
                assert!(
                    self.lent.iter().any(|((k, from, n), _)| *k == key && *from <= at && at + bytes <= from + n),
                    "not registered"
                );
                at as *mut u8
            }
        }
    }

    fn new(ring: usize, reaches_gpus: bool) -> End {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap();
        End {
            outgoing: vec![0; ring],
            incoming: vec![0; ring],
            posted: VecDeque::new(),
            unreported: 0,
            receives: DEPTH,
            done: VecDeque::new(),
            armed: false,
            failed: false,
            most_under_way: 0,
            event: Arc::new(event),
            lent: Vec::new(),
            keys: 10,
            reaches_gpus,
        }
    }

    fn received(&mut self, number: u32) {
        assert!(self.receives > 0, "a write without a receive");
        self.receives -= 1;
        self.done.push_back(Done::Received(number));
        if std::mem::take(&mut self.armed) {
            self.event.write(1).unwrap();
        }
    }
}

/// What a network does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nature {
    pub(crate) seed: u64,
    pub(crate) ring: usize,
    /// How many writes of each end it delivers.
    pub(crate) delivers: [usize; 2],
    /// The others are lost without a word; otherwise the first of them is a failure of both ends.
    pub(crate) is_silent: bool,
    /// The cards register memory of GPUs.
    pub(crate) reaches_gpus: bool,
}

impl Nature {
    /// Delivers everything.
    pub(crate) fn good(seed: u64, ring: usize) -> Nature {
        Nature { seed, ring, delivers: [FOREVER; 2], is_silent: false, reaches_gpus: true }
    }
}

type Network = Arc<Mutex<[End; 2]>>;

/// One end of the fake.
#[derive(Debug)]
struct Fake {
    network: Network,
    end: usize,
    outgoing: usize,
    incoming: usize,
    event: Arc<EventFd>,
}

impl Fake {
    fn new(network: &Network, end: usize) -> Fake {
        let mut ends = network.lock().unwrap();
        let (outgoing, incoming) = (ends[end].outgoing.as_mut_ptr() as usize, ends[end].incoming.as_mut_ptr() as usize);
        let event = ends[end].event.clone();
        Fake { network: network.clone(), end, outgoing, incoming, event }
    }
}

impl Queue for Fake {
    fn ring(&self) -> usize {
        self.network.lock().unwrap()[self.end].incoming.len()
    }
    fn outgoing(&self) -> *mut u8 {
        self.outgoing as *mut u8
    }
    fn incoming(&self) -> *const u8 {
        self.incoming as *const u8
    }
    fn post_write(&self, write: &Write) -> io::Result<()> {
        let end = &mut self.network.lock().unwrap()[self.end];
        end.side(write.from, write.bytes, true, false);
        end.posted.push_back(*write);
        end.most_under_way = end.most_under_way.max(end.posted.len() + end.unreported);
        assert!(end.most_under_way <= DEPTH, "more writes than the queue has room for");
        Ok(())
    }
    fn register(&self, memory: Registrable<'_>, owner: Owner) -> io::Result<Keys> {
        let Registrable { at, bytes, dma_buf } = memory;
        let end = &mut self.network.lock().unwrap()[self.end];
        if dma_buf.is_some() && !end.reaches_gpus {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let key = end.keys;
        end.keys += 2;
        forget_unused(&mut end.lent);
        end.lent.push(((key, at, bytes), owner));
        // Each is good for its own end only.
        Ok(Keys { ours: key, theirs: key + 1 })
    }
    fn forget_unused(&self) {
        forget_unused(&mut self.network.lock().unwrap()[self.end].lent);
    }
    fn post_receive(&self) -> io::Result<()> {
        self.network.lock().unwrap()[self.end].receives += 1;
        Ok(())
    }
    fn poll(&self) -> io::Result<Option<Done>> {
        let end = &mut self.network.lock().unwrap()[self.end];
        match end.done.pop_front() {
            None if end.failed => Err(io::Error::other("the queue pair has failed")),
            done => Ok(done),
        }
    }
    fn arm(&self) -> io::Result<()> {
        self.network.lock().unwrap()[self.end].armed = true;
        Ok(())
    }
    fn events(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
    fn clear_events(&self) -> io::Result<()> {
        let _ = self.event.read();
        Ok(())
    }
}

/// The thread that carries; it ends when this is dropped.
pub(crate) struct Carrier {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

/// A network, and the thread that carries.
fn network(nature: Nature) -> (Network, Carrier) {
    let network: Network = Arc::new(Mutex::new([0, 1].map(|_| End::new(nature.ring, nature.reaches_gpus))));
    let stop = Arc::new(AtomicBool::new(false));
    let (theirs, stopped) = (network.clone(), stop.clone());
    let thread = thread::spawn(move || {
        let (mut random, mut left) = (Random::new(nature.seed), nature.delivers);
        while !stopped.load(Ordering::SeqCst) {
            carry(&mut theirs.lock().unwrap(), &mut random, &mut left, nature.is_silent);
            thread::yield_now();
        }
    });
    (network, Carrier { stop, thread: Some(thread) })
}

fn streams(network: &Network) -> [Stream; 2] {
    [0, 1].map(|end| Stream::new(Box::new(Fake::new(network, end))))
}

/// An end of a network as the setup of a connection has it at first.
#[derive(Debug)]
pub(crate) struct Unconnected {
    queue: Fake,
    gid: [u8; 16],
    /// It cannot be connected.
    pub(crate) refuses: bool,
}

impl Prepared for Unconnected {
    fn parameters(&self) -> Parameters {
        Parameters { gid: self.gid, number: self.queue.end as u32, first: 1, address: 2, key: 3, mtu: 4 }
    }

    fn connect(self: Box<Self>, other: &Parameters) -> io::Result<Box<dyn Queue>> {
        assert_eq!(other.number, 1 - self.queue.end as u32);
        if self.refuses { Err(io::Error::other("it cannot be connected")) } else { Ok(Box::new(self.queue)) }
    }
}

/// The ends of a network for a setup, at this address.
pub(crate) fn unconnected(nature: Nature, gid: [u8; 16]) -> ([Box<Unconnected>; 2], Carrier) {
    let (network, carrier) = network(nature);
    ([0, 1].map(|end| Box::new(Unconnected { queue: Fake::new(&network, end), gid, refuses: false })), carrier)
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let carried = self.thread.take().unwrap().join();
        if !thread::panicking() {
            carried.unwrap();
        }
    }
}

/// Two connections that such streams carry.
pub(crate) fn connections(nature: Nature) -> (Conn, Conn, Carrier) {
    connections_beside(nature, pair())
}

/// As [`connections`], beside the given ones.
pub(crate) fn connections_beside(nature: Nature, (a, b): (Conn, Conn)) -> (Conn, Conn, Carrier) {
    let (network, carrier) = network(nature);
    let [left, right] = streams(&network);
    a.carry_by(left);
    b.carry_by(right);
    (a, b, carrier)
}

/// Two streams, the sockets beside them, and the network between.
struct World {
    network: Network,
    streams: [Arc<Stream>; 2],
    sockets: [Arc<Conn>; 2],
    _carrier: Carrier,
}

impl World {
    fn new(seed: u64, limit: usize) -> World {
        World::of(Nature { delivers: [limit; 2], ..Nature::good(seed, RING) })
    }

    fn of(nature: Nature) -> World {
        let (network, _carrier) = network(nature);
        let (a, b) = pair();
        let streams = streams(&network);
        World { network, streams: streams.map(Arc::new), sockets: [Arc::new(a), Arc::new(b)], _carrier }
    }

    fn write(&self, end: usize, pieces: &[&[u8]]) -> io::Result<()> {
        self.streams[end].write(self.sockets[end].socket().unwrap(), pieces)
    }

    /// What can be read, as soon as there is something.
    fn read(&self, end: usize, to: &mut [u8]) -> io::Result<usize> {
        read(&self.streams[end], &self.sockets[end], to)
    }
}

fn read(stream: &Stream, socket: &Conn, to: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.try_read(to) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                stream.wait_readable(socket.socket().unwrap(), Duration::from_secs(60))?;
            }
            read => return read,
        }
    }
}

/// Delivers some writes and reports some completions.
fn carry(ends: &mut [End; 2], random: &mut Random, left: &mut [usize; 2], is_silent: bool) {
    let from = random.below(2) as usize;
    for _ in 0..random.below(40) {
        let [a, b] = &mut *ends;
        let (end, other) = if from == 0 { (a, b) } else { (b, a) };
        if random.below(3) == 0 && end.unreported > 0 {
            end.unreported -= 1;
            end.done.push_back(Done::Written);
            continue;
        }
        let Some(posted) = end.posted.front().copied() else { continue };
        if left[from] == 0 && is_silent {
            return;
        }
        if left[from] == 0 {
            for end in [end, other] {
                end.failed = true;
                end.event.write(1).unwrap();
            }
            return;
        }
        left[from] -= 1;
        end.posted.pop_front();
        let (from, to) = (end.side(posted.from, posted.bytes, true, false), other.side(posted.to, posted.bytes, false, true));
        // SAFETY: memory of a ring, or of a test that keeps it: it was registered.
        unsafe { std::ptr::copy(from, to, posted.bytes) };
        end.unreported += 1;
        other.received(posted.number);
    }
}

const FOREVER: usize = usize::MAX;

/// A length: mostly short, sometimes longer than the ring.
fn length(random: &mut Random) -> usize {
    match random.below(40) {
        0 => random.below(3 << 20) as usize,
        1..8 => random.below(70_000) as usize,
        _ => 1 + random.below(64) as usize,
    }
}

#[test]
fn bytes_arrive_in_order_in_both_directions_whatever_the_sizes() {
    for (seed, ring) in [(1, RING), (2, RING), (3, DATA_RING), (4, DATA_RING)] {
        let world = World::of(Nature::good(seed, ring));
        let data: [Vec<u8>; 2] = [3, 7].map(|k: u64| (0..12_000_000u64).map(|i| ((i * k) >> 3) as u8 ^ i as u8).collect());
        thread::scope(|s| {
            for end in 0..2 {
                let (world, data) = (&world, &data);
                s.spawn(move || {
                    let (mut random, mut rest) = (Random::new(seed * 2 + end as u64), &data[end][..]);
                    while !rest.is_empty() {
                        let (now, later) = rest.split_at(length(&mut random).min(rest.len()));
                        let (a, b) = now.split_at(now.len() / 3);
                        world.write(end, &[a, &[], b]).unwrap();
                        rest = later;
                    }
                });
                s.spawn(move || {
                    let (mut random, mut buffer) = (Random::new(seed * 3 + end as u64), vec![0; 3 << 20]);
                    let mut got = Vec::new();
                    while got.len() < data[1 - end].len() {
                        let most = length(&mut random).max(1).min(buffer.len());
                        let n = world.read(end, &mut buffer[..most]).unwrap();
                        got.extend_from_slice(&buffer[..n]);
                    }
                    assert!(got == data[1 - end], "seed {seed}, end {end}");
                });
            }
        });
    }
}

#[test]
fn a_writer_stops_when_the_other_end_does_not_read() {
    // Once for lack of room, once for lack of receives.
    for (piece, most) in [(100_000, RING), (8, MESSAGES * 8)] {
        let world = World::new(1, FOREVER);
        let sent = AtomicUsize::new(0);
        thread::scope(|s| {
            s.spawn(|| {
                let bytes = vec![5; piece];
                while sent.load(Ordering::SeqCst) < 3 * most {
                    world.write(0, &[&bytes]).unwrap();
                    sent.fetch_add(piece, Ordering::SeqCst);
                }
            });
            // It reads what has arrived into its ring, but no further.
            while world.streams[1].arrived.load(Ordering::SeqCst) + (piece as u64) <= most as u64 {
                world.streams[1].pump(true);
                thread::yield_now();
            }
            for _ in 0..1000 {
                world.streams[1].pump(true);
                thread::yield_now();
            }
            assert!(sent.load(Ordering::SeqCst) <= most);
            assert!(!world.streams[0].has_room());
            let mut left = (3 * most).div_ceil(piece) * piece;
            let mut buffer = vec![0; RING];
            while left > 0 {
                left -= world.read(1, &mut buffer).unwrap();
            }
        });
    }
}

#[test]
fn what_was_written_before_the_end_is_read_and_then_the_end() {
    let world = World::new(3, FOREVER);
    world.write(0, &[&[7; 500_000]]).unwrap();
    world.streams[0].wait_arrived(Duration::from_secs(60));
    assert_eq!(world.streams[0].under_way.load(Ordering::SeqCst), 0);
    // The end of the socket is seen first.
    world.sockets[0].cut();
    let (mut got, mut buffer) = (Vec::new(), vec![0; 9000]);
    world.streams[1].over.store(true, Ordering::SeqCst);
    loop {
        match world.read(1, &mut buffer).unwrap() {
            0 => break,
            n => got.extend_from_slice(&buffer[..n]),
        }
    }
    assert!(got == [7; 500_000]);
    assert_eq!(world.write(1, &[&[1]]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

/// Completions of writes cause no event, and a thread takes only so many at a time.
#[test]
fn what_waits_behind_many_completions_is_read() {
    for is_over in [false, true] {
        let world = World::new(5, FOREVER);
        let stream = &world.streams[1];
        stream.under_way.store(3 * BATCH, Ordering::SeqCst);
        {
            let end = &mut world.network.lock().unwrap()[1];
            (0..3 * BATCH).for_each(|_| end.done.push_back(Done::Written));
            end.incoming[0] = 9;
            end.received(1);
        }
        if is_over {
            stream.over.store(true, Ordering::SeqCst);
        } else {
            // After the first completions no event comes: a sleep would last until the limit.
            assert!(stream.wait_readable(world.sockets[1].socket().unwrap(), Duration::from_secs(2)).unwrap());
        }
        let mut bytes = [0; 8];
        assert_eq!((stream.try_read(&mut bytes).unwrap(), bytes[0]), (1, 9));
        if is_over {
            assert_eq!(stream.try_read(&mut bytes).unwrap(), 0);
        }
    }
}

#[test]
fn a_reader_that_sleeps_is_woken_by_the_end_of_the_socket() {
    let world = World::new(4, FOREVER);
    let (stream, socket) = (world.streams[1].clone(), world.sockets[1].clone());
    let reader = thread::spawn(move || read(&stream, &socket, &mut [0; 8]));
    while !world.network.lock().unwrap()[1].armed {
        thread::yield_now();
    }
    world.sockets[0].cut();
    assert_eq!(reader.join().unwrap().unwrap(), 0);
}

#[test]
fn a_stream_that_is_cut_gives_a_prefix_and_then_an_error() {
    for (limit, ring) in [(0, RING), (1, RING), (5, RING), (40, RING), (3, DATA_RING), (50, DATA_RING)] {
        let world = World::of(Nature { delivers: [limit; 2], ..Nature::good(5, ring) });
        let data: Vec<u8> = (0..8_000_000u32).map(|i| (i >> 4) as u8).collect();
        thread::scope(|s| {
            s.spawn(|| {
                // If all of it fits, the next write notices.
                let mut written = world.write(0, &[&data]);
                while written.is_ok() {
                    written = world.write(0, &[&[0; 64]]);
                }
                assert!(written.unwrap_err().to_string().contains("has failed"));
            });
            let (mut got, mut buffer) = (Vec::new(), vec![0; 100_000]);
            let why = loop {
                match world.read(1, &mut buffer) {
                    Ok(n) => got.extend_from_slice(&buffer[..n]),
                    Err(why) => break why,
                }
            };
            assert!(why.to_string().contains("has failed"), "{why}");
            assert!(got.len() < data.len() && data.starts_with(&got));
        });
    }
}

#[test]
fn a_connection_that_a_stream_carries_is_used_as_a_socket() {
    let (a, b, _carrier) = connections(Nature::good(8, RING));
    assert!(b.ready(PollFlags::POLLIN, Duration::ZERO).unwrap().is_empty());
    assert_eq!(a.ready(PollFlags::POLLOUT, Duration::ZERO).unwrap(), PollFlags::POLLOUT);
    a.write_pieces(&[b"to", b"", b"gether"]).unwrap();
    let mut got = [0; 8];
    b.read_exact_by(&mut got, Instant::now() + Duration::from_secs(60)).unwrap();
    assert_eq!(&got, b"together");
    assert_eq!(b.try_read(&mut got).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(!b.wait_gone(Duration::ZERO));
    thread::scope(|s| {
        let reader = s.spawn(|| (&mut &b).read(&mut [0; 8]).unwrap());
        a.shutdown();
        assert_eq!(reader.join().unwrap(), 0);
    });
    assert!(b.wait_gone(Duration::ZERO));
    assert!(b.write_pieces(&[b"late"]).is_err());
}

#[test]
fn numbers_that_lie_are_errors() {
    let of = |bytes: usize| bytes as u32;
    for numbers in [&[0][..], &[of(RING) + 1], &[of(RING), 1], &[CREDIT | 1], &[CREDIT - 1]] {
        let world = World::new(6, FOREVER);
        numbers.iter().for_each(|number| world.network.lock().unwrap()[1].received(*number));
        let mut buffer = vec![0; RING];
        world.streams[1].pump(true);
        let why = match world.streams[1].try_read(&mut buffer) {
            Ok(_) => world.streams[1].try_read(&mut buffer).unwrap_err(),
            Err(why) => why,
        };
        assert!(why.to_string().contains("the other end has"), "{numbers:?}: {why}");
        assert!(world.write(1, &[&[1]]).is_err());
    }
}

#[test]
fn all_who_wait_are_woken() {
    let world = World::new(7, FOREVER);
    thread::scope(|s| {
        let wait = || world.streams[1].wait_readable(world.sockets[1].socket().unwrap(), Duration::from_secs(600)).unwrap();
        let waiting: Vec<_> = (0..4).map(|_| s.spawn(wait)).collect();
        while world.streams[1].sleepers.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        world.write(0, &[&[1]]).unwrap();
        assert!(waiting.into_iter().all(|w| w.join().unwrap()));
        assert_eq!(world.read(1, &mut [0; 2]).unwrap(), 1);
        let now = world.streams[1].wait_readable(world.sockets[1].socket().unwrap(), Duration::ZERO).unwrap();
        assert!(!now, "there is nothing any more");
    });
}

#[test]
fn a_waiting_read_ends_after_the_limit_of_silence_and_not_before() {
    let (a, b, _carrier) = connections(Nature::good(9, DATA_RING));
    let limit = Duration::from_millis(200);
    b.limit_silence(limit).unwrap();
    let began = Instant::now();
    assert_eq!((&mut &b).read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(began.elapsed() >= limit);
    a.write_pieces(&[b"late"]).unwrap();
    let mut got = [0; 4];
    b.read_exact_by(&mut got, Instant::now() + Duration::from_secs(60)).unwrap();
    assert_eq!(&got, b"late");
}

/// The process of the other end is stopped; its device is not.
#[test]
fn a_write_fails_when_the_other_end_reads_nothing_for_the_limit_of_the_connection() {
    // Once for lack of room, once for lack of receives.
    for piece in [100_000, 8] {
        let (a, _b, _carrier) = connections_beside(Nature::good(12, RING), tcp_pair());
        let limit = Duration::from_millis(200);
        a.limit_unacknowledged(limit).unwrap();
        let bytes = vec![3; piece];
        let began = Instant::now();
        let why = loop {
            if let Err(why) = a.write_pieces(&[&bytes]) {
                break why.to_string();
            }
        };
        assert!(began.elapsed() >= limit);
        assert!(why.contains("the other end has read nothing for 200ms"), "{why}");
        // The connection is unusable.
        assert_eq!(a.write_pieces(&[&[1]]).unwrap_err().to_string(), why);
        assert_eq!((&mut &a).read(&mut [0; 8]).unwrap_err().to_string(), why);
    }
}

/// Heartbeats do not take the receives that answers need.
#[test]
fn an_end_that_reads_nothing_gets_short_messages_only_while_there_are_others_left() {
    let (a, _b, _carrier) = connections(Nature::good(13, RING));
    let mut beats = 0;
    while a.ready(PollFlags::POLLOUT, Duration::ZERO).unwrap() == PollFlags::POLLOUT {
        a.write_pieces(&[b"beat"]).unwrap();
        beats += 1;
    }
    assert_eq!(beats, SHORT_MESSAGES);
    (0..MESSAGES - SHORT_MESSAGES).for_each(|_| a.write_pieces(&[b"answer"]).unwrap());
}

/// The thread that takes completions may be the one that ends the process, in a panic.
#[test]
fn who_waits_for_the_last_words_does_not_wait_for_a_thread_that_takes_completions() {
    let world = World::of(Nature { delivers: [0; 2], is_silent: true, ..Nature::good(10, RING) });
    world.write(0, &[b"last words"]).unwrap();
    let stream = world.streams[0].clone();
    let _taking = lock(&stream.polling);
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiting = stream.clone();
    thread::spawn(move || {
        waiting.wait_arrived(Duration::from_millis(100));
        sender.send(()).unwrap();
    });
    receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(stream.under_way.load(Ordering::SeqCst), 1);
}

/// Each in turn: through the rings, to memory of the other end, from memory of this one.
#[test]
fn bytes_that_go_directly_keep_their_place_in_the_stream() {
    for (seed, ring) in [(1, RING), (2, RING), (3, DATA_RING)] {
        let world = World::of(Nature::good(seed, ring));
        let data: Arc<Vec<u8>> = Arc::new((0..9_000_000u32).map(|i| (i >> 5) as u8 ^ i as u8).collect());
        let landed: Arc<Vec<AtomicU8>> = Arc::new(data.iter().map(|_| AtomicU8::new(0)).collect());
        let ours = world.streams[0].register(host(&data), owner(&data)).unwrap();
        let theirs = world.streams[1].register(host(&landed), owner(&landed)).unwrap();
        let parts = {
            let (mut random, mut at, mut parts) = (Random::new(seed), 0, Vec::new());
            while at < data.len() {
                let n = length(&mut random).max(1).min(data.len() - at);
                parts.push((at, n, random.below(3)));
                at += n;
            }
            parts
        };
        let mut got = vec![0; data.len()];
        thread::scope(|s| {
            s.spawn(|| {
                let socket = world.sockets[0].socket().unwrap();
                for (at, n, way) in parts.iter().copied() {
                    let memory = |address: usize, key| Memory { address: (address + at) as u64, key };
                    match way {
                        0 => world.streams[0].write(socket, &[&data[at..at + n]]),
                        1 => {
                            world.streams[0].write_to(socket, &data[at..at + n], memory(landed.as_ptr() as usize, theirs.theirs))
                        }
                        _ => world.streams[0].write_from(socket, memory(data.as_ptr() as usize, ours.ours), n),
                    }
                    .unwrap();
                }
            });
            for (at, n, way) in parts.iter().copied() {
                let mut done = 0;
                while done < n {
                    let taken = match way {
                        1 => world.streams[1].try_skip(n - done),
                        _ => world.streams[1].try_read(&mut got[at + done..at + n]),
                    };
                    match taken {
                        Ok(n) => done += n,
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                            let socket = world.sockets[1].socket().unwrap();
                            world.streams[1].wait_readable(socket, Duration::from_secs(60)).unwrap();
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
                if way == 1 {
                    got[at..at + n].iter_mut().zip(&landed[at..]).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
                }
            }
        });
        assert!(got == *data, "seed {seed}");
    }
}

/// Host memory to register.
pub(crate) fn host<T>(memory: &[T]) -> Registrable<'static> {
    Registrable { at: memory.as_ptr() as usize, bytes: size_of_val(memory), dma_buf: None }
}

/// Memory that is used as long as it is registered.
pub(crate) fn owner<T: Send + Sync + 'static>(memory: &Arc<T>) -> Owner {
    let keeper: Arc<dyn std::any::Any + Send + Sync> = memory.clone();
    Owner { used: Arc::downgrade(&keeper), keeper }
}

/// Also if several connections have registered it.
#[test]
fn memory_that_nobody_uses_is_forgotten_when_other_memory_is_registered() {
    let world = World::new(11, FOREVER);
    let memory: Vec<Arc<[u8; 64]>> = (0..3).map(|_| Arc::new([0; 64])).collect();
    let mut users: Vec<Arc<()>> = (0..3).map(|_| Arc::new(())).collect();
    let register = |stream: usize, of: usize, users: &[Arc<()>]| {
        let used: Arc<dyn std::any::Any + Send + Sync> = users[of].clone();
        let owner = Owner { keeper: memory[of].clone(), used: Arc::downgrade(&used) };
        world.streams[stream].register(host(&memory[of][..]), owner).unwrap();
    };
    for stream in 0..2 {
        register(stream, 0, &users);
        register(stream, 1, &users);
    }
    users[0] = Arc::new(());
    assert_eq!(Arc::strong_count(&memory[0]), 3);
    for stream in 0..2 {
        register(stream, 2, &users);
    }
    assert_eq!(memory.iter().map(Arc::strong_count).collect::<Vec<_>>(), [1, 3, 3]);
}
