//! Where the driver puts what it places itself: variables and code of modules.
//!
//! **The rule.** Each context has chunks of 2 MiB (more for a larger module), each from one `mmap(NULL, …)` of its own, and
//! fills the newest one upwards; a module that does not fit starts a new chunk. What a module had is never used again; a
//! chunk that is not the newest goes back to the system when its last module is unloaded. So an address depends on the
//! modules loaded before, also on those unloaded since, as on the real driver: after "load A, unload A, load B" B lies
//! elsewhere than after "load B". Work, streams, events and allocations change nothing.

use super::device::Device;
use super::pool::BLOCK;
use super::{memory, os};
use crate::abi::Res;
use cuda_api::sys::CUresult;

/// Smallest distance of variables, as on the real driver.
const ALIGN: u64 = 256;

struct Chunk {
    base: u64,
    len: u64,
    used: u64,
    modules: usize,
}

/// The chunks of one context.
#[derive(Default)]
pub(crate) struct Place {
    chunks: Vec<Chunk>,
}

/// Room for one module.
#[derive(Debug)]
pub(crate) struct Room {
    /// Address of the chunk, which names it.
    chunk: u64,
    /// Addresses, in the order of the sizes asked for.
    pub addresses: Vec<u64>,
}

impl Place {
    /// Room for items of (size, alignment), in order.
    pub fn take(&mut self, device: &Device, items: &[(u64, u64)]) -> Res<Room> {
        let lay = |from: u64| -> Option<(Vec<u64>, u64)> {
            let mut at = from;
            let mut addresses = Vec::with_capacity(items.len());
            for (size, align) in items {
                at = at.checked_next_multiple_of((*align).max(ALIGN))?;
                addresses.push(at);
                at = at.checked_add(*size)?;
            }
            Some((addresses, at))
        };
        if let Some(chunk) = self.chunks.last_mut()
            && let Some((addresses, end)) = lay(chunk.base + chunk.used)
            && end <= chunk.base + chunk.len
        {
            chunk.used = end - chunk.base;
            chunk.modules += 1;
            return Ok(Room { chunk: chunk.base, addresses });
        }
        let displaced = crate::config::get().displaced;
        // Alignments above a page are rare: room for the worst case of each.
        let need =
            items.iter().try_fold(0u64, |sum, (size, align)| sum.checked_add(*size)?.checked_add((*align).max(ALIGN)));
        let len =
            need.and_then(|n| n.max(1).checked_add(displaced)?.checked_next_multiple_of(BLOCK)).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let base = memory::block(device, len)?;
        let Some((addresses, end)) = lay(base + displaced) else {
            os::unmap(base, len);
            device.give(len);
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        };
        if let Some(old) = self.chunks.last()
            && old.modules == 0
        {
            release(device, old);
            self.chunks.pop();
        }
        self.chunks.push(Chunk { base, len, used: end - base, modules: 1 });
        Ok(Room { chunk: base, addresses })
    }

    /// A module is gone.
    pub fn leave(&mut self, device: &Device, room: &Room) {
        let newest = self.chunks.len().saturating_sub(1);
        if let Some(index) = self.chunks.iter().position(|chunk| chunk.base == room.chunk) {
            self.chunks[index].modules -= 1;
            if self.chunks[index].modules == 0 && index != newest {
                release(device, &self.chunks.remove(index));
            }
        }
    }

    /// The context is gone.
    pub fn end(&mut self, device: &Device) {
        for chunk in self.chunks.drain(..) {
            release(device, &chunk);
        }
    }
}

fn release(device: &Device, chunk: &Chunk) {
    memory::write().retired.take_away(chunk.base, chunk.len, super::retire::Then::Unmap);
    device.give(chunk.len);
}
