//! Streams and events.

use crate::driver::{Surface, bad_handle};
use cuda_api::sys::{CUcontext, CUevent, CUresult, CUstream};
use std::ffi::c_void;

/// What is alive.
pub struct Streams {
    /// A non-blocking stream.
    pub plain: CUstream,
    urgent: CUstream,
    timed: [CUevent; 2],
    /// An event that was never recorded.
    pub untimed: CUevent,
}

/// Makes streams and events, some of them wrongly.
pub fn build(s: &Surface) -> Streams {
    let null = std::ptr::null_mut();
    let mut made = Streams { plain: null, urgent: null, timed: [std::ptr::null_mut(); 2], untimed: std::ptr::null_mut() };
    tell!(s, stream.cuStreamCreate(&raw mut made.plain, 1));
    tell!(s, stream.cuStreamCreate(std::ptr::null_mut(), 1));
    tell!(s, stream.cuStreamCreate(&raw mut made.urgent, 77));
    tell!(s, stream.cuStreamCreateWithPriority(&raw mut made.urgent, 1, -1));
    for event in &mut made.timed {
        tell!(s, stream.cuEventCreate(event, 0));
    }
    tell!(s, stream.cuEventCreate(&raw mut made.untimed, 2));
    tell!(s, stream.cuEventCreate(&raw mut made.untimed, 1 << 20));
    tell!(s, stream.cuEventRecord(made.timed[0], made.plain));
    set_attributes(s, &made);
    made
}

/// Asks and uses them.
pub fn use_them(s: &Surface, streams: &Streams) {
    for stream in [streams.plain, streams.urgent, std::ptr::null_mut(), bad_handle()] {
        let (mut flags, mut priority, mut device, mut id) = (99, 99, 99, 0);
        let mut context: CUcontext = std::ptr::null_mut();
        let mut status = 9;
        show!(s, stream.cuStreamGetFlags(stream, &raw mut flags) => flags);
        show!(s, stream.cuStreamGetPriority(stream, &raw mut priority) => priority);
        show!(s, stream.cuStreamGetDevice(stream, &raw mut device) => device);
        show!(s, stream.cuStreamGetId(stream, &raw mut id) => id > 0);
        show!(s, stream.cuStreamGetCtx(stream, &raw mut context) => context.is_null());
        show!(s, graph.cuStreamIsCapturing(stream, (&raw mut status).cast::<u32>().cast()) => status);
        tell!(s, stream.cuStreamSynchronize(stream));
        tell!(s, stream.cuStreamQuery(stream));
    }
    tell!(s, stream.cuStreamWaitEvent(streams.urgent, streams.timed[0], 0));
    tell!(s, stream.cuStreamWaitEvent(streams.urgent, bad_handle(), 0));
    tell!(s, stream.cuEventQuery(bad_handle()));
    tell!(s, stream.cuEventRecordWithFlags(streams.timed[1], streams.urgent, 0));
    tell!(s, stream.cuEventSynchronize(streams.timed[1]));
    tell!(s, stream.cuEventQuery(streams.timed[1]));
    let mut ms = -1.0f32;
    show!(s, stream.cuEventElapsedTime(&raw mut ms, streams.timed[0], streams.timed[1]) => (0.0..600_000.0).contains(&ms));
    show!(s, stream.cuEventElapsedTime_v2(&raw mut ms, streams.timed[0], streams.timed[1]) => (0.0..600_000.0).contains(&ms));
    // An event that was never recorded, and one that keeps no time.
    tell!(s, stream.cuEventQuery(streams.untimed));
    tell!(s, stream.cuEventElapsedTime(&raw mut ms, streams.timed[0], streams.untimed));
    host_functions(s, streams);
    attributes(s, streams);
    let mut mode = 0u32;
    show!(s, graph.cuThreadExchangeStreamCaptureMode((&raw mut mode).cast()) => mode);
}

/// What the functions of this file's streams have seen.
#[derive(Debug, Default)]
struct Seen {
    calls: i32,
    status: i32,
    inside: i32,
}

thread_local! {
    static OWN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// # Safety
/// `data` is a [`Seen`] that nobody else uses meanwhile.
unsafe extern "C" fn function(data: *mut c_void) {
    // SAFETY: as the caller says.
    let seen = unsafe { &mut *data.cast::<Seen>() };
    seen.calls += 1;
    if OWN.get() {
        // Never on the thread that has made the call.
        seen.calls += 100;
    }
}

/// # Safety
/// As [`function`].
unsafe extern "C" fn callback(_stream: CUstream, status: CUresult, data: *mut c_void) {
    // SAFETY: as the caller says.
    let seen = unsafe { &mut *data.cast::<Seen>() };
    seen.calls += 1;
    seen.status += status as i32;
    let Ok(s) = Surface::open() else { return };
    let mut free = 0usize;
    seen.inside = call!(s, memory.cuMemGetInfo_v2(&raw mut free, &raw mut free));
}

fn host_functions(s: &Surface, streams: &Streams) {
    OWN.set(true);
    let mut seen = Seen::default();
    let data = (&raw mut seen).cast::<c_void>();
    tell!(s, stream.cuLaunchHostFunc(streams.plain, Some(function), data));
    tell!(s, stream.cuLaunchHostFunc(std::ptr::null_mut(), Some(function), data));
    tell!(s, stream.cuStreamSynchronize(streams.plain));
    tell!(s, stream.cuStreamSynchronize(std::ptr::null_mut()));
    tell!(s, stream.cuLaunchHostFunc(streams.plain, None, data));
    tell!(s, stream.cuLaunchHostFunc(bad_handle(), Some(function), data));
    tell!(s, stream.cuStreamAddCallback(streams.plain, Some(callback), data, 0));
    tell!(s, stream.cuStreamSynchronize(streams.plain));
    tell!(s, stream.cuStreamAddCallback(streams.plain, Some(callback), data, 1));
    tell!(s, stream.cuStreamAddCallback(streams.plain, None, data, 0));
    println!("host functions: {seen:?}");
}

/// Words of device memory waited for and written in stream order; `at` has 64 bytes.
pub fn words(s: &Surface, streams: &Streams, at: u64) {
    let flush = 1 << 30;
    tell!(s, stream.cuStreamWriteValue32_v2(streams.plain, at, 5, 0));
    tell!(s, stream.cuStreamWaitValue32_v2(streams.urgent, at, 5, 1));
    tell!(s, stream.cuStreamWriteValue64_v2(streams.plain, at + 8, 1 << 40, 0));
    tell!(s, stream.cuStreamWaitValue64_v2(streams.urgent, at + 8, 1 << 40, 2));
    tell!(s, stream.cuStreamSynchronize(streams.urgent));
    tell!(s, stream.cuStreamWriteValue32_v2(streams.plain, at, 5, 1));
    tell!(s, stream.cuStreamWriteValue32_v2(streams.plain, at + 2, 5, 0));
    tell!(s, stream.cuStreamWaitValue32_v2(streams.plain, at, 5, 4));
    tell!(s, stream.cuStreamWaitValue32_v2(streams.plain, at, 5, flush));
    tell!(s, stream.cuStreamWaitValue32_v2(streams.plain, 0x1000, 5, 0));
    tell!(s, stream.cuStreamWaitValue32_v2(bad_handle(), at, 5, 0));
    // A write and a wait for it in one batch, a barrier between them; then what is wrong in one.
    let mut batch = [[2u64, at + 16, 9, 0, 0, 0], [6, 0, 0, 0, 0, 0], [1, at + 16, 9, 0, 0, 0]];
    let parts = batch.as_mut_ptr().cast();
    tell!(s, stream.cuStreamBatchMemOp_v2(streams.plain, 3, parts, 0));
    tell!(s, stream.cuStreamSynchronize(streams.plain));
    tell!(s, stream.cuStreamBatchMemOp_v2(streams.plain, 3, parts, 1));
    tell!(s, stream.cuStreamBatchMemOp_v2(streams.plain, 256, parts, 0));
    tell!(s, stream.cuStreamBatchMemOp_v2(streams.plain, 1, std::ptr::null_mut(), 0));
    let mut unknown = [77u64, at, 0, 0, 0, 0];
    tell!(s, stream.cuStreamBatchMemOp_v2(streams.plain, 1, unknown.as_mut_ptr().cast(), 0));
    let mut value = [0u32; 1];
    show!(s, memory.cuMemcpyDtoH_v2(value.as_mut_ptr().cast(), at + 16, 4) => value);
}

/// Ends them; twice is an error.
pub fn end(s: &Surface, streams: Streams) {
    for event in streams.timed.into_iter().chain([streams.untimed]) {
        tell!(s, stream.cuEventDestroy_v2(event));
    }
    tell!(s, stream.cuEventDestroy_v2(bad_handle()));
    tell!(s, stream.cuStreamDestroy_v2(streams.plain));
    tell!(s, stream.cuStreamDestroy_v2(streams.urgent));
    tell!(s, stream.cuStreamDestroy_v2(bad_handle()));
}

/// Attributes: set, asked for and copied, rightly and wrongly. What a move must keep is set before it.
fn set_attributes(s: &Surface, streams: &Streams) {
    let value = |words: &[u32]| -> [u32; 16] { std::array::from_fn(|i| words.get(i).copied().unwrap_or(0)) };
    let set = |stream: CUstream, attribute: u32, value: [u32; 16]| {
        print!("{attribute:3} ");
        tell!(s, stream.cuStreamSetAttribute(stream, attribute, value.as_ptr().cast()));
    };
    let half = 0.5f32.to_bits();
    set(streams.plain, 1, value(&[0, 0, 1 << 20, 0, half, 2, 1]));
    set(streams.plain, 1, value(&[0, 0, 0, 4, half, 2, 1]));
    set(streams.plain, 1, value(&[0, 0, 1 << 20, 0, 2.0f32.to_bits(), 2, 1]));
    set(streams.plain, 1, value(&[0, 0, 1 << 20, 0, half, 1, 2]));
    for policy in [0, 2, 4, 5] {
        set(streams.plain, 3, value(&[policy]));
    }
    set(streams.plain, 9, value(&[0x0302]));
    set(streams.plain, 10, value(&[1]));
    set(streams.plain, 10, value(&[0]));
    for unknown in [0, 2, 4, 77] {
        set(streams.plain, unknown, value(&[]));
    }
    set(std::ptr::null_mut(), 3, value(&[2]));
    set(bad_handle(), 3, value(&[2]));
    tell!(s, stream.cuStreamSetAttribute(streams.plain, 3, std::ptr::null()));
}

fn show_attributes(s: &Surface, streams: &Streams) {
    for stream in [streams.plain, streams.urgent, std::ptr::null_mut(), bad_handle()] {
        for (attribute, words) in [(1, 7), (3, 1), (8, 1), (9, 1), (10, 1), (2, 1)] {
            let mut value = [0u32; 16];
            print!("{attribute:3} ");
            show!(s, stream.cuStreamGetAttribute(stream, attribute, value.as_mut_ptr().cast()) => &value[..words]);
        }
    }
    tell!(s, stream.cuStreamGetAttribute(streams.plain, 3, std::ptr::null_mut()));
}

/// Asks for them and copies them.
fn attributes(s: &Surface, streams: &Streams) {
    show_attributes(s, streams);
    tell!(s, stream.cuStreamCopyAttributes(streams.urgent, streams.plain));
    tell!(s, stream.cuStreamCopyAttributes(streams.urgent, bad_handle()));
    show_attributes(s, streams);
    tell!(s, context.cuCtxResetPersistingL2Cache());
    let mut green = std::ptr::without_provenance_mut(77);
    let mut context: CUcontext = std::ptr::null_mut();
    show!(s, stream.cuStreamGetCtx_v2(streams.plain, &raw mut context, &raw mut green) => context.is_null(), green.is_null());
    green = std::ptr::without_provenance_mut(77);
    show!(s, stream.cuStreamGetGreenCtx(streams.plain, &raw mut green) => green.is_null());
    tell!(s, stream.cuStreamGetGreenCtx(bad_handle(), &raw mut green));
    for kind in [0, 1] {
        let mut affinity = [7u32; 2];
        show!(s, context.cuCtxGetExecAffinity(affinity.as_mut_ptr().cast(), kind) => affinity[0], affinity[1] > 7);
    }
}
