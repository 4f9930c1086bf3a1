//! The worker's end of the connections that carry the bytes of large copies: between the job and the staging areas.

use super::text::complain;
use crate::bulk::{ANSWER, CHANGES, HEAD, Head, MAX_CHANGES, Via, WANTED, fill};
use crate::conn::Conn;
use crate::control::Refused;
use crate::limits::JOB_UNACKNOWLEDGED;
use crate::place::Place;
use crate::rdma::queue::{Keys, Memory, Owner, Registrable};
use executor::staging::{Room, Segment, Staging, ToHost};
use std::any::Any;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Number of segments that are asked for at a time, so that the next one follows at once.
const ASKED: usize = 2;
/// Number of segments that are sent before the first of them has arrived.
const SENT: usize = 4;

/// Prepares a connection for them. Its peer is a job, which its user may stop for a while, and not another place, which always reads.
pub(super) fn prepare(conn: &Conn) -> io::Result<()> {
    conn.limit_unacknowledged(JOB_UNACKNOWLEDGED)
}

/// Receives the job's file for the regions.
pub(super) fn receive_file(conn: &Conn, staging: &Staging, deadline: Instant) -> io::Result<()> {
    match conn.receive_descriptors(deadline)? {
        (file, None) => staging.share(file),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "one descriptor was expected")),
    }
}

fn head(segment: &Segment, via: Via) -> [u8; HEAD] {
    Head { token: segment.token, offset: segment.offset, bytes: segment.size() as u64, via }.bytes()
}

/// What RDMA knows of the staging areas. Where it carries a connection, bytes go directly to and from them.
#[derive(Debug)]
pub(super) struct Slots {
    conn: Arc<Conn>,
    /// The keys of each area; nothing if it cannot be registered.
    known: Vec<(Weak<Room>, Option<Keys>)>,
}

impl Slots {
    pub(super) fn new(conn: Arc<Conn>) -> Slots {
        Slots { conn, known: Vec::new() }
    }

    /// The connection.
    pub(super) fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    /// Registers the regions of an area.
    ///
    /// # Errors
    /// RDMA does not carry the connection, or the card refuses.
    pub(super) fn register(&mut self, room: &Arc<Room>) -> io::Result<Keys> {
        let rdma = self.conn.rdma().ok_or(ErrorKind::Unsupported)?;
        let used: Arc<dyn Any + Send + Sync> = room.clone();
        let (at, bytes) = room.regions();
        let owner = Owner { keeper: room.keeper(), used: Arc::downgrade(&used) };
        let registered = rdma.register(Registrable { at, bytes, dma_buf: room.dma_buf() }, owner);
        self.known.retain(|(area, _)| area.strong_count() > 0);
        self.known.push((Arc::downgrade(room), registered.as_ref().ok().copied()));
        registered
    }

    /// The memory of a segment, as this end and as the other end names it.
    fn of(&mut self, segment: &Segment) -> Option<[Memory; 2]> {
        self.conn.rdma()?;
        let room = segment.room();
        // Another area may have its address when it is gone.
        let known = self.known.iter().find(|(area, _)| Weak::as_ptr(area) == Arc::as_ptr(room)).map(|(_, keys)| *keys);
        let keys = known.unwrap_or_else(|| {
            let registered = self.register(room);
            registered.inspect_err(|why| complain(&format!("large copies are copied once more: {why}"))).ok()
        })?;
        Some([keys.ours, keys.theirs].map(|key| Memory { address: segment.address(), key }))
    }
}

/// Areas in the GPU's memory, which the cards of all connections for large copies must have registered: no other way leads there.
#[derive(Debug)]
pub(super) struct GpuAreas {
    /// They are permitted.
    permitted: bool,
    rooms: Vec<Weak<Room>>,
}

/// Number of areas in the GPU's memory: other streams have areas in host memory.
const GPU_AREAS: usize = 2;

impl GpuAreas {
    pub(super) fn new(permitted: bool) -> GpuAreas {
        GpuAreas { permitted, rooms: Vec::new() }
    }

    /// Makes these areas before the first connections carry anything, if their cards can reach them, and registers those that exist
    /// with later connections.
    ///
    /// # Errors
    /// There are such areas, which a later connection cannot reach: it must not be used.
    pub(super) fn admit(&mut self, connections: &mut [Slots], place: &impl Place) -> io::Result<()> {
        let all_by_rdma = connections.iter().all(|slots| slots.conn.rdma().is_some());
        let reach = |connections: &mut [Slots], room: &Arc<Room>| {
            connections.iter_mut().try_for_each(|slots| slots.register(room).map(drop))
        };
        let rooms: Vec<Arc<Room>> = self.rooms.iter().filter_map(Weak::upgrade).collect();
        rooms.iter().try_for_each(|room| reach(connections, room))?;
        if self.permitted && !all_by_rdma {
            self.permitted = false;
            complain(&"no large copies go through the GPU's memory: RDMA does not carry all connections");
        }
        // A failure is not repeated.
        while std::mem::take(&mut self.permitted) {
            let (mut made, mut why) = (None, None);
            let added = place.provide_gpu_area(&mut |room| {
                why = reach(connections, room).err();
                made = why.is_none().then(|| Arc::downgrade(room));
                why.is_none()
            });
            let why = match (added, made, why) {
                (Ok(true), Some(room), _) => {
                    self.rooms.push(room);
                    self.permitted = self.rooms.len() < GPU_AREAS;
                    continue;
                }
                (Err(rc), ..) => Refused::Driver(rc).to_string(),
                (Ok(_), _, Some(why)) => why.to_string(),
                (Ok(_), _, None) => "the GPU cannot, or has all areas already".to_owned(),
            };
            complain(&format!("no more large copies go through the GPU's memory: {why}"));
            // Some may have registered it.
            connections.iter().filter_map(|slots| slots.conn.rdma()).for_each(|rdma| rdma.forget_unused());
        }
        Ok(())
    }
}

fn answer(conn: &Conn) -> io::Result<u64> {
    let mut bytes = [0; ANSWER];
    fill(conn, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn nonsense() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "an answer of another size")
}

fn unreachable_area() -> io::Error {
    io::Error::other("an area in the GPU's memory without a registration")
}

/// Asks for the bytes of copies to the device and receives them directly into the staging areas, unless the job has put them there. Returns when the connection fails.
pub(super) fn receive(slots: &mut Slots, staging: &Staging) -> io::Result<()> {
    let mut asked: VecDeque<(Segment, Via)> = VecDeque::new();
    let conn = &*slots.conn().clone();
    loop {
        while asked.len() < ASKED {
            let next = if asked.is_empty() { Some(staging.next(true)) } else { staging.try_next(true) };
            let Some(segment) = next else { break };
            let via = match segment.in_file() {
                Some(at) => Via::File(at),
                None => slots.of(&segment).map_or(Via::Connection, |[_, theirs]| Via::Rdma(theirs)),
            };
            (&mut &*conn).write_all(&head(&segment, via))?;
            asked.push_back((segment, via));
        }
        let Some((mut segment, via)) = asked.pop_front() else { continue };
        match answer(conn)? {
            // The copy has failed, and the job has given up its memory.
            0 => {}
            n if n != segment.size() as u64 => return Err(nonsense()),
            _ => match via {
                Via::File(_) => {}
                Via::Rdma(_) => conn.skip(segment.size())?,
                Via::Connection => fill(conn, segment.bytes_mut().ok_or_else(unreachable_area)?)?,
            },
        }
        staging.over(&segment);
    }
}

/// What was sent to the host and was not answered.
enum Sent {
    Segment(Segment),
    /// So many bytes of changes.
    Changes(u64),
    /// A question for changes of the job.
    Ask,
}

/// Asks the job for changes.
fn ask(conn: &Conn, round: u64) -> io::Result<Sent> {
    (&mut &*conn).write_all(&Head { token: WANTED, offset: round, bytes: 0, via: Via::Connection }.bytes())?;
    Ok(Sent::Ask)
}

/// Receives changes of the job. `scratch` is a reused buffer.
fn take_changes(conn: &Conn, bytes: u64, staging: &Staging, scratch: &mut Vec<u8>) -> io::Result<()> {
    if bytes > MAX_CHANGES {
        return Err(nonsense());
    }
    if bytes == 0 {
        staging.answered(None);
        return Ok(());
    }
    scratch.resize(bytes as usize, 0);
    fill(conn, scratch)?;
    let mut lines = staging.buffer();
    if !lines.fill(scratch) {
        return Err(io::Error::new(ErrorKind::InvalidData, "malformed changes"));
    }
    staging.answered(Some(lines));
    Ok(())
}

/// Sends the bytes of copies to the host, or says where the job finds them, and changes. Also asks for changes of the job and receives them: until
/// they have come nothing is sent that the job might not read meanwhile. The bytes of changes in both directions are counted. Returns when the connection fails.
pub(super) fn send(slots: &mut Slots, staging: &Staging, [count_out, count_in]: [&dyn Fn(usize); 2]) -> io::Result<()> {
    let mut sent: VecDeque<Sent> = VecDeque::new();
    let (mut masks, mut encoded, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
    let conn = &*slots.conn().clone();
    loop {
        let asks = sent.iter().filter(|sent| matches!(sent, Sent::Ask)).count();
        let next = match sent.len() {
            0 => Some(staging.next_to_host()),
            SENT => None,
            _ if asks == ASKED => None,
            _ if asks > 0 => staging.try_ask().map(ToHost::Ask),
            _ => staging.try_next_to_host(),
        };
        match next {
            Some(ToHost::Ask(round)) => {
                sent.push_back(ask(conn, round)?);
                continue;
            }
            Some(ToHost::Segment(segment)) => {
                send_segment(slots, conn, &segment)?;
                sent.push_back(Sent::Segment(segment));
                continue;
            }
            Some(ToHost::Changes(changes)) => {
                let Some(offset) = staging.encode(changes, &mut masks, &mut encoded) else { continue };
                let bytes = encoded.len() as u64;
                let head = Head { token: CHANGES, offset, bytes, via: Via::Connection };
                conn.write_pieces(&[&head.bytes(), &encoded])?;
                count_out(encoded.len());
                sent.push_back(Sent::Changes(bytes));
                continue;
            }
            None => {}
        }
        let Some(first) = sent.pop_front() else { continue };
        match (first, answer(conn)?) {
            (Sent::Ask, bytes) => {
                take_changes(conn, bytes, staging, &mut scratch)?;
                count_in(bytes as usize);
            }
            (Sent::Segment(segment), bytes) if bytes == segment.size() as u64 => staging.over(&segment),
            (Sent::Changes(size), bytes) if bytes == size => staging.changes_arrived(),
            _ => return Err(nonsense()),
        }
    }
}

fn send_segment(slots: &mut Slots, conn: &Conn, segment: &Segment) -> io::Result<()> {
    if let Some(at) = segment.in_file() {
        (&mut &*conn).write_all(&head(segment, Via::File(at)))
    } else if let (Some([ours, _]), Some(rdma)) = (slots.of(segment), conn.rdma()) {
        (&mut &*conn).write_all(&head(segment, Via::Connection))?;
        // It stays as it is until the job has answered.
        rdma.write_from(conn.socket()?, ours, segment.size())
    } else {
        let bytes = segment.bytes().ok_or_else(unreachable_area)?;
        conn.write_pieces(&[&head(segment, Via::Connection), bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Start;
    use crate::link::BULK_UNACKNOWLEDGED;
    use crate::place::fake::{Due, Fake};
    use crate::place::{Outcome, Place};
    use crate::rdma::DATA_RING;
    use crate::rdma::stream::tests::{Nature, connections};
    use cuda_api::code;
    use cuda_api::ops::{BulkCopy, CopyIn, id};
    use cuda_api::wire::Wire;
    use executor::staging::Copies;
    use nix::sys::socket::{getsockopt, sockopt};
    use std::net::{TcpListener, TcpStream};

    /// A place with this memory at its beginning, and an area.
    fn place(memory: &[u8]) -> Arc<Fake> {
        let place = bare(memory);
        place.provide_areas(1).unwrap();
        place
    }

    /// A place with this memory at its beginning.
    fn bare(memory: &[u8]) -> Arc<Fake> {
        let place = Fake::open(&Start { plain: true, ..Start::of_test() }).unwrap();
        let mut body = Vec::new();
        CopyIn { dst: 0, pitch: 0, width: memory.len() as u64, rows: 1, stream: 0 }.put(&mut body);
        body.extend_from_slice(memory);
        assert!(matches!(place.apply(id::COPY_IN, &body, &mut Vec::new()), Outcome::Done(code::SUCCESS)));
        place
    }

    /// Begins a large copy; it is over when the result is polled to its end.
    fn begin(place: &Arc<Fake>, bytes: usize, to_device: bool) -> Due {
        let (bytes, call) = (bytes as u64, if to_device { id::BULK_IN } else { id::BULK_OUT });
        let mut body = Vec::new();
        BulkCopy { token: 9, address: 0, bytes, stream: 1, late: false }.put(&mut body);
        let Outcome::Pending(due) = place.apply(call, &body, &mut Vec::new()) else { panic!("it was refused") };
        due
    }

    /// The job's end of a copy over RDMA: fills or takes `host`, and counts the segments that go directly to the place's memory.
    fn serve(conn: &Conn, host: &mut [u8], to_device: bool) -> io::Result<usize> {
        let (mut left, mut direct) = (host.len(), 0);
        while left > 0 {
            let mut bytes = [0; HEAD];
            fill(conn, &mut bytes)?;
            let head = Head::read(&bytes)?;
            let part = &mut host[head.offset as usize..][..head.bytes as usize];
            direct += usize::from(matches!(head.via, Via::Rdma(_)));
            if !to_device {
                fill(conn, part)?;
            }
            (&mut &*conn).write_all(&head.bytes.to_le_bytes())?;
            match (to_device, head.via) {
                (true, Via::Rdma(slot)) => conn.rdma().unwrap().write_to(conn.socket()?, part, slot)?,
                (true, _) => (&mut &*conn).write_all(part)?,
                (false, _) => {}
            }
            left -= head.bytes as usize;
        }
        Ok(direct)
    }

    /// Also if it is cut: what the worker has is then a part of the copy.
    #[test]
    fn over_rdma_bytes_go_directly_to_and_from_the_staging_areas() {
        const BYTES: usize = 1_000_000;
        let pattern: Vec<u8> = (0..BYTES as u32).map(|i| (i >> 7) as u8 ^ i as u8).collect();
        for to_device in [true, false] {
            for (seed, writes) in [usize::MAX, 1, 2, 3, 20, 60].into_iter().enumerate() {
                let nature = Nature { delivers: [writes; 2], ..Nature::good(seed as u64 + 1, DATA_RING) };
                let (ours, theirs, _carrier) = connections(nature);
                let (here, there) = if to_device { (vec![0; BYTES], pattern.clone()) } else { (pattern.clone(), vec![0; BYTES]) };
                let place = place(&here);
                let mut host = there.clone();
                let due = std::cell::RefCell::new(begin(&place, BYTES, to_device));
                let staging = place.clone();
                // It waits for the next copy without a look at the connection, until the process ends.
                std::thread::spawn(move || {
                    let mut slots = Slots::new(ours.into());
                    if to_device {
                        receive(&mut slots, staging.staging())
                    } else {
                        send(&mut slots, staging.staging(), [&|_| (); 2])
                    }
                });
                let done = serve(&theirs, &mut host, to_device);
                assert_eq!(done.is_ok(), writes == usize::MAX, "{writes}: {done:?}");
                if let Ok(direct) = done {
                    assert_eq!(direct > 0, to_device);
                    while place.poll(&mut due.borrow_mut(), &mut Vec::new()).is_none() {
                        std::thread::yield_now();
                    }
                    assert!(host == pattern && place.first(BYTES) == pattern);
                } else {
                    let (now, was) = if to_device { (place.first(BYTES), here) } else { (host, there) };
                    assert!(now.iter().zip(was.iter().zip(&pattern)).all(|(now, (was, new))| now == was || now == new));
                }
            }
        }
    }

    #[test]
    fn an_answer_of_another_size_to_changes_ends_the_connection() {
        for (right, more, by_rdma) in [(true, 0, false), (true, 0, true), (false, 1, false)] {
            let place = bare(&[]);
            let (mut now, mut was) = (vec![7u8; 4096], vec![0u8; 4096]);
            // SAFETY: they stay, and nothing uses them, until they were compared.
            let copies = Arc::new(unsafe { Copies::new([now.as_mut_ptr() as usize, was.as_mut_ptr() as usize], 4096) });
            place.staging().send_changes(5, 0x10_0000, 4096, &copies);
            let (over_rdma, plain) = (connections(Nature::good(3, DATA_RING)), crate::conn::pair());
            let (ours, theirs) = if by_rdma { (over_rdma.0, over_rdma.1) } else { plain };
            let (staging, counted) = (place.clone(), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
            let count = counted.clone();
            let (end, ended) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let counted = |bytes| _ = count.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
                let _ = end.send(send(&mut Slots::new(ours.into()), staging.staging(), [&counted, &|_| ()]));
            });
            let mut bytes = [0; HEAD];
            fill(&theirs, &mut bytes).unwrap();
            let head = Head::read(&bytes).unwrap();
            assert_eq!(head, Head { token: CHANGES, offset: 5, bytes: 16 + 4096, via: Via::Connection });
            let mut runs = vec![0; head.bytes as usize];
            fill(&theirs, &mut runs).unwrap();
            place.staging().await_compared(&copies);
            assert!(now == was && runs[..8] == 0x10_0000u64.to_le_bytes() && runs[16..] == now);
            (&mut &theirs).write_all(&(head.bytes + more).to_le_bytes()).unwrap();
            if right {
                place.staging().await_changes();
                assert_eq!(counted.load(std::sync::atomic::Ordering::Relaxed), 16 + 4096);
            } else {
                assert!(ended.recv().unwrap().is_err());
            }
        }
    }

    /// The job's end of a question: its round.
    fn asked(conn: &Conn) -> u64 {
        let mut bytes = [0; HEAD];
        fill(conn, &mut bytes).unwrap();
        let head = Head::read(&bytes).unwrap();
        assert_eq!((head.token, head.bytes, head.via), (WANTED, 0, Via::Connection));
        head.offset
    }

    fn say(conn: &Conn, runs: &[u8]) {
        conn.write_pieces(&[&(runs.len() as u64).to_le_bytes(), runs]).unwrap();
    }

    /// A run of lines of the same byte.
    fn run(at: u64, lines: u32, byte: u8) -> Vec<u8> {
        [&at.to_le_bytes()[..], &lines.to_le_bytes(), &[0; 4], &vec![byte; 64 * lines as usize]].concat()
    }

    #[test]
    fn the_job_is_asked_for_changes_until_it_has_no_more() {
        for by_rdma in [false, true] {
            let place = place(&[]);
            place.staging().begin_to_carry_changes();
            let (over_rdma, plain) = (connections(Nature::good(3, DATA_RING)), crate::conn::pair());
            let (ours, theirs) = if by_rdma { (over_rdma.0, over_rdma.1) } else { plain };
            let (staging, counted) = (place.clone(), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
            let count = counted.clone();
            std::thread::spawn(move || {
                let counted = |bytes| _ = count.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
                send(&mut Slots::new(ours.into()), staging.staging(), [&|_| (), &counted])
            });
            for round in 1..3 {
                assert!(place.staging().begin_from_job());
                // The next question comes before the first one is answered.
                assert_eq!([asked(&theirs), asked(&theirs)], [round; 2]);
                // Bytes for the host come meanwhile, which the job would not read before it has written its answer: they wait.
                let mut due = begin(&place, 100, false);
                let mut came = 0;
                for number in 1..=5 {
                    let lines = if number < 4 { 8192 } else { 1 };
                    say(&theirs, &run(1 << 20, lines, number));
                    let changes = place.staging().next_from_job().unwrap();
                    place.staging().give_back(changes);
                    assert_eq!(asked(&theirs), round);
                    came += 16 + 64 * lines as usize;
                }
                say(&theirs, &[]);
                say(&theirs, &[]);
                assert!(place.staging().next_from_job().is_none());
                assert_eq!(counted.swap(0, std::sync::atomic::Ordering::Relaxed), came);
                let mut host = [1; 100];
                serve(&theirs, &mut host, false).unwrap();
                while place.poll(&mut due, &mut Vec::new()).is_none() {
                    std::thread::yield_now();
                }
                assert_eq!(host, [0; 100]);
            }
        }
    }

    #[test]
    fn nonsense_instead_of_changes_ends_the_connection() {
        let cases = [
            (MAX_CHANGES + 1).to_le_bytes().to_vec(),
            u64::MAX.to_le_bytes().to_vec(),
            [&80u64.to_le_bytes()[..], &run(1, 1, 1)].concat(),
            [&80u64.to_le_bytes()[..], &run(0, 2, 1)[..80]].concat(),
            [&160u64.to_le_bytes()[..], &run(64, 1, 1), &run(0, 1, 1)].concat(),
        ];
        for nonsense in cases {
            let place = bare(&[]);
            place.staging().begin_to_carry_changes();
            assert!(place.staging().begin_from_job());
            let ((ours, theirs), staging) = (crate::conn::pair(), place.clone());
            let (end, ended) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let _ = end.send(send(&mut Slots::new(ours.into()), staging.staging(), [&|_| (); 2]));
            });
            asked(&theirs);
            (&mut &theirs).write_all(&nonsense).unwrap();
            assert_eq!(ended.recv().unwrap().unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }

    /// One connection for each direction, opened one after the other; both must reach the areas.
    #[test]
    fn areas_in_the_gpus_memory_are_used_if_all_cards_reach_them() {
        const BYTES: usize = 1_000_000;
        let pattern: Vec<u8> = (0..BYTES as u32).map(|i| (i >> 7) as u8 ^ i as u8).collect();
        for (first, second) in [(true, true), (true, false), (false, true)] {
            let place = bare(&vec![0; BYTES]);
            let mut areas = GpuAreas::new(true);
            let (mut host, mut ends) = (pattern.clone(), Vec::new());
            for (way, reaches_gpus) in [(true, first), (false, second)] {
                let nature = Nature { reaches_gpus, ..Nature::good(7, DATA_RING) };
                let (ours, theirs, carrier) = connections(nature);
                let mut slots = [Slots::new(ours.into())];
                let admitted = areas.admit(&mut slots, &*place);
                // What exists cannot be reached by the second connection.
                assert_eq!(admitted.is_ok(), way || second || !first, "{first} {second}: {admitted:?}");
                if admitted.is_err() {
                    continue;
                }
                place.provide_areas(1).unwrap();
                let staging = place.clone();
                let [mut slots] = slots;
                std::thread::spawn(move || match way {
                    true => receive(&mut slots, staging.staging()),
                    false => send(&mut slots, staging.staging(), [&|_| (); 2]),
                });
                let mut due = begin(&place, BYTES, way);
                if !way {
                    host.fill(0);
                }
                let direct = serve(&theirs, &mut host, way).unwrap();
                assert_eq!(direct > 0, way);
                while place.poll(&mut due, &mut Vec::new()).is_none() {
                    std::thread::yield_now();
                }
                assert!(host == pattern && place.first(BYTES) == pattern);
                ends.push((theirs, carrier));
            }
            assert_eq!(place.staging().areas(), if first { GPU_AREAS } else { 1 });
            assert_eq!(areas.rooms.len(), if first { GPU_AREAS } else { 0 });
        }
    }

    #[test]
    fn without_the_permission_or_rdma_there_are_no_areas_in_the_gpus_memory() {
        let place = bare(&[]);
        let (ours, _theirs, _carrier) = connections(Nature::good(8, DATA_RING));
        let mut not_permitted = GpuAreas::new(false);
        not_permitted.admit(&mut [Slots::new(ours.into())], &*place).unwrap();
        let (encrypted, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut permitted = GpuAreas::new(true);
        permitted.admit(&mut [Slots::new(Arc::new(Conn::new(encrypted.into())))], &*place).unwrap();
        // Nor later: the first connection could not reach them.
        let (ours, _theirs, _carrier) = connections(Nature::good(9, DATA_RING));
        permitted.admit(&mut [Slots::new(ours.into())], &*place).unwrap();
        assert_eq!(place.staging().areas(), 0);
    }

    #[test]
    fn a_job_may_be_stopped_in_the_middle_of_a_copy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _job = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let conn = Conn::new(listener.accept().unwrap().0.into());
        // As the daemon does for all connections with a ticket.
        conn.limit_unacknowledged(BULK_UNACKNOWLEDGED).unwrap();
        prepare(&conn).unwrap();
        let limit = getsockopt(&conn.socket().unwrap(), sockopt::TcpUserTimeout).unwrap();
        assert_eq!(u128::from(limit), JOB_UNACKNOWLEDGED.as_millis());
    }
}
