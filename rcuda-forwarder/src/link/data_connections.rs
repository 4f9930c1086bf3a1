//! Opens data connections to a place: those of a job's large copies, and those between two places.
//!
//! Each of them takes several round trips, so they are opened concurrently. The worker at the other end numbers them as they arrive, and its
//! answer says the number: both ends use them in this order.

use super::error::{LinkError, refused};
use super::open::{Opened, open};
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::greet::{self, GreetError, Opening, Protection};
use crate::rdma::DATA_RING;
use crate::rdma::setup::{self, NoRdma, Rings};
use crate::sync::lock;
use crate::threads;
use executor::Budget;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Total time limit for a data connection and its greeting. A move that fails is retried later, and a client that asks
/// a server to connect somewhere gets the result after this time, whatever is at the target.
const BULK: Duration = Duration::from_secs(5);

/// Additional time limit for RDMA to carry a data connection: longer than the probes of both ends.
pub(crate) const RDMA: Duration = Duration::from_secs(10);

/// Total time limit for all connections of a ticket. A worker that opens them answers its job well before the job gives it up.
const ALL: Duration = Duration::from_secs(60);

/// How long the other end of a copy may acknowledge no data: during a round it always reads. A job's own connection has
/// no such limit, because its worker may be busy with one call for long, and sends heartbeats meanwhile.
pub(crate) const BULK_UNACKNOWLEDGED: Duration = Duration::from_secs(15);

/// Maximum number of connections that are opened at one time: a server lets 128 connections of one address greet at a time, and many
/// jobs of one machine may move at once.
const AT_ONCE: u32 = 8;

/// Opens `stripes` connections to the place that expects `ticket`, in the order in which that place numbers them.
pub fn bulk_connect(to: &Endpoint, ticket: &[u8; 32], stripes: u32) -> Result<Vec<Conn>, LinkError> {
    bulk_connect_within(to, ticket, stripes, &Budget::new(u64::MAX))
}

/// As [`bulk_connect`], with a limit for the memory that RDMA registers.
pub(crate) fn bulk_connect_within(
    to: &Endpoint,
    ticket: &[u8; 32],
    stripes: u32,
    budget: &Arc<Budget>,
) -> Result<Vec<Conn>, LinkError> {
    let log = |why: &str| tracing::info!(target: "place", "{why}");
    let connect = |until| Conn::open(to, until);
    connect_all(to, ticket, stripes, &Terms { connect: &connect, log: &log, budget })
}

/// How a place makes data connections.
pub(crate) struct Terms<'a> {
    /// Connects to the server before a deadline.
    pub(crate) connect: &'a (dyn Fn(Instant) -> io::Result<Conn> + Sync),
    /// Takes the reason why RDMA does not carry them.
    pub(crate) log: &'a (dyn Fn(&str) + Sync),
    /// For the memory that RDMA registers.
    pub(crate) budget: &'a Arc<Budget>,
}

/// As [`bulk_connect`], on these terms.
pub(crate) fn connect_all(to: &Endpoint, ticket: &[u8; 32], stripes: u32, terms: &Terms<'_>) -> Result<Vec<Conn>, LinkError> {
    let opener = Opener {
        to,
        name: greet::ticket_name(ticket),
        key: greet::ticket_key(ticket),
        terms,
        rdma: AtomicBool::new(to.is_rdma()),
        retrying: Mutex::new(()),
        end: Instant::now() + ALL,
    };
    // The first one alone finds out whether there is RDMA: a setup that fails can take seconds.
    let alone = stripes.min(u32::from(to.is_rdma()));
    let mut opened = all_at_once(alone, &|| opener.open())?;
    opened.extend(all_at_once(stripes - alone, &|| opener.open())?);
    opened.sort_by_key(|(number, _)| *number);
    // A ticket may have had connections before.
    let first = opened.first().map_or(0, |(number, _)| u64::from(*number));
    if !opened.iter().map(|(number, _)| u64::from(*number)).eq(first..first + u64::from(stripes)) {
        // Both ends would use the connections in different orders.
        return Err(refused(to, &GreetError::Garbage));
    }
    Ok(opened.into_iter().map(|(_, conn)| conn).collect())
}

/// Calls `make` so many times, on up to [`AT_ONCE`] threads. After an error, which it returns, no further call begins.
fn all_at_once<T: Send, E: Send>(count: u32, make: &(dyn Fn() -> Result<T, E> + Sync)) -> Result<Vec<T>, E> {
    let (left, all) = (AtomicU32::new(count), Mutex::new(Ok(Vec::new())));
    let make_some = || {
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            let made = make();
            let mut all = lock(&all);
            match (&mut *all, made) {
                (Ok(all), Ok(made)) => all.push(made),
                (Ok(_), Err(why)) => {
                    *all = Err(why);
                    left.store(0, Ordering::Relaxed);
                }
                (Err(_), _) => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..count.min(AT_ONCE) {
            // What no other thread makes, this one does.
            if threads::spawn_scoped(scope, "mrcuda-connect", make_some).is_err() {
                break;
            }
        }
        make_some();
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What the connections to a place have in common.
struct Opener<'a> {
    to: &'a Endpoint,
    /// Digest of the ticket, and the key that both ends derive from it.
    name: [u8; 32],
    key: [u8; 32],
    terms: &'a Terms<'a>,
    /// Whether connections try RDMA: after the first one that cannot have it, no other one does.
    rdma: AtomicBool,
    /// Held by a connection that a busy server has sent away, while it tries again.
    retrying: Mutex<()>,
    /// When all must be open.
    end: Instant,
}

impl Opener<'_> {
    /// Opens a connection. Returns it with the number that the other end has given it.
    fn open(&self) -> Result<(u32, Conn), LinkError> {
        let (to, rdma) = (self.to, self.rdma.load(Ordering::Relaxed));
        let protection = if to.is_tls() { Protection::AnyServer } else { Protection::Plain };
        let left = self.end.saturating_duration_since(Instant::now()).min(BULK);
        let limit = Opened { connection: left, greeting: left, all: left };
        let (is_retry, turn) = (Cell::new(false), Cell::new(None));
        let connect = |until| {
            // One at a time: a server that is busy drops connections which are greeting, and has to deal with fewer of them then.
            if is_retry.replace(true) {
                let before = turn.take();
                turn.set(before.or_else(|| Some(lock(&self.retrying))));
            }
            // Looking up a name would take time, whatever the limit.
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            (self.terms.connect)(until)
        };
        let (conn, _) = open(to, &Opening::Bulk { name: self.name, rdma }, ((&self.key).into(), protection), &limit, &connect)?;
        drop(turn);
        if rdma {
            let rings = Rings { bytes: DATA_RING, budget: self.terms.budget, others: 0 };
            match setup::connect(&conn, rings, self.end.min(Instant::now() + RDMA)) {
                Ok(()) => {}
                Err(NoRdma::Unavailable(why)) => {
                    (self.terms.log)(&format!("the data connections to {to} are not carried by RDMA: {why}"));
                    self.rdma.store(false, Ordering::Relaxed);
                }
                Err(NoRdma::Failed(why)) => return Err(refused(to, &why)),
            }
        }
        let answer = greet::read_answer(&conn, self.end.min(Instant::now() + BULK)).map_err(|why| refused(to, &why))?;
        let number = answer.try_into().map_err(|_| refused(to, &GreetError::Garbage))?;
        conn.limit_unacknowledged(BULK_UNACKNOWLEDGED).map_err(|source| LinkError::Setup { to: to.clone(), source })?;
        Ok((u32::from_le_bytes(number), conn))
    }
}

#[cfg(test)]
mod network_tests;
