//! Green contexts: separate contexts for the program, each with a share of the multiprocessors (docs/execution.md, "Handles").
//!
//! They share the primary context of their device, as natively, and the streams of a place run unconfined: a share is a promise about
//! speed, which another place with other shares could not keep.

use crate::calls::{context, context_events, stream};
use crate::enter::CallContext;
use crate::job::contexts::{self, Created, of_context};
use crate::job::{Device, Job, PutOff, attributes};
use cuda_api::code::{self, Code};
use cuda_api::flags::STREAM_NON_BLOCKING;
use cuda_api::handle::{Kind, compose, kind, slot};
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys::{self, CUdevice_attribute_enum as A};
use cuda_model::parts::{self, Part};
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::atomic::Ordering;

/// `CU_GREEN_CTX_DEFAULT_STREAM`
const DEFAULT_STREAM: u32 = 1;

/// The context of a green context, and its data.
fn find(green: u64) -> Result<(u64, Created), Code> {
    let ctx = compose(Kind::Context, 1, slot(green));
    if kind(green) != Some(Kind::GreenContext) || of_context(ctx) != green {
        return Err(code::ERROR_INVALID_CONTEXT);
    }
    contexts::created(ctx).map(|c| (ctx, c)).ok_or(code::ERROR_INVALID_CONTEXT)
}

fn whole_of(device: &'static Device) -> Part {
    let get = |which: A| attributes::attribute(device, which as u32).map_or(0, i32::unsigned_abs);
    Part::of_device(
        device.index,
        get(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
    )
}

/// The resources of a context: a share, or the whole device.
fn part_of(job: &'static Job, ctx: u64) -> Result<Part, Code> {
    let device = contexts::device_of(job, ctx)?;
    Ok(contexts::created(ctx).and_then(|c| c.part).unwrap_or_else(|| whole_of(device)))
}

pub(crate) fn cuDeviceGetDevResource(
    cx: &mut CallContext,
    dev: sys::CUdevice,
    to: OutPtr<sys::CUdevResource>,
    kind: u32,
) -> Result<(), Code> {
    let device = cx.job.device(dev)?;
    parts::check_type(kind)?;
    whole_of(device).write_to(to)
}

pub(crate) fn cuCtxGetDevResource(
    cx: &mut CallContext,
    ctx: sys::CUcontext,
    to: OutPtr<sys::CUdevResource>,
    kind: u32,
) -> Result<(), Code> {
    parts::check_type(kind)?;
    let ctx = if ctx.is_null() { contexts::current() } else { ctx as u64 };
    part_of(cx.job, ctx)?.write_to(to)
}

pub(crate) fn cuGreenCtxGetDevResource(
    cx: &mut CallContext,
    green: sys::CUgreenCtx,
    to: OutPtr<sys::CUdevResource>,
    kind: u32,
) -> Result<(), Code> {
    parts::check_type(kind)?;
    part_of(cx.job, find(green as u64)?.0)?.write_to(to)
}

pub(crate) fn cuDevSmResourceSplitByCount(
    _cx: &mut CallContext,
    result: OutPtr<sys::CUdevResource>,
    wanted: InOutPtr<c_uint>,
    input: InPtr<sys::CUdevResource>,
    rest: OutPtr<sys::CUdevResource>,
    flags: c_uint,
    least: c_uint,
) -> Result<(), Code> {
    parts::split(result, wanted, input, rest, flags, least)
}

pub(crate) fn cuDevResourceGenerateDesc(
    _cx: &mut CallContext,
    to: OutPtr<sys::CUdevResourceDesc>,
    resources: InPtr<sys::CUdevResource>,
    count: c_uint,
) -> Result<(), Code> {
    let descriptor = parts::describe(resources, count)?;
    to.write(descriptor as sys::CUdevResourceDesc)
}

pub(crate) fn cuGreenCtxCreate(
    _cx: &mut CallContext,
    descriptor: u64,
    device: &'static Device,
    flags: c_uint,
) -> Result<u64, Code> {
    let part = parts::described(descriptor)?;
    if flags != DEFAULT_STREAM || part.device != device.index {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let ctx = contexts::enlist(device, 0, Some(part))?;
    contexts::retain(device);
    Ok(of_context(ctx))
}

pub(crate) fn cuGreenCtxDestroy(cx: &mut CallContext, green: u64) -> Result<(), Code> {
    let (ctx, made) = find(green)?;
    let device = contexts::device_of(cx.job, ctx)?;
    let ending = PutOff::begin();
    context_events::end(cx, device, ctx)?;
    for (_, stream) in cx.job.tables.streams.all(device.index) {
        if stream.context() == ctx {
            // Their work continues, but they can no longer be used.
            stream.data.orphaned.store(true, Ordering::Relaxed);
        }
    }
    contexts::delist(ctx);
    cuda_model::cudart::context_destroyed(ctx as usize);
    context::cuDevicePrimaryCtxRelease_v2(cx, cx.job.device(made.device as sys::CUdevice)?)?;
    drop(ending);
    device.check_late()
}

pub(crate) fn cuCtxFromGreenCtx(_cx: &mut CallContext, green: u64) -> Result<u64, Code> {
    Ok(find(green)?.0)
}

pub(crate) fn cuGreenCtxRecordEvent(cx: &mut CallContext, green: u64, event: u64) -> Result<(), Code> {
    let (ctx, _) = find(green)?;
    context_events::record(cx, ctx, event)
}

pub(crate) fn cuGreenCtxWaitEvent(cx: &mut CallContext, green: u64, event: u64) -> Result<(), Code> {
    let (ctx, _) = find(green)?;
    context_events::wait(cx, ctx, event)
}

pub(crate) fn cuGreenCtxStreamCreate(cx: &mut CallContext, green: u64, flags: c_uint, priority: c_int) -> Result<u64, Code> {
    let (ctx, _) = find(green)?;
    if flags != STREAM_NON_BLOCKING {
        return Err(code::ERROR_INVALID_VALUE);
    }
    cx.on(contexts::device_of(cx.job, ctx)?);
    stream::create(cx, ctx, flags, priority)
}

pub(crate) fn cuGreenCtxGetId(_cx: &mut CallContext, green: u64) -> Result<c_ulonglong, Code> {
    let green = if green == 0 { of_context(contexts::current()) } else { green };
    let (ctx, made) = find(green)?;
    if made.part.is_none() {
        return Err(code::ERROR_INVALID_CONTEXT);
    }
    Ok(c_ulonglong::from(slot(ctx)) + 1)
}
