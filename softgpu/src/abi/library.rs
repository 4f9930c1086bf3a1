//! Libraries and their kernels.

use super::module::JitLog;
use super::{In, Out, Res, Text, abi};
use crate::gpu::attributes::Attributes;
use crate::gpu::module::{self, Kernel, Library};
use crate::gpu::{code, context, device};
use cuda_api::sys::{
    CUdevice, CUdeviceptr, CUfunc_cache, CUfunction, CUfunction_attribute, CUjit_option, CUkernel, CUlibrary, CUlibraryOption,
    CUmodule, CUresult,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

abi! {
    call fn cuLibraryLoadData(
        out: Out<CUlibrary> as *mut CUlibrary, image: *const c_void, jit: In<c_uint> as *mut CUjit_option,
        jit_values: Out<*mut c_void> as *mut *mut c_void, jit_count: c_uint,
        options: In<c_uint> as *mut CUlibraryOption, _values: *mut *mut c_void, count: c_uint,
    ) {
        out.check()?;
        check_options(options, count)?;
        load(out, code::from_pointer(image)?, &JitLog::find(jit_count, jit, jit_values)?)
    }

    call fn cuLibraryLoadFromFile(
        out: Out<CUlibrary> as *mut CUlibrary, file: Text as *const c_char, jit: In<c_uint> as *mut CUjit_option,
        jit_values: Out<*mut c_void> as *mut *mut c_void, jit_count: c_uint,
        options: In<c_uint> as *mut CUlibraryOption, _values: *mut *mut c_void, count: c_uint,
    ) {
        out.check()?;
        check_options(options, count)?;
        load(out, code::from_file(file.get()?)?, &JitLog::find(jit_count, jit, jit_values)?)
    }

    call fn cuLibraryUnload(library: CUlibrary) {
        module::unload_library(library as usize)
    }

    call fn cuLibraryGetKernel(out: Out<CUkernel> as *mut CUkernel, library: CUlibrary, name: Text as *const c_char) {
        out.check()?;
        out.set(module::resolve_library(library as usize)?.kernel_named(name.get()?)?.handle as CUkernel)
    }

    call fn cuLibraryGetKernelCount(count: Out<c_uint> as *mut c_uint, library: CUlibrary) {
        count.set(module::resolve_library(library as usize)?.kernels().len() as c_uint)
    }

    call fn cuLibraryEnumerateKernels(out: Out<CUkernel> as *mut CUkernel, room: c_uint, library: CUlibrary) {
        let library = module::resolve_library(library as usize)?;
        let kernels = library.kernels().into_iter().take(room as usize);
        out.fill(&kernels.map(|i| library.kernel(i).handle as CUkernel).collect::<Vec<_>>())
    }

    call fn cuLibraryGetUnifiedFunction(out: Out<usize> as *mut *mut c_void, library: CUlibrary, name: Text as *const c_char) {
        out.check()?;
        module::resolve_library(library as usize)?;
        name.get()?;
        // The attribute says that there are none.
        Err(CUresult::CUDA_ERROR_NOT_FOUND)
    }

    call fn cuLibraryGetModule(out: Out<CUmodule> as *mut CUmodule, library: CUlibrary) {
        out.check()?;
        let library = module::resolve_library(library as usize)?;
        out.set(library.module(&context::current()?)?.handle as CUmodule)
    }

    call fn cuLibraryGetGlobal(
        address: Out<CUdeviceptr> as *mut CUdeviceptr, size: Out<usize> as *mut usize, library: CUlibrary,
        name: Text as *const c_char,
    ) {
        let library = module::resolve_library(library as usize)?;
        let (at, len) = library.module(&context::current()?)?.variable(name.get()?)?;
        if address.is_null() && size.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        address.set_if_wanted(at);
        size.set_if_wanted(len as usize);
        Ok(())
    }

    call fn cuLibraryGetManaged(
        address: Out<CUdeviceptr> as *mut CUdeviceptr, size: Out<usize> as *mut usize, library: CUlibrary,
        name: Text as *const c_char,
    ) {
        let library = module::resolve_library(library as usize)?;
        let name = name.get()?;
        if address.is_null() && size.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // No context is needed: programs ask for them before there is one.
        let (at, len) = library.managed(name)?;
        address.set_if_wanted(at);
        size.set_if_wanted(len as usize);
        Ok(())
    }

    call fn cuKernelGetFunction(out: Out<CUfunction> as *mut CUfunction, kernel: CUkernel) {
        out.check()?;
        let (kernel, library) = module::resolve_kernel(kernel as usize)?;
        out.set(library.module(&context::current()?)?.function(kernel.index).handle as CUfunction)
    }

    call fn cuKernelGetLibrary(out: Out<CUlibrary> as *mut CUlibrary, kernel: CUkernel) {
        out.set(module::resolve_kernel(kernel as usize)?.1.handle as CUlibrary)
    }

    call fn cuKernelGetName(out: Out<*const c_char> as *mut *const c_char, kernel: CUkernel) {
        out.set(module::resolve_kernel(kernel as usize)?.0.name.as_ptr())
    }

    call fn cuKernelGetParamInfo(
        kernel: CUkernel, index: usize, offset: Out<usize> as *mut usize, size: Out<usize> as *mut usize,
    ) {
        let (kernel, library) = module::resolve_kernel(kernel as usize)?;
        let param = library.info(kernel.index).params.get(index).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        offset.set(param.offset as usize)?;
        size.set_if_wanted(param.size as usize);
        Ok(())
    }

    call fn cuKernelGetAttribute(
        value: Out<c_int> as *mut c_int, attribute: c_uint as CUfunction_attribute, kernel: CUkernel, dev: CUdevice,
    ) {
        value.check()?;
        let (library, index, attributes) = on_device(kernel, dev)?;
        value.set(super::function::attribute(library.info(index), &attributes, attribute)?)
    }

    call fn cuKernelSetAttribute(
        attribute: c_uint as CUfunction_attribute, value: c_int, kernel: CUkernel, dev: CUdevice,
    ) {
        let (library, index, attributes) = on_device(kernel, dev)?;
        super::function::set_attribute(library.info(index), &attributes, attribute, value)
    }

    call fn cuKernelSetCacheConfig(kernel: CUkernel, config: c_uint as CUfunc_cache, dev: CUdevice) {
        on_device(kernel, dev)?;
        super::function::check_cache_config(config)
    }
}

fn on_device(kernel: CUkernel, dev: CUdevice) -> Res<(Arc<Library>, usize, Arc<Attributes>)> {
    let (kernel, library): (Arc<Kernel>, Arc<Library>) = module::resolve_kernel(kernel as usize)?;
    let device = device::get(dev)?.ordinal as usize;
    let attributes = kernel.attributes(&library, device);
    Ok((library, kernel.index, attributes))
}

fn check_options(options: In<c_uint>, count: c_uint) -> Res {
    for index in 0..count as usize {
        // Table of universal functions (not used by device code here), and "the image stays": a copy is made anyway.
        if options.at(index)? > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
    }
    Ok(())
}

fn load(out: Out<CUlibrary>, text: String, log: &JitLog) -> Res {
    let image = module::parse_with_log(&text, |message| log.write(message))?;
    out.set(module::load_library(image)?.handle as CUlibrary)
}
