//! The virtual-memory functions.

use crate::driver::{Surface, bad_handle};
use std::ffi::c_void;

const GRANULE: usize = 2 << 20;

/// What is alive.
pub struct Mapped {
    base: u64,
    /// Mapped at `base` and once more at the sixth granule.
    handle: u64,
    /// Mapped behind it, its handle given back.
    kept: u64,
    /// Mapped nowhere.
    resting: u64,
}

/// `CUmemAllocationProp`: kind, types of handle, location, device, the rest.
fn prop(kind: u32, handles: u32, location: u32, device: u32) -> [u32; 8] {
    [kind, handles, location, device, 0, 0, 0, 0]
}

fn access(device: u32, flags: u32) -> [u32; 3] {
    [1, device, flags]
}

/// Reserves, makes, maps, rightly and wrongly.
pub fn build(s: &Surface) -> Mapped {
    let mut m = Mapped { base: 0, handle: 0, kept: 0, resting: 0 };
    let good = prop(1, 1, 1, 0);
    let (mut size, mut other) = (0usize, 0);
    for option in [0, 1, 2] {
        show!(s, vmm.cuMemGetAllocationGranularity(&raw mut size, (&raw const good).cast(), option) => size);
    }
    for (bytes, align, flags) in [(0, 0, 0), (4096, 0, 0), (GRANULE, 3 << 20, 0), (GRANULE, 0, 1)] {
        tell!(s, vmm.cuMemAddressReserve(&raw mut m.base, bytes, align, 0, flags));
    }
    tell!(s, vmm.cuMemAddressReserve(std::ptr::null_mut(), GRANULE, 0, 0, 0));
    show!(s, vmm.cuMemAddressReserve(&raw mut m.base, 8 * GRANULE, 1 << 30, 0, 0) => m.base % (1 << 30));
    for wrong in [prop(0, 1, 1, 0), prop(1, 1, 0, 0), prop(1, 1, 1, 9)] {
        tell!(s, vmm.cuMemCreate(&raw mut m.handle, GRANULE, (&raw const wrong).cast(), 0));
    }
    let good = (&raw const good).cast();
    tell!(s, vmm.cuMemCreate(&raw mut m.handle, 0, good, 0));
    tell!(s, vmm.cuMemCreate(&raw mut m.handle, 4096, good, 0));
    tell!(s, vmm.cuMemCreate(&raw mut m.handle, GRANULE, good, 1));
    tell!(s, vmm.cuMemCreate(&raw mut m.handle, 1 << 45, good, 0));
    tell!(s, vmm.cuMemCreate(&raw mut m.handle, 2 * GRANULE, good, 0));
    tell!(s, vmm.cuMemCreate(&raw mut m.kept, GRANULE, good, 0));
    tell!(s, vmm.cuMemCreate(&raw mut m.resting, GRANULE, good, 0));
    let (base, one, g) = (m.base, GRANULE, GRANULE as u64);
    tell!(s, vmm.cuMemMap(base + 4096, one, 0, m.handle, 0));
    tell!(s, vmm.cuMemMap(base, one, GRANULE, m.handle, 0));
    tell!(s, vmm.cuMemMap(base, 3 * GRANULE, 0, m.handle, 0));
    tell!(s, vmm.cuMemMap(base + 7 * g, 2 * GRANULE, 0, m.handle, 0));
    tell!(s, vmm.cuMemMap(0x1234 << 21, one, 0, m.handle, 0));
    tell!(s, vmm.cuMemMap(base, one, 0, 0x1234, 0));
    tell!(s, vmm.cuMemMap(base, 2 * GRANULE, 0, m.handle, 0));
    tell!(s, vmm.cuMemMap(base + g, one, 0, m.kept, 0));
    tell!(s, vmm.cuMemMap(base + 2 * g, one, 0, m.kept, 0));
    tell!(s, vmm.cuMemMap(base + 5 * g, 2 * GRANULE, 0, m.handle, 0));
    tell!(s, vmm.cuMemRelease(m.kept));
    tell!(s, vmm.cuMemRelease(m.kept));
    // Nobody may use it yet.
    tell!(s, memory.cuMemsetD8_v2(base, 1, 16));
    for wrong in [access(9, 3), access(0, 7), [0, 0, 3]] {
        tell!(s, vmm.cuMemSetAccess(base, 2 * GRANULE, (&raw const wrong).cast(), 1));
    }
    let all = access(0, 3);
    let all = (&raw const all).cast();
    tell!(s, vmm.cuMemSetAccess(base, one, all, 1));
    tell!(s, vmm.cuMemSetAccess(base, 4 * GRANULE, all, 1));
    tell!(s, vmm.cuMemSetAccess(base, 3 * GRANULE, all, 0));
    tell!(s, vmm.cuMemSetAccess(base, 3 * GRANULE, all, 1));
    tell!(s, vmm.cuMemSetAccess(base + 5 * g, 2 * GRANULE, all, 1));
    // Over both mappings, and seen through the other one.
    tell!(s, memory.cuMemsetD8_v2(base + 2 * g - 100, 5, 200));
    tell!(s, memory.cuMemsetD8_v2(base + 3 * g - 100, 6, 200));
    tell!(s, context.cuCtxSynchronize());
    tell!(s, vmm.cuMemExportToShareableHandle((&raw mut other).cast::<c_void>(), 0x1234, 1, 0));
    m
}

/// Asks about them.
pub fn use_them(s: &Surface, m: &Mapped) {
    let g = GRANULE as u64;
    let mut pair = [0u8; 2];
    for at in [m.base + 2 * g - 1, m.base + 7 * g - 2] {
        let code = call!(s, memory.cuMemcpyDtoH_v2(pair.as_mut_ptr().cast(), at, 2));
        println!("  {code} {pair:?}");
    }
    let mut flags = 9;
    for (location, at) in [([1u32, 0], m.base), ([1, 0], m.base + 3 * g), ([1, 9], m.base), ([0, 0], m.base)] {
        show!(s, vmm.cuMemGetAccess(&raw mut flags, location.as_ptr().cast(), at) => flags);
    }
    let (mut base, mut size) = (0, 0);
    show!(s, memory.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, m.base + 2 * g + 5) => base - m.base, size);
    for attribute in [1, 2, 8, 9, 11, 12, 13, 14, 17] {
        let mut value = 0u64;
        print!("{attribute:5} ");
        let known = |v: u64| if attribute == 11 { v - m.base } else { v };
        show!(s, memory.cuPointerGetAttribute((&raw mut value).cast(), attribute, m.base + g) => known(value));
    }
    let mut read = [9u32; 8];
    show!(s, vmm.cuMemGetAllocationPropertiesFromHandle(read.as_mut_ptr().cast(), m.handle) => read);
    tell!(s, vmm.cuMemGetAllocationPropertiesFromHandle(read.as_mut_ptr().cast(), 0x1234));
    let at = |address: u64| std::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    let mut again = 0;
    show!(s, vmm.cuMemRetainAllocationHandle(&raw mut again, at(m.base + g)) => again == m.handle);
    tell!(s, vmm.cuMemRelease(again));
    tell!(s, vmm.cuMemRetainAllocationHandle(&raw mut again, at(m.base + 4 * g)));
    tell!(s, vmm.cuMemRetainAllocationHandle(&raw mut again, at(m.base + 2 * g)));
    tell!(s, vmm.cuMemRelease(again));
    let mut fd = -1;
    show!(s, vmm.cuMemExportToShareableHandle((&raw mut fd).cast(), m.handle, 1, 0) => fd >= 0);
    tell!(s, vmm.cuMemImportFromShareableHandle(&raw mut again, at(fd as u64), 1));
    tell!(s, vmm.cuMemRelease(again));
    tell!(s, vmm.cuMemImportFromShareableHandle(&raw mut again, bad_handle(), 1));
    // SAFETY: the descriptor is ours and nobody else's.
    unsafe { libc::close(fd) };
    tell!(s, vmm.cuMemMap(m.base + 3 * g, GRANULE, 0, m.resting, 0));
    tell!(s, vmm.cuMemUnmap(m.base + 3 * g, GRANULE));
    external(s, m);
}

/// Memory that is imported by its descriptor.
fn external(s: &Surface, m: &Mapped) {
    let (mut memory, mut buffer, mut fd) = (std::ptr::null_mut(), 0, -1);
    tell!(s, vmm.cuMemExportToShareableHandle((&raw mut fd).cast(), m.handle, 1, 0));
    // Kind and descriptor, a name, bytes, flags.
    let asked = |kind: u64, fd: i32, bytes: u64, flags: u64| {
        let mut words = [0u64; 13];
        (words[0], words[1], words[3], words[4]) = (kind, u64::from(fd as u32), bytes, flags);
        words
    };
    let whole = GRANULE as u64;
    for (kind, fd, bytes, flags) in
        [(0, fd, whole, 0), (1, fd, 0, 0), (1, fd, 8 * whole, 0), (1, fd, whole, 2), (1, -1, whole, 0)]
    {
        tell!(s, vmm.cuImportExternalMemory(&raw mut memory, asked(kind, fd, bytes, flags).as_ptr().cast()));
    }
    tell!(s, vmm.cuImportExternalMemory(&raw mut memory, asked(1, fd, whole, 0).as_ptr().cast()));
    let part = |offset: u64, bytes: u64, flags: u64| {
        let mut words = [0u64; 11];
        words[..3].copy_from_slice(&[offset, bytes, flags]);
        words
    };
    for (offset, bytes, flags) in [(0, 0, 0), (4096, whole, 0), (0, whole, 1)] {
        tell!(s, vmm.cuExternalMemoryGetMappedBuffer(&raw mut buffer, memory, part(offset, bytes, flags).as_ptr().cast()));
    }
    tell!(s, vmm.cuExternalMemoryGetMappedBuffer(&raw mut buffer, bad_handle(), part(0, whole, 0).as_ptr().cast()));
    tell!(s, vmm.cuExternalMemoryGetMappedBuffer(&raw mut buffer, memory, part(4096, 8192, 0).as_ptr().cast()));
    tell!(s, vmm.cuDestroyExternalMemory(memory));
    tell!(s, vmm.cuDestroyExternalMemory(memory));
    tell!(s, memory.cuMemsetD8_v2(buffer, 77, 16));
    // The same memory.
    let mut bytes = [0u8; 16];
    show!(s, memory.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), m.base + 4096, 16) => bytes);
    tell!(s, memory.cuMemFree_v2(buffer));
    tell!(s, memory.cuMemFree_v2(buffer));
}

/// Ends them.
pub fn end(s: &Surface, m: Mapped) {
    let g = GRANULE as u64;
    tell!(s, vmm.cuMemAddressFree(m.base, 8 * GRANULE));
    tell!(s, vmm.cuMemUnmap(m.base, GRANULE));
    tell!(s, vmm.cuMemUnmap(m.base, 3 * GRANULE));
    tell!(s, vmm.cuMemUnmap(m.base, 3 * GRANULE));
    tell!(s, memory.cuMemsetD8_v2(m.base, 1, 16));
    tell!(s, vmm.cuMemRelease(m.handle));
    tell!(s, vmm.cuMemRelease(m.handle));
    tell!(s, vmm.cuMemUnmap(m.base + 5 * g, 2 * GRANULE));
    tell!(s, vmm.cuMemRelease(m.resting));
    tell!(s, vmm.cuMemAddressFree(m.base, GRANULE));
    tell!(s, vmm.cuMemAddressFree(m.base, 8 * GRANULE));
    tell!(s, vmm.cuMemAddressFree(m.base, 8 * GRANULE));
}
