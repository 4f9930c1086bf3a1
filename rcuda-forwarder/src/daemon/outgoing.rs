//! Connections that the daemon makes for its workers, which have no network of their own: to the places to which their jobs move, and to
//! places of this machine that share memory.
//!
//! What a worker asks for may be its job's wish alone, so each request is checked as one of the job.

use super::pool::Worker;
use crate::byte_stream::ByteStream;
use crate::channel::{Destination, Message, NotConnected};
use crate::endpoint::Endpoint;
use crate::socket::{Address, Socket};
use crate::targets::Targets;
use crate::threads;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum time for one.
const LONGEST: Duration = Duration::from_secs(10);

/// What was connected.
enum Connected {
    Place(Socket),
    Share(UnixStream),
}

impl Connected {
    fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Connected::Place(socket) => socket.socket(),
            Connected::Share(stream) => Ok(stream.as_fd()),
        }
    }
}

/// Connects for a worker on a thread of its own, since it can take seconds, and answers it.
pub(super) fn connect(worker: &Arc<Worker>, targets: &Targets, number: u32, to: Destination, ms: u64) {
    let refuse = |worker: &Worker, why: String| {
        // A worker that has ended needs no answer.
        drop(worker.send(&Message::Connected(number, Some(NotConnected { denied: false, why })), None));
    };
    let Some(counted) = worker.note_outgoing() else { return refuse(worker, "too many connections at one time".into()) };
    let (theirs, targets) = (worker.clone(), targets.clone());
    let connect = move || {
        let _counted = counted;
        let answer = match make(&theirs, &targets, &to, Duration::from_millis(ms).min(LONGEST)) {
            Ok(connected) => connected.fd().and_then(|fd| theirs.send(&Message::Connected(number, None), Some(fd))),
            Err(error) => theirs.send(&Message::Connected(number, Some(error)), None),
        };
        // As above.
        drop(answer);
    };
    if let Err(e) = threads::spawn("outgoing", connect) {
        refuse(worker, format!("cannot start a thread: {e}"));
    }
}

fn make(worker: &Worker, targets: &Targets, to: &Destination, limit: Duration) -> Result<Connected, NotConnected> {
    let failed = |why: String| NotConnected { denied: false, why };
    let Some(sender) = worker.sender() else { return Err(failed("it has no job".into())) };
    let place = match to {
        // Its name is a secret of whoever listens there.
        Destination::Share(name) => {
            return executor::share::connect(name).map(Connected::Share).map_err(|e| failed(e.to_string()));
        }
        Destination::Place(place) => Endpoint::of_place(place).map_err(|e| failed(e.to_string()))?,
    };
    let denied = AtomicBool::new(false);
    let allowed = |address: Address<'_>| {
        let allowed = targets.allow(sender, address);
        denied.fetch_or(!allowed, Ordering::Relaxed);
        allowed
    };
    Socket::connect(&place, Instant::now() + limit, &allowed)
        .map(Connected::Place)
        .map_err(|e| NotConnected { denied: denied.load(Ordering::Relaxed), why: e.to_string() })
}
