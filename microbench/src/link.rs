//! A network link as a proxy: it delays what it passes on and limits its rate, so that one machine shows what a long link does.
//!
//! The delay is the time of a round trip; each direction gets half of it. A connection is set up as over such a link: the server sees it
//! one and a half round trips after the client has asked for it. All connections of a proxy share its rate, in each direction.

use crate::error::Error;
use cuda_api::lock::lock;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Arguments of `microbench link`.
#[derive(Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// Where to connect to, HOST:PORT
    #[arg(long)]
    to: String,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Round-trip time, such as 10ms
    #[arg(long, value_parser = duration, default_value = "0ms")]
    delay: Duration,
    /// Bits a second in each direction, such as 1G [default: without a limit]
    #[arg(long, value_parser = bits)]
    rate: Option<u64>,
}

/// Bytes of one read. On a slow link they are passed on together, as one packet.
const PIECE: usize = 16 << 10;
/// Pieces under way in one direction of a connection; more than any link holds that is measured here.
const UNDER_WAY: usize = 4096;

/// A duration such as `250us`, `10ms` or `1s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let parsed = units.iter().find_map(|(unit, scale)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * scale));
    let seconds = parsed.filter(|s| (0.0..=60.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("`{text}`: a delay is a number with us, ms or s, at most 60s"))
}

/// Bits a second such as `100M` or `1G`.
pub(crate) fn bits(text: &str) -> Result<u64, String> {
    let units = [("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
    let (digits, scale) = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale))).unwrap_or((text, 1));
    let rate = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)).filter(|n| *n >= 1000);
    rate.ok_or_else(|| format!("`{text}`: a rate is a number of bits a second, or one with K, M or G, at least 1K"))
}

/// Properties of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Time of a round trip.
    pub(crate) delay: Duration,
    /// Bits a second in each direction.
    pub(crate) rate: Option<u64>,
}

/// One direction of a link: when everything before has left.
type Free = Arc<Mutex<Instant>>;

/// A running proxy. Its connections end with their peers.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    stopping: Arc<AtomicBool>,
}

impl Proxy {
    /// A proxy on any port of this machine.
    pub(crate) fn start(to: SocketAddr, shape: Shape) -> std::io::Result<Proxy> {
        Proxy::listen((Ipv4Addr::LOCALHOST, 0).into(), to, shape)
    }

    fn listen(at: SocketAddr, to: SocketAddr, shape: Shape) -> std::io::Result<Proxy> {
        let listener = TcpListener::bind(at)?;
        let proxy = Proxy { address: listener.local_addr()?, stopping: Arc::default() };
        let stopping = proxy.stopping.clone();
        let free: [Free; 2] = std::array::from_fn(|_| Arc::new(Mutex::new(Instant::now())));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                let free = free.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(shape.delay.mul_f64(1.5));
                    // A server that is not there: the client's connection closes.
                    let Ok(server) = TcpStream::connect(to) else { return };
                    let _ = join(client, server, shape, free);
                });
            }
        });
        Ok(proxy)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes the listener; if that fails it has ended already.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(client: TcpStream, server: TcpStream, shape: Shape, [up, down]: [Free; 2]) -> std::io::Result<()> {
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    for (from, to, free) in [(client.try_clone()?, server.try_clone()?, up), (server, client, down)] {
        std::thread::spawn(move || pass(from, to, shape, &free));
    }
    Ok(())
}

/// Passes on one direction of a connection.
fn pass(mut from: TcpStream, mut to: TcpStream, shape: Shape, free: &Free) {
    let (send, receive) = sync_channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let mut source = from.try_clone().ok();
    std::thread::spawn(move || {
        for (due, bytes) in receive {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                // The reader must not wait for a connection that nobody reads.
                let _ = source.take().map(|s| s.shutdown(Shutdown::Both));
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    let mut buffer = vec![0; PIECE];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let left = {
            let mut free = lock(free);
            let on_the_wire = shape.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(8.0 * n as f64 / rate as f64));
            *free = free.max(Instant::now()) + on_the_wire;
            *free
        };
        if send.send((left + shape.delay / 2, buffer[..n].to_vec())).is_err() {
            return;
        }
    }
}

/// Serves until its input ends.
pub(crate) fn link(args: &LinkArgs) -> Result<(), Error> {
    let to = args.to.to_socket_addrs()?.next().ok_or(format!("{}: the name has no address", args.to))?;
    let proxy = Proxy::listen(args.listen, to, Shape { delay: args.delay, rate: args.rate })?;
    println!("{}", proxy.address);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_and_rates_have_units() {
        assert_eq!((duration("10ms"), duration("250us")), (Ok(Duration::from_millis(10)), Ok(Duration::from_micros(250))));
        assert_eq!((bits("1G"), bits("2500K"), bits("9600")), (Ok(1_000_000_000), Ok(2_500_000), Ok(9600)));
        for bad in ["", "ms", "10", "-1ms", "61s", "1e9s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        for bad in ["", "G", "1", "-1M", "99999999999G"] {
            assert!(bits(bad).is_err(), "{bad}");
        }
    }

    /// It takes at least the time that the link takes; how much longer depends on the machine.
    #[test]
    fn bytes_come_late_and_whole() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let shape = Shape { delay: Duration::from_millis(20), rate: Some(80_000_000) };
        let proxy = Proxy::start(listener.local_addr().unwrap(), shape).unwrap();
        let there = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let mut all = vec![0; 1_000_000];
            peer.read_exact(&mut all).unwrap();
            peer.write_all(&[7]).unwrap();
            all
        });
        let sent: Vec<u8> = (0..1_000_000u32).map(|n| (n * 7) as u8).collect();
        let since = Instant::now();
        let mut stream = TcpStream::connect(proxy.address).unwrap();
        stream.write_all(&sent).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        // 1 MB at 10 MB/s, and two and a half round trips of a new connection.
        assert!(since.elapsed() >= Duration::from_millis(150), "{:?}", since.elapsed());
        assert!(there.join().unwrap() == sent);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the end of the stream is passed on");
    }
}
