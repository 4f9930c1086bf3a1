//! Answers through shared memory: a waiting thread reads them itself while it polls; otherwise the link's receiver
//! thread does. Another thread watches the socket beside the memory, which is closed when the worker ends.

use super::common::Common;
use super::receive::silent;
use super::replies::Waiter;
use super::time_limits::Silence;
use super::transport::CallTransport;
use crate::conn::Conn;
use crate::greet;
use crate::inbox::Inbox;
use crate::pipe::{Closed, Reader, Spin};
use crate::shm::{Memory, PipeWords, Which};
use crate::sync::lock;
use cuda_api::spin::{Pause, Spinning, spin_time};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// Why a link is lost whose worker's end is closed.
const ENDED: &str = "it has ended";
/// How long the receiver thread sleeps without polling.
const NAP: Duration = Duration::from_millis(500);

/// State of the reader.
#[derive(Debug)]
struct Desk {
    inbox: Inbox<Reader>,
    /// Reading has ended.
    over: bool,
}

/// The receiving side of shared memory.
#[derive(Debug)]
pub(super) struct Answers {
    memory: Arc<Memory>,
    /// The worker has ended, or is unusable.
    closed: Closed,
    desk: Mutex<Desk>,
    /// Messages are left in the inbox.
    left: AtomicBool,
    /// Number of polling threads.
    pollers: AtomicU32,
    /// The receiver thread sleeps, or is about to.
    napping: AtomicBool,
}

impl Answers {
    pub(super) fn new(memory: Arc<Memory>, closed: Closed) -> Answers {
        let reader = Reader::new(memory.clone(), Which::Answers, closed.clone());
        let desk = Desk { inbox: Inbox::new(reader), over: false };
        Answers {
            memory,
            closed,
            desk: Mutex::new(desk),
            left: AtomicBool::new(false),
            pollers: AtomicU32::new(0),
            napping: AtomicBool::new(false),
        }
    }

    fn words(&self) -> &PipeWords {
        self.memory.pipe_words(Which::Answers)
    }

    /// Whether there may be something to read.
    fn something(&self) -> bool {
        let words = self.words();
        words.written.0.load(Ordering::SeqCst) != words.read.0.load(Ordering::SeqCst) || self.left.load(Ordering::SeqCst)
    }

    /// Wakes all sleepers, which then find the connection closed.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.words().reader.ring();
        self.memory.pipe_words(Which::Bodies).writer.ring();
        self.memory.ring_words().producers.ring();
    }

    /// Reads messages while there are any, and until `mine` is answered.
    fn read_some(&self, common: &Common, desk: &mut Desk, mine: Option<&Waiter>) {
        while !desk.over && !mine.is_some_and(Waiter::is_here) {
            let more = match desk.inbox.is_empty() {
                true => desk.inbox.source().waiting().map(|n| n > 0),
                false => Ok(true),
            };
            let why = match more.and_then(|more| if more { common.receive(&mut desk.inbox).map(Some) } else { Ok(None) }) {
                Ok(Some(true)) => continue,
                Ok(None) if self.closed.load(Ordering::Acquire) && desk.inbox.source().waiting().is_ok_and(|n| n == 0) => None,
                Ok(None) => break,
                Ok(Some(false)) => None,
                Err(e) => Some(e.to_string()),
            };
            desk.over = true;
            match why {
                Some(why) => common.lose(&why),
                None => common.hung_up(ENDED),
            }
            self.close();
            // The program may free the memory as soon as it knows that the link is lost.
            common.bulk.wait_unwritten();
            common.replies.fail_all();
        }
        self.left.store(!desk.over && !desk.inbox.is_empty(), Ordering::SeqCst);
    }
}

impl CallTransport for Answers {
    /// The worker takes the calls itself: watches whether it exists and sends heartbeats.
    fn send_all(&self, common: &Common) {
        let limit = common.limits.silence;
        let (mut seen, mut silence) = (0, Silence::new(limit));
        loop {
            if common.conn.wait_gone(silence.interval()) {
                common.hung_up(ENDED);
                break;
            }
            let written = self.words().written.0.load(Ordering::SeqCst);
            // Unread messages show that it is this process that is late.
            if written != seen || self.something() {
                seen = written;
                silence.broken();
            } else if silence.goes_on() {
                common.lose(&silent(limit).to_string());
                break;
            }
        }
        self.close();
    }

    fn received(&self) -> u64 {
        self.words().written.0.load(Ordering::Relaxed)
    }

    fn poll(&self, common: &Common, mine: &Waiter) {
        self.pollers.fetch_add(1, Ordering::SeqCst);
        // While a thread polls, the worker need not wake any.
        self.words().reader.asleep.store(0, Ordering::SeqCst);
        let (mut spinning, mut goes_on) = (Spinning::begin(), true);
        while !mine.is_here() {
            if self.something() {
                match self.desk.try_lock() {
                    Ok(mut desk) => self.read_some(common, &mut desk, Some(mine)),
                    Err(TryLockError::Poisoned(desk)) => self.read_some(common, &mut desk.into_inner(), Some(mine)),
                    Err(TryLockError::WouldBlock) => {}
                }
                spinning.found();
            }
            if !goes_on {
                break;
            }
            goes_on = spinning.goes_on(Pause::Yield, spin_time());
        }
        let last = self.pollers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.napping.load(Ordering::SeqCst) {
            self.words().reader.asleep.store(1, Ordering::SeqCst);
        }
        if self.something() {
            self.words().reader.ring();
        }
    }

    fn receive_all(&self, common: &Common) {
        let reader = &self.words().reader;
        let mut spin = Spin::new();
        loop {
            {
                let mut desk = lock(&self.desk);
                self.read_some(common, &mut desk, None);
                if desk.over {
                    return;
                }
            }
            // As over a connection (`Socket::receive_all`).
            let began = Instant::now();
            let polled = || self.pollers.load(Ordering::SeqCst) != 0;
            if spin.until(|| self.something() || polled()) && !polled() {
                continue;
            }
            let bell = reader.bell.load(Ordering::SeqCst);
            self.napping.store(true, Ordering::SeqCst);
            let mut alone = self.pollers.load(Ordering::SeqCst) == 0;
            reader.asleep.store(u32::from(alone), Ordering::SeqCst);
            if !alone && self.pollers.load(Ordering::SeqCst) == 0 {
                // The last polling thread has stopped meanwhile: it may have marked this thread as asleep before this
                // thread undid that.
                alone = true;
                reader.asleep.store(1, Ordering::SeqCst);
            }
            let idle = !self.something() && !self.closed.load(Ordering::SeqCst);
            if idle || !alone {
                crate::futex::wait(&reader.bell, bell, NAP);
            }
            self.napping.store(false, Ordering::SeqCst);
            reader.asleep.store(0, Ordering::SeqCst);
            spin.learn(began.elapsed());
        }
    }
}

#[cfg(test)]
mod model;

/// Creates the memory of a connection and sends the worker its descriptor, and that of the job's pinned memory. Waits until the
/// worker has mapped them.
pub(super) fn share(conn: &Conn, pinned: Option<BorrowedFd<'_>>, limit: Duration) -> io::Result<Arc<Memory>> {
    let (memory, fd) = Memory::shared()?;
    conn.send_descriptors(fd.as_fd(), pinned)?;
    greet::read_answer(conn, Instant::now() + limit).map_err(|why| io::Error::other(why.to_string()))?;
    Ok(Arc::new(memory))
}
