//! Devices: all their properties are known when the job has started, so these calls need no round trip.

use crate::base::log::lock;
use crate::calls::memory::memory_info;
use crate::device_memory::peer::{can_map, could_map};
use crate::enter::CallContext;
use crate::gate;
use crate::job::attributes::attribute;
use crate::job::{self, Device};
use cuda_api::board::Constants;
use cuda_api::code::{self, Code};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::wire::Wire;
use cuda_api::{ops, pci, sys};
use cuda_model::notify;
use rcuda_forwarder::{Control, ControlReply};
use std::ffi::{c_char, c_int, c_uint};
use std::time::{Duration, Instant};

pub(crate) fn cuDeviceGet(cx: &mut CallContext, ordinal: c_int) -> Result<sys::CUdevice, Code> {
    Ok(cx.job.device(ordinal)?.index as sys::CUdevice)
}

pub(crate) fn cuDeviceGetCount(cx: &mut CallContext) -> Result<c_int, Code> {
    Ok(cx.job.devices.len() as c_int)
}

pub(crate) fn cuDeviceGetName(_cx: &mut CallContext, _len: c_int, device: &Device) -> Result<String, Code> {
    Ok(device.info.name.clone())
}

pub(crate) fn cuDeviceGetUuid(_cx: &mut CallContext, device: &Device) -> Result<sys::CUuuid, Code> {
    Ok(sys::CUuuid { bytes: device.info.uuid.map(|b| b as c_char) })
}

pub(crate) fn cuDeviceGetUuid_v2(cx: &mut CallContext, device: &Device) -> Result<sys::CUuuid, Code> {
    cuDeviceGetUuid(cx, device)
}

pub(crate) fn cuDeviceTotalMem_v2(_cx: &mut CallContext, device: &Device) -> Result<usize, Code> {
    Ok(device.info.total_bytes as usize)
}

pub(crate) fn cuDeviceGetAttribute(_cx: &mut CallContext, which: u32, device: &Device) -> Result<c_int, Code> {
    attribute(device, which).ok_or(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuDeviceGetProperties(_cx: &mut CallContext, device: &Device) -> Result<sys::CUdevprop, Code> {
    use sys::CUdevice_attribute_enum as A;
    let get = |which: A| attribute(device, which as u32).unwrap_or(0);
    Ok(sys::CUdevprop {
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
    })
}

pub(crate) fn cuDeviceGetPCIBusId(_cx: &mut CallContext, len: c_int, device: &Device) -> Result<String, Code> {
    let text = pci::text(device.info.pci);
    // The whole text, or nothing.
    if usize::try_from(len).is_ok_and(|len| len > text.len()) { Ok(text) } else { Err(code::ERROR_INVALID_VALUE) }
}

pub(crate) fn cuDeviceGetByPCIBusId(cx: &mut CallContext, id: String) -> Result<sys::CUdevice, Code> {
    let wanted = pci::parse(&id).ok_or(code::ERROR_INVALID_VALUE)?;
    let found = cx.job.devices.iter().find(|d| d.info.pci == wanted).ok_or(code::ERROR_INVALID_DEVICE)?;
    Ok(found.index as sys::CUdevice)
}

pub(crate) fn cuDeviceComputeCapability(_cx: &mut CallContext, device: &Device) -> Result<(c_int, c_int), Code> {
    let [major, minor] = device.info.capability;
    Ok((major, minor))
}

pub(crate) fn cuDeviceGetTexture1DLinearMaxWidth(
    cx: &mut CallContext,
    format: u32,
    channels: c_uint,
    dev: sys::CUdevice,
) -> Result<usize, Code> {
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
    Ok(((4 << 30) / (bytes * channels as usize)).min(ELEMENTS))
}

pub(crate) fn cuDeviceGetExecAffinitySupport(_cx: &mut CallContext, _kind: u32, _device: &Device) -> Result<c_int, Code> {
    Ok(0)
}

pub(crate) fn cuProfilerStart(cx: &mut CallContext) -> Result<(), Code> {
    cx.device().map(drop)
}

pub(crate) fn cuProfilerStop(cx: &mut CallContext) -> Result<(), Code> {
    cx.device().map(drop)
}

/// `cuGetErrorName` and `cuGetErrorString`: `second` chooses the description.
pub(crate) fn error_text(error: u32, to: OutPtr<*const c_char>, second: bool) -> Result<(), Code> {
    let known = code::describe(error as Code);
    let text = known.map_or(std::ptr::null(), |(name, text)| if second { text } else { name }.as_ptr().cast());
    to.write(text)?;
    known.map(drop).ok_or(code::ERROR_INVALID_VALUE)
}

pub(crate) fn cuDeviceGetHostAtomicCapabilities(
    cx: &mut CallContext,
    to: OutPtr<c_uint>,
    operations: InPtr<sys::CUatomicOperation>,
    count: c_uint,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    cx.job.device(dev)?;
    notify::atomics(to, operations, count)
}

pub(crate) fn cuDeviceGetP2PAtomicCapabilities(
    cx: &mut CallContext,
    to: OutPtr<c_uint>,
    operations: InPtr<sys::CUatomicOperation>,
    count: c_uint,
    from: sys::CUdevice,
    dev: sys::CUdevice,
) -> Result<(), Code> {
    if cx.job.device(from)?.index == cx.job.device(dev)?.index {
        return Err(code::ERROR_INVALID_DEVICE);
    }
    notify::atomics(to, operations, count)
}

pub(crate) fn cuDeviceRegisterAsyncNotification(
    cx: &mut CallContext,
    dev: sys::CUdevice,
    function: sys::CUasyncCallback,
    _data: u64,
) -> Result<u64, Code> {
    // The driver returns this for a device that does not exist, too.
    cx.job.device(dev).map_err(|_| code::ERROR_INVALID_VALUE)?;
    notify::register(dev, function.is_some())
}

pub(crate) fn cuDeviceUnregisterAsyncNotification(_cx: &mut CallContext, dev: sys::CUdevice, function: u64) -> Result<(), Code> {
    notify::unregister(dev, function)
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
        let cx = CallContext::inside_by(gate::enter_beside, job);
        if cx.pass.is_beside() {
            return None;
        }
        let answer = cx.ask(device, ops::id::BOARD, &[]).ok()?;
        // Another thread may have stored the same answer meanwhile.
        let _ = device.board.set(Constants::get(&mut &answer[..]).ok()?);
    }
    device.board.get()?.iter().find(|(number, _)| *number == which).map(|(_, value)| *value)
}

/// How long what a GPU measures counts as present: programs ask for one value after the other.
const PRESENT: Duration = Duration::from_millis(50);

/// What a GPU measures now; `None` if its place does not know, or there is none because the job is parked.
pub(crate) fn reading(ordinal: u32, which: u32) -> Option<u32> {
    let job = job::get().ok()?;
    let device = job.devices.get(ordinal as usize)?;
    let mut known = lock(&device.readings);
    if known.as_ref().is_none_or(|(at, _)| at.elapsed() >= PRESENT) {
        let cx = CallContext::inside_by(gate::enter_beside, job);
        if cx.pass.is_beside() {
            return None;
        }
        let place = cx.place(device).clone();
        // A move need not wait for NVML.
        drop(cx);
        let ControlReply::Readings(readings) = place.control(&Control::Readings).ok()? else { return None };
        *known = Some((Instant::now(), readings));
    }
    let (_, readings) = known.as_ref()?;
    readings.iter().find(|(number, _)| *number == which).map(|(_, value)| *value)
}

/// Free memory of a GPU, and a bit for each device whose memory it can access. Of a parked device what was known last.
pub(crate) fn changing(ordinal: u32) -> Result<(u64, u32), Code> {
    let job = job::get()?;
    let device = job.device(ordinal as c_int)?;
    let cx = CallContext::inside_by(gate::enter_beside, job);
    let others = job.devices.iter().filter(|other| other.index != device.index);
    if cx.pass.is_beside() {
        let free = device.memory().report.map_or(device.info.free_bytes, |report| report.free);
        return Ok((free, others.filter(|other| could_map(device, other)).map(|other| 1 << other.index).sum()));
    }
    let (free, _) = memory_info(&cx, device)?;
    Ok((free as u64, others.filter(|other| can_map(&cx, device, other)).map(|other| 1 << other.index).sum()))
}
