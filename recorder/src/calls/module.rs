//! Modules and libraries: an image is sent once for each content hash; everything else consists of rows.

use crate::base::config;
use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::calls::jit_options::JitOptions;
use crate::device_memory::variables;
use crate::enter::{CallContext, guard};
use crate::host_memory::managed_variables;
use crate::job::Device;
use crate::ledger::Ledger;
use crate::ledger::call::Load;
use crate::order::concerned::WaitingCall;
use crate::place::Waiting;
use cuda_api::arg::Capture;
use cuda_api::calls::module::{cuLibraryGetKernel, cuLibraryGetModule, cuModuleGetFunction, cuModuleUnload};
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, kind};
use cuda_api::ops::{self, ImageLoad, ImageLoaded, ImagePut};
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys;
use cuda_api::wire::Wire;
use cuda_image::{Image, Known};
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// `CU_MODULE_EAGER_LOADING`, `CU_MODULE_LAZY_LOADING`
const EAGER: u32 = 1;
const LAZY: u32 = 2;

fn load(
    cx: &CallContext,
    device: &'static Device,
    handle: u64,
    library: bool,
    image: &Image,
    options: &JitOptions,
) -> Result<(), Code> {
    device.check()?;
    let waits = WaitingCall::begin(device);
    let loaded = load_at(cx, device, &mut lock(&device.ledger), handle, library, image, options);
    // Whoever reads the text may need a copy.
    drop(waits);
    cx.show_text();
    loaded
}

/// Sends an image, unless the device has it, loads it, and reads ahead what programs ask next, in one round trip.
fn load_at(
    cx: &CallContext,
    device: &'static Device,
    ledger: &mut Ledger,
    handle: u64,
    library: bool,
    image: &Image,
    options: &JitOptions,
) -> Result<(), Code> {
    let place = cx.place(device);
    let begun = |waiting: Result<Waiting, Code>| -> Result<Waiting, Code> {
        let waiting = device.record_error(waiting)?;
        // A load gives the program's streams no work.
        device.still_quiet(waiting.span());
        Ok(waiting)
    };
    let hash = image.hash();
    let known = ledger.image(&hash);
    let head = encode(&ImagePut { hash, kind: image.kind as u8 });
    let putting = if known.is_none() { Some(begun(place.begin_put_image(&head, image))?) } else { None };
    let describe = place.is_over_network();
    let body = encode(&ImageLoad { handle, hash, library, options: options.plain.clone(), describe });
    let loading = begun(place.begin(ops::id::IMAGE_LOAD, &[&body]))?;
    // The last answer is waited for; the other comes before it.
    let loaded = loading.finish();
    let name = match (known, putting.map(Waiting::finish_along)) {
        (Some(name), _) => name,
        (None, put_answer) => {
            // If the image is refused, so is the load.
            put_answer.map(|answer| cx.result(device, answer)).transpose()?;
            ledger.put_image(hash, &head, &image.bytes)?
        }
    };
    if loaded.0 != code::SUCCESS {
        options.write(&[], &loaded.1);
    }
    let answer = cx.result(device, loaded)?;
    let loaded = ImageLoaded::get(&mut &answer[..]).map_err(|_| code::ERROR_UNKNOWN)?;
    ledger.load_succeeded(&Load { handle, hash, image: name, body: &body }, &loaded)?;
    if describe {
        // What it does not say is asked for later.
        variables::learn(cx, device, handle, &loaded.facts);
    }
    Ok(())
}

/// Loads code on devices. If the first device refuses it because it has managed variables, it is loaded with those in the job's memory:
/// other code is not parsed here.
fn load_on(
    cx: &CallContext,
    devices: &[&'static Device],
    handle: u64,
    library: bool,
    image: &Image,
    options: &JitOptions,
) -> Result<(), Code> {
    // A load that succeeds has no messages.
    options.write(&[], &[]);
    let mut placed: Option<Image> = None;
    for device in devices {
        let mut loaded = load(cx, device, handle, library, placed.as_ref().unwrap_or(image), options);
        if loaded == Err(code::ERROR_NOT_SUPPORTED) && placed.is_none() {
            let changed = managed_variables::place(cx, device, handle, image)?;
            loaded = load(cx, device, handle, library, &changed, options);
            placed = Some(changed);
        }
        loaded.inspect_err(|_| managed_variables::ended(cx, handle))?;
    }
    Ok(())
}

/// A copy of the image to which the program points: it may free it when the call returns (docs/driver-facts.md 8.6).
#[expect(unsafe_code, reason = "only the headers of an image tell its size")]
fn measure(code: InPtr<u8>) -> Result<Image, Code> {
    let code = code.not_null()?.as_ptr();
    static KNOWN: Mutex<Known> = Mutex::new(Known::new());
    let image = match KNOWN.try_lock() {
        // SAFETY: the program guarantees that a module image starts here; its size is read from its own headers.
        Ok(mut known) => unsafe { known.measure(code) },
        // Another thread loads at the same time, or did when this process was forked. SAFETY: as above.
        Err(_) => unsafe { cuda_image::measure(code) },
    };
    image.map_err(|e| {
        tracing::debug!(target: "code", "module image refused: {e}");
        code::ERROR_INVALID_IMAGE
    })
}

/// A copy of an image from which the driver loads modules.
fn measure_module(code: InPtr<c_void>) -> Result<Image, Code> {
    let image = measure(code.typed())?;
    if image.is_wrapped() { Err(code::ERROR_INVALID_IMAGE) } else { Ok(image) }
}

fn load_module(cx: &mut CallContext, to: OutPtr<sys::CUmodule>, image: &Image, options: &JitOptions) -> Result<(), Code> {
    let to = to.not_null()?;
    let device = cx.device()?;
    let handle = cx.new_handle(Kind::Module)?;
    load_on(cx, &[device], handle, false, image, options)?;
    to.write(handle as sys::CUmodule)
}

fn read_file(path: InPtr<c_char>) -> Result<Image, Code> {
    let path = path.text()?;
    if path.is_empty() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let mut bytes = std::fs::read(&path).map_err(|_| code::ERROR_FILE_NOT_FOUND)?;
    // PTX text must end in NUL; no other image is affected by an additional byte.
    bytes.push(0);
    measure(InPtr::of_list(&bytes))
}

pub(crate) fn cuModuleLoad(cx: &mut CallContext, to: OutPtr<sys::CUmodule>, path: InPtr<c_char>) -> Result<(), Code> {
    let image = read_file(path)?;
    load_module(cx, to, &image, &JitOptions::NONE)
}

pub(crate) fn cuModuleLoadData(cx: &mut CallContext, to: OutPtr<sys::CUmodule>, image: InPtr<c_void>) -> Result<(), Code> {
    cx.device()?;
    let image = measure_module(image)?;
    load_module(cx, to, &image, &JitOptions::NONE)
}

pub(crate) fn cuModuleLoadDataEx(
    cx: &mut CallContext,
    to: OutPtr<sys::CUmodule>,
    image: InPtr<c_void>,
    count: c_uint,
    keys: InPtr<sys::CUjit_option>,
    values: InOutPtr<*mut c_void>,
) -> Result<(), Code> {
    cx.device()?;
    let options = JitOptions::read(count, keys, values)?;
    let image = measure_module(image)?;
    load_module(cx, to, &image, &options)
}

pub(crate) fn cuModuleLoadFatBinary(cx: &mut CallContext, to: OutPtr<sys::CUmodule>, image: InPtr<c_void>) -> Result<(), Code> {
    cuModuleLoadData(cx, to, image)
}

/// The private function with which CUDA 11's runtime loads its modules.
pub(crate) fn load_for_runtime(image: InPtr<c_void>) -> Result<usize, i32> {
    let mut module: sys::CUmodule = std::ptr::null_mut();
    match guard("CUDART_INTERFACE::get_module", false, |cx| {
        cx.device()?;
        load_module(cx, OutPtr::of(&mut module), &measure(image.typed())?, &JitOptions::NONE)
    }) {
        code::SUCCESS => Ok(module as usize),
        rc => Err(rc),
    }
}

pub(crate) fn cuModuleGetLoadingMode(_cx: &mut CallContext) -> Result<u32, Code> {
    Ok(if config::get().is_ok_and(|c| c.eager_loading) { EAGER } else { LAZY })
}

fn load_library(cx: &mut CallContext, to: OutPtr<sys::CUlibrary>, image: &Image, options: &JitOptions) -> Result<(), Code> {
    let to = to.not_null()?;
    let handle = cx.new_handle(Kind::Library)?;
    let devices: Vec<&'static Device> = cx.job.devices.iter().collect();
    load_on(cx, &devices, handle, true, image, options)?;
    to.write(handle as sys::CUlibrary)
}

pub(crate) fn cuLibraryLoadData(
    cx: &mut CallContext,
    to: OutPtr<sys::CUlibrary>,
    code: InPtr<c_void>,
    jit_keys: InPtr<sys::CUjit_option>,
    jit_values: InOutPtr<*mut c_void>,
    jit_count: c_uint,
    _keys: *mut sys::CUlibraryOption,
    _values: *mut *mut c_void,
    _count: c_uint,
) -> Result<(), Code> {
    // Library options tell what the driver may assume about the program's copy of the image; every place has its own copy.
    let options = JitOptions::read(jit_count, jit_keys, jit_values)?;
    let image = measure(code.typed())?;
    load_library(cx, to, &image, &options)
}

/// No GPU supports calls of host functions, as the attribute reports.
pub(crate) fn cuLibraryGetUnifiedFunction(_cx: &mut CallContext, _library: u64, _name: String) -> Result<u64, Code> {
    Err(code::ERROR_NOT_FOUND)
}

pub(crate) fn cuLibraryLoadFromFile(
    cx: &mut CallContext,
    to: OutPtr<sys::CUlibrary>,
    path: InPtr<c_char>,
    jit_keys: InPtr<sys::CUjit_option>,
    jit_values: InOutPtr<*mut c_void>,
    jit_count: c_uint,
    _keys: *mut sys::CUlibraryOption,
    _values: *mut *mut c_void,
    _count: c_uint,
) -> Result<(), Code> {
    let image = read_file(path)?;
    let options = JitOptions::read(jit_count, jit_keys, jit_values)?;
    load_library(cx, to, &image, &options)
}

/// Unloads the modules of a device; libraries belong to no context and stay loaded.
pub(crate) fn unload_of(cx: &mut CallContext, device: &'static Device, whose: Option<u64>) -> Result<(), Code> {
    let all = cx.job.tables.modules.all(device.index).into_iter();
    let all: Vec<u64> = all.filter(|(_, m)| m.ends_with(whose)).map(|(h, _)| h).collect();
    for h in all {
        // The module of a library is unloaded with the library.
        if lock(&device.ledger).is_child(h) {
            continue;
        }
        cx.on(device);
        cx.carry::<cuModuleUnload::Fn>(&mut cuModuleUnload::Sent { hmod: h })?;
    }
    Ok(())
}

fn parent(cx: &CallContext, handle: u64) -> Result<u64, Code> {
    Ok(cx.job.tables.function(handle)?.parent.load(Ordering::Relaxed))
}

pub(crate) fn cuKernelGetLibrary(cx: &mut CallContext, kernel: u64) -> Result<u64, Code> {
    parent(cx, kernel)
}

pub(crate) fn cuFuncGetModule(cx: &mut CallContext, function: u64) -> Result<u64, Code> {
    let function = cx.use_handle(Kind::Function, Kind::Function, function)?;
    let lender = parent(cx, function)?;
    if kind(lender) != Some(Kind::Kernel) {
        return Ok(lender);
    }
    // The module of the kernel's library in the function's context.
    let mut sent = cuLibraryGetModule::Sent { pMod: cx.new_handle(Kind::Module)?, library: parent(cx, lender)? };
    cx.carry::<cuLibraryGetModule::Fn>(&mut sent)?;
    cx.keep(sent.pMod);
    Ok(sent.pMod)
}

fn name(cx: &mut CallContext, handle: u64) -> Result<&'static CStr, Code> {
    crate::calls::launch::properties(cx, handle)?.name()
}

pub(crate) fn cuKernelGetName(cx: &mut CallContext, kernel: u64) -> Result<&'static CStr, Code> {
    name(cx, kernel)
}

pub(crate) fn cuFuncGetName(cx: &mut CallContext, function: u64) -> Result<&'static CStr, Code> {
    name(cx, function)
}

/// Names of the kernels of a module or library, in the driver's order.
fn kernel_names(cx: &CallContext, handle: u64) -> Result<Vec<Vec<u8>>, Code> {
    let bytes = cx.ask(cx.device()?, ops::id::KERNEL_NAMES, &[&handle.to_le_bytes()])?;
    let names = Vec::<String>::get(&mut &bytes[..]).map_err(|_| code::ERROR_UNKNOWN)?;
    Ok(names.into_iter().map(String::into_bytes).collect())
}

/// Looks up a function of a module by its name.
fn function(cx: &mut CallContext, module: u64, name: Vec<u8>) -> Result<u64, Code> {
    let mut sent = cuModuleGetFunction::Sent { hfunc: cx.new_handle(Kind::Function)?, hmod: module, name };
    cx.carry::<cuModuleGetFunction::Fn>(&mut sent)?;
    cx.keep(sent.hfunc);
    Ok(sent.hfunc)
}

pub(crate) fn cuModuleEnumerateFunctions(
    cx: &mut CallContext,
    to: OutPtr<sys::CUfunction>,
    room: c_uint,
    module: sys::CUmodule,
) -> Result<(), Code> {
    let to = to.not_null()?;
    let module = cx.use_handle(Kind::Module, Kind::Module, module as u64)?;
    for (i, name) in kernel_names(cx, module)?.into_iter().take(room as usize).enumerate() {
        let found = function(cx, module, name)?;
        to.element(i).write(found as sys::CUfunction)?;
    }
    Ok(())
}

pub(crate) fn cuLibraryEnumerateKernels(
    cx: &mut CallContext,
    to: OutPtr<sys::CUkernel>,
    room: c_uint,
    library: sys::CUlibrary,
) -> Result<(), Code> {
    let to = to.not_null()?;
    let library = cx.use_handle(Kind::Library, Kind::Library, library as u64)?;
    for (i, name) in kernel_names(cx, library)?.into_iter().take(room as usize).enumerate() {
        let mut sent = cuLibraryGetKernel::Sent { pKernel: cx.new_handle(Kind::Kernel)?, library, name };
        cx.carry::<cuLibraryGetKernel::Fn>(&mut sent)?;
        cx.keep(sent.pKernel);
        to.element(i).write(sent.pKernel as sys::CUkernel)?;
    }
    Ok(())
}

/// Functions and names of a module, for libraries that query them through a private table.
pub(crate) fn functions(module: usize) -> Result<Vec<(usize, &'static CStr)>, Code> {
    let mut found = Vec::new();
    let body = |cx: &mut CallContext| {
        let module = cx.use_handle(Kind::Module, Kind::Module, module as u64)?;
        for name in kernel_names(cx, module)? {
            let function = function(cx, module, name)?;
            found.push((function as usize, crate::calls::launch::properties(cx, function)?.name()?));
        }
        Ok(())
    };
    match guard("functions of a module", false, body) {
        code::SUCCESS => Ok(found),
        rc => Err(rc),
    }
}
