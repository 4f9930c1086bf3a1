//! Copies from one GPU of a job to another, beside the same bytes by way of pinned memory of the program.
//!
//! It prints a line for each size: the nanoseconds of copies of either kind.

use crate::client::scramble;
use crate::error::Error;
use crate::gpu::{Done, Gpu};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `microbench between`.
#[derive(Debug, clap::Args)]
pub(crate) struct BetweenArgs {
    /// The driver [default: what the dynamic linker finds]
    #[arg(long, default_value = "libcuda.so.1")]
    driver: PathBuf,
    /// At most so many copies of each kind and size
    #[arg(long, default_value_t = 30)]
    count: usize,
    /// Begin at once: the first copies find places that are not connected yet
    #[arg(long)]
    cold: bool,
    /// Bytes of the copies
    sizes: Vec<usize>,
}

/// About how long copies of one kind and size are made.
const LIMIT: Duration = Duration::from_secs(2);
/// How long copies are made before any is measured: places are connected meanwhile.
const WARM: Duration = Duration::from_secs(1);
/// Bytes of a copy for that.
const FIRST: usize = 1 << 20;

/// Measures all sizes, and ends.
pub(crate) fn between(args: &BetweenArgs) -> Result<(), Error> {
    let gpu = Gpu::open(&args.driver)?;
    let (first, second) = (gpu.current_context()?, gpu.retain(1)?);
    let most = args.sizes.iter().copied().max().unwrap_or(0).max(FIRST);
    let pinned = gpu.pin(most)?;
    // SAFETY: the driver has just given this many bytes, and nothing else refers to them.
    scramble(unsafe { std::slice::from_raw_parts_mut(pinned, most) });
    let (from, stream) = (gpu.allocate(most)?, gpu.stream()?);
    // SAFETY: as above; the wait is for the copy.
    unsafe { gpu.write_later(from, pinned, most, stream) }?;
    gpu.wait(stream)?;
    gpu.use_context(second)?;
    let (to, other) = (gpu.allocate(most)?, gpu.stream()?);
    gpu.use_context(first)?;
    let direct = |bytes| gpu.copy(to, from, bytes, stream).and_then(|()| gpu.wait(stream));
    let staged = |bytes| {
        // SAFETY: pinned memory of this size, which lives until the end; each copy is waited for.
        unsafe { gpu.read_later(pinned, from, bytes, stream) }?;
        gpu.wait(stream)?;
        gpu.use_context(second)?;
        // SAFETY: as above.
        unsafe { gpu.write_later(to, pinned, bytes, other) }?;
        gpu.wait(other)?;
        gpu.use_context(first)
    };
    let since = Instant::now();
    while !args.cold && since.elapsed() < WARM {
        direct(FIRST)?;
    }
    for bytes in args.sizes.iter().copied() {
        let (direct, staged) = (times(args, || direct(bytes))?, times(args, || staged(bytes))?);
        println!("{}", json!({"bytes": bytes, "direct": direct, "staged": staged}));
    }
    Ok(())
}

/// Nanoseconds of several copies; the first one is measured only if places need not be connected.
fn times(args: &BetweenArgs, copy: impl Fn() -> Done) -> Done<Vec<u64>> {
    if !args.cold {
        copy()?;
    }
    let (start, mut all) = (Instant::now(), Vec::new());
    while all.len() < args.count && (all.is_empty() || start.elapsed() < LIMIT) {
        let since = Instant::now();
        copy()?;
        all.push(since.elapsed().as_nanos() as u64);
    }
    Ok(all)
}
