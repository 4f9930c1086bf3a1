//! The few NVML functions with which a place queries what CUDA does not report: here, the link of an H200, and what one at work measures.
//!
//! With a real driver they are in a library beside it; this driver brings its own.

use crate::gpu::device;
use cuda_api::facts::uuid_text;
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

/// A GPU by its UUID: its handle is its number in the machine, from 1. `CUDA_VISIBLE_DEVICES` hides nothing from NVML.
///
/// # Safety
/// The UUID is a terminated text or null, and the handle can be written or is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, handle: *mut *mut c_void) -> c_int {
    if uuid.is_null() || handle.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null; as the caller says.
    let wanted = unsafe { CStr::from_ptr(uuid) };
    let Some(found) = device::machine().iter().position(|uuid| uuid_text(uuid).as_bytes() == wanted.to_bytes()) else {
        return NOT_FOUND;
    };
    // SAFETY: not null; as the caller says.
    unsafe { handle.write(std::ptr::without_provenance_mut(found + 1)) };
    SUCCESS
}

/// Writes a value to an output of a function that takes a device.
fn write_value(handle: *mut c_void, to: *mut c_uint, value: c_uint) -> c_int {
    if to.is_null() || !(1..=device::machine().len()).contains(&handle.addr()) {
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
    nvmlDeviceGetPowerUsage 312_500
    nvmlDeviceGetEnforcedPowerLimit 700_000
    nvmlDeviceGetPerformanceState 0
}

/// Shares of time in which a GPU and its memory were in use, of an H200 at work.
///
/// # Safety
/// Two numbers can be written, or it is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUtilizationRates(handle: *mut c_void, to: *mut [c_uint; 2]) -> c_int {
    if to.is_null() || !(1..=device::machine().len()).contains(&handle.addr()) {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null; as the caller says.
    unsafe { to.write([97, 41]) };
    SUCCESS
}

/// Temperature of the chip, which is the only sensor.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperature(handle: *mut c_void, sensor: c_int, to: *mut c_uint) -> c_int {
    if sensor == 0 { write_value(handle, to, 44) } else { INVALID_ARGUMENT }
}

/// The clocks of graphics, multiprocessors, memory and video.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetClockInfo(handle: *mut c_void, domain: c_int, to: *mut c_uint) -> c_int {
    let clock = usize::try_from(domain).ok().and_then(|domain| [1980, 1981, 3201, 1545].get(domain).copied());
    clock.map_or(INVALID_ARGUMENT, |clock| write_value(handle, to, clock))
}
