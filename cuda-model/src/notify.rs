//! Notifications about a driver's memory budget: callbacks are accepted and never called, since such a budget does not
//! apply to the job. Also the atomic capabilities of links to the host and between GPUs: none, because not every place
//! could provide them.

use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys;
use std::sync::Mutex;

const INVALID: Code = code::ERROR_INVALID_VALUE;
/// `CU_ATOMIC_OPERATION_MAX`
const OPERATIONS: u32 = 13;

/// Registered callbacks: device and handle; and the next handle.
static REGISTERED: Mutex<(Vec<(i32, u64)>, u64)> = Mutex::new((Vec::new(), 0x6e6f_7410));

/// `cuDeviceRegisterAsyncNotification`; returns the handle.
///
/// # Errors
/// `INVALID_VALUE`: no function.
pub fn register(device: i32, has_function: bool) -> Result<u64, Code> {
    if !has_function {
        return Err(INVALID);
    }
    let mut all = lock(&REGISTERED);
    let handle = all.1;
    all.1 += 16;
    all.0.push((device, handle));
    Ok(handle)
}

/// `cuDeviceUnregisterAsyncNotification`
///
/// # Errors
/// `INVALID_VALUE`: no such function.
pub fn unregister(device: i32, handle: u64) -> Result<(), Code> {
    let mut all = lock(&REGISTERED);
    let at = all.0.iter().position(|known| *known == (device, handle)).ok_or(INVALID)?;
    all.0.swap_remove(at);
    Ok(())
}

/// `cuDeviceGetHostAtomicCapabilities`, `cuDeviceGetP2PAtomicCapabilities`: none, consistent with the attributes.
///
/// # Errors
/// `INVALID_VALUE`: an empty list, or an unknown operation.
pub fn atomics(to: OutPtr<u32>, operations: InPtr<sys::CUatomicOperation>, count: u32) -> Result<(), Code> {
    if to.is_null() || operations.is_null() || count == 0 {
        return Err(INVALID);
    }
    let count = count as usize;
    if operations.cast::<u32>().elements(count)?.any(|operation| operation >= OPERATIONS) {
        return Err(INVALID);
    }
    (0..count).try_for_each(|n| to.element(n).write(0))
}

/// `cuFlushGPUDirectRDMAWrites`: does nothing, since no network card writes to the memory of a job.
///
/// # Errors
/// `INVALID_VALUE`: unknown target or scope.
pub fn flush(target: u32, scope: u32) -> Result<(), Code> {
    /// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`, and the two scopes.
    const CURRENT: u32 = 0;
    const OWNER: u32 = 100;
    const ALL_DEVICES: u32 = 200;
    if target == CURRENT && matches!(scope, OWNER | ALL_DEVICES) { Ok(()) } else { Err(INVALID) }
}
