//! The job's handles: which are live, on which device, and what the recorder knows about each.

use crate::array::{ArrayData, MipmapData};
use crate::function::FunctionData;
use crate::graph::Changed;
use crate::host_function::GraphNode;
use crate::log::lock;
use crate::reference::ReferenceData;
use crate::stream::LastLaunch;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Cells, Kind, compose, slot};
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

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

    /// The context in which it was created, 0 for the recorder's own objects.
    pub(crate) fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    /// Sets another context than the thread's, or none (0).
    pub(crate) fn set_context(&self, context: u64) {
        self.context.store(context, Ordering::Relaxed);
    }

    /// Returns whether it is destroyed with a context, or with `None` with all contexts of a device.
    pub(crate) fn ends_with(&self, context: Option<u64>) -> bool {
        context.is_none_or(|c| c == self.context())
    }
}

/// The recorder's data about a handle of some kind; reset when its slot is reused.
pub(crate) trait Known: Default + Sync {
    /// Resets it to the state of a new handle.
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
    /// The first slot that was never used.
    next: u32,
    /// Freed slots.
    reuse: VecDeque<u32>,
    live: u64,
}

impl<S: Known> Table<S> {
    pub(crate) fn new(kind: Kind) -> Self {
        Table { kind, cells: Cells::new(), slots: Mutex::default() }
    }

    /// Creates a handle on `device` in a context.
    pub(crate) fn make(&self, device: u32, context: u64) -> Result<u64, Code> {
        let slot = {
            let mut slots = lock(&self.slots);
            // A freed slot is reused only when 64 others are free, so that a stale handle is recognized for longer.
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
        // No other thread writes to the cell until its handle exists.
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

    /// Removes a live handle. Returns false if it was not live.
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

    /// Makes a live handle invalid until [`Table::resume`], without changing it. Returns false if it was not live.
    pub(crate) fn suspend(&self, handle: u64) -> bool {
        let Some(cell) = self.cells.get(slot(handle)) else { return false };
        handle != 0 && cell.handle.compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Makes a suspended handle valid again, as if it was just created on its device and in its context.
    pub(crate) fn resume(&self, handle: u64, prepare: impl FnOnce(&S)) {
        if let Some(cell) = self.cells.get(slot(handle)) {
            cell.data.forget();
            prepare(&cell.data);
            cell.handle.store(handle, Ordering::Release);
        }
    }

    /// Number of handles that are live or suspended.
    pub(crate) fn live(&self) -> u64 {
        lock(&self.slots).live
    }

    /// All live handles of a device with their data.
    pub(crate) fn all(&self, device: u32) -> Vec<(u64, &Slot<S>)> {
        let made = lock(&self.slots).next;
        (0..made)
            .filter_map(|s| self.cells.get(s))
            .map(|c| (c.handle.load(Ordering::Acquire), c))
            .filter(|(h, c)| *h != 0 && c.device() == device)
            .collect()
    }
}

/// The recorder's data about a stream.
#[derive(Debug, Default)]
pub(crate) struct StreamData {
    pub(crate) flags: AtomicU32,
    /// Priority, as the bits of an `i32`.
    pub(crate) priority: AtomicU32,
    /// A per-thread default stream: the program cannot destroy it.
    pub(crate) per_thread: AtomicBool,
    /// Its green context was destroyed.
    pub(crate) orphaned: AtomicBool,
    /// Its last work that may delay later work: see [`crate::stream::note_delay`].
    pub(crate) delay: AtomicU64,
}

impl Known for StreamData {
    fn forget(&self) {
        self.flags.store(0, Ordering::Relaxed);
        self.priority.store(0, Ordering::Relaxed);
        self.per_thread.store(false, Ordering::Relaxed);
        self.orphaned.store(false, Ordering::Relaxed);
        self.delay.store(0, Ordering::Relaxed);
    }
}

/// The recorder's data about an event.
#[derive(Debug, Default)]
pub(crate) struct EventData {
    pub(crate) flags: AtomicU32,
    /// Epoch of the place in which it was last recorded; 0: never.
    pub(crate) epoch: AtomicU64,
    records: Mutex<Records>,
    /// Whether it was last recorded in a capture.
    pub(crate) captured: AtomicBool,
    /// Whether a capture or a node of a graph has used it.
    pub(crate) in_graph: AtomicBool,
    /// When it occurred, if that was in an earlier place: bits of f64 milliseconds on the job's clock.
    pub(crate) happened_ms: AtomicU64,
}

/// The records of an event. Records and queries of several threads may interleave: an answer is about the record that was the last one in
/// the place's order when the query arrived, and only these counts show which one that was.
#[derive(Debug, Default)]
struct Records {
    /// Number of records that were about to be sent,
    begun: u64,
    /// and of those that were sent.
    ended: u64,
    last: Option<Recorded>,
    /// Position of the latest record that is known to have occurred.
    done: u64,
    /// How many records had begun when the last of them was seen to have occurred, in a place without an order.
    over: u64,
}

/// A record of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Position in the place's order after it.
    pub(crate) at: u64,
    pub(crate) stream: u64,
}

/// The last record of an event, as it was before a query about the event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    recorded: Recorded,
    begun: u64,
}

impl EventData {
    /// A record is about to be sent to the place.
    pub(crate) fn begin_record(&self) {
        lock(&self.records).begun += 1;
    }

    /// It was sent, or could not be: then there is no epoch. `recorded` is its position, if that is known.
    pub(crate) fn end_record(&self, epoch: Option<u64>, recorded: Option<Recorded>) {
        let mut records = lock(&self.records);
        records.ended += 1;
        let Some(epoch) = epoch else { return };
        let is_newer = |last: Recorded| recorded.is_none_or(|new| new.at > last.at);
        let is_another_place = self.epoch.swap(epoch, Ordering::AcqRel) != epoch;
        if is_another_place {
            // Positions in the new epoch's order begin at zero.
            records.done = 0;
        }
        if is_another_place || records.last.is_none_or(is_newer) {
            records.last = recorded;
        }
    }

    /// It was recorded in the place of this epoch, at an unknown position.
    pub(crate) fn recorded_somewhere(&self, epoch: u64) {
        self.begin_record();
        self.end_record(Some(epoch), None);
    }

    /// The last record, if it is known and no other one is under way.
    pub(crate) fn last(&self) -> Option<Asked> {
        let records = lock(&self.records);
        let recorded = records.last.filter(|_| records.begun == records.ended)?;
        Some(Asked { recorded, begun: records.begun })
    }

    /// Returns whether a record is known to have occurred.
    pub(crate) fn is_done(&self, recorded: Recorded) -> bool {
        lock(&self.records).done == recorded.at
    }

    /// Notes that a record has occurred.
    pub(crate) fn has_happened(&self, recorded: Recorded) {
        lock(&self.records).done = recorded.at;
    }

    /// Number of records, if none is under way.
    pub(crate) fn records(&self) -> Option<u64> {
        let records = lock(&self.records);
        (records.begun == records.ended).then_some(records.begun)
    }

    /// Notes that the place has reported the event as occurred; `asked` is the number of records before the query.
    pub(crate) fn was_over(&self, asked: Option<u64>) {
        let mut records = lock(&self.records);
        // Otherwise the answer may be about a later record.
        if asked == Some(records.begun) {
            records.over = records.begun;
        }
    }

    /// Returns whether the last record is known to have occurred in the place of an epoch, or there was none; `is_past` tells whether a
    /// stream has reached a position of its order.
    pub(crate) fn is_over(&self, epoch: u64, is_past: impl FnOnce(u64, u64) -> bool) -> bool {
        let records = lock(&self.records);
        // A move waits until all work is complete, so a record of an earlier place has occurred.
        records.begun == records.ended
            && (self.epoch.load(Ordering::Acquire) != epoch
                || records.over == records.begun
                || records.last.is_some_and(|last| records.done == last.at || is_past(last.stream, last.at)))
    }

    /// The place has reported the event as occurred: returns the record of which that is true, if it is known.
    pub(crate) fn answered(&self, asked: Asked) -> Option<Recorded> {
        let mut records = lock(&self.records);
        if records.begun != asked.begun {
            // The answer may be about a later record, in another stream.
            return None;
        }
        records.done = asked.recorded.at;
        Some(asked.recorded)
    }
}

impl Asked {
    pub(crate) fn recorded(&self) -> Recorded {
        self.recorded
    }
}

impl Known for EventData {
    fn forget(&self) {
        self.recorded_somewhere(0);
        self.flags.store(0, Ordering::Relaxed);
        self.captured.store(false, Ordering::Relaxed);
        self.in_graph.store(false, Ordering::Relaxed);
        self.happened_ms.store(0, Ordering::Relaxed);
    }
}

/// The recorder's data about a graph instance, besides the graph itself.
#[derive(Debug, Default)]
pub(crate) struct InstanceData {
    /// The journal's handle of the last change of each node.
    pub(crate) changes: Mutex<HashMap<Changed, u64>>,
    /// The events that its launches record.
    pub(crate) records: Mutex<Vec<u64>>,
    /// Its nodes that call this process, in the order in which launches list them; locked during a launch.
    pub(crate) calls: Mutex<Vec<GraphNode>>,
    /// Whether it has had a kernel that may wait for the host.
    pub(crate) may_wait: AtomicBool,
    /// Its last launch, if any of its nodes call this process.
    pub(crate) launched: LastLaunch,
}

impl Known for InstanceData {
    fn forget(&self) {
        lock(&self.changes).clear();
        lock(&self.records).clear();
        lock(&self.calls).clear();
        self.launched.forget();
        self.may_wait.store(false, Ordering::Relaxed);
    }
}

/// Data of kinds about which the recorder needs no more.
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

    /// Creates a handle of any kind except contexts.
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

    /// Removes a handle of any kind; functions and kernels are removed with their module or library (`children.rs`).
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

    /// The data of a function or kernel.
    pub(crate) fn function(&self, handle: u64) -> Result<&FunctionData, Code> {
        match cuda_api::handle::kind(handle) {
            Some(Kind::Kernel) => self.kernels.get(handle).map(|s| &s.data),
            Some(Kind::Function) => self.functions.get(handle).map(|s| &s.data),
            _ => Err(code::ERROR_INVALID_HANDLE),
        }
    }
}

#[cfg(test)]
mod tests;
