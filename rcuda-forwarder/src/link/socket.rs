//! Calls and answers over a connection. A thread sends the calls. For answers, a waiting thread reads them itself while it polls; otherwise the link's receiver thread does.

use super::common::Common;
use super::receive::{Patient, silent};
use super::replies::Waiter;
use super::time_limits::Silence;
use super::transport::CallTransport;
use crate::conn::Conn;
use crate::futex;
use crate::greet::has_hung_up;
use crate::inbox::Inbox;
use crate::pipe::Spin;
use crate::ring::{Consumer, Taken};
use crate::sync::{AtomicU32, lock};
use cuda_api::spin::{Pause, Spinning, spin_time};
use nix::poll::PollFlags;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// How long the receiver thread yields to polling threads before it sleeps.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// How long the receiver thread sleeps while others poll.
const NAP: Duration = Duration::from_millis(5);

/// State of the reader.
#[derive(Debug)]
struct Desk {
    inbox: Inbox<Patient>,
    /// Reading has ended.
    over: bool,
}

/// The job's side of a connection that carries calls and answers.
#[derive(Debug)]
pub(super) struct Socket {
    conn: Arc<Conn>,
    desk: Mutex<Desk>,
    /// Number of polling threads.
    pollers: AtomicU32,
    /// The receiver thread sleeps until no thread polls.
    napping: AtomicBool,
    bell: AtomicU32,
    /// Bytes of messages read so far.
    received: AtomicU64,
}

impl Socket {
    pub(super) fn new(conn: Arc<Conn>, silence: Duration) -> Socket {
        let inbox = Inbox::new(Patient::new(conn.clone(), silence));
        Socket {
            conn,
            desk: Mutex::new(Desk { inbox, over: false }),
            pollers: AtomicU32::new(0),
            napping: AtomicBool::new(false),
            bell: AtomicU32::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// Whether there is something to read, including the end of the stream.
    fn something(&self) -> bool {
        !self.conn.ready(PollFlags::POLLIN, Duration::ZERO).is_ok_and(|seen| seen.is_empty())
    }

    /// Waits until there is something to read; true if no thread has read anything for so long.
    fn is_silent(&self, limit: Duration) -> bool {
        let (mut seen, mut silence) = (self.received.load(Ordering::Relaxed), Silence::new(limit));
        // Errors are detected by reading.
        while self.conn.ready(PollFlags::POLLIN, silence.interval()).is_ok_and(|ready| ready.is_empty()) {
            let now = self.received.load(Ordering::Relaxed);
            if now != seen {
                seen = now;
                silence.broken();
            } else if silence.goes_on() && !self.something() {
                return true;
            }
        }
        false
    }

    /// Leaves the polling to other threads.
    fn leave(&self) {
        if self.pollers.fetch_sub(1, Ordering::SeqCst) == 1 && self.napping.load(Ordering::SeqCst) {
            self.bell.fetch_add(1, Ordering::SeqCst);
            futex::wake(&self.bell);
        }
    }

    /// Makes the receiver thread yield to polling threads until there are none, for at most [`NAP`].
    fn make_way(&self) {
        let began = Instant::now();
        while self.pollers.load(Ordering::SeqCst) != 0 {
            if began.elapsed() < POLL_INTERVAL {
                std::thread::yield_now();
                continue;
            }
            let bell = self.bell.load(Ordering::SeqCst);
            self.napping.store(true, Ordering::SeqCst);
            if self.pollers.load(Ordering::SeqCst) != 0 {
                futex::wait(&self.bell, bell, NAP);
            }
            self.napping.store(false, Ordering::SeqCst);
            return;
        }
    }

    /// Reads the messages that have arrived, until `mine` is answered. What has been read ahead is processed in any
    /// case, because polling the socket would not show it.
    fn read_messages(&self, common: &Common, desk: &mut Desk, mine: Option<&Waiter>) {
        let wanted = || !mine.is_some_and(Waiter::is_here) && self.something();
        while !desk.over && (!desk.inbox.is_empty() || self.conn.has_read_ahead() || wanted()) {
            match common.receive(&mut desk.inbox) {
                Ok(true) => {
                    self.received.store(desk.inbox.taken(), Ordering::Relaxed);
                    continue;
                }
                Ok(false) => common.hung_up("it has ended"),
                Err(e) if has_hung_up(&e) => common.hung_up(&e.to_string()),
                Err(e) => common.lose(&e.to_string()),
            }
            self.end_reading(common, desk);
        }
    }

    /// Ends a connection that is lost.
    fn end_reading(&self, common: &Common, desk: &mut Desk) {
        desk.over = true;
        common.ring.stop();
        common.bulk.wait_unwritten();
        common.replies.fail_all();
    }
}

impl CallTransport for Socket {
    fn send_all(&self, common: &Common) {
        // SAFETY: called once for each ring, by the sender thread.
        let mut consumer = unsafe { Consumer::new(&common.ring) };
        while let Some(sent) = consumer.take(|taken| match taken {
            Taken::Frames(bytes) => (&*self.conn).write_all(bytes),
            Taken::Long(head, parts, filling) => {
                let mut pieces = Vec::with_capacity(parts.len() + 2);
                pieces.push(&head[..]);
                pieces.extend_from_slice(parts);
                pieces.push(filling);
                self.conn.write_pieces(&pieces)
            }
        }) {
            if let Err(e) = sent {
                let why = format!("sending failed: {e}");
                if has_hung_up(&e) {
                    common.hung_up(&why)
                } else {
                    common.lose(&why)
                }
                break;
            }
        }
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    fn poll(&self, common: &Common, mine: &Waiter) {
        self.pollers.fetch_add(1, Ordering::SeqCst);
        let (mut spinning, mut goes_on) = (Spinning::begin(), true);
        while !mine.is_here() {
            let before = self.received.load(Ordering::Relaxed);
            match self.desk.try_lock() {
                Ok(mut desk) => self.read_messages(common, &mut desk, Some(mine)),
                Err(TryLockError::Poisoned(desk)) => self.read_messages(common, &mut desk.into_inner(), Some(mine)),
                Err(TryLockError::WouldBlock) => {}
            }
            if self.received.load(Ordering::Relaxed) != before {
                spinning.found();
            }
            if !goes_on {
                break;
            }
            // It does not yield the processor: a look is a system call already.
            goes_on = spinning.goes_on(Pause::Keep(1), spin_time());
        }
        self.leave();
    }

    fn receive_all(&self, common: &Common) {
        let mut spin = Spin::new();
        loop {
            let has_read = {
                let mut desk = lock(&self.desk);
                let before = self.received.load(Ordering::Relaxed);
                self.read_messages(common, &mut desk, None);
                if desk.over {
                    return;
                }
                self.received.load(Ordering::Relaxed) != before
            };
            // Messages that no thread waits for may follow each other, for example when a stream calls functions of the program. Where
            // threads read their answers themselves, this one sleeps.
            let began = Instant::now();
            if !(has_read && spin.until(|| self.something() || self.pollers.load(Ordering::SeqCst) != 0)) {
                if self.is_silent(common.limits.silence) {
                    let mut desk = lock(&self.desk);
                    common.lose(&silent(common.limits.silence).to_string());
                    return self.end_reading(common, &mut desk);
                }
                spin.learn(began.elapsed());
            }
            self.make_way();
        }
    }
}
