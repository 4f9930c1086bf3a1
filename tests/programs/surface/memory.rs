//! Allocations and what can be asked about addresses.

use crate::driver::{Surface, bad_handle};
use cuda_api::sys::CUstream;
use std::ffi::c_void;

/// Rows of the pitched allocation.
pub const ROWS: usize = 8;
/// Bytes of its rows that are used.
pub const WIDTH: usize = 300;

/// What is alive.
pub struct Buffers {
    /// 64 KiB.
    pub device: u64,
    /// Rows of [`WIDTH`] bytes.
    pub pitched: u64,
    /// Bytes from row to row.
    pub pitch: usize,
    pinned: *mut c_void,
    /// Memory of the program that is registered.
    own: Vec<u8>,
}

/// Allocates, rightly and wrongly.
pub fn build(s: &Surface) -> Buffers {
    let mut b = Buffers { device: 0, pitched: 0, pitch: 0, pinned: std::ptr::null_mut(), own: vec![0; 16384] };
    tell!(s, memory.cuMemAlloc_v2(&raw mut b.device, 0));
    tell!(s, memory.cuMemAlloc_v2(std::ptr::null_mut(), 16));
    tell!(s, memory.cuMemAlloc_v2(&raw mut b.device, 1 << 45));
    tell!(s, memory.cuMemAlloc_v2(&raw mut b.device, 1 << 16));
    show!(s, memory.cuMemAllocPitch_v2(&raw mut b.pitched, &raw mut b.pitch, WIDTH, ROWS, 4) => b.pitch >= WIDTH, b.pitch % 4);
    tell!(s, memory.cuMemAllocPitch_v2(&raw mut b.pitched, &raw mut b.pitch, WIDTH, ROWS, 3));
    show!(s, memory.cuMemAllocHost_v2(&raw mut b.pinned, 4096) => b.pinned.is_null());
    let page = b.own.as_mut_ptr().map_addr(|a| a.next_multiple_of(4096)).cast();
    tell!(s, memory.cuMemHostRegister_v2(page, 4096, 0));
    tell!(s, memory.cuMemHostRegister_v2(page, 4096, 0));
    tell!(s, memory.cuMemsetD8_v2(b.device, 0, 1 << 16));
    set_waiting(s, b.device, 1);
    set_waiting(s, b.pitched, 1);
    set_waiting(s, b.pitched, 0);
    set_waiting(s, b.pitched, 2);
    set_waiting(s, 0x1234, 1);
    b
}

/// Whether synchronous calls about memory always wait.
fn set_waiting(s: &Surface, at: u64, on: u32) {
    tell!(s, memory.cuPointerSetAttribute((&raw const on).cast(), 6, at));
}

/// Asks about addresses.
pub fn use_them(s: &Surface, b: &Buffers) {
    let (mut base, mut size) = (0, 0);
    show!(s, memory.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, b.device + 100) => base == b.device, size);
    tell!(s, memory.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, 0x1234));
    let (mut free, mut total) = (0usize, 0usize);
    show!(s, memory.cuMemGetInfo_v2(&raw mut free, &raw mut total) => free <= total && free > 0, total);
    let mut flags = 99;
    show!(s, memory.cuMemHostGetFlags(&raw mut flags, b.pinned) => flags & !0x80);
    tell!(s, memory.cuMemHostGetFlags(&raw mut flags, bad_handle()));
    // Context 1, memory type 2, device pointer 3, host pointer 4, managed 8, ordinal 9, range start 11, range size 12, mapped 13.
    for address in [b.device, b.device + 64, b.pitched, b.pinned as u64, 0x1234] {
        for attribute in [2, 3, 6, 8, 9, 11, 12, 13, 9999] {
            let mut value = 0u64;
            print!("{attribute:5} ");
            let place = (&raw mut value).cast();
            let known = |v: u64| match attribute {
                3 | 11 => u64::from(v == address),
                _ => v,
            };
            show!(s, memory.cuPointerGetAttribute(place, attribute, address) => known(value));
        }
    }
    let (mut kind, mut managed) = (0u32, 0u32);
    let mut wanted = [2u32, 8];
    let mut places: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut managed).cast()];
    let list = wanted.as_mut_ptr().cast();
    show!(s, memory.cuPointerGetAttributes(2, list, places.as_mut_ptr(), b.device) => kind, managed);
    show!(s, memory.cuPointerGetAttributes(2, list, places.as_mut_ptr(), 0x1234) => kind, managed);
    // Between two halves of memory that waits: done when the call returns.
    tell!(s, memory.cuMemcpyDtoD_v2(b.device, b.device + (1 << 15), 1 << 15));
    tell!(s, stream.cuStreamQuery(std::ptr::null_mut()));
    tell!(s, memory.cuMemsetD8_v2(b.device, 0, 1 << 16));
    tell!(s, stream.cuStreamQuery(std::ptr::null_mut()));
    set_waiting(s, b.device, 0);
}

/// Frees, also what is not there.
pub fn end(s: &Surface, mut b: Buffers) {
    tell!(s, memory.cuMemFree_v2(b.device + 16));
    tell!(s, memory.cuMemFree_v2(b.device));
    tell!(s, memory.cuMemFree_v2(b.device));
    tell!(s, memory.cuMemFree_v2(b.pitched));
    tell!(s, memory.cuMemFree_v2(0));
    tell!(s, memory.cuMemFreeHost(b.pinned));
    tell!(s, memory.cuMemFreeHost(b.pinned));
    let page = b.own.as_mut_ptr().map_addr(|a| a.next_multiple_of(4096)).cast();
    tell!(s, memory.cuMemHostUnregister(page));
    tell!(s, memory.cuMemHostUnregister(page));
}

/// A prefetch is nothing that a capture takes: it ends. So it does after a batch of discards.
pub fn prefetch_captured(s: &Surface, stream: CUstream) {
    /// `CU_MEM_LOCATION_TYPE_HOST`, number 0.
    const ON_HOST: u64 = 2;
    let (mut at, mut graph) = (0, std::ptr::null_mut());
    tell!(s, memory.cuMemAllocManaged(&raw mut at, 4096, 1));
    tell!(s, graph.cuStreamBeginCapture_v2(stream, 2));
    tell!(s, memory.cuMemPrefetchAsync_v2(at, 4096, ON_HOST, 0, stream));
    tell!(s, graph.cuStreamEndCapture(stream, &raw mut graph));
    tell!(s, memory.cuMemPrefetchAsync_v2(at, 4096, ON_HOST, 0, stream));
    let mut bytes = 4096;
    tell!(s, memory.cuMemDiscardBatchAsync(&raw mut at, &raw mut bytes, 1, 0, stream));
    tell!(s, graph.cuStreamBeginCapture_v2(stream, 2));
    tell!(s, memory.cuMemDiscardBatchAsync(&raw mut at, &raw mut bytes, 1, 0, stream));
    tell!(s, graph.cuStreamEndCapture(stream, &raw mut graph));
    tell!(s, stream.cuStreamSynchronize(stream));
    tell!(s, memory.cuMemFree_v2(at));
}
