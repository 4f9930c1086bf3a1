//! Contexts: the context stack of each thread, and the primary context of each device.
//!
//! A place has one real context, the primary one of its GPU. Contexts that the program creates share it: they have their own handles and
//! entries in the thread's stack, and use the streams, modules and memory of the same device.

use crate::base::log::lock;
use crate::calls::{context_events, cross_device, registry};
use crate::device_memory::stream_ordered;
use crate::enter::CallContext;
use crate::job::contexts::{
    ATTACHED, CREATED, Created, FIRST_CREATED, created, current, current_device, delist, device_of, enlist, is_green, is_past,
    primary, retain, with_stack,
};
use crate::job::{Device, Job, PutOff};
use crate::objects::table::EVERY_DEVICE;
use crate::order::captures;
use crate::order::concerned::WaitingCall;
use cuda_api::code::{self, Code};
use cuda_api::flags::CONTEXT_MAP_HOST;
use cuda_api::handle::slot;
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::{ops, sys};
use std::ffi::{c_int, c_uint, c_ulonglong};

/// `CU_CTX_FLAGS_MASK` of CUDA 13.0's header.
const FLAGS_MASK: u32 = 0xff;

/// Checks flags of a primary context: host memory is mapped anyway, and this flag is refused (measured).
fn check_primary_flags(flags: u32) -> Result<(), Code> {
    if flags & CONTEXT_MAP_HOST != 0 { Err(code::ERROR_INVALID_VALUE) } else { check_flags(flags) }
}

/// Checks for at most one way of waiting and no unknown flags.
fn check_flags(flags: u32) -> Result<(), Code> {
    let known = flags & !FLAGS_MASK == 0 && matches!(flags & sys::CUctx_flags::CU_CTX_SCHED_MASK as u32, 0 | 1 | 2 | 4);
    if known { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
}

fn given_or_current(job: &'static Job, ctx: u64) -> Result<&'static Device, Code> {
    if ctx == 0 { current_device(job) } else { device_of(job, ctx) }
}

/// Checks for a context that must not be null.
fn given(ctx: u64) -> Result<u64, Code> {
    if ctx == 0 { Err(code::ERROR_INVALID_VALUE) } else { Ok(ctx) }
}

pub(crate) fn cuDevicePrimaryCtxRetain(_cx: &mut CallContext, device: &'static Device) -> Result<u64, Code> {
    retain(device);
    Ok(primary(device.index))
}

pub(crate) fn cuDevicePrimaryCtxRelease_v2(cx: &mut CallContext, device: &'static Device) -> Result<(), Code> {
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

// Functions of CUDA's first versions that some libraries look up by name.
pub(crate) use {
    cuCtxCreate_v2 as cuCtxCreate, cuCtxDestroy_v2 as cuCtxDestroy, cuCtxPopCurrent_v2 as cuCtxPopCurrent,
    cuCtxPushCurrent_v2 as cuCtxPushCurrent, cuDevicePrimaryCtxRelease_v2 as cuDevicePrimaryCtxRelease,
    cuDevicePrimaryCtxReset_v2 as cuDevicePrimaryCtxReset,
};

/// The first version of this function refuses an active context.
pub(crate) fn cuDevicePrimaryCtxSetFlags(cx: &mut CallContext, device: &'static Device, flags: c_uint) -> Result<(), Code> {
    check_primary_flags(flags)?;
    if device.primary_now().1 {
        return Err(code::ERROR_PRIMARY_CONTEXT_ACTIVE);
    }
    cuDevicePrimaryCtxSetFlags_v2(cx, device, flags)
}

pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(_cx: &mut CallContext, device: &'static Device, flags: c_uint) -> Result<(), Code> {
    check_primary_flags(flags)?;
    device.change_primary(|p| p.flags = flags);
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxGetState(_cx: &mut CallContext, device: &'static Device) -> Result<(c_uint, c_int), Code> {
    let (now, is_active) = device.primary_now();
    Ok((now, c_int::from(is_active)))
}

pub(crate) fn cuDevicePrimaryCtxReset_v2(cx: &mut CallContext, device: &'static Device) -> Result<(), Code> {
    let ending = PutOff::begin();
    device.check()?;
    cuda_model::cudart::context_destroyed(primary(device.index) as usize);
    empty(cx, device)?;
    // Libraries stay loaded and their variables get their initial values in the new context.
    let gone = {
        let _waits = WaitingCall::begin(device);
        let mut ledger = lock(&device.ledger);
        let made_heap = cx.ask(device, ops::id::CONTEXT_RESET, &[]);
        // Whatever came of it.
        device.limit_answers.forget();
        let made_heap = made_heap?;
        ledger.reset_succeeded(made_heap.first().is_some_and(|made| *made != 0))?
    };
    for handle in gone {
        captures::forget(cx, handle);
        crate::handle_end::reference_ended(cx, handle);
        cx.job.tables.end(handle);
    }
    // Kernels survive the context, but their settings do not.
    for (_, kernel) in cx.job.tables.kernels.all(EVERY_DEVICE) {
        kernel.data.forget_on(device.index);
        kernel.data.answers.forget();
    }
    crate::device_memory::variables::context_ended(device);
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
    registry::end_of_device(cx, device)
}

pub(crate) fn cuCtxCreate_v2(_cx: &mut CallContext, flags: c_uint, device: &'static Device) -> Result<u64, Code> {
    check_flags(flags)?;
    let ctx = enlist(device, flags, None)?;
    with_stack(|s| s.push(ctx));
    Ok(ctx)
}

pub(crate) fn cuCtxCreate_v4(
    cx: &mut CallContext,
    pctx: OutPtr<sys::CUcontext>,
    params: InPtr<sys::CUctxCreateParams>,
    flags: c_uint,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    // Parameters request a share of the multiprocessors or graphics: neither is supported.
    if !params.is_null() {
        let asked = params.read()?;
        if !asked.cigParams.is_null() {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        check_affinity(asked.execAffinityParams.is_null(), asked.numExecAffinityParams)?;
    }
    let device = cx.job.device(dev)?;
    let pctx = pctx.not_null()?;
    pctx.write(cuCtxCreate_v2(cx, flags, device)? as sys::CUcontext)
}

/// Shares of the multiprocessors are not supported, as `cuDeviceGetExecAffinitySupport` reports.
fn check_affinity(no_params: bool, count: c_int) -> Result<(), Code> {
    match count {
        0 => Ok(()),
        1.. if !no_params => Err(code::ERROR_UNSUPPORTED_EXEC_AFFINITY),
        _ => Err(code::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuCtxCreate_v3(
    cx: &mut CallContext,
    params: u64,
    count: c_int,
    flags: c_uint,
    device: &'static Device,
) -> Result<u64, Code> {
    check_affinity(params == 0, count)?;
    cuCtxCreate_v2(cx, flags, device)
}

pub(crate) fn cuCtxAttach(cx: &mut CallContext, flags: c_uint) -> Result<u64, Code> {
    current_device(cx.job)?;
    if flags != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let ctx = current();
    match lock(&CREATED).as_mut().and_then(|all| all.get_mut(&ctx)) {
        Some(made) => made.references += 1,
        None => *lock(&ATTACHED).get_or_insert_default().entry(ctx).or_default() += 1,
    }
    Ok(ctx)
}

pub(crate) fn cuCtxDetach(cx: &mut CallContext, named: u64) -> Result<(), Code> {
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
    if left == 0 { cuCtxDestroy_v2(cx, named) } else { Ok(()) }
}

pub(crate) fn cuCtxRecordEvent(cx: &mut CallContext, ctx: u64, event: u64) -> Result<(), Code> {
    context_events::record(cx, ctx, event)
}

pub(crate) fn cuCtxWaitEvent(cx: &mut CallContext, ctx: u64, event: u64) -> Result<(), Code> {
    context_events::wait(cx, ctx, event)
}

pub(crate) fn cuCtxDestroy_v2(cx: &mut CallContext, ctx: u64) -> Result<(), Code> {
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
    registry::end_of_context(cx, device, ctx)?;
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

pub(crate) fn cuCtxGetCurrent(_cx: &mut CallContext) -> Result<u64, Code> {
    Ok(current())
}

pub(crate) fn cuCtxSetCurrent(cx: &mut CallContext, ctx: u64) -> Result<(), Code> {
    if ctx != 0 {
        device_of(cx.job, ctx)?;
    }
    with_stack(|s| {
        s.pop();
        if ctx != 0 {
            s.push(ctx);
        }
    });
    Ok(())
}

pub(crate) fn cuCtxPushCurrent_v2(cx: &mut CallContext, ctx: u64) -> Result<(), Code> {
    let ctx = given(ctx)?;
    device_of(cx.job, ctx)?;
    with_stack(|s| s.push(ctx));
    Ok(())
}

pub(crate) fn cuCtxPopCurrent_v2(_cx: &mut CallContext) -> Result<u64, Code> {
    with_stack(Vec::pop).ok_or(code::ERROR_INVALID_CONTEXT)
}

pub(crate) fn cuCtxGetDevice(cx: &mut CallContext) -> Result<sys::CUdevice, Code> {
    let ctx = current();
    if ctx == 0 {
        return Err(code::ERROR_INVALID_CONTEXT);
    }
    Ok(device_of(cx.job, ctx)?.index as sys::CUdevice)
}

pub(crate) fn cuCtxGetDevice_v2(cx: &mut CallContext, ctx: u64) -> Result<sys::CUdevice, Code> {
    if ctx == 0 { cuCtxGetDevice(cx) } else { Ok(device_of(cx.job, ctx)?.index as sys::CUdevice) }
}

pub(crate) fn cuCtxGetFlags(cx: &mut CallContext) -> Result<c_uint, Code> {
    let ctx = current();
    let device = current_device(cx.job)?;
    Ok(match created(ctx) {
        Some(Created { part: None, flags, .. }) => flags,
        // Every primary context reports this flag (measured).
        _ => device.primary_now().0 | CONTEXT_MAP_HOST,
    })
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

pub(crate) fn cuCtxGetId(cx: &mut CallContext, ctx: u64) -> Result<c_ulonglong, Code> {
    let ctx = if ctx == 0 { current() } else { ctx };
    device_of(cx.job, ctx)?;
    Ok(c_ulonglong::from(slot(ctx)) + 1)
}

pub(crate) fn cuCtxGetApiVersion(cx: &mut CallContext, ctx: sys::CUcontext, version: OutPtr<c_uint>) -> Result<(), Code> {
    let ctx = if ctx.is_null() { current() } else { ctx as u64 };
    device_of(cx.job, ctx)?;
    // Every driver reports this version, whatever version the context was created with (docs/driver-facts.md 3.3).
    version.write(3020)
}

pub(crate) fn cuCtxSynchronize(cx: &mut CallContext) -> Result<(), Code> {
    let device = cx.device()?;
    captures::forbid_in(cx, device)?;
    synchronize(cx, device)
}

fn synchronize(cx: &CallContext, device: &'static Device) -> Result<(), Code> {
    let mark = stream_ordered::before_sync(device);
    cx.settle(device)?;
    stream_ordered::after_sync(cx, device, None, mark);
    Ok(())
}

pub(crate) fn cuCtxSynchronize_v2(cx: &mut CallContext, ctx: u64) -> Result<(), Code> {
    let device = given_or_current(cx.job, ctx)?;
    captures::forbid_in(cx, device)?;
    synchronize(cx, device)
}

pub(crate) fn cuCtxGetStreamPriorityRange(cx: &mut CallContext) -> Result<(c_int, c_int), Code> {
    let [lowest, highest] = cx.device()?.info.priorities;
    Ok((lowest, highest))
}

pub(crate) fn cuCtxGetExecAffinity(cx: &mut CallContext, to: OutPtr<sys::CUexecAffinityParam>, kind: u32) -> Result<(), Code> {
    let device = cx.device()?;
    if kind != sys::CUexecAffinityType_enum::CU_EXEC_AFFINITY_TYPE_SM_COUNT as u32 {
        return Err(code::ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    let all = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32;
    // The kind, then the number.
    to.cast().write([kind, crate::job::attributes::attribute(device, all).unwrap_or(0) as u32])
}

#[cfg(test)]
mod tests;
