//! Stream-ordered allocation and pools.

use crate::driver::{Surface, bad_handle};
use cuda_api::sys::{CUmemPoolProps, CUmemoryPool, CUstream};
use std::ffi::c_void;

/// What is alive.
pub struct Pools {
    own: CUmemoryPool,
    default: CUmemoryPool,
    /// From the device's pool and from the own one.
    blocks: [u64; 2],
    /// From the own one, freed only after it was destroyed.
    last: u64,
}

/// The beginning of `CUmemPoolProps`: kind, types of handle, location, device, security, most bytes.
#[repr(C, align(8))]
struct Props([u32; 4], [usize; 9]);
const _: () = assert!(size_of::<Props>() == size_of::<CUmemPoolProps>());

impl Props {
    fn new(kind: u32, handles: u32, location: u32, device: u32, most: usize) -> Props {
        let mut rest = [0; 9];
        rest[1] = most;
        Props([kind, handles, location, device], rest)
    }
}

fn attributes(s: &Surface, pool: CUmemoryPool) {
    for attribute in 0..10 {
        let mut value = 0u64;
        print!("{attribute:3} ");
        show!(s, memory.cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) => value);
    }
}

/// Makes pools and allocates from them, rightly and wrongly.
pub fn build(s: &Surface, stream: CUstream) -> Pools {
    let none = std::ptr::null_mut();
    let (mut own, mut default, mut current): (CUmemoryPool, CUmemoryPool, CUmemoryPool) = (none, none, none);
    tell!(s, device.cuDeviceGetDefaultMemPool(&raw mut default, 0));
    tell!(s, device.cuDeviceGetDefaultMemPool(&raw mut default, 9));
    show!(s, device.cuDeviceGetMemPool(&raw mut current, 0) => current == default);
    let mut location = [1u32, 0];
    let at = location.as_mut_ptr().cast();
    show!(s, memory.cuMemGetDefaultMemPool(&raw mut current, at, 1) => current == default);
    show!(s, memory.cuMemGetMemPool(&raw mut current, at, 1) => current == default);
    for props in
        [Props::new(0, 0, 1, 0, 0), Props::new(1, 0, 0, 0, 0), Props::new(1, 0, 1, 9, 0), Props::new(1, 0, 1, 0, 64 << 20)]
    {
        tell!(s, memory.cuMemPoolCreate(&raw mut own, (&raw const props).cast()));
    }
    tell!(s, memory.cuMemPoolCreate(std::ptr::null_mut(), std::ptr::null()));
    handles(s, own);
    attributes(s, own);
    let mut keep = u64::MAX;
    let value: *mut c_void = (&raw mut keep).cast();
    tell!(s, memory.cuMemPoolSetAttribute(own, 4, value));
    for attribute in [5, 6, 7, 8, 99] {
        tell!(s, memory.cuMemPoolSetAttribute(own, attribute, value));
    }
    let mut off = 0u32;
    tell!(s, memory.cuMemPoolSetAttribute(own, 2, (&raw mut off).cast()));
    let mut b = Pools { own, default, blocks: [0; 2], last: 0 };
    tell!(s, memory.cuMemAllocAsync(&raw mut b.last, 0, stream));
    tell!(s, memory.cuMemAllocAsync(std::ptr::null_mut(), 16, stream));
    tell!(s, memory.cuMemAllocAsync(&raw mut b.last, 16, bad_handle()));
    tell!(s, memory.cuMemAllocAsync(&raw mut b.last, 1 << 45, stream));
    tell!(s, memory.cuMemAllocFromPoolAsync(&raw mut b.last, 16, bad_handle(), stream));
    tell!(s, memory.cuMemAllocFromPoolAsync(&raw mut b.last, 65 << 20, own, stream));
    tell!(s, memory.cuMemAllocAsync(&raw mut b.blocks[0], 1000, stream));
    tell!(s, memory.cuMemAllocFromPoolAsync(&raw mut b.blocks[1], 3 << 20, own, stream));
    tell!(s, memory.cuMemAllocFromPoolAsync(&raw mut b.last, 513, own, stream));
    for block in b.blocks {
        tell!(s, memory.cuMemsetD8Async(block, 7, 1000, stream));
    }
    b
}

/// Asks about them, and frees.
pub fn use_them(s: &Surface, b: &Pools, stream: CUstream) {
    let mut pair = [0u8; 2];
    for block in b.blocks {
        show!(s, memory.cuMemcpyDtoHAsync_v2(pair.as_mut_ptr().cast(), block + 998, 2, stream) => block % 512);
        tell!(s, stream.cuStreamSynchronize(stream));
        println!("  {pair:?}");
        let (mut base, mut size) = (0, 0);
        show!(s, memory.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, block + 100) => base == block, size);
        for attribute in [2, 8, 9, 11, 12, 13, 17] {
            let mut value = 0u64;
            print!("{attribute:5} ");
            let known = |v: u64| match attribute {
                11 => u64::from(v == block),
                17 => u64::from(v == b.default as u64) + 2 * u64::from(v == b.own as u64),
                _ => v,
            };
            show!(s, memory.cuPointerGetAttribute((&raw mut value).cast(), attribute, block) => known(value));
        }
    }
    attributes(s, b.own);
    let mut flags = 9;
    let mut location = [1u32, 0];
    show!(s, memory.cuMemPoolGetAccess((&raw mut flags).cast(), b.own, location.as_mut_ptr().cast()) => flags);
    for access in [[1, 0, 3], [1, 0, 0], [1, 9, 3], [7, 0, 3]] {
        tell!(s, memory.cuMemPoolSetAccess(b.own, (&raw const access).cast(), 1));
    }
    tell!(s, device.cuDeviceSetMemPool(0, bad_handle()));
    tell!(s, device.cuDeviceSetMemPool(0, b.own));
    let mut current = std::ptr::null_mut();
    show!(s, device.cuDeviceGetMemPool(&raw mut current, 0) => current == b.own);
    tell!(s, memory.cuMemSetMemPool(location.as_mut_ptr().cast(), 1, b.own));
    tell!(s, memory.cuMemFreeAsync(b.blocks[0] + 16, stream));
    tell!(s, memory.cuMemFreeAsync(0x1234, stream));
    tell!(s, memory.cuMemFreeAsync(b.blocks[0], stream));
    tell!(s, memory.cuMemFreeAsync(b.blocks[0], stream));
    tell!(s, memory.cuMemFree_v2(b.blocks[1]));
    tell!(s, memory.cuMemFree_v2(b.blocks[1]));
    tell!(s, stream.cuStreamSynchronize(stream));
    attributes(s, b.own);
    attributes(s, b.default);
    let mut zero = 0u64;
    for attribute in [6, 8] {
        tell!(s, memory.cuMemPoolSetAttribute(b.own, attribute, (&raw mut zero).cast()));
    }
    tell!(s, memory.cuMemPoolTrimTo(b.own, 0));
    attributes(s, b.own);
}

/// Ends them.
pub fn end(s: &Surface, b: Pools, stream: CUstream) {
    tell!(s, memory.cuMemPoolDestroy(b.default));
    tell!(s, memory.cuMemPoolDestroy(bad_handle()));
    tell!(s, memory.cuMemPoolDestroy(b.own));
    tell!(s, memory.cuMemPoolDestroy(b.own));
    let mut current = std::ptr::null_mut();
    show!(s, device.cuDeviceGetMemPool(&raw mut current, 0) => current == b.default);
    let mut value = [0u8; 1];
    tell!(s, memory.cuMemsetD8Async(b.last, 9, 513, stream));
    show!(s, memory.cuMemcpyDtoH_v2(value.as_mut_ptr().cast(), b.last + 512, 1) => value.len());
    tell!(s, memory.cuMemFreeAsync(b.last, stream));
    tell!(s, stream.cuStreamSynchronize(stream));
    tell!(s, memory.cuMemPoolTrimTo(b.own, 0));
}

/// Descriptors of pools, wrongly and rightly; a program of two processes uses them.
fn handles(s: &Surface, closed: CUmemoryPool) {
    let mut pool: CUmemoryPool = std::ptr::null_mut();
    let open = Props::new(1, 1, 1, 0, 0);
    tell!(s, memory.cuMemPoolCreate(&raw mut pool, (&raw const open).cast()));
    let mut fd = -1i32;
    tell!(s, memory.cuMemPoolExportToShareableHandle((&raw mut fd).cast(), closed, 1, 0));
    tell!(s, memory.cuMemPoolExportToShareableHandle((&raw mut fd).cast(), bad_handle(), 1, 0));
    tell!(s, memory.cuMemPoolExportToShareableHandle((&raw mut fd).cast(), pool, 1, 1));
    tell!(s, memory.cuMemPoolExportToShareableHandle(std::ptr::null_mut(), pool, 1, 0));
    show!(s, memory.cuMemPoolExportToShareableHandle((&raw mut fd).cast(), pool, 1, 0) => fd >= 0);
    let mut other: CUmemoryPool = std::ptr::null_mut();
    tell!(s, memory.cuMemPoolImportFromShareableHandle(&raw mut other, bad_handle(), 1, 0));
    let handle: *mut c_void = std::ptr::without_provenance_mut(fd as usize);
    tell!(s, memory.cuMemPoolImportFromShareableHandle(std::ptr::null_mut(), handle, 1, 0));
    tell!(s, memory.cuMemPoolImportFromShareableHandle(&raw mut other, handle, 1, 1));
    let mut data = [0u64; 8];
    tell!(s, memory.cuMemPoolExportPointer(data.as_mut_ptr().cast(), 0x1234));
    let mut address = 0;
    tell!(s, memory.cuMemPoolImportPointer(&raw mut address, pool, data.as_mut_ptr().cast()));
    // SAFETY: the descriptor is ours and nobody else's.
    unsafe { libc::close(fd) };
    tell!(s, memory.cuMemPoolDestroy(pool));
}
