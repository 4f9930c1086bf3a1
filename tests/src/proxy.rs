//! A proxy in front of a server: a bad network. It can cut a connection, delay a message, or forward only half of one, when a test
//! says so ([`Proxy::aim`]); or split, delay, hold up and cut everything, by a seed ([`Trouble`]).

use crate::random::Random;
use cuda_api::lock::lock;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a message is held back.
const DELAY: Duration = Duration::from_secs(3);

/// What the proxy does to the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// Closes the connection instead of passing it on.
    Cut,
    /// Passes it on some seconds later.
    Delay,
    /// Passes half of it on and closes the connection.
    Truncate,
}

/// A kind of connection through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The job's calls: the first connection.
    Calls,
    /// The bytes of a move or of large copies: the later ones.
    Bulk,
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    /// To the server.
    Server,
    /// From the server.
    Client,
}

/// The next message that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aim {
    /// On which kind of connection.
    pub lane: Lane,
    /// In which direction.
    pub toward: Toward,
    /// What happens to it.
    pub harm: Harm,
}

/// What happens to all connections, by a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    /// The seed. The number and the direction of a connection belong to it.
    pub seed: u64,
    /// Limit of usual delays.
    pub delay: Duration,
    /// How long a connection sometimes stands still.
    pub stall: Duration,
    /// Each direction of a connection is cut before so many bytes have passed, if at all.
    pub cut: Option<u64>,
}

/// What happens to the next bytes of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// So many are passed on, after this time.
    Pass(Duration, usize),
    /// The connection is cut.
    Cut,
}

/// What happens on one direction of a connection.
#[derive(Debug)]
struct Script {
    trouble: Trouble,
    random: Random,
    /// Bytes until the cut.
    left: u64,
}

impl Script {
    fn new(trouble: Trouble, connection: usize, toward: Toward) -> Script {
        let number = 2 * connection as u64 + u64::from(toward == Toward::Client);
        let mut random = Random::new(trouble.seed ^ (number << 32));
        Script { trouble, left: trouble.cut.map_or(u64::MAX, |most| random.below(most)), random }
    }

    /// What happens next, if there are so many bytes to pass on.
    fn next(&mut self, bytes: usize) -> Act {
        if self.left == 0 {
            return Act::Cut;
        }
        let n = match self.random.below(8) {
            0 => 1 + self.random.below(bytes.min(64) as u64) as usize,
            1..4 => 1 + self.random.below(bytes as u64) as usize,
            _ => bytes,
        };
        let n = n.min(usize::try_from(self.left).unwrap_or(n));
        self.left -= n as u64;
        let pause = match self.random.below(400) {
            0 => self.trouble.stall,
            1..40 => self.trouble.delay.mul_f64(self.random.unit()),
            _ => Duration::ZERO,
        };
        Act::Pass(pause, n)
    }
}

#[derive(Debug, Default)]
struct State {
    trouble: Option<Trouble>,
    aim: Mutex<Option<Aim>>,
    connections: AtomicUsize,
    cuts: AtomicUsize,
    stopping: AtomicBool,
}

/// A running proxy; its connections end with their peers.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Proxy {
    /// A proxy before a server, which harms what it is told to.
    ///
    /// # Errors
    /// No port can be had.
    pub fn start(server: SocketAddr) -> std::io::Result<Proxy> {
        Proxy::with(server, None)
    }

    /// A proxy before a server, with trouble on all connections.
    ///
    /// # Errors
    /// No port can be had.
    pub fn troubled(server: SocketAddr, trouble: Trouble) -> std::io::Result<Proxy> {
        Proxy::with(server, Some(trouble))
    }

    fn with(server: SocketAddr, trouble: Option<Trouble>) -> std::io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::new(State { trouble, ..State::default() });
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let number = shared.connections.fetch_add(1, Ordering::SeqCst);
                // The server has ended: the client's connection closes at once.
                let Ok(there) = TcpStream::connect(server) else { continue };
                // What cannot be set up is closed, which the job must bear.
                let _ = join(client, there, number, &shared);
            }
        });
        Ok(Proxy { address, state })
    }

    /// Does harm to the next message of this kind.
    pub fn aim(&self, aim: Aim) {
        *lock(&self.state.aim) = Some(aim);
    }

    /// How many connections were cut because of the seed.
    pub fn cuts(&self) -> usize {
        self.state.cuts.load(Ordering::SeqCst)
    }

    /// Whether the harm has been done.
    pub fn has_struck(&self) -> bool {
        lock(&self.state.aim).is_none()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        // Wakes the listener; if that fails it has ended already.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(client: TcpStream, server: TcpStream, number: usize, state: &Arc<State>) -> std::io::Result<()> {
    let lane = if number == 0 { Lane::Calls } else { Lane::Bulk };
    for s in [&client, &server] {
        s.set_nodelay(true)?;
    }
    for (from, to, toward) in
        [(client.try_clone()?, server.try_clone()?, Toward::Server), (server.try_clone()?, client.try_clone()?, Toward::Client)]
    {
        let state = state.clone();
        let script = state.trouble.map(|trouble| Script::new(trouble, number, toward));
        std::thread::spawn(move || pump(from, to, (lane, toward), script, &state));
    }
    Ok(())
}

/// Passes everything on, until one side ends or harm is done.
fn pump(mut from: TcpStream, mut to: TcpStream, (lane, toward): (Lane, Toward), mut script: Option<Script>, state: &State) {
    let mut bytes = vec![0; 64 << 10];
    let both = |a: &TcpStream, b: &TcpStream| {
        // A closed peer needs no shutdown.
        let _ = a.shutdown(Shutdown::Both);
        let _ = b.shutdown(Shutdown::Both);
    };
    loop {
        let n = match from.read(&mut bytes) {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(n) => n,
            Err(_) => return both(&from, &to),
        };
        let harm = {
            let mut aim = lock(&state.aim);
            let meant = aim.is_some_and(|a| a.lane == lane && a.toward == toward);
            if meant { aim.take().map(|a| a.harm) } else { None }
        };
        match harm {
            Some(Harm::Cut) => return both(&from, &to),
            Some(Harm::Truncate) => {
                let _ = to.write_all(&bytes[..n / 2]);
                return both(&from, &to);
            }
            Some(Harm::Delay) => std::thread::sleep(DELAY),
            None => {}
        }
        let mut rest = &bytes[..n];
        while !rest.is_empty() {
            let n = match script.as_mut().map_or(Act::Pass(Duration::ZERO, rest.len()), |s| s.next(rest.len())) {
                Act::Pass(pause, n) => {
                    std::thread::sleep(pause);
                    n
                }
                Act::Cut => {
                    state.cuts.fetch_add(1, Ordering::SeqCst);
                    return both(&from, &to);
                }
            };
            if to.write_all(&rest[..n]).is_err() {
                return both(&from, &to);
            }
            rest = &rest[n..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TROUBLE: Trouble = Trouble { seed: 5, delay: Duration::from_micros(300), stall: Duration::from_millis(3), cut: None };

    /// A server that returns what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || std::io::copy(&mut client.try_clone().unwrap(), &mut client));
            }
        });
        address
    }

    #[test]
    fn trouble_changes_no_byte_until_it_cuts() {
        let data: Vec<u8> = (0..300_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        for cut in [None, Some(250_000)] {
            let proxy = Proxy::troubled(echo(), Trouble { cut, ..TROUBLE }).unwrap();
            let mut there = TcpStream::connect(proxy.address).unwrap();
            let mut back = there.try_clone().unwrap();
            let reader = std::thread::spawn(move || {
                let (mut got, mut some) = (Vec::new(), [0; 5000]);
                while let Ok(n @ 1..) = back.read(&mut some) {
                    got.extend_from_slice(&some[..n]);
                }
                got
            });
            // One of the directions may be cut before all is written.
            if there.write_all(&data).is_ok() {
                let _ = there.shutdown(Shutdown::Write);
            }
            let got = reader.join().unwrap();
            assert!(data.starts_with(&got) && (got.len() == data.len()) == cut.is_none(), "{cut:?}: {} bytes", got.len());
            assert_eq!(proxy.cuts() > 0, cut.is_some());
        }
    }
}
