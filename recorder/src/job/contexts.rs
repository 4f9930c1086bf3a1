//! Contexts: the context stack of each thread, the contexts that the program has created, and their devices.

use crate::base::log::lock;
use crate::job::{self, Device, Job};
use crate::thread::{self, here};
use cuda_api::address_map::DEVICES;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Cells, Kind, compose, kind, slot};
use cuda_model::parts::Part;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};

/// First slot of contexts that the program creates; lower slots are the primary contexts.
pub(crate) const FIRST_CREATED: u32 = DEVICES;

/// Maximum number of slots in handles.
pub(crate) const SLOTS: u32 = 1 << 24;

pub(crate) static NEXT: AtomicU32 = AtomicU32::new(FIRST_CREATED);

/// The device of each live created context, plus one, by slot; every call reads it.
static ALIVE: LazyLock<Cells<AtomicU32>> = LazyLock::new(Cells::new);

/// Created contexts.
pub(crate) static CREATED: Mutex<Option<FxHashMap<u64, Created>>> = Mutex::new(None);

/// References to primary contexts by `cuCtxAttach`.
pub(crate) static ATTACHED: Mutex<Option<FxHashMap<u64, u32>>> = Mutex::new(None);

/// A context that the program has created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Created {
    pub(crate) device: u32,
    pub(crate) flags: u32,
    pub(crate) references: u32,
    /// The share of a green context.
    pub(crate) part: Option<Part>,
}

/// The handle of a device's primary context, which is valid before the context is created (docs/driver-facts.md 3.1).
pub(crate) fn primary(device: u32) -> u64 {
    compose(Kind::Context, 1, device)
}

/// The calling thread's context, 0 without one.
pub(crate) fn current() -> u64 {
    here().context.get()
}

pub(crate) fn with_stack<T>(f: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    thread::change(|own| {
        let result = f(&mut own.contexts);
        here().context.set(own.contexts.last().copied().unwrap_or(0));
        result
    })
}

/// Device of a context, if the context is live.
pub(crate) fn device_of(job: &'static Job, ctx: u64) -> Result<&'static Device, Code> {
    let slot = slot(ctx);
    if ctx != compose(Kind::Context, 1, slot) {
        return Err(code::ERROR_INVALID_CONTEXT);
    }
    let index = if slot < FIRST_CREATED {
        slot
    } else {
        let alive = ALIVE.get(slot).and_then(|device| device.load(Ordering::Acquire).checked_sub(1));
        alive.ok_or(code::ERROR_INVALID_CONTEXT)?
    };
    job.devices.get(index as usize).ok_or(code::ERROR_INVALID_CONTEXT)
}

/// Returns whether the program has created such a context and destroyed it.
pub(crate) fn is_past(ctx: u64) -> bool {
    kind(ctx) == Some(Kind::Context)
        && (FIRST_CREATED..NEXT.load(Ordering::Relaxed)).contains(&slot(ctx))
        && ALIVE.get(slot(ctx)).is_none_or(|device| device.load(Ordering::Acquire) == 0)
}

/// A context that the program has created and not destroyed.
pub(crate) fn created(ctx: u64) -> Option<Created> {
    lock(&CREATED).as_ref()?.get(&ctx).copied()
}

/// Returns whether the context belongs to a green context.
pub(crate) fn is_green(ctx: u64) -> bool {
    slot(ctx) >= FIRST_CREATED && created(ctx).is_some_and(|c| c.part.is_some())
}

/// Adds a new context.
pub(crate) fn enlist(device: &Device, flags: u32, part: Option<Part>) -> Result<u64, Code> {
    let slot = NEXT.fetch_add(1, Ordering::Relaxed);
    if slot >= SLOTS {
        NEXT.store(SLOTS, Ordering::Relaxed);
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    let ctx = compose(Kind::Context, 1, slot);
    lock(&CREATED).get_or_insert_default().insert(ctx, Created { device: device.index, flags, references: 1, part });
    ALIVE.at(slot).store(device.index + 1, Ordering::Release);
    Ok(ctx)
}

/// Removes a destroyed context.
pub(crate) fn delist(ctx: u64) {
    if let Some(device) = ALIVE.get(slot(ctx)) {
        device.store(0, Ordering::Release);
    }
    lock(&CREATED).get_or_insert_default().remove(&ctx);
}

/// The device of the thread's context; an error unless the context is active.
pub(crate) fn current_device(job: &'static Job) -> Result<&'static Device, Code> {
    let ctx = current();
    if ctx == 0 {
        return Err(code::ERROR_INVALID_CONTEXT);
    }
    let device = match device_of(job, ctx) {
        Err(_) if is_past(ctx) => return Err(code::ERROR_CONTEXT_IS_DESTROYED),
        found => found?,
    };
    if slot(ctx) < FIRST_CREATED && !device.primary_now().1 {
        return Err(code::ERROR_CONTEXT_IS_DESTROYED);
    }
    Ok(device)
}

/// Returns an error unless the calling thread has an active context.
pub(crate) fn check() -> Result<(), Code> {
    current_device(job::get()?).map(drop)
}

/// Acquires a reference to a device's primary context.
pub(crate) fn retain(device: &Device) {
    device.change_primary(|p| {
        p.references += 1;
        p.reset = false;
    });
}

/// The green context of a context.
pub(crate) fn of_context(ctx: u64) -> u64 {
    compose(Kind::GreenContext, 1, slot(ctx))
}
