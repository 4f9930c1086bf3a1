//! State that a driver only stores for the program: its error log, and the settings of core dumps.

use crate::base::pointer::write_out;
use crate::job::contexts;
use cuda_api::code::{self, Code};
use cuda_api::sys;
use cuda_model::{coredump, logs};
use std::ffi::{c_char, c_uint, c_void};

pub(crate) fn cuLogsRegisterCallback(
    callback: sys::CUlogsCallback,
    _data: *mut c_void,
    to: *mut sys::CUlogsCallbackHandle,
) -> Result<(), Code> {
    let handle = logs::register(callback.is_some())?;
    if to.is_null() { Ok(()) } else { write_out(to, handle as sys::CUlogsCallbackHandle) }
}

pub(crate) fn cuLogsUnregisterCallback(callback: sys::CUlogsCallbackHandle) -> Result<(), Code> {
    logs::unregister(callback as u64)
}

pub(crate) fn cuLogsCurrent(to: *mut sys::CUlogIterator, flags: c_uint) -> Result<(), Code> {
    // SAFETY: the program's output.
    unsafe { logs::current(to, flags) }
}

pub(crate) fn cuLogsDumpToFile(_: *mut sys::CUlogIterator, path: *const c_char, flags: c_uint) -> Result<(), Code> {
    // SAFETY: the program's argument.
    unsafe { logs::dump_to_file(path, flags) }
}

pub(crate) fn cuLogsDumpToMemory(
    _: *mut sys::CUlogIterator,
    buffer: *mut c_char,
    size: *mut usize,
    flags: c_uint,
) -> Result<(), Code> {
    // SAFETY: the program's arguments.
    unsafe { logs::dump_to_memory(buffer, size, flags) }
}

/// The context to which the settings apply.
fn current() -> Result<u64, Code> {
    Some(contexts::current()).filter(|context| *context != 0).ok_or(code::ERROR_INVALID_CONTEXT)
}

pub(crate) fn cuCoredumpGetAttribute(id: u32, value: *mut c_void, size: *mut usize) -> Result<(), Code> {
    // SAFETY: the program's arguments.
    unsafe { coredump::get(current, id, value, size) }
}

pub(crate) fn cuCoredumpGetAttributeGlobal(id: u32, value: *mut c_void, size: *mut usize) -> Result<(), Code> {
    // SAFETY: the program's arguments.
    unsafe { coredump::get(|| Ok(0), id, value, size) }
}

pub(crate) fn cuCoredumpSetAttribute(id: u32, value: *mut c_void, size: *mut usize) -> Result<(), Code> {
    // SAFETY: the program's arguments.
    unsafe { coredump::set(current, id, value, size) }
}

pub(crate) fn cuCoredumpSetAttributeGlobal(id: u32, value: *mut c_void, size: *mut usize) -> Result<(), Code> {
    // SAFETY: the program's arguments.
    unsafe { coredump::set(|| Ok(0), id, value, size) }
}
