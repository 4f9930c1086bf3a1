//! CTAs: their shared memory and barriers, and their scheduling over CPU threads.
//!
//! CTAs start in order. A CPU thread runs one to its end, unless it takes long and may therefore be waiting for others.
//! Then the thread takes more, twice as many each round, and runs them in turn, so that grids that synchronize as a
//! whole progress.

use cuda_api::lock::{into_inner, lock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::env::Env;
use super::error::Fault;
use super::machine::{BARRIERS, Barrier, Cta, SharedSymbols, Warp};
use super::operand::{LANES, Row};
use super::program::Program;
use super::special::{self, Place};
use super::warp::SliceEnd;

/// Instructions a warp issues before the next one's turn.
const SLICE: u32 = 4096;
/// Instructions a CTA issues before the next one's turn, if it is alone on its CPU thread or among others.
const TURN_ALONE: u64 = 1 << 16;
const TURN_SHARED: u64 = 1 << 13;
/// CTAs that one CPU thread keeps in flight.
const MAX_RESIDENT: usize = 8192;
/// Architectural limits of a launch.
const MAX_THREADS: u64 = 1024;
const MAX_SHARED: u64 = 227 << 10;
/// Bytes of the workspace that cooperative groups use to synchronise a grid.
const WORKSPACE: usize = 256;

/// A kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The module of the kernel.
    pub program: &'a Arc<Program>,
    /// Index into `Image::functions`.
    pub function: usize,
    /// CTAs in x, y and z.
    pub grid: [u32; 3],
    /// Threads in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory (bytes).
    pub dynamic_shared: u32,
    /// Parameter buffer, with the layout of `FunctionInfo::params`.
    pub params: &'a [u8],
    /// Whether grid-wide synchronization is allowed (a cooperative launch).
    pub cooperative: bool,
}

/// Statistics of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Instructions executed, counted per thread.
    pub thread_instructions: u64,
    /// Instructions issued, each for up to 32 threads.
    pub warp_instructions: u64,
}

/// A CTA in flight.
struct Block<'a> {
    cta: Cta<'a>,
    warps: Vec<Warp<'a>>,
}

enum Turn {
    Done,
    /// The CTA could go on.
    Expired,
    Fault(Fault),
}

impl Block<'_> {
    fn turn(&mut self, mut budget: u64) -> Turn {
        loop {
            let mut progress = false;
            for warp in &mut self.warps {
                if !warp.ready() {
                    continue;
                }
                progress = true;
                let issued = warp.issued;
                let end = warp.run_slice(&mut self.cta, SLICE);
                if end == SliceEnd::Fault {
                    return Turn::Fault(warp.fault.take().unwrap_or(Fault::Trap));
                }
                budget = budget.saturating_sub(warp.issued - issued);
            }
            progress |= self.release_barriers();
            if self.cta.live == 0 {
                return Turn::Done;
            }
            if !progress {
                return Turn::Fault(Fault::Timeout);
            }
            if budget == 0 {
                return Turn::Expired;
            }
        }
    }

    /// Lets go the threads of every barrier at which all have arrived; whether there was one.
    fn release_barriers(&mut self) -> bool {
        if !std::mem::take(&mut self.cta.barrier_changed) {
            return false;
        }
        let mut released = false;
        for id in 0..BARRIERS {
            let barrier = self.cta.barriers[id];
            // Exited threads count no more; a count is of whole warps, of which the last may be partial.
            let needed = barrier.count.map_or(self.cta.live, |n| n.min(self.cta.live));
            if barrier.arrived == 0 || barrier.arrived < needed {
                continue;
            }
            self.cta.barriers[id] = Barrier::default();
            released = true;
            let (all, any) = (barrier.truths == barrier.votes, barrier.truths > 0);
            for warp in &mut self.warps {
                warp.release_barrier(id as u32, barrier.truths, all, any);
            }
        }
        released
    }
}

/// What the CPU threads of a launch share.
struct Grid<'a> {
    env: &'a Env,
    launch: &'a Launch<'a>,
    shared_symbols: SharedSymbols,
    shared_bytes: u32,
    workspace: (u64, u64),
    ctas: u64,
    next: AtomicU64,
    stop: AtomicBool,
    fault: Mutex<Option<Fault>>,
    executed: AtomicU64,
    issued: AtomicU64,
}

impl<'a> Grid<'a> {
    fn block(&'a self, number: u64) -> Block<'a> {
        let launch = self.launch;
        let [gx, gy, _] = launch.grid.map(u64::from);
        let cta = [number % gx, number / gx % gy, number / gx / gy].map(|n| n as u32);
        let threads: u32 = launch.block.iter().product();
        let module = &*launch.program.code;
        let function = &module.functions[launch.function];
        let place = |warp| Place {
            grid: launch.grid,
            block: launch.block,
            cta,
            cta_number: number,
            warp,
            dynamic_shared: launch.dynamic_shared,
            total_shared: self.shared_bytes,
            workspace: self.workspace.0,
        };
        let warps = (0..threads.div_ceil(LANES as u32))
            .map(|w| {
                let lanes = (threads - w * 32).min(32);
                Warp::new(function, &self.shared_symbols, u32::MAX >> (32 - lanes), special::rows(&place(w)))
            })
            .collect();
        let cta = Cta {
            env: self.env,
            module,
            params: launch.params,
            shared: vec![0; self.shared_bytes as usize],
            barriers: [Barrier::default(); BARRIERS],
            barrier_changed: false,
            live: threads,
            number: cta,
            workspace: self.workspace,
        };
        Block { cta, warps }
    }

    fn take(&'a self) -> Option<Block<'a>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.ctas).then(|| self.block(number))
    }

    fn fail(&self, fault: Fault) {
        self.stop.store(true, Ordering::Relaxed);
        let mut first = lock(&self.fault);
        first.get_or_insert(fault);
    }

    /// Runs CTAs until none is left.
    fn work(&'a self) {
        let mut resident: Vec<Block<'a>> = Vec::new();
        loop {
            if resident.is_empty() {
                resident.extend(self.take());
                if resident.is_empty() {
                    return;
                }
            }
            let before = resident.len();
            let budget = if before == 1 { TURN_ALONE } else { TURN_SHARED };
            let mut at = 0;
            while at < resident.len() {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                if self.env.cancel.load(Ordering::Relaxed) {
                    return self.fail(Fault::Cancelled);
                }
                match resident[at].turn(budget) {
                    Turn::Expired => at += 1,
                    Turn::Done => {
                        let done = resident.remove(at);
                        for warp in &done.warps {
                            self.executed.fetch_add(warp.executed, Ordering::Relaxed);
                            self.issued.fetch_add(warp.issued, Ordering::Relaxed);
                        }
                    }
                    Turn::Fault(fault) => return self.fail(fault),
                }
            }
            if resident.len() == before {
                // Nothing ended: they may be waiting for CTAs that have not begun, or for other CPU threads.
                let room = MAX_RESIDENT.saturating_sub(before).min(before);
                resident.extend(std::iter::from_fn(|| self.take()).take(room));
                if resident.len() == before {
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// Runs a kernel to its end on the calling thread and `Env::threads - 1` more.
///
/// Errors: the first fault of any thread; memory then is as the kernel left it. A launch beyond the architectural
/// limits is an `IllegalInstruction`; the driver checks those before.
pub fn run(launch: &Launch<'_>, env: &Env) -> Result<RunStats, Fault> {
    let refuse = |why: &str| Err(Fault::IllegalInstruction(why.into()));
    let Some(info) = launch.program.image.functions.get(launch.function).filter(|f| f.is_kernel) else {
        return refuse("launch of something that is not a kernel");
    };
    let threads = launch.block.iter().map(|&n| u64::from(n)).try_fold(1u64, u64::checked_mul);
    let ctas = launch.grid.iter().map(|&n| u64::from(n)).try_fold(1u64, u64::checked_mul);
    let (Some(threads @ 1..=MAX_THREADS), Some(ctas @ 1..)) = (threads, ctas) else {
        return refuse("launch with an impossible shape");
    };
    if (launch.params.len() as u64) < u64::from(info.param_bytes()) {
        return refuse("launch with too few parameters");
    }
    let layout = launch.program.image.shared_layout(launch.function, launch.dynamic_shared);
    let Some(shared_bytes) = layout.bytes.filter(|&b| u64::from(b) <= MAX_SHARED) else {
        return refuse("launch with too much shared memory");
    };
    debug_assert!(threads <= MAX_THREADS);
    let workspace: Vec<AtomicU64> =
        if launch.cooperative { (0..WORKSPACE / 8).map(|_| AtomicU64::new(0)).collect() } else { Vec::new() };
    let start = if launch.cooperative { workspace.as_ptr() as u64 } else { 0 };
    let grid = Grid {
        env,
        launch,
        shared_symbols: SharedSymbols {
            narrow: layout.offsets.iter().map(|&o| Row([o; LANES])).collect(),
            wide: layout.offsets.iter().map(|&o| Row([u64::from(o); LANES])).collect(),
        },
        shared_bytes,
        workspace: (start, start + (workspace.len() * 8) as u64),
        ctas,
        next: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        fault: Mutex::new(None),
        executed: AtomicU64::new(0),
        issued: AtomicU64::new(0),
    };
    let workers = (env.threads as u64).clamp(1, ctas);
    std::thread::scope(|scope| {
        for _ in 1..workers {
            // Fewer threads than asked for are enough: every CTA will be run by those that there are.
            let _ = std::thread::Builder::new().name("softgpu-cta".into()).spawn_scoped(scope, || grid.work());
        }
        grid.work();
    });
    match into_inner(grid.fault) {
        Some(fault) => Err(fault),
        None => Ok(RunStats { thread_instructions: grid.executed.into_inner(), warp_instructions: grid.issued.into_inner() }),
    }
}
