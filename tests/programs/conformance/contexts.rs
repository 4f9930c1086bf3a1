//! Contexts of every kind, and their limits.

use crate::tell::Tell;
use cuda_api::sys::CUcontext;

fn state(t: &Tell) {
    let (mut flags, mut active) = (99, 99);
    say!(t, context.cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active) => flags, active);
    let mut current: CUcontext = std::ptr::null_mut();
    say!(t, context.cuCtxGetCurrent(&raw mut current) => t.name(current as u64));
    let mut device = -1;
    say!(t, context.cuCtxGetDevice(&raw mut device) => device);
}

/// Makes, pushes, pops and ends contexts.
pub fn all(t: &Tell) {
    let null = std::ptr::null_mut();
    let (mut primary, mut own, mut second, mut popped): (CUcontext, CUcontext, CUcontext, CUcontext) = (null, null, null, null);
    call!(t, device.cuInit(0));
    state(t);
    for flags in [0x20, 0x100, 0x8, 0x10, 0, 1, 2, 3, 4, 5] {
        t.about(format!("flags {flags:#x}"));
        say!(t, context.cuDevicePrimaryCtxSetFlags_v2(0, flags));
        state(t);
    }
    t.about("the primary context");
    say!(t, context.cuDevicePrimaryCtxRetain(null.cast(), 0));
    say!(t, context.cuDevicePrimaryCtxRetain(&raw mut primary, 0) => t.name(primary as u64));
    say!(t, context.cuDevicePrimaryCtxRetain(&raw mut own, 0) => t.name(own as u64));
    state(t);
    say!(t, context.cuDevicePrimaryCtxSetFlags_v2(0, 1));
    say!(t, context.cuDevicePrimaryCtxSetFlags_v2(0, 4));
    state(t);
    say!(t, context.cuCtxSetCurrent(primary));
    state(t);
    let (mut flags, mut version, mut id) = (99, 0, 0);
    say!(t, context.cuCtxGetFlags(&raw mut flags) => flags);
    say!(t, context.cuCtxGetApiVersion(primary, &raw mut version) => version);
    say!(t, context.cuCtxGetApiVersion(null, &raw mut version) => version);
    say!(t, context.cuCtxGetId(primary, &raw mut id));
    say!(t, context.cuCtxGetId(null, &raw mut id));
    say!(t, context.cuCtxDestroy_v2(primary));
    say!(t, context.cuCtxDestroy_v2(null));
    t.move_here();
    t.about("contexts that the program makes");
    say!(t, context.cuCtxCreate_v2(null.cast(), 0, 0));
    say!(t, context.cuCtxCreate_v2(&raw mut own, 0, 99));
    say!(t, context.cuCtxCreate_v2(&raw mut own, 0x400, 0));
    say!(t, context.cuCtxCreate_v2(&raw mut own, 4, 0) => t.name(own as u64));
    state(t);
    say!(t, context.cuCtxGetFlags(&raw mut flags) => flags);
    say!(t, context.cuCtxCreate_v4(&raw mut second, null.cast(), 2, 0) => t.name(second as u64));
    say!(t, context.cuCtxGetFlags(&raw mut flags) => flags);
    state(t);
    say!(t, context.cuCtxPopCurrent_v2(&raw mut popped) => t.name(popped as u64));
    state(t);
    say!(t, context.cuCtxPushCurrent_v2(second));
    say!(t, context.cuCtxPushCurrent_v2(null));
    state(t);
    say!(t, context.cuCtxSynchronize_v2(own));
    say!(t, context.cuCtxSynchronize_v2(null));
    say!(t, context.cuCtxDestroy_v2(second));
    state(t);
    say!(t, context.cuCtxGetApiVersion(second, &raw mut version) => version);
    // The driver takes it once more for current, and crashes later.
    say!(t, context.cuCtxDestroy_v2(second));
    say!(t, context.cuCtxSetCurrent(primary));
    say!(t, context.cuCtxDestroy_v2(own));
    state(t);
    t.about("no context");
    say!(t, context.cuCtxSetCurrent(null));
    state(t);
    say!(t, context.cuCtxPopCurrent_v2(&raw mut popped));
    say!(t, context.cuCtxPopCurrent_v2(null.cast()));
    say!(t, context.cuCtxSynchronize());
    t.about("the end of the primary context");
    say!(t, context.cuDevicePrimaryCtxRelease_v2(0));
    state(t);
    say!(t, context.cuDevicePrimaryCtxRelease_v2(0));
    state(t);
    say!(t, context.cuDevicePrimaryCtxRelease_v2(0));
    say!(t, context.cuCtxSetCurrent(primary));
    let mut address = 0;
    say!(t, memory.cuMemAlloc_v2(&raw mut address, 16));
    say!(t, context.cuDevicePrimaryCtxRetain(&raw mut primary, 0) => t.name(primary as u64));
    say!(t, memory.cuMemAlloc_v2(&raw mut address, 16));
    say!(t, memory.cuMemFree_v2(address));
    say!(t, context.cuDevicePrimaryCtxReset_v2(0));
    state(t);
    say!(t, memory.cuMemAlloc_v2(&raw mut address, 16));
    say!(t, context.cuDevicePrimaryCtxReset_v2(0));
    say!(t, context.cuDevicePrimaryCtxReset_v2(9));
}

/// Limits, caches, priorities.
pub fn limits(t: &Tell) {
    t.start();
    let get = |limit: u32| {
        let mut value = 0;
        t.about(format!("limit {limit}"));
        say!(t, context.cuCtxGetLimit(&raw mut value, limit) => value);
    };
    for limit in (0..9).chain([77]) {
        get(limit);
        say!(t, context.cuCtxGetLimit(std::ptr::null_mut(), limit));
    }
    // A stack size for all threads of the GPU takes much memory, so only small ones.
    for (limit, value) in [
        (0, 2048),
        (0, 1000),
        (1, 1 << 20),
        (1, 0),
        (2, 16 << 20),
        (2, 1000),
        (3, 2),
        (4, 1024),
        (5, 32),
        (5, 77),
        (5, 4096),
        (6, 0),
        (77, 1),
    ] {
        t.about(format!("limit {limit}, value {value}"));
        say!(t, context.cuCtxSetLimit(limit, value));
        get(limit);
    }
    t.move_here();
    for limit in 0..8 {
        get(limit);
    }
    let mut config = 99;
    for value in [0, 1, 2, 3, 4, 77] {
        t.about(format!("configuration {value}"));
        say!(t, context.cuCtxSetCacheConfig(value));
        say!(t, context.cuCtxGetCacheConfig(&raw mut config) => config);
    }
    t.about("");
    let (mut least, mut greatest) = (99, 99);
    say!(t, context.cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) => least, greatest);
    say!(t, context.cuCtxGetStreamPriorityRange(std::ptr::null_mut(), &raw mut greatest) => greatest);
    say!(t, context.cuCtxGetStreamPriorityRange(std::ptr::null_mut(), std::ptr::null_mut()));
    say!(t, context.cuCtxGetCacheConfig(std::ptr::null_mut()));
}
