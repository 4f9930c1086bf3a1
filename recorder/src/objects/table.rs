//! A table of handles of one kind.

use crate::base::log::lock;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Cells, Kind, compose, slot};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Device of handles that belong to every device (libraries and kernels).
pub(crate) const EVERY_DEVICE: u32 = u32::MAX;

/// A handle's cell: it begins with a cache line, which most calls need alone.
#[derive(Debug, Default)]
#[repr(C, align(64))]
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
pub(crate) struct Slots {
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

#[cfg(test)]
mod tests;
