//! The worker's end of the connections that carry the bytes of large copies: between the job and the staging areas.

use super::text::complain;
use crate::bulk::{ANSWER, HEAD, Head, Via, fill};
use crate::conn::Conn;
use crate::limits::JOB_UNACKNOWLEDGED;
use crate::rdma::queue::{Keys, Memory, Owner};
use executor::staging::{Room, Segment, Staging};
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
struct Slots<'a> {
    conn: &'a Conn,
    /// The keys of each area; nothing if it cannot be registered.
    known: Vec<(Weak<Room>, Option<Keys>)>,
}

impl Slots<'_> {
    fn new(conn: &Conn) -> Slots<'_> {
        Slots { conn, known: Vec::new() }
    }

    /// The memory of a segment, as this end and as the other end names it.
    fn of(&mut self, segment: &Segment) -> Option<[Memory; 2]> {
        let rdma = self.conn.rdma()?;
        let (room, at, bytes) = segment.regions();
        let keeper = room.keeper();
        // Another area may have its address when it is gone.
        let known = self.known.iter().find(|(area, _)| Weak::as_ptr(area) == Arc::as_ptr(&room)).map(|(_, keys)| *keys);
        let keys = known.unwrap_or_else(|| {
            let used: Arc<dyn Any + Send + Sync> = room.clone();
            let registered = rdma.register(at, bytes, Owner { keeper, used: Arc::downgrade(&used) });
            let keys = registered.inspect_err(|why| complain(&format!("large copies are copied once more: {why}"))).ok();
            self.known.retain(|(area, _)| area.strong_count() > 0);
            self.known.push((Arc::downgrade(&room), keys));
            keys
        })?;
        let address = segment.bytes().as_ptr() as u64;
        Some([keys.ours, keys.theirs].map(|key| Memory { address, key }))
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

/// Asks for the bytes of copies to the device and receives them directly into the staging areas, unless the job has put them there. Returns when the connection fails.
pub(super) fn receive(conn: &Conn, staging: &Staging) -> io::Result<()> {
    let mut asked: VecDeque<(Segment, Via)> = VecDeque::new();
    let mut slots = Slots::new(conn);
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
                Via::Connection => fill(conn, segment.bytes_mut())?,
            },
        }
        staging.over(&segment);
    }
}

/// Sends the bytes of copies to the host, or says where the job finds them. Returns when the connection fails.
pub(super) fn send(conn: &Conn, staging: &Staging) -> io::Result<()> {
    let mut sent: VecDeque<Segment> = VecDeque::new();
    let mut slots = Slots::new(conn);
    loop {
        let next = match sent.len() {
            0 => Some(staging.next(false)),
            SENT => None,
            _ => staging.try_next(false),
        };
        if let Some(segment) = next {
            if let Some(at) = segment.in_file() {
                (&mut &*conn).write_all(&head(&segment, Via::File(at)))?;
            } else if let (Some([ours, _]), Some(rdma)) = (slots.of(&segment), conn.rdma()) {
                (&mut &*conn).write_all(&head(&segment, Via::Connection))?;
                // It stays as it is until the job has answered.
                rdma.write_from(conn.socket()?, ours, segment.size())?;
            } else {
                conn.write_pieces(&[&head(&segment, Via::Connection), segment.bytes()])?;
            }
            sent.push_back(segment);
            continue;
        }
        let Some(segment) = sent.pop_front() else { continue };
        if answer(conn)? != segment.size() as u64 {
            return Err(nonsense());
        }
        staging.over(&segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Start;
    use crate::limits::WorkerLimits;
    use crate::link::BULK_UNACKNOWLEDGED;
    use crate::place::fake::{Due, Fake};
    use crate::place::{Outcome, Place};
    use crate::rdma::DATA_RING;
    use crate::rdma::stream::tests::{Nature, connections};
    use cuda_api::code;
    use cuda_api::ops::{BulkCopy, CopyIn, id};
    use cuda_api::wire::Wire;
    use nix::sys::socket::{getsockopt, sockopt};
    use std::net::{TcpListener, TcpStream};

    /// A place with this memory at its beginning.
    fn place(memory: &[u8]) -> Arc<Fake> {
        let limits = WorkerLimits::of_machine();
        let start =
            Start { driver: String::new(), gpu: 0, virtual_device: 0, limits, plain: true, store: None, confinement: None };
        let place = Fake::open(&start).unwrap();
        let mut body = Vec::new();
        CopyIn { dst: 0, pitch: 0, width: memory.len() as u64, rows: 1, stream: 0 }.put(&mut body);
        body.extend_from_slice(memory);
        assert!(matches!(place.apply(id::COPY_IN, &body, &mut Vec::new()), Outcome::Done(code::SUCCESS)));
        place.provide_areas(1).unwrap();
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
                std::thread::spawn(
                    move || {
                        if to_device { receive(&ours, staging.staging()) } else { send(&ours, staging.staging()) }
                    },
                );
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
