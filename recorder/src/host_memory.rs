//! Pinned host memory: ordinary shared memory of the job at fixed addresses, so that a place on this host can map it.
//!
//! A place elsewhere copies from and to it; kernels cannot address it there, so no device address is given out.

use crate::context::give;
use crate::enter::Entered;
use crate::log::lock;
use cuda_api::code::{self, Code};
use cuda_api::ops;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::Mutex;

#[derive(Debug, Clone, Copy)]
struct Block {
    bytes: u64,
    flags: u32,
    /// Made here, not registered by the program.
    own: bool,
}

static BLOCKS: Mutex<BTreeMap<u64, Block>> = Mutex::new(BTreeMap::new());

/// `CU_MEMHOSTALLOC_PORTABLE | DEVICEMAP | WRITECOMBINED`.
const ALLOC_FLAGS: u32 = 7;
/// `CU_MEMHOSTREGISTER_PORTABLE | DEVICEMAP | IOMEMORY | READ_ONLY`.
const REGISTER_FLAGS: u32 = 15;

/// Bytes of the pinned block that contains `address`.
pub(crate) fn find(address: u64) -> Option<u64> {
    let blocks = lock(&BLOCKS);
    let (&start, b) = blocks.range(..=address).next_back()?;
    (address - start < b.bytes).then_some(b.bytes)
}

/// Whether all of these bytes are pinned: a copy of them may be left to the place.
pub(crate) fn is_pinned(address: u64, bytes: u64) -> bool {
    let blocks = lock(&BLOCKS);
    let Some((&start, b)) = blocks.range(..=address).next_back() else { return false };
    bytes <= b.bytes && address - start <= b.bytes - bytes
}

fn allocate(pp: *mut *mut c_void, bytes: usize, flags: u32) -> Result<(), Code> {
    if pp.is_null() || bytes == 0 || flags & !ALLOC_FLAGS != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let len = bytes.checked_next_multiple_of(4096).ok_or(code::ERROR_OUT_OF_MEMORY)?;
    // SAFETY: a fresh anonymous mapping; nothing of ours depends on where it lies.
    let p = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
    };
    if p == libc::MAP_FAILED {
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    lock(&BLOCKS).insert(p as u64, Block { bytes: bytes as u64, flags, own: true });
    give(pp, p)
}

pub(crate) fn cuMemAllocHost_v2(cx: &mut Entered, pp: *mut *mut c_void, bytesize: usize) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    cx.device()?.check()?;
    allocate(pp, bytesize, 0)
}

pub(crate) fn cuMemHostAlloc(cx: &mut Entered, pp: *mut *mut c_void, bytesize: usize, flags: c_uint) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    cx.device()?.check()?;
    allocate(pp, bytesize, flags)
}

pub(crate) fn cuMemFreeHost(cx: &mut Entered, p: *mut c_void) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    if p.is_null() {
        return Ok(());
    }
    let device = cx.device()?;
    match lock(&BLOCKS).get(&(p as u64)) {
        Some(b) if b.own => {}
        _ => return Err(code::ERROR_INVALID_VALUE),
    }
    // The native call waits for running work, and copies into this block may be on their way.
    cx.wait(device, ops::id::CONTEXT_SYNC, &[])?;
    let Some(b) = lock(&BLOCKS).remove(&(p as u64)) else { return Err(code::ERROR_INVALID_VALUE) };
    // SAFETY: the block was mapped by `allocate` with this length and is no longer in the table.
    unsafe { libc::munmap(p, (b.bytes as usize).next_multiple_of(4096)) };
    Ok(())
}

pub(crate) fn cuMemHostGetFlags(_cx: &mut Entered, flags: *mut c_uint, p: *mut c_void) -> Result<(), Code> {
    let found = lock(&BLOCKS).get(&(p as u64)).map(|b| b.flags);
    give(flags, found.ok_or(code::ERROR_INVALID_VALUE)?)
}

pub(crate) fn cuMemHostRegister_v2(cx: &mut Entered, p: *mut c_void, bytesize: usize, flags: c_uint) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    cx.device()?.check()?;
    if p.is_null() || bytesize == 0 || flags & !REGISTER_FLAGS != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (start, end) = (p as u64, p as u64 + bytesize as u64);
    let mut blocks = lock(&BLOCKS);
    if blocks.range(..end).next_back().is_some_and(|(s, b)| s + b.bytes > start) {
        return Err(code::ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    blocks.insert(start, Block { bytes: bytesize as u64, flags, own: false });
    Ok(())
}

pub(crate) fn cuMemHostUnregister(cx: &mut Entered, p: *mut c_void) -> Result<(), Code> {
    crate::graph::forbid_unsafe(cx)?;
    let device = cx.device()?;
    cx.wait(device, ops::id::CONTEXT_SYNC, &[])?;
    let mut blocks = lock(&BLOCKS);
    match blocks.get(&(p as u64)) {
        Some(b) if !b.own => {
            blocks.remove(&(p as u64));
            Ok(())
        }
        _ => Err(code::ERROR_HOST_MEMORY_NOT_REGISTERED),
    }
}
