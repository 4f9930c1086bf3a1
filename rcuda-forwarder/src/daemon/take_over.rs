//! How a daemon hands its sockets to another one of its user that takes over (`mrcuda serve --take-over`), and stays until the jobs that it
//! serves have left. Data connections of these jobs arrive at the other one, which passes them on by the route that clients send first.

use super::admission::{AT_TCP, Door};
use super::earlier::{ANSWER, ASK, CONNECTION, GO, GONE, Jobs, REFUSED, SOCKETS, name, of_path};
use super::listeners::{Kind, Listeners};
use super::log::LogLine;
use super::packets::{self, Packets};
use super::service_manager::{METRICS, WITH_FILE};
use super::socket::is_of_same_user;
use super::{Entrance, State, welcome_in_thread};
use crate::channel::OPENING;
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::threads;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Interval between two looks at what the jobs do.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the other daemon may take until it is ready: it opens its GPUs meanwhile.
const READY: Duration = OPENING.saturating_mul(2);

/// Answers a process that wants to take over, in a thread of its own. This daemon goes on as before if the other one ends before it is ready.
pub(super) fn answer(state: &Arc<State>, listeners: &Listeners, fd: OwnedFd) {
    match is_of_same_user(&fd) {
        Ok(true) => {}
        Ok(false) => {
            state.refusals.say(&LogLine::warning("a process of another user wants to take over"));
            return;
        }
        Err(_) => return,
    }
    let packets = Packets::over(fd);
    // Read before anything is refused: a connection with something unread is reset, and the reason lost.
    let asked = packets.receive(ANSWER);
    if state.retirement.is_asked() || state.is_ending() {
        // It may have gone.
        let _ = packets.send(&format!("{REFUSED}it is ending, or another process takes over"), &[]);
        return;
    }
    if let Err(why) = asked.and_then(|(asked, _)| hand_over(state, listeners, &packets, &asked)) {
        // Without a word the connection ends only with this daemon: the other one then goes on alone.
        if !state.stopping.load(Ordering::SeqCst) {
            // It may have gone.
            let _ = packets.send_within(&format!("{REFUSED}{why}"), ANSWER);
        }
        state.retirement.ask_again();
        state.refusals.say(&LogLine::warning(format!("a process that wanted to take over has not: {why}")));
        return;
    }
    stay(state, &packets);
}

/// Passes the sockets, and returns when nothing is accepted here any more; the other daemon has not been told of an error.
fn hand_over(state: &State, listeners: &Listeners, packets: &Packets, asked: &str) -> io::Result<()> {
    if asked != ASK {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the two are builds that ask for sockets in different ways"));
    }
    // If this daemon ends from here on, the other one goes on with the socket, and needs its file.
    let file = listeners.keep_file();
    let passed = pass_sockets(state, listeners, packets, file.is_some());
    if passed.is_err() && !state.stopping.load(Ordering::SeqCst) {
        file.into_iter().for_each(|file| listeners.remove_at_end(file));
    }
    passed?;
    // From here on there is no way back: the other one may accept already.
    state.retirement.begin();
    listeners.close(&[Kind::Tcp, Kind::Unix, Kind::Metrics, Kind::TakeOver]);
    state.pool.end_warm();
    let n = state.jobs().all();
    (state.log)(&LogLine::info(format!(
        "another process has taken over the sockets; this one serves no new jobs, and ends when those that it has ({n}) have left"
    )));
    // If it has gone meanwhile, the sockets have ended with it.
    let _ = packets.send_within(GONE, ANSWER);
    Ok(())
}

/// Passes the sockets, and returns when the other daemon is ready to accept.
fn pass_sockets(state: &State, listeners: &Listeners, packets: &Packets, with_file: bool) -> io::Result<()> {
    let sockets: Vec<(&str, Arc<OwnedFd>)> = Kind::GIVEN
        .into_iter()
        .filter_map(|kind| {
            let name = match kind {
                Kind::Metrics => METRICS,
                Kind::Unix if with_file => WITH_FILE,
                _ => "clients",
            };
            Some((name, listeners.socket(kind)?))
        })
        .collect();
    let names: Vec<&str> = sockets.iter().map(|(name, _)| *name).collect();
    let fds: Vec<_> = sockets.iter().map(|(_, fd)| fd.as_fd()).collect();
    packets.send(&format!("{SOCKETS}{} {}", names.join(","), std::process::id()), &fds)?;
    let mut told = Told::default();
    let until = Instant::now() + READY;
    loop {
        match told.tell(state, packets) {
            // It is told the next time.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            r => r?,
        }
        let said = packets.receive(POLL_INTERVAL);
        if state.stopping.load(Ordering::SeqCst) {
            return Err(io::Error::other("this one is ending"));
        }
        match said {
            Ok((text, _)) if text == GO => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::TimedOut && Instant::now() < until => {}
            Err(e) => return Err(e),
        }
    }
}

/// What the other daemon has been told of the jobs.
#[derive(Default)]
struct Told(Option<Jobs>);

impl Told {
    fn tell(&mut self, state: &State, packets: &Packets) -> io::Result<()> {
        let jobs = state.jobs();
        if self.0.as_ref() != Some(&jobs) {
            packets.send(&jobs.words(), &[])?;
            self.0 = Some(jobs);
        }
        Ok(())
    }
}

/// Greets the clients that the other daemon passes on, until no job is left here.
fn stay(state: &Arc<State>, packets: &Packets) {
    // It has let them in by its own rules already; here they are counted once more.
    let door = Door::new(AT_TCP);
    let (mut told, mut is_connected) = (Told::default(), true);
    loop {
        // If it has no room, it is told the next time.
        let _ = told.tell(state, packets);
        if state.jobs().all() == 0 && state.earlier.as_ref().is_none_or(|earlier| earlier.has_ended()) {
            (state.log)(&LogLine::info("all jobs have left"));
            return state.retirement.end();
        }
        if !is_connected {
            std::thread::sleep(POLL_INTERVAL);
            continue;
        }
        match packets.receive(POLL_INTERVAL) {
            Ok((text, fds)) if text == CONNECTION => {
                for fd in fds {
                    let conn = Arc::new(Conn::new(fd));
                    let by = if conn.is_tcp() { Entrance::PassedTcp } else { Entrance::PassedUnix };
                    welcome_in_thread(state, &door, conn, by);
                }
            }
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {}
            // The jobs stay; only new data connections of theirs find nobody.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => is_connected = false,
            // For example when this process has no room for another descriptor. That client tries again.
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

impl State {
    /// Waits, in threads of their own, for a daemon that takes over at one of these sockets.
    pub(super) fn await_take_over(self: &Arc<Self>, listeners: &Arc<Listeners>) -> io::Result<()> {
        let tcp = listeners.socket(Kind::Tcp).map(|fd| TcpListener::from(fd.try_clone()?).local_addr()).transpose()?;
        let unix = listeners.socket(Kind::Unix).map(|fd| UnixListener::from(fd.try_clone()?).local_addr()).transpose()?;
        let unix = unix.as_ref().and_then(|at| at.as_pathname()).map(of_path);
        for at in tcp.map(|at| at.to_string()).into_iter().chain(unix) {
            let (state, theirs) = (self.clone(), Arc::downgrade(listeners));
            let each = move |fd| {
                let Some(listeners) = theirs.upgrade() else { return };
                let theirs = state.clone();
                // Without a thread the connection is closed: it asks again.
                let _ = threads::spawn("take-over", move || answer(&theirs, &listeners, fd));
            };
            listeners.add(Kind::TakeOver, packets::listen(&name(&at))?, Box::new(each))?;
        }
        listeners.open(&self.refusals)
    }

    /// The jobs that are served here and those that wait for their turn, and those of the daemon before this one.
    fn jobs(&self) -> Jobs {
        let earlier = self.earlier.as_ref().map(|earlier| earlier.jobs()).unwrap_or_default();
        let on = |gpu: u32| self.pool.clients_on(gpu) + self.lines.waiting(gpu) + earlier.on(gpu);
        Jobs { by_gpu: (0..self.pool.gpus()).map(on).collect(), in_memory: on(Endpoint::MEMORY) }
    }
}
