//! Functions that work without a job: start-up, versions, symbol look-up, private tables, error texts.

use crate::abi::private_tables::PrivateTables;
use crate::abi::{exports, start};
use crate::base::log;
use crate::calls::device;
use cuda_api::code::{self, Code};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys;
use cuda_api::versions::{Lookup, resolve};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Once;

pub(crate) fn cuInit(flags: c_uint) -> Result<(), Code> {
    log::runtime_has_started();
    if flags != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    start::start()
}

pub(crate) fn cuDriverGetVersion(to: OutPtr<c_int>) -> Result<(), Code> {
    log::runtime_has_started();
    start::get_version(to)
}

pub(crate) fn cuGetErrorName(error: u32, to: OutPtr<*const c_char>) -> Result<(), Code> {
    device::error_text(error, to, false)
}

pub(crate) fn cuGetErrorString(error: u32, to: OutPtr<*const c_char>) -> Result<(), Code> {
    device::error_text(error, to, true)
}

/// Resolves a name; `Ok(None)` with a status if there is no function to return.
fn look_up(symbol: InPtr<c_char>, version: c_int, flags: u64) -> Result<(Option<*mut c_void>, u32), Code> {
    use sys::CUdriverProcAddressQueryResult_enum as S;
    if symbol.is_null() || flags > 3 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let name = symbol.c_str()?.to_string_lossy();
    if version > start::driver_version() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if name == "cuInit" {
        // Every runtime begins with this name, and then looks up everything it knows.
        log::runtime_starts();
    }
    let not_found = S::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND as u32;
    Ok(match resolve(&name, version, flags) {
        Lookup::Found(symbol) => match exports::find(symbol) {
            Some(p) => (Some(p), S::CU_GET_PROC_ADDRESS_SUCCESS as u32),
            None => {
                log::absent(symbol);
                (None, not_found)
            }
        },
        Lookup::NeedsNewer => (None, S::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT as u32),
        Lookup::Unknown => {
            // From CUDA 12.4 on the runtime's first request is the empty name (docs/driver-facts.md 1.6).
            if !name.is_empty() {
                log::absent(&name);
            }
            (None, not_found)
        }
    })
}

/// Version 1 must fail for unknown functions: CUDA 11's runtime calls whatever it gets (docs/driver-facts.md 1.10).
pub(crate) fn cuGetProcAddress(
    symbol: InPtr<c_char>,
    to: OutPtr<*mut c_void>,
    version: c_int,
    flags: sys::cuuint64_t,
) -> Result<(), Code> {
    let (found, _) = look_up(symbol, version, flags)?;
    to.write(found.unwrap_or(std::ptr::null_mut()))?;
    found.map(drop).ok_or(code::ERROR_NOT_FOUND)
}

pub(crate) fn cuGetProcAddress_v2(
    symbol: InPtr<c_char>,
    to: OutPtr<*mut c_void>,
    version: c_int,
    flags: sys::cuuint64_t,
    status: OutPtr<sys::CUdriverProcAddressQueryResult>,
) -> Result<(), Code> {
    let (found, how) = look_up(symbol, version, flags)?;
    to.write(found.unwrap_or(std::ptr::null_mut()))?;
    status.cast::<u32>().write_if_wanted(how);
    Ok(())
}

pub(crate) fn cuGetExportTable(to: OutPtr<*const c_void>, id: InPtr<sys::CUuuid>) -> Result<(), Code> {
    log::runtime_has_started();
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| cuda_model::cudart::install(&PrivateTables));
    let to = to.not_null()?;
    let table = cuda_model::cudart::table(&id.cast::<[u8; 16]>().read()?);
    to.write(table.unwrap_or(std::ptr::null()))?;
    table.map(drop).ok_or(code::ERROR_INVALID_VALUE)
}
