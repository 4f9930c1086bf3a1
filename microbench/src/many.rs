//! Many threads of one client: how many calls a second they make together.
//!
//! `microbench many` prints `{"ready":true}`, waits for a line, makes calls in all its threads for the given time, prints what it has
//! done, and ends with its input.

use crate::error::Error;
use crate::gpu::{Done, Gpu};
use serde_json::json;
use std::io::{BufRead, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Arguments of `microbench many`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManyArgs {
    /// The driver [default: what the dynamic linker finds]
    #[arg(long, default_value = "libcuda.so.1")]
    driver: PathBuf,
    /// Number of threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// How long they make calls, in milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    ms: u64,
}

/// Launches between two waits.
const BATCH: u32 = 20;

/// Serves one measurement.
pub(crate) fn many(args: &ManyArgs) -> Result<(), Error> {
    let gpu = Gpu::open(&args.driver)?;
    let module = gpu.kernels()?;
    let kernel = gpu.function(module, c"empty")? as usize;
    let context = gpu.current_context()? as usize;
    let memory = gpu.allocate(4096)?;
    let streams = (0..args.threads).map(|_| gpu.stream().map(|s| s as usize)).collect::<Result<Vec<_>, _>>()?;
    for stream in &streams {
        gpu.launch(kernel as _, 1, 32, *stream as _, &[memory, 1, 2])?;
        gpu.wait(*stream as _)?;
    }
    println!("{}", json!({"ready": true}));
    std::io::stdin().lock().read_line(&mut String::new())?;
    let (over, launches, waits) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let since = Instant::now();
    std::thread::scope(|scope| -> Done {
        let work = |stream: usize| {
            let (gpu, over, launches, waits) = (&gpu, &over, &launches, &waits);
            move || -> Done {
                gpu.use_context(context as _)?;
                while !over.load(Ordering::Relaxed) {
                    for _ in 0..BATCH {
                        gpu.launch(kernel as _, 1, 32, stream as _, &[memory, 1, 2])?;
                    }
                    gpu.wait(stream as _)?;
                    launches.fetch_add(u64::from(BATCH), Ordering::Relaxed);
                    waits.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        };
        let threads: Vec<_> = streams.iter().map(|stream| scope.spawn(work(*stream))).collect();
        std::thread::sleep(Duration::from_millis(args.ms));
        over.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(Error::Found("a thread panicked".into()))))
    })?;
    let seconds = since.elapsed().as_secs_f64();
    let done = json!({"launches": launches.into_inner(), "waits": waits.into_inner(), "seconds": seconds});
    println!("{done}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
