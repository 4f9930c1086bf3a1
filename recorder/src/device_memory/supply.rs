//! Allocations of `cuMemAlloc`: where they lie, and how they end.

use crate::device_memory::chunks::unmap;
use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::allocations::{Allocation, GRANULE, Home, LARGE, Memory, STEP};
use cuda_api::code::{self, Code};

impl Memory {
    pub(crate) fn place(&mut self, cx: &CallContext, device: &'static Device, bytes: u64) -> Result<u64, Code> {
        if bytes >= LARGE {
            let address = self.chunk(cx, device, bytes.next_multiple_of(GRANULE), false)?;
            return Ok(self.note(address, bytes, Home::Own));
        }
        let room = bytes.next_multiple_of(STEP);
        let address = match self.small.take(room) {
            Some(address) => address,
            None => {
                let chunk = self.chunk(cx, device, GRANULE, true)?;
                self.shared.insert(chunk);
                self.small.put(chunk + room, GRANULE - room);
                chunk
            }
        };
        Ok(self.note(address, bytes, Home::Shared))
    }
}

pub(crate) fn allocate(cx: &CallContext, device: &'static Device, bytes: u64) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    if bytes > device.info.total_bytes {
        return Err(code::ERROR_OUT_OF_MEMORY);
    }
    device.check()?;
    let first = device.memory_mut().place(cx, device, bytes);
    match first {
        Err(code::ERROR_OUT_OF_MEMORY) if crate::device_memory::stream_ordered::reclaim(cx, device)? => {
            device.memory_mut().place(cx, device, bytes)
        }
        other => other,
    }
}

/// Unmaps spare chunks, so that a move need not transfer them.
pub(crate) fn drop_spare(cx: &CallContext, device: &'static Device) {
    device.memory_mut().drop_spare(cx, device, 0);
}

/// Frees everything that a device has allocated.
pub(crate) fn free_all(cx: &mut CallContext, device: &'static Device) -> Result<(), Code> {
    let mut m = device.memory_mut();
    for (address, bytes) in std::mem::take(&mut m.chunks) {
        unmap(cx, device, address, bytes)?;
    }
    *m = Memory::new(device.index);
    Ok(())
}

/// Frees what was allocated in a context that is destroyed; memory of pools belongs to the device.
pub(crate) fn free_of(cx: &CallContext, device: &'static Device, ctx: u64) -> Result<(), Code> {
    let mut m = device.memory_mut();
    let is_of = |a: &Allocation| a.context == ctx && matches!(a.home, Home::Own | Home::Shared);
    let mine: Vec<u64> = m.live.iter().filter(|(_, a)| is_of(a)).map(|(at, _)| *at).collect();
    for at in mine {
        let a = m.forget(at)?;
        m.release(cx, device, at, a);
    }
    Ok(())
}
