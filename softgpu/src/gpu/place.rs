//! Placement of the variables and code of modules.
//!
//! **The rule.** Each context has chunks of 2 MiB (more for a larger module), each from one `mmap(NULL, …)` of its own, which it keeps
//! as long as it lives: some for code, others for variables. A module's variables lie together in the first gap that is large enough.
//! So an address depends on what is loaded and on what was loaded when that came, also on modules that are unloaded since; a module
//! that was loaded and unloaded with nothing else loaded in between leaves no trace, and one without variables moves none, unless its
//! functions are long: their code is placed when they are looked up, and needs a chunk of its own if it is long enough. Work, streams, events and
//! allocations change nothing. All of this is what was measured of the real driver (docs/migration.md, "Address reproducibility").

use super::device::Device;
use super::pool::{self, BLOCK};
use super::retire::{Retired, Then};
use crate::result::Res;
use cuda_api::sys::CUresult;

/// Smallest distance of variables, as on the real driver.
const ALIGN: u64 = 256;

struct Chunk {
    base: u64,
    len: u64,
    /// Minimum offset of its first item.
    from: u64,
    /// First byte and end of each module's items, by address.
    used: Vec<(u64, u64)>,
}

/// Addresses of items of (size, alignment) that lie one after the other, and where the last one ends.
fn lay(from: u64, items: &[(u64, u64)]) -> Option<(Vec<u64>, u64)> {
    let mut at = from;
    let mut addresses = Vec::with_capacity(items.len());
    for (size, align) in items {
        at = at.checked_next_multiple_of((*align).max(ALIGN))?;
        addresses.push(at);
        at = at.checked_add(*size)?;
    }
    Some((addresses, at))
}

impl Chunk {
    /// Takes the first gap that fits the items.
    fn take(&mut self, items: &[(u64, u64)]) -> Option<Vec<u64>> {
        let mut from = self.from;
        for i in 0..=self.used.len() {
            let end = self.used.get(i).map_or(self.base + self.len, |(start, _)| *start);
            let (addresses, last) = lay(from, items)?;
            if last <= end {
                self.used.insert(i, (*addresses.first()?, last));
                return Some(addresses);
            }
            from = self.used.get(i)?.1;
        }
        None
    }
}

/// The chunks for code, or those for variables.
#[derive(Default)]
struct Area(Vec<Chunk>);

impl Area {
    fn take(&mut self, device: &Device, items: &[(u64, u64)]) -> Res<Vec<u64>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(addresses) = self.0.iter_mut().find_map(|chunk| chunk.take(items)) {
            return Ok(addresses);
        }
        let displaced = crate::config::get().displaced;
        // Alignments above a page are rare: room for the worst case of each.
        let need = items.iter().try_fold(0u64, |sum, (size, align)| sum.checked_add(*size)?.checked_add((*align).max(ALIGN)));
        let len = need.and_then(|n| n.max(1).checked_add(displaced)?.checked_next_multiple_of(BLOCK));
        let len = len.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let base = pool::block(device, len)?;
        let mut chunk = Chunk { base, len, from: base + displaced, used: Vec::new() };
        let taken = chunk.take(items);
        self.0.push(chunk);
        taken.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn leave(&mut self, first: u64) {
        self.0.iter_mut().for_each(|chunk| chunk.used.retain(|(start, _)| *start != first));
    }

    fn end(&mut self, device: &Device, retired: &mut Retired) {
        for chunk in self.0.drain(..) {
            retired.take_away(chunk.base, chunk.len, Then::Unmap);
            device.release(chunk.len);
        }
    }
}

/// Placement of the code and variables of one context.
#[derive(Default)]
pub(crate) struct Place {
    code: Area,
    variables: Area,
}

/// The ranges of the variables of one module.
#[derive(Debug)]
pub(crate) struct Room {
    /// In the order of the requested sizes.
    pub addresses: Vec<u64>,
}

impl Place {
    /// Allocates ranges for variables of (size, alignment), in order.
    pub fn take(&mut self, device: &Device, variables: &[(u64, u64)]) -> Res<Room> {
        Ok(Room { addresses: self.variables.take(device, variables)? })
    }

    /// Allocates a range for the code of a function.
    pub fn take_function(&mut self, device: &Device, bytes: u64) -> Res<u64> {
        self.code.take(device, &[(bytes, 1)])?.first().copied().ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Releases such a range.
    pub fn leave_function(&mut self, code: u64) {
        self.code.leave(code);
    }

    /// Releases the ranges of a module.
    pub fn leave(&mut self, room: &Room) {
        room.addresses.first().into_iter().for_each(|first| self.variables.leave(*first));
    }

    /// Releases all ranges with the context.
    pub fn end(&mut self, device: &Device, retired: &mut Retired) {
        self.code.end(device, retired);
        self.variables.end(device, retired);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_gap_is_taken() {
        let mut chunk = Chunk { base: 0x10000, len: 0x2000, from: 0x10000, used: Vec::new() };
        assert_eq!(chunk.take(&[(256, 1), (100, 1)]), Some(vec![0x10000, 0x10100]));
        assert_eq!(chunk.take(&[(0x800, 0x400)]), Some(vec![0x10400]));
        assert_eq!(chunk.take(&[(1, 1)]), Some(vec![0x10200]), "behind the first, since there is room");
        chunk.used.remove(0);
        assert_eq!(chunk.take(&[(0x200, 1)]), Some(vec![0x10000]));
        assert_eq!(chunk.take(&[(0x1401, 1)]), None);
        assert_eq!(chunk.take(&[(0x1400, 1)]), Some(vec![0x10c00]));
    }
}
