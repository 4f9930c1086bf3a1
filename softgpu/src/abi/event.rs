//! Events.

use super::{Out, Res, abi};
use crate::gpu::capture;
use crate::gpu::event::{self, Event};
use crate::gpu::graph_table::GRAPHS;
use crate::gpu::stream::{Default, resolve};
use cuda_api::sys::{CUevent, CUipcEventHandle, CUresult, CUstream};
use std::ffi::c_uint;

abi! {
    call fn cuEventCreate(out: Out<CUevent> as *mut CUevent, flags: c_uint) {
        out.check()?;
        out.set(event::create(flags)?.handle as CUevent)
    }

    call fn cuEventDestroy_v2 / cuEventDestroy(event: CUevent) {
        let event = event::resolve(event)?;
        GRAPHS.forget_event(event.handle as u64);
        event::EVENTS.remove(event.handle).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    stream fn cuEventRecord / cuEventRecord_ptsz(event: CUevent, stream: CUstream) |default| {
        record(event, stream, default, false)
    }

    stream fn cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz(
        event: CUevent, stream: CUstream, flags: c_uint,
    ) |default| {
        // 1 is the external form, for captures only.
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        record(event, stream, default, flags == 1)
    }

    call fn cuEventQuery(event: CUevent) {
        let event = event::resolve(event)?;
        capture::ask(&event)?;
        event.query()
    }

    call fn cuEventSynchronize(event: CUevent) {
        let event = event::resolve(event)?;
        capture::ask(&event)?;
        event.synchronise()
    }

    call fn cuEventElapsedTime [cuEventElapsedTime_v2] (
        milliseconds: Out<f32> as *mut f32, start: CUevent, end: CUevent,
    ) {
        milliseconds.check()?;
        milliseconds.set(Event::elapsed(&*event::resolve(start)?, &*event::resolve(end)?)?)
    }

    call fn cuIpcGetEventHandle(out: Out<event::Handle> as *mut CUipcEventHandle, event: CUevent) {
        out.check()?;
        out.set(event::resolve(event)?.handle_for_others()?)
    }

    call fn cuIpcOpenEventHandle(out: Out<CUevent> as *mut CUevent, handle: CUipcEventHandle) {
        out.check()?;
        // SAFETY: both are 64 bytes, and any of these is a number.
        let words = unsafe { std::mem::transmute::<CUipcEventHandle, event::Handle>(handle) };
        out.set(event::open(&words)?.handle as CUevent)
    }

    call fn cuEventElapsedTime_v2(milliseconds: Out<f32> as *mut f32, start: CUevent, end: CUevent) {
        milliseconds.check()?;
        milliseconds.set(Event::elapsed(&*event::resolve(start)?, &*event::resolve(end)?)?)
    }
}

fn record(event: CUevent, stream: CUstream, default: Default, external: bool) -> Res {
    let (event, target) = (event::resolve(event)?, resolve(stream, default)?);
    match capture::record(&target, &event, external)? {
        true => Ok(()),
        false if external => Err(CUresult::CUDA_ERROR_ILLEGAL_STATE),
        false => event.record(&target),
    }
}
