//! Launches: limits are checked at the call, execution is in stream order, faults are recorded.

use super::live::Live;
use super::module::Function;
use super::sched::Work;
use super::stream::Target;
use super::{allocation, condition, device, lock, memory, output, texture};
use crate::ptx::{self, DeviceHeap, Env, Fault, FunctionInfo, Launch, Objects};
use crate::result::Res;
use cuda_api::lock::read_lock;
use cuda_api::sys::CUresult;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

/// The shape of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// Whether all blocks run concurrently and may wait for each other.
    pub cooperative: bool,
}

/// Maximum threads of a block of a function.
pub(crate) fn max_threads(info: &FunctionInfo) -> u32 {
    info.max_threads.unwrap_or(1024).min(1024)
}

/// The errors that the launch itself returns.
pub(crate) fn check(function: &Function, shape: &Shape) -> Res {
    let [gx, gy, gz] = shape.grid;
    let [bx, by, bz] = shape.block;
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    let grid = (1..=i32::MAX as u32).contains(&gx) && (1..=65_535).contains(&gy) && (1..=65_535).contains(&gz);
    let block = (1..=1024).contains(&bx) && (1..=1024).contains(&by) && (1..=64).contains(&bz);
    if !grid || !block || u64::from(bx) * u64::from(by) * u64::from(bz) > u64::from(max_threads(function.info())) {
        return Err(bad);
    }
    // Width, height and depth that every launch must have: there are no clusters.
    if function.attributes.clusters[1..4].iter().any(|n| n.load(Ordering::Relaxed) > 1) {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    if i64::from(shape.shared) > i64::from(function.attributes.max_dynamic_shared.load(Ordering::Relaxed)) {
        return Err(if shape.cooperative { CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE } else { bad });
    }
    if shape.cooperative {
        let resident =
            device::multiprocessors() * blocks_per_multiprocessor(function.info(), bx * by * bz, u64::from(shape.shared));
        if u64::from(gx) * u64::from(gy) * u64::from(gz) > u64::from(resident) {
            return Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    Ok(())
}

/// Submits a kernel to the stream of `target`, with its parameters packed in the code's layout.
pub(crate) fn launch(function: Arc<Function>, target: &Target, shape: Shape, params: Vec<u8>) -> Res {
    if !function.belongs_to(&target.live) {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    check(&function, &shape)?;
    drop(read_lock(&target.live.loading));
    if function.program.image.prints {
        lock(&target.live.limits).printf_used = true;
    }
    // References are bound when a kernel is launched, whenever it runs.
    let references = texture::references(target.live.number);
    target.submit(Work::Kernel(Box::new(move |live| run(live, &function, &shape, &params, references))), Vec::new());
    Ok(())
}

/// Number of CPU threads for a kernel; queried once, since the system reads files to answer.
static THREADS: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// Counts a kernel as running for as long as it exists.
struct Running {
    /// Number of its context.
    context: u64,
}

impl Running {
    fn begin(live: &Live) -> (Running, Arc<ptx::Ranges>) {
        let mut memory = memory::write();
        let ranges = memory.snapshot(live);
        memory.retired.kernel_begins(live.number, ranges.clone());
        (Running { context: live.number }, ranges)
    }

    /// Whether memory was accessed that had been unmapped meanwhile.
    fn end(self) -> bool {
        let context = self.context;
        std::mem::forget(self);
        memory::write().retired.kernel_ends(context)
    }
}

impl Drop for Running {
    /// Set only if the interpreter panicked.
    fn drop(&mut self) {
        memory::write().retired.kernel_ends(self.context);
        output::complain("softgpu: the interpreter failed\n");
    }
}

/// The heap of a context without code that allocates.
struct NoHeap;

impl DeviceHeap for NoHeap {
    fn malloc(&self, _: u64) -> u64 {
        0
    }

    fn free(&self, address: u64) -> bool {
        address == 0
    }
}

/// Runs a kernel of a graph to its end. What references such a kernel would see is not defined (CUDA driver API reference,
/// `cuGraphAddKernelNode`): here nothing, which is a fault.
pub(crate) fn run_node(live: &Live, function: &Function, shape: &Shape, params: &[u8]) -> Res {
    run(live, function, shape, params, Arc::default())
}

/// Runs a kernel to its end.
fn run(live: &Live, function: &Function, shape: &Shape, params: &[u8], references: Arc<Objects>) -> Res {
    // Code that allocates had the heap made when it was loaded.
    let heap: Arc<dyn DeviceHeap> = if live.has_heap() { allocation::heap(live)? } else { Arc::new(NoHeap) };
    let output = live.output.clone();
    let fifo = lock(&live.limits).printf;
    let (running, ranges) = Running::begin(live);
    let env = Env {
        ranges,
        objects: texture::of_context(live.number),
        references,
        heap,
        output: Arc::new(move |text: &[u8]| output.print(text, fifo)),
        set_condition: condition::set,
        cancel: live.cancel.clone(),
        threads: *THREADS,
        clock_hz: 1_980_000_000,
    };
    let launch = Launch {
        program: &function.program,
        function: function.index,
        grid: shape.grid,
        block: shape.block,
        dynamic_shared: shape.shared,
        params,
        cooperative: shape.cooperative,
    };
    let outcome = ptx::run(&launch, &env);
    let used_gone_memory = running.end();
    match outcome {
        Err(fault) => fail(live, function, fault),
        Ok(_) if used_gone_memory => Err(report(function, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "use of unmapped memory")),
        Ok(_) => Ok(()),
    }
}

fn report(function: &Function, code: CUresult, what: &str) -> CUresult {
    output::complain(&format!("softgpu: kernel {}: {what}\n", function.info().name));
    code
}

fn fail(live: &Live, function: &Function, fault: Fault) -> Res {
    let (code, what) = match fault {
        Fault::Cancelled => return Ok(()),
        Fault::Assert(text) => {
            live.output.assertion(&text);
            return Err(CUresult::CUDA_ERROR_ASSERT);
        }
        Fault::IllegalAddress(at) => (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, format!("illegal address {at:#x}")),
        Fault::MisalignedAddress(at) => (CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, format!("misaligned address {at:#x}")),
        Fault::IllegalInstruction(what) => (CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION, format!("illegal instruction: {what}")),
        Fault::Trap => (CUresult::CUDA_ERROR_LAUNCH_FAILED, "trap".to_owned()),
        Fault::InvalidPc(at) => (CUresult::CUDA_ERROR_INVALID_PC, format!("no code at {at:#x}")),
        Fault::Timeout => (CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, "timeout".to_owned()),
    };
    Err(report(function, code, &what))
}

/// Blocks of `threads` threads and `dynamic` bytes of shared memory that a multiprocessor holds at once.
pub(crate) fn blocks_per_multiprocessor(info: &FunctionInfo, threads: u32, dynamic: u64) -> u32 {
    let warps = threads.div_ceil(32).max(1);
    let registers = info.num_regs.clamp(1, 255).next_multiple_of(8) * warps * 32;
    let shared = u64::from(info.static_shared) + dynamic;
    if threads > 1024 || shared > u64::from(device::SHARED_OPTIN) || registers > device::REGISTERS {
        return 0;
    }
    let by_shared = u64::from(device::SHARED_PER_SM) / (shared + u64::from(device::SHARED_RESERVED)).next_multiple_of(128);
    let by_threads = device::THREADS_PER_SM / (warps * 32);
    device::BLOCKS_PER_SM.min(by_threads).min(device::REGISTERS / registers).min(by_shared as u32)
}
