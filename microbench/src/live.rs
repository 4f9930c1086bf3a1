//! A job with much memory of which it changes little, so that a move's cost is dominated by the move itself.

use crate::error::Error;
use crate::gpu::Gpu;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `microbench live`.
#[derive(Debug, clap::Args)]
pub(crate) struct LiveArgs {
    /// Memory to keep, in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// Allocations of equal size that it is divided into
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    regions: u64,
    /// Events to keep
    #[arg(long, default_value_t = 0)]
    events: u32,
    /// Modules to keep
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    modules: u32,
    /// Words that the kernels change again and again, each in a page of its own, as far as the memory has pages
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    touched: u32,
    /// Change this percentage of the pages of all allocations instead, evenly distributed
    #[arg(long, value_name = "PERCENT", conflicts_with = "touched", value_parser = percent)]
    dirty: Option<f64>,
    /// Work until this file exists
    #[arg(long, value_name = "FILE")]
    until: PathBuf,
    /// Give up after this many seconds
    #[arg(long, default_value_t = 300)]
    limit: u64,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n| (0.0..=100.0).contains(n));
    number.ok_or_else(|| "it is not a percentage".to_owned())
}

/// What is changed all the time: words of the first allocations, `stride` words apart.
struct Changes {
    allocations: u64,
    stride: u64,
    threads: u64,
}

impl Changes {
    fn of(args: &LiveArgs, words: u64) -> Changes {
        let Some(percent) = args.dirty else {
            let allocations = args.regions.min(CHANGED);
            let threads = (u64::from(args.touched) / allocations).clamp(1, words.div_ceil(STRIDE));
            return Changes { allocations, stride: STRIDE, threads };
        };
        let stride = STRIDE * (100.0 / percent.max(1e-6)).round() as u64;
        Changes { allocations: args.regions, stride, threads: if percent > 0.0 { words.div_ceil(stride) } else { 0 } }
    }

    /// The blocks of the kernel, and threads of each.
    fn grid(&self) -> (u32, u32) {
        (self.threads.div_ceil(32) as u32, self.threads.min(32) as u32)
    }
}

/// Blocks and threads of the kernels that walk over all memory.
const WALK: (u32, u32) = (512, 256);
/// Words from one changed word to the next: a page of 64 KiB.
const STRIDE: u64 = 8192;
/// Launches that are queued at a time.
const DEPTH: usize = 8;
/// The most allocations that are changed.
const CHANGED: u64 = 16;

/// Works, then checks every word.
pub(crate) fn live(args: &LiveArgs) -> Result<(), Error> {
    let gpu = Gpu::open("libcuda.so.1".as_ref())?;
    let module = gpu.kernels()?;
    for _ in 1..args.modules {
        gpu.kernels()?;
    }
    let (fill, touch, check) = (gpu.function(module, c"fill")?, gpu.function(module, c"touch")?, gpu.function(module, c"check")?);
    let stream = gpu.stream()?;
    let events = (0..DEPTH).map(|_| gpu.event()).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..args.events {
        gpu.event()?;
    }
    let words = (args.mib << 17) / args.regions;
    let regions = (0..args.regions).map(|_| gpu.allocate((words * 8) as usize)).collect::<Result<Vec<_>, _>>()?;
    for memory in &regions {
        gpu.launch(fill, WALK.0, WALK.1, stream, &[*memory, words])?;
    }
    gpu.wait(stream)?;
    let changes = Changes::of(args, words);
    let (changed, stride, (blocks, threads)) = (changes.allocations, changes.stride, changes.grid());
    let pages = changes.threads * changed;
    println!("{}", json!({"measures": "live", "ready": true, "changed_bytes": pages << 16}));

    let start = Instant::now();
    let mut rounds = 0u64;
    // From one round's end to the next one's, as a move delays it.
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    while !args.until.exists() {
        if start.elapsed() > Duration::from_secs(args.limit) {
            return Err(Error::Found(format!("{} did not appear within {} s", args.until.display(), args.limit)));
        }
        if blocks == 0 {
            std::thread::sleep(Duration::from_millis(1));
            // A call that asks the place, so that there is something that a move can delay.
            gpu.wait(stream)?;
            longest = longest.max(last.elapsed());
            last = Instant::now();
            continue;
        }
        // Some hundred launches between two looks at the file.
        for _ in 0..256 {
            let event = events[rounds as usize % DEPTH];
            if rounds >= DEPTH as u64 {
                gpu.reach(event)?;
            }
            let memory = regions[(rounds % changed) as usize];
            gpu.launch(touch, blocks, threads, stream, &[memory, words, stride])?;
            gpu.record(event, stream)?;
            longest = longest.max(last.elapsed());
            last = Instant::now();
            rounds += 1;
        }
    }
    let longest_ms = longest.as_secs_f64() * 1000.0;
    let wrong = gpu.allocate(8)?;
    gpu.write(wrong, &[0; 8])?;
    for (number, memory) in (0u64..).zip(&regions) {
        // How often the words of this one were changed.
        let times = if number < changed { rounds / changed + u64::from(number < rounds % changed) } else { 0 };
        let lanes = u64::from(blocks * threads);
        gpu.launch(check, WALK.0, WALK.1, stream, &[*memory, words, stride, lanes, times, wrong])?;
    }
    gpu.wait(stream)?;
    let mut count = [0; 8];
    gpu.read(&mut count, wrong)?;
    let wrong = u64::from_le_bytes(count);
    println!(
        "{}",
        json!({"measures": "live", "mib": args.mib, "rounds": rounds, "longest_ms": longest_ms, "wrong_words": wrong})
    );
    if wrong == 0 { Ok(()) } else { Err(Error::Found(format!("{wrong} of {} words are wrong", args.mib << 17))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_of_all_pages_is_changed() {
        let args = |dirty, regions| LiveArgs {
            mib: 1024,
            regions,
            events: 0,
            modules: 1,
            touched: 256,
            dirty,
            until: PathBuf::new(),
            limit: 1,
        };
        let pages = |dirty, regions| {
            let changes = Changes::of(&args(dirty, regions), (1024 << 17) / regions);
            changes.threads * changes.allocations
        };
        assert_eq!((pages(Some(100.0), 1), pages(Some(100.0), 128)), (16384, 16384));
        assert_eq!((pages(Some(10.0), 1), pages(Some(1.0), 1), pages(Some(0.0), 4)), (1639, 164, 0));
        assert_eq!((pages(None, 1), pages(None, 64)), (256, 256));
        assert!(percent("101").is_err() && percent("-1").is_err() && percent("x").is_err() && percent("0.5") == Ok(0.5));
    }
}
