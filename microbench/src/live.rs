//! A job that keeps much memory and works on little of it: what a move of it costs is the move's own cost.

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
    /// Work until this file exists
    #[arg(long, value_name = "FILE")]
    until: PathBuf,
    /// Give up after this many seconds
    #[arg(long, default_value_t = 300)]
    limit: u64,
}

/// Blocks and threads of the kernels that walk over all memory.
const WALK: (u32, u32) = (512, 256);
/// Threads of the kernel that changes a few words: one word each, 64 KiB apart.
const TOUCHED: u32 = 256;
const STRIDE: u64 = 8192;
/// Launches that are queued at a time.
const DEPTH: usize = 8;

/// Works, then checks every word.
pub(crate) fn live(args: &LiveArgs) -> Result<(), String> {
    let gpu = Gpu::open()?;
    let module = gpu.kernels()?;
    let (fill, touch, check) = (gpu.function(module, c"fill")?, gpu.function(module, c"touch")?, gpu.function(module, c"check")?);
    let stream = gpu.stream()?;
    let events = (0..DEPTH).map(|_| gpu.event()).collect::<Result<Vec<_>, _>>()?;
    let words = args.mib << 17;
    let memory = gpu.allocate((words * 8) as usize)?;
    gpu.launch(fill, WALK.0, WALK.1, stream, &[memory, words])?;
    gpu.wait(stream)?;
    println!("{}", json!({"measures": "live", "mib": args.mib, "ready": true}));

    let start = Instant::now();
    let mut rounds = 0u64;
    while !args.until.exists() {
        if start.elapsed() > Duration::from_secs(args.limit) {
            return Err(format!("{} did not appear within {} s", args.until.display(), args.limit));
        }
        // Some hundred launches between two looks at the file.
        for _ in 0..256 {
            let event = events[rounds as usize % DEPTH];
            if rounds >= DEPTH as u64 {
                gpu.reach(event)?;
            }
            gpu.launch(touch, TOUCHED / 32, 32, stream, &[memory, words, STRIDE])?;
            gpu.record(event, stream)?;
            rounds += 1;
        }
    }
    let wrong = gpu.allocate(8)?;
    gpu.write(wrong, &[0; 8])?;
    gpu.launch(check, WALK.0, WALK.1, stream, &[memory, words, STRIDE, u64::from(TOUCHED), rounds, wrong])?;
    gpu.wait(stream)?;
    let mut count = [0; 8];
    gpu.read(&mut count, wrong)?;
    let wrong = u64::from_le_bytes(count);
    println!("{}", json!({"measures": "live", "mib": args.mib, "rounds": rounds, "wrong_words": wrong}));
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} of {words} words are wrong")) }
}
