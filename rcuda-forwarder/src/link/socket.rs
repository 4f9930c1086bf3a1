//! Answers off a socket: a thread that waits for one reads them itself, as long as it looks; when nobody looks, a thread of ours
//! does.

use super::Shared;
use super::receive::{Patient, silent};
use super::reply::Waiter;
use crate::conn::Conn;
use crate::futex;
use crate::inbox::Inbox;
use crate::lock::lock;
use crate::sync::AtomicU32;
use nix::poll::PollFlags;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// How long a waiting thread looks before it sleeps: about what a wake-up through our thread costs.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// How long our thread sleeps while others look.
const NAP: Duration = Duration::from_millis(5);

/// Where the answers are read.
#[derive(Debug)]
struct Desk {
    inbox: Inbox<Patient>,
    /// No more is read.
    over: bool,
}

/// The reading side of a connection.
#[derive(Debug)]
pub(super) struct Socket {
    conn: Arc<Conn>,
    desk: Mutex<Desk>,
    /// Threads that look.
    lookers: AtomicU32,
    /// Our thread sleeps until nobody looks any more.
    napping: AtomicBool,
    bell: AtomicU32,
    /// Messages read so far.
    messages: AtomicU64,
}

impl Socket {
    pub(super) fn new(conn: Arc<Conn>, silence: Duration) -> Socket {
        let inbox = Inbox::new(Patient::new(conn.clone(), silence));
        Socket {
            conn,
            desk: Mutex::new(Desk { inbox, over: false }),
            lookers: AtomicU32::new(0),
            napping: AtomicBool::new(false),
            bell: AtomicU32::new(0),
            messages: AtomicU64::new(0),
        }
    }

    /// Whether there is something to read, be it the end.
    fn something(&self) -> bool {
        !self.conn.ready(PollFlags::POLLIN, Duration::ZERO).is_ok_and(|seen| seen.is_empty())
    }

    /// Waits until there is something to read; true if nobody has read anything for so long.
    fn is_silent(&self, silence: Duration) -> bool {
        let look = (silence / 4).min(Duration::from_secs(1));
        let (mut seen, mut since) = (self.messages.load(Ordering::Relaxed), Instant::now());
        // Errors are found by reading.
        while self.conn.ready(PollFlags::POLLIN, look).is_ok_and(|ready| ready.is_empty()) {
            let now = self.messages.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() >= silence && !self.something() {
                // A job that was stopped and continued has waited long, too, and finds something.
                return true;
            }
        }
        false
    }

    /// Leaves the looking to others.
    fn leave(&self) {
        if self.lookers.fetch_sub(1, Ordering::SeqCst) == 1 && self.napping.load(Ordering::SeqCst) {
            self.bell.fetch_add(1, Ordering::SeqCst);
            futex::wake(&self.bell);
        }
    }

    /// Our thread lets those who look read what has come, until they have gone; not longer than [`NAP`].
    fn make_way(&self) {
        let began = Instant::now();
        while self.lookers.load(Ordering::SeqCst) != 0 {
            if began.elapsed() < POLL_INTERVAL {
                std::thread::yield_now();
                continue;
            }
            let bell = self.bell.load(Ordering::SeqCst);
            self.napping.store(true, Ordering::SeqCst);
            if self.lookers.load(Ordering::SeqCst) != 0 {
                futex::wait(&self.bell, bell, NAP);
            }
            self.napping.store(false, Ordering::SeqCst);
            return;
        }
    }
}

impl Shared {
    /// Reads the messages that have come, until `mine` is answered. What has been read ahead is dealt with in any case: nobody could
    /// see it on the socket any more.
    fn read_messages(&self, socket: &Socket, desk: &mut Desk, mine: Option<&Waiter>) {
        let wanted = || !mine.is_some_and(Waiter::is_here) && socket.something();
        while !desk.over && (!desk.inbox.is_empty() || wanted()) {
            let why = match self.receive(&mut desk.inbox) {
                Ok(true) => {
                    socket.messages.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Ok(false) => "it has ended".to_owned(),
                Err(e) => e.to_string(),
            };
            self.end_reading(desk, &why);
        }
    }

    /// Looks for the answer that `mine` waits for, for a short time.
    pub(super) fn look_at(&self, socket: &Socket, mine: &Waiter) {
        socket.lookers.fetch_add(1, Ordering::SeqCst);
        let began = Instant::now();
        while !mine.is_here() {
            match socket.desk.try_lock() {
                Ok(mut desk) => self.read_messages(socket, &mut desk, Some(mine)),
                Err(TryLockError::Poisoned(desk)) => self.read_messages(socket, &mut desk.into_inner(), Some(mine)),
                Err(TryLockError::WouldBlock) => {}
            }
            // It keeps the processor: on a busy machine it would be long until it gets it back, and who sleeps is woken soon.
            if began.elapsed() >= POLL_INTERVAL {
                break;
            }
        }
        socket.leave();
    }

    /// Reads when nobody else does, until the connection ends or fails; then nobody waits any more.
    pub(super) fn receive_all(&self, socket: &Socket) {
        loop {
            {
                let mut desk = lock(&socket.desk);
                self.read_messages(socket, &mut desk, None);
                if desk.over {
                    return;
                }
            }
            if socket.is_silent(self.patience.silence) {
                let mut desk = lock(&socket.desk);
                return self.end_reading(&mut desk, &silent(self.patience.silence).to_string());
            }
            socket.make_way();
        }
    }

    fn end_reading(&self, desk: &mut Desk, why: &str) {
        desk.over = true;
        self.lose(why);
        self.ring.stop();
        self.replies.fail_all();
    }
}
