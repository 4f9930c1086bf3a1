//! `orbit`: bodies that pull at each other, thousands of small steps on two streams that wait for each other by event.
//!
//! An ordinary CUDA program on the driver API, with its kernels as PTX: the demo moves it while it works. It keeps addresses
//! in device memory, checks its result bit for bit against the host, and prints a digest of every allocation and variable.
//!
//! Usage: `orbit [--steps N] [--pace MICROSECONDS] [--progress] [--reports] [--reset] [--arch ARCH]`; `--progress` counts steps on stderr;
//! `--arch sm_90a` makes its code one for this architecture. Where the environment
//! variable `ORBIT_END` names a file, it ends after the next 500 steps once that file is there, and after its last step waits for the file, so that
//! a test's moves find it however slow the machine is. What it then prints is a part of what `--reports` prints: the report after every
//! 500 steps.
//!
//! Exit code: 0 ok, 1 wrong result, 2 a CUDA call failed, 64 usage.

mod driver;
mod host;

use driver::{Address, CudaError, Gpu, Handle};
use host::{HALF, SKY_WORDS, TWINKLE_EVERY, TWINKLES, World, digest, floats, words};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const KERNELS: &str = include_str!("orbit.ptx");
/// What they were compiled for.
const COMPILED_FOR: &str = ".target sm_75\n";
/// Steps that are queued at a time: a stream's events are reused after that many.
const DEPTH: usize = 6;
/// Steps between reports, and after which it may end early.
const REPORT: u32 = 500;
/// The longest wait for the file that lets it end: a test that fails does not leave it behind for ever.
const END: Duration = Duration::from_secs(180);

struct Options {
    steps: u32,
    pace: Duration,
    progress: bool,
    /// Report after every [`REPORT`] steps.
    reports: bool,
    /// Reset the GPU before anything else.
    reset: bool,
    /// The target of the PTX, instead of what it was compiled for.
    arch: Option<String>,
    /// It may end once this file is there.
    end: Option<PathBuf>,
}

fn main() {
    let Some(options) = options() else {
        eprintln!("usage: orbit [--steps N] [--pace MICROSECONDS] [--progress] [--reports] [--reset] [--arch ARCH]");
        std::process::exit(64);
    };
    let gpu = Gpu::open().unwrap_or_else(|e| fail(&e.to_string()));
    if options.reset {
        gpu.reset().unwrap_or_else(|e| fail(&e.to_string()));
    }
    match run(&gpu, &options) {
        Ok(right) => {
            if let Err(e) = gpu.close() {
                fail(&e.to_string());
            }
            print_result(right);
            std::process::exit(i32::from(!right));
        }
        Err(e) => fail(&e.to_string()),
    }
}

fn print_result(right: bool) {
    println!("RESULT {}", if right { "ok" } else { "wrong" });
}

fn fail(why: &str) -> ! {
    eprintln!("orbit: {why}");
    std::process::exit(2)
}

fn options() -> Option<Options> {
    let end = std::env::var_os("ORBIT_END").map(PathBuf::from);
    let mut options =
        Options { steps: 1000, pace: Duration::ZERO, progress: false, reports: false, reset: false, arch: None, end };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--steps" => options.steps = args.next()?.parse().ok()?,
            "--pace" => options.pace = Duration::from_micros(args.next()?.parse().ok()?),
            "--progress" => options.progress = true,
            "--reports" => options.reports = true,
            "--reset" => options.reset = true,
            "--arch" => options.arch = Some(args.next()?),
            _ => return None,
        }
    }
    Some(options)
}

/// Everything on the GPU.
struct Scene {
    module: Handle,
    advance: Handle,
    twinkle: Handle,
    streams: [Handle; 2],
    /// `done[half][parity]`: that half has made a step of that parity.
    done: [[Handle; 2]; 2],
    /// Keep the queues short: one event for each step in flight.
    window: [[Handle; DEPTH]; 2],
    tracks: [Address; 2],
    velocity: Address,
    sky: Address,
    trail: Address,
}

impl Scene {
    fn new(gpu: &Gpu, world: &World, arch: Option<&str>) -> Result<Scene, CudaError> {
        let code = arch.map(|arch| KERNELS.replace(COMPILED_FOR, &format!(".target {arch}\n")));
        let module = gpu.load(code.as_deref().unwrap_or(KERNELS))?;
        let pair = || -> Result<[Handle; 2], CudaError> { Ok([gpu.event()?, gpu.event()?]) };
        let window = || -> Result<[Handle; DEPTH], CudaError> {
            let mut events = [std::ptr::null_mut(); DEPTH];
            for event in &mut events {
                *event = gpu.event()?;
            }
            Ok(events)
        };
        let scene = Scene {
            module,
            advance: gpu.function(module, "advance")?,
            twinkle: gpu.function(module, "twinkle")?,
            streams: [gpu.stream()?, gpu.stream()?],
            done: [pair()?, pair()?],
            window: [window()?, window()?],
            tracks: [gpu.allocate(&floats(&world.tracks[0]))?, gpu.allocate(&floats(&world.tracks[1]))?],
            velocity: gpu.allocate(&floats(&world.velocity))?,
            sky: gpu.allocate(&words(&world.sky))?,
            trail: gpu.allocate(&floats(&world.trail))?,
        };
        let begin = gpu.function(module, "begin")?;
        gpu.launch(begin, 1, 1, scene.streams[0], &scene.tracks)?;
        gpu.synchronize()?;
        Ok(scene)
    }

    /// Queues one step.
    fn step(&self, gpu: &Gpu, step: u32) -> Result<(), CudaError> {
        let from = (step % 2) as usize;
        for half in 0..2 {
            let stream = self.streams[half];
            // The other half must have finished the step before: it wrote what is read here, and read what is overwritten.
            if step > 0 {
                gpu.wait(stream, self.done[1 - half][1 - from])?;
            }
            gpu.launch(self.advance, 2, (HALF / 2) as u32, stream, &[self.velocity, from as u64, half as u64])?;
            if step.is_multiple_of(TWINKLE_EVERY) && half == 0 {
                let slot = u64::from(step / TWINKLE_EVERY);
                gpu.copy(self.trail + slot * 16, self.tracks[1 - from], 16, stream)?;
                gpu.launch(self.twinkle, 1, TWINKLES, stream, &[self.sky, SKY_WORDS as u64, u64::from(step)])?;
            }
            gpu.record(self.done[half][from], stream)?;
            let slot = self.window[half][step as usize % DEPTH];
            if step as usize >= DEPTH {
                gpu.reach(slot)?;
            }
            gpu.record(slot, stream)?;
        }
        Ok(())
    }

    /// Prints what there is on the GPU after so many steps, and whether the host's own computation (`world`) has the same.
    fn report(&self, gpu: &Gpu, world: &World, steps: u32) -> Result<bool, CudaError> {
        gpu.synchronize()?;
        println!("steps {steps}");
        let mut right = true;
        let mut report = |kind: &str, name: &str, address: Address, want: &[u8]| -> Result<(), CudaError> {
            let got = gpu.read(address, want.len())?;
            println!("{kind} {name} {} {:016x}", got.len(), digest(&got));
            if let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) {
                eprintln!("orbit: {name} differs from the host's own result at byte {at} of {}", want.len());
                right = false;
            }
            Ok(())
        };
        for (name, track, address) in [("track0", 0, self.tracks[0]), ("track1", 1, self.tracks[1])] {
            report("alloc", name, address, &floats(&world.tracks[track]))?;
        }
        report("alloc", "velocity", self.velocity, &floats(&world.velocity))?;
        report("alloc", "sky", self.sky, &words(&world.sky))?;
        report("alloc", "trail", self.trail, &floats(&world.trail))?;
        for (name, want) in [("octants", words(&world.octants)), ("steps_done", words(&world.steps_done))] {
            let (address, bytes) = gpu.global(self.module, name)?;
            report("global", name, address, &want[..bytes.min(want.len())])?;
        }
        // What this variable holds are addresses: they must be what they were at the start.
        let (address, bytes) = gpu.global(self.module, "tracks")?;
        let kept = gpu.read(address, bytes)?;
        let want: Vec<u8> = self.tracks.iter().flat_map(|a| a.to_le_bytes()).collect();
        println!("global tracks {bytes} {}", if kept == want { "kept" } else { "lost" });
        Ok(right && kept == want)
    }

    fn end(&self, gpu: &Gpu) -> Result<(), CudaError> {
        for event in self.done.iter().flatten().chain(self.window.iter().flatten()) {
            gpu.end_event(*event)?;
        }
        for stream in self.streams {
            gpu.end_stream(stream)?;
        }
        for address in self.tracks.into_iter().chain([self.velocity, self.sky, self.trail]) {
            gpu.free(address)?;
        }
        gpu.unload(self.module)
    }
}

/// Runs the whole program; answers whether the result is right.
fn run(gpu: &Gpu, options: &Options) -> Result<bool, CudaError> {
    let mut world = World::new(options.steps);
    let scene = Scene::new(gpu, &world, options.arch.as_deref())?;
    if options.progress {
        eprintln!("orbit: {} bodies on {}", host::BODIES, gpu.name()?);
    }
    // Steps that the host has computed itself.
    let mut computed = 0;
    let mut report = |steps: u32| {
        (computed..steps).for_each(|step| world.advance(step));
        computed = steps;
        scene.report(gpu, &world, steps)
    };
    let mut made = options.steps;
    for step in 0..options.steps {
        if step > 0 && step.is_multiple_of(REPORT) {
            if options.reports {
                print_result(report(step)?);
            }
            if options.end.as_deref().is_some_and(Path::exists) {
                made = step;
                break;
            }
        }
        scene.step(gpu, step)?;
        if options.progress && step % 10 == 9 {
            eprintln!("step {} of {}", step + 1, options.steps);
        }
        if !options.pace.is_zero() {
            std::thread::sleep(options.pace);
        }
    }
    if let Some(end) = options.end.as_deref().filter(|_| made == options.steps) {
        let begun = Instant::now();
        while !end.exists() && begun.elapsed() < END {
            gpu.synchronize()?;
            std::thread::sleep(options.pace.max(Duration::from_millis(1)));
        }
    }
    let right = report(made)?;
    scene.end(gpu)?;
    Ok(right)
}
