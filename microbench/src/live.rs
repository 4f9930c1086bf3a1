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
    /// Work until this file exists
    #[arg(long, value_name = "FILE")]
    until: PathBuf,
    /// Give up after this many seconds
    #[arg(long, default_value_t = 300)]
    limit: u64,
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
    let changed = args.regions.min(CHANGED);
    let threads = (u64::from(args.touched) / changed).clamp(1, words.div_ceil(STRIDE)) as u32;
    let pages = u64::from(threads) * changed;
    println!("{}", json!({"measures": "live", "ready": true, "changed_bytes": pages << 16}));

    let start = Instant::now();
    let mut rounds = 0u64;
    while !args.until.exists() {
        if start.elapsed() > Duration::from_secs(args.limit) {
            return Err(Error::Found(format!("{} did not appear within {} s", args.until.display(), args.limit)));
        }
        // Some hundred launches between two looks at the file.
        for _ in 0..256 {
            let event = events[rounds as usize % DEPTH];
            if rounds >= DEPTH as u64 {
                gpu.reach(event)?;
            }
            let memory = regions[(rounds % changed) as usize];
            gpu.launch(touch, threads.div_ceil(32), threads.min(32), stream, &[memory, words, STRIDE])?;
            gpu.record(event, stream)?;
            rounds += 1;
        }
    }
    let wrong = gpu.allocate(8)?;
    gpu.write(wrong, &[0; 8])?;
    for (number, memory) in (0u64..).zip(&regions) {
        // How often the words of this one were changed.
        let times = if number < changed { rounds / changed + u64::from(number < rounds % changed) } else { 0 };
        let lanes = u64::from(threads.div_ceil(32) * threads.min(32));
        gpu.launch(check, WALK.0, WALK.1, stream, &[*memory, words, STRIDE, lanes, times, wrong])?;
    }
    gpu.wait(stream)?;
    let mut count = [0; 8];
    gpu.read(&mut count, wrong)?;
    let wrong = u64::from_le_bytes(count);
    println!("{}", json!({"measures": "live", "mib": args.mib, "rounds": rounds, "wrong_words": wrong}));
    if wrong == 0 { Ok(()) } else { Err(Error::Found(format!("{wrong} of {} words are wrong", args.mib << 17))) }
}
