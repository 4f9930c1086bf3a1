//! Virtual memory management.

use super::{In, Out, Res, abi};
use crate::gpu::device::{self, Device};
use crate::gpu::graph_table::error;
use crate::gpu::stream::resolve;
use crate::gpu::{physical, tile_mapping, vmm};
use cuda_api::array::{MapInfo, TILE_POOL};
use cuda_api::pointer::InPtr;
use cuda_api::sys::{
    CUarrayMapInfo, CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation, CUmemRangeHandleType, CUresult, CUstream,
};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

const PINNED: c_uint = 1;
const ON_DEVICE: c_uint = 1;
const POSIX_DESCRIPTOR: c_uint = 1;
const ACCESS_NONE: c_uint = 0;
const ACCESS_READ: c_uint = 1;
const ACCESS_READ_WRITE: c_uint = 3;

const DMA_BUF: c_uint = 1;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED` and `…_DMA_BUF_SUPPORTED`: not here, unless a test sets them.
const RDMA_WITH_VMM_SUPPORTED: u32 = 110;
const DMA_BUF_SUPPORTED: u32 = 124;

/// `CUmemLocation` with its enum as a plain number.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    pub kind: c_uint,
    id: c_int,
}

/// `CUmemAllocationProp`, likewise.
#[repr(C)]
#[derive(Clone, Copy)]
struct Prop {
    kind: c_uint,
    handle_types: c_uint,
    location: Location,
    win32: usize,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`, likewise.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub location: Location,
    pub flags: c_uint,
}

const _: () = assert!(size_of::<Prop>() == size_of::<CUmemAllocationProp>());
const _: () = assert!(size_of::<Access>() == size_of::<CUmemAccessDesc>());
const _: () = assert!(size_of::<Location>() == size_of::<CUmemLocation>());

impl Location {
    pub fn device(self) -> Res<&'static Arc<Device>> {
        match self.kind {
            ON_DEVICE => device::get(self.id),
            // Host memory has no allocations of this kind here.
            2..=4 => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
}

impl Prop {
    fn check(self) -> Res<&'static Arc<Device>> {
        if self.kind != PINNED || self.win32 != 0 || self.reserved != [0; 4] || self.usage & !3 != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let device = self.location.device()?;
        if self.compression != 0 || self.rdma != 0 && !has(device, RDMA_WITH_VMM_SUPPORTED) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        Ok(device)
    }
}

abi! {
    call fn cuMemAddressReserve(
        out: Out<CUdeviceptr> as *mut CUdeviceptr, size: usize, alignment: usize, hint: CUdeviceptr, flags: u64,
    ) {
        out.check()?;
        none(flags)?;
        out.set(vmm::reserve(size as u64, alignment as u64, hint)?)
    }

    call fn cuMemAddressFree(address: CUdeviceptr, size: usize) {
        vmm::unreserve(address, size as u64)
    }

    call fn cuMemCreate(
        out: Out<CUmemGenericAllocationHandle> as *mut CUmemGenericAllocationHandle, size: usize,
        prop: In<Prop> as *const CUmemAllocationProp, flags: u64,
    ) {
        out.check()?;
        none(flags)?;
        let prop = prop.get()?;
        let is_for_tiles = prop.usage & TILE_POOL != 0;
        // It stays in its process, and is not for network cards (measured, 580 driver).
        if is_for_tiles && (prop.handle_types != 0 || prop.rdma != 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        out.set(physical::create(prop.check()?, size as u64, prop.handle_types, is_for_tiles)?)
    }

    call fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        physical::release(handle)
    }

    call fn cuMemMap(
        address: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64,
    ) {
        none(flags)?;
        vmm::map(address, size as u64, offset as u64, handle)
    }

    call fn cuMemUnmap(address: CUdeviceptr, size: usize) {
        vmm::unmap(address, size as u64)
    }

    call fn cuMemSetAccess(
        address: CUdeviceptr, size: usize, list: In<Access> as *const CUmemAccessDesc, count: usize,
    ) {
        if count == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut changes = Vec::new();
        for index in 0..count {
            let access = list.at(index)?;
            let device = access.location.device()?.ordinal as usize;
            changes.push((device, match access.flags {
                ACCESS_NONE => false,
                ACCESS_READ_WRITE => true,
                ACCESS_READ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
                _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            }));
        }
        changes.into_iter().try_for_each(|(device, allowed)| vmm::set_access(address, size as u64, device, allowed))
    }

    stream fn cuMemMapArrayAsync / cuMemMapArrayAsync_ptsz(
        list: InPtr<CUarrayMapInfo> as *mut CUarrayMapInfo, count: c_uint, stream: CUstream,
    ) |default| {
        let target = resolve(stream, default)?;
        tile_mapping::map(&target, &MapInfo::list(list, count).map_err(error)?)
    }

    call fn cuMemGetAccess(
        flags: Out<u64> as *mut u64, location: In<Location> as *const CUmemLocation, address: CUdeviceptr,
    ) {
        let location = location.get()?;
        if location.kind == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        let device = location.device()?.ordinal as usize;
        flags.set(if vmm::access(address, device)? { u64::from(ACCESS_READ_WRITE) } else { u64::from(ACCESS_NONE) })
    }

    call fn cuMemGetAllocationGranularity(
        size: Out<usize> as *mut usize, prop: In<Prop> as *const CUmemAllocationProp,
        option: c_uint as CUmemAllocationGranularity_flags,
    ) {
        // What is asked for makes no difference (measured).
        prop.get()?;
        if option > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        size.set(physical::GRANULARITY as usize)
    }

    call fn cuMemGetAllocationPropertiesFromHandle(
        prop: Out<Prop> as *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle,
    ) {
        let physical = physical::resolve(handle)?;
        prop.set(Prop {
            kind: PINNED,
            handle_types: physical.handle_types,
            location: Location { kind: ON_DEVICE, id: physical.device.ordinal },
            win32: 0,
            compression: 0,
            rdma: 0,
            // Memory for tiles is not distinguished (measured, 580 driver).
            usage: 0,
            reserved: [0; 4],
        })
    }

    call fn cuMemExportToShareableHandle(
        out: Out<c_int> as *mut c_void, handle: CUmemGenericAllocationHandle,
        kind: c_uint as CUmemAllocationHandleType, flags: u64,
    ) {
        out.check()?;
        none(flags)?;
        posix(kind)?;
        out.set(physical::export(handle)?)
    }

    call fn cuMemImportFromShareableHandle(
        out: Out<CUmemGenericAllocationHandle> as *mut CUmemGenericAllocationHandle, descriptor: *mut c_void,
        kind: c_uint as CUmemAllocationHandleType,
    ) {
        out.check()?;
        posix(kind)?;
        let descriptor = c_int::try_from(descriptor as usize).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        out.set(physical::import(descriptor)?)
    }

    call fn cuMemGetHandleForAddressRange(
        out: Out<c_int> as *mut c_void, address: CUdeviceptr, size: usize, kind: c_uint as CUmemRangeHandleType, flags: u64,
    ) {
        out.check()?;
        none(flags)?;
        if kind != DMA_BUF {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if !has(device::get(0)?, DMA_BUF_SUPPORTED) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        out.set(vmm::dma_buf(address, size as u64)?)
    }

    call fn cuMemRetainAllocationHandle(
        out: Out<CUmemGenericAllocationHandle> as *mut CUmemGenericAllocationHandle, address: *mut c_void,
    ) {
        out.check()?;
        out.set(vmm::retain_at(address as u64)?)
    }
}

fn has(device: &Device, attribute: u32) -> bool {
    device.attribute(attribute) == Ok(1)
}

fn none(flags: u64) -> Res {
    if flags == 0 { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) }
}

fn posix(kind: c_uint) -> Res {
    match kind {
        POSIX_DESCRIPTOR => Ok(()),
        2 | 4 | 8 => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}
