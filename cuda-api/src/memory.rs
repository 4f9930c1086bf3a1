//! The structures of cuda.h that describe memory, with enums as plain numbers, since a C program can store any value.

use crate::answer::structs;
use crate::array::TILE_POOL;
use crate::pointer::{InPtr, OutPtr, Plain};
use crate::sys;

/// `CUmemLocation`
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// `CUmemLocationType`
    pub kind: u32,
    /// The device, if it is one.
    pub ordinal: i32,
}

/// The beginning of `CUmemPoolProps`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PoolProps {
    /// `CUmemAllocationType`
    pub kind: u32,
    /// `CUmemAllocationHandleType`, a set of bits.
    pub handle_types: u32,
    /// Where the memory is.
    pub location: Location,
    /// Security attributes of Windows.
    pub win32: usize,
    /// Maximum number of bytes; 0: no limit.
    pub most: usize,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AllocationProp {
    /// `CUmemAllocationType`
    pub kind: u32,
    /// `CUmemAllocationHandleType`, a set of bits.
    pub handle_types: u32,
    /// `CUmemLocationType`
    pub location: u32,
    /// The device.
    pub ordinal: i32,
    /// Security attributes of Windows.
    pub win32: usize,
    /// Whether compression is wished for.
    pub compression: u8,
    /// Whether network cards can use it.
    pub rdma: u8,
    /// `CU_MEM_CREATE_USAGE_*`
    pub usage: u16,
    /// Reserved.
    pub reserved: [u8; 4],
}

impl AllocationProp {
    /// Returns whether the memory is for tiles of arrays.
    pub fn is_for_tiles(&self) -> bool {
        self.usage & TILE_POOL != 0
    }
}

/// `CUmemAccessDesc`: type and number of a location, and `CUmemAccess_flags`.
pub type Access = [u32; 3];

// SAFETY: numbers.
unsafe impl Plain for Location {}
// SAFETY: numbers.
unsafe impl Plain for PoolProps {}
// SAFETY: numbers.
unsafe impl Plain for AllocationProp {}

const _: () = assert!(size_of::<Location>() == size_of::<sys::CUmemLocation>());
const _: () = assert!(size_of::<PoolProps>() <= size_of::<sys::CUmemPoolProps>());
const _: () = assert!(size_of::<AllocationProp>() == size_of::<sys::CUmemAllocationProp>());
const _: () = assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());

/// Bytes of the data with which processes share a pointer into a pool.
const POINTER_DATA: usize = size_of::<sys::CUmemPoolPtrExportData>();

structs! { read
    CUmemLocation as Location = |p: InPtr<Self>| p.cast().read();
    CUmemPoolProps as PoolProps = |p: InPtr<Self>| p.cast().read();
    CUmemAllocationProp as AllocationProp = |p: InPtr<Self>| p.cast().read();
    CUmemAccessDesc as Access = |p: InPtr<Self>| p.cast().read();
    CUmemPoolPtrExportData as [u8; POINTER_DATA] = |p: InPtr<Self>| p.cast().read();
}
structs! { write
    CUmemAllocationProp as AllocationProp = |to: OutPtr<Self>, value: &AllocationProp| to.cast().write(*value);
    CUmemPoolPtrExportData as [u8; POINTER_DATA] = |to: OutPtr<Self>, value: &[u8; POINTER_DATA]| to.cast().write(*value);
}
