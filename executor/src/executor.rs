//! The executor: applies calls to a real driver, on one GPU, for one job.

mod adopt;
mod aliases;
mod apply;
mod arrays;
mod at_rest;
mod checker;
mod chunks;
mod context_state;
mod copies;
mod direct;
mod ending;
mod evicted;
mod exclusive;
mod globals;
mod graph_calls;
mod graphs;
mod hashing;
mod holds;
mod host;
mod linker;
mod modules;
mod own;
mod peers;
mod pinned;
mod rebuild;
mod references;
mod rows;
mod spare_instances;
mod staged;
mod state;
mod streams;
mod tiles;
mod transfer;
mod view;

pub(crate) use context_state::ContextState;
pub use context_state::LANE_OF_JOB;
pub use direct::Direct;
pub use evicted::{Evictable, NotEvicted};
pub use globals::{Difference, Global, compare_globals};
pub use hashing::{Hashes, Span, Theirs};
pub use host::Busy;
pub use state::buffers::Pinned;
pub(crate) use state::host_calls::Call;
pub use state::host_calls::Runner;
pub use state::mappings::Shown;
pub use transfer::{Flight, Piece};
pub use view::{SourceMemoryError, joined};

use crate::device::DeviceInfo;
use crate::gpu::Gpu;
use crate::gpu_memory::GpuMemory;
use crate::limits::{Budget, Limits};
use crate::open::{Lease, OpenError, Options};
use crate::pools::Recorded;
use crate::staging::Staging;
use crate::steer;
use crate::turns::Turns;
use cuda_api::address_map::{ARENA, own_base, placed_base};
use cuda_api::board::Readings;
use cuda_api::calls::Driver;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Bindings, Cells, Kind, kind, slot};
use cuda_api::lock::read_lock;
use cuda_api::sys::CUdevice_attribute_enum as A;
use cuda_api::wire::{Short, Wire};
use rustc_hash::FxHashMap;
use state::arrays::Arrays;
use state::at_rest::AtRest;
use state::evicted::Evicted;
use state::gpu_areas::GpuAreas;
use state::graphs::Graphs;
use state::holds::Holds;
use state::host_calls::Hosts;
use state::mappings::{Aliases, Arenas, ChunkTable, Peers, Views};
use state::modules::Modules;
use state::pinned::PinnedMemory;
use std::cell::Cell;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard};

/// The streams that a synchronisation of the whole context must wait for.
#[derive(Debug, Default)]
struct Streams {
    /// The job's streams.
    live: Vec<LiveStream>,
    /// Streams that the job has destroyed and that have work: they are destroyed when it is over.
    ended: VecDeque<EndedStream>,
    /// Streams without work that the job has destroyed, to become others: what they were created with, and the driver's value. Creating and
    /// destroying a stream costs a driver some us each (docs/measurements.md, "Small graphs and short-lived streams").
    spares: VecDeque<(StreamOptions, u64)>,
}

/// What a stream is created with: its flags and its priority.
type StreamOptions = (u32, i32);

/// A stream of the job.
#[derive(Debug, Clone, Copy)]
struct LiveStream {
    /// The job's handle.
    stream: u64,
    /// The driver's value.
    live: u64,
    /// Whether it and the legacy default stream wait for each other.
    blocking: bool,
    /// What it was created with; none if that is not known or not all that was set.
    options: Option<StreamOptions>,
}

/// A stream that the job has destroyed.
#[derive(Debug)]
struct EndedStream {
    /// The driver's value.
    live: u64,
    /// As in [`LiveStream`].
    blocking: bool,
    /// As in [`LiveStream`].
    options: Option<StreamOptions>,
    /// Recorded behind its work, once somebody waits for that.
    mark: Option<Arc<Recorded>>,
}

/// Applies the calls of one job to one GPU. Calls may come from several threads; the callers order those that must stay in order. The
/// fields that launches read come first, to be in few cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Executor {
    /// Identifies the context that threads must have current: changes with each context, 0 when closed.
    ticket: AtomicU64,
    gpu: Gpu,
    context: AtomicUsize,
    /// Whether code was loaded that may print.
    can_print: AtomicBool,
    /// Whether a kernel that may print was launched.
    prints: AtomicBool,
    at_rest: AtRest,
    /// Whether the GPU can read pageable memory, so that the driver may leave it to the GPU, after the call.
    reads_pageable: bool,
    bindings: Bindings,
    device: DeviceInfo,
    virtual_device: u32,
    /// The context's state; written by a reset and by closing.
    life: RwLock<ContextState>,
    /// Copy of the event [`ContextState`]`::turn`, readable without the lock.
    turn: AtomicU64,
    /// The ranges of device memory that belong to the job.
    arenas: Arenas,
    chunks: Mutex<ChunkTable>,
    aliases: Mutex<Aliases>,
    evicted: Evicted,
    streams: Mutex<Streams>,
    modules: Mutex<Modules>,
    graphs: Mutex<Graphs>,
    arrays: Mutex<Arrays>,
    /// Functions and kernels that may print, by slot.
    printers: [Cells<AtomicU64>; 2],
    /// Sizes of the parameters of functions and kernels in bytes, by slot.
    params: [Cells<AtomicU64>; 2],
    /// The streams of the last launches of graph instances, by slot.
    last_streams: Cells<AtomicU64>,
    /// How often code or settings may have changed, so that no instance of a graph made before becomes another one.
    code_changes: AtomicU64,
    /// Offsets and sizes of the parameters of functions and kernels that are nodes of graphs.
    layouts: Mutex<FxHashMap<u64, Arc<[(u32, u32)]>>>,
    hosts: Arc<Hosts>,
    holds: Holds,
    staging: Staging,
    gpu_areas: Mutex<GpuAreas>,
    turns: Turns,
    peers: Peers,
    views: Views,
    /// Host memory of the job that is registered with the driver.
    pinned: Arc<PinnedMemory>,
    /// Locked for reading while a transfer is submitted, for writing while memory that transfers may use is unmapped.
    mapping: RwLock<()>,
    /// Held while pages are hashed.
    hashing: Mutex<()>,
    /// Whether physical memory is created for access by network cards (GPUDirect RDMA).
    rdma: bool,
    /// Limits on the job's use of the machine's memory; unset: none.
    limits: OnceLock<Limits>,
    memory: Arc<GpuMemory>,
    /// The lease of the driver library, until the executor is closed.
    lease: Mutex<Option<Lease>>,
}

thread_local! {
    /// Ticket of the context that is current on this thread.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    static UNTIL_THE_END: UntilTheEnd = const { UntilTheEnd };
}

/// Marks a thread that is ending: from then on its context is made current for each call, since the driver drops its state of the thread
/// at some time before the last destructors of the program.
struct UntilTheEnd;

impl Drop for UntilTheEnd {
    fn drop(&mut self) {
        CURRENT.set(0);
    }
}

/// Notes that the context with this ticket is current on this thread.
fn remember_current(ticket: u64) {
    if UNTIL_THE_END.try_with(|_| ()).is_ok() {
        CURRENT.set(ticket);
    }
}

/// Returns a number that is unique in this process.
fn fresh_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A body that is shorter than its fields is an error of the sender.
fn short(_: Short) -> Code {
    code::ERROR_INVALID_VALUE
}

fn handle(mut body: &[u8]) -> Result<u64, Code> {
    u64::get(&mut body).map_err(short)
}

impl Executor {
    /// Opens a place: loads and steers the driver, creates the primary context, reserves the job's arena at its address, and loads the
    /// executor's own code before anything else.
    ///
    /// # Errors
    /// Any problem with driver, GPU and addresses. Nothing remains then except the loaded library.
    pub fn open(o: &Options) -> Result<Arc<Executor>, OpenError> {
        let lease = crate::open::lease(o)?;
        let gpu = lease.gpu.clone();
        let failed = |what| move |code| OpenError::Call { what, code };
        let _placing = steer::Placing::enter(o.virtual_device);
        let context = gpu.retain().map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let built = (|| {
            gpu.set_current(context).map_err(failed("cuCtxSetCurrent"))?;
            gpu.relax_capture().map_err(failed("cuThreadExchangeStreamCaptureMode"))?;
            let device = DeviceInfo::ask(&gpu, &lease.path).map_err(failed("asking for the GPU's properties"))?;
            let want = own_base(o.virtual_device);
            let got = gpu.reserve(ARENA, want).map_err(failed("cuMemAddressReserve"))?;
            if got != want {
                // The result already is an error; this call can only fail for the same reason.
                let _ = gpu.unreserve(got, ARENA);
                return Err(OpenError::Address { want, got });
            }
            match ContextState::begin(&gpu, o.virtual_device, fresh_number()) {
                Ok(life) => Ok((device, life)),
                Err((what, code)) => {
                    let _ = gpu.unreserve(want, ARENA);
                    Err(OpenError::Call { what, code })
                }
            }
        })();
        let (device, life) = match built {
            Ok(built) => built,
            Err(e) => {
                // The first error is reported.
                let _ = gpu.release();
                return Err(e);
            }
        };
        let rdma = device.attribute(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED as i32) == Some(1);
        let reads_pageable = device.attribute(A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS as i32) == Some(1);
        let (ticket, turn) = (life.number, life.turn);
        remember_current(ticket);
        let arenas = Arenas::default();
        arenas.add(own_base(o.virtual_device));
        arenas.add(placed_base(o.virtual_device));
        Ok(Arc::new(Executor {
            arenas,
            gpu,
            device,
            virtual_device: o.virtual_device,
            bindings: Bindings::new(),
            life: RwLock::new(life),
            ticket: AtomicU64::new(ticket),
            context: AtomicUsize::new(context),
            turn: AtomicU64::new(turn),
            chunks: Mutex::default(),
            aliases: Mutex::default(),
            evicted: Evicted::default(),
            streams: Mutex::default(),
            modules: Mutex::default(),
            graphs: Mutex::default(),
            arrays: Mutex::default(),
            can_print: AtomicBool::new(false),
            prints: AtomicBool::new(false),
            at_rest: AtRest::default(),
            reads_pageable,
            printers: [Cells::new(), Cells::new()],
            params: [Cells::new(), Cells::new()],
            last_streams: Cells::new(),
            code_changes: AtomicU64::new(0),
            layouts: Mutex::default(),
            hosts: Arc::default(),
            holds: Holds::default(),
            staging: Staging::default(),
            gpu_areas: Mutex::default(),
            turns: Turns::default(),
            peers: Peers::default(),
            views: Views::default(),
            pinned: Arc::default(),
            mapping: RwLock::default(),
            hashing: Mutex::default(),
            rdma,
            limits: OnceLock::new(),
            memory: Arc::default(),
            lease: Mutex::new(Some(lease)),
        }))
    }

    /// Limits the job's use of memory; only the first call has an effect.
    pub fn limit(&self, limits: Limits) {
        self.limits.get_or_init(|| {
            self.pinned.budget.set_limit(limits.pinned);
            self.memory.set_limit(limits.memory);
            limits
        });
    }

    /// What the job may use of this machine's pinned memory.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.pinned.budget
    }

    /// What the GPU measures, from the place's NVML; nothing if it has none. It takes some milliseconds.
    pub fn readings(&self) -> Readings {
        crate::board::readings(Path::new(&self.device.driver_path), &self.device.uuid)
    }

    /// What the job uses of the GPU's memory.
    pub fn memory(&self) -> &Arc<GpuMemory> {
        &self.memory
    }

    fn limits(&self) -> Limits {
        self.limits.get().copied().unwrap_or(Limits::NONE)
    }

    /// The GPU.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// Free memory of the GPU now, in bytes, as far as the job may use it.
    pub fn free_bytes(&self) -> Result<u64, Code> {
        self.make_current()?;
        // What can be taken from the GPU is free.
        self.memory_info().map(|(free, _)| free + self.room_on_gpu())
    }

    /// Free and total memory of the GPU, whatever the job may use.
    pub fn whole_memory(&self) -> Result<(u64, u64), Code> {
        self.make_current()?;
        self.gpu.memory_info()
    }

    /// Free and total memory, as far as the job may use it.
    fn memory_info(&self) -> Result<(u64, u64), Code> {
        self.gpu.memory_info().map(|info| self.memory.within(info))
    }

    /// The driver's entry points, for direct calls. The context must be [current](Self::make_current) on the calling thread.
    pub fn driver(&self) -> &Driver {
        &self.gpu.0
    }

    /// The map from the job's handles to the driver's.
    pub fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    /// Whether a kernel that may print was launched. The driver shows printed text in the calls that wait (CUDA C++ Programming Guide,
    /// "Formatted Output"). The executor polls instead of waiting, so it makes such a call before it reports the end of a wait.
    pub fn prints(&self) -> bool {
        self.prints.load(Ordering::Relaxed)
    }

    fn printer(&self, function: u64) -> &AtomicU64 {
        self.printers[usize::from(kind(function) == Some(Kind::Kernel))].at(slot(function))
    }

    /// Notes that a function or kernel is about to be launched.
    pub(super) fn launches(&self, function: u64) {
        if self.can_print.load(Ordering::Relaxed) && self.printer(function).load(Ordering::Relaxed) == function {
            self.prints.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn life(&self) -> RwLockReadGuard<'_, ContextState> {
        read_lock(&self.life)
    }

    /// Makes the context current on this thread, if it is not.
    ///
    /// # Errors
    /// `DEINITIALIZED` if the executor is closed.
    #[inline]
    pub fn make_current(&self) -> Result<(), Code> {
        let ticket = self.ticket.load(Ordering::Acquire);
        if ticket != 0 && CURRENT.get() == ticket {
            return Ok(());
        }
        if ticket == 0 {
            return Err(code::ERROR_DEINITIALIZED);
        }
        self.gpu.set_current(self.context.load(Ordering::Acquire))?;
        self.gpu.relax_capture()?;
        remember_current(ticket);
        Ok(())
    }
}
