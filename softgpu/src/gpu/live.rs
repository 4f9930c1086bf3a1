//! The state of an active context.

use super::device::Device;
use super::heap::{self, Heap};
use super::lock;
use super::mark::Mark;
use super::output::Output;
use super::place::Place;
use super::stream_state::{Kind, Stream};
use crate::result::Res;
use cuda_api::sys::CUresult;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// Sizes that `cuCtxSetLimit` sets, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub stack: usize,
    pub printf: usize,
    /// Whether code that prints has been launched, after which its buffer has a fixed size.
    pub printf_used: bool,
    pub heap: usize,
    /// Only stored, like the next two: launches from device code, and cache preferences.
    pub pending_launches: usize,
    pub l2_fetch: usize,
    pub persisting_l2: usize,
}

/// The state of an active context.
pub(crate) struct Live {
    /// Handle of the context.
    pub context: usize,
    pub device: Arc<Device>,
    /// Unique in the process; changes on a reset.
    pub number: u64,
    /// The legacy default stream.
    pub legacy: Arc<Stream>,
    streams: Mutex<Vec<Arc<Stream>>>,
    /// First fault of a kernel; every later call returns it.
    error: AtomicU32,
    /// Set when running kernels must stop.
    pub cancel: Arc<AtomicBool>,
    dead: AtomicBool,
    /// Kernels' text that has not been written.
    pub output: Arc<Output>,
    pub limits: Mutex<Limits>,
    /// Held while a thread loads code and waits for the GPU: launches of other threads do not return meanwhile.
    pub loading: RwLock<()>,
    /// Preference between cache and shared memory: only stored.
    pub cache_config: AtomicU32,
    /// Address slot of its heap.
    pub slot: Option<u32>,
    /// Placed when it is first needed.
    pub heap: OnceLock<Arc<Heap>>,
    /// Placement of globals and code.
    pub place: Mutex<Place>,
    /// Bit set of device ordinals whose memory this context may use.
    pub peers: AtomicU32,
    /// What later work in a context waits for, by context; in the primary one's, also work of green contexts.
    awaited: Mutex<Vec<(usize, Arc<Mark>)>>,
}

impl Live {
    /// The state of a context that becomes active.
    pub fn new(context: usize, device: Arc<Device>) -> Arc<Live> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Arc::new(Live {
            context,
            device,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            legacy: Arc::new(Stream::new(0, Kind::Legacy, 0, 0, context)),
            streams: Mutex::default(),
            error: AtomicU32::new(0),
            cancel: Arc::default(),
            dead: AtomicBool::new(false),
            output: Arc::default(),
            limits: Mutex::new(Limits {
                stack: 1024,
                printf: 8_650_752,
                printf_used: false,
                heap: heap::DEFAULT_SIZE as usize,
                pending_launches: 2048,
                l2_fetch: 64,
                persisting_l2: 11_796_480,
            }),
            loading: RwLock::new(()),
            cache_config: AtomicU32::new(0),
            slot: heap::take_slot(),
            heap: OnceLock::new(),
            place: Mutex::default(),
            peers: AtomicU32::new(0),
            awaited: Mutex::default(),
        })
    }

    /// The code that calls return if the context is destroyed or has failed with a fault.
    pub fn check(&self) -> Res {
        if self.dead.load(Ordering::Acquire) {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        self.error().map_or(Ok(()), |error| {
            // The text of a failed assertion must be available once the failure is reported.
            self.output.show();
            Err(error)
        })
    }

    /// The first fault, if there was one.
    pub fn error(&self) -> Option<CUresult> {
        fault_from_number(self.error.load(Ordering::Acquire))
    }

    /// Records a fault; the first one is kept.
    pub fn fail(&self, code: CUresult) {
        let _ = self.error.compare_exchange(0, code as u32, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether work must end without being executed.
    pub fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Acquire)
    }

    /// After a wait: writes what kernels printed and returns the fault, if any.
    pub fn settle(&self) -> Res {
        self.output.show();
        self.check()
    }

    /// Adds a stream to those that the legacy stream and a context synchronisation wait for.
    pub fn adopt(&self, stream: Arc<Stream>) {
        let mut streams = lock(&self.streams);
        streams.retain(|old| !old.finished());
        streams.push(stream);
    }

    /// One of the default streams; a per-thread one is created on first use.
    pub fn default_stream(&self, kind: Kind) -> Arc<Stream> {
        if kind == Kind::Legacy {
            return self.legacy.clone();
        }
        let mut streams = lock(&self.streams);
        if let Some(found) = streams.iter().find(|stream| stream.kind == kind) {
            return found.clone();
        }
        let made = Arc::new(Stream::new(0, kind, 0, 0, self.context));
        streams.push(made.clone());
        made
    }

    /// Calls `f` for every stream except the legacy one.
    pub fn each_stream(&self, mut f: impl FnMut(&Stream)) {
        for stream in lock(&self.streams).iter() {
            f(stream);
        }
    }

    /// Makes all later work of a context start after `mark`.
    pub fn wait_for(&self, context: usize, mark: Arc<Mark>) {
        let mut awaited = lock(&self.awaited);
        awaited.retain(|(_, mark)| !mark.done());
        awaited.push((context, mark));
    }

    /// What work of a stream must wait for now.
    pub fn awaited(&self, stream: &Stream) -> Vec<Arc<Mark>> {
        // All contexts of a device have the default streams of one.
        let of = |c: usize| c == self.context || c == stream.context || stream.kind != Kind::Created;
        lock(&self.awaited).iter().filter(|(c, mark)| of(*c) && !mark.done()).map(|(_, mark)| mark.clone()).collect()
    }

    /// Whether the heap has been placed, so that its size can no longer change.
    pub fn has_heap(&self) -> bool {
        self.heap.get().is_some()
    }

    /// Marks it as destroyed.
    pub fn bury(&self) {
        self.dead.store(true, Ordering::Release);
    }
}

/// The error of a context's failure number: faults of kernels and other failures of work.
fn fault_from_number(number: u32) -> Option<CUresult> {
    use CUresult as E;
    let codes = [
        E::CUDA_ERROR_ILLEGAL_ADDRESS,
        E::CUDA_ERROR_ASSERT,
        E::CUDA_ERROR_LAUNCH_FAILED,
        E::CUDA_ERROR_MISALIGNED_ADDRESS,
        E::CUDA_ERROR_INVALID_PC,
        E::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        E::CUDA_ERROR_LAUNCH_TIMEOUT,
        E::CUDA_ERROR_OUT_OF_MEMORY,
    ];
    if number == 0 {
        return None;
    }
    Some(codes.into_iter().find(|code| *code as u32 == number).unwrap_or(E::CUDA_ERROR_UNKNOWN))
}
