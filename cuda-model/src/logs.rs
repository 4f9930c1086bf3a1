//! The driver's error log (`cuLogs…`): callbacks are accepted, and nothing is ever logged.

use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// Registered callbacks: their handles, and the next handle.
static CALLBACKS: Mutex<(Vec<u64>, u64)> = Mutex::new((Vec::new(), 0x6c6f_6710));

/// `cuLogsRegisterCallback`; returns the handle.
///
/// # Errors
/// `INVALID_VALUE`: no function.
pub fn register(has_function: bool) -> Result<u64, Code> {
    if !has_function {
        return Err(INVALID);
    }
    let mut callbacks = lock(&CALLBACKS);
    let handle = callbacks.1;
    callbacks.1 += 16;
    callbacks.0.push(handle);
    Ok(handle)
}

/// `cuLogsUnregisterCallback`
///
/// # Errors
/// `INVALID_VALUE`: no such callback.
pub fn unregister(handle: u64) -> Result<(), Code> {
    let mut callbacks = lock(&CALLBACKS);
    let at = callbacks.0.iter().position(|h| *h == handle).ok_or(INVALID)?;
    callbacks.0.swap_remove(at);
    Ok(())
}

/// `cuLogsCurrent`: the end of an empty log.
///
/// # Errors
/// `INVALID_VALUE`: null, or flags.
pub fn current(to: OutPtr<u32>, flags: u32) -> Result<(), Code> {
    if flags != 0 {
        return Err(INVALID);
    }
    to.write(0)
}

/// `cuLogsDumpToFile`: creates the file if necessary and adds nothing.
///
/// # Errors
/// `INVALID_VALUE`: no name, flags, or a file that cannot be created.
pub fn dump_to_file(path: InPtr<c_char>, flags: u32) -> Result<(), Code> {
    if flags != 0 {
        return Err(INVALID);
    }
    let path = std::ffi::OsStr::from_bytes(path.c_str()?.to_bytes());
    std::fs::OpenOptions::new().append(true).create(true).open(path).map(drop).map_err(|_| INVALID)
}

/// `cuLogsDumpToMemory`: returns an empty text.
///
/// # Errors
/// `INVALID_VALUE`: no buffer, no room for the terminating NUL, or flags.
pub fn dump_to_memory(buffer: OutPtr<c_char>, size: InOutPtr<usize>, flags: u32) -> Result<(), Code> {
    if flags != 0 || size.read()? == 0 {
        return Err(INVALID);
    }
    buffer.write(0)?;
    size.write(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_are_known_until_they_are_taken_back() {
        assert_eq!(register(false), Err(INVALID));
        let (a, b) = (register(true).unwrap(), register(true).unwrap());
        assert_ne!(a, b);
        assert_eq!((unregister(a), unregister(a), unregister(b)), (Ok(()), Err(INVALID), Ok(())));
    }
}
