//! What happens at the daemon, for those who follow it (`mrcuda events`). The last events are kept once for all of them: a reader that is slow
//! takes no more memory, and loses events.

use super::accounting::End;
use super::asker::Asker;
use super::client::Client;
use crate::account::Used;
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::server_event::{SIGN_OF_LIFE, ServerEvent, ServerEventKind};
use crate::sync::lock;
use crate::{greet, user::User};
use cuda_api::clock::unix_ms;
use cuda_api::lock::wait_timeout;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// How many are kept.
const KEPT: usize = 1024;
/// Maximum number of characters of a reason or of places.
const LONGEST_TEXT: usize = 1000;

/// Whom the details of an event concern: where a job was asked to move, and why it stays or was refused.
#[derive(Debug)]
enum Concerns {
    /// The administrators.
    Administrators,
    /// The user of this job, too.
    Job(Client),
    /// This user, too, whose job was refused.
    User(Option<User>),
}

impl Concerns {
    fn is_for(&self, asker: &Asker) -> bool {
        match (self, asker) {
            (_, Asker::Administrator) => true,
            (Concerns::Administrators, _) => false,
            (Concerns::Job(client), asker) => asker.may_move(client),
            (Concerns::User(user), Asker::User(asking)) => user.as_ref() == Some(asking),
        }
    }
}

#[derive(Debug)]
struct Kept {
    event: ServerEvent,
    concerns: Concerns,
}

#[derive(Debug, Default)]
struct Log {
    /// Number of events so far.
    all: u64,
    /// The last ones, the latest one last.
    last: VecDeque<Arc<Kept>>,
}

/// The events of a daemon.
#[derive(Debug, Default)]
pub(super) struct Events {
    log: Mutex<Log>,
    changed: Condvar,
}

/// The beginning of a text of a client, without line breaks and terminal control codes.
pub(super) fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST_TEXT)].replace(char::is_control, " ")
}

/// Number of a GPU in an event.
fn number(gpu: u32) -> Option<u32> {
    Some(gpu).filter(|gpu| *gpu != Endpoint::MEMORY)
}

/// An event about a job that a worker serves.
fn about(kind: ServerEventKind, worker: u32, gpu: u32, client: &Client) -> ServerEvent {
    let job = client.served(worker, None);
    ServerEvent {
        worker: Some(worker),
        gpu: number(gpu),
        pid: Some(job.pid),
        host: job.host,
        uid: job.uid,
        user: job.user,
        user_by: job.user_by,
        ..ServerEvent::new(kind, unix_ms())
    }
}

impl Events {
    /// A worker serves a job.
    pub(super) fn came(&self, worker: u32, gpu: u32, client: &Client) {
        self.of_job(about(ServerEventKind::JobCame, worker, gpu, client), client);
    }

    /// It no longer does. `to`: where the job was asked to move.
    pub(super) fn left(&self, (worker, gpu): (u32, u32), client: &Client, used: &Used, end: End, to: Option<String>) {
        let kind = match end {
            End::Left if used.moved_out => ServerEventKind::JobMoved,
            End::Left => ServerEventKind::JobLeft,
            End::Failed | End::ServerEnded => ServerEventKind::JobLost,
        };
        let to = to.filter(|_| kind == ServerEventKind::JobMoved);
        self.of_job(ServerEvent { to, ..about(kind, worker, gpu, client) }, client);
    }

    /// A job is asked to move.
    pub(super) fn asked(&self, worker: u32, gpu: u32, client: &Client, to: &str) {
        self.of_job(ServerEvent { to: Some(cut(to)), ..about(ServerEventKind::MoveAsked, worker, gpu, client) }, client);
    }

    /// A job stays although it was asked to move.
    pub(super) fn stays(&self, worker: u32, gpu: u32, client: &Client, why: &str) {
        self.of_job(ServerEvent { reason: Some(cut(why)), ..about(ServerEventKind::JobStays, worker, gpu, client) }, client);
    }

    /// Something happens to so many bytes of a stopped job's memory.
    pub(super) fn evicted(&self, kind: ServerEventKind, (worker, gpu): (u32, u32), client: &Client, bytes: u64) {
        self.of_job(ServerEvent { count: Some(bytes), ..about(kind, worker, gpu, client) }, client);
    }

    /// A job of a client that may start jobs was refused.
    pub(super) fn refused(&self, gpu: u32, pid: u32, user: Option<&User>, why: &str) {
        let event = ServerEvent {
            gpu: number(gpu),
            pid: Some(pid),
            uid: user.and_then(User::uid),
            user: user.map(|user| user.name().to_owned()),
            user_by: user.map(User::by),
            reason: Some(cut(why)),
            ..ServerEvent::new(ServerEventKind::JobRefused, unix_ms())
        };
        self.add(event, Concerns::User(user.cloned()));
    }

    /// A drain begins or ends, with so many workers that have jobs; `to` is empty if it asks none of them.
    pub(super) fn drain(&self, begins: bool, to: &str, jobs: usize) {
        let kind = if begins { ServerEventKind::DrainBegan } else { ServerEventKind::DrainEnded };
        let event =
            ServerEvent { to: (!to.is_empty()).then(|| cut(to)), count: Some(jobs as u64), ..ServerEvent::new(kind, unix_ms()) };
        self.add(event, Concerns::Administrators);
    }

    fn of_job(&self, event: ServerEvent, client: &Client) {
        self.add(event, Concerns::Job(client.clone()));
    }

    fn add(&self, event: ServerEvent, concerns: Concerns) {
        let mut log = lock(&self.log);
        if log.last.len() == KEPT {
            log.last.pop_front();
        }
        log.last.push_back(Arc::new(Kept { event, concerns }));
        log.all += 1;
        drop(log);
        self.changed.notify_all();
    }

    /// Number of events so far.
    fn count(&self) -> u64 {
        lock(&self.log).all
    }

    /// The first event after so many, if it happens by then, and the number of those before it that were left out.
    fn after(&self, seen: u64, until: Instant) -> Option<(u64, Arc<Kept>)> {
        let mut log = lock(&self.log);
        loop {
            let first = log.all - log.last.len() as u64;
            let next = seen.max(first);
            if let Some(kept) = log.last.get((next - first) as usize) {
                return Some((next - seen, kept.clone()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            log = wait_timeout(&self.changed, log, left).0;
        }
    }

    /// Sends a client what happens from now on, until it has disconnected, reads nothing, or `is_over`.
    pub(super) fn send(&self, conn: &Conn, asker: &Asker, is_over: impl Fn() -> bool) -> io::Result<()> {
        let mut seen = self.count();
        greet::answer(conn, Ok(&[]))?;
        while !is_over() {
            let Some((dropped, kept)) = self.after(seen, Instant::now() + SIGN_OF_LIFE) else {
                greet::answer(conn, Ok(&[]))?;
                continue;
            };
            if dropped > 0 {
                let kind = ServerEventKind::Dropped;
                ServerEvent { count: Some(dropped), ..ServerEvent::new(kind, unix_ms()) }.send(conn)?;
            }
            let mut event = kept.event.clone();
            if !kept.concerns.is_for(asker) {
                (event.to, event.reason) = (None, None);
            }
            event.send(conn)?;
            seen += dropped + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_slow_reader_learns_how_many_it_has_missed_and_takes_no_memory() {
        let events = Events::default();
        let now = || Instant::now();
        assert!(events.after(0, now()).is_none());
        for n in 0..KEPT + 5 {
            events.drain(true, "local", n);
        }
        let (dropped, kept) = events.after(0, now()).unwrap();
        assert_eq!((dropped, kept.event.count), (5, Some(5)));
        let (dropped, kept) = events.after(6, now()).unwrap();
        assert_eq!((dropped, kept.event.count), (0, Some(6)));
        assert_eq!(lock(&events.log).last.len(), KEPT);
        let all = events.count();
        assert!(events.after(all, now() + Duration::from_millis(10)).is_none());
    }

    #[test]
    fn texts_of_others_are_cut_and_have_no_control_characters() {
        let long = format!("a\u{1b}b\n{}", "x".repeat(2 * LONGEST_TEXT));
        assert_eq!((cut(&long).chars().count(), &cut(&long)[..4]), (LONGEST_TEXT, "a b "));
    }
}
