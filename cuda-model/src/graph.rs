//! CUDA graphs and stream capture: the part that needs no GPU.
//!
//! A [`Graphs`] holds the graphs of a process as the program builds them, node by node or by capturing streams, and
//! implements the rules of both. Its user, a [`Host`], is asked only for external facts, such as whether a stream
//! exists or what a function's parameters are, and to execute instances. The recorder's host sends them to the job's
//! place; softgpu's runs them.
//!
//! * [`cuda_api::work`]: the work of nodes, and a whole graph in encoded form.
//! * `model`: graphs, nodes, edges. `tables`: captures, instances, user objects.
//! * `capture`: rules of captures. `frozen`, `instance`: instantiated graphs and changes to them. `object`: user objects.
//!   `memory`: allocations of graphs.
//! * [`api`]: the functions of cuda.h on top of these.

// These functions carry the names that CUDA gives them.
#[allow(non_snake_case)]
pub mod api;
mod capture;
mod frozen;
mod instance;
mod memory;
mod model;
mod object;
pub(crate) mod tables;

pub use capture::exchange_mode;
pub use tables::{Mode, Stream};

use cuda_api::code::Code;
use cuda_api::lock::lock;
use cuda_api::work::{At, Copy3, Fill, Kernel, Spec, Work};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tables::Graphs;

/// The user of this module: the facts that it provides and the actions that it executes. Errors are returned to the
/// program.
pub trait Host {
    /// The graphs of this process.
    fn shared(&self) -> &'static Shared;
    /// Resolves a stream that the program named; null has the meaning that it has in the function that was called.
    fn stream(&mut self, stream: u64) -> Result<Stream, Code>;
    /// The current context.
    fn context(&mut self) -> Result<u64, Code>;
    /// The context of a live event.
    fn event(&mut self, event: u64) -> Result<u64, Code>;
    /// Passes offset and size of each parameter of a function or kernel to `use_it`.
    fn layout<T>(&mut self, function: u64, use_it: impl FnOnce(&[(u32, u32)]) -> Result<T, Code>) -> Result<T, Code>;
    /// The function and the kernel of a handle of either; 0 if there is no kernel.
    fn names(&mut self, function: u64) -> Result<(u64, u64), Code>;
    /// Checks a kernel as a launch does; returns its context.
    fn check_kernel(&mut self, kernel: &Kernel) -> Result<u64, Code>;
    /// Checks a copy; returns its context.
    fn check_copy(&mut self, copy: &Copy3) -> Result<u64, Code>;
    /// Checks a fill of device memory; returns its context.
    fn check_fill(&mut self, fill: &Fill) -> Result<u64, Code>;
    /// Checks operations on words of memory; returns the context.
    fn check_words(&mut self, parts: &[[u64; 6]]) -> Result<u64, Code>;
    /// Allocates memory for a graph on a device; returns its address and the context.
    fn allocate(&mut self, device: i32, bytes: u64) -> Result<(u64, u64), Code>;
    /// Frees it; work that was submitted before may still use it.
    fn release(&mut self, address: u64) -> Result<(), Code>;
    /// Whether there is a device with this ordinal.
    fn is_device(&mut self, ordinal: i32) -> bool;
    /// The ordinal of the device that a context is on.
    fn ordinal(&mut self, context: u64) -> i32;
    /// Creates a condition for a node of a graph, or of one embedded in it: the handle that device code uses, and the
    /// context. `home` is the graph that is instantiated.
    fn condition(&mut self, home: u64, default: u32, flags: u32) -> Result<(u64, u64), Code>;
    /// Releases the conditions of a graph.
    fn end_conditions(&mut self, context: u64, home: u64, conditions: &[u64]) -> Result<(), Code>;
    /// Creates an instance in a context; returns its handle. `home`: the graph, if it has conditions.
    fn instantiate(&mut self, context: u64, flags: u64, home: u64, spec: Spec) -> Result<u64, Code>;
    /// Checks what can be checked of a change before it is made: of several, none is made if one fails.
    fn check_change(&mut self, _instance: u64, _at: At, _work: &Work<u32>) -> Result<(), Code> {
        Ok(())
    }
    /// Changes the work of a node of an instance for later launches. `plain`: only values that were checked already
    /// change.
    fn change(&mut self, instance: u64, at: At, work: Work<u32>, plain: bool) -> Result<(), Code>;
    /// Enables or disables a node of an instance for later launches.
    fn enable(&mut self, instance: u64, at: At, on: bool) -> Result<(), Code>;
    /// Launches an instance in a stream.
    fn launch(&mut self, instance: u64, stream: u64) -> Result<(), Code>;
    /// Prepares the next launch of an instance.
    fn upload(&mut self, instance: u64, stream: u64) -> Result<(), Code>;
    /// Destroys an instance; a running launch continues.
    fn end_instance(&mut self, instance: u64) -> Result<(), Code>;
    /// Returns a function that waits until all work launched in a context so far has completed.
    fn fence(&mut self, context: u64) -> Box<dyn FnOnce() + Send>;
}

/// The graphs of a process behind a lock, and flags that can be read without it.
#[derive(Debug)]
pub struct Shared {
    capturing: AtomicU32,
    allocating: AtomicBool,
    graphs: Mutex<Graphs>,
}

impl Shared {
    /// Creates an empty set of graphs. Handles with different `mark`s never collide; `mark` must leave the low 56 bits
    /// zero.
    pub fn new(mark: u64) -> Shared {
        Shared { capturing: AtomicU32::new(0), allocating: AtomicBool::new(false), graphs: Mutex::new(Graphs::new(mark)) }
    }

    /// Whether any stream is being captured: while none is, calls need no further check.
    #[inline]
    pub fn capturing(&self) -> bool {
        self.capturing.load(Ordering::Relaxed) != 0
    }

    /// Whether graphs have memory or conditions: while none has, launches and frees need no further check.
    pub fn allocating(&self) -> bool {
        self.allocating.load(Ordering::Relaxed)
    }

    /// Calls `f` on the graphs; then runs the destructors that have become due, on a separate thread as the driver
    /// does.
    fn with<T>(&self, f: impl FnOnce(&mut Graphs) -> T) -> T {
        let (result, due) = {
            let mut graphs = lock(&self.graphs);
            let result = f(&mut graphs);
            self.capturing.store(u32::from(!graphs.captures.is_empty()), Ordering::Relaxed);
            self.allocating.store(!graphs.memories.is_empty() || !graphs.conditions.is_empty(), Ordering::Relaxed);
            (result, std::mem::take(&mut graphs.due))
        };
        object::run(due);
        result
    }

    /// Adds a call on a stream to its capture. False: the stream is not being captured, so the call must be executed.
    ///
    /// # Errors
    /// The capture is invalid, or is invalidated by this call.
    pub fn captured(&self, stream: &Stream, work: Work<u64>) -> Result<bool, Code> {
        self.with(|g| g.add_captured(stream, work))
    }

    /// Whether a stream is being captured, so that a call on it must not be executed.
    ///
    /// # Errors
    /// The capture is invalid, or is invalidated by this call.
    pub fn in_capture(&self, stream: &Stream) -> Result<bool, Code> {
        self.with(|g| g.takes_part(stream))
    }

    /// For calls on a stream that cannot be captured.
    ///
    /// # Errors
    /// The stream is being captured; the capture is invalidated.
    pub fn forbid_on(&self, stream: &Stream) -> Result<(), Code> {
        self.with(|g| g.forbid_on(stream))
    }

    /// For calls that captures may forbid in this thread.
    ///
    /// # Errors
    /// A capture forbids it and is invalidated.
    pub fn forbid_unsafe(&self) -> Result<(), Code> {
        self.with(Graphs::forbid_unsafe)
    }

    /// For waits for all work of a context.
    ///
    /// # Errors
    /// A stream of it is being captured; the capture is invalidated.
    pub fn forbid_in(&self, context: u64) -> Result<(), Code> {
        self.with(|g| g.forbid_in(context))
    }

    /// Records an event in a stream. True: this was handled by a capture and must not be executed.
    ///
    /// # Errors
    /// The capture is invalid.
    pub fn record_event(&self, event: u64, stream: &Stream, external: bool) -> Result<bool, Code> {
        self.with(|g| g.record_event(event, stream, external))
    }

    /// Makes a stream wait for an event, which was `recorded` before, or never. True: this was handled by captures.
    ///
    /// # Errors
    /// The wait would join a capture with work outside of it; the capture is invalidated.
    pub fn wait_event(&self, event: u64, stream: &Stream, external: bool, recorded: bool) -> Result<bool, Code> {
        self.with(|g| g.wait_event(event, stream, external, recorded))
    }

    /// For queries of an event by the host.
    ///
    /// # Errors
    /// The event was last recorded in a capture.
    pub fn check_event(&self, event: u64) -> Result<(), Code> {
        self.with(|g| g.check_event(event))
    }

    /// Removes the memory of graphs in a context that was destroyed.
    pub fn forget_memory(&self, context: u64) {
        if self.allocating() {
            self.with(|g| g.memories.forget_context(context));
        }
    }

    /// Removes an event that was destroyed.
    pub fn forget_event(&self, event: u64) {
        self.with(|g| g.forget_event(event));
    }

    /// Removes a stream that was destroyed, by its key.
    pub fn forget_stream(&self, key: u64) {
        self.with(|g| g.forget_stream(key));
    }
}
