//! Stream-ordered allocation and pools.

use super::vmm::{Access, Location};
use super::{In, Out, Res, abi};
use crate::gpu::mempool;
use crate::gpu::stream::resolve;
use crate::gpu::{context, device, lock, shared_pool, stream_ordered};
use cuda_api::sys::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemPool_attribute, CUmemPoolProps, CUmemPoolPtrExportData, CUmemoryPool, CUresult, CUstream,
};
use std::ffi::{c_int, c_uint, c_void};

const BAD: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const PINNED: c_uint = 1;
const READ_WRITE: c_uint = 3;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const POSIX: c_uint = 1;

/// The beginning of `CUmemPoolProps` with its enums as plain numbers.
#[repr(C)]
#[derive(Clone, Copy)]
struct Props {
    kind: c_uint,
    handle_types: c_uint,
    location: Location,
    win32: usize,
    most: usize,
}
const _: () = assert!(size_of::<Props>() <= size_of::<CUmemPoolProps>());

abi! {
    stream fn cuMemAllocAsync / cuMemAllocAsync_ptsz(
        out: Out<CUdeviceptr> as *mut CUdeviceptr, size: usize, stream: CUstream,
    ) |default| {
        out.check()?;
        let target = resolve(stream, default)?;
        target.live.check()?;
        if let Some(address) = super::graph::capture_alloc(&target, size as u64)? {
            return out.set(address);
        }
        if size == 0 {
            return out.set(0);
        }
        let pool = mempool::current_of(target.live.device.ordinal as usize);
        out.set(stream_ordered::allocate(pool, &target.live, size as u64)?)
    }

    stream fn cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz(
        out: Out<CUdeviceptr> as *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream,
    ) |default| {
        out.check()?;
        mempool::resolve(pool as usize)?;
        let target = resolve(stream, default)?;
        target.live.check()?;
        if let Some(address) = super::graph::capture_alloc(&target, size as u64)? {
            return out.set(address);
        }
        out.set(stream_ordered::allocate(pool as usize, &target.live, size as u64)?)
    }

    stream fn cuMemFreeAsync / cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream) |default| {
        let target = resolve(stream, default)?;
        target.live.check()?;
        if address == 0 {
            return Ok(());
        }
        if super::graph::capture_free(&target, address)? || super::graph::free_of_graph(address)? {
            return Ok(());
        }
        stream_ordered::free(&target, address)
    }

    call fn cuMemPoolCreate(out: Out<CUmemoryPool> as *mut CUmemoryPool, props: In<Props> as *const CUmemPoolProps) {
        out.check()?;
        let props = props.get()?;
        if props.kind != PINNED || props.win32 != 0 {
            return Err(BAD);
        }
        if props.handle_types & !POSIX != 0 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let device = props.location.device()?.ordinal as usize;
        out.set(mempool::add(device, props.most as u64, props.handle_types == POSIX, None) as CUmemoryPool)
    }

    call fn cuMemPoolExportToShareableHandle(
        out: Out<c_int> as *mut c_void, pool: CUmemoryPool, kind: c_uint as CUmemAllocationHandleType, flags: u64,
    ) {
        mempool::resolve(pool as usize)?;
        out.check()?;
        shareable(kind, flags)?;
        out.set(shared_pool::export(pool as usize)?)
    }

    call fn cuMemPoolImportFromShareableHandle(
        out: Out<CUmemoryPool> as *mut CUmemoryPool, handle: *mut c_void, kind: c_uint as CUmemAllocationHandleType, flags: u64,
    ) {
        out.check()?;
        shareable(kind, flags)?;
        let fd = c_int::try_from(handle as usize).map_err(|_| BAD)?;
        out.set(shared_pool::import(fd)? as CUmemoryPool)
    }

    call fn cuMemPoolExportPointer(out: Out<shared_pool::Data> as *mut CUmemPoolPtrExportData, ptr: CUdeviceptr) {
        out.check()?;
        out.set(shared_pool::export_pointer(ptr)?)
    }

    call fn cuMemPoolImportPointer(
        out: Out<CUdeviceptr> as *mut CUdeviceptr, pool: CUmemoryPool, data: In<shared_pool::Data> as *mut CUmemPoolPtrExportData,
    ) {
        out.check()?;
        let data = data.get()?;
        mempool::resolve(pool as usize)?;
        out.set(shared_pool::import_pointer(&*context::current()?, pool as usize, &data)?)
    }

    call fn cuMemPoolDestroy(pool: CUmemoryPool) {
        mempool::destroy(pool as usize)
    }

    call fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        mempool::resolve(pool as usize)?.trim_to(keep as u64);
        Ok(())
    }

    call fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_uint as CUmemPool_attribute, value: *mut c_void) {
        let pool = mempool::resolve(pool as usize)?;
        let state = lock(&pool.state);
        let bytes = match attribute {
            1..=3 => state.reuse[attribute as usize - 1].to_le_bytes().to_vec(),
            4 => state.threshold.to_le_bytes().to_vec(),
            5 | 6 => state.reserved[attribute as usize - 5].to_le_bytes().to_vec(),
            7 | 8 => state.used[attribute as usize - 7].to_le_bytes().to_vec(),
            _ => return Err(BAD),
        };
        super::edge::put_bytes(value, &bytes)
    }

    call fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_uint as CUmemPool_attribute, value: In<u64> as *mut c_void) {
        let pool = mempool::resolve(pool as usize)?;
        let mut state = lock(&pool.state);
        match attribute {
            // An int: its high half is not the caller's to be read.
            1..=3 => state.reuse[attribute as usize - 1] = c_int::from(value.narrow()? != 0),
            4 => state.threshold = value.get()?,
            6 if value.get()? == 0 => state.reserved[1] = state.reserved[0],
            8 if value.get()? == 0 => state.used[1] = state.used[0],
            _ => return Err(BAD),
        }
        Ok(())
    }

    call fn cuMemPoolSetAccess(pool: CUmemoryPool, list: In<Access> as *const CUmemAccessDesc, count: usize) {
        let own = mempool::resolve(pool as usize)?.device;
        if count == 0 {
            return Err(BAD);
        }
        for index in 0..count {
            let access = list.at(index)?;
            let device = access.location.device()?.ordinal as usize;
            match (device == own, access.flags) {
                (true, READ_WRITE) | (false, 0) => {}
                (true, _) => return Err(BAD),
                (false, _) => return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
            }
        }
        Ok(())
    }

    call fn cuMemPoolGetAccess(
        flags: Out<c_uint> as *mut CUmemAccess_flags, pool: CUmemoryPool, location: In<Location> as *mut CUmemLocation,
    ) {
        let own = mempool::resolve(pool as usize)?.device;
        let device = location.get()?.device()?.ordinal as usize;
        flags.set(if device == own { READ_WRITE } else { 0 })
    }

    call fn cuDeviceGetDefaultMemPool(out: Out<CUmemoryPool> as *mut CUmemoryPool, dev: CUdevice) {
        out.set(mempool::default_of(device::get(dev)?.ordinal as usize) as CUmemoryPool)
    }

    call fn cuDeviceGetMemPool(out: Out<CUmemoryPool> as *mut CUmemoryPool, dev: CUdevice) {
        // Unlike for the default pool, the number of no device is a bad value.
        out.set(mempool::current_of(device::get(dev).map_err(|_| BAD)?.ordinal as usize) as CUmemoryPool)
    }

    call fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) {
        mempool::choose(device::get(dev).map_err(|_| BAD)?.ordinal as usize, pool as usize)
    }

    call fn cuMemGetDefaultMemPool(
        out: Out<CUmemoryPool> as *mut CUmemoryPool, location: In<Location> as *mut CUmemLocation,
        kind: c_uint as CUmemAllocationType,
    ) {
        out.set(mempool::default_of(place(location, kind)?) as CUmemoryPool)
    }

    call fn cuMemGetMemPool(
        out: Out<CUmemoryPool> as *mut CUmemoryPool, location: In<Location> as *mut CUmemLocation,
        kind: c_uint as CUmemAllocationType,
    ) {
        out.set(mempool::current_of(place(location, kind)?) as CUmemoryPool)
    }

    call fn cuMemSetMemPool(
        location: In<Location> as *mut CUmemLocation, kind: c_uint as CUmemAllocationType, pool: CUmemoryPool,
    ) {
        mempool::choose(place(location, kind)?, pool as usize)
    }
}

/// Ordinal of the device at a location that supports pools.
fn place(location: In<Location>, kind: c_uint) -> Res<usize> {
    let location = In::get(location)?;
    if location.kind == 0 || kind == 0 {
        return Err(BAD);
    }
    if kind != PINNED {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(location.device()?.ordinal as usize)
}

/// Checks the handle type with which processes share pools.
fn shareable(kind: c_uint, flags: u64) -> Res {
    match kind {
        _ if flags != 0 => Err(BAD),
        POSIX => Ok(()),
        // Handles of Windows and of fabrics.
        2 | 4 | 8 => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(BAD),
    }
}
