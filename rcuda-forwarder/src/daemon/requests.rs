//! Answers clients that ask the daemon for something else than a worker: questions, trials, requests to move jobs, events, drains.

use super::admission::Source;
use super::asker::Asker;
use super::counters::Wish;
use super::error::{AssignError, WelcomeError};
use super::request_seats::{FOLLOWERS, MOVES, QUESTIONS};
use super::{GREETING, State};
use crate::conn::Conn;
use crate::greet::{self, Opening};
use crate::secret::Secret;
use crate::trial;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl State {
    /// Answers a client that needs no worker.
    pub(super) fn answer(self: &Arc<Self>, conn: &Conn, request: Opening, secret: &Secret) -> Result<(), WelcomeError> {
        let (peer, asker) = (conn.peer(), Asker::of(secret));
        let (seats, budget, full) = match &request {
            Opening::Move(_) => (&self.requests.moves, MOVES, AssignError::MoveRequests),
            Opening::Events => (&self.requests.followers, FOLLOWERS, AssignError::Followers),
            _ => (&self.requests.questions, QUESTIONS, AssignError::Questions),
        };
        let seat = seats.take(Source::of_client(conn, secret), budget).map_err(|_| full);
        // It may have disconnected, so errors are ignored.
        let seat = seat.inspect_err(|error| drop(greet::answer(conn, Err(&error.to_string()))));
        let refused = |error| WelcomeError::Question { peer: peer.clone(), user: secret.user.clone(), error };
        let _seat = seat.map_err(refused)?;
        // A client that reads nothing must not hold up this thread.
        let told = conn.limit_unread(GREETING).and_then(|()| match &request {
            Opening::Trial => trial::serve(conn),
            Opening::Move(wanted) => self.move_job(conn, &asker, wanted),
            Opening::Events => self.pool.events().send(conn, &asker, || self.is_over_for(secret)),
            Opening::Drain(wanted) => match self.change_drain(&asker, &peer, wanted) {
                Ok(state) => greet::answer(conn, Ok(&state.encoded())),
                Err(why) => greet::answer(conn, Err(&why.to_string())),
            },
            Opening::WorkerEnd(worker) => greet::answer(conn, Ok(self.failure_of(*worker, &asker).as_bytes())),
            _ => self.report().send(conn),
        });
        told.map_err(|e| WelcomeError::Client { peer, error: e.into() })?;
        self.pool.counters().accept(Wish::Question);
        Ok(())
    }

    /// Whether it sends no more events to who has shown this.
    fn is_over_for(&self, secret: &Secret) -> bool {
        // A user of a cluster is not looked up: a name service that does not answer would hold this up.
        let is_shut_out = || secret.user.as_ref().is_some_and(|user| user.uid().is_none()) && !self.still_accepts(secret);
        self.stopping.load(Ordering::SeqCst) || is_shut_out()
    }
}
