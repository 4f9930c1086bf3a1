//! Contexts and their limits.

use crate::driver::{Surface, bad_handle};
use cuda_api::sys::{CUcontext, CUdevResource, CUevent, CUstream};

/// Makes the primary context current.
pub fn primary(s: &Surface) {
    let (mut flags, mut active) = (99, 99);
    show!(s, context.cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active) => flags, active);
    tell!(s, context.cuDevicePrimaryCtxSetFlags_v2(0, 4));
    let mut context: CUcontext = std::ptr::null_mut();
    show!(s, context.cuCtxGetCurrent(&raw mut context) => context.is_null());
    tell!(s, context.cuDevicePrimaryCtxRetain(&raw mut context, 3));
    tell!(s, context.cuDevicePrimaryCtxRetain(&raw mut context, 0));
    tell!(s, context.cuCtxSetCurrent(bad_handle()));
    tell!(s, context.cuCtxSetCurrent(context));
    show!(s, context.cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active) => flags, active);
    let mut device = -1;
    show!(s, context.cuCtxGetDevice(&raw mut device) => device);
    show!(s, context.cuCtxGetFlags(&raw mut flags) => flags);
    let mut version = 0;
    show!(s, context.cuCtxGetApiVersion(context, &raw mut version) => version > 3000);
    let mut id = 0;
    show!(s, context.cuCtxGetId(context, &raw mut id) => id > 0);
    let (mut least, mut greatest) = (99, 99);
    show!(s, context.cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) => least, greatest);
    for limit in [0, 1, 2, 5, 77] {
        let mut value = 0;
        print!("{limit:4} ");
        show!(s, context.cuCtxGetLimit(&raw mut value, limit) => value > 0 || limit > 4);
    }
    let mut value = 0;
    tell!(s, context.cuCtxSetLimit(2, 32 << 20));
    show!(s, context.cuCtxGetLimit(&raw mut value, 2) => value);
    let mut config = 9;
    tell!(s, context.cuCtxSetCacheConfig(1));
    show!(s, context.cuCtxGetCacheConfig(&raw mut config) => config <= 3);
}

/// Other contexts, and a stack of them.
pub fn others(s: &Surface) {
    let (mut own, mut popped): (CUcontext, CUcontext) = (std::ptr::null_mut(), std::ptr::null_mut());
    tell!(s, context.cuCtxGetCurrent(&raw mut own));
    tell!(s, context.cuCtxPushCurrent_v2(own));
    show!(s, context.cuCtxPopCurrent_v2(&raw mut popped) => popped == own);
    tell!(s, context.cuCtxPushCurrent_v2(bad_handle()));
    tell!(s, context.cuCtxEnablePeerAccess(own, 0));
    tell!(s, context.cuCtxDisablePeerAccess(own));
    tell!(s, context.cuCtxSynchronize_v2(own));
    tell!(s, context.cuCtxDestroy_v2(bad_handle()));
    // Without a context most calls have nothing to work on.
    tell!(s, context.cuCtxSetCurrent(std::ptr::null_mut()));
    let mut device = -1;
    tell!(s, context.cuCtxGetDevice(&raw mut device));
    tell!(s, context.cuCtxSynchronize());
    let mut address = 0;
    tell!(s, memory.cuMemAlloc_v2(&raw mut address, 16));
    tell!(s, context.cuCtxPopCurrent_v2(&raw mut popped));
    tell!(s, context.cuCtxSetCurrent(own));
}

/// Contexts that the program makes, in versions and with references; events of whole contexts.
pub fn made(s: &Surface, event: CUevent) {
    let null = std::ptr::null_mut();
    let (mut own, mut current, mut first): (CUcontext, CUcontext, CUcontext) = (null, null, null);
    tell!(s, context.cuCtxGetCurrent(&raw mut first));
    let affinity = [0u32, 4];
    let affinity = affinity.as_ptr().cast_mut().cast();
    tell!(s, context.cuCtxCreate_v3(&raw mut own, affinity, 1, 0, 0));
    tell!(s, context.cuCtxCreate_v3(&raw mut own, std::ptr::null_mut(), 1, 0, 0));
    tell!(s, context.cuCtxCreate_v3(&raw mut own, std::ptr::null_mut(), 0, 0, 9));
    tell!(s, context.cuCtxCreate_v3(std::ptr::null_mut(), std::ptr::null_mut(), 0, 0, 0));
    tell!(s, context.cuCtxCreate_v3(&raw mut own, std::ptr::null_mut(), 0, 0, 0));
    tell!(s, context.cuCtxAttach(&raw mut current, 1));
    show!(s, context.cuCtxAttach(&raw mut current, 0) => current == own);
    let mut stream: CUstream = std::ptr::null_mut();
    tell!(s, stream.cuStreamCreate(&raw mut stream, 1));
    for asked in [stream, std::ptr::null_mut()] {
        show!(s, stream.cuStreamGetCtx(asked, &raw mut current) => current == own);
    }
    tell!(s, context.cuCtxRecordEvent(own, bad_handle()));
    tell!(s, context.cuCtxRecordEvent(bad_handle(), event));
    tell!(s, context.cuCtxWaitEvent(own, event));
    tell!(s, context.cuCtxRecordEvent(first, event));
    tell!(s, stream.cuEventSynchronize(event));
    tell!(s, context.cuCtxWaitEvent(first, event));
    tell!(s, stream.cuStreamSynchronize(stream));
    // What is made in a context ends with it.
    let (mut at, mut own_event) = (0, std::ptr::null_mut());
    tell!(s, memory.cuMemAlloc_v2(&raw mut at, 4096));
    tell!(s, stream.cuEventCreate(&raw mut own_event, 0));
    tell!(s, memory.cuMemsetD8Async(at, 3, 4096, stream));
    tell!(s, context.cuCtxDetach(first));
    tell!(s, context.cuCtxDetach(own));
    show!(s, context.cuCtxGetCurrent(&raw mut current) => current == own);
    tell!(s, context.cuCtxDetach(own));
    show!(s, context.cuCtxGetCurrent(&raw mut current) => current == first);
    tell!(s, context.cuCtxRecordEvent(own, event));
    tell!(s, stream.cuStreamQuery(stream));
    tell!(s, stream.cuEventQuery(own_event));
    tell!(s, memory.cuMemFree_v2(at));
    tell!(s, stream.cuEventQuery(event));
    tell!(s, context.cuCtxAttach(&raw mut current, 0));
    tell!(s, context.cuCtxDetach(first));
    tell!(s, context.cuCtxDetach(first));
}

/// Parts of the GPU.
pub fn parts(s: &Surface, event: CUevent) {
    let null: *mut u8 = std::ptr::null_mut();
    // SAFETY: numbers and bytes.
    let mut res: [CUdevResource; 4] = unsafe { std::mem::zeroed() };
    let resource = |r: &CUdevResource| {
        // SAFETY: numbers whatever the type is.
        let sm = unsafe { r.__bindgen_anon_1.sm };
        (sm.smCount, sm.minSmPartitionSize, sm.smCoscheduledAlignment)
    };
    tell!(s, context.cuDeviceGetDevResource(0, &raw mut res[0], 0));
    tell!(s, context.cuDeviceGetDevResource(9, &raw mut res[0], 1));
    show!(s, context.cuDeviceGetDevResource(0, &raw mut res[0], 1) => resource(&res[0]));
    show!(s, context.cuCtxGetDevResource(null.cast(), &raw mut res[0], 1) => resource(&res[0]));
    let mut groups = 0;
    tell!(s, context.cuDevSmResourceSplitByCount(&raw mut res[1], &raw mut groups, &raw const res[0], &raw mut res[3], 0, 8));
    for (wanted, flags, least) in [(1, 0, 0), (2, 0, 8), (2, 0, 11), (2, 1, 11), (2, 2, 7), (2, 8, 8), (2, 0, 5000)] {
        groups = wanted;
        let to = &raw mut res;
        // SAFETY: elements of the same list.
        let (from, to, rest) = unsafe { (&raw const (*to)[0], &raw mut (*to)[1], &raw mut (*to)[3]) };
        show!(s, context.cuDevSmResourceSplitByCount(to, &raw mut groups, from, rest, flags, least) => groups, resource(&res[1]), resource(&res[3]));
        show!(s, context.cuDevSmResourceSplitByCount(null.cast(), &raw mut groups, from, null.cast(), flags, least) => groups);
    }
    groups = 2;
    tell!(s, context.cuDevSmResourceSplitByCount(&raw mut res[1], &raw mut groups, &raw const res[0], &raw mut res[3], 0, 8));
    let mut desc = std::ptr::null_mut();
    tell!(s, context.cuDevResourceGenerateDesc(&raw mut desc, &raw mut res[0], 2));
    tell!(s, context.cuDevResourceGenerateDesc(&raw mut desc, &raw mut res[1], 0));
    tell!(s, context.cuDevResourceGenerateDesc(&raw mut desc, &raw mut res[1], 2));
    let mut green = std::ptr::null_mut();
    tell!(s, context.cuGreenCtxCreate(&raw mut green, desc, 0, 0));
    tell!(s, context.cuGreenCtxCreate(&raw mut green, desc, 9, 1));
    tell!(s, context.cuGreenCtxCreate(&raw mut green, bad_handle(), 0, 1));
    tell!(s, context.cuGreenCtxCreate(&raw mut green, desc, 0, 1));
    show!(s, context.cuGreenCtxGetDevResource(green, &raw mut res[0], 1) => resource(&res[0]));
    let (mut own, mut current, mut first, mut id): (CUcontext, CUcontext, CUcontext, u64) =
        (null.cast(), null.cast(), null.cast(), 0);
    tell!(s, context.cuCtxGetCurrent(&raw mut first));
    tell!(s, context.cuCtxFromGreenCtx(&raw mut own, bad_handle()));
    tell!(s, context.cuCtxFromGreenCtx(&raw mut own, green));
    tell!(s, context.cuGreenCtxGetId(null.cast(), &raw mut id));
    tell!(s, context.cuCtxPushCurrent_v2(own));
    show!(s, context.cuGreenCtxGetId(null.cast(), &raw mut id) => id > 0);
    show!(s, context.cuCtxGetDevResource(own, &raw mut res[0], 1) => resource(&res[0]));
    let mut streams: [CUstream; 2] = [null.cast(); 2];
    tell!(s, context.cuGreenCtxStreamCreate(&raw mut streams[0], green, 0, 0));
    tell!(s, context.cuGreenCtxStreamCreate(&raw mut streams[0], green, 1, 0));
    tell!(s, stream.cuStreamCreate(&raw mut streams[1], 0));
    let mut part = null.cast();
    for stream in [streams[0], streams[1], null.cast(), bad_handle()] {
        show!(s, stream.cuStreamGetCtx(stream, &raw mut current) => current == own);
        show!(s, stream.cuStreamGetCtx_v2(stream, &raw mut current, &raw mut part) => current == first, part == green);
        show!(s, stream.cuStreamGetGreenCtx(stream, &raw mut part) => part == green);
    }
    tell!(s, stream.cuStreamGetCtx_v2(std::ptr::without_provenance_mut(2), &raw mut current, &raw mut part));
    tell!(s, context.cuGreenCtxRecordEvent(green, event));
    tell!(s, context.cuGreenCtxWaitEvent(green, event));
    tell!(s, context.cuGreenCtxRecordEvent(bad_handle(), event));
    tell!(s, context.cuCtxRecordEvent(own, event));
    tell!(s, context.cuCtxWaitEvent(first, event));
    // A context with a stream that captures has no such events.
    let mut graph = null.cast();
    tell!(s, graph.cuStreamBeginCapture_v2(streams[0], 2));
    tell!(s, context.cuGreenCtxRecordEvent(green, event));
    tell!(s, graph.cuStreamEndCapture(streams[0], &raw mut graph));
    tell!(s, graph.cuStreamBeginCapture_v2(streams[0], 2));
    tell!(s, context.cuCtxWaitEvent(first, event));
    tell!(s, graph.cuStreamEndCapture(streams[0], &raw mut graph));
    tell!(s, stream.cuStreamSynchronize(streams[1]));
    tell!(s, stream.cuStreamDestroy_v2(streams[1]));
    tell!(s, context.cuCtxDestroy_v2(own));
    show!(s, context.cuCtxPopCurrent_v2(&raw mut current) => current == own);
    tell!(s, context.cuGreenCtxDestroy(green));
    tell!(s, context.cuGreenCtxDestroy(green));
    tell!(s, stream.cuStreamQuery(streams[0]));
    tell!(s, context.cuCtxSetCurrent(own));
    show!(s, context.cuCtxGetCurrent(&raw mut current) => current == first);
}

/// The end of the primary context.
pub fn reset(s: &Surface) {
    let (mut flags, mut active) = (99, 99);
    tell!(s, context.cuDevicePrimaryCtxReset_v2(0));
    tell!(s, context.cuDevicePrimaryCtxRelease_v2(0));
    tell!(s, context.cuDevicePrimaryCtxRelease_v2(0));
    show!(s, context.cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active) => active);
}
