//! The allocator of `cuMemAlloc`: small allocations are cut in units of 512 bytes from blocks of 2 MiB, large ones are
//! whole blocks.

use super::device::Device;
use super::os;
use crate::result::Res;
use cuda_api::sys::CUresult;
use std::collections::BTreeMap;

/// Alignment and granularity of allocations.
pub(crate) const UNIT: u64 = 512;
/// Granularity in which device memory is taken.
pub(crate) const BLOCK: u64 = 2 << 20;
/// Larger allocations get separate blocks.
const SMALL: u64 = 1 << 20;

/// The blocks of one device.
#[derive(Default)]
pub(crate) struct Pool {
    /// Blocks that small allocations are cut from: by address, the free pieces by offset.
    blocks: BTreeMap<u64, BTreeMap<u64, u64>>,
}

fn units(size: u64) -> Res<u64> {
    size.checked_next_multiple_of(UNIT).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

fn blocks(size: u64) -> Res<u64> {
    size.checked_next_multiple_of(BLOCK).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

impl Pool {
    /// Allocates `size` bytes.
    pub fn allocate(&mut self, device: &Device, size: u64) -> Res<u64> {
        if size > SMALL {
            return block(device, blocks(size)?);
        }
        let need = units(size)?;
        if let Some(address) = self.cut(need) {
            return Ok(address);
        }
        let base = block(device, BLOCK)?;
        self.blocks.insert(base, BTreeMap::from([(0, BLOCK)]));
        self.cut(need).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn cut(&mut self, need: u64) -> Option<u64> {
        for (base, free) in &mut self.blocks {
            let Some((&offset, &len)) = free.iter().find(|(_, len)| **len >= need) else {
                continue;
            };
            free.remove(&offset);
            if len > need {
                free.insert(offset + need, len - need);
            }
            return Some(base + offset);
        }
        None
    }

    /// Frees an allocation; returns pages that are now unused, for the caller to unmap.
    pub fn free(&mut self, device: &Device, address: u64, size: u64) -> Option<(u64, u64)> {
        if size > SMALL {
            let len = blocks(size).ok()?;
            device.release(len);
            return Some((address, len));
        }
        let len = units(size).ok()?;
        poison(address, len);
        let (&base, free) = self.blocks.range_mut(..=address).next_back()?;
        put_back(free, address - base, len);
        if free.get(&0) == Some(&BLOCK) {
            self.blocks.remove(&base);
            device.release(BLOCK);
            return Some((base, BLOCK));
        }
        None
    }
}

/// Fills freed memory with a pattern that is unlikely to pass for data.
pub(crate) fn poison(address: u64, len: u64) {
    // SAFETY: the bytes lie in a block of the allocator that nothing uses any more.
    unsafe { std::ptr::write_bytes(address as *mut u8, 0xDB, len as usize) };
}

/// Whole pages for the driver's own blocks.
pub(crate) fn block(device: &Device, len: u64) -> Res<u64> {
    device.take(len)?;
    os::anywhere(len).inspect_err(|_| device.release(len))
}

/// Adds a free piece and merges it with its neighbours.
fn put_back(free: &mut BTreeMap<u64, u64>, mut offset: u64, mut len: u64) {
    if let Some(next) = free.remove(&(offset + len)) {
        len += next;
    }
    if let Some((&before, &before_len)) = free.range(..offset).next_back()
        && before + before_len == offset
    {
        free.remove(&before);
        offset = before;
        len += before_len;
    }
    free.insert(offset, len);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_again() {
        let mut free = BTreeMap::from([(0, 512), (1536, 512)]);
        put_back(&mut free, 1024, 512);
        assert_eq!(free, BTreeMap::from([(0, 512), (1024, 1024)]));
        put_back(&mut free, 512, 512);
        assert_eq!(free, BTreeMap::from([(0, 2048)]));
    }
}
