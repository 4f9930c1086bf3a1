//! Contexts.

use super::{Out, Res, abi};
use crate::gpu::context::{self, Context};
use crate::gpu::graph_table::GRAPHS;
use crate::gpu::live::Live;
use crate::gpu::stream::{GREATEST_PRIORITY, Target};
use crate::gpu::stream_state::{Kind, NON_BLOCKING, Stream};
use crate::gpu::{capture, device, event, lock, sched, teardown, wait};
use cuda_api::sys::{
    CUcontext, CUctxCreateParams, CUdevice, CUevent, CUexecAffinityParam, CUexecAffinityType, CUfunc_cache, CUlimit, CUresult,
    CUsharedconfig,
};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const STACK_SIZE: c_uint = 0;
const PRINTF_FIFO_SIZE: c_uint = 1;
const MALLOC_HEAP_SIZE: c_uint = 2;
const NESTED_SYNCHRONISATION: c_uint = 3;
const PENDING_LAUNCHES: c_uint = 4;
const L2_FETCH_GRANULARITY: c_uint = 5;
const PERSISTING_L2: c_uint = 6;
const SHARED_OF_BLOCK: c_uint = 7;
const CACHE_OF_GRID: c_uint = 8;

abi! {
    call fn cuCtxCreate_v2 / cuCtxCreate [gone] (out: Out<CUcontext> as *mut CUcontext, flags: c_uint, dev: CUdevice) {
        create(out, flags, dev)
    }

    call fn cuCtxCreate_v3 [gone] (
        out: Out<CUcontext> as *mut CUcontext, affinity: Out<u8>, count: c_int, flags: c_uint, dev: CUdevice,
    ) {
        device::get(dev)?;
        check_affinity(affinity.is_null(), count)?;
        create(out, flags, dev)
    }

    call fn cuCtxCreate_v4(
        out: Out<CUcontext> as *mut CUcontext, params: Out<CUctxCreateParams> as *mut CUctxCreateParams,
        flags: c_uint, dev: CUdevice,
    ) {
        if !params.is_null() {
            let params = params.get()?;
            if !params.cigParams.is_null() {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            check_affinity(params.execAffinityParams.is_null(), params.numExecAffinityParams)?;
        }
        create(out, flags, dev)
    }

    call fn cuCtxDestroy_v2 / cuCtxDestroy(ctx: CUcontext) {
        // Only here the driver says that it was there once (measured).
        if context::CONTEXTS.is_past(ctx as usize) {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        teardown::destroy(&context::resolve(ctx)?)
    }

    call fn cuCtxAttach(out: Out<CUcontext> as *mut CUcontext, flags: c_uint) {
        context::current()?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let top = named(std::ptr::null_mut())?;
        out.set(top.handle as CUcontext)?;
        top.attach();
        Ok(())
    }

    call fn cuCtxDetach(ctx: CUcontext) {
        let top = named(std::ptr::null_mut())?;
        if top.handle != ctx as usize {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        if top.detach()? { teardown::destroy(&top) } else { Ok(()) }
    }

    call fn cuCtxRecordEvent(ctx: CUcontext, event: CUevent) {
        record_whole(&*context::resolve(ctx)?, event)
    }

    call fn cuCtxWaitEvent(ctx: CUcontext, event: CUevent) {
        wait_whole(&*context::resolve(ctx)?, event)
    }

    call fn cuProfilerStart() {
        context::current().map(drop)
    }

    call fn cuProfilerStop() {
        context::current().map(drop)
    }

    call fn cuCtxSetCurrent(ctx: CUcontext) {
        context::set_current(if ctx.is_null() { None } else { Some(context::resolve(ctx)?) })
    }

    call fn cuCtxGetCurrent(out: Out<CUcontext> as *mut CUcontext) {
        out.set(context::top().map_or(std::ptr::null_mut(), |context| context.handle as CUcontext))
    }

    call fn cuCtxPushCurrent_v2 / cuCtxPushCurrent(ctx: CUcontext) {
        context::push(context::resolve(ctx)?)
    }

    call fn cuCtxPopCurrent_v2 / cuCtxPopCurrent(out: Out<CUcontext> as *mut CUcontext) {
        let context = context::pop()?;
        out.set_if_wanted(context.handle as CUcontext);
        Ok(())
    }

    call fn cuCtxGetDevice(dev: Out<CUdevice> as *mut CUdevice) {
        dev.set(context::top().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?.device.ordinal)
    }

    call fn cuCtxGetDevice_v2(dev: Out<CUdevice> as *mut CUdevice, ctx: CUcontext) {
        dev.set(named(ctx)?.device.ordinal)
    }

    call fn cuCtxGetFlags(flags: Out<c_uint> as *mut c_uint) {
        flags.set(named(std::ptr::null_mut())?.reported_flags())
    }

    call fn cuCtxSetFlags(flags: c_uint) {
        named(std::ptr::null_mut())?.set_flags(flags)
    }

    call fn cuCtxGetId(ctx: CUcontext, id: Out<u64> as *mut u64) {
        id.set(live(ctx)?.number)
    }

    call fn cuCtxGetApiVersion(ctx: CUcontext, version: Out<c_uint> as *mut c_uint) {
        // The test whether a context is alive that runtimes make.
        live(ctx).map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        // What every real driver answers.
        version.set(3020)
    }

    call fn cuCtxSynchronize() {
        let live = context::current()?;
        capture::forbid_in(&live)?;
        wait::synchronise(&live)
    }

    call fn cuCtxSynchronize_v2(ctx: CUcontext) {
        let live = live(ctx)?;
        live.check()?;
        capture::forbid_in(&live)?;
        wait::synchronise(&live)
    }

    call fn cuCtxGetLimit(value: Out<usize> as *mut usize, limit: c_uint as CUlimit) {
        let live = context::current()?;
        value.check()?;
        let limits = *lock(&live.limits);
        value.set(match limit {
            STACK_SIZE => limits.stack,
            PRINTF_FIFO_SIZE => limits.printf,
            MALLOC_HEAP_SIZE => limits.heap,
            PENDING_LAUNCHES => limits.pending_launches,
            L2_FETCH_GRANULARITY => limits.l2_fetch,
            PERSISTING_L2 => limits.persisting_l2,
            SHARED_OF_BLOCK => device::SHARED_OPTIN as usize,
            CACHE_OF_GRID => 0,
            NESTED_SYNCHRONISATION => return Err(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT),
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        })
    }

    call fn cuCtxSetLimit(limit: c_uint as CUlimit, value: usize) {
        let live = context::current()?;
        let mut limits = lock(&live.limits);
        match limit {
            STACK_SIZE if value <= 512 << 10 => limits.stack = value.next_multiple_of(16),
            // Too late once code that prints has been launched.
            PRINTF_FIFO_SIZE if value <= 1 << 30 && !limits.printf_used => limits.printf = value.max(512 << 10),
            // Too late once the heap has its place.
            MALLOC_HEAP_SIZE if live.has_heap() => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            MALLOC_HEAP_SIZE if value as u64 <= live.device.total => limits.heap = value.max(4 << 20).next_multiple_of(4096),
            STACK_SIZE | PRINTF_FIFO_SIZE => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            MALLOC_HEAP_SIZE => return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            // Hints.
            PENDING_LAUNCHES => limits.pending_launches = value,
            L2_FETCH_GRANULARITY if value <= 128 => limits.l2_fetch = value,
            PERSISTING_L2 => limits.persisting_l2 = value,
            NESTED_SYNCHRONISATION | SHARED_OF_BLOCK | CACHE_OF_GRID => return Err(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT),
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    call fn cuCtxGetCacheConfig(config: Out<c_uint> as *mut CUfunc_cache) {
        let live = context::current()?;
        config.check()?;
        config.set(live.cache_config.load(Ordering::Relaxed))
    }

    call fn cuCtxSetCacheConfig(config: c_uint as CUfunc_cache) {
        let live = context::current()?;
        super::function::check_cache_config(config)?;
        live.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    call fn cuCtxGetSharedMemConfig(config: Out<c_uint> as *mut CUsharedconfig) {
        context::current()?;
        config.set(1)
    }

    call fn cuCtxSetSharedMemConfig(config: c_uint as CUsharedconfig) {
        context::current()?;
        if config <= 2 { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) }
    }

    call fn cuCtxResetPersistingL2Cache() {
        context::current().map(drop)
    }

    call fn cuCtxGetStreamPriorityRange(least: Out<c_int> as *mut c_int, greatest: Out<c_int> as *mut c_int) {
        context::current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(GREATEST_PRIORITY);
        Ok(())
    }

    call fn cuCtxGetExecAffinity(to: Out<[c_uint; 2]> as *mut CUexecAffinityParam, kind: c_uint as CUexecAffinityType) {
        let live = context::current()?;
        match kind {
            0 => to.set([kind, live.device.attribute(16)? as c_uint]),
            _ => Err(CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY),
        }
    }

    call fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) {
        let (live, bit) = peer_of(peer)?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if live.peers.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        Ok(())
    }

    call fn cuCtxDisablePeerAccess(peer: CUcontext) {
        let (live, bit) = peer_of(peer)?;
        if live.peers.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        }
        Ok(())
    }
}

fn create(out: Out<CUcontext>, flags: c_uint, dev: CUdevice) -> Res {
    out.check()?;
    let context = context::create(device::get(dev)?, flags)?;
    context::push(context.clone())?;
    out.set(context.handle as CUcontext)
}

/// Shares of the multiprocessors are not supported, as `cuDeviceGetExecAffinitySupport` reports.
fn check_affinity(nothing: bool, count: c_int) -> Res {
    match count {
        0 => Ok(()),
        1.. if !nothing => Err(CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// A private stream, to which work that depends on other work is submitted.
fn beside(live: &Arc<Live>) -> Target {
    let stream = Stream::new(0, Kind::Created, NON_BLOCKING, 0, 0);
    Target { stream: Arc::new(stream), live: live.clone() }
}

/// Records an event after all work in a context.
pub(super) fn record_whole(context: &Context, event: CUevent) -> Res {
    let (live, event) = (context.live()?, event::resolve(event)?);
    live.check()?;
    if !event.belongs_to(&live) {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    capture::forbid_in(&live)?;
    let target = beside(&live);
    live.adopt(target.stream.clone());
    capture::record(&target, &event, false)?;
    event.record_after(&target, wait::outstanding_in(&live, context.handle))?;
    target.stream.abandon();
    Ok(())
}

/// Makes all later work in a context wait for an event.
pub(super) fn wait_whole(context: &Context, event: CUevent) -> Res {
    let (live, event) = (context.live()?, event::resolve(event)?);
    live.check()?;
    capture::forbid_in(&live)?;
    GRAPHS.check_event(event.handle as u64).map_err(|_| CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)?;
    if let Some(done) = event.present() {
        let target = beside(&live);
        live.adopt(target.stream.clone());
        let mark = target.submit(sched::Work::Until(Box::new(move |_| Ok(done()))), Vec::new());
        target.stream.abandon();
        live.wait_for(context.handle, mark);
    } else if let Some(mark) = event.mark() {
        live.wait_for(context.handle, mark);
    }
    Ok(())
}

/// The context of a handle; NULL is the current one.
pub(super) fn named(ctx: CUcontext) -> Res<Arc<Context>> {
    if ctx.is_null() { context::top().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT) } else { context::resolve(ctx) }
}

fn live(ctx: CUcontext) -> Res<Arc<Live>> {
    named(ctx)?.live()
}

/// The current context and the bit of another context's device.
fn peer_of(peer: CUcontext) -> Res<(Arc<Live>, u32)> {
    let live = context::current()?;
    let other = context::resolve(peer)?.live()?;
    if other.device.ordinal == live.device.ordinal {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    Ok((live, 1 << other.device.ordinal))
}
