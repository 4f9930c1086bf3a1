//! The job's handles: who is alive, on which device, and what the shim knows of it.

use crate::answers::Answers;
use crate::array::{ArrayData, MipmapData};
use crate::graph::Changed;
use crate::host_function::GraphNode;
use crate::log::lock;
use crate::reference::ReferenceData;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Cells, Kind, compose, slot};
use cuda_api::ops::FunctionInfo;
use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, c_char};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Device of handles that belong to every device (libraries and kernels).
pub(crate) const EVERY_DEVICE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(crate) struct Slot<S> {
    handle: AtomicU64,
    generation: AtomicU32,
    device: AtomicU32,
    context: AtomicU64,
    pub(crate) data: S,
}

impl<S> Slot<S> {
    /// Virtual device, or [`EVERY_DEVICE`].
    pub(crate) fn device(&self) -> u32 {
        self.device.load(Ordering::Relaxed)
    }

    /// The context that it was made in, 0 for what the shim makes for itself.
    pub(crate) fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    /// It is of another context than the thread's, or of none (0).
    pub(crate) fn set_context(&self, context: u64) {
        self.context.store(context, Ordering::Relaxed);
    }

    /// Whether it ends when a context does, or with `None` when all of a device do.
    pub(crate) fn ends_with(&self, context: Option<u64>) -> bool {
        context.is_none_or(|c| c == self.context())
    }
}

/// What is known of a handle of some kind; forgotten when its slot is used again.
pub(crate) trait Known: Default + Sync {
    /// Back to the state of a new handle.
    fn forget(&self);
}

#[derive(Debug)]
pub(crate) struct Table<S> {
    kind: Kind,
    cells: Cells<Slot<S>>,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// The first one that was never used.
    next: u32,
    /// Free ones that were.
    reuse: VecDeque<u32>,
    live: u64,
}

impl<S: Known> Table<S> {
    pub(crate) fn new(kind: Kind) -> Self {
        Table { kind, cells: Cells::new(), slots: Mutex::default() }
    }

    /// A new handle on `device`, made in a context.
    pub(crate) fn make(&self, device: u32, context: u64) -> Result<u64, Code> {
        let slot = {
            let mut slots = lock(&self.slots);
            // A freed slot rests until 64 others are free: a stale handle is told apart for longer.
            let slot = if slots.reuse.len() > 64 || slots.next == 1 << 24 {
                slots.reuse.pop_front().ok_or(code::ERROR_OUT_OF_MEMORY)?
            } else {
                slots.next += 1;
                slots.next - 1
            };
            slots.live += 1;
            slot
        };
        let cell = self.cells.at(slot);
        // Nobody else writes to the cell until its handle is there.
        let generation = cell.generation.load(Ordering::Relaxed).wrapping_add(1);
        cell.generation.store(generation, Ordering::Relaxed);
        let handle = compose(self.kind, generation, slot);
        cell.data.forget();
        cell.device.store(device, Ordering::Relaxed);
        cell.set_context(context);
        cell.handle.store(handle, Ordering::Release);
        Ok(handle)
    }

    /// The slot of a live handle.
    pub(crate) fn get(&self, handle: u64) -> Result<&Slot<S>, Code> {
        let cell = self.cells.get(slot(handle)).ok_or(code::ERROR_INVALID_HANDLE)?;
        if handle != 0 && cell.handle.load(Ordering::Acquire) == handle { Ok(cell) } else { Err(code::ERROR_INVALID_HANDLE) }
    }

    /// Ends a live handle. False if it was not alive.
    pub(crate) fn end(&self, handle: u64) -> bool {
        let Some(cell) = self.cells.get(slot(handle)) else { return false };
        let mut slots = lock(&self.slots);
        if handle == 0 || cell.handle.load(Ordering::Acquire) != handle {
            return false;
        }
        cell.handle.store(0, Ordering::Release);
        slots.live -= 1;
        slots.reuse.push_back(slot(handle));
        true
    }

    /// Number of live handles.
    pub(crate) fn live(&self) -> u64 {
        lock(&self.slots).live
    }

    /// All live handles of a device with what is known of them.
    pub(crate) fn all(&self, device: u32) -> Vec<(u64, &Slot<S>)> {
        let made = lock(&self.slots).next;
        (0..made)
            .filter_map(|s| self.cells.get(s))
            .map(|c| (c.handle.load(Ordering::Acquire), c))
            .filter(|(h, c)| *h != 0 && c.device() == device)
            .collect()
    }
}

/// What the shim knows of a stream.
#[derive(Debug, Default)]
pub(crate) struct StreamData {
    pub(crate) flags: AtomicU32,
    /// Priority, as the bits of an `i32`.
    pub(crate) priority: AtomicU32,
    /// A per-thread default stream: the program cannot destroy it.
    pub(crate) per_thread: AtomicBool,
    /// Its green context is gone.
    pub(crate) orphaned: AtomicBool,
}

impl Known for StreamData {
    fn forget(&self) {
        self.flags.store(0, Ordering::Relaxed);
        self.priority.store(0, Ordering::Relaxed);
        self.per_thread.store(false, Ordering::Relaxed);
        self.orphaned.store(false, Ordering::Relaxed);
    }
}

/// What the shim knows of an event.
#[derive(Debug, Default)]
pub(crate) struct EventData {
    pub(crate) flags: AtomicU32,
    /// Epoch of the place in which it was last recorded; 0: never.
    pub(crate) epoch: AtomicU64,
    /// Where the place's order was after its last record there, 0 if that is not known.
    at: AtomicU64,
    /// The stream of that record.
    stream: AtomicU64,
    /// The value of `at` whose record is known to have happened.
    done: AtomicU64,
    /// It was last recorded in a capture.
    pub(crate) captured: AtomicBool,
    /// When it happened, if that was in an earlier place: bits of f64 milliseconds on the job's clock.
    pub(crate) happened_ms: AtomicU64,
}

impl EventData {
    /// It was recorded in a stream of the place of this epoch; `at` is the end of that call in the place's order.
    pub(crate) fn recorded(&self, epoch: u64, stream: u64, at: Option<u64>) {
        self.done.store(0, Ordering::Relaxed);
        self.stream.store(stream, Ordering::Relaxed);
        self.at.store(at.unwrap_or(0), Ordering::Release);
        self.epoch.store(epoch, Ordering::Release);
    }

    /// Where it was last recorded, and in which stream. Of two records at a time the stream may be the later one's.
    pub(crate) fn last(&self) -> Option<(u64, u64)> {
        let at = self.at.load(Ordering::Acquire);
        (at != 0).then(|| (at, self.stream.load(Ordering::Relaxed)))
    }

    /// Whether that record is known to have happened.
    pub(crate) fn is_done(&self, at: u64) -> bool {
        self.done.load(Ordering::Relaxed) == at
    }

    /// The record at this point has happened.
    pub(crate) fn has_happened(&self, at: u64) {
        self.done.store(at, Ordering::Relaxed);
    }
}

impl Known for EventData {
    fn forget(&self) {
        self.recorded(0, 0, None);
        self.flags.store(0, Ordering::Relaxed);
        self.epoch.store(0, Ordering::Relaxed);
        self.captured.store(false, Ordering::Relaxed);
        self.happened_ms.store(0, Ordering::Relaxed);
    }
}

/// What the shim knows of a function or kernel.
#[derive(Debug, Default)]
pub(crate) struct FunctionData {
    info: AtomicPtr<FunctionInfo>,
    name: AtomicPtr<c_char>,
    /// What its place has said of it.
    pub(crate) answers: Answers,
    /// Bit d: its code has been used on device d (the journalled first use).
    pub(crate) used_on: AtomicU32,
    /// Module or library that it came from.
    pub(crate) parent: AtomicU64,
}

impl FunctionData {
    /// Its parameters and limits, once known.
    pub(crate) fn info(&self) -> Option<&FunctionInfo> {
        // SAFETY: a published info was leaked by `learn` and is never freed: launches may hold it while the handle ends.
        unsafe { self.info.load(Ordering::Acquire).as_ref() }
    }

    /// Its name for the program: the driver promises a string that lives as long as the module.
    pub(crate) fn name(&self) -> Result<*const c_char, Code> {
        let known = self.name.load(Ordering::Acquire);
        if !known.is_null() {
            return Ok(known);
        }
        let info = self.info().ok_or(code::ERROR_INVALID_HANDLE)?;
        let mine = CString::new(info.name.as_str()).map_err(|_| code::ERROR_UNKNOWN)?.into_raw();
        match self.name.compare_exchange(std::ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(mine),
            Err(theirs) => {
                // SAFETY: made by into_raw above and shown to nobody.
                drop(unsafe { CString::from_raw(mine) });
                Ok(theirs)
            }
        }
    }

    /// Publishes what was learned. Functions are few and live as long as their module: the old value is left to the process.
    pub(crate) fn learn(&self, info: FunctionInfo) {
        self.info.store(Box::into_raw(Box::new(info)), Ordering::Release);
    }
}

impl Known for FunctionData {
    fn forget(&self) {
        self.info.store(std::ptr::null_mut(), Ordering::Release);
        self.name.store(std::ptr::null_mut(), Ordering::Release);
        self.answers.forget();
        self.used_on.store(0, Ordering::Relaxed);
        self.parent.store(0, Ordering::Relaxed);
    }
}

/// What the shim knows of an instance of a graph, beside the graph itself.
#[derive(Debug, Default)]
pub(crate) struct InstanceData {
    /// The journal's handle of the last change of each node.
    pub(crate) changes: Mutex<HashMap<Changed, u64>>,
    /// The events that its launches record.
    pub(crate) records: Mutex<Vec<u64>>,
    /// Its nodes that call this process, in the order in which launches name them; held over a launch.
    pub(crate) calls: Mutex<Vec<GraphNode>>,
}

impl Known for InstanceData {
    fn forget(&self) {
        lock(&self.changes).clear();
        lock(&self.records).clear();
        lock(&self.calls).clear();
    }
}

/// A kind of which the shim needs to know nothing more.
#[derive(Debug, Default)]
pub(crate) struct Nothing;

impl Known for Nothing {
    fn forget(&self) {}
}

/// All handles of the job.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) streams: Table<StreamData>,
    pub(crate) events: Table<EventData>,
    pub(crate) modules: Table<Nothing>,
    pub(crate) libraries: Table<Nothing>,
    pub(crate) functions: Table<FunctionData>,
    pub(crate) kernels: Table<FunctionData>,
    pub(crate) instances: Table<InstanceData>,
    pub(crate) arrays: Table<ArrayData>,
    pub(crate) mipmaps: Table<MipmapData>,
    pub(crate) objects: Table<Nothing>,
    /// Texture references.
    pub(crate) textures: Table<ReferenceData>,
    /// Surface references.
    pub(crate) surfaces: Table<ReferenceData>,
}

impl Tables {
    pub(crate) fn new() -> Self {
        Tables {
            streams: Table::new(Kind::Stream),
            events: Table::new(Kind::Event),
            modules: Table::new(Kind::Module),
            libraries: Table::new(Kind::Library),
            functions: Table::new(Kind::Function),
            kernels: Table::new(Kind::Kernel),
            instances: Table::new(Kind::GraphExec),
            arrays: Table::new(Kind::Array),
            mipmaps: Table::new(Kind::Mipmap),
            objects: Table::new(Kind::Object),
            textures: Table::new(Kind::TextureRef),
            surfaces: Table::new(Kind::SurfaceRef),
        }
    }

    /// A new handle of any kind but a context.
    pub(crate) fn make(&self, kind: Kind, device: u32, context: u64) -> Result<u64, Code> {
        match kind {
            Kind::Stream => self.streams.make(device, context),
            Kind::Event => self.events.make(device, context),
            Kind::Module => self.modules.make(device, context),
            Kind::Library => self.libraries.make(EVERY_DEVICE, context),
            Kind::Function => self.functions.make(device, context),
            Kind::Kernel => self.kernels.make(EVERY_DEVICE, context),
            Kind::GraphExec => self.instances.make(device, context),
            Kind::Array => self.arrays.make(device, context),
            Kind::Mipmap => self.mipmaps.make(device, context),
            Kind::Object => self.objects.make(device, context),
            Kind::TextureRef => self.textures.make(device, context),
            Kind::SurfaceRef => self.surfaces.make(device, context),
            Kind::Context
            | Kind::GreenContext
            | Kind::Graph
            | Kind::GraphNode
            | Kind::UserObject
            | Kind::Pool
            | Kind::Physical => Err(code::ERROR_INVALID_HANDLE),
        }
    }

    /// Device of a live handle of this kind.
    pub(crate) fn device(&self, kind: Kind, handle: u64) -> Result<u32, Code> {
        match kind {
            Kind::Stream => self.streams.get(handle).map(Slot::device),
            Kind::Event => self.events.get(handle).map(Slot::device),
            Kind::Module => self.modules.get(handle).map(Slot::device),
            Kind::Library => self.libraries.get(handle).map(Slot::device),
            Kind::Function => self.functions.get(handle).map(Slot::device),
            Kind::Kernel => self.kernels.get(handle).map(Slot::device),
            Kind::GraphExec => self.instances.get(handle).map(Slot::device),
            Kind::Array => self.arrays.get(handle).map(Slot::device),
            Kind::Mipmap => self.mipmaps.get(handle).map(Slot::device),
            Kind::Object => self.objects.get(handle).map(Slot::device),
            Kind::TextureRef => self.textures.get(handle).map(Slot::device),
            Kind::SurfaceRef => self.surfaces.get(handle).map(Slot::device),
            Kind::Graph | Kind::GraphNode | Kind::UserObject => Err(code::ERROR_INVALID_HANDLE),
            Kind::Context => Err(code::ERROR_INVALID_CONTEXT),
            Kind::GreenContext | Kind::Pool | Kind::Physical => Err(code::ERROR_INVALID_HANDLE),
        }
    }

    /// Ends a handle of any kind; functions and kernels end with their module or library ([`Tables::end_children`]).
    pub(crate) fn end(&self, handle: u64) -> bool {
        match cuda_api::handle::kind(handle) {
            Some(Kind::Stream) => self.streams.end(handle),
            Some(Kind::Event) => self.events.end(handle),
            Some(Kind::Module) => self.modules.end(handle),
            Some(Kind::Library) => self.libraries.end(handle),
            Some(Kind::Function) => self.functions.end(handle),
            Some(Kind::Kernel) => self.kernels.end(handle),
            Some(Kind::GraphExec) => self.instances.end(handle),
            Some(Kind::Array) => self.arrays.end(handle),
            Some(Kind::Mipmap) => self.mipmaps.end(handle),
            Some(Kind::Object) => self.objects.end(handle),
            Some(Kind::TextureRef) => self.textures.end(handle),
            Some(Kind::SurfaceRef) => self.surfaces.end(handle),
            Some(
                Kind::Context
                | Kind::GreenContext
                | Kind::Graph
                | Kind::GraphNode
                | Kind::UserObject
                | Kind::Pool
                | Kind::Physical,
            )
            | None => false,
        }
    }

    /// What is known of a function or kernel.
    pub(crate) fn function(&self, handle: u64) -> Result<&FunctionData, Code> {
        match cuda_api::handle::kind(handle) {
            Some(Kind::Kernel) => self.kernels.get(handle).map(|s| &s.data),
            Some(Kind::Function) => self.functions.get(handle).map(|s| &s.data),
            _ => Err(code::ERROR_INVALID_HANDLE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_handles_stay_ended() {
        let t: Table<Nothing> = Table::new(Kind::Event);
        let mut old = Vec::new();
        for i in 0..1000 {
            let h = t.make(i % 3, 0).unwrap();
            assert_eq!(t.get(h).unwrap().device(), i % 3);
            assert!(t.end(h));
            assert!(!t.end(h));
            old.push(h);
        }
        assert_eq!(t.live(), 0);
        assert!(old.iter().all(|h| t.get(*h).is_err()));
        old.sort_unstable();
        old.dedup();
        assert_eq!(old.len(), 1000);
        assert!(lock(&t.slots).next < 100, "slots are used again");
    }
}
