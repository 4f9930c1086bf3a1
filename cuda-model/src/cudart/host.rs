//! The library that provides the tables, and how their slots answer.

use cuda_api::code::{self, Code};
use cuda_api::pointer::InPtr;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// The identity of a device, as the program sees it. It must not change during the life of the process, wherever its
/// calls execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// What `cuDeviceGetUuid` answers.
    pub uuid: [u8; 16],
    /// Device attribute 50.
    pub pci_domain: i32,
    /// Device attribute 33.
    pub pci_bus: i32,
    /// Device attribute 34.
    pub pci_device: i32,
}

/// What the tables need from the driver that provides them. Codes are those of `CUresult`.
pub trait Host: Sync {
    /// What `cuDriverGetVersion` answers.
    fn driver_version(&self) -> i32;
    /// All devices in order of their ordinals.
    fn devices(&self) -> Vec<DeviceIdentity>;
    /// The calling thread's current context; 0: none.
    fn current_context(&self) -> usize;
    /// Handle of a device's primary context, without retaining or activating it.
    fn primary_context(&self, ordinal: i32) -> Result<usize, Code>;
    /// Loads a module from a fat binary, given by its wrapper or by its header, into the current context.
    fn load_fatbin(&self, wrapper_or_header: InPtr<c_void>) -> Result<usize, Code>;
    /// Functions of a module, in its order, with names that live as long as the module.
    fn functions(&self, module: usize) -> Result<Vec<(usize, &'static CStr)>, Code>;
    /// Reports the request of an unknown table, for a log.
    fn unknown_table(&self, uuid: &[u8; 16]);
    /// Reports the call of an unknown slot, for a log.
    fn unknown_slot(&self, uuid: &[u8; 16], slot: usize);
}

/// The library that provides the tables.
pub(super) static HOST: OnceLock<&'static dyn Host> = OnceLock::new();

/// Sets the host. Only the first call has an effect; until then every slot answers "not initialized".
pub fn install(host: &'static dyn Host) {
    // A second call can only come from the same library, with the same host.
    let _ = HOST.set(host);
}

/// Runs the body of a slot and catches panics, which must not unwind into the caller.
pub(super) fn guard(body: impl FnOnce(&'static dyn Host) -> Result<(), Code>) -> Code {
    let run = || HOST.get().map_or(Err(code::ERROR_NOT_INITIALIZED), |host| body(*host));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => code::SUCCESS,
        Ok(Err(rc)) => rc,
        Err(_) => code::ERROR_UNKNOWN,
    }
}

/// Writes an answer through a pointer of the caller.
///
/// # Safety
/// `to` must be null or valid for a write of `T`.
pub(super) unsafe fn write_out<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { to.write_unaligned(value) };
    Ok(())
}
