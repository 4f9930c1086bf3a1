//! Data connections between places, by ticket.

use crate::carried::Carried;
use crate::conn::Conn;
use crate::control::Refused;
use crate::sync::lock;
use cuda_api::lock::wait_timeout;
use memsync::{Compression, Stream};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Maximum connections of one ticket.
const MAX_STRIPES: u32 = 64;
/// Maximum number of tickets: for a link to each other GPU of a job, and some more.
const TICKETS: usize = 48;
/// Time limit for the daemon to register a ticket.
const NOTE: Duration = Duration::from_secs(5);
/// Time limit for connections to arrive.
const COME: Duration = Duration::from_secs(30);

/// How long the other end of a round may send nothing: it may first have to hash all of its memory, on a busy GPU.
const SILENT: Duration = Duration::from_secs(600);

type Streams = Vec<Box<dyn Stream>>;

/// A connection that is used by a round and can be closed by another thread meanwhile.
struct Stripe(Arc<Conn>);

impl Read for Stripe {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        // Its peer may send heartbeats elsewhere and nothing here, which must not block a move forever.
        (&*self.0).read(to).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, format!("the other place has sent nothing for {} s", SILENT.as_secs()))
            }
            _ => e,
        })
    }
}

impl Write for Stripe {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&*self.0).write(from)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connections of one ticket.
#[derive(Default)]
struct Bundle {
    expected: usize,
    /// The process that accepts connections knows the ticket.
    known: bool,
    /// A round is using the connections.
    in_use: bool,
    conns: Vec<Arc<Conn>>,
    /// What rounds have measured of them as sources; empty before the first.
    compression: Vec<Compression>,
}

type Table = HashMap<[u8; 32], Bundle>;

/// All data connections of a place.
#[derive(Default)]
pub(crate) struct Stripes {
    table: Mutex<Table>,
    changed: Condvar,
}

impl std::fmt::Debug for Stripes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Tickets are secrets.
        f.debug_struct("Stripes").field("tickets", &lock(&self.table).len()).finish()
    }
}

impl Stripes {
    /// Adds a ticket.
    pub(crate) fn add(&self, ticket: [u8; 32], stripes: u32) -> Result<(), Refused> {
        if !(1..=MAX_STRIPES).contains(&stripes) {
            return Err(Refused::Other(format!("{stripes} connections between places; it must be 1 to {MAX_STRIPES}")));
        }
        let mut t = lock(&self.table);
        if t.len() >= TICKETS {
            return Err(Refused::Other("too many copies at one time".into()));
        }
        match t.entry(ticket) {
            Entry::Occupied(_) => Err(Refused::Other("this ticket is in use".into())),
            Entry::Vacant(v) => {
                v.insert(Bundle { expected: stripes as usize, ..Bundle::default() });
                Ok(())
            }
        }
    }

    /// Whether there are no tickets.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.table).is_empty()
    }

    /// Marks a ticket as known to the process that accepts connections.
    pub(crate) fn known(&self, ticket: &[u8; 32]) {
        if let Some(b) = lock(&self.table).get_mut(ticket) {
            b.known = true;
        }
        self.changed.notify_all();
    }

    /// Adds a connection that has arrived, and returns it with its number. One with an unexpected ticket is closed.
    pub(crate) fn arrived(&self, ticket: &[u8; 32], conn: Conn) -> Option<(u32, Arc<Conn>)> {
        let mut t = lock(&self.table);
        let b = t.get_mut(ticket).filter(|b| b.conns.len() < b.expected)?;
        // If this fails, there is no time limit for a silent peer.
        let _ = conn.limit_silence(SILENT);
        let conn = Arc::new(conn);
        let number = b.conns.len() as u32;
        b.conns.push(conn.clone());
        drop(t);
        self.changed.notify_all();
        Some((number, conn))
    }

    /// Adds connections that were opened from here.
    pub(crate) fn made(&self, ticket: &[u8; 32], conns: Vec<Conn>) {
        if let Some(b) = lock(&self.table).get_mut(ticket) {
            conns.iter().for_each(|conn| drop(conn.limit_silence(SILENT)));
            b.conns = conns.into_iter().map(Arc::new).collect();
        }
    }

    /// Waits until the daemon knows a ticket.
    pub(crate) fn wait_known(&self, ticket: &[u8; 32]) -> Result<(), Refused> {
        self.wait(ticket, NOTE, |b| b.known)
            .map_err(|late| late.unwrap_or_else(|| Refused::Other("the server does not answer its worker".into())))
    }

    /// Waits until all connections of a ticket have arrived. Returns how their bytes travel.
    pub(crate) fn wait_here(&self, ticket: &[u8; 32]) -> Result<Carried, Refused> {
        self.wait(ticket, COME, |b| b.conns.len() == b.expected).map_err(|late| {
            late.unwrap_or_else(|| Refused::Unreachable(format!("the other place has not connected within {COME:?}")))
        })?;
        let carried = |b: &Bundle| b.conns.iter().map(|conn| conn.carried()).collect();
        lock(&self.table).get(ticket).map(carried).ok_or(Refused::UnknownTicket)
    }

    /// `Err(None)`: timeout.
    fn wait(&self, ticket: &[u8; 32], limit: Duration, met: impl Fn(&Bundle) -> bool) -> Result<(), Option<Refused>> {
        let until = Instant::now() + limit;
        let mut t: MutexGuard<'_, Table> = lock(&self.table);
        loop {
            match t.get(ticket) {
                None => return Err(Some(Refused::UnknownTicket)),
                Some(b) if met(b) => return Ok(()),
                Some(_) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(None);
            }
            t = wait_timeout(&self.changed, t, left).0;
        }
    }

    /// Uses the connections of a ticket, with what was measured of them. After a failure they are closed, because their state is unknown.
    pub(crate) fn with<T>(
        &self,
        ticket: &[u8; 32],
        round: impl FnOnce(&mut Streams, &mut Vec<Compression>) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let (mut streams, mut compression): (Streams, _) = {
            let mut t = lock(&self.table);
            let b = t.get_mut(ticket).ok_or(Refused::UnknownTicket)?;
            if b.in_use || b.conns.len() != b.expected {
                return Err(Refused::Other("the connections of this ticket are not ready".into()));
            }
            b.in_use = true;
            let streams = b.conns.iter().map(|c| Box::new(Stripe(c.clone())) as Box<dyn Stream>).collect();
            (streams, std::mem::take(&mut b.compression))
        };
        let result = round(&mut streams, &mut compression);
        if result.is_err() {
            self.remove(ticket);
        } else if let Some(b) = lock(&self.table).get_mut(ticket) {
            (b.in_use, b.compression) = (false, compression);
        }
        result
    }

    /// Takes the connections of a ticket, which is then forgotten.
    pub(crate) fn take(&self, ticket: &[u8; 32]) -> Result<Vec<Arc<Conn>>, Refused> {
        let mut t = lock(&self.table);
        match t.entry(*ticket) {
            Entry::Occupied(b) if !b.get().in_use && b.get().conns.len() == b.get().expected => Ok(b.remove().conns),
            Entry::Occupied(_) => Err(Refused::Other("the connections of this ticket are not ready".into())),
            Entry::Vacant(_) => Err(Refused::UnknownTicket),
        }
    }

    /// Closes the connections of a ticket. A round that uses them fails, even if the other end is silent.
    pub(crate) fn remove(&self, ticket: &[u8; 32]) {
        if let Some(b) = lock(&self.table).remove(ticket) {
            b.conns.iter().for_each(|c| c.shutdown());
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Start;
    use crate::conn::{pair, tcp_pair};
    use crate::place::Place;
    use crate::place::fake::Fake;
    use crate::rdma::DATA_RING;
    use crate::rdma::stream::tests::{Nature, connections_beside};

    #[test]
    fn only_what_is_expected_is_kept() {
        let s = Stripes::default();
        let t = [1; 32];
        assert!(s.add(t, 0).is_err() && s.add(t, MAX_STRIPES + 1).is_err());
        s.add(t, 2).unwrap();
        assert!(s.add(t, 2).is_err());
        let (a, _x) = pair();
        let (b, _y) = pair();
        let (c, mut z) = pair();
        assert_eq!(s.arrived(&t, a).unwrap().0, 0);
        assert!(s.with(&t, |_, _| Ok(())).is_err(), "one is missing");
        assert_eq!(s.arrived(&t, b).unwrap().0, 1);
        s.arrived(&t, c);
        assert_eq!(std::io::Read::read(&mut z, &mut [0]).unwrap(), 0, "the third was closed");
        assert_eq!(s.wait_here(&t), Ok(Carried::UNIX));
        assert_eq!(s.with(&t, |streams, _| Ok(streams.len())), Ok(2));
        assert_eq!(s.with(&t, |_, _| Err::<(), _>(Refused::Other("broken".into()))), Err(Refused::Other("broken".into())));
        assert!(s.with(&t, |_, _| Ok(())).is_err(), "closed after a failure");
        assert!(s.wait_here(&t).is_err());
    }

    #[test]
    fn what_a_round_has_measured_is_there_in_the_next_one() {
        let (s, t) = (Stripes::default(), [6; 32]);
        s.add(t, 1).unwrap();
        let (a, _x) = pair();
        s.arrived(&t, a);
        let round = || {
            s.with(&t, |_, compression| {
                let before = compression.len();
                compression.resize_with(1, Compression::default);
                Ok(before)
            })
        };
        assert_eq!([round(), round()], [Ok(0), Ok(1)]);
    }

    #[test]
    fn a_round_with_a_silent_peer_can_be_ended() {
        let s = Stripes::default();
        let t = [2; 32];
        s.add(t, 1).unwrap();
        let (a, _silent) = pair();
        s.arrived(&t, a);
        let (began, has_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let round = scope.spawn(|| {
                s.with(&t, |streams, _| {
                    began.send(()).unwrap();
                    streams[0].read_exact(&mut [0]).map_err(|e| Refused::OtherEnd(e.to_string()))
                })
            });
            has_begun.recv().unwrap();
            assert!(!round.is_finished());
            s.remove(&t);
            assert!(round.join().unwrap().is_err());
        });
        assert!(s.with(&t, |_, _| Ok(())).is_err(), "the ticket is forgotten");
    }

    /// So a move fails, and its job stays where it is.
    #[test]
    fn a_round_over_rdma_ends_when_the_process_of_the_other_end_is_stopped() {
        let (s, t) = (Stripes::default(), [3; 32]);
        s.add(t, 1).unwrap();
        let (source, _stopped, _carrier) = connections_beside(Nature::good(1, DATA_RING), tcp_pair());
        source.limit_unacknowledged(Duration::from_millis(200)).unwrap();
        s.arrived(&t, source);
        let place = Fake::open(&Start { plain: true, ..Start::of_test() }).unwrap();
        let round = s.with(&t, |streams, compression| place.round_source(streams, compression, false));
        assert!(matches!(&round, Err(Refused::OtherEnd(why)) if why.contains("has read nothing")), "{round:?}");
        assert!(s.with(&t, |_, _| Ok(())).is_err(), "closed after a failure");
    }

    #[test]
    fn tickets_are_bounded() {
        let s = Stripes::default();
        for i in 0..TICKETS {
            s.add([i as u8; 32], 1).unwrap();
        }
        assert!(s.add([99; 32], 1).is_err());
        s.remove(&[0; 32]);
        s.add([99; 32], 1).unwrap();
    }
}
