//! Devices, and their primary contexts.

use super::edge::put_text;
use super::{Out, Text, abi};
use crate::config;
use crate::gpu::{context, device, teardown};
use cuda_api::pci;
use cuda_api::sys::{CUcontext, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUresult, CUuuid};
use std::ffi::{c_char, c_int, c_uint};

abi! {
    call fn cuDeviceGet(out: Out<CUdevice> as *mut CUdevice, ordinal: c_int) {
        out.set(device::get(ordinal)?.ordinal)
    }

    call fn cuDeviceGetCount(count: Out<c_int> as *mut c_int) {
        count.set(device::all().len() as c_int)
    }

    call fn cuDeviceGetName(name: Out<c_char> as *mut c_char, len: c_int, dev: CUdevice) {
        device::get(dev)?;
        put_text(name, len, "softgpu")
    }

    call fn cuDeviceGetUuid [cuDeviceGetUuid_v2] (uuid: Out<[u8; 16]> as *mut CUuuid, dev: CUdevice) {
        uuid.set(device::get(dev)?.uuid)
    }

    call fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]> as *mut CUuuid, dev: CUdevice) {
        uuid.set(device::get(dev)?.uuid)
    }

    call fn cuDeviceTotalMem_v2(bytes: Out<usize> as *mut usize, dev: CUdevice) {
        bytes.set(device::get(dev)?.total as usize)
    }

    call fn cuDeviceGetAttribute(
        value: Out<c_int> as *mut c_int, attribute: c_uint as CUdevice_attribute, dev: CUdevice,
    ) {
        value.set(device::get(dev)?.attribute(attribute)?)
    }

    call fn cuDeviceComputeCapability(major: Out<c_int> as *mut c_int, minor: Out<c_int> as *mut c_int, dev: CUdevice) {
        device::get(dev)?;
        let (a, b) = config::get().compute;
        major.set(a as c_int)?;
        minor.set(b as c_int)
    }

    call fn cuDeviceGetPCIBusId(name: Out<c_char> as *mut c_char, len: c_int, dev: CUdevice) {
        let text = pci::text(device::get(dev)?.pci());
        // All of it, or nothing.
        if usize::try_from(len).is_ok_and(|len| len > text.len()) { put_text(name, len, &text) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) }
    }

    call fn cuDeviceGetByPCIBusId(out: Out<CUdevice> as *mut CUdevice, name: Text as *const c_char) {
        let wanted = pci::parse(name.get()?).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let found = device::all().iter().find(|d| d.pci() == wanted);
        out.set(found.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?.ordinal)
    }

    call fn cuDeviceCanAccessPeer(can: Out<c_int> as *mut c_int, dev: CUdevice, peer: CUdevice) {
        device::get(dev)?;
        device::get(peer)?;
        can.set(c_int::from(dev != peer))
    }

    call fn cuDeviceGetP2PAttribute(
        value: Out<c_int> as *mut c_int, attribute: c_uint as CUdevice_P2PAttribute, from: CUdevice, to: CUdevice,
    ) {
        device::get(from)?;
        device::get(to)?;
        if from == to {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        value.set(match attribute {
            // Rank; native atomics and arrays: no.
            1 | 3..=5 => 0,
            2 => 1,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        })
    }

    call fn cuDevicePrimaryCtxRetain(out: Out<CUcontext> as *mut CUcontext, dev: CUdevice) {
        out.check()?;
        let context = context::primary(device::get(dev)?);
        context.retain();
        out.set(context.handle as CUcontext)
    }

    call fn cuDevicePrimaryCtxRelease_v2 / cuDevicePrimaryCtxRelease(dev: CUdevice) {
        teardown::release(context::primary(device::get(dev)?))
    }

    call fn cuDevicePrimaryCtxReset_v2 / cuDevicePrimaryCtxReset(dev: CUdevice) {
        teardown::reset(context::primary(device::get(dev)?));
        Ok(())
    }

    call fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: c_uint) {
        context::primary(device::get(dev)?).set_flags(flags)
    }

    call fn cuDevicePrimaryCtxSetFlags [cuDevicePrimaryCtxSetFlags_v2] (dev: CUdevice, flags: c_uint) {
        let primary = context::primary(device::get(dev)?);
        // The first version of this function refuses an active context.
        if primary.flags().1 {
            return Err(CUresult::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
        }
        primary.set_flags(flags)
    }

    call fn cuDevicePrimaryCtxGetState(
        dev: CUdevice, flags: Out<c_uint> as *mut c_uint, active: Out<c_int> as *mut c_int,
    ) {
        let (set, is_active) = context::primary(device::get(dev)?).flags();
        flags.set(set)?;
        active.set(c_int::from(is_active))
    }
}
