//! Settings that a driver only stores for the program: its error log, and settings of core dumps.

use super::edge::Out;
use super::{abi, res};
use crate::gpu::context;
use cuda_api::code::{self, Code};
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys::{CUcoredumpSettings, CUlogIterator, CUlogsCallback, CUlogsCallbackHandle};
use cuda_model::{coredump, logs};
use std::ffi::{c_char, c_uint, c_void};

/// The context whose settings are accessed.
fn current() -> Result<u64, Code> {
    context::current().map(|live| live.number).map_err(|_| code::ERROR_INVALID_CONTEXT)
}

abi! {
    early fn cuLogsRegisterCallback(
        callback: CUlogsCallback, _data: *mut c_void, to: Out<CUlogsCallbackHandle> as *mut CUlogsCallbackHandle,
    ) {
        let handle = res(logs::register(callback.is_some()))?;
        to.set_if_wanted(handle as CUlogsCallbackHandle);
        Ok(())
    }

    early fn cuLogsUnregisterCallback(callback: CUlogsCallbackHandle) {
        res(logs::unregister(callback as u64))
    }

    early fn cuLogsCurrent(to: OutPtr<CUlogIterator> as *mut CUlogIterator, flags: c_uint) {
        res(logs::current(to, flags))
    }

    early fn cuLogsDumpToFile(_iterator: *mut CUlogIterator, path: InPtr<c_char> as *const c_char, flags: c_uint) {
        res(logs::dump_to_file(path, flags))
    }

    early fn cuLogsDumpToMemory(
        _iterator: *mut CUlogIterator, buffer: OutPtr<c_char> as *mut c_char, size: InOutPtr<usize> as *mut usize, flags: c_uint,
    ) {
        res(logs::dump_to_memory(buffer, size, flags))
    }

    early fn cuCoredumpGetAttribute(
        id: c_uint as CUcoredumpSettings, value: OutPtr<c_void> as *mut c_void, size: InOutPtr<usize> as *mut usize,
    ) {
        res(coredump::get(current, id, value, size))
    }

    early fn cuCoredumpGetAttributeGlobal(
        id: c_uint as CUcoredumpSettings, value: OutPtr<c_void> as *mut c_void, size: InOutPtr<usize> as *mut usize,
    ) {
        res(coredump::get(|| Ok(0), id, value, size))
    }

    early fn cuCoredumpSetAttribute(
        id: c_uint as CUcoredumpSettings, value: InPtr<c_void> as *mut c_void, size: InOutPtr<usize> as *mut usize,
    ) {
        res(coredump::set(current, id, value, size))
    }

    early fn cuCoredumpSetAttributeGlobal(
        id: c_uint as CUcoredumpSettings, value: InPtr<c_void> as *mut c_void, size: InOutPtr<usize> as *mut usize,
    ) {
        res(coredump::set(|| Ok(0), id, value, size))
    }
}
