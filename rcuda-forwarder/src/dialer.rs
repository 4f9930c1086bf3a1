//! Connections of a worker to other places: its daemon makes them, because the worker has no network.
//!
//! The worker sends a request with a number over its channel. The daemon decides whether the server allows it, connects, and answers with the
//! descriptor.

use crate::channel::{Channel, Destination, Message, NotConnected};
use crate::sync::lock;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// How much longer than the daemon may take the worker waits for its answer.
const ANSWER: Duration = Duration::from_secs(5);

type Answer = io::Result<OwnedFd>;

/// The requests of one worker.
#[derive(Debug)]
pub(crate) struct Dialer {
    channel: Arc<Channel>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u32,
    answers: HashMap<u32, mpsc::Sender<Answer>>,
}

impl Dialer {
    pub(crate) fn new(channel: Arc<Channel>) -> Dialer {
        Dialer { channel, waiting: Mutex::default() }
    }

    /// Has the daemon connect before a deadline. `PermissionDenied`: the server does not allow it.
    pub(crate) fn connect(&self, to: Destination, deadline: Instant) -> Answer {
        let left = deadline.saturating_duration_since(Instant::now());
        let (sender, receiver) = mpsc::channel();
        let number = {
            let mut waiting = lock(&self.waiting);
            let number = waiting.next;
            waiting.next = number.wrapping_add(1);
            waiting.answers.insert(number, sender);
            number
        };
        let ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let sent = self.channel.send(&Message::Connect(number, to, ms), None);
        let answer =
            sent.and_then(|()| receiver.recv_timeout(left + ANSWER).map_err(|_| io::Error::from(io::ErrorKind::TimedOut)));
        lock(&self.waiting).answers.remove(&number);
        answer?
    }

    /// Takes an answer of the daemon. One that nobody waits for any more is closed.
    pub(crate) fn take(&self, number: u32, error: Option<NotConnected>, fd: Option<OwnedFd>) {
        let answer = match (error, fd) {
            (None, Some(fd)) => Ok(fd),
            (Some(NotConnected { denied: true, why }), _) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
            (Some(NotConnected { denied: false, why }), _) => Err(io::Error::other(why)),
            (None, None) => Err(io::ErrorKind::InvalidData.into()),
        };
        if let Some(waits) = lock(&self.waiting).answers.remove(&number) {
            // It may have given up just now.
            let _ = waits.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker's end, and the daemon's.
    fn pair() -> (Arc<Dialer>, Channel) {
        let (daemon, worker) = Channel::pair().unwrap();
        (Arc::new(Dialer::new(Arc::new(Channel::over(worker)))), daemon)
    }

    fn number(daemon: &Channel) -> u32 {
        match daemon.receive().unwrap() {
            Some((Message::Connect(number, Destination::Share([1, ..]), _), None)) => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_request_gets_its_own_answer() {
        let (dialer, daemon) = pair();
        let ask = || {
            let dialer = dialer.clone();
            std::thread::spawn(move || {
                let mut name = [0; 16];
                name[0] = 1;
                dialer.connect(Destination::Share(name), Instant::now() + Duration::from_secs(60))
            })
        };
        let asked: Vec<_> = (0..3)
            .map(|_| {
                let thread = ask();
                (number(&daemon), thread)
            })
            .collect();
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        // Answers to nobody are ignored.
        dialer.take(99, None, Some(null()));
        let [first, second, third] = <[_; 3]>::try_from(asked).unwrap();
        dialer.take(third.0, None, Some(null()));
        dialer.take(second.0, Some(NotConnected { denied: true, why: "not there".into() }), None);
        dialer.take(first.0, None, None);
        assert!(third.1.join().unwrap().is_ok());
        let denied = second.1.join().unwrap().unwrap_err();
        assert_eq!((denied.kind(), denied.to_string().as_str()), (io::ErrorKind::PermissionDenied, "not there"));
        assert!(first.1.join().unwrap().is_err());
        assert!(lock(&dialer.waiting).answers.is_empty());
    }

    #[test]
    fn without_a_daemon_there_is_an_error() {
        let (dialer, daemon) = pair();
        drop(daemon);
        dialer.connect(Destination::Share([0; 16]), Instant::now() + Duration::from_secs(60)).unwrap_err();
    }
}
