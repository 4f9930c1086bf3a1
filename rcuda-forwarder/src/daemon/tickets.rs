//! The tickets by which data connections reach the workers that expect them.

use super::error::AssignError;
use super::pool::Worker;
use crate::greet::{GreetError, Route, route, ticket_key, ticket_name};
use crate::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// Maximum number of tickets that one worker may register at a time.
const TICKETS: usize = 64;

/// A ticket that a worker expects.
#[derive(Debug)]
struct Ticket {
    secret: [u8; 32],
    left: u32,
    worker: Weak<Worker>,
}

impl Ticket {
    fn is_of(&self, worker: &Arc<Worker>) -> bool {
        std::ptr::eq(self.worker.as_ptr(), Arc::as_ptr(worker))
    }
}

/// All tickets, by name.
#[derive(Debug, Default)]
pub(super) struct Tickets(Mutex<HashMap<[u8; 32], Ticket>>);

impl Tickets {
    /// Notes that a worker expects this many connections with a ticket. Returns whether it may.
    pub(super) fn expect(&self, worker: &Arc<Worker>, secret: [u8; 32], left: u32) -> bool {
        let mut tickets = lock(&self.0);
        tickets.retain(|_, ticket| ticket.worker.strong_count() > 0);
        let of_worker = tickets.values().filter(|ticket| ticket.is_of(worker)).count();
        if left == 0 || of_worker >= TICKETS || tickets.contains_key(&ticket_name(&secret)) {
            return false;
        }
        tickets.insert(ticket_name(&secret), Ticket { secret, left, worker: Arc::downgrade(worker) });
        true
    }

    /// Forgets a ticket of a worker. That of another one stays, also if this worker has asked for it and was refused.
    pub(super) fn forget(&self, worker: &Arc<Worker>, secret: &[u8; 32]) {
        let (mut tickets, name) = (lock(&self.0), ticket_name(secret));
        if tickets.get(&name).is_some_and(|ticket| ticket.is_of(worker)) {
            tickets.remove(&name);
        }
    }

    /// Whether one has this route.
    pub(super) fn have(&self, wanted: &Route) -> bool {
        lock(&self.0).keys().any(|name| route(name) == *wanted)
    }

    /// The key of the proofs of those who have a ticket.
    pub(super) fn key(&self, name: &[u8; 32]) -> Result<[u8; 32], GreetError> {
        lock(&self.0).get(name).map(|ticket| ticket_key(&ticket.secret)).ok_or(GreetError::UnknownTicket)
    }

    /// The ticket and the worker of a connection that has proved it. A ticket is valid for the number of connections requested.
    pub(super) fn take(&self, name: &[u8; 32]) -> Result<([u8; 32], Arc<Worker>), AssignError> {
        let mut tickets = lock(&self.0);
        let ticket = tickets.get_mut(name).ok_or(AssignError::TicketUsed)?;
        let (secret, worker) = (ticket.secret, ticket.worker.upgrade());
        ticket.left -= 1;
        if ticket.left == 0 {
            tickets.remove(name);
        }
        Ok((secret, worker.ok_or(AssignError::TicketWorkerEnded)?))
    }

    /// Of each ticket how many connections are left, and the process of its worker.
    #[cfg(test)]
    pub(super) fn left(&self) -> Vec<(u32, Option<u32>)> {
        lock(&self.0).values().map(|ticket| (ticket.left, ticket.worker.upgrade().map(|worker| worker.pid()))).collect()
    }
}
