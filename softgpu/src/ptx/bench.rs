//! A micro-benchmark of the interpreter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Instant;

use super::env::{DeviceHeap, Env};
use super::grid::{Launch, run};
use super::image::Image;
use super::program::{Placement, Program};
use super::window::Ranges;

struct NoHeap;
impl DeviceHeap for NoHeap {
    fn malloc(&self, _: u64) -> u64 {
        0
    }
    fn free(&self, _: u64) -> bool {
        false
    }
}

/// Multiplies two matrices of `n` by `n` f32 on one CPU thread, by tiles of 16 in shared memory.
///
/// `n` is rounded up to a multiple of 16. Returns the thread-level instructions executed and the seconds taken;
/// `(0, 0.0)` if the kernel could not run.
pub fn bench_tiled_matmul(n: u32) -> (u64, f64) {
    let n = n.clamp(16, 4096).next_multiple_of(16);
    let Ok(image) = Image::parse(include_str!("testdata/matmul.ptx")) else {
        return (0, 0.0);
    };
    let program = Program::link(image, Placement::default());
    let cells = n as usize * n as usize;
    // Atomics, because the kernel writes behind the compiler's back.
    let matrix =
        |period: usize| -> Vec<AtomicU32> { (0..cells).map(|i| AtomicU32::new(((i % period) as f32).to_bits())).collect() };
    let (a, b, c) = (matrix(7), matrix(5), matrix(1));
    let bytes = cells as u64 * 4;
    let addresses = [a.as_ptr() as u64, b.as_ptr() as u64, c.as_ptr() as u64];
    let env = Env {
        ranges: Arc::new(Ranges::new(addresses.map(|start| (start, start + bytes)))),
        objects: Arc::default(),
        references: Arc::default(),
        heap: Arc::new(NoHeap),
        output: Arc::new(|_| {}),
        set_condition: |_, _| false,
        cancel: Arc::new(AtomicBool::new(false)),
        threads: 1,
        clock_hz: 1_000_000_000,
    };
    let mut params: Vec<u8> = addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
    params.extend_from_slice(&n.to_le_bytes());
    let launch = Launch {
        program: &program,
        function: 0,
        grid: [n / 16, n / 16, 1],
        block: [16, 16, 1],
        dynamic_shared: 0,
        params: &params,
        cooperative: false,
    };
    let start = Instant::now();
    match run(&launch, &env) {
        Ok(stats) => (stats.thread_instructions, start.elapsed().as_secs_f64()),
        Err(_) => (0, 0.0),
    }
}
