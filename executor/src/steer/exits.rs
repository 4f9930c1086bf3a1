//! Handlers that libcuda registers for the end of the process.
//!
//! The C library calls exit handlers in reverse order of registration. A driver that a move loaded into a job's process would therefore
//! be shut down before the program's own handlers, which natively can still use it, and while a move may be inside it: on hardware calls
//! then return 4, never return, or abort the process. So in a job the driver's handlers are stored here, and the job's own exit handler
//! runs them.

use cuda_api::lock::lock;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

type Function = unsafe extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn __cxa_atexit(function: Function, argument: *mut c_void, library: *mut c_void) -> c_int;
}

/// A handler and its argument (an address, never used as one here).
type Handler = (Function, usize);

/// The stored handlers; `None` while handlers are not stored.
static KEPT: Mutex<Option<Vec<Handler>>> = Mutex::new(None);

fn kept() -> std::sync::MutexGuard<'static, Option<Vec<Handler>>> {
    lock(&KEPT)
}

/// From now on stores handlers of drivers until [`run_exit_handlers`].
pub fn keep_exit_handlers() {
    kept().get_or_insert_default();
}

/// Runs the stored handlers, the last one first; later registrations go to the C library. To be called when the process ends and no
/// thread is inside a driver any more.
pub fn run_exit_handlers() {
    let handlers = kept().take().unwrap_or_default();
    for (function, argument) in handlers.into_iter().rev() {
        // SAFETY: the driver registered them to be called once, at the end of the process; it is never unloaded.
        unsafe { function(argument as *mut c_void) };
    }
}

/// Replaces `__cxa_atexit`, which `atexit` calls.
///
/// # Safety
/// As `__cxa_atexit`.
pub(super) unsafe extern "C" fn cxa_atexit(function: Function, argument: *mut c_void, library: *mut c_void) -> c_int {
    if let Some(kept) = kept().as_mut() {
        kept.push((function, argument as usize));
        return 0;
    }
    // SAFETY: the caller's own contract.
    unsafe { __cxa_atexit(function, argument, library) }
}
