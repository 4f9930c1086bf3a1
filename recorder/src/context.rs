//! Contexts: the context stack of each thread, and the primary context of each device.
//!
//! A place has one real context, the primary one of its GPU. Contexts that the program creates share it: they have their own handles and
//! entries in the thread's stack, and use the streams, modules and memory of the same device.

use crate::enter::{CallContext, older};
use crate::graph;
use crate::job::{self, Device, Job, PutOff};
use crate::ledger::Keep;
use crate::log::lock;
use crate::memory::pools;
use crate::tables::EVERY_DEVICE;
use crate::thread::{self, here};
use crate::{context_events, cross_device, peer, stream};
use cuda_api::arg::Edges;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Cells, Kind, compose, kind, slot};
use cuda_api::{ops, sys};
use cuda_model::parts::Part;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};

/// `CU_CTX_FLAGS_MASK` of CUDA 13.0's header.
const FLAGS_MASK: u32 = 0xff;
/// `CU_CTX_MAP_HOST`: every primary context reports it (measured).
const MAP_HOST: u32 = 8;
/// First slot of contexts that the program creates; lower slots are the primary contexts.
const FIRST_CREATED: u32 = 32;
/// Maximum number of slots in handles.
const SLOTS: u32 = 1 << 24;

static NEXT: AtomicU32 = AtomicU32::new(FIRST_CREATED);
/// The device of each live created context, plus one, by slot; every call reads it.
static ALIVE: LazyLock<Cells<AtomicU32>> = LazyLock::new(Cells::new);
/// Created contexts.
static CREATED: Mutex<Option<HashMap<u64, Created>>> = Mutex::new(None);
/// References to primary contexts by `cuCtxAttach`.
static ATTACHED: Mutex<Option<HashMap<u64, u32>>> = Mutex::new(None);

/// A context that the program has created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Created {
    pub(crate) device: u32,
    flags: u32,
    references: u32,
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

fn with_stack<T>(f: impl FnOnce(&mut Vec<u64>) -> T) -> T {
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
fn is_past(ctx: u64) -> bool {
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

/// Checks flags of a primary context: host memory is mapped anyway, and this flag is refused (measured).
fn check_primary_flags(flags: u32) -> Result<(), Code> {
    if flags & MAP_HOST != 0 { Err(code::ERROR_INVALID_VALUE) } else { check_flags(flags) }
}

/// Checks for at most one way of waiting and no unknown flags.
fn check_flags(flags: u32) -> Result<(), Code> {
    let known = flags & !FLAGS_MASK == 0 && matches!(flags & sys::CUctx_flags::CU_CTX_SCHED_MASK as u32, 0 | 1 | 2 | 4);
    if known { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
}

fn given_or_current(job: &'static Job, ctx: sys::CUcontext) -> Result<&'static Device, Code> {
    if ctx.is_null() { current_device(job) } else { device_of(job, ctx as u64) }
}

/// Checks for a context that must not be null.
fn given(ctx: sys::CUcontext) -> Result<u64, Code> {
    if ctx.is_null() { Err(code::ERROR_INVALID_VALUE) } else { Ok(ctx as u64) }
}

/// Checks for an output that must not be null, where this error takes precedence over others.
fn wanted<T>(to: *mut T) -> Result<(), Code> {
    if to.is_null() { Err(code::ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// Writes an output that must not be null.
pub(crate) fn write_out<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the program's non-null output pointers are writable by CUDA's contract.
    unsafe { to.write(value) };
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxRetain(cx: &mut CallContext, pctx: *mut sys::CUcontext, dev: sys::CUdevice) -> Result<(), Code> {
    let device = cx.job.device(dev)?;
    write_out(pctx, primary(device.index) as sys::CUcontext)?;
    retain(device);
    Ok(())
}

/// Acquires a reference to a device's primary context.
pub(crate) fn retain(device: &Device) {
    device.change_primary(|p| {
        p.references += 1;
        p.reset = false;
    });
}

pub(crate) fn cuDevicePrimaryCtxRelease_v2(cx: &mut CallContext, dev: sys::CUdevice) -> Result<(), Code> {
    let device = cx.job.device(dev)?;
    let last = device.change_primary(|p| {
        p.references = p.references.checked_sub(1)?;
        if p.references == 0 {
            p.flags = 0;
        }
        Some(p.references == 0)
    });
    if last.ok_or(code::ERROR_INVALID_CONTEXT)? {
        empty(cx, device)?;
        device.check_late()?;
    }
    Ok(())
}

older! {
    cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2(dev: sys::CUdevice);
    cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset_v2(dev: sys::CUdevice);
    cuCtxPushCurrent = cuCtxPushCurrent_v2(ctx: sys::CUcontext);
    cuCtxPopCurrent = cuCtxPopCurrent_v2(pctx: *mut sys::CUcontext);
    cuCtxCreate = cuCtxCreate_v2(pctx: *mut sys::CUcontext, flags: c_uint, dev: sys::CUdevice);
    cuCtxDestroy = cuCtxDestroy_v2(ctx: sys::CUcontext);
}

/// The first version of this function refuses an active context.
pub(crate) fn cuDevicePrimaryCtxSetFlags(cx: &mut CallContext, dev: sys::CUdevice, flags: c_uint) -> Result<(), Code> {
    let device = cx.job.device(dev)?;
    check_primary_flags(flags)?;
    if device.primary_now().1 {
        return Err(code::ERROR_PRIMARY_CONTEXT_ACTIVE);
    }
    cuDevicePrimaryCtxSetFlags_v2(cx, dev, flags)
}

pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(cx: &mut CallContext, dev: sys::CUdevice, flags: c_uint) -> Result<(), Code> {
    let device = cx.job.device(dev)?;
    check_primary_flags(flags)?;
    device.change_primary(|p| p.flags = flags);
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxGetState(
    cx: &mut CallContext,
    dev: sys::CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Result<(), Code> {
    let device = cx.job.device(dev)?;
    let (now, is_active) = device.primary_now();
    write_out(flags, now)?;
    write_out(active, c_int::from(is_active))
}

pub(crate) fn cuDevicePrimaryCtxReset_v2(cx: &mut CallContext, dev: sys::CUdevice) -> Result<(), Code> {
    let device = cx.job.device(dev)?;
    let ending = PutOff::begin();
    device.check()?;
    cuda_model::cudart::context_destroyed(primary(device.index) as usize);
    empty(cx, device)?;
    // Libraries stay loaded and their variables get their initial values in the new context.
    let gone = {
        let mut ledger = lock(&device.ledger);
        let made_heap = cx.ask(device, ops::id::CONTEXT_RESET, &[])?;
        // This supersedes the record of an earlier reset.
        ledger.append(ops::id::CONTEXT_RESET, &[], &[], &Edges::default(), Keep::setting(0, ops::id::CONTEXT_RESET, 0))?;
        if made_heap.first().is_some_and(|made| *made != 0) {
            ledger.append(ops::id::HEAP_MAKE, &[], &[], &Edges::default(), Keep::stays(ops::id::HEAP_MAKE, 0))?;
        }
        ledger.context_ended()?
    };
    for handle in gone {
        graph::forget(cx, handle);
        crate::reference::ended(cx, handle);
        cx.job.tables.end(handle);
    }
    // Kernels survive the context, but their settings do not.
    for (_, kernel) in cx.job.tables.kernels.all(EVERY_DEVICE) {
        kernel.data.forget_on(device.index);
        kernel.data.answers.forget();
    }
    crate::variables::forget();
    device.change_primary(|p| p.reset = true);
    drop(ending);
    device.check_late()
}

/// Destroys everything in the context of a device: streams, events, modules, memory. Libraries stay (docs/driver-facts.md 3.9). A pending
/// error stays pending.
fn empty(cx: &mut CallContext, device: &'static Device) -> Result<(), Code> {
    cx.on(device);
    let _ending = PutOff::begin();
    if device.sticky() != 0 {
        return Ok(());
    }
    cx.wait(device, ops::id::CONTEXT_SYNC, &[])?;
    cross_device::settle(cx, device);
    peer::forget(cx, device, primary(device.index));
    stream::end_all(cx, device)?;
    context_events::forget(device);
    crate::host_memory::end_all(cx, device);
    crate::texture::end_of(cx, device, None)?;
    crate::reference::end_of(cx, device, None)?;
    crate::array::end_of(cx, device, None)?;
    crate::module::unload_of(cx, device, None)?;
    crate::memory::free_all(cx, device)
}

fn create(cx: &mut CallContext, pctx: *mut sys::CUcontext, flags: c_uint, dev: sys::CUdevice) -> Result<(), Code> {
    let device = cx.job.device(dev)?;
    check_flags(flags)?;
    wanted(pctx)?;
    let ctx = enlist(device, flags, None)?;
    write_out(pctx, ctx as sys::CUcontext)?;
    with_stack(|s| s.push(ctx));
    Ok(())
}

pub(crate) fn cuCtxCreate_v2(
    cx: &mut CallContext,
    pctx: *mut sys::CUcontext,
    flags: c_uint,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    create(cx, pctx, flags, dev)
}

pub(crate) fn cuCtxCreate_v4(
    cx: &mut CallContext,
    pctx: *mut sys::CUcontext,
    params: *mut sys::CUctxCreateParams,
    flags: c_uint,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    // Parameters request a share of the multiprocessors or graphics: neither is supported. SAFETY: the program's non-null pointer is a
    // readable structure of numbers and pointers.
    if let Some(asked) = unsafe { params.as_ref() } {
        if !asked.cigParams.is_null() {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        check_affinity(asked.execAffinityParams, asked.numExecAffinityParams)?;
    }
    create(cx, pctx, flags, dev)
}

/// Shares of the multiprocessors are not supported, as `cuDeviceGetExecAffinitySupport` reports.
fn check_affinity(params: *const sys::CUexecAffinityParam, count: c_int) -> Result<(), Code> {
    match count {
        0 => Ok(()),
        1.. if !params.is_null() => Err(code::ERROR_UNSUPPORTED_EXEC_AFFINITY),
        _ => Err(code::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuCtxCreate_v3(
    cx: &mut CallContext,
    pctx: *mut sys::CUcontext,
    params: *mut sys::CUexecAffinityParam,
    count: c_int,
    flags: c_uint,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    cx.job.device(dev)?;
    check_affinity(params, count)?;
    create(cx, pctx, flags, dev)
}

pub(crate) fn cuCtxAttach(cx: &mut CallContext, pctx: *mut sys::CUcontext, flags: c_uint) -> Result<(), Code> {
    current_device(cx.job)?;
    if flags != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let ctx = current();
    write_out(pctx, ctx as sys::CUcontext)?;
    match lock(&CREATED).as_mut().and_then(|all| all.get_mut(&ctx)) {
        Some(made) => made.references += 1,
        None => *lock(&ATTACHED).get_or_insert_default().entry(ctx).or_default() += 1,
    }
    Ok(())
}

pub(crate) fn cuCtxDetach(cx: &mut CallContext, ctx: sys::CUcontext) -> Result<(), Code> {
    let named = ctx as u64;
    if named == 0 || named != current() {
        return Err(code::ERROR_INVALID_CONTEXT);
    }
    let left = match lock(&CREATED).as_mut().and_then(|all| all.get_mut(&named)) {
        Some(made) if made.part.is_some() && made.references == 1 => return Err(code::ERROR_INVALID_CONTEXT),
        Some(made) => {
            made.references -= 1;
            made.references
        }
        // The first reference to a primary or a green context is of another kind.
        None => {
            let mut all = lock(&ATTACHED);
            let count = all.get_or_insert_default().get_mut(&named).filter(|n| **n > 0).ok_or(code::ERROR_INVALID_CONTEXT)?;
            *count -= 1;
            1
        }
    };
    if left == 0 { cuCtxDestroy_v2(cx, ctx) } else { Ok(()) }
}

pub(crate) fn cuCtxRecordEvent(cx: &mut CallContext, ctx: sys::CUcontext, event: sys::CUevent) -> Result<(), Code> {
    context_events::record(cx, ctx as u64, event as u64)
}

pub(crate) fn cuCtxWaitEvent(cx: &mut CallContext, ctx: sys::CUcontext, event: sys::CUevent) -> Result<(), Code> {
    context_events::wait(cx, ctx as u64, event as u64)
}

pub(crate) fn cuCtxDestroy_v2(cx: &mut CallContext, ctx: sys::CUcontext) -> Result<(), Code> {
    let ctx = given(ctx)?;
    let device = match device_of(cx.job, ctx) {
        // The program has already destroyed it: the driver returns this code in some runs, and 201 in others (measured).
        Err(_) if is_past(ctx) => return Err(code::ERROR_CONTEXT_IS_DESTROYED),
        found => found?,
    };
    if slot(ctx) < FIRST_CREATED || is_green(ctx) {
        return Err(code::ERROR_INVALID_CONTEXT);
    }
    let ending = PutOff::begin();
    cx.wait(device, ops::id::CONTEXT_SYNC, &[])?;
    cross_device::settle(cx, device);
    peer::forget(cx, device, ctx);
    context_events::end(cx, device, ctx)?;
    // Everything created in it is destroyed with it; host memory stays until the program frees it, or the device's last context is
    // destroyed.
    stream::end_of(cx, device, Some(ctx))?;
    crate::texture::end_of(cx, device, Some(ctx))?;
    crate::reference::end_of(cx, device, Some(ctx))?;
    crate::array::end_of(cx, device, Some(ctx))?;
    crate::module::unload_of(cx, device, Some(ctx))?;
    crate::memory::free_of(cx, device, ctx)?;
    delist(ctx);
    cuda_model::cudart::context_destroyed(ctx as usize);
    with_stack(|s| {
        if s.last() == Some(&ctx) {
            s.pop();
        }
    });
    drop(ending);
    device.check_late()
}

pub(crate) fn cuCtxGetCurrent(_cx: &mut CallContext, pctx: *mut sys::CUcontext) -> Result<(), Code> {
    write_out(pctx, current() as sys::CUcontext)
}

pub(crate) fn cuCtxSetCurrent(cx: &mut CallContext, ctx: sys::CUcontext) -> Result<(), Code> {
    if !ctx.is_null() {
        device_of(cx.job, ctx as u64)?;
    }
    with_stack(|s| {
        s.pop();
        if !ctx.is_null() {
            s.push(ctx as u64);
        }
    });
    Ok(())
}

pub(crate) fn cuCtxPushCurrent_v2(cx: &mut CallContext, ctx: sys::CUcontext) -> Result<(), Code> {
    let ctx = given(ctx)?;
    device_of(cx.job, ctx)?;
    with_stack(|s| s.push(ctx));
    Ok(())
}

pub(crate) fn cuCtxPopCurrent_v2(_cx: &mut CallContext, pctx: *mut sys::CUcontext) -> Result<(), Code> {
    let ctx = with_stack(Vec::pop).ok_or(code::ERROR_INVALID_CONTEXT)?;
    if pctx.is_null() { Ok(()) } else { write_out(pctx, ctx as sys::CUcontext) }
}

pub(crate) fn cuCtxGetDevice(cx: &mut CallContext, device: *mut sys::CUdevice) -> Result<(), Code> {
    wanted(device)?;
    let ctx = current();
    if ctx == 0 {
        return Err(code::ERROR_INVALID_CONTEXT);
    }
    write_out(device, device_of(cx.job, ctx)?.index as sys::CUdevice)
}

pub(crate) fn cuCtxGetDevice_v2(cx: &mut CallContext, device: *mut sys::CUdevice, ctx: sys::CUcontext) -> Result<(), Code> {
    if ctx.is_null() {
        cuCtxGetDevice(cx, device)
    } else {
        write_out(device, device_of(cx.job, ctx as u64)?.index as sys::CUdevice)
    }
}

pub(crate) fn cuCtxGetFlags(cx: &mut CallContext, flags: *mut c_uint) -> Result<(), Code> {
    wanted(flags)?;
    let ctx = current();
    let device = current_device(cx.job)?;
    let value = match created(ctx) {
        Some(Created { part: None, flags, .. }) => flags,
        _ => device.primary_now().0 | MAP_HOST,
    };
    write_out(flags, value)
}

pub(crate) fn cuCtxSetFlags(cx: &mut CallContext, flags: c_uint) -> Result<(), Code> {
    let ctx = current();
    let device = current_device(cx.job)?;
    check_flags(flags)?;
    match lock(&CREATED).as_mut().and_then(|c| c.get_mut(&ctx)) {
        Some(made) if made.part.is_none() => made.flags = flags,
        _ => device.change_primary(|p| p.flags = flags),
    }
    Ok(())
}

pub(crate) fn cuCtxGetId(cx: &mut CallContext, ctx: sys::CUcontext, id: *mut c_ulonglong) -> Result<(), Code> {
    wanted(id)?;
    let ctx = if ctx.is_null() { current() } else { ctx as u64 };
    device_of(cx.job, ctx)?;
    write_out(id, c_ulonglong::from(slot(ctx)) + 1)
}

pub(crate) fn cuCtxGetApiVersion(cx: &mut CallContext, ctx: sys::CUcontext, version: *mut c_uint) -> Result<(), Code> {
    let ctx = if ctx.is_null() { current() } else { ctx as u64 };
    device_of(cx.job, ctx)?;
    // Every driver reports this version, whatever version the context was created with (docs/driver-facts.md 3.3).
    write_out(version, 3020)
}

pub(crate) fn cuCtxSynchronize(cx: &mut CallContext) -> Result<(), Code> {
    let device = cx.device()?;
    graph::forbid_in(cx, device)?;
    synchronize(cx, device)
}

fn synchronize(cx: &CallContext, device: &'static Device) -> Result<(), Code> {
    let mark = pools::before_sync(device);
    cx.settle(device)?;
    pools::after_sync(cx, device, None, mark);
    Ok(())
}

pub(crate) fn cuCtxSynchronize_v2(cx: &mut CallContext, ctx: sys::CUcontext) -> Result<(), Code> {
    let device = given_or_current(cx.job, ctx)?;
    graph::forbid_in(cx, device)?;
    synchronize(cx, device)
}

pub(crate) fn cuCtxGetStreamPriorityRange(cx: &mut CallContext, least: *mut c_int, greatest: *mut c_int) -> Result<(), Code> {
    let [lowest, highest] = cx.device()?.info.priorities;
    for (to, value) in [(least, lowest), (greatest, highest)] {
        if !to.is_null() {
            write_out(to, value)?;
        }
    }
    Ok(())
}

pub(crate) fn cuCtxGetExecAffinity(cx: &mut CallContext, to: *mut sys::CUexecAffinityParam, kind: u32) -> Result<(), Code> {
    let device = cx.device()?;
    if kind != sys::CUexecAffinityType_enum::CU_EXEC_AFFINITY_TYPE_SM_COUNT as u32 {
        return Err(code::ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    let all = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32;
    // The kind, then the number.
    write_out(to.cast::<[u32; 2]>(), [kind, crate::device::attribute(device, all).unwrap_or(0) as u32])
}

/// Functions that NVIDIA's libraries use through the private tables.
#[derive(Debug)]
pub(crate) struct PrivateTables;

impl cuda_model::cudart::Host for PrivateTables {
    fn driver_version(&self) -> i32 {
        crate::device::driver_version()
    }

    fn devices(&self) -> Vec<cuda_model::cudart::DeviceIdentity> {
        let Some(job) = job::opened() else { return Vec::new() };
        job.devices
            .iter()
            .map(|d| cuda_model::cudart::DeviceIdentity {
                uuid: d.info.uuid,
                pci_domain: d.info.pci[0],
                pci_bus: d.info.pci[1],
                pci_device: d.info.pci[2],
            })
            .collect()
    }

    fn current_context(&self) -> usize {
        current() as usize
    }

    fn primary_context(&self, ordinal: i32) -> Result<usize, i32> {
        Ok(primary(job::get()?.device(ordinal)?.index) as usize)
    }

    fn load_fatbin(&self, image: *const std::ffi::c_void) -> Result<usize, i32> {
        crate::module::load_for_runtime(image)
    }

    fn functions(&self, module: usize) -> Result<Vec<(usize, &'static std::ffi::CStr)>, i32> {
        crate::module::functions(module)
    }

    fn unknown_table(&self, uuid: &[u8; 16]) {
        crate::log::missed(format!("private table {}", hex(uuid)));
    }

    fn unknown_slot(&self, uuid: &[u8; 16], slot: usize) {
        crate::log::missed(format!("slot {slot} of private table {}", hex(uuid)));
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests;
