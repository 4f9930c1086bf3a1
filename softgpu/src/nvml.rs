//! The few NVML functions with which a place queries what CUDA does not report: here, the link of an H200.
//!
//! With a real driver they are in a library beside it; this driver brings its own.

use crate::gpu::device;
use cuda_api::pci;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `NVML_SUCCESS`, `NVML_ERROR_INVALID_ARGUMENT`, `NVML_ERROR_NOT_FOUND`
const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_FOUND: c_int = 6;

/// Initializes NVML; there is nothing to do.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_int {
    SUCCESS
}

/// Shuts NVML down.
#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

/// The driver's version, if one is configured.
///
/// # Safety
/// So many bytes can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, room: c_uint) -> c_int {
    let build = &crate::config::get().driver_build;
    if to.is_null() || build.len() >= room as usize {
        return INVALID_ARGUMENT;
    }
    if build.is_empty() {
        return NOT_FOUND;
    }
    // SAFETY: there is room for the text and its NUL, as the caller says.
    unsafe {
        std::ptr::copy_nonoverlapping(build.as_ptr().cast(), to, build.len());
        to.add(build.len()).write(0);
    }
    SUCCESS
}

/// A GPU by its PCI address: its handle is its ordinal, from 1.
///
/// # Safety
/// The address is a terminated text or null, and the handle can be written or is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(address: *const c_char, handle: *mut *mut c_void) -> c_int {
    if address.is_null() || handle.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null; as the caller says.
    let Some(wanted) = unsafe { CStr::from_ptr(address) }.to_str().ok().and_then(pci::parse) else { return INVALID_ARGUMENT };
    let Some(found) = device::all().iter().position(|d| d.pci() == wanted) else { return NOT_FOUND };
    // SAFETY: not null; as the caller says.
    unsafe { handle.write(std::ptr::without_provenance_mut(found + 1)) };
    SUCCESS
}

/// Writes a value to an output of a function that takes a device.
fn write_value(handle: *mut c_void, to: *mut c_uint, value: c_uint) -> c_int {
    if to.is_null() || !(1..=device::all().len()).contains(&handle.addr()) {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's non-null outputs are writable by NVML's contract.
    unsafe { to.write(value) };
    SUCCESS
}

macro_rules! constants {
    ($($name:ident $value:literal)*) => {$(
        /// A constant of an H200.
        #[unsafe(no_mangle)]
        extern "C" fn $name(handle: *mut c_void, to: *mut c_uint) -> c_int {
            write_value(handle, to, $value)
        }
    )*};
}

constants! {
    nvmlDeviceGetMaxPcieLinkGeneration 5
    nvmlDeviceGetGpuMaxPcieLinkGeneration 5
    nvmlDeviceGetCurrPcieLinkGeneration 5
    nvmlDeviceGetMaxPcieLinkWidth 16
    nvmlDeviceGetCurrPcieLinkWidth 16
}
