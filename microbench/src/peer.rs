//! The other end of the raw controls: the cost of plain sockets and plain shared memory on this machine, without
//! mrcuda.
//!
//! `microbench peer` is a separate process, like the other end of a place. Both ends of each control are in this file.

use crate::client::scramble;
use crate::error::Error;
use memmap2::MmapMut;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Arguments of `microbench peer`.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    /// Directory for its socket and its shared memory, for controls on the same machine; it then ends with its standard input.
    /// Without it, it serves TCP until it is killed
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Where it listens; on another machine, 0.0.0.0:PORT
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// Bytes of a message in ping-pong.
const MESSAGE: usize = 64;
/// Bytes of one read or write where bandwidth is measured.
const PIECE: usize = 1 << 20;
/// What a connection is for: its first byte.
const PING: u8 = b'p';
const SINK: u8 = b's';
const SHARED: u8 = b'm';
const SOURCE: u8 = b'o';
/// Names in the directory.
const SOCKET: &str = "peer";
const MEMORY: &str = "memory";
/// Ends a ping-pong in shared memory.
const OVER: u64 = u64::MAX;
/// Number of polls before the thread yields.
const SPINS: u32 = 2000;

/// A connection of either kind.
pub(crate) trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

/// Serves the controls. Prints where it listens.
pub(crate) fn peer(args: &PeerArgs) -> Result<(), Error> {
    let tcp = TcpListener::bind(args.listen).map_err(|e| format!("cannot listen on {}: {e}", args.listen))?;
    let address = tcp.local_addr()?;
    let serve_tcp = move |directory: Option<PathBuf>| {
        for stream in tcp.incoming().map_while(Result::ok) {
            let directory = directory.clone();
            std::thread::spawn(move || stream.set_nodelay(true).and_then(|()| serve(stream, directory.as_deref())));
        }
    };
    let Some(directory) = args.directory.clone() else {
        println!("{address}");
        serve_tcp(None);
        return Ok(());
    };
    let socket = directory.join(SOCKET);
    let unix = UnixListener::bind(&socket).map_err(|e| format!("cannot listen on {}: {e}", socket.display()))?;
    println!("{address}");
    let own = directory.clone();
    std::thread::spawn(move || serve_tcp(Some(own)));
    std::thread::spawn(move || {
        for stream in unix.incoming().map_while(Result::ok) {
            let directory = directory.clone();
            std::thread::spawn(move || serve(stream, Some(&directory)));
        }
    });
    // The parent process holds the other end of our input.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Reads how many bytes are to go one way, and moves them in pieces.
fn in_pieces<W: Wire>(stream: &mut W, mut piece: impl FnMut(&mut W, usize) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let mut left = u64::from_le_bytes(length);
    while left > 0 {
        let n = left.min(PIECE as u64) as usize;
        piece(stream, n)?;
        left -= n as u64;
    }
    Ok(())
}

fn serve(mut stream: impl Wire, directory: Option<&Path>) -> std::io::Result<()> {
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    match kind[0] {
        PING => loop {
            let mut message = [0; MESSAGE];
            stream.read_exact(&mut message)?;
            stream.write_all(&message)?;
        },
        SINK => {
            let mut buffer = vec![0; PIECE];
            loop {
                in_pieces(&mut stream, |stream, n| stream.read_exact(&mut buffer[..n]))?;
                stream.write_all(&[1])?;
            }
        }
        SOURCE => {
            let mut buffer = vec![0; PIECE];
            scramble(&mut buffer);
            loop {
                in_pieces(&mut stream, |stream, n| stream.write_all(&buffer[..n]))?;
            }
        }
        SHARED => {
            let shared = Shared::open(directory.ok_or(std::io::ErrorKind::Unsupported)?)?;
            let mut last = 0;
            while last != OVER {
                last = shared.wait(0, last);
                shared.store(1, last);
            }
            stream.write_all(&[1])
        }
        _ => Ok(()),
    }
}

/// Two words, in cache lines of their own, that two processes share.
struct Shared(MmapMut);

impl Shared {
    fn create(directory: &Path) -> std::io::Result<Shared> {
        std::fs::write(directory.join(MEMORY), [0; 4096])?;
        Shared::open(directory)
    }

    fn open(directory: &Path) -> std::io::Result<Shared> {
        let file = std::fs::File::options().read(true).write(true).open(directory.join(MEMORY))?;
        // SAFETY: only words of it are used, atomically, and no process makes the file shorter.
        let map = unsafe { MmapMut::map_mut(&file)? };
        if map.len() < 4096 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(Shared(map)) }
    }

    fn word(&self, which: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping (4096 bytes, checked), aligned, and every access to it is atomic.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(which * 128).cast_mut().cast()) }
    }

    fn store(&self, which: usize, value: u64) {
        self.word(which).store(value, Ordering::Release);
    }

    /// Waits until a word has changed.
    fn wait(&self, which: usize, before: u64) -> u64 {
        let mut spins = 0;
        loop {
            let now = self.word(which).load(Ordering::Acquire);
            if now != before {
                return now;
            }
            spins += 1;
            if spins % SPINS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

/// How a control reaches the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    Unix,
}

/// This end of the controls.
#[derive(Debug)]
pub(crate) struct Controls {
    directory: PathBuf,
    address: SocketAddr,
}

impl Controls {
    /// The same controls by another way to the peer.
    pub(crate) fn by(&self, address: SocketAddr) -> Controls {
        Controls { directory: self.directory.clone(), address }
    }

    /// Where the peer listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Seconds of each of `count` exchanges on one connection: `trips` round trips, in which `bytes` go to the peer.
    pub(crate) fn exchanges(&self, count: u32, trips: u64, bytes: u64) -> std::io::Result<Vec<f64>> {
        let mut stream = self.connect(Way::Tcp, SINK)?;
        let trips = trips.max(1);
        let mut buffer = vec![0; (bytes / trips) as usize];
        scramble(&mut buffer);
        let message = [&(buffer.len() as u64).to_le_bytes()[..], &buffer].concat();
        (0..count)
            .map(|_| {
                let since = Instant::now();
                for _ in 0..trips {
                    stream.write_all(&message)?;
                    stream.read_exact(&mut [0])?;
                }
                Ok(since.elapsed().as_secs_f64())
            })
            .collect()
    }

    /// Seconds of each of `count` transfers of so many bytes from the peer.
    pub(crate) fn fetches(&self, count: u32, bytes: u64) -> std::io::Result<Vec<f64>> {
        let mut stream = self.connect(Way::Tcp, SOURCE)?;
        let mut buffer = vec![0; bytes as usize];
        (0..count)
            .map(|_| {
                let since = Instant::now();
                stream.write_all(&bytes.to_le_bytes())?;
                stream.read_exact(&mut buffer)?;
                Ok(since.elapsed().as_secs_f64())
            })
            .collect()
    }

    /// Round trips a second of this many connections together.
    pub(crate) fn pings_a_second(&self, connections: u32, count: u32) -> std::io::Result<f64> {
        let since = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..connections).map(|_| scope.spawn(|| self.ping(Way::Tcp, count).map(drop))).collect();
            threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
        })?;
        Ok(f64::from(connections) * f64::from(count) / since.elapsed().as_secs_f64())
    }

    /// `said`: the peer's first line.
    pub(crate) fn new(directory: &Path, said: &str) -> Result<Controls, Error> {
        Ok(Controls {
            directory: directory.to_owned(),
            address: said.trim().parse().map_err(|_| format!("the peer says `{said}`"))?,
        })
    }

    fn connect(&self, way: Way, kind: u8) -> std::io::Result<Box<dyn Wire>> {
        let mut stream: Box<dyn Wire> = match way {
            Way::Tcp => {
                let stream = TcpStream::connect(self.address)?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Way::Unix => Box::new(UnixStream::connect(self.directory.join(SOCKET))?),
        };
        stream.write_all(&[kind])?;
        Ok(stream)
    }

    /// Nanoseconds of each of `count` round trips of 64 bytes.
    pub(crate) fn ping(&self, way: Way, count: u32) -> std::io::Result<Vec<u64>> {
        let mut stream = self.connect(way, PING)?;
        let mut message = [7; MESSAGE];
        let mut times = Vec::new();
        for _ in 0..count {
            let since = Instant::now();
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            times.push(since.elapsed().as_nanos() as u64);
        }
        Ok(times)
    }

    /// Nanoseconds of each of `count` round trips of a word in shared memory.
    pub(crate) fn shared(&self, count: u32) -> std::io::Result<Vec<u64>> {
        let shared = Shared::create(&self.directory)?;
        let mut stream = self.connect(Way::Unix, SHARED)?;
        let mut times = Vec::new();
        let mut back = 0;
        for number in 1..=u64::from(count) {
            let since = Instant::now();
            shared.store(0, number);
            back = shared.wait(1, back);
            times.push(since.elapsed().as_nanos() as u64);
        }
        shared.store(0, OVER);
        stream.read_exact(&mut [0])?;
        Ok(times)
    }

    /// Bytes a second that this many connections carry at once.
    pub(crate) fn bandwidth(&self, way: Way, connections: u32, bytes: u64) -> std::io::Result<f64> {
        let streams = (0..connections).map(|_| self.connect(way, SINK)).collect::<Result<Vec<_>, _>>()?;
        let each = bytes / u64::from(connections);
        let since = Instant::now();
        std::thread::scope(|s| {
            let senders: Vec<_> = streams
                .into_iter()
                .map(|mut stream| {
                    s.spawn(move || -> std::io::Result<()> {
                        let mut buffer = vec![0; PIECE];
                        scramble(&mut buffer);
                        stream.write_all(&each.to_le_bytes())?;
                        let mut left = each;
                        while left > 0 {
                            let n = left.min(PIECE as u64) as usize;
                            stream.write_all(&buffer[..n])?;
                            left -= n as u64;
                        }
                        stream.read_exact(&mut [0])
                    })
                })
                .collect();
            senders.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
        })?;
        Ok((each * u64::from(connections)) as f64 / since.elapsed().as_secs_f64())
    }
}

/// Bytes a second of so many threads together, each of which copies `bytes` from memory to memory.
pub(crate) fn copy_bandwidth(threads: u32, bytes: usize) -> f64 {
    let ready = Barrier::new(threads as usize);
    let copy = || {
        let mut from = vec![0; bytes];
        scramble(&mut from);
        let mut to = vec![1; bytes];
        ready.wait();
        let since = Instant::now();
        to.copy_from_slice(&from);
        let until = Instant::now();
        std::hint::black_box(&to);
        (since, until)
    };
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(copy)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let (since, until) = (times.iter().map(|t| t.0).min(), times.iter().map(|t| t.1).max());
    let seconds = since.zip(until).map_or(f64::INFINITY, |(since, until)| (until - since).as_secs_f64());
    (times.len() * bytes) as f64 / seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn both_ends_understand_each_other() {
        let directory = std::env::temp_dir().join(format!("mrcuda-peer-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let unix = UnixListener::bind(directory.join(SOCKET)).unwrap();
        let controls = Controls::new(&directory, &tcp.local_addr().unwrap().to_string()).unwrap();
        let there = directory.clone();
        // Each ends with an error when this end hangs up.
        std::thread::spawn(move || {
            for _ in 0..6 {
                let _ = serve(tcp.accept().unwrap().0, Some(&there));
            }
        });
        let there = directory.clone();
        std::thread::spawn(move || {
            for _ in 0..2 {
                let _ = serve(unix.accept().unwrap().0, Some(&there));
            }
        });
        assert_eq!(controls.ping(Way::Tcp, 5).unwrap().len(), 5);
        assert!(controls.bandwidth(Way::Tcp, 1, 3 << 20).unwrap() > 0.0);
        assert_eq!(controls.exchanges(3, 2, 1000).unwrap().len(), 3);
        assert_eq!(controls.fetches(3, 5 << 20).unwrap().len(), 3);
        assert!(controls.pings_a_second(1, 5).unwrap() > 0.0);
        assert_eq!(controls.shared(5).unwrap().len(), 5);
        assert!(controls.bandwidth(Way::Unix, 1, 1000).unwrap() > 0.0);
        std::fs::remove_dir_all(directory).unwrap();
        assert!([1, 3].map(|threads| copy_bandwidth(threads, 1 << 16)).into_iter().all(|rate| rate > 0.0));
    }
}
