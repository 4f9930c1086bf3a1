//! `mill`: copies in, a burst of small launches on two streams, a wait, a copy out, now and then a module; again and again
//! until a file appears. What it has ground is carried from round to round and checked bit for bit against the host.
//!
//! It is what the kill matrix runs: each round passes every point at which something may happen to it.
//!
//! Usage: `mill --until FILE [--pad KIB]`; counts rounds on stderr. What it prints does not depend on their number. With `--pad`
//! every module is an image of its own with so much more text.
//! Exit code: 0 ok, 1 wrong result, 2 a CUDA call failed, 64 usage.

#[path = "../orbit/driver.rs"]
#[allow(dead_code)]
mod driver;

use driver::{CudaError, Gpu, Handle};
use faults::Point;
use std::path::{Path, PathBuf};

const KERNEL: &str = include_str!("mill.ptx");
/// Words of each buffer: three pieces of a copy.
const WORDS: usize = (9 << 20) / 4;
/// Launches in a burst, and words that each grinds.
const BURST: usize = 48;
const SLICE: usize = 4096;
/// Threads of a block.
const BLOCK: usize = 256;
/// A round with a module of its own comes after so many.
const MODULE_EVERY: u32 = 3;
/// The least number of rounds.
const ROUNDS: u32 = 3;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (file, pad) = match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--until", file] => (*file, 0),
        ["--until", file, "--pad", kib] => (*file, kib.parse::<usize>().unwrap_or_else(|_| usage()) << 10),
        _ => usage(),
    };
    let gpu = Gpu::open().unwrap_or_else(|e| fail(&e.to_string()));
    match run(&gpu, &PathBuf::from(file), pad) {
        Ok(right) => {
            if let Err(e) = gpu.close() {
                fail(&e.to_string());
            }
            println!("{WORDS} words\nRESULT {}", if right { "ok" } else { "wrong" });
            std::process::exit(i32::from(!right));
        }
        Err(e) => fail(&e.to_string()),
    }
}

fn usage() -> ! {
    eprintln!("usage: mill --until FILE [--pad KIB]");
    std::process::exit(64)
}

fn fail(why: &str) -> ! {
    eprintln!("mill: {why}");
    std::process::exit(2)
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// What is copied in at a round.
fn grain(round: u32) -> Vec<u32> {
    (0..WORDS as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ round).collect()
}

/// One module and the host's idea of what its variable holds.
struct Stone {
    module: Handle,
    grind: Handle,
    ground: u32,
}

impl Stone {
    fn new(gpu: &Gpu, number: u32, pad: usize) -> Result<Stone, CudaError> {
        let module = gpu.load(&if pad > 0 { format!("{KERNEL}// {number} {}\n", "-".repeat(pad)) } else { KERNEL.to_owned() })?;
        Ok(Stone { module, grind: gpu.function(module, "grind")?, ground: 0 })
    }

    /// Whether the variable is right.
    fn check(&self, gpu: &Gpu) -> Result<bool, CudaError> {
        let (address, bytes) = gpu.global(self.module, "ground")?;
        Ok(gpu.read(address, bytes)? == self.ground.to_le_bytes())
    }
}

/// Runs until the file is there; answers whether everything was right.
fn run(gpu: &Gpu, until: &Path, pad: usize) -> Result<bool, CudaError> {
    let mut acc: Vec<u32> = (0..WORDS as u32).map(|i| i ^ 0x5555_5555).collect();
    let there = gpu.allocate(&bytes(&acc))?;
    let input = gpu.allocate(&bytes(&grain(0)))?;
    let streams = [gpu.stream()?, gpu.stream()?];
    let mut stone = Stone::new(gpu, 0, pad)?;
    let mut right = true;
    let mut round = 0;
    while round < ROUNDS || !until.exists() {
        let grain = grain(round);
        gpu.write(input, &bytes(&grain))?;
        let mut other = if round % MODULE_EVERY == MODULE_EVERY - 1 { Some(Stone::new(gpu, round, pad)?) } else { None };
        for n in 0..BURST {
            if n == BURST / 2 {
                faults::at(Point::Launch);
            }
            // A slice belongs to a stream, so that its order is that of the turns.
            let slot = (n + round as usize * 7) % (WORDS / SLICE);
            let used = other.as_mut().filter(|_| n % 5 == 0).unwrap_or(&mut stone);
            let turn = round * BURST as u32 + n as u32;
            let params = [there, input, (slot * SLICE) as u64, u64::from(turn)];
            gpu.launch(used.grind, (SLICE / BLOCK) as u32, BLOCK as u32, streams[slot % 2], &params)?;
            used.ground = used.ground.wrapping_add(SLICE as u32);
            for i in slot * SLICE..(slot + 1) * SLICE {
                acc[i] = acc[i].wrapping_mul(1_664_525).wrapping_add(grain[i]).wrapping_add(turn);
            }
        }
        gpu.synchronize()?;
        right &= gpu.read(there, WORDS * 4)? == bytes(&acc) && stone.check(gpu)?;
        if let Some(other) = other {
            right &= other.check(gpu)?;
            gpu.unload(other.module)?;
        }
        round += 1;
        eprintln!("round {round}{}", if right { "" } else { ": wrong" });
    }
    for s in streams {
        gpu.end_stream(s)?;
    }
    gpu.unload(stone.module)?;
    gpu.free(there)?;
    gpu.free(input)?;
    Ok(right)
}
