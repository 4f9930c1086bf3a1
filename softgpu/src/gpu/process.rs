//! Per-process state: whether the driver is initialized, whether this is a forked child, whether the process is
//! exiting.

use super::{context, device};
use crate::result::Res;
use cuda_api::sys::CUresult;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static INITIALISED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);
static EXITING: AtomicBool = AtomicBool::new(false);

/// `cuInit`. A child forked before this can initialize the driver itself.
pub(crate) fn initialise() -> Res {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    if device::is_setting_refused() {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    if device::all().is_empty() {
        return Err(CUresult::CUDA_ERROR_NO_DEVICE);
    }
    static HOOKS: Once = Once::new();
    HOOKS.call_once(|| {
        // SAFETY: both functions are valid until the process ends (the library is linked nodelete) and only store to atomics.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
            libc::atexit(at_exit);
        }
    });
    INITIALISED.store(true, Ordering::Release);
    Ok(())
}

/// A child has no worker threads and must not use the device memory that it shares, so every call is refused.
extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Running kernels are abandoned: they stop soon, nothing waits for them, and their memory stays until the process has
/// ended.
extern "C" fn at_exit() {
    if !FORKED.load(Ordering::Relaxed) {
        EXITING.store(true, Ordering::Release);
        context::cancel_all();
    }
}

/// Whether ordinary calls may run.
pub(crate) fn ready() -> Res {
    if FORKED.load(Ordering::Relaxed) || !INITIALISED.load(Ordering::Acquire) {
        Err(CUresult::CUDA_ERROR_NOT_INITIALIZED)
    } else if EXITING.load(Ordering::Acquire) {
        Err(CUresult::CUDA_ERROR_DEINITIALIZED)
    } else {
        Ok(())
    }
}
