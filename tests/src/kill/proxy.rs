//! A proxy in front of a server: it can cut a connection, delay a message, or forward only half of one.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

#[derive(Debug, Default)]
struct State {
    aim: Mutex<Option<Aim>>,
    connections: AtomicUsize,
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
    /// A proxy before a server.
    ///
    /// # Errors
    /// No port can be had.
    pub fn start(server: SocketAddr) -> std::io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let lane = if shared.connections.fetch_add(1, Ordering::SeqCst) == 0 { Lane::Calls } else { Lane::Bulk };
                // The server has ended: the client's connection closes at once.
                let Ok(there) = TcpStream::connect(server) else { continue };
                // What cannot be set up is closed, which the job must bear.
                let _ = join(client, there, lane, &shared);
            }
        });
        Ok(Proxy { address, state })
    }

    /// Does harm to the next message of this kind.
    pub fn aim(&self, aim: Aim) {
        *self.state.aim.lock().unwrap_or_else(PoisonError::into_inner) = Some(aim);
    }

    /// Whether the harm has been done.
    pub fn has_struck(&self) -> bool {
        self.state.aim.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        // Wakes the listener; if that fails it has ended already.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(client: TcpStream, server: TcpStream, lane: Lane, state: &Arc<State>) -> std::io::Result<()> {
    for s in [&client, &server] {
        s.set_nodelay(true)?;
    }
    for (from, to, toward) in
        [(client.try_clone()?, server.try_clone()?, Toward::Server), (server.try_clone()?, client.try_clone()?, Toward::Client)]
    {
        let state = state.clone();
        std::thread::spawn(move || pump(from, to, lane, toward, &state));
    }
    Ok(())
}

/// Passes everything on, until one side ends or harm is done.
fn pump(mut from: TcpStream, mut to: TcpStream, lane: Lane, toward: Toward, state: &State) {
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
            let mut aim = state.aim.lock().unwrap_or_else(PoisonError::into_inner);
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
        if to.write_all(&bytes[..n]).is_err() {
            return both(&from, &to);
        }
    }
}
