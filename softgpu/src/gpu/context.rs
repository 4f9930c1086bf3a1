//! Contexts, and the calling thread's stack of them.
//!
//! A [`Context`] is the identity behind a handle; a [`Live`] is what it owns while it is active. The primary context of
//! a device has its handle from the start and a new `Live` after each reset, as programs expect.

use super::device::Device;
use super::heap::{self, Heap};
use super::output::Output;
use super::place::Place;
use super::sched::{self, Mark};
use super::stream::{self, Kind, Stream};
use super::table::Table;
use super::{array, event, graph, launch, lock, memory, mempool, module, texture};
use crate::ptx::CodeMap;
use crate::result::Res;
use cuda_api::sys::{CUcontext, CUresult};
use cuda_model::cudart;
use cuda_model::parts::Part;
use std::cell::RefCell;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};

/// Contexts by handle.
pub(crate) static CONTEXTS: LazyLock<Table<Context>> = LazyLock::new(|| Table::new(3));

/// Flags of a context that exist: scheduling 0 to 2 and 4, map host, resize local memory, core dumps, memory operations.
const FLAGS: u32 = 0xff;
/// The flag that a primary context always reports, and that it rejects as an argument.
const MAP_HOST: u32 = 8;

/// The identity of a context.
pub(crate) struct Context {
    pub handle: usize,
    pub device: Arc<Device>,
    pub is_primary: bool,
    /// The resources of a green context, which shares everything but its streams with the primary one.
    pub part: Option<Part>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    references: u32,
    /// Additional references by `cuCtxAttach`.
    attached: u32,
    flags: u32,
}

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
    /// Preference between cache and shared memory: only stored.
    pub cache_config: AtomicU32,
    /// Address slot of its heap.
    pub slot: Option<u32>,
    heap: OnceLock<Arc<Heap>>,
    /// Placement of globals and code.
    pub place: Mutex<Place>,
    /// Code of all loaded modules.
    pub code: Mutex<Arc<CodeMap>>,
    /// Bit set of device ordinals whose memory this context may use.
    pub peers: AtomicU32,
    /// What later work in a context waits for, by context; in the primary one's, also work of green contexts.
    awaited: Mutex<Vec<(usize, Arc<Mark>)>>,
}

thread_local! {
    // Never dropped as a thread-local: exit handlers, which run later, still find their context.
    static STACK: ManuallyDrop<RefCell<Vec<Arc<Context>>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    static AT_END: AtEnd = const { AtEnd };
}

/// Empties the stack of a thread that ends, unless the process ends with it.
struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        // SAFETY: these calls have no preconditions.
        if unsafe { libc::gettid() != libc::getpid() } {
            STACK.with(|stack| stack.take());
        }
    }
}

fn with_stack<T>(f: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> T {
    // From its first use on it is dropped when the thread ends.
    let _ = AT_END.try_with(|_| ());
    STACK.with(|stack| f(&mut stack.borrow_mut()))
}

/// The current context of the calling thread, active or not.
pub(crate) fn top() -> Option<Arc<Context>> {
    with_stack(|stack| stack.last().cloned())
}

/// The current context, active and without a fault.
pub(crate) fn current() -> Res<Arc<Live>> {
    let live = top().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?.live()?;
    live.check()?;
    Ok(live)
}

/// The context of a handle.
pub(crate) fn resolve(handle: CUcontext) -> Res<Arc<Context>> {
    CONTEXTS.get(handle as usize).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Replaces the top of the stack by `context`; `None` only removes the top.
pub(crate) fn set_current(context: Option<Arc<Context>>) -> Res {
    with_stack(|stack| {
        stack.pop();
        stack.extend(context);
    });
    Ok(())
}

/// Pushes `context` onto the stack.
pub(crate) fn push(context: Arc<Context>) -> Res {
    with_stack(|stack| stack.push(context));
    Ok(())
}

/// Pops the top of the stack.
pub(crate) fn pop() -> Res<Arc<Context>> {
    with_stack(Vec::pop).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Creates a context that is not a primary one.
pub(crate) fn create(device: &Arc<Device>, flags: u32) -> Res<Arc<Context>> {
    check_flags(flags)?;
    Ok(CONTEXTS.insert_with(|handle| {
        let live = Some(Live::new(handle, device.clone()));
        Context {
            handle,
            device: device.clone(),
            is_primary: false,
            part: None,
            state: Mutex::new(State { live, references: 1, attached: 0, flags }),
        }
    }))
}

/// Creates a green context.
pub(crate) fn create_green(device: &Arc<Device>, part: Part) -> Res<Arc<Context>> {
    device.primary().retain();
    let live = Some(device.primary().live()?);
    Ok(CONTEXTS.insert_with(|handle| Context {
        handle,
        device: device.clone(),
        is_primary: false,
        part: Some(part),
        state: Mutex::new(State { live, references: 1, attached: 0, flags: 0 }),
    }))
}

/// Destroys a green context; its streams can no longer be named.
pub(crate) fn destroy_green(context: &Arc<Context>) -> Res {
    CONTEXTS.remove(context.handle).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    stream::STREAMS.each(|stream| {
        if stream.context == context.handle {
            stream.orphaned.store(true, Ordering::Release);
        }
    });
    lock(&context.state).live = None;
    cudart::context_destroyed(context.handle);
    context.device.primary().release()
}

/// Destroys a context created with [`create`].
pub(crate) fn destroy(context: &Arc<Context>) -> Res {
    if context.is_primary || context.part.is_some() || CONTEXTS.remove(context.handle).is_none() {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    with_stack(|stack| {
        if stack.last().is_some_and(|top| Arc::ptr_eq(top, context)) {
            stack.pop();
        }
    });
    context.deactivate();
    Ok(())
}

/// Waits for the work of every context on a device.
pub(crate) fn wait_for_device(ordinal: usize) {
    let mut marks = Vec::new();
    CONTEXTS.each(|context| {
        if context.device.ordinal as usize == ordinal
            && let Ok(live) = context.live()
        {
            marks.extend(live.outstanding());
        }
    });
    sched::wait(&marks);
}

/// Stops the kernels of every context, at process exit.
pub(crate) fn cancel_all() {
    CONTEXTS.each(|context| {
        // `try_lock`: exit must not wait for a thread that is inside the driver.
        if let Ok(state) = context.state.try_lock()
            && let Some(live) = &state.live
        {
            live.cancel.store(true, Ordering::Release);
        }
    });
}

fn check_flags(flags: u32) -> Res {
    let schedule = flags & 7;
    if flags & !FLAGS != 0 || !matches!(schedule, 0 | 1 | 2 | 4) { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

impl Context {
    /// The primary context of a device, inactive.
    pub fn primary(device: Arc<Device>) -> Arc<Context> {
        CONTEXTS.insert_with(|handle| Context { handle, device, is_primary: true, part: None, state: Mutex::default() })
    }

    /// The state of the context; an inactive one is `CONTEXT_IS_DESTROYED`.
    pub fn live(&self) -> Res<Arc<Live>> {
        lock(&self.state).live.clone().ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// Flags as given, and whether the context is active.
    pub fn flags(&self) -> (u32, bool) {
        let state = lock(&self.state);
        (state.flags, state.live.is_some())
    }

    /// Flags as `cuCtxGetFlags` reports them.
    pub fn reported_flags(&self) -> u32 {
        match self.part {
            Some(_) => self.device.primary().reported_flags(),
            None => lock(&self.state).flags | if self.is_primary { MAP_HOST } else { 0 },
        }
    }

    /// Changes the flags.
    pub fn set_flags(&self, flags: u32) -> Res {
        if self.is_primary && flags & MAP_HOST != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        check_flags(flags)?;
        lock(&self.state).flags = flags;
        Ok(())
    }

    /// Retains a primary context, which activates it.
    pub fn retain(&self) {
        let mut state = lock(&self.state);
        state.references += 1;
        if state.live.is_none() {
            state.live = Some(Live::new(self.handle, self.device.clone()));
        }
    }

    /// `cuCtxAttach`: adds a reference to an active context.
    pub fn attach(&self) {
        lock(&self.state).attached += 1;
    }

    /// `cuCtxDetach`; true: the last reference to a context of the program was released.
    pub fn detach(&self) -> Res<bool> {
        let mut state = lock(&self.state);
        match state.attached.checked_sub(1) {
            Some(left) => state.attached = left,
            None if self.is_primary || self.part.is_some() => return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
            None => return Ok(true),
        }
        Ok(false)
    }

    /// Releases a reference; the last one deactivates the context.
    pub fn release(&self) -> Res {
        let last = {
            let mut state = lock(&self.state);
            state.references = state.references.checked_sub(1).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
            if state.references == 0 {
                state.flags = 0;
            }
            state.references == 0
        };
        if last {
            self.deactivate();
        }
        Ok(())
    }

    /// Destroys everything that a primary context owns, regardless of references; these remain.
    pub fn reset(&self) {
        self.deactivate();
    }

    fn deactivate(&self) {
        let live = lock(&self.state).live.take();
        cudart::context_destroyed(self.handle);
        if let Some(live) = live {
            live.end();
        }
    }
}

impl Live {
    fn new(context: usize, device: Arc<Device>) -> Arc<Live> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Arc::new_cyclic(|weak: &Weak<Live>| Live {
            context,
            device,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            legacy: Arc::new(Stream::new(0, Kind::Legacy, 0, 0, (weak.clone(), context))),
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
            cache_config: AtomicU32::new(0),
            slot: heap::take_slot(),
            heap: OnceLock::new(),
            place: Mutex::default(),
            code: Mutex::default(),
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
        launch::fault_from_number(self.error.load(Ordering::Acquire))
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
    pub fn default_stream(self: &Arc<Self>, kind: Kind) -> Arc<Stream> {
        if kind == Kind::Legacy {
            return self.legacy.clone();
        }
        let mut streams = lock(&self.streams);
        if let Some(found) = streams.iter().find(|stream| stream.kind == kind) {
            return found.clone();
        }
        let made = Arc::new(Stream::new(0, kind, 0, 0, (Arc::downgrade(self), self.context)));
        streams.push(made.clone());
        made
    }

    /// Calls `f` for every stream except the legacy one.
    pub fn each_stream(&self, mut f: impl FnMut(&Stream)) {
        for stream in lock(&self.streams).iter() {
            f(stream);
        }
    }

    /// Marks of all work that has not completed.
    pub fn outstanding(&self) -> Vec<Arc<Mark>> {
        self.outstanding_in(self.context)
    }

    /// As [`Live::outstanding`] of a context that has this: a green one has but its own streams, and the default ones.
    pub fn outstanding_in(&self, context: usize) -> Vec<Arc<Mark>> {
        let _submission = sched::submit();
        let mut marks: Vec<_> = self.legacy.pending().into_iter().collect();
        self.each_stream(|stream| {
            if context == self.context || stream.context == context || stream.kind != Kind::Created {
                marks.extend(stream.pending());
            }
        });
        marks
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

    /// Waits for all work and returns the fault, if any.
    pub fn synchronise(&self) -> Res {
        sched::wait(&self.outstanding());
        mempool::trim();
        self.settle()
    }

    /// The device heap, placed on the first call.
    pub fn heap(&self) -> Res<Arc<Heap>> {
        // Under the lock of the limits, so that the size cannot change while the heap is made.
        let limits = lock(&self.limits);
        if let Some(heap) = self.heap.get() {
            return Ok(heap.clone());
        }
        let heap = Arc::new(Heap::place(self, limits.heap as u64)?);
        Ok(self.heap.get_or_init(|| heap).clone())
    }

    /// Whether the heap has been placed, so that its size can no longer change.
    pub fn has_heap(&self) -> bool {
        self.heap.get().is_some()
    }

    /// Destroys the context: kernels stop, queued work is dropped, everything it owns is freed.
    fn end(self: &Arc<Self>) {
        self.cancel.store(true, Ordering::Release);
        sched::wake();
        sched::wait(&self.outstanding());
        self.output.show();
        self.dead.store(true, Ordering::Release);
        stream::STREAMS.remove_if(|stream| stream.belongs_to(self));
        event::EVENTS.remove_if(|event| event.belongs_to(self));
        graph::end_context(self);
        module::end_context(self);
        memory::end_context(self);
        array::end_context(self);
        texture::end_context(self.number);
        heap::give_slot(self.slot);
    }
}

/// Text of assertions and faults goes to stderr, whose buffer is the system's.
pub(crate) fn complain(text: &str) {
    // A closed stderr cannot be reported.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
