//! What each call costs in rounds of small graphs that are made, instantiated, launched, changed and destroyed: nanoseconds, and the
//! allocations of host memory where `malloc_count.c` counts them.
//!
//! With the driver that does nothing (`null_driver.c`) the figures are mrcuda's own:
//!
//!     mrcuda run --driver ./libcuda.null.so --server local -- env LD_PRELOAD=./malloc_count.so microbench graphs

use crate::error::Error;
use crate::gpu::{Done, Gpu};
use cuda_api::sys::{CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUmemorytype, CUstream};
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `microbench graphs`.
#[derive(Debug, clap::Args)]
pub(crate) struct GraphsArgs {
    /// The driver [default: what the dynamic linker finds]
    #[arg(long, default_value = "libcuda.so.1")]
    driver: PathBuf,
    /// Number of rounds
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,
}

/// Rounds before anything is measured.
const WARM: u32 = 50;
/// Bytes of a copy and of a fill.
const BYTES: usize = 2048;

/// Returns how many allocations the calling thread has made so far, if they are counted.
fn counter() -> Option<unsafe extern "C" fn() -> libc::c_ulong> {
    // SAFETY: a name that ends with a zero, looked up in the libraries that are loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc_count".as_ptr()) };
    // SAFETY: the function of `malloc_count.c`, whose type this is.
    (!found.is_null())
        .then(|| unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> libc::c_ulong>(found) })
}

/// The calls by name, in the order in which they are first made: the time of each, and the allocations of all.
struct Times {
    rows: Vec<(&'static str, Vec<u64>, u64)>,
    count: Option<unsafe extern "C" fn() -> libc::c_ulong>,
    /// What reading the clock twice takes.
    clock: u64,
}

impl Times {
    fn new() -> Times {
        let clock = (0..1000).map(|_| Instant::now().elapsed().as_nanos() as u64).min().unwrap_or_default();
        Times { rows: Vec::new(), count: counter(), clock }
    }

    fn allocations(&self) -> u64 {
        // SAFETY: a function without arguments that reads a number.
        self.count.map_or(0, |count| unsafe { count() })
    }

    fn of<T>(&mut self, name: &'static str, call: impl FnOnce() -> Done<T>) -> Done<T> {
        let (before, since) = (self.allocations(), Instant::now());
        let done = call();
        let ns = since.elapsed().as_nanos() as u64;
        let made = self.allocations() - before;
        let row = match self.rows.iter().position(|(known, ..)| *known == name) {
            Some(row) => row,
            None => {
                self.rows.push((name, Vec::new(), 0));
                self.rows.len() - 1
            }
        };
        let (_, times, allocations) = &mut self.rows[row];
        times.push(ns.saturating_sub(self.clock));
        *allocations += made;
        done
    }

    /// Prints the median time of each call, how often a round makes it, and its allocations.
    fn print(&mut self, rounds: u32) {
        println!("{:<28}{:>8}{:>12}{:>14}", "call", "a round", "ns, p50", "allocations");
        let (mut ns, mut all) = (0.0, 0.0);
        for (name, times, allocations) in &mut self.rows {
            times.sort_unstable();
            let (each, p50) = (times.len() as f64 / f64::from(rounds), times[times.len() / 2]);
            let made = *allocations as f64 / times.len() as f64;
            (ns, all) = (ns + each * p50 as f64, all + each * made);
            println!("{name:<28}{each:>8}{p50:>12}{:>14}", self.count.map_or("not counted".into(), |_| format!("{made:.2}")));
        }
        println!("{:<36}{ns:>12}{:>14}", "a round", self.count.map_or(String::new(), |_| format!("{all:.2}")));
    }
}

/// A copy from host memory to the device, or back.
fn copy(host: *mut u8, device: u64, to_host: bool) -> CUDA_MEMCPY3D {
    let (at_host, at_device) = (CUmemorytype::CU_MEMORYTYPE_HOST, CUmemorytype::CU_MEMORYTYPE_DEVICE);
    let (from, to) = if to_host { (at_device, at_host) } else { (at_host, at_device) };
    let nothing = std::ptr::null_mut();
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: from,
        srcHost: host.cast(),
        srcDevice: device,
        srcArray: nothing,
        reserved0: nothing.cast(),
        srcPitch: 0,
        srcHeight: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: to,
        dstHost: host.cast(),
        dstDevice: device,
        dstArray: nothing,
        reserved1: nothing.cast(),
        dstPitch: 0,
        dstHeight: 0,
        WidthInBytes: BYTES,
        Height: 1,
        Depth: 1,
    }
}

/// Makes the rounds, and prints what the calls took.
pub(crate) fn graphs(args: &GraphsArgs) -> Result<(), Error> {
    let gpu = Gpu::open(&args.driver)?;
    let context = gpu.current_context()?;
    let kernel = gpu.function(gpu.kernels()?, c"empty")?;
    let (stream, side): (CUstream, CUstream) = (gpu.stream()?, gpu.stream()?);
    let (fork, join) = (gpu.event()?, gpu.event()?);
    let (a, b) = (gpu.allocate(BYTES)?, gpu.allocate(BYTES)?);
    let pinned = gpu.pin(BYTES)?;
    let fill = CUDA_MEMSET_NODE_PARAMS { dst: a, pitch: 0, value: 1, elementSize: 1, width: BYTES, height: 1 };
    let mut times = Times::new();
    for round in 0..WARM + args.rounds {
        if round == WARM {
            times.rows.clear();
        }
        // Made node by node: a copy in, a kernel, a copy out, a fill behind the kernel.
        let salt = u64::from(round);
        let graph = times.of("create", || gpu.graph())?;
        let first = times.of("add copy", || gpu.add_copy(graph, &[], &copy(pinned, a, false), context))?;
        let middle = times.of("add kernel", || gpu.add_kernel(graph, &[first], kernel, &[a, salt, 2]))?;
        times.of("add copy", || gpu.add_copy(graph, &[middle], &copy(pinned, b, true), context))?;
        let last = times.of("add fill", || gpu.add_fill(graph, &[], &fill, context))?;
        times.of("add an edge", || gpu.add_edge(graph, middle, last))?;
        let instance = times.of("instantiate", || gpu.instantiate(graph))?;
        times.of("launch", || gpu.launch_graph(instance, stream))?;
        gpu.wait(stream)?;
        times.of("set a kernel's parameters", || gpu.set_kernel(instance, middle, kernel, &[a, salt + 1, 3]))?;
        times.of("launch", || gpu.launch_graph(instance, stream))?;
        gpu.wait(stream)?;
        times.of("destroy the instance", || gpu.end_instance(instance))?;
        times.of("destroy the graph", || gpu.end_graph(graph))?;
        // Captured: two kernels beside each other, and a fill.
        let capture = |times: &mut Times, salt: u64| {
            times.of("begin capture", || gpu.begin_capture(stream))?;
            times.of("record, captured", || gpu.record(fork, stream))?;
            times.of("wait for event, captured", || gpu.wait_event(side, fork))?;
            times.of("launch, captured", || gpu.launch(kernel, 1, 32, stream, &[a, salt, 2]))?;
            times.of("launch, captured", || gpu.launch(kernel, 1, 32, side, &[b, salt + 1, 2]))?;
            times.of("record, captured", || gpu.record(join, side))?;
            times.of("wait for event, captured", || gpu.wait_event(stream, join))?;
            times.of("fill, captured", || gpu.fill(a, 1, BYTES, stream))?;
            times.of("end capture", || gpu.end_capture(stream))
        };
        let graph = capture(&mut times, salt)?;
        let instance = times.of("instantiate, captured", || gpu.instantiate(graph))?;
        times.of("launch", || gpu.launch_graph(instance, stream))?;
        let other = capture(&mut times, salt + 7)?;
        times.of("update", || gpu.update(instance, other))?;
        times.of("launch", || gpu.launch_graph(instance, stream))?;
        times.of("destroy the graph", || gpu.end_graph(other))?;
        times.of("destroy the instance", || gpu.end_instance(instance))?;
        times.of("destroy the graph", || gpu.end_graph(graph))?;
        gpu.wait(stream)?;
        // Not of graphs, for comparison.
        times.of("record an event", || gpu.record(join, stream))?;
        times.of("launch a kernel", || gpu.launch(kernel, 1, 32, stream, &[a, salt, 2]))?;
        gpu.wait(stream)?;
    }
    times.print(args.rounds);
    Ok(())
}
