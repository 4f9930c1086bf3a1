//! The heap of device-side `malloc`.
//!
//! It lies at a fixed address for the first context of a process ([`FIRST`]), 4 GiB further for each next one, and
//! **all** its bookkeeping is in the heap itself: after a copy of the bytes to the same address in another process,
//! allocation continues there.
//!
//! Layout: a header of 32 bytes (magic, size, offset of the first free block, unused), then blocks without gaps. A block is
//! a head of 16 bytes, its length with bit 0 set while in use and the length of the block before it, and its payload. A free
//! block's payload begins with the offsets of the next and the previous free block. Offset 0 means none. Kernels can write
//! over all this; every offset and length read is checked, and damage makes `malloc` fail and `free` do nothing.

use super::device::Device;
use super::{lock, os};
use crate::ptx::DeviceHeap;
use crate::result::Res;
use cuda_api::sys::CUresult;
use std::sync::Mutex;

/// Address of the first context's heap.
pub(crate) const FIRST: u64 = 0x2_0540_0000;
/// Distance of heaps.
const STEP: u64 = 4 << 30;
/// Maximum number of contexts with a heap slot.
const SLOTS: u32 = 64;
/// Default size, unless changed by `cuCtxSetLimit`.
pub(crate) const DEFAULT_SIZE: u64 = 8 << 20;

const MAGIC: u64 = 0x3170_6165_6874_6673;
const HEADER: u64 = 32;
const HEAD: u64 = 16;
/// Head and the two links of a free block.
const SMALLEST: u64 = 32;
const IN_USE: u64 = 1;

/// The slots in use by contexts.
static TAKEN: Mutex<u64> = Mutex::new(0);

/// A context's right to a place for its heap: the lowest that is free when the context is made, so that the order of
/// contexts alone decides. When all are taken the context can have no heap.
pub(crate) fn take_slot() -> Option<u32> {
    let mut taken = lock(&TAKEN);
    let free = (0..SLOTS).find(|slot| *taken & (1 << slot) == 0);
    *taken |= free.map_or(0, |slot| 1 << slot);
    free
}

/// Releases the slot, once nothing is mapped there.
pub(crate) fn release_slot(slot: Option<u32>) {
    *lock(&TAKEN) &= !slot.map_or(0, |slot| 1 << slot);
}

/// A placed heap.
pub(crate) struct Heap {
    base: u64,
    size: u64,
    /// Serializes the kernels' calls; the heap's state is not stored here.
    turn: Mutex<()>,
}

impl Heap {
    /// Places a heap of `size` bytes (rounded up to pages) in the context's slot and makes it empty. Something else there is
    /// `OUT_OF_MEMORY`: anywhere else it could not be moved to another process.
    pub fn place(device: &Device, slot: Option<u32>, size: u64) -> Res<Heap> {
        let size = size.max(4096).checked_next_multiple_of(4096).filter(|n| *n < STEP - (64 << 20));
        let size = size.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        device.take(size)?;
        let slot = slot.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let placed = slot.and_then(|slot| os::exactly(FIRST + u64::from(slot) * STEP, size));
        let base = placed.inspect_err(|_| device.release(size))?;
        let heap = Heap { base, size, turn: Mutex::new(()) };
        heap.format();
        Ok(heap)
    }

    /// Its address and size.
    pub fn range(&self) -> (u64, u64) {
        (self.base, self.size)
    }

    fn format(&self) {
        let len = self.size - HEADER;
        for (offset, value) in [(0, MAGIC), (8, self.size), (16, HEADER), (24, 0)] {
            self.set(offset, value);
        }
        for (offset, value) in [(0, len), (8, 0), (16, 0), (24, 0)] {
            self.set(HEADER + offset, value);
        }
    }

    fn get(&self, offset: u64) -> u64 {
        // SAFETY: callers pass offsets inside the heap, which stays mapped while it exists; kernels may write at the same
        // time, so the value is checked wherever it is used.
        unsafe { std::ptr::read_volatile((self.base + offset) as *const u64) }
    }

    fn set(&self, offset: u64, value: u64) {
        // SAFETY: as in `get`.
        unsafe { std::ptr::write_volatile((self.base + offset) as *mut u64, value) };
    }

    /// Length of the block at `offset`, if its header is valid.
    fn block(&self, offset: u64) -> Option<(u64, bool)> {
        if offset < HEADER || offset > self.size - SMALLEST || !offset.is_multiple_of(16) {
            return None;
        }
        let word = self.get(offset);
        let len = word & !15;
        (len >= SMALLEST && len <= self.size - offset).then_some((len, word & IN_USE != 0))
    }

    fn sound(&self) -> bool {
        self.get(0) == MAGIC && self.get(8) == self.size
    }

    /// Removes a free block from the list.
    fn unlink(&self, offset: u64) -> Option<()> {
        let (next, previous) = (self.get(offset + 16), self.get(offset + 24));
        if next != 0 {
            self.block(next)?;
        }
        if previous == 0 {
            self.set(16, next);
        } else {
            self.block(previous)?;
            self.set(previous + 16, next);
        }
        if next != 0 {
            self.set(next + 24, previous);
        }
        Some(())
    }

    /// Adds a free block at the front of the list.
    fn link(&self, offset: u64, len: u64) -> Option<()> {
        let first = self.get(16);
        if first != 0 {
            self.block(first)?;
            self.set(first + 24, offset);
        }
        self.set(offset, len);
        self.set(offset + 16, first);
        self.set(offset + 24, 0);
        self.set(16, offset);
        self.tell_next(offset, len);
        Some(())
    }

    /// Updates the length of this block in the header of the next one.
    fn tell_next(&self, offset: u64, len: u64) {
        if offset + len <= self.size - SMALLEST {
            self.set(offset + len + 8, len);
        }
    }

    fn allocate(&self, size: u64) -> Option<u64> {
        let need = size.checked_add(HEAD + 15)? & !15;
        let need = need.max(SMALLEST);
        let mut offset = self.get(16);
        // No list is longer than this; a longer walk is a loop made by a stray write.
        for _ in 0..self.size / SMALLEST {
            let (len, used) = self.block(offset)?;
            if used {
                return None;
            }
            if len >= need {
                self.unlink(offset)?;
                let mine = if len - need >= SMALLEST {
                    self.set(offset + need + 8, need);
                    self.link(offset + need, len - need)?;
                    need
                } else {
                    len
                };
                self.set(offset, mine | IN_USE);
                return Some(self.base + offset + HEAD);
            }
            offset = self.get(offset + 16);
        }
        None
    }

    fn release(&self, address: u64) -> Option<()> {
        let mut offset = address.checked_sub(self.base + HEAD)?;
        let (mut len, used) = self.block(offset)?;
        if !used {
            return None;
        }
        if let Some((next_len, false)) = self.block(offset + len) {
            self.unlink(offset + len)?;
            len += next_len;
        }
        let before = self.get(offset + 8);
        if before != 0
            && let Some(previous) = offset.checked_sub(before)
            && self.block(previous) == Some((before, false))
        {
            self.unlink(previous)?;
            offset = previous;
            len += before;
        }
        self.link(offset, len)
    }
}

impl DeviceHeap for Heap {
    fn malloc(&self, size: u64) -> u64 {
        let _turn = lock(&self.turn);
        if size == 0 || !self.sound() { 0 } else { self.allocate(size).unwrap_or(0) }
    }

    fn free(&self, address: u64) -> bool {
        if address == 0 {
            return true;
        }
        let _turn = lock(&self.turn);
        self.sound() && self.release(address).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(size: u64) -> Heap {
        let heap = Heap { base: os::anywhere(size).expect("memory"), size, turn: Mutex::new(()) };
        heap.format();
        heap
    }

    #[test]
    fn blocks_are_disjoint_and_come_back() {
        let heap = heap(64 << 10);
        let blocks: Vec<u64> = (1..40).map(|i| heap.malloc(i * 8)).collect();
        for (i, block) in blocks.iter().enumerate() {
            assert!(*block != 0 && block.is_multiple_of(16));
            let end = block + (i as u64 + 1) * 8;
            assert!(blocks.iter().enumerate().all(|(j, other)| i == j || *other >= end || *other < *block));
        }
        assert_eq!(heap.malloc(64 << 10), 0);
        for block in blocks.iter().step_by(2).chain(blocks.iter().skip(1).step_by(2)) {
            assert!(heap.free(*block));
        }
        assert!(!heap.free(blocks[0]), "freed twice");
        // Everything has joined again: one block of the whole size can be had.
        assert_ne!(heap.malloc((64 << 10) - HEADER - HEAD), 0);
    }

    #[test]
    fn raw_bytes_continue_elsewhere() {
        let first = heap(64 << 10);
        let kept = first.malloc(100);
        let freed = first.malloc(100);
        assert!(first.free(freed));
        let second = heap(64 << 10);
        // SAFETY: two mapped heaps of the same size.
        unsafe { std::ptr::copy_nonoverlapping(first.base as *const u8, second.base as *mut u8, 64 << 10) };
        let here = |address: u64| address - first.base + second.base;
        assert_eq!(second.malloc(100), here(freed));
        assert!(second.free(here(kept)));
    }

    #[test]
    fn damage_is_refused() {
        let heap = heap(64 << 10);
        let block = heap.malloc(64);
        heap.set(16, u64::MAX);
        assert_eq!(heap.malloc(64), 0);
        assert!(!heap.free(block + 8));
        heap.set(0, 0);
        assert_eq!(heap.malloc(1), 0);
    }
}
