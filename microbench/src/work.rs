//! A job that works in steps, as a simulation does, and says how far it is: it is moved, shares its GPU and is disturbed in the
//! experiments of [`crate::bench::paper`].
//!
//! It prints `{"ready":true}` and waits for a line. Each step copies a little in, launches kernels that do nothing and kernels that change
//! its memory, and reads a little back, for which it waits. It prints `{"percent":…,"seconds":…}` as it gets on, and at its end what its steps
//! took, after it has checked every word of its memory. It ends with its input.
//!
//! Several of them are ranks of one job: in each step a rank sends what it has read to the next one and waits for what the one before has sent.

use crate::client::scramble;
use crate::error::Error;
use crate::gpu::{Done, Gpu};
use serde_json::json;
use std::io::{BufRead, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `microbench work`.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkArgs {
    /// The driver [default: what the dynamic linker finds]
    #[arg(long, default_value = "libcuda.so.1")]
    driver: PathBuf,
    /// Memory to keep, in MiB
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// Steps to make
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Launches of a step that do nothing
    #[arg(long, default_value_t = 20)]
    launches: u32,
    /// Launches of a step that change memory
    #[arg(long, default_value_t = 1)]
    sweeps: u32,
    /// Change one word of so many
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    stride: u64,
    /// Bytes that a step copies in and reads back
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(8..=1 << 30))]
    bytes: u64,
    /// Rest of the program between two steps, in microseconds
    #[arg(long, default_value_t = 0)]
    rest: u64,
    /// Say how far it is after each so many percent of the steps
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=100))]
    every: u64,
    /// Directory of the sockets of all ranks
    #[arg(long, value_name = "DIR", requires = "ranks")]
    ring: Option<PathBuf>,
    /// Number of this rank
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// Number of ranks
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Option<u32>,
}

/// How long a rank waits for another one to be there.
const LIMIT: Duration = Duration::from_secs(60);
/// Threads of a block of the kernels that change memory.
const BLOCK: u64 = 256;
/// Blocks and threads of the kernels that walk over all memory.
const WALK: (u32, u32) = (512, 256);

/// Connections of a rank to the next one and from the one before.
struct Ring {
    next: UnixStream,
    before: UnixStream,
}

impl Ring {
    /// `None` without ranks.
    fn join(args: &WorkArgs) -> Result<Option<Ring>, Error> {
        let (Some(directory), Some(ranks)) = (&args.ring, args.ranks) else { return Ok(None) };
        let path = |rank: u32| directory.join(format!("rank{rank}"));
        let own = path(args.rank);
        let listener = UnixListener::bind(&own).map_err(Error::file(&own))?;
        let next = path((args.rank + 1) % ranks);
        let since = Instant::now();
        let next = loop {
            match UnixStream::connect(&next) {
                Ok(stream) => break stream,
                Err(e) if since.elapsed() > LIMIT => return Err(Error::file(&next)(e)),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let (before, _) = listener.accept()?;
        Ok(Some(Ring { next, before }))
    }

    /// Sends these bytes on and puts those of the rank before in their place.
    fn exchange(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let (next, sent) = (&mut self.next, bytes.to_vec());
        std::thread::scope(|scope| {
            // A socket has room for less than a rank may send.
            let sender = scope.spawn(move || next.write_all(&sent));
            self.before.read_exact(bytes)?;
            sender.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
        })?;
        Ok(())
    }
}

/// Works when a line comes.
pub(crate) fn work(args: &WorkArgs) -> Result<(), Error> {
    let gpu = Gpu::open(&args.driver)?;
    let module = gpu.kernels()?;
    let [empty, fill, touch, check] = [c"empty", c"fill", c"touch", c"check"].map(|name| gpu.function(module, name));
    let (empty, fill, touch, check) = (empty?, fill?, touch?, check?);
    let (stream, words) = (gpu.stream()?, args.mib << 17);
    let (memory, buffer) = (gpu.allocate((words * 8) as usize)?, gpu.allocate(args.bytes as usize)?);
    gpu.launch(fill, WALK.0, WALK.1, stream, &[memory, words])?;
    gpu.wait(stream)?;
    let (blocks, threads) = (words.div_ceil(args.stride).div_ceil(BLOCK), BLOCK);
    let mut bytes = vec![0; args.bytes as usize];
    scramble(&mut bytes);
    let mut ring = Ring::join(args)?;
    println!("{}", json!({"ready": true}));
    std::io::stdin().lock().read_line(&mut String::new())?;

    let (start, mut times, mut told) = (Instant::now(), Vec::new(), 0);
    for step in 1..=args.steps {
        let since = Instant::now();
        gpu.write(buffer, &bytes)?;
        for _ in 0..args.launches {
            gpu.launch(empty, 1, 32, stream, &[buffer, 1, 2])?;
        }
        for _ in 0..args.sweeps {
            gpu.launch(touch, blocks as u32, threads as u32, stream, &[memory, words, args.stride])?;
        }
        gpu.wait(stream)?;
        gpu.read(&mut bytes, buffer)?;
        if let Some(ring) = &mut ring {
            ring.exchange(&mut bytes)?;
        }
        times.push(since.elapsed().as_secs_f64());
        let percent = step * 100 / args.steps;
        if percent >= told + args.every {
            told = percent - percent % args.every;
            println!("{}", json!({"percent": told, "seconds": start.elapsed().as_secs_f64()}));
        }
        if args.rest > 0 {
            std::thread::sleep(Duration::from_micros(args.rest));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let wrong = wrong_words(&gpu, check, (memory, words, args.stride), args.steps * u64::from(args.sweeps))?;
    let longest = times.iter().copied().fold(0.0, f64::max);
    println!(
        "{}",
        json!({"done": true, "seconds": seconds, "steps": args.steps, "step_seconds": models::fit::median(&times),
            "longest_step_seconds": longest, "wrong_words": wrong})
    );
    std::io::stdin().read_to_end(&mut Vec::new())?;
    if wrong == 0 { Ok(()) } else { Err(Error::Found(format!("{wrong} of {words} words are wrong"))) }
}

/// Words that are not what so many changes make of them.
fn wrong_words(gpu: &Gpu, check: cuda_api::sys::CUfunction, (memory, words, stride): (u64, u64, u64), changes: u64) -> Done<u64> {
    let wrong = gpu.allocate(8)?;
    gpu.write(wrong, &[0; 8])?;
    gpu.launch(check, WALK.0, WALK.1, std::ptr::null_mut(), &[memory, words, stride, words.div_ceil(stride), changes, wrong])?;
    gpu.wait(std::ptr::null_mut())?;
    let mut count = [0; 8];
    gpu.read(&mut count, wrong)?;
    Ok(u64::from_le_bytes(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(ring: &std::path::Path, rank: u32) -> WorkArgs {
        WorkArgs {
            driver: PathBuf::new(),
            mib: 1,
            steps: 1,
            launches: 0,
            sweeps: 0,
            stride: 1,
            bytes: 8,
            rest: 0,
            every: 25,
            ring: Some(ring.to_owned()),
            rank,
            ranks: Some(3),
        }
    }

    #[test]
    fn ranks_exchange_what_they_have() {
        let directory = std::env::temp_dir().join(format!("mrb-ring-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let got: Vec<u8> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..3)
                .map(|number| {
                    let args = rank(&directory, number);
                    scope.spawn(move || {
                        // More than a socket's buffer.
                        let mut bytes = vec![number as u8; 4 << 20];
                        Ring::join(&args).unwrap().unwrap().exchange(&mut bytes).unwrap();
                        assert!(bytes.iter().all(|b| *b == bytes[0]));
                        bytes[0]
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(got, [2, 0, 1]);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
