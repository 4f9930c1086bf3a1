//! Devices: all their properties are known when the job has started, so these calls need no round trip.

use crate::base::pointer::write_out;
use crate::enter::CallContext;
use crate::job;
use crate::job::attributes::attribute;
use cuda_api::board::Constants;
use cuda_api::code::{self, Code};
use cuda_api::wire::Wire;
use cuda_api::{ops, pci, sys};
use cuda_model::notify;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub(crate) fn cuDeviceGet(cx: &mut CallContext, device: *mut sys::CUdevice, ordinal: c_int) -> Result<(), Code> {
    let index = cx.job.device(ordinal)?.index;
    write_out(device, index as sys::CUdevice)
}

pub(crate) fn cuDeviceGetCount(cx: &mut CallContext, count: *mut c_int) -> Result<(), Code> {
    write_out(count, cx.job.devices.len() as c_int)
}

/// Writes a NUL-terminated string into a buffer of `len` bytes, cut to fit.
fn give_text(to: *mut c_char, len: c_int, text: &str) -> Result<(), Code> {
    let len = usize::try_from(len).ok().filter(|l| *l > 0).ok_or(code::ERROR_INVALID_VALUE)?;
    if to.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let n = text.len().min(len - 1);
    // SAFETY: the program guarantees that `len` > n bytes can be written.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, n);
        to.add(n).write(0);
    }
    Ok(())
}

pub(crate) fn cuDeviceGetName(cx: &mut CallContext, name: *mut c_char, len: c_int, dev: sys::CUdevice) -> Result<(), Code> {
    give_text(name, len, &cx.job.device(dev)?.info.name)
}

fn uuid(cx: &CallContext, uuid: *mut sys::CUuuid, dev: sys::CUdevice) -> Result<(), Code> {
    let bytes = cx.job.device(dev)?.info.uuid;
    write_out(uuid, sys::CUuuid { bytes: bytes.map(|b| b as c_char) })
}

pub(crate) fn cuDeviceGetUuid(cx: &mut CallContext, to: *mut sys::CUuuid, dev: sys::CUdevice) -> Result<(), Code> {
    uuid(cx, to, dev)
}

pub(crate) fn cuDeviceGetUuid_v2(cx: &mut CallContext, to: *mut sys::CUuuid, dev: sys::CUdevice) -> Result<(), Code> {
    uuid(cx, to, dev)
}

pub(crate) fn cuDeviceTotalMem_v2(cx: &mut CallContext, bytes: *mut usize, dev: sys::CUdevice) -> Result<(), Code> {
    write_out(bytes, cx.job.device(dev)?.info.total_bytes as usize)
}

pub(crate) fn cuDeviceGetAttribute(cx: &mut CallContext, pi: *mut c_int, attrib: u32, dev: sys::CUdevice) -> Result<(), Code> {
    let device = cx.job.device(dev)?;
    write_out(pi, attribute(device, attrib).ok_or(code::ERROR_INVALID_VALUE)?)
}

pub(crate) fn cuDeviceGetProperties(cx: &mut CallContext, prop: *mut sys::CUdevprop, dev: sys::CUdevice) -> Result<(), Code> {
    use sys::CUdevice_attribute_enum as A;
    let device = cx.job.device(dev)?;
    let get = |which: A| attribute(device, which as u32).unwrap_or(0);
    let properties = sys::CUdevprop {
        maxThreadsPerBlock: get(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        maxThreadsDim: [
            get(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
            get(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
            get(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
        ],
        maxGridSize: [
            get(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
            get(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
            get(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
        ],
        sharedMemPerBlock: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        totalConstantMemory: get(A::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
        SIMDWidth: get(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        memPitch: get(A::CU_DEVICE_ATTRIBUTE_MAX_PITCH),
        regsPerBlock: get(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        clockRate: get(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        textureAlign: get(A::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
    };
    write_out(prop, properties)
}

pub(crate) fn cuDeviceGetPCIBusId(cx: &mut CallContext, to: *mut c_char, len: c_int, dev: sys::CUdevice) -> Result<(), Code> {
    let text = pci::text(cx.job.device(dev)?.info.pci);
    // The whole text, or nothing.
    if usize::try_from(len).is_ok_and(|len| len > text.len()) {
        give_text(to, len, &text)
    } else {
        Err(code::ERROR_INVALID_VALUE)
    }
}

pub(crate) fn cuDeviceGetByPCIBusId(cx: &mut CallContext, dev: *mut sys::CUdevice, id: *const c_char) -> Result<(), Code> {
    if id.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    // SAFETY: the program's strings are NUL-terminated.
    let text = unsafe { CStr::from_ptr(id) }.to_string_lossy().into_owned();
    let wanted = pci::parse(&text).ok_or(code::ERROR_INVALID_VALUE)?;
    let found = cx.job.devices.iter().find(|d| d.info.pci == wanted).ok_or(code::ERROR_INVALID_DEVICE)?;
    write_out(dev, found.index as sys::CUdevice)
}

pub(crate) fn cuDeviceComputeCapability(
    cx: &mut CallContext,
    major: *mut c_int,
    minor: *mut c_int,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    let [a, b] = cx.job.device(dev)?.info.capability;
    write_out(major, a)?;
    write_out(minor, b)
}

pub(crate) fn cuDeviceGetTexture1DLinearMaxWidth(
    cx: &mut CallContext,
    width: *mut usize,
    format: u32,
    channels: c_uint,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    // What an H200 answers: 2^30 elements, and 4 GiB.
    const ELEMENTS: usize = 1 << 30;
    let bytes = match format {
        1 | 8 => 1,
        2 | 9 | 0x10 => 2,
        3 | 0xa | 0x20 => 4,
        _ => return Err(code::ERROR_INVALID_VALUE),
    };
    if !matches!(channels, 1 | 2 | 4) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    cx.job.device(dev)?;
    write_out(width, ((4 << 30) / (bytes * channels as usize)).min(ELEMENTS))
}

pub(crate) fn cuDeviceGetExecAffinitySupport(
    cx: &mut CallContext,
    pi: *mut c_int,
    _kind: u32,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    cx.job.device(dev)?;
    write_out(pi, 0)
}

pub(crate) fn cuProfilerStart(cx: &mut CallContext) -> Result<(), Code> {
    cx.device().map(drop)
}

pub(crate) fn cuProfilerStop(cx: &mut CallContext) -> Result<(), Code> {
    cx.device().map(drop)
}

/// `cuGetErrorName` and `cuGetErrorString`: `second` chooses the description.
pub(crate) fn error_text(error: u32, to: *mut *const c_char, second: bool) -> Result<(), Code> {
    let known = code::describe(error as Code);
    let text = known.map_or(std::ptr::null(), |(name, text)| if second { text } else { name }.as_ptr().cast());
    write_out(to, text)?;
    known.map(drop).ok_or(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuDeviceGetHostAtomicCapabilities(
    cx: &mut CallContext,
    to: *mut c_uint,
    operations: *const sys::CUatomicOperation,
    count: c_uint,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    cx.job.device(dev)?;
    // SAFETY: the program's own arguments.
    unsafe { notify::atomics(to, operations, count) }
}

pub(crate) fn cuDeviceGetP2PAtomicCapabilities(
    cx: &mut CallContext,
    to: *mut c_uint,
    operations: *const sys::CUatomicOperation,
    count: c_uint,
    from: sys::CUdevice,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    if cx.job.device(from)?.index == cx.job.device(dev)?.index {
        return Err(code::ERROR_INVALID_DEVICE);
    }
    // SAFETY: the program's own arguments.
    unsafe { notify::atomics(to, operations, count) }
}

pub(crate) fn cuDeviceRegisterAsyncNotification(
    cx: &mut CallContext,
    dev: sys::CUdevice,
    function: sys::CUasyncCallback,
    _data: *mut c_void,
    to: *mut sys::CUasyncCallbackHandle,
) -> Result<(), Code> {
    // The driver returns this for a device that does not exist, too.
    cx.job.device(dev).map_err(|_| code::ERROR_INVALID_VALUE)?;
    if to.is_null() {
        return Err(code::ERROR_INVALID_VALUE);
    }
    write_out(to, notify::register(dev, function.is_some())? as sys::CUasyncCallbackHandle)
}

pub(crate) fn cuDeviceUnregisterAsyncNotification(
    _cx: &mut CallContext,
    dev: sys::CUdevice,
    function: sys::CUasyncCallbackHandle,
) -> Result<(), Code> {
    notify::unregister(dev, function as u64)
}

pub(crate) fn cuFlushGPUDirectRDMAWrites(cx: &mut CallContext, target: u32, scope: u32) -> Result<(), Code> {
    cx.device()?;
    notify::flush(target, scope)
}

/// A constant of a GPU's board, queried once from its place.
pub(crate) fn board_constant(ordinal: u32, which: u32) -> Option<u32> {
    let job = job::get().ok()?;
    let device = job.devices.get(ordinal as usize)?;
    if device.board.get().is_none() {
        let answer = CallContext::inside(job).ask(device, ops::id::BOARD, &[]).ok()?;
        // Another thread may have stored the same answer meanwhile.
        let _ = device.board.set(Constants::get(&mut &answer[..]).ok()?);
    }
    device.board.get()?.iter().find(|(number, _)| *number == which).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests;
