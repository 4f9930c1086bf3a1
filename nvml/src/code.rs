//! Result codes and structures of NVML's interface.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};

/// Result of a call, `nvmlReturn_t`.
pub(crate) type Code = c_int;

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(#[allow(dead_code)] pub(crate) const $name: Code = $value;)*
        /// The text that `nvmlErrorString` returns.
        pub(crate) fn describe(code: Code) -> &'static CStr {
            match code { $($value => $text,)* _ => c"Unknown Error" }
        }
    };
}
codes! {
    SUCCESS = 0, c"Success";
    UNINITIALIZED = 1, c"Uninitialized";
    INVALID_ARGUMENT = 2, c"Invalid Argument";
    NOT_SUPPORTED = 3, c"Not Supported";
    NO_PERMISSION = 4, c"Insufficient Permissions";
    NOT_FOUND = 6, c"Not Found";
    INSUFFICIENT_SIZE = 7, c"Insufficient Size";
    DRIVER_NOT_LOADED = 9, c"Driver Not Loaded";
    TIMEOUT = 10, c"Timeout";
    LIBRARY_NOT_FOUND = 12, c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13, c"Function Not Found";
    GPU_IS_LOST = 15, c"GPU is lost";
    ARGUMENT_VERSION_MISMATCH = 25, c"Argument version mismatch";
    UNKNOWN = 999, c"Unknown Error";
}

/// `nvmlMemory_t`
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlUtilization_t`
#[repr(C)]
pub(crate) struct Utilization {
    pub(crate) gpu: c_uint,
    pub(crate) memory: c_uint,
}

/// `nvmlTemperature_v1_t`
#[repr(C)]
pub(crate) struct Temperature {
    pub(crate) version: c_uint,
    pub(crate) sensor: c_int,
    pub(crate) temperature: c_int,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: c_uint,
    pub(crate) total: c_ulonglong,
    pub(crate) reserved: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlPciInfo_t`
#[repr(C)]
pub(crate) struct Pci {
    pub(crate) legacy: [c_char; 16],
    pub(crate) domain: c_uint,
    pub(crate) bus: c_uint,
    pub(crate) device: c_uint,
    /// Vendor and model; unknown.
    pub(crate) device_id: c_uint,
    pub(crate) subsystem_id: c_uint,
    pub(crate) bus_id: [c_char; 32],
}

/// `nvmlProcessInfo_v1_t`
#[repr(C)]
pub(crate) struct Process {
    pub(crate) pid: c_uint,
    pub(crate) used: c_ulonglong,
}

/// `nvmlProcessInfo_t`, versions 2 and 3
#[repr(C)]
pub(crate) struct ProcessV2 {
    pub(crate) pid: c_uint,
    pub(crate) used: c_ulonglong,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

const _: () = assert!(size_of::<MemoryV2>() == 40 && size_of::<Pci>() == 68 && size_of::<ProcessV2>() == 24);
