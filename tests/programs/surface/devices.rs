//! Devices, versions, error texts, look-ups.

use crate::driver::{Surface, static_text, text};
use cuda_api::sys::{CUasyncCallbackHandle, CUasyncNotificationInfo};
use std::ffi::{c_char, c_void};

/// Calls before `cuInit`.
pub fn before_start(s: &Surface) {
    let mut n = 0;
    tell!(s, device.cuDeviceGetCount(&raw mut n));
    tell!(s, context.cuCtxSynchronize());
    let mut version = 0;
    show!(s, device.cuDriverGetVersion(&raw mut version) => version);
    tell!(s, device.cuInit(1));
    tell!(s, device.cuInit(0));
}

/// What the device says of itself.
pub fn identity(s: &Surface) {
    let mut count = 0;
    show!(s, device.cuDeviceGetCount(&raw mut count) => count);
    let mut device = -1;
    show!(s, device.cuDeviceGet(&raw mut device, 0) => device);
    tell!(s, device.cuDeviceGet(&raw mut device, 99));
    tell!(s, device.cuDeviceGet(&raw mut device, -1));
    tell!(s, device.cuDeviceGet(std::ptr::null_mut(), 0));
    let mut name = [0u8; 64];
    show!(s, device.cuDeviceGetName(name.as_mut_ptr().cast(), 64, 0) => text(&name));
    show!(s, device.cuDeviceGetName(name.as_mut_ptr().cast(), 4, 0) => text(&name));
    tell!(s, device.cuDeviceGetName(name.as_mut_ptr().cast(), 64, 5));
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut uuid: cuda_api::sys::CUuuid = unsafe { std::mem::zeroed() };
    show!(s, device.cuDeviceGetUuid_v2(&raw mut uuid, 0) => uuid.bytes);
    show!(s, device.cuDeviceGetUuid(&raw mut uuid, 0) => uuid.bytes);
    let mut bytes = 0;
    show!(s, device.cuDeviceTotalMem_v2(&raw mut bytes, 0) => bytes);
    for which in [1, 2, 10, 13, 16, 39, 41, 75, 76, 81, 86, 88, 89, 99, 102, 115, 0, 9999] {
        let mut value = -1;
        print!("{which:4} ");
        show!(s, device.cuDeviceGetAttribute(&raw mut value, which, 0) => value);
    }
    let mut pci = [0u8; 32];
    show!(s, device.cuDeviceGetPCIBusId(pci.as_mut_ptr().cast(), 32, 0) => text(&pci));
    show!(s, device.cuDeviceGetByPCIBusId(&raw mut device, pci.as_ptr().cast()) => device);
    let (mut major, mut minor) = (0, 0);
    show!(s, device.cuDeviceComputeCapability(&raw mut major, &raw mut minor, 0) => major, minor);
    let mut peer = -1;
    show!(s, device.cuDeviceCanAccessPeer(&raw mut peer, 0, 0) => peer);
    tell!(s, device.cuDeviceCanAccessPeer(&raw mut peer, 0, 9));
    let mut width = 0;
    // 16-bit floats (format 0x10), one channel.
    show!(s, device.cuDeviceGetTexture1DLinearMaxWidth(&raw mut width, 0x20, 1, 0) => width);
    let mut support = -1;
    show!(s, device.cuDeviceGetExecAffinitySupport(&raw mut support, 0, 0) => support);
    for code in [0, 1, 2, 46, 100, 201, 400, 700, 999, 12345] {
        let mut name = std::ptr::null();
        print!("{code:5} ");
        show!(s, device.cuGetErrorName(code, &raw mut name) => static_text(name));
        show!(s, device.cuGetErrorString(code, &raw mut name) => static_text(name).is_empty());
    }
    let mut function: *mut c_void = std::ptr::null_mut();
    for (name, version) in
        [(c"cuMemAlloc", 3020), (c"cuMemAlloc", 2000), (c"cuLibraryLoadData", 11080), (c"cuNoSuchThing", 13000)]
    {
        let mut status = 9;
        print!("{name:?} {version} ");
        let place = (&raw mut status).cast();
        show!(s, device.cuGetProcAddress_v2(name.as_ptr(), &raw mut function, version, 0, place) => function.is_null(), status);
        show!(s, device.cuGetProcAddress(name.as_ptr(), &raw mut function, version, 0) => function.is_null());
    }
    tell!(s, device.cuProfilerStart());
    tell!(s, device.cuProfilerStop());
    logs(s);
    dumps(s);
}

unsafe extern "C" fn logged(_: *mut c_void, _: cuda_api::sys::CUlogLevel, _: *mut c_char, _: usize) {}

/// The error log, of which only the calls are tried: what a driver writes into it is its own.
fn logs(s: &Surface) {
    let none = std::ptr::null_mut();
    let mut handle = std::ptr::null_mut();
    tell!(s, device.cuLogsRegisterCallback(None, none, &raw mut handle));
    show!(s, device.cuLogsRegisterCallback(Some(logged), none, &raw mut handle) => handle.is_null());
    tell!(s, device.cuLogsUnregisterCallback(handle));
    let mut at = 77;
    tell!(s, device.cuLogsCurrent(std::ptr::null_mut(), 0));
    tell!(s, device.cuLogsCurrent(&raw mut at, 1));
    tell!(s, device.cuLogsCurrent(&raw mut at, 0));
    let mut text = [7u8; 256];
    let mut size = text.len();
    tell!(s, device.cuLogsDumpToMemory(&raw mut at, text.as_mut_ptr().cast(), &raw mut size, 1));
    show!(s, device.cuLogsDumpToMemory(&raw mut at, text.as_mut_ptr().cast(), &raw mut size, 0) => size, text[0]);
    tell!(s, device.cuLogsDumpToFile(&raw mut at, std::ptr::null(), 0));
}

/// Settings of dumps: for everything, since there is no context yet.
fn dumps(s: &Surface) {
    let mut size = 0usize;
    for setting in 0..9 {
        print!("{setting:3} ");
        show!(s, device.cuCoredumpGetAttributeGlobal(setting, std::ptr::null_mut(), &raw mut size) => size);
    }
    let mut yes = true;
    size = 1;
    show!(s, device.cuCoredumpGetAttributeGlobal(1, (&raw mut yes).cast(), &raw mut size) => yes);
    yes = true;
    tell!(s, device.cuCoredumpSetAttributeGlobal(3, (&raw mut yes).cast(), &raw mut size));
    yes = false;
    show!(s, device.cuCoredumpGetAttributeGlobal(3, (&raw mut yes).cast(), &raw mut size) => yes);
    tell!(s, device.cuCoredumpSetAttributeGlobal(3, (&raw mut yes).cast(), std::ptr::null_mut()));
    tell!(s, device.cuCoredumpGetAttribute(3, (&raw mut yes).cast(), &raw mut size));
}

/// What links can do at once, and functions that the driver would call.
pub fn links(s: &Surface) {
    let mut can = [9u32; 2];
    let (known, unknown) = ([0u32, 12], [13u32]);
    tell!(s, device.cuDeviceGetHostAtomicCapabilities(can.as_mut_ptr(), known.as_ptr().cast(), 0, 0));
    tell!(s, device.cuDeviceGetHostAtomicCapabilities(can.as_mut_ptr(), unknown.as_ptr().cast(), 1, 0));
    tell!(s, device.cuDeviceGetHostAtomicCapabilities(can.as_mut_ptr(), known.as_ptr().cast(), 2, 9));
    show!(s, device.cuDeviceGetHostAtomicCapabilities(can.as_mut_ptr(), known.as_ptr().cast(), 2, 0) => can);
    tell!(s, device.cuDeviceGetP2PAtomicCapabilities(can.as_mut_ptr(), known.as_ptr().cast(), 2, 0, 0));
    let mut handle = std::ptr::null_mut();
    unsafe extern "C" fn notified(_: *mut CUasyncNotificationInfo, _: *mut c_void, _: CUasyncCallbackHandle) {}
    tell!(s, device.cuDeviceRegisterAsyncNotification(0, None, std::ptr::null_mut(), &raw mut handle));
    tell!(s, device.cuDeviceRegisterAsyncNotification(0, Some(notified), std::ptr::null_mut(), std::ptr::null_mut()));
    tell!(s, device.cuDeviceRegisterAsyncNotification(0, Some(notified), std::ptr::null_mut(), &raw mut handle));
    tell!(s, device.cuDeviceUnregisterAsyncNotification(1, handle));
    tell!(s, device.cuDeviceUnregisterAsyncNotification(0, handle));
    tell!(s, device.cuDeviceUnregisterAsyncNotification(0, handle));
    for (target, scope) in [(0, 100), (0, 200), (1, 100), (0, 0)] {
        tell!(s, device.cuFlushGPUDirectRDMAWrites(target, scope));
    }
}
