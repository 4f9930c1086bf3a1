//! Admits a job to a GPU: at once, or when its turn comes.

use super::State;
use super::admission::Source;
use super::error::AssignError;
use super::leavers::Leavers;
use super::pool::{Admitted, LEAVING};
use crate::conn::Conn;
use crate::greet;
use crate::secret::Secret;
use nix::poll::PollFlags;
use std::time::{Duration, Instant};

/// Interval between two checks whether there is room.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The same, while a worker ends.
const LEAVING_INTERVAL: Duration = Duration::from_millis(5);
/// Interval between two messages to a job that waits.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(1);

impl State {
    /// Admits a job to a GPU. If there is no room now and the job waits for it, this waits, and tells the job why. One that does not wait
    /// is not refused because of a worker that its job has left and that is about to end: in a chain of moves it may be the same job's.
    pub(super) fn admit(&self, conn: &Conn, secret: &Secret, gpu: u32, waits: bool) -> Result<Admitted, AssignError> {
        let source = Source::of_client(conn, secret);
        let mut turn = self.lines.enter(source.clone(), gpu, waits)?;
        let (since, mut told) = (Instant::now(), None::<Instant>);
        loop {
            // Looked at before: what ends in between makes room for the next attempt.
            let leaving = if waits { Leavers::default() } else { self.pool.leaving() };
            let (before, why) = match turn.poll(&self.pool) {
                Ok(admitted) => return self.check_user(secret).map(|()| admitted),
                Err((_, why))
                    if !waits && leaving.make_room_for(&why) && since.elapsed() < LEAVING && turn.take_seat(&source) =>
                {
                    if conn.wait_gone(LEAVING_INTERVAL) {
                        return Err(AssignError::GaveUp);
                    }
                    self.check_open()?;
                    continue;
                }
                Err((_, why)) if !waits || !why.may_pass() => return Err(why),
                Err(waiting) => waiting,
            };
            // A client that is stopped reads nothing: this must not wait for it, since it may have got its turn, which others wait for.
            let can_write = || conn.ready(PollFlags::POLLOUT, Duration::ZERO).is_ok_and(|seen| seen.contains(PollFlags::POLLOUT));
            let is_due = told.is_none_or(|at| at.elapsed() >= MESSAGE_INTERVAL);
            // A user of a cluster is looked up when the turn has come: a name service that does not answer would hold this up, too.
            if is_due && secret.user.as_ref().is_some_and(|user| user.uid().is_none()) {
                self.check_user(secret)?;
            }
            if is_due && can_write() {
                let others = if before == 0 { String::new() } else { format!("; jobs that wait before this one: {before}") };
                greet::keep_waiting(conn, &format!("{why}{others}"))?;
                told = Some(Instant::now());
            }
            if conn.wait_gone(POLL_INTERVAL) {
                return Err(AssignError::GaveUp);
            }
            self.check_open()?;
        }
    }

    /// Refuses a job whose user was shut out while it waited.
    fn check_user(&self, secret: &Secret) -> Result<(), AssignError> {
        match &secret.user {
            Some(user) if !self.still_accepts(secret) => Err(AssignError::Revoked(user.clone())),
            _ => Ok(()),
        }
    }
}
