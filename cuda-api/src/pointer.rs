//! Access through the pointers that a program passes.
//!
//! This relies on CUDA's contract: a pointer that is not null points to what the header specifies.

#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "the pointers are a program's, and hold what CUDA's header says")]

use crate::code::{self, Code};

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// Writes an output that must not be null.
pub fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID);
    }
    // SAFETY: not null, so writable by CUDA's contract.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes an output unless the pointer is null.
pub fn give_if_wanted<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as in `give`.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads a value; null is an error.
pub fn read<T: Copy>(from: *const T) -> Result<T, Code> {
    if from.is_null() {
        return Err(INVALID);
    }
    // SAFETY: not null, so readable by CUDA's contract; callers read types for which any bits are valid.
    Ok(unsafe { from.read_unaligned() })
}

/// Reads an array; null is an error unless it is empty.
pub fn list<T: Copy>(from: *const T, count: usize) -> Result<Vec<T>, Code> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if from.is_null() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(INVALID);
    }
    // SAFETY: the program says that so many elements are there.
    Ok((0..count).map(|i| unsafe { from.add(i).read_unaligned() }).collect())
}

/// A NUL-terminated string.
pub fn text(from: *const std::ffi::c_char) -> Result<String, Code> {
    if from.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the program's strings are NUL-terminated.
    Ok(unsafe { std::ffi::CStr::from_ptr(from) }.to_string_lossy().into_owned())
}
