//! Green contexts, and queries about links and notifications.

use super::{Out, Res, abi, context as whole, res};
use crate::config;
use crate::gpu::context::{self, Context};
use crate::gpu::device::{self, Device};
use crate::gpu::stream_state::NON_BLOCKING;
use crate::gpu::{stream, teardown};
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys::{
    CUasyncCallback, CUasyncCallbackHandle, CUatomicOperation, CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType,
    CUdevice, CUevent, CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget, CUgreenCtx, CUresult, CUstream,
};
use cuda_model::notify;
use cuda_model::parts::{self, Part};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// Distinguishes the handle of a green context from that of its ordinary context.
const GREEN: usize = 1 << 5;
/// `CU_GREEN_CTX_DEFAULT_STREAM`
const DEFAULT_STREAM: u32 = 1;

/// The handle of the green context of a context.
pub(super) fn of_context(context: &Context) -> usize {
    context.handle | GREEN
}

/// The context of a green context.
fn find(green: CUgreenCtx) -> Res<Arc<Context>> {
    let handle = green as usize;
    let found = if handle & GREEN != 0 { context::CONTEXTS.get(handle & !GREEN) } else { None };
    found.filter(|c| c.part.is_some()).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

fn whole_of(device: &Device) -> Part {
    let many = device.attribute(16).unwrap_or(0).unsigned_abs();
    Part::of_device(device.ordinal.unsigned_abs(), many, config::get().compute.0)
}

fn write_part(part: Part, to: OutPtr<CUdevResource>) -> Res {
    res(part.write_to(to))
}

abi! {
    call fn cuDeviceGetDevResource(
        dev: CUdevice, to: OutPtr<CUdevResource> as *mut CUdevResource, kind: c_uint as CUdevResourceType,
    ) {
        let device = device::get(dev)?;
        res(parts::check_type(kind))?;
        write_part(whole_of(device), to)
    }

    call fn cuCtxGetDevResource(
        ctx: CUcontext, to: OutPtr<CUdevResource> as *mut CUdevResource, kind: c_uint as CUdevResourceType,
    ) {
        res(parts::check_type(kind))?;
        let context = whole::named(ctx)?;
        write_part(context.part.unwrap_or_else(|| whole_of(&context.device)), to)
    }

    call fn cuGreenCtxGetDevResource(
        green: CUgreenCtx, to: OutPtr<CUdevResource> as *mut CUdevResource, kind: c_uint as CUdevResourceType,
    ) {
        res(parts::check_type(kind))?;
        let context = find(green)?;
        write_part(context.part.unwrap_or_else(|| whole_of(&context.device)), to)
    }

    call fn cuDevSmResourceSplitByCount(
        result: OutPtr<CUdevResource> as *mut CUdevResource, wanted: InOutPtr<c_uint> as *mut c_uint,
        input: InPtr<CUdevResource> as *const CUdevResource, rest: OutPtr<CUdevResource> as *mut CUdevResource, flags: c_uint,
        least: c_uint,
    ) {
        res(parts::split(result, wanted, input, rest, flags, least))
    }

    call fn cuDevResourceGenerateDesc(
        to: Out<u64> as *mut CUdevResourceDesc, resources: InPtr<CUdevResource> as *mut CUdevResource, count: c_uint,
    ) {
        to.set(res(parts::describe(resources, count))?)
    }

    call fn cuGreenCtxCreate(out: Out<usize> as *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint) {
        let device = device::get(dev)?;
        out.check()?;
        let part = res(parts::described(desc as u64))?;
        if flags != DEFAULT_STREAM || part.device != device.ordinal.unsigned_abs() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        out.set(of_context(&*context::create_green(device, part)?))
    }

    call fn cuGreenCtxDestroy(green: CUgreenCtx) {
        teardown::destroy_green(&find(green)?)
    }

    call fn cuCtxFromGreenCtx(out: Out<CUcontext> as *mut CUcontext, green: CUgreenCtx) {
        out.set(find(green)?.handle as CUcontext)
    }

    call fn cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent) {
        whole::record_whole(&*find(green)?, event)
    }

    call fn cuGreenCtxWaitEvent(green: CUgreenCtx, event: CUevent) {
        whole::wait_whole(&*find(green)?, event)
    }

    call fn cuGreenCtxStreamCreate(out: Out<CUstream> as *mut CUstream, green: CUgreenCtx, flags: c_uint, priority: c_int) {
        let context = find(green)?;
        out.check()?;
        if flags != NON_BLOCKING {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        out.set(stream::create_in(&context, flags, priority)?.handle as CUstream)
    }

    call fn cuGreenCtxGetId(green: CUgreenCtx, id: Out<u64> as *mut u64) {
        let context = if green.is_null() {
            context::top().filter(|c| c.part.is_some()).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?
        } else {
            find(green)?
        };
        id.set(context.handle as u64)
    }

    call fn cuDeviceGetHostAtomicCapabilities(
        to: OutPtr<c_uint> as *mut c_uint, operations: InPtr<CUatomicOperation> as *const CUatomicOperation, count: c_uint,
        dev: CUdevice,
    ) {
        device::get(dev)?;
        res(notify::atomics(to, operations, count))
    }

    call fn cuDeviceGetP2PAtomicCapabilities(
        to: OutPtr<c_uint> as *mut c_uint, operations: InPtr<CUatomicOperation> as *const CUatomicOperation, count: c_uint,
        from: CUdevice, dev: CUdevice,
    ) {
        if device::get(from)?.ordinal == device::get(dev)?.ordinal {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        res(notify::atomics(to, operations, count))
    }

    call fn cuDeviceRegisterAsyncNotification(
        dev: CUdevice, function: CUasyncCallback, _data: *mut c_void, to: Out<u64> as *mut CUasyncCallbackHandle,
    ) {
        device::get(dev).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        to.check()?;
        to.set(res(notify::register(dev, function.is_some()))?)
    }

    call fn cuDeviceUnregisterAsyncNotification(dev: CUdevice, function: CUasyncCallbackHandle) {
        res(notify::unregister(dev, function as u64))
    }

    call fn cuFlushGPUDirectRDMAWrites(
        target: c_uint as CUflushGPUDirectRDMAWritesTarget, scope: c_uint as CUflushGPUDirectRDMAWritesScope,
    ) {
        context::current()?;
        res(notify::flush(target, scope))
    }
}
