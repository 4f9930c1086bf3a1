//! The executor: applies calls to a real driver, on one GPU, for one job.

mod aliases;
mod arrays;
mod checker;
mod context_state;
mod copies;
mod direct;
mod graph_calls;
mod graphs;
mod holds;
pub(crate) mod host;
mod linker;
mod modules;
mod own;
mod peers;
mod pinned;
mod references;
mod rows;
mod streams;
mod tiles;
mod transfer;
mod view;

pub use direct::Direct;
pub use modules::{Difference, Global, compare_globals};
pub use transfer::{Flight, Piece, Pinned};
pub use view::{Shown, joined};

use crate::device::DeviceInfo;
use crate::gpu::Gpu;
use crate::limits::Limits;
use crate::open::{Lease, OpenError, Options};
use crate::pending::{Applied, Mark, Pending};
use crate::pools::lock;
use crate::steer;
use aliases::Aliases;
use context_state::ContextState;
use cuda_api::calls::Driver;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Bindings, Cells, Kind, kind, slot};
use cuda_api::ops::{Chunk, CopyDevice, EventRecord, Fill, StreamWaitEvent, id};
use cuda_api::sys::CUdevice_attribute_enum as A;
use cuda_api::wire::{Short, Wire};
use host::Hosts;
use modules::Modules;
use pinned::PinnedMemory;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use streams::Streams;

/// Granularity of chunks.
const GRANULE: u64 = 2 << 20;

/// A mapped chunk.
#[derive(Debug)]
struct Mapped {
    bytes: u64,
    /// The driver's handle of the physical memory.
    memory: u64,
    /// Number of the memory, unique in the process.
    number: u64,
}

/// Applies the calls of one job to one GPU. Calls may come from several threads; the callers order those that must stay in order.
#[derive(Debug)]
pub struct Executor {
    gpu: Gpu,
    device: DeviceInfo,
    virtual_device: u32,
    bindings: Bindings,
    /// The context's state; written by a reset and by closing.
    life: RwLock<ContextState>,
    /// Identifies the context that threads must have current: changes with each context, 0 when closed.
    ticket: AtomicU64,
    context: AtomicUsize,
    /// Copy of the event [`ContextState`]`::turn`, readable without the lock.
    turn: AtomicU64,
    /// The ranges of device memory that belong to the job.
    arenas: checker::Arenas,
    chunks: Mutex<BTreeMap<u64, Mapped>>,
    aliases: Mutex<Aliases>,
    streams: Mutex<Streams>,
    modules: Mutex<Modules>,
    graphs: Mutex<graphs::Graphs>,
    arrays: Mutex<arrays::Arrays>,
    /// Whether code was loaded that may print.
    can_print: AtomicBool,
    /// Whether a kernel that may print was launched.
    prints: AtomicBool,
    /// Functions and kernels that may print, by slot.
    printers: [Cells<AtomicU64>; 2],
    /// Sizes of the parameters of functions and kernels in bytes, by slot.
    params: [Cells<AtomicU64>; 2],
    hosts: Arc<Hosts>,
    holds: holds::Holds,
    peers: peers::Peers,
    views: view::Views,
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

/// Handles of objects that are destroyed with their context. Libraries and their kernels are not.
const ENDING_WITH_CONTEXT: [Kind; 9] = [
    Kind::Stream,
    Kind::Event,
    Kind::Module,
    Kind::Function,
    Kind::GraphExec,
    Kind::Array,
    Kind::Mipmap,
    Kind::TextureRef,
    Kind::SurfaceRef,
];

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
            let want = steer::own_base(o.virtual_device);
            let got = gpu.reserve(steer::ARENA, want).map_err(failed("cuMemAddressReserve"))?;
            if got != want {
                // The result already is an error; this call can only fail for the same reason.
                let _ = gpu.unreserve(got, steer::ARENA);
                return Err(OpenError::Address { want, got });
            }
            match ContextState::begin(&gpu, o.virtual_device, fresh_number()) {
                Ok(life) => Ok((device, life)),
                Err((what, code)) => {
                    let _ = gpu.unreserve(want, steer::ARENA);
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
        let (ticket, turn) = (life.number, life.turn);
        remember_current(ticket);
        let arenas = checker::Arenas::default();
        arenas.add(steer::own_base(o.virtual_device));
        arenas.add(steer::placed_base(o.virtual_device));
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
            streams: Mutex::default(),
            modules: Mutex::default(),
            graphs: Mutex::default(),
            arrays: Mutex::default(),
            can_print: AtomicBool::new(false),
            prints: AtomicBool::new(false),
            printers: [Cells::new(), Cells::new()],
            params: [Cells::new(), Cells::new()],
            hosts: Arc::default(),
            holds: holds::Holds::default(),
            peers: peers::Peers::default(),
            views: view::Views::default(),
            pinned: Arc::default(),
            mapping: RwLock::default(),
            hashing: Mutex::default(),
            rdma,
            limits: OnceLock::new(),
            lease: Mutex::new(Some(lease)),
        }))
    }

    /// Limits the job's use of this machine's memory; only the first call has an effect.
    pub fn limit(&self, limits: Limits) {
        self.limits.get_or_init(|| limits);
    }

    fn limits(&self) -> Limits {
        self.limits.get().copied().unwrap_or(Limits::NONE)
    }

    /// The GPU.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// Free memory of the GPU now, in bytes.
    pub fn free_bytes(&self) -> Result<u64, Code> {
        self.make_current()?;
        self.gpu.memory_info().map(|(free, _)| free)
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
        self.life.read().unwrap_or_else(PoisonError::into_inner)
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

    /// Carries out a call: a row of [`cuda_api::calls`] or an operation of [`cuda_api::ops`]. Never waits for the GPU, except where the
    /// driver itself does (loading and unloading code) or when too many copies are under way. The answer is appended to `reply`.
    pub fn apply(&self, call: u16, body: &[u8], reply: &mut Vec<u8>) -> Applied {
        if call == id::HOST_DONE {
            // Handled without any lock that the waiting call may hold.
            return Applied::Done(self.job_says_done(body).err().unwrap_or(code::SUCCESS));
        }
        if call == id::HOST_BYTES {
            return Applied::Done(self.host_bytes(body).err().unwrap_or(code::SUCCESS));
        }
        match self.make_current().and_then(|()| self.carry(call, body, reply)) {
            Ok(None) => Applied::Done(code::SUCCESS),
            Ok(Some(pending)) => Applied::Pending(pending),
            Err(rc) => Applied::Done(rc),
        }
    }

    fn carry(&self, call: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<Option<Pending>, Code> {
        // These calls lock the context's state themselves.
        match call {
            id::CONTEXT_RESET => return self.reset().map(|made_heap| made_heap.put(reply)).map(|()| None),
            id::BATCH => return self.batch(body, reply).map(|()| None),
            _ => {}
        }
        let life = self.life();
        match call {
            id::LAUNCH => self.launch(body)?,
            id::MAX_ACTIVE_CLUSTERS | id::MAX_CLUSTER_SIZE => self.clusters(call, body)?.put(reply),
            id::TENSOR_MAP_TILED => self.tensor_map(body, reply)?,
            id::LINK => self.link(body)?.put(reply),
            id::COPY_IN => self.copy_in(&life, body)?,
            id::COPY_IN_AT_REST => self.copy_in_at_rest(&life, body)?,
            id::COPY_OUT => return self.copy_out(&life, body),
            id::COPY_DEVICE => self.direct::<CopyDevice>(body)?,
            id::FILL => self.direct::<Fill>(body)?,
            id::CHUNK_MAP => self.map_chunk(body)?,
            id::CHUNK_UNMAP => self.unmap_chunk(&life, body)?,
            id::ALIAS_MAP => self.map_alias(body)?,
            id::ALIAS_ACCESS => self.allow_alias(body)?,
            id::ALIAS_UNMAP => self.unmap_alias(body)?,
            id::HOST_PIN => self.host_pin(body)?,
            id::HOST_UNPIN => self.host_unpin(body)?,
            id::EVENT_REACHED => return self.event_reached(&life, handle(body)?),
            id::STREAM_HOLD => self.hold_stream(&life, body)?,
            id::STREAM_FENCE => return self.fence_stream(&life, body),
            id::CHUNK_OFFER => self.offer_chunk(body)?.put(reply),
            id::CHUNK_WITHDRAW => self.withdraw_chunk(handle(body)?),
            id::PEER_MAP => self.map_peer(body)?,
            id::PEER_UNMAP => self.unmap_peer(body)?,
            id::EVENT_SHARE => self.share_event(handle(body)?)?.put(reply),
            id::EVENT_OPEN => self.open_event(body)?,
            id::MEMORY_INFO => self.gpu.memory_info()?.put(reply),
            id::BOARD => crate::board::ask(Path::new(&self.device.driver_path), self.device.pci).put(reply),
            id::VARIABLE_AROUND => self.variable_around(handle(body)?)?.put(reply),
            id::IMAGE_PUT => self.put_image(body)?,
            id::IMAGE_LOAD => self.load_image(&life, body, reply)?,
            id::IMAGE_END => self.end_image(body)?,
            id::HEAP_MAKE => self.make_heap(&life)?,
            id::LOCAL_GROW => self.provide_local(&life, body)?,
            id::FUNCTION_INFO => self.function_info(&life, handle(body)?)?.put(reply),
            id::KERNEL_NAMES => self.kernel_names(handle(body)?)?.put(reply),
            id::HOST_CALL => return self.host_call(&life, body),
            id::COPY_IN_LATE => return self.copy_in_late(&life, body),
            id::STREAM_MEMORY => return self.stream_memory(&life, body),
            id::STREAM_SYNC => return self.sync_stream(&life, handle(body)?),
            id::CONTEXT_SYNC => return self.sync_context(&life).map(Some),
            id::EVENT_SYNC => return self.sync_event(&life, handle(body)?),
            id::EVENT_RECORD => self.direct::<EventRecord>(body)?,
            id::EVENT_QUERY => self.query_event(handle(body)?)?,
            id::EVENT_ELAPSED => self.event_elapsed(body)?.put(reply),
            id::EVENT_TIME => self.event_time(&life, handle(body)?)?.put(reply),
            id::STREAM_WAIT_EVENT => self.direct::<StreamWaitEvent>(body)?,
            id::STREAM_QUERY => self.query_stream(handle(body)?)?,
            id::GRAPH_MAKE => self.make_graph(body)?,
            id::GRAPH_CHANGE => self.change_graph(body)?,
            id::GRAPH_SWITCH => self.switch_graph(body)?,
            id::OVERTAKEN => {}
            id::STREAM_ATTRIBUTE => self.set_stream_attribute(body)?,
            id::REFERENCE_SET => self.set_reference(body)?.into_iter().for_each(|offset| offset.put(reply)),
            id::GRAPH_LAUNCH => self.launch_graph(&life, body, false)?,
            id::GRAPH_UPLOAD => self.launch_graph(&life, body, true)?,
            id::GRAPH_CONDITION => self.new_condition(body)?.put(reply),
            id::GRAPH_CONDITIONS_END => self.end_conditions(handle(body)?)?,
            id::GRAPH_CALL => return self.graph_call(&life, body),
            id::GRAPH_END => self.end_graph(handle(body)?)?,
            id::ARRAY_MAKE => self.make_array(body)?.into_iter().for_each(|layout| layout.put(reply)),
            id::ARRAY_END => self.end_array(&life, handle(body)?)?,
            id::TILE_POOL_MAKE => self.make_tile_pool(&life, body)?,
            id::TILE_POOL_END => self.end_tile_pool(&life, body)?,
            id::TILES_MAP => self.map_tiles(&life, body)?,
            id::COPY_BOX => self.copy_box(body)?,
            id::COPY_BOX_IN => self.copy_box_in(&life, body)?,
            id::COPY_BOX_LATE => return self.copy_box_late(&life, body),
            id::COPY_BOX_OUT => return self.copy_box_out(&life, body),
            id::OBJECT_MAKE => self.make_object(body)?.put(reply),
            id::OBJECT_END => self.end_object(handle(body)?)?,
            id::TENSOR_MAP_IM2COL => self.tensor_map_im2col(body, reply)?,
            id::TENSOR_MAP_ADDRESS => self.tensor_map_address(body, reply)?,
            id::EVENT_TIMES => self.event_times(&life, body)?.put(reply),
            id::EVENT_REFERENCE => return self.record_reference(&life).map(Some),
            row => self.row(&life, row, body, reply)?,
        }
        Ok(None)
    }

    fn direct<O: Direct>(&self, mut body: &[u8]) -> Result<(), Code> {
        O::get(&mut body).map_err(short)?.carry_out(self)
    }

    fn pending(&self, life: &ContextState, marks: Vec<Mark>) -> Pending {
        Pending { life: life.number, pools: life.pools.clone(), marks, bytes: Vec::new(), call: None }
    }

    fn map_chunk(&self, mut body: &[u8]) -> Result<(), Code> {
        let Chunk { address, bytes } = Chunk::get(&mut body).map_err(short)?;
        let base = steer::own_base(self.virtual_device);
        let inside = address >= base && address.checked_add(bytes).is_some_and(|end| end <= base + steer::ARENA);
        if bytes == 0 || bytes % GRANULE != 0 || address % GRANULE != 0 || !inside {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let mut chunks = lock(&self.chunks);
        if chunks.range(..address + bytes).next_back().is_some_and(|(at, c)| at + c.bytes > address) {
            return Err(code::ERROR_ALREADY_MAPPED);
        }
        let memory = match self.gpu.create_memory(bytes, self.rdma) {
            // Some machines report that network cards can access the memory but refuse to create such memory.
            Err(rc) if self.rdma && rc != code::ERROR_OUT_OF_MEMORY => self.gpu.create_memory(bytes, false),
            other => other,
        }?;
        let mapped = self.gpu.map(address, bytes, memory).and_then(|()| {
            self.gpu.allow(address, bytes).inspect_err(|_| {
                // The first error is reported.
                let _ = self.gpu.unmap(address, bytes);
            })
        });
        if let Err(rc) = mapped {
            // The first error is reported.
            let _ = self.gpu.release_memory(memory);
            return Err(rc);
        }
        chunks.insert(address, Mapped { bytes, memory, number: fresh_number() });
        Ok(())
    }

    fn unmap_chunk(&self, life: &ContextState, mut body: &[u8]) -> Result<(), Code> {
        let op = Chunk::get(&mut body).map_err(short)?;
        let _going = self.no_transfers(life)?;
        let mut chunks = lock(&self.chunks);
        let memory = chunks.get(&op.address).filter(|c| c.bytes == op.bytes).ok_or(code::ERROR_NOT_MAPPED)?.memory;
        self.gpu.unmap(op.address, op.bytes)?;
        chunks.remove(&op.address);
        self.withdraw_chunk(op.address);
        self.gpu.release_memory(memory)
    }

    /// Physical memory mapped in the arena, by address.
    pub fn chunks(&self) -> Vec<Chunk> {
        lock(&self.chunks).iter().map(|(address, c)| Chunk { address: *address, bytes: c.bytes }).collect()
    }

    fn unmap_all(&self) {
        self.end_aliases();
        self.end_peers();
        self.unmap_view(self.take_view());
        for (address, c) in std::mem::take(&mut *lock(&self.chunks)) {
            // Both fail only if the driver has already released the memory.
            let _ = self.gpu.unmap(address, c.bytes);
            let _ = self.gpu.release_memory(c.memory);
        }
    }

    /// Destroys the context with everything in it, and creates a new one. Returns whether libraries have created the new context's heap.
    fn reset(&self) -> Result<bool, Code> {
        let mut life = self.life.write().unwrap_or_else(PoisonError::into_inner);
        self.hosts.forget_copies();
        self.unmap_all();
        self.graphs_ended();
        self.arrays_ended();
        transfer::forget_spares(&self.gpu, life.number);
        self.forget_all_waits();
        self.end_holds();
        life.pools.clear();
        *lock(&self.streams) = Streams::default();
        // The driver's behaviour for handles of destroyed objects is undefined.
        self.bindings.unbind_all(&ENDING_WITH_CONTEXT);
        let lenders = lock(&self.modules).context_ended();
        for library in lenders {
            let _ = self.gpu.unload_library(library);
        }
        let _placing = steer::Placing::enter(self.virtual_device);
        self.gpu.reset()?;
        // If the driver cannot start over, the addresses still follow from the journal.
        steer::begin_anew(self.virtual_device);
        // References survive a reset; only a new reference creates the context again.
        let context = self.gpu.retain()?;
        self.gpu.release()?;
        self.gpu.set_current(context)?;
        let number = fresh_number();
        let next = ContextState::begin(&self.gpu, self.virtual_device, number).map_err(|(_, rc)| rc)?;
        *life = next;
        self.pin_again()?;
        let made_heap = self.place_libraries(&life)?;
        self.turn.store(life.turn, Ordering::Release);
        self.context.store(context, Ordering::Release);
        self.ticket.store(number, Ordering::Release);
        remember_current(number);
        Ok(made_heap)
    }

    /// Closes the place: releases everything on the GPU. Later calls through remaining references return `DEINITIALIZED`.
    pub fn close(self: Arc<Self>) {
        self.shut_down();
    }

    fn shut_down(&self) {
        if self.make_current().is_err() && self.ticket.load(Ordering::Acquire) == 0 {
            return;
        }
        let life = self.life.write().unwrap_or_else(PoisonError::into_inner);
        if self.ticket.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        // Errors are ignored: the context's resources are released with it, and after an execution error nothing else is possible anyway.
        self.let_go();
        self.hosts.forget_copies();
        let _ = self.gpu.synchronize();
        self.end_holds();
        for library in lock(&self.modules).take_libraries() {
            let _ = self.gpu.unload_library(library);
        }
        self.graphs_ended();
        self.end_arrays();
        transfer::forget_spares(&self.gpu, life.number);
        life.end(&self.gpu);
        self.unmap_all();
        self.unpin_all();
        let _ = self.gpu.release();
        let _ = self.gpu.unreserve(steer::own_base(self.virtual_device), steer::ARENA);
        steer::hold_own_again(self.virtual_device);
        let _ = self.gpu.set_current(0);
        CURRENT.set(0);
        *lock(&self.lease) = None;
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shut_down();
    }
}
