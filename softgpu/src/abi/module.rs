//! Modules.

use super::edge::put_bytes;
use super::{In, Out, Res, Text, abi};
use crate::config;
use crate::gpu::{code, context, module};
use cuda_api::sys::{CUdeviceptr, CUfunction, CUjit_option, CUmodule, CUmoduleLoadingMode, CUresult};
use std::ffi::{c_uint, c_void};

abi! {
    call fn cuModuleLoad(out: Out<CUmodule> as *mut CUmodule, file: Text as *const std::ffi::c_char) {
        out.check()?;
        load(out, code::from_file(file.get()?)?, |_| {})
    }

    call fn cuModuleLoadData(out: Out<CUmodule> as *mut CUmodule, image: *const c_void) {
        out.check()?;
        load(out, code::for_module(image)?, |_| {})
    }

    call fn cuModuleLoadFatBinary(out: Out<CUmodule> as *mut CUmodule, image: *const c_void) {
        out.check()?;
        load(out, code::for_module(image)?, |_| {})
    }

    call fn cuModuleLoadDataEx(
        out: Out<CUmodule> as *mut CUmodule, image: *const c_void, count: c_uint,
        options: In<c_uint> as *mut CUjit_option, values: Out<*mut c_void> as *mut *mut c_void,
    ) {
        out.check()?;
        let log = JitLog::find(count, options, values)?;
        load(out, code::for_module(image)?, |message| log.write(message))
    }

    call fn cuModuleUnload(module: CUmodule) {
        module::unload(module as usize)
    }

    call fn cuModuleGetLoadingMode(mode: Out<c_uint> as *mut CUmoduleLoadingMode) {
        mode.set(if config::get().eager { 1 } else { 2 })
    }

    call fn cuModuleGetFunction(
        out: Out<CUfunction> as *mut CUfunction, module: CUmodule, name: Text as *const std::ffi::c_char,
    ) {
        out.check()?;
        let (module, name) = (module::resolve(module as usize)?.0, name.get()?);
        if name.is_empty() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        out.set(module.function_named(name)?.handle as CUfunction)
    }

    call fn cuModuleGetGlobal_v2(
        address: Out<CUdeviceptr> as *mut CUdeviceptr, size: Out<usize> as *mut usize, module: CUmodule,
        name: Text as *const std::ffi::c_char,
    ) {
        let (at, len) = module::resolve(module as usize)?.0.variable(name.get()?)?;
        if address.is_null() && size.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        address.set_if_wanted(at);
        size.set_if_wanted(len as usize);
        Ok(())
    }

    call fn cuModuleGetFunctionCount(count: Out<c_uint> as *mut c_uint, module: CUmodule) {
        let (module, _) = module::resolve(module as usize)?;
        count.set(module::kernels(&module.program.image).len() as c_uint)
    }

    call fn cuModuleEnumerateFunctions(out: Out<CUfunction> as *mut CUfunction, room: c_uint, module: CUmodule) {
        let (module, _) = module::resolve(module as usize)?;
        let kernels = module::kernels(&module.program.image).into_iter().take(room as usize);
        out.fill(&kernels.map(|i| module.function(i).handle as CUfunction).collect::<Vec<_>>())
    }
}

fn load(out: Out<CUmodule>, text: String, log: impl FnOnce(&str)) -> Res {
    let live = context::current()?;
    let image = module::parse_with_log(&text, log)?;
    out.set(module::load(&live, image, None)?.handle as CUmodule)
}

/// The caller's buffer for error messages about its code, and where it reads their length.
pub(super) struct JitLog {
    buffer: *mut c_void,
    size: usize,
    length: Option<Out<*mut c_void>>,
}

impl JitLog {
    /// Reads the options; there are no messages yet.
    pub(super) fn find(count: c_uint, options: In<c_uint>, values: Out<*mut c_void>) -> Res<JitLog> {
        const ERROR_BUFFER: c_uint = 5;
        const ERROR_BUFFER_SIZE: c_uint = 6;
        const OPTIONS: c_uint = 35;
        let mut log = JitLog { buffer: std::ptr::null_mut(), size: 0, length: None };
        for index in 0..count as usize {
            match options.at(index)? {
                ERROR_BUFFER => log.buffer = values.at(index)?.get()?,
                ERROR_BUFFER_SIZE => {
                    let value = values.at(index)?;
                    // The value itself is the size.
                    (log.size, log.length) = (value.get()? as usize & 0xffff_ffff, Some(value));
                }
                // The others tune a compiler that is not here.
                option if option < OPTIONS => {}
                _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            }
        }
        log.write("");
        Ok(log)
    }

    pub(super) fn write(&self, message: &str) {
        if !self.buffer.is_null() && self.size > 0 {
            let mut bytes = message.as_bytes()[..message.len().min(self.size - 1)].to_vec();
            if let Some(length) = self.length {
                length.set_if_wanted(std::ptr::without_provenance_mut(bytes.len()));
            }
            bytes.push(0);
            // The buffer is not NULL, so this cannot fail.
            let _ = put_bytes(self.buffer, &bytes);
        }
    }
}
