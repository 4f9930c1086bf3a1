//! Cost of driver calls, as the program sees it: the time from a call to its return.

use crate::gpu::{Done, Gpu};
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `microbench calls`.
#[derive(Debug, clap::Args)]
pub(crate) struct CallsArgs {
    /// Calls of each kind
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..))]
    count: u32,
    /// What to call this measurement
    #[arg(long, default_value = "native")]
    label: String,
    /// Start, warm up, then wait for this file before measuring: time to move the program
    #[arg(long, value_name = "FILE")]
    after: Option<PathBuf>,
}

/// Maximum duration that the histogram resolves, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;
/// Device attribute: multiprocessors.
const MULTIPROCESSORS: u32 = 16;

/// Measures everything and prints it.
pub(crate) fn calls(args: &CallsArgs) -> Result<(), String> {
    let gpu = Gpu::open()?;
    let module = gpu.kernels()?;
    let empty = gpu.function(module, c"empty")?;
    let stream = gpu.stream()?;
    let event = gpu.event()?;
    let memory = gpu.allocate(1 << 20)?;
    let launch = || gpu.launch(empty, 1, 32, stream, &[memory, 1, 2]);
    let mut bytes = vec![7; 64 << 10];
    for _ in 0..50 {
        launch()?;
    }
    gpu.wait(stream)?;
    if let Some(file) = &args.after {
        while !file.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    let mut results = Map::new();
    let mut run = |name: &str, each: u32, f: &mut dyn FnMut() -> Done| -> Done {
        let mut times = Histogram::<u64>::new_with_bounds(1, LONGEST, 3).map_err(|e| e.to_string())?;
        for _ in 0..args.count.div_ceil(each) {
            let start = Instant::now();
            for _ in 0..each {
                f()?;
            }
            times.saturating_record(start.elapsed().as_nanos() as u64 / u64::from(each));
            // Queued work must not affect the next call.
            gpu.wait(stream)?;
        }
        results.insert(name.to_owned(), percentiles(&times));
        Ok(())
    };
    run("launch", 20, &mut || launch())?;
    run("launch and wait", 1, &mut || launch().and_then(|()| gpu.wait(stream)))?;
    run("wait, nothing queued", 1, &mut || gpu.wait(stream))?;
    run("copy in 64 B", 1, &mut || gpu.write(memory, &[1; 64]))?;
    run("copy in 64 KiB", 1, &mut || gpu.write(memory, &[1; 64 << 10]))?;
    run("copy out 64 B", 1, &mut || gpu.read(&mut bytes[..64], memory))?;
    run("copy out 64 KiB", 1, &mut || gpu.read(&mut bytes, memory))?;
    run("fill 4 KiB", 20, &mut || gpu.fill(memory, 3, 4096, stream))?;
    run("allocate and free 1 MiB", 1, &mut || gpu.allocate(1 << 20).and_then(|a| gpu.free(a)))?;
    run("record event", 20, &mut || gpu.record(event, stream))?;
    run("record and wait for event", 1, &mut || gpu.record(event, stream).and_then(|()| gpu.reach(event)))?;
    run("make and end event", 1, &mut || gpu.event().and_then(|e| gpu.end_event(e)))?;
    run("make and end stream", 1, &mut || gpu.stream().and_then(|s| gpu.end_stream(s)))?;
    run("query free memory", 1, &mut || gpu.free_bytes().map(drop))?;
    run("query attribute", 20, &mut || gpu.attribute(MULTIPROCESSORS).map(drop))?;
    println!(
        "{}",
        json!({"measures": "calls", "label": args.label, "gpu": gpu.name()?, "unit": "ns", "calls": Value::Object(results)})
    );
    Ok(())
}

fn percentiles(times: &Histogram<u64>) -> Value {
    json!({"p50": times.value_at_quantile(0.5), "p90": times.value_at_quantile(0.9), "p99": times.value_at_quantile(0.99),
        "max": times.max(), "mean": times.mean(), "n": times.len()})
}
