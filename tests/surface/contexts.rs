//! Contexts and their limits.

use crate::driver::{Surface, bad_handle};
use cuda_api::sys::CUcontext;

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

/// The end of the primary context.
pub fn reset(s: &Surface) {
    let (mut flags, mut active) = (99, 99);
    tell!(s, context.cuDevicePrimaryCtxReset_v2(0));
    tell!(s, context.cuDevicePrimaryCtxRelease_v2(0));
    tell!(s, context.cuDevicePrimaryCtxRelease_v2(0));
    show!(s, context.cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active) => active);
}
