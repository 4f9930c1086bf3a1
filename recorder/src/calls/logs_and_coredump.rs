//! State that a driver only stores for the program: its error log, and the settings of core dumps.

use crate::job::contexts;
use cuda_api::code::{self, Code};
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys;
use cuda_model::{coredump, logs};
use std::ffi::{c_char, c_uint, c_void};

pub(crate) fn cuLogsRegisterCallback(
    callback: sys::CUlogsCallback,
    _data: *mut c_void,
    to: OutPtr<sys::CUlogsCallbackHandle>,
) -> Result<(), Code> {
    let handle = logs::register(callback.is_some())?;
    to.write_if_wanted(handle as sys::CUlogsCallbackHandle);
    Ok(())
}

pub(crate) fn cuLogsUnregisterCallback(callback: sys::CUlogsCallbackHandle) -> Result<(), Code> {
    logs::unregister(callback as u64)
}

pub(crate) fn cuLogsCurrent(to: OutPtr<sys::CUlogIterator>, flags: c_uint) -> Result<(), Code> {
    logs::current(to, flags)
}

pub(crate) fn cuLogsDumpToFile(_: *mut sys::CUlogIterator, path: InPtr<c_char>, flags: c_uint) -> Result<(), Code> {
    logs::dump_to_file(path, flags)
}

pub(crate) fn cuLogsDumpToMemory(
    _: *mut sys::CUlogIterator,
    buffer: OutPtr<c_char>,
    size: InOutPtr<usize>,
    flags: c_uint,
) -> Result<(), Code> {
    logs::dump_to_memory(buffer, size, flags)
}

/// The context to which the settings apply.
fn current() -> Result<u64, Code> {
    Some(contexts::current()).filter(|context| *context != 0).ok_or(code::ERROR_INVALID_CONTEXT)
}

pub(crate) fn cuCoredumpGetAttribute(id: u32, value: OutPtr<c_void>, size: InOutPtr<usize>) -> Result<(), Code> {
    coredump::get(current, id, value, size)
}

pub(crate) fn cuCoredumpGetAttributeGlobal(id: u32, value: OutPtr<c_void>, size: InOutPtr<usize>) -> Result<(), Code> {
    coredump::get(|| Ok(0), id, value, size)
}

pub(crate) fn cuCoredumpSetAttribute(id: u32, value: InPtr<c_void>, size: InOutPtr<usize>) -> Result<(), Code> {
    coredump::set(current, id, value, size)
}

pub(crate) fn cuCoredumpSetAttributeGlobal(id: u32, value: InPtr<c_void>, size: InOutPtr<usize>) -> Result<(), Code> {
    coredump::set(|| Ok(0), id, value, size)
}
