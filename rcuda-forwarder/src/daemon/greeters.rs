//! The process that greets clients for a daemon ([`crate::greeter`]), and another one when it has ended.
//!
//! Of what it says, the daemon verifies all but whether a client has shown a certificate of an authority. Each connection that it greets has a
//! socket pair of its own, on which it may ask for one signature and say once what it has heard; whoever says anything else is taken for an attacker
//! and is ended. The daemon keeps the connection, so nothing that the process does can have another one served in its place.
//! A process that has greeted is replaced after some time, with what it remembers of clients.

use super::log::{Log, LogLine, RateLimitedLog};
use super::process::{pass_on, reap};
use super::worker_command::Command;
use crate::conn::Conn;
use crate::greet::{self, GreetError, Heard, Offer};
use crate::greeter::message::{FromGreeter, StartGreeter, Terms, ToGreeter};
use crate::handshake::{NotSigned, ServerTls};
use crate::packet;
use crate::records::{Records, Session};
use crate::sandbox::GreeterConfinement;
use crate::sync::lock;
use crate::threads;
use cuda_api::lock::wait_timeout;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};
use rustls::SignatureScheme;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Time limit for the process to end once its channel is closed.
const ENDING: Duration = Duration::from_secs(1);
/// Interval between two checks whether a client that waits has been dropped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of clients that one process is passed, if no other one can be started: with two descriptors for each it cannot have so many that
/// one gets the number of its channel ([`GreeterConfinement::enter`]).
const MOST: u32 = 2000;

/// How long is waited for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The process may take so long to begin.
    pub(super) start: Duration,
    /// A client waits so long for a process, while there is none or it has not taken those that came before.
    pub(super) patience: Duration,
    /// After the time limit of a greeting the process has so long to say that it is over.
    pub(super) slack: Duration,
    /// A client that was dropped is given up after this time, if the process does not say anything.
    pub(super) dropped: Duration,
    /// Pause before another process is started: at first, and at most.
    pub(super) pause: (Duration, Duration),
    /// A process that has lived so long has not ended at once.
    pub(super) long: Duration,
    /// Another process takes the place of one that was passed no client for so long, or was passed so many.
    pub(super) turn: (Duration, u32),
    /// One whose place was taken may take so long to finish its greetings.
    pub(super) finishing: Duration,
}

impl Pace {
    pub(super) const USUAL: Pace = Pace {
        start: Duration::from_secs(30),
        patience: Duration::from_secs(2),
        slack: Duration::from_secs(5),
        dropped: Duration::from_secs(1),
        pause: (Duration::from_millis(20), Duration::from_secs(5)),
        long: Duration::from_secs(10),
        turn: (Duration::from_secs(10), 1024),
        finishing: Duration::from_secs(15),
    };

    /// For tests of a process that does not answer.
    #[cfg(test)]
    pub(super) const IMPATIENT: Pace = Pace { slack: Duration::ZERO, dropped: Duration::from_millis(100), ..Pace::CONSTANT };

    /// For tests of one process.
    #[cfg(test)]
    pub(super) const CONSTANT: Pace = Pace { turn: (Duration::from_secs(3600), MOST), ..Pace::USUAL };
}

/// How the process is started.
#[derive(Debug, Clone)]
pub(super) struct StartWith {
    pub(super) command: Command,
    pub(super) confinement: GreeterConfinement,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Greeters {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    with: StartWith,
    /// Whom it greets, in words.
    clients: &'static str,
    /// How connections over TCP are encrypted, if there are any.
    tls: Option<Arc<ServerTls>>,
    pace: Pace,
    desk: Mutex<Desk>,
    changed: Condvar,
    /// Log of processes that have ended, rate-limited because a client that has found an error can cause it.
    log: Arc<RateLimitedLog>,
    /// Log of what they write. What is written there can suppress no line of the other.
    output: Arc<RateLimitedLog>,
}

#[derive(Debug, Default)]
struct Desk {
    /// The process, while there is one.
    current: Option<Arc<Greeter>>,
    /// Those whose place was taken, until they have ended.
    former: Vec<Arc<Greeter>>,
    is_ending: bool,
}

/// A process that greets.
#[derive(Debug)]
struct Greeter {
    channel: OwnedFd,
    pid: u32,
    /// `None` once it is waited for.
    child: Mutex<Option<Child>>,
    /// Readable when it has ended, whoever has its end of the channel. `None`: the kernel has no such descriptors.
    process: Option<OwnedFd>,
    /// The daemon has ended it and the log says why.
    is_distrusted: AtomicBool,
    work: Mutex<Work>,
    /// A byte when `work` has changed in a way that [`Shared::watch`] has to know.
    news: (PipeReader, PipeWriter),
}

/// What a process has been passed.
#[derive(Debug, Clone, Copy)]
struct Work {
    clients: u32,
    last: Instant,
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Ended,
    /// It says something, where nothing is said any more.
    Speaks,
    /// It has got work.
    Works,
    TimeOver,
}

impl Greeter {
    /// Counts a client that it was passed.
    fn count(&self, pace: &Pace) {
        let mut work = lock(&self.work);
        *work = Work { clients: work.clients + 1, last: Instant::now() };
        if work.clients == 1 || work.clients == pace.turn.1 {
            // There is room for both.
            let _ = (&self.news.1).write_all(&[0]);
        }
    }

    /// When another one is to take its place; `None`: it has greeted nobody.
    fn turn(&self, pace: &Pace) -> Option<Instant> {
        let work = *lock(&self.work);
        let idle = if work.clients >= pace.turn.1 { Duration::ZERO } else { pace.turn.0 };
        (work.clients > 0).then(|| work.last + idle)
    }

    /// Waits until it does something, or until then.
    fn wait(&self, until: Option<Instant>) -> io::Result<Event> {
        // Rounded up, as elsewhere.
        let left = |until: Instant| until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
        let limit = until.map_or(PollTimeout::NONE, |until| PollTimeout::try_from(left(until)).unwrap_or(PollTimeout::MAX));
        let channel = PollFd::new(self.channel.as_fd(), PollFlags::POLLIN);
        let mut fds = vec![channel, PollFd::new(self.news.0.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.process.as_ref().map(|process| PollFd::new(process.as_fd(), PollFlags::POLLIN)));
        if poll(&mut fds, limit)? == 0 {
            return Ok(Event::TimeOver);
        }
        let is_ready = |at: usize| fds.get(at).is_some_and(|fd: &PollFd<'_>| fd.any().unwrap_or(true));
        if is_ready(0) {
            return Ok(if matches!(FromGreeter::receive(&self.channel), Ok(None)) { Event::Ended } else { Event::Speaks });
        }
        if is_ready(2) {
            return Ok(Event::Ended);
        }
        (&self.news.0).read_exact(&mut [0])?;
        Ok(Event::Works)
    }

    /// Ends it. Whoever else may have its end of the channel is passed nothing any more.
    fn kill(&self) {
        // The process may have closed it.
        let _ = shutdown(self.channel.as_raw_fd(), Shutdown::Both);
        if let Some(child) = &mut *lock(&self.child) {
            // It may have ended already.
            let _ = child.kill();
        }
    }
}

impl Drop for Greeter {
    fn drop(&mut self) {
        if let Some(mut child) = lock(&self.child).take() {
            // It has not begun.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a greeting waits for.
enum Waited {
    Ready,
    TooLong,
    Dropped,
}

impl Greeters {
    /// Starts the process, for these clients, whose connections are encrypted so, if at all. An error if it does not begin.
    pub(super) fn start(
        with: StartWith,
        (clients, tls): (&'static str, Option<Arc<ServerTls>>),
        pace: Pace,
        log: Log,
    ) -> io::Result<Greeters> {
        let output = RateLimitedLog::new(log, "lines of processes that greet clients");
        let log = RateLimitedLog::new(log, "lines about processes that greet clients");
        let shared = Arc::new(Shared { with, clients, tls, pace, desk: Mutex::default(), changed: Condvar::new(), log, output });
        let first = shared.start()?;
        let theirs = shared.clone();
        threads::spawn("greeter", move || theirs.keep(first))?;
        Ok(Greeters { shared })
    }

    /// What a client says in its greeting, which the process carries out. `nonce` is that of no other greeting.
    pub(super) fn hear(
        &self,
        conn: &Conn,
        limit: Duration,
        offer: Offer<'_>,
        nonce: &[u8; 32],
        was_dropped: impl Fn() -> bool,
    ) -> Result<Heard, GreetError> {
        let terms = Terms { offer: offer.bits(), nonce: *nonce, limit_ms: limit.as_millis() as u64 };
        let Some((greeter, answers)) = self.shared.pass_on(conn, terms, &was_dropped)? else {
            // It has heard nothing so far, and would not understand the answer.
            let _ = greet::introduce(conn, offer);
            return Err(GreetError::Busy);
        };
        self.shared.converse(&greeter, &answers, conn, limit, offer, was_dropped).inspect_err(|why| {
            if matches!(why, GreetError::GreeterFailed(_)) {
                // What the client has heard, and by which keys, is not known.
                conn.cut();
            }
        })
    }

    /// Ends the process. No client is greeted any more.
    pub(super) fn end(&self) {
        let mut desk = lock(&self.shared.desk);
        desk.is_ending = true;
        desk.current.iter().chain(&desk.former).for_each(|greeter| greeter.kill());
        drop(desk);
        self.shared.changed.notify_all();
    }

    /// The process now.
    #[cfg(test)]
    pub(super) fn pid(&self) -> Option<u32> {
        lock(&self.shared.desk).current.as_ref().map(|greeter| greeter.pid)
    }
}

impl Drop for Greeters {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Starts a process, and waits until it has begun.
    fn start(&self) -> io::Result<Greeter> {
        let (channel, theirs) = packet::pair()?;
        let ((output, input), news) = (io::pipe()?, io::pipe()?);
        let mut command = self.with.command.prepare(None);
        // What it would need of the environment lies in files, which it cannot open.
        command.env_clear().stdin(theirs).stdout(input.try_clone()?).stderr(input);
        let child = command.spawn()?;
        // The command holds our copies of the process's ends: while they are open, its end cannot be detected.
        drop(command);
        let pid = child.id();
        let greeter = Greeter {
            channel,
            pid,
            process: process_descriptor(&child),
            child: Mutex::new(Some(child)),
            is_distrusted: AtomicBool::new(false),
            work: Mutex::new(Work { clients: 0, last: Instant::now() }),
            news,
        };
        let log = self.output.clone();
        let line = move |line: &str| log.say(&LogLine::greeter_output(pid, line));
        threads::spawn("output", move || pass_on(output, &line))?;
        let identity = self.tls.as_ref().map(|tls| tls.identity.clone());
        let authorities = identity.as_ref().and_then(|identity| identity.authorities.as_deref());
        for authority in authorities.unwrap_or_default() {
            ToGreeter::Authority(authority.clone()).send(&greeter.channel)?;
        }
        let start = StartGreeter {
            certificate: identity.as_ref().map(|identity| identity.certificate.clone()),
            certified_only: authorities.is_some(),
            confinement: self.with.confinement,
        };
        ToGreeter::Start(start).send(&greeter.channel)?;
        packet::wait(&greeter.channel, Instant::now() + self.pace.start)?;
        match FromGreeter::receive(&greeter.channel)? {
            Some(FromGreeter::Ready) => Ok(greeter),
            Some(FromGreeter::Unusable(why)) => Err(io::Error::other(why)),
            Some(_) => Err(packet::invalid("the process that greets clients has said something unexpected")),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the process that greets clients has ended at once")),
        }
    }

    /// Sees to it that there is a process, until the daemon ends.
    fn keep(self: &Arc<Self>, first: Greeter) {
        let (mut started, mut pause) = (Ok(first), self.pace.pause.0);
        loop {
            let began = Instant::now();
            match started {
                Ok(greeter) => {
                    let Some(last) = self.serve_by(greeter) else { return };
                    self.say_ended(&last, "; another one is started");
                }
                Err(why) => self.say_cannot_start(&why),
            }
            pause = if began.elapsed() > self.pace.long { self.pace.pause.0 } else { (2 * pause).min(self.pace.pause.1) };
            let (until, mut desk) = (Instant::now() + pause, lock(&self.desk));
            while !desk.is_ending && Instant::now() < until {
                desk = wait_timeout(&self.changed, desk, until.saturating_duration_since(Instant::now())).0;
            }
            if desk.is_ending {
                return;
            }
            drop(desk);
            started = self.start();
        }
    }

    fn say_cannot_start(&self, why: &io::Error) {
        self.log.say(&LogLine::warning(format!("cannot start a process that greets {}: {why}", self.clients)));
    }

    /// Has a process greet, and others after it, each of which takes the place of the one before; returns the first that ends by itself, unless the
    /// daemon ends.
    fn serve_by(self: &Arc<Self>, first: Greeter) -> Option<Arc<Greeter>> {
        let mut greeter = Arc::new(first);
        if !self.take_place(&greeter) {
            return None;
        }
        while self.watch(&greeter, |_| greeter.turn(&self.pace)) == Event::TimeOver {
            match self.start().map(Arc::new) {
                Ok(next) => {
                    if !self.take_place(&next) {
                        return None;
                    }
                    let former = std::mem::replace(&mut greeter, next);
                    let (this, theirs) = (self.clone(), former.clone());
                    if threads::spawn("greeter", move || this.see_off(&theirs)).is_err() {
                        self.see_off(&former);
                    }
                }
                Err(why) => {
                    self.say_cannot_start(&why);
                    // It goes on meanwhile.
                    let again = Instant::now() + self.pace.pause.1;
                    if self.watch(&greeter, |_| Some(again)) == Event::Ended {
                        break;
                    }
                }
            }
        }
        (!lock(&self.desk).is_ending).then_some(greeter)
    }

    /// Has a process greet those who come from now on; false if the daemon ends, and then the process does.
    fn take_place(&self, greeter: &Arc<Greeter>) -> bool {
        let mut desk = lock(&self.desk);
        if !desk.is_ending {
            let former = desk.current.replace(greeter.clone());
            desk.former.extend(former);
        }
        let has_it = !desk.is_ending;
        drop(desk);
        self.changed.notify_all();
        has_it
    }

    /// Has a process finish its greetings, and waits until it has ended.
    fn see_off(&self, former: &Arc<Greeter>) {
        let until = Instant::now() + self.pace.finishing;
        // It comes after all clients that were passed on. If there is no room for it, the process has not taken them in all this time.
        let told = ToGreeter::Finish.send_now(&former.channel, &[]);
        let takes_nothing = told.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
        if takes_nothing || self.watch(former, |_| Some(until)) == Event::TimeOver {
            self.distrust(former, "does not end");
        }
        self.say_ended(former, "");
        lock(&self.desk).former.retain(|one| !Arc::ptr_eq(one, former));
    }

    /// Waits until a process has ended, or until it is time.
    fn watch(&self, greeter: &Arc<Greeter>, until: impl Fn(&Greeter) -> Option<Instant>) -> Event {
        loop {
            let until = until(greeter);
            match greeter.wait(until) {
                Ok(Event::Works) => {}
                Ok(Event::TimeOver) if until.is_some_and(|until| Instant::now() >= until) => return Event::TimeOver,
                Ok(Event::TimeOver) => {}
                Ok(Event::Ended) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(Event::Speaks) | Err(_) => {
                    self.distrust(greeter, "has said something unexpected");
                    break;
                }
            }
        }
        // The process or its channel: the other one ends, too.
        let _ = shutdown(greeter.channel.as_raw_fd(), Shutdown::Both);
        self.vacate(greeter);
        Event::Ended
    }

    /// Passes no client to this process any more; returns whether others were.
    fn vacate(&self, greeter: &Arc<Greeter>) -> bool {
        let mut desk = lock(&self.desk);
        let is_current = desk.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, greeter));
        if is_current {
            desk.current = None;
        }
        is_current
    }

    /// Ends a process that does what it should not, and says so at once: nothing that it does can delay that.
    fn distrust(&self, greeter: &Arc<Greeter>, why: &'static str) {
        let is_first = !greeter.is_distrusted.swap(true, Ordering::SeqCst);
        let was_current = self.vacate(greeter);
        greeter.kill();
        let then = if was_current { "; another one is started" } else { "" };
        if is_first {
            let line = format!("process {}, which greets {}, {why} and was ended{then}", greeter.pid, self.clients);
            self.log.say(&LogLine::warning(line));
        }
    }

    /// Waits for a process that ends, and says how, unless it was to.
    fn say_ended(&self, greeter: &Greeter, then: &str) {
        let child = lock(&greeter.child).take();
        let status = child.map(|mut child| reap(&mut child, || ENDING));
        let is_to = then.is_empty() && matches!(&status, Some(Ok(status)) if status.success());
        if is_to || greeter.is_distrusted.load(Ordering::SeqCst) || lock(&self.desk).is_ending {
            return;
        }
        let how = status.and_then(Result::ok).map(|status| format!(" ({status})")).unwrap_or_default();
        let line = format!("process {}, which greets {}, has ended{how}{then}", greeter.pid, self.clients);
        self.log.say(&LogLine::warning(line));
    }

    /// Passes a client on to the process; returns the end of the socket pair for what is said about it. `None`: there is no process, or it has
    /// not taken those that came before.
    fn pass_on(
        &self,
        conn: &Conn,
        terms: Terms,
        was_dropped: impl Fn() -> bool,
    ) -> Result<Option<(Arc<Greeter>, OwnedFd)>, GreetError> {
        let until = Instant::now() + self.pace.patience;
        let (ours, theirs) = packet::pair()?;
        let message = ToGreeter::Greet(terms);
        loop {
            if was_dropped() || Instant::now() > until {
                return Ok(None);
            }
            let mut desk = lock(&self.desk);
            let Some(greeter) = desk.current.clone().filter(|greeter| lock(&greeter.work).clients < MOST) else {
                if desk.is_ending {
                    return Ok(None);
                }
                desk = wait_timeout(&self.changed, desk, POLL_INTERVAL).0;
                drop(desk);
                continue;
            };
            // It does not wait. Meanwhile no other process takes this one's place, which would then have been told to finish before.
            let sent = message.send_now(&greeter.channel, &[conn.socket()?, theirs.as_fd()]);
            if sent.is_ok() {
                greeter.count(&self.pace);
            }
            drop(desk);
            match sent {
                Ok(()) => return Ok(Some((greeter, ours))),
                // It has many to take.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    // Whether there is room, and whether it is still there, the next turn finds out.
                    let _ = packet::wait_for_room(&greeter.channel, Instant::now() + POLL_INTERVAL);
                }
                // It has just ended.
                Err(_) => std::thread::sleep(POLL_INTERVAL / 10),
            }
        }
    }

    /// Answers what the process asks for about a client, and receives what it has heard.
    fn converse(
        &self,
        greeter: &Arc<Greeter>,
        answers: &OwnedFd,
        conn: &Conn,
        limit: Duration,
        offer: Offer<'_>,
        was_dropped: impl Fn() -> bool,
    ) -> Result<Heard, GreetError> {
        let (mut until, mut is_cut) = (Instant::now() + limit + self.pace.slack, false);
        let distrust = |why| {
            self.distrust(greeter, why);
            GreetError::GreeterFailed(why)
        };
        let mut to_sign = offer.tls;
        loop {
            match self.wait(answers, until, &was_dropped) {
                Waited::Ready => {}
                Waited::Dropped => return Err(GreetError::GreeterFailed("does not let go of a client that was dropped")),
                Waited::TooLong if is_cut => return Err(distrust("does not answer")),
                Waited::TooLong => {
                    // It may only wait for this client, without whom it goes on.
                    conn.cut();
                    (until, is_cut) = (Instant::now() + self.pace.dropped, true);
                    continue;
                }
            }
            match FromGreeter::receive(answers) {
                Ok(Some(FromGreeter::Sign(scheme, transcript))) => {
                    // One handshake has one signature.
                    let Some(tls) = to_sign.take() else { return Err(distrust("has asked for a signature too many")) };
                    let signature = tls.signs.sign(SignatureScheme::from(scheme), &transcript);
                    // If it has ended, that is read next.
                    let _ = ToGreeter::Signed(signature.map_err(|NotSigned(why)| why)).send_now(answers, &[]);
                }
                Ok(Some(FromGreeter::Heard(heard, session))) => {
                    let is_fresh = session.as_ref().is_none_or(Session::is_fresh);
                    if heard.is_encrypted() != session.is_some() || !is_fresh {
                        return Err(distrust("has said something impossible"));
                    }
                    session.map(Records::new).transpose()?.into_iter().for_each(|records| conn.protect(records));
                    return Ok(heard);
                }
                Ok(Some(FromGreeter::NotHeard(why, session))) => {
                    if !session.as_ref().is_none_or(Session::is_fresh) || session.is_some() && offer.tls.is_none() {
                        return Err(distrust("has said something impossible"));
                    }
                    session.map(Records::new).transpose()?.into_iter().for_each(|records| conn.protect(records));
                    return Err(why.error());
                }
                Ok(Some(_)) | Err(_) => return Err(distrust("has said something unexpected")),
                Ok(None) => return Err(GreetError::GreeterFailed("has ended")),
            }
        }
    }

    fn wait(&self, answers: &OwnedFd, until: Instant, was_dropped: impl Fn() -> bool) -> Waited {
        let mut given_up = None;
        loop {
            let now = Instant::now();
            match packet::wait(answers, until.min(now + POLL_INTERVAL)) {
                // An error is read, too.
                Ok(()) => return Waited::Ready,
                Err(e) if e.kind() != io::ErrorKind::TimedOut => return Waited::Ready,
                Err(_) => {}
            }
            if given_up.is_none() && was_dropped() {
                given_up = Some(now + self.pace.dropped);
            }
            if given_up.is_some_and(|given_up| now > given_up) {
                return Waited::Dropped;
            }
            if now >= until {
                return Waited::TooLong;
            }
        }
    }
}

/// A descriptor of a process that nobody has waited for.
fn process_descriptor(child: &Child) -> Option<OwnedFd> {
    // SAFETY: plain numbers; the descriptor that it returns has no other owner.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, child.id(), 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
    }
}
