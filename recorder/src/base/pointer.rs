//! The program's output pointers.

use cuda_api::code::{self, Code};

/// Checks for an output that must not be null, where this error takes precedence over others.
pub(crate) fn wanted<T>(to: *mut T) -> Result<(), Code> {
    if to.is_null() { Err(code::ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// Writes an output that must not be null.
pub(crate) fn write_out<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the program's non-null output pointers are writable by CUDA's contract.
    unsafe { to.write(value) };
    Ok(())
}
