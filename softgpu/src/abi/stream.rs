//! Streams and host functions.

use super::{Out, Res, abi};
use crate::gpu::context::{self, Context};
use crate::gpu::live::Live;
use crate::gpu::stream::{self, Default, Target, resolve};
use crate::gpu::stream_state::Kind;
use crate::gpu::{capture, event, sched};
use cuda_api::sys::{CUcontext, CUdevice, CUevent, CUgreenCtx, CUhostFn, CUresult, CUstream, CUstreamCallback};
use cuda_api::work::{HostCall, Work};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

abi! {
    call fn cuStreamCreate(out: Out<CUstream> as *mut CUstream, flags: c_uint) {
        out.check()?;
        out.set(stream::create(flags, 0)?.handle as CUstream)
    }

    call fn cuStreamCreateWithPriority(out: Out<CUstream> as *mut CUstream, flags: c_uint, priority: c_int) {
        out.check()?;
        out.set(stream::create(flags, priority)?.handle as CUstream)
    }

    call fn cuStreamDestroy_v2 / cuStreamDestroy(stream: CUstream) {
        stream::destroy(stream)
    }

    stream fn cuStreamQuery / cuStreamQuery_ptsz(stream: CUstream) |default| {
        let target = resolve(stream, default)?;
        capture::forbid_on(&target)?;
        capture::forbid_unsafe()?;
        if target.outstanding().is_empty() { target.live.check() } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    stream fn cuStreamSynchronize / cuStreamSynchronize_ptsz(stream: CUstream) |default| {
        let target = resolve(stream, default)?;
        capture::forbid_on(&target)?;
        capture::forbid_unsafe()?;
        target.synchronise()
    }

    stream fn cuStreamWaitEvent / cuStreamWaitEvent_ptsz(stream: CUstream, event: CUevent, flags: c_uint) |default| {
        // 1 is the external form, for captures only.
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (target, event) = (resolve(stream, default)?, event::resolve(event)?);
        if capture::wait(&target, &event, flags == 1)? {
            return Ok(());
        }
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        if let Some(done) = event.present() {
            target.submit(sched::Work::Until(Box::new(move |_| Ok(done()))), Vec::new());
        } else if let Some(mark) = event.mark() {
            target.submit(sched::Work::Nothing, vec![mark]);
        }
        Ok(())
    }

    stream fn cuStreamGetFlags / cuStreamGetFlags_ptsz(stream: CUstream, flags: Out<c_uint> as *mut c_uint) |default| {
        flags.set(resolve(stream, default)?.stream.flags)
    }

    stream fn cuStreamGetPriority / cuStreamGetPriority_ptsz(
        stream: CUstream, priority: Out<c_int> as *mut c_int,
    ) |default| {
        priority.set(resolve(stream, default)?.stream.priority())
    }

    stream fn cuStreamGetId / cuStreamGetId_ptsz(stream: CUstream, id: Out<u64> as *mut u64) |default| {
        id.set(resolve(stream, default)?.stream.number)
    }

    stream fn cuStreamGetCtx / cuStreamGetCtx_ptsz(stream: CUstream, out: Out<CUcontext> as *mut CUcontext) |default| {
        out.set(home(stream, default)?.handle as CUcontext)
    }

    stream fn cuStreamGetCtx_v2 / cuStreamGetCtx_v2_ptsz(
        stream: CUstream, out: Out<CUcontext> as *mut CUcontext, green: Out<usize> as *mut CUgreenCtx,
    ) |default| {
        let context = home(stream, default)?;
        if context.part.is_none() {
            out.set(context.handle as CUcontext)?;
            return green.set(0);
        }
        // A green context has no stream of each thread.
        if stream as usize == 2 {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        out.set(context::primary(&context.device).handle as CUcontext)?;
        green.set(super::green::of_context(&context))
    }

    stream fn cuStreamGetDevice / cuStreamGetDevice_ptsz(
        stream: CUstream, dev: Out<CUdevice> as *mut CUdevice,
    ) |default| {
        dev.set(resolve(stream, default)?.live.device.ordinal)
    }

    call fn cuStreamGetGreenCtx(stream: CUstream, part: Out<CUgreenCtx> as *mut CUgreenCtx) {
        let context = home(stream, Default::Legacy)?;
        part.set(if context.part.is_some() { super::green::of_context(&context) as CUgreenCtx } else { std::ptr::null_mut() })
    }

    stream fn cuStreamAddCallback / cuStreamAddCallback_ptsz(
        stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: c_uint,
    ) |default| {
        let callback = callback.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (stream, data) = (stream as usize, data as usize);
        let target = resolve(stream as CUstream, default)?;
        capture::forbid_on(&target)?;
        host_work(&target, move |live| {
            let status = live.error().unwrap_or(CUresult::CUDA_SUCCESS);
            // SAFETY: the program gave function and data to be called like this; they are its own to keep valid.
            unsafe { callback(stream as CUstream, status, data as *mut c_void) };
        })
    }

    stream fn cuLaunchHostFunc / cuLaunchHostFunc_ptsz(
        stream: CUstream, function: CUhostFn, data: *mut c_void,
    ) |default| {
        let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let (target, data) = (resolve(stream, default)?, data as usize);
        let call = HostCall { function: function as usize as u64, data: data as u64 };
        if capture::take(&target, false, || Ok(Work::Host(call)))? {
            return Ok(());
        }
        host_work(&target, move |live| {
            // Unlike callbacks, host functions are not called after a fault.
            if live.error().is_none() {
                // SAFETY: as for callbacks.
                unsafe { function(data as *mut c_void) };
            }
        })
    }
}

/// The context of a stream; for a default stream, that of the thread.
fn home(stream: CUstream, default: Default) -> Res<Arc<Context>> {
    let target = resolve(stream, default)?;
    let found = match target.stream.kind {
        Kind::Created => context::CONTEXTS.get(target.stream.context),
        Kind::Legacy | Kind::PerThread(_) => context::top(),
    };
    found.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

fn host_work(target: &Target, f: impl FnOnce(&Live) + Send + 'static) -> Res {
    target.submit(
        sched::Work::Always(Box::new(move |live| {
            // Nothing is called after the context has been destroyed.
            if !live.cancelled() {
                super::guard::host_function(|| f(live));
            }
            Ok(())
        })),
        Vec::new(),
    );
    Ok(())
}
