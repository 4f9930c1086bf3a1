//! Initialization, versions, names of errors.

use super::{Out, Res, abi};
use crate::config;
use crate::gpu::process;
use cuda_api::code;
use cuda_api::sys::CUresult;
use std::ffi::{c_char, c_int, c_uint};

abi! {
    early fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        process::initialise()
    }

    early fn cuDriverGetVersion(version: Out<c_int> as *mut c_int) {
        version.set(config::get().driver_version)
    }

    early fn cuGetErrorName(error: c_int as CUresult, name: Out<*const c_char> as *mut *const c_char) {
        describe(error, name, |(name, _)| name)
    }

    early fn cuGetErrorString(error: c_int as CUresult, text: Out<*const c_char> as *mut *const c_char) {
        describe(error, text, |(_, text)| text)
    }
}

/// Text of an error; unknown codes give NULL and `INVALID_VALUE`.
fn describe(error: c_int, out: Out<*const c_char>, which: impl Fn((&'static str, &'static str)) -> &'static str) -> Res {
    match code::describe(error) {
        // The texts end in NUL.
        Some(texts) => out.set(which(texts).as_ptr().cast()),
        None => {
            out.set(std::ptr::null())?;
            Err(CUresult::CUDA_ERROR_INVALID_VALUE)
        }
    }
}
