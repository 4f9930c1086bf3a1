//! The process that greets clients for a daemon ([`crate::greeter`]), and another one when it has ended.
//!
//! Of what it says, the daemon verifies all but whether a client has shown a certificate of an authority. Each connection that it greets has a
//! socket pair of its own, on which it may ask for one signature and say once what it has heard; whoever says anything else is taken for an attacker
//! and is ended. The daemon keeps the connection, so nothing that the process does can have another one served in its place.

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
use rustls::SignatureScheme;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Time limit for the process to end once its channel is closed.
const ENDING: Duration = Duration::from_secs(1);
/// Interval between two checks whether a client that waits has been dropped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

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
}

impl Pace {
    pub(super) const USUAL: Pace = Pace {
        start: Duration::from_secs(30),
        patience: Duration::from_secs(2),
        slack: Duration::from_secs(5),
        dropped: Duration::from_secs(1),
        pause: (Duration::from_millis(20), Duration::from_secs(5)),
        long: Duration::from_secs(10),
    };

    /// For tests of a process that does not answer.
    #[cfg(test)]
    pub(super) const IMPATIENT: Pace = Pace { slack: Duration::ZERO, dropped: Duration::from_millis(100), ..Pace::USUAL };
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
    /// Log of processes that have ended, and of what they write, rate-limited because a client that has found an error can cause them.
    log: Arc<RateLimitedLog>,
}

#[derive(Debug, Default)]
struct Desk {
    /// The process, while there is one.
    current: Option<Arc<Greeter>>,
    is_ending: bool,
}

/// A process that greets.
#[derive(Debug)]
struct Greeter {
    channel: OwnedFd,
    pid: u32,
    /// `None` once it is waited for.
    child: Mutex<Option<Child>>,
    /// Why the daemon has ended it, if it has.
    distrusted: Mutex<Option<&'static str>>,
}

impl Greeter {
    /// Ends it, for this reason.
    fn kill(&self, why: Option<&'static str>) {
        let mut distrusted = lock(&self.distrusted);
        *distrusted = distrusted.or(why);
        drop(distrusted);
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
        let log = RateLimitedLog::new(log, "lines about the process that greets clients");
        let shared = Arc::new(Shared { with, clients, tls, pace, desk: Mutex::default(), changed: Condvar::new(), log });
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
        desk.current.iter().for_each(|greeter| greeter.kill(None));
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
        let (output, input) = io::pipe()?;
        let mut command = self.with.command.prepare(None);
        // What it would need of the environment lies in files, which it cannot open.
        command.env_clear().stdin(theirs).stdout(input.try_clone()?).stderr(input);
        let child = command.spawn()?;
        // The command holds our copies of the process's ends: while they are open, its end cannot be detected.
        drop(command);
        let pid = child.id();
        let greeter = Greeter { channel, pid, child: Mutex::new(Some(child)), distrusted: Mutex::default() };
        let (log, clients) = (self.log.clone(), self.clients);
        let line = move |line: &str| log.say(&LogLine::warning(format!("process {pid}, which greets {clients}: {line}")));
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
    fn keep(&self, first: Greeter) {
        let (mut started, mut pause) = (Ok(first), self.pace.pause.0);
        loop {
            let began = Instant::now();
            match started {
                Ok(greeter) => {
                    let Some(why) = self.watch(greeter) else { return };
                    self.log.say(&LogLine::warning(format!("{why}; another one is started")));
                }
                Err(why) => {
                    self.log.say(&LogLine::warning(format!("cannot start a process that greets {}: {why}", self.clients)))
                }
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

    /// Has a process greet, until it ends; returns how, unless the daemon ends.
    fn watch(&self, greeter: Greeter) -> Option<String> {
        let greeter = Arc::new(greeter);
        let mut desk = lock(&self.desk);
        if desk.is_ending {
            // Dropped, it ends.
            return None;
        }
        desk.current = Some(greeter.clone());
        drop(desk);
        self.changed.notify_all();
        // Nothing is said here any more.
        match FromGreeter::receive(&greeter.channel) {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => greeter.kill(Some("has said something unexpected")),
        }
        lock(&self.desk).current = None;
        let child = lock(&greeter.child).take();
        let status = child.map(|mut child| reap(&mut child, || ENDING));
        if lock(&self.desk).is_ending {
            return None;
        }
        let how = match (*lock(&greeter.distrusted), status) {
            (Some(why), _) => format!("{why} and was ended"),
            (None, Some(Ok(status))) => format!("has ended ({status})"),
            (None, _) => "has ended".to_owned(),
        };
        Some(format!("process {}, which greets {}, {how}", greeter.pid, self.clients))
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
            let Some(greeter) = desk.current.clone() else {
                if desk.is_ending {
                    return Ok(None);
                }
                desk = wait_timeout(&self.changed, desk, POLL_INTERVAL).0;
                drop(desk);
                continue;
            };
            drop(desk);
            match message.send_now(&greeter.channel, &[conn.socket()?, theirs.as_fd()]) {
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
        greeter: &Greeter,
        answers: &OwnedFd,
        conn: &Conn,
        limit: Duration,
        offer: Offer<'_>,
        was_dropped: impl Fn() -> bool,
    ) -> Result<Heard, GreetError> {
        let until = Instant::now() + limit + self.pace.slack;
        let distrust = |why| {
            greeter.kill(Some(why));
            GreetError::GreeterFailed(why)
        };
        let mut to_sign = offer.tls;
        loop {
            match self.wait(answers, until, &was_dropped) {
                Waited::Ready => {}
                Waited::Dropped => return Err(GreetError::GreeterFailed("does not let go of a client that was dropped")),
                Waited::TooLong => return Err(distrust("does not answer")),
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
