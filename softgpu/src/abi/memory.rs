//! Device and page-locked memory.

use super::{Out, Res, abi};
use crate::gpu::{allocation, capture, context, host, memory, wait};
use cuda_api::sys::{CUdeviceptr, CUresult};
use std::ffi::{c_uint, c_void};

/// Alignment of the rows of `cuMemAllocPitch`.
const PITCH: usize = 512;

abi! {
    call fn cuMemAlloc_v2(out: Out<CUdeviceptr> as *mut CUdeviceptr, size: usize) {
        out.check()?;
        capture::forbid_unsafe()?;
        out.set(allocation::allocate(&*context::current()?, size as u64)?)
    }

    call fn cuMemAllocPitch_v2(
        out: Out<CUdeviceptr> as *mut CUdeviceptr, pitch: Out<usize> as *mut usize, width: usize, height: usize,
        element: c_uint,
    ) {
        out.check()?;
        pitch.check()?;
        let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
        if !matches!(element, 4 | 8 | 16) || width == 0 {
            return Err(bad);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(bad)?;
        let size = row.checked_mul(height).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        capture::forbid_unsafe()?;
        out.set(allocation::allocate(&*context::current()?, size as u64)?)?;
        pitch.set(row)
    }

    call fn cuMemFree_v2(address: CUdeviceptr) {
        if address == 0 {
            return Ok(());
        }
        let live = context::current()?;
        capture::forbid_unsafe()?;
        if super::graph::free_of_graph(address)? {
            return wait::synchronise(&live);
        }
        if super::external::free(&live, address)? {
            return live.check();
        }
        allocation::free(&live, address)
    }

    call fn cuMemGetInfo_v2(free: Out<usize> as *mut usize, total: Out<usize> as *mut usize) {
        let live = context::current()?;
        free.set_if_wanted(live.device.free() as usize);
        total.set_if_wanted(live.device.total as usize);
        Ok(())
    }

    call fn cuMemGetAddressRange_v2(
        base: Out<CUdeviceptr> as *mut CUdeviceptr, size: Out<usize> as *mut usize, address: CUdeviceptr,
    ) {
        context::current()?;
        let (start, len) = memory::read().find(address).map(|(s, a)| (s, a.size)).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        base.set_if_wanted(start);
        size.set_if_wanted(len as usize);
        Ok(())
    }

    call fn cuMemAllocHost_v2(out: Out<*mut c_void> as *mut *mut c_void, size: usize) {
        allocate_host(out, size, 0)
    }

    call fn cuMemHostAlloc(out: Out<*mut c_void> as *mut *mut c_void, size: usize, flags: c_uint) {
        allocate_host(out, size, flags)
    }

    call fn cuMemFreeHost(address: *mut c_void) {
        if address.is_null() {
            return Ok(());
        }
        host::check_pinned(address as u64)?;
        capture::forbid_unsafe()?;
        host::free(&*context::current()?, address as u64)
    }

    call fn cuMemHostRegister_v2 / cuMemHostRegister(address: *mut c_void, size: usize, flags: c_uint) {
        host::register(&*context::current()?, address as u64, size as u64, flags)
    }

    call fn cuMemHostUnregister(address: *mut c_void) {
        host::check_registered(address as u64)?;
        host::unregister(&*context::current()?, address as u64)
    }

    call fn cuMemHostGetDevicePointer_v2(
        out: Out<CUdeviceptr> as *mut CUdeviceptr, address: *mut c_void, flags: c_uint,
    ) {
        context::current()?;
        out.check()?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // The device uses the same address.
        host::check_page_locked(address as u64)?;
        out.set(address as u64)
    }

    call fn cuMemHostGetFlags(flags: Out<c_uint> as *mut c_uint, address: *mut c_void) {
        context::current()?;
        flags.set(host::flags(address as u64)?)
    }
}

fn allocate_host(out: Out<*mut c_void>, size: usize, flags: c_uint) -> Res {
    out.check()?;
    capture::forbid_unsafe()?;
    let live = context::current()?;
    out.set(host::allocate(&live, size as u64, flags)? as *mut c_void)
}
