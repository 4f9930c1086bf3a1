//! Functions that a driver would call when it runs short of something: taken, and never called, since no memory budget of a driver is
//! the job's. And what links to the host and between GPUs can do with one word at a time: nothing that every place could keep.

use cuda_api::code::{self, Code};
use cuda_api::sys;
use std::sync::{Mutex, PoisonError};

const INVALID: Code = code::ERROR_INVALID_VALUE;
/// `CU_ATOMIC_OPERATION_MAX`
const OPERATIONS: u32 = 13;

/// Functions that are registered: device and handle; and the next handle.
static REGISTERED: Mutex<(Vec<(i32, u64)>, u64)> = Mutex::new((Vec::new(), 0x6e6f_7410));

/// `cuDeviceRegisterAsyncNotification`; the handle.
///
/// # Errors
/// `INVALID_VALUE`: no function.
pub fn register(device: i32, has_function: bool) -> Result<u64, Code> {
    if !has_function {
        return Err(INVALID);
    }
    let mut all = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
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
    let mut all = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let at = all.0.iter().position(|known| *known == (device, handle)).ok_or(INVALID)?;
    all.0.swap_remove(at);
    Ok(())
}

/// `cuDeviceGetHostAtomicCapabilities`, `cuDeviceGetP2PAtomicCapabilities`: none, as the attributes say.
///
/// # Errors
/// `INVALID_VALUE`: nothing is asked for, or what does not exist.
///
/// # Safety
/// Both are null or point to `count` values.
pub unsafe fn atomics(to: *mut u32, operations: *const sys::CUatomicOperation, count: u32) -> Result<(), Code> {
    if to.is_null() || operations.is_null() || count == 0 {
        return Err(INVALID);
    }
    let count = count as usize;
    // SAFETY: as the caller says; read as numbers, since C may put any into an enum.
    if (0..count).any(|n| unsafe { operations.cast::<u32>().add(n).read_unaligned() } >= OPERATIONS) {
        return Err(INVALID);
    }
    // SAFETY: as the caller says.
    unsafe { to.write_bytes(0, count) };
    Ok(())
}

/// `cuFlushGPUDirectRDMAWrites`: no network card writes to the memory of a job, so nothing is to be done.
///
/// # Errors
/// `INVALID_VALUE`: no such target or scope.
pub fn flush(target: u32, scope: u32) -> Result<(), Code> {
    /// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`, and the two scopes.
    const CURRENT: u32 = 0;
    const OWNER: u32 = 100;
    const ALL_DEVICES: u32 = 200;
    if target == CURRENT && matches!(scope, OWNER | ALL_DEVICES) { Ok(()) } else { Err(INVALID) }
}
