//! Memory and events of this process that other processes have, and theirs that this one has.

use crate::base::log::lock;
use crate::enter::CallContext;
use crate::job::{self, Device};
use crate::move_error::{MoveError, Shared};
use crate::objects::events::EventData;
use cuda_api::ops::{Offer, id};
use cuda_api::wire_struct;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// One of an event's flags: other processes have it too.
pub(crate) const SHARED: u32 = 1 << 31;

wire_struct! {
    /// The contents of a handle.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Handle {
        pub(crate) magic: [u8; 8],
        pub(crate) offer: Offer,
        /// Size of the chunk.
        pub(crate) bytes: u64,
        /// Offset of the allocation in the chunk.
        pub(crate) offset: u64,
        /// Always zero.
        pub(crate) rest: u64,
    }
}

/// An allocation that other processes may open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Export {
    pub(crate) device: u32,
    pub(crate) chunk: u64,
    pub(crate) offer: Offer,
}

/// Opened memory of another process.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) handle: Handle,
    pub(crate) device: u32,
    /// Address of the mapped chunk.
    pub(crate) at: u64,
    pub(crate) opened: u64,
}

#[derive(Debug)]
pub(crate) struct Ipc {
    pub(crate) exports: BTreeMap<u64, Export>,
    /// By the address that the program has.
    pub(crate) imports: BTreeMap<u64, Import>,
}

pub(crate) static IPC: Mutex<Ipc> = Mutex::new(Ipc { exports: BTreeMap::new(), imports: BTreeMap::new() });

/// Whether this process has ever shared memory or events with others.
pub(crate) static ANY: AtomicBool = AtomicBool::new(false);

/// Number of workers' streams that may still wait for events shared between processes.
pub(crate) static WAITS: AtomicUsize = AtomicUsize::new(0);

/// Returns whether other processes may observe the progress of a GPU of this process, through shared memory or events.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Acquire)
}

/// Notes that memory or an event is about to be shared.
pub(crate) fn note_shared() {
    ANY.store(true, Ordering::Release);
}

/// Returns whether a stream may wait for a shared event: its later work must find what the other process has done.
pub(crate) fn any_waiting() -> bool {
    WAITS.load(Ordering::Acquire) != 0
}

/// Returns whether other processes have the event too.
pub(crate) fn is_shared(event: &EventData) -> bool {
    event.flags.load(Ordering::Relaxed) & SHARED != 0
}

/// Why a device cannot move.
pub(crate) fn blocker(device: &Device) -> Option<MoveError> {
    let job = job::get().ok()?;
    let ipc = lock(&IPC);
    let exports = ipc.exports.values().filter(|e| e.device == device.index).count();
    let imports = ipc.imports.values().filter(|i| i.device == device.index).count();
    let shared = |h: u64| job.tables.events.get(h).is_ok_and(|e| is_shared(&e.data));
    let what = match (exports, imports) {
        (0, 0) if job.tables.events.all(device.index).into_iter().any(|(h, _)| shared(h)) => Shared::Events,
        (0, 0) => return None,
        (0, n) => Shared::OpenAllocations(n),
        (n, _) => Shared::Allocations(n),
    };
    Some(MoveError::SharedWithProcesses(what))
}

/// Withdraws the export of a freed allocation.
pub(crate) fn freed(cx: &CallContext, device: &'static Device, address: u64) {
    let mut ipc = lock(&IPC);
    let Some(gone) = ipc.exports.remove(&address) else { return };
    if ipc.exports.values().all(|e| (e.device, e.chunk) != (gone.device, gone.chunk)) {
        // It fails only if the place is lost, and then nothing is offered.
        let _ = cx.place(device).send(id::CHUNK_WITHDRAW, &[&gone.chunk.to_le_bytes()]);
    }
}

/// Ends all exports and imports of a device whose context is destroyed.
pub(crate) fn forget(device: &Device) {
    let mut ipc = lock(&IPC);
    ipc.exports.retain(|_, e| e.device != device.index);
    ipc.imports.retain(|_, i| i.device != device.index);
}
