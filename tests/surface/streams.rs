//! Streams and events.

use crate::driver::{Surface, bad_handle};
use cuda_api::sys::{CUcontext, CUevent, CUstream};

/// What is alive.
pub struct Streams {
    /// A non-blocking stream.
    pub plain: CUstream,
    urgent: CUstream,
    timed: [CUevent; 2],
    untimed: CUevent,
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
    let mut mode = 0u32;
    show!(s, graph.cuThreadExchangeStreamCaptureMode((&raw mut mode).cast()) => mode);
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
