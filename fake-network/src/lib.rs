//! A network in memory whose faults follow from a seed: what a test sends over it arrives as badly as a real network and a
//! real kernel may make it arrive.
//!
//! A [`Network`] makes connections. Each has two [`End`]s, whose operations behave like system calls on a connected stream
//! socket: they transfer fewer bytes than they were given, are interrupted, find nothing though there is something, and block
//! when there is no room. Bytes arrive some time after they were sent, in order on a connection but in no order between
//! connections. A connection can break at any byte: it is cut, so that what is under way is lost and both ends get an error, or
//! truncated, so that the receiver finds the end of the stream there.
//!
//! The seed decides which faults a connection has and in which sequence they come. Threads that use a connection at the same
//! time share that sequence, so a run with several threads repeats only nearly: a failure that a seed shows is found again by
//! running it a few times.

mod pipe;
mod random;
mod watch;

pub use random::Random;
pub use watch::to_its_end;

use pipe::{Pipe, Way};
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many seeds for a test: others in each run of `cargo xtask test`, which sets `MRCUDA_TEST_SEED`, and the first ones without it.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let run = std::env::var("MRCUDA_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0u64);
    let first = (run % (1 << 32)) * count;
    first..first + count
}

/// How a connection breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// What is under way in both directions is lost, and both ends get errors.
    Cut,
    /// The receiver finds the end of the stream there; the rest is lost, and the sender gets an error.
    Truncate,
}

/// What may happen on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Operations transfer fewer bytes than they could.
    pub splits: bool,
    /// Operations are interrupted by signals.
    pub interrupts: bool,
    /// Operations that may not wait find nothing, though there is something.
    pub again: bool,
    /// Some bytes arrive up to so much later, and those behind them.
    pub delay: Duration,
    /// Bytes that fit between the ends, in each direction.
    pub room: usize,
    /// Where the connection breaks: which end has sent how many bytes then, and how.
    pub breaks: Option<(usize, u64, Break)>,
}

impl Faults {
    /// A connection without faults.
    pub const NONE: Faults =
        Faults { splits: false, interrupts: false, again: false, delay: Duration::ZERO, room: 64 << 10, breaks: None };

    /// The faults of a seed, except that nothing breaks.
    pub fn of(random: &mut Random) -> Faults {
        Faults {
            splits: random.below(4) != 0,
            interrupts: random.below(2) == 0,
            again: random.below(2) == 0,
            delay: Duration::from_micros([0, 0, 100, 500][random.below(4) as usize]),
            room: match random.below(16) {
                0 => 1 + random.below(16) as usize,
                1..5 => 64 + random.below(1000) as usize,
                5..9 => 4 << 10,
                _ => 64 << 10,
            },
            breaks: None,
        }
    }

    /// The same, and the connection breaks when an end has sent fewer than `bytes` bytes.
    pub fn breaking(self, random: &mut Random, bytes: u64) -> Faults {
        let how = if random.below(2) == 0 { Break::Cut } else { Break::Truncate };
        Faults { breaks: Some((random.below(2) as usize, random.below(bytes), how)), ..self }
    }
}

/// Makes connections whose faults follow from one seed.
#[derive(Debug)]
pub struct Network {
    random: Random,
}

impl Network {
    /// A network of this seed.
    pub fn new(seed: u64) -> Network {
        Network { random: Random::new(seed) }
    }

    /// The random numbers of this network, for what else a test decides.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// A connection with faults that do not break it.
    pub fn connect(&mut self) -> (End, End) {
        let faults = Faults::of(&mut self.random);
        self.connect_with(faults)
    }

    /// A connection that breaks before an end, which the seed chooses, has sent `bytes` bytes.
    pub fn connect_breaking(&mut self, bytes: u64) -> (End, End) {
        let faults = Faults::of(&mut self.random).breaking(&mut self.random, bytes);
        self.connect_with(faults)
    }

    /// A connection with these faults.
    pub fn connect_with(&mut self, faults: Faults) -> (End, End) {
        let pipe = || Pipe::new(faults.room);
        let state = State { random: self.random.split(), ways: [pipe(), pipe()], is_cut: false };
        let line = Arc::new(Line { faults, state: Mutex::new(state), changed: Condvar::new() });
        (End::new(line.clone(), 0), End::new(line, 1))
    }
}

/// Both directions of a connection. `ways[n]` has what end `n` sends.
#[derive(Debug)]
struct State {
    random: Random,
    ways: [Pipe; 2],
    /// The connection was cut.
    is_cut: bool,
}

#[derive(Debug)]
struct Line {
    faults: Faults,
    state: Mutex<State>,
    changed: Condvar,
}

/// Events of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events {
    /// A receive would not wait: there are bytes, the end of the stream, or an error.
    pub readable: bool,
    /// A send would not wait.
    pub writable: bool,
    /// The peer sends nothing more.
    pub peer_closed: bool,
    /// The connection was cut, or is closed in both directions.
    pub hung_up: bool,
}

/// One end of a connection. Both directions are shut down when it is dropped.
pub struct End {
    line: Arc<Line>,
    /// Which end it is.
    number: usize,
    silence: Mutex<Option<Duration>>,
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End").field("number", &self.number).field("faults", &self.line.faults).finish_non_exhaustive()
    }
}

/// Longest sleep between two looks at what may have changed: only a limit, changes wake at once.
const SLEEP: Duration = Duration::from_secs(1);

impl End {
    fn new(line: Arc<Line>, number: usize) -> End {
        End { line, number, silence: Mutex::new(None) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.line.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something changes, bytes arrive, or the time is over; false if it is over.
    fn sleep<'a>(&self, state: MutexGuard<'a, State>, until: Option<Instant>) -> (MutexGuard<'a, State>, bool) {
        let now = Instant::now();
        if until.is_some_and(|u| u <= now) {
            return (state, false);
        }
        let arrival = state.ways[1 - self.number].next_arrival().map(|at| at.saturating_duration_since(now));
        let limit = [arrival, until.map(|u| u - now), Some(SLEEP)].into_iter().flatten().min().unwrap_or(SLEEP);
        let (state, _) = self.line.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner);
        (state, true)
    }

    /// Decides whether an operation is interrupted.
    fn interrupt(&self, state: &mut State) -> io::Result<()> {
        match self.line.faults.interrupts && state.random.below(6) == 0 {
            true => Err(ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }

    /// How many of `n` bytes are transferred.
    fn part(&self, state: &mut State, n: usize) -> usize {
        if !self.line.faults.splits || n <= 1 {
            return n;
        }
        match state.random.below(4) {
            0 => 1,
            1 => n,
            _ => 1 + state.random.below(n as u64) as usize,
        }
    }

    /// Receives some bytes; 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` without bytes, if it may not wait or has waited for the time of [`End::limit_silence`]; `Interrupted`;
    /// `ConnectionReset` on a connection that was cut.
    pub fn receive(&self, to: &mut [u8], wait: bool) -> io::Result<usize> {
        let silence = *self.silence.lock().unwrap_or_else(PoisonError::into_inner);
        let until = silence.map(|limit| Instant::now() + limit);
        let mut state = self.state();
        self.interrupt(&mut state)?;
        if !wait && self.line.faults.again && state.random.below(4) == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        loop {
            if state.is_cut {
                return Err(ErrorKind::ConnectionReset.into());
            }
            let there = state.ways[1 - self.number].arrived();
            if there > 0 && !to.is_empty() {
                let n = self.part(&mut state, there.min(to.len()));
                state.ways[1 - self.number].take(&mut to[..n]);
                self.line.changed.notify_all();
                return Ok(n);
            }
            if to.is_empty() || state.ways[1 - self.number].is_over() {
                return Ok(0);
            }
            let slept;
            (state, slept) = if wait { self.sleep(state, until) } else { (state, false) };
            if !slept {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Sends some of the bytes, in order.
    ///
    /// # Errors
    /// `WouldBlock` without room, if it may not wait; `Interrupted`; `BrokenPipe` if the peer receives no more, `ConnectionReset`
    /// if the connection was cut.
    pub fn send(&self, pieces: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut state = self.state();
        self.interrupt(&mut state)?;
        loop {
            if state.is_cut {
                return Err(ErrorKind::ConnectionReset.into());
            }
            let room = match state.ways[self.number].room() {
                Way::Closed => return Err(ErrorKind::BrokenPipe.into()),
                Way::Room(room) => room,
            };
            if room > 0 && bytes > 0 {
                let n = self.part(&mut state, room.min(bytes));
                let some: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).take(n).collect();
                self.put(&mut state, &some);
                self.line.changed.notify_all();
                return Ok(n);
            }
            if bytes == 0 {
                return Ok(0);
            }
            if !wait {
                return Err(ErrorKind::WouldBlock.into());
            }
            (state, _) = self.sleep(state, None);
        }
    }

    /// Puts bytes on their way, and breaks the connection if it is time.
    fn put(&self, state: &mut State, bytes: &[u8]) {
        // Most bytes come at once: a delay of all would only be a slower network.
        let delay = if state.random.below(16) == 0 { self.line.faults.delay.as_micros() as u64 } else { 0 };
        let arrival = Instant::now() + Duration::from_micros(state.random.below(delay + 1));
        let left = self.line.faults.breaks.filter(|b| b.0 == self.number).map(|(_, at, how)| {
            let left = at.saturating_sub(state.ways[self.number].sent());
            (usize::try_from(left).unwrap_or(usize::MAX), how)
        });
        match left {
            Some((left, how)) if left < bytes.len() => {
                state.ways[self.number].put(&bytes[..left], arrival);
                match how {
                    Break::Cut => state.is_cut = true,
                    Break::Truncate => state.ways.iter_mut().for_each(Pipe::close),
                }
            }
            _ => state.ways[self.number].put(bytes, arrival),
        }
    }

    /// What an operation would find now.
    fn events(&self, state: &State) -> Events {
        let (ours, theirs) = (&state.ways[self.number], &state.ways[1 - self.number]);
        let peer_closed = state.is_cut || theirs.is_closed();
        Events {
            readable: state.is_cut || theirs.arrived() > 0 || theirs.is_over(),
            writable: state.is_cut || !matches!(ours.room(), Way::Room(0)),
            peer_closed,
            hung_up: state.is_cut || peer_closed && ours.is_closed(),
        }
    }

    /// Waits until one of the events that `wanted` accepts, or until the connection is closed; the events at the end of the time
    /// otherwise.
    ///
    /// # Errors
    /// `Interrupted`.
    pub fn poll(&self, limit: Duration, wanted: impl Fn(&Events) -> bool) -> io::Result<Events> {
        let until = Instant::now().checked_add(limit);
        let mut state = self.state();
        self.interrupt(&mut state)?;
        loop {
            let events = self.events(&state);
            if events.hung_up || wanted(&events) {
                return Ok(events);
            }
            let slept;
            (state, slept) = self.sleep(state, until);
            if !slept {
                return Ok(events);
            }
        }
    }

    /// Shuts down directions, as for sockets of one machine: the peer cannot send what this end no longer receives.
    pub fn shutdown(&self, how: Shutdown) {
        let mut state = self.state();
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            state.ways[self.number].close();
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            state.ways[1 - self.number].close();
        }
        drop(state);
        self.line.changed.notify_all();
    }

    /// Sets a limit for waiting receives.
    pub fn limit_silence(&self, limit: Duration) {
        *self.silence.lock().unwrap_or_else(PoisonError::into_inner) = Some(limit);
    }

    /// Whether the connection has been cut or truncated.
    pub fn has_broken(&self) -> bool {
        let Some((end, at, _)) = self.line.faults.breaks else { return false };
        let state = self.state();
        state.is_cut || state.ways[end].is_closed() && state.ways[end].sent() == at
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.shutdown(Shutdown::Both);
    }
}

impl Read for End {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.receive(to, true)
    }
}

impl Write for End {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(from)], true)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
