//! Measures what handing a call of 64 bytes to the ring costs the calling thread.
//!
//! `cargo run --release -p rcuda-forwarder --example send_cost`

use rcuda_forwarder::ring::{Consumer, Ring, Taken};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Calls in a burst: fewer than the ring holds, so that none waits for room.
const BURST: usize = 5_000;
const ROUNDS: usize = 200;

fn main() -> std::io::Result<()> {
    for threads in [1, 2, 4] {
        let ring = Arc::new(Ring::new(rcuda_forwarder::ring::CAPACITY)?);
        let theirs = ring.clone();
        let consumer = std::thread::spawn(move || {
            // SAFETY: the only consumer of this ring.
            let mut consumer = unsafe { Consumer::new(&theirs) };
            let mut bytes = 0;
            while let Some(r) = consumer.take(|t| {
                bytes += if let Taken::Frames(b) = t { b.len() } else { 0 };
                Ok::<(), ()>(())
            }) {
                if r.is_err() {
                    break;
                }
            }
            bytes
        });
        let costs = std::thread::scope(|s| {
            let all: Vec<_> = (0..threads).map(|_| s.spawn(|| bursts(&ring, BURST / threads))).collect();
            all.into_iter().filter_map(|t| t.join().ok()).flatten().collect::<Vec<_>>()
        });
        ring.stop();
        let bytes = consumer.join().unwrap_or_default();
        let mut sorted = costs;
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |q: f64| sorted.get(((sorted.len() - 1) as f64 * q) as usize).copied().unwrap_or(f64::NAN);
        println!(
            "{threads} threads: median {:.1} ns, best {:.1} ns, 90th percentile {:.1} ns a call; {bytes} bytes",
            at(0.5),
            at(0.0),
            at(0.9)
        );
    }
    Ok(())
}

/// Mean cost of a call in each burst, in nanoseconds.
fn bursts(ring: &Ring, burst: usize) -> Vec<f64> {
    let body = [7u8; 64];
    (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            for n in 0..burst {
                if ring.push(0x0f01, n as u64, &[&body]).is_err() {
                    return f64::NAN;
                }
            }
            let cost = began.elapsed().as_nanos() as f64 / burst as f64;
            // The consumer catches up: what is measured is the call, not the way to the network.
            std::thread::sleep(Duration::from_millis(1));
            cost
        })
        .collect()
}
