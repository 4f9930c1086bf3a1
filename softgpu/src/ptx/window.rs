//! The windows of generic addresses, and the ranges of global memory that a launch may touch.
//!
//! Generic addresses whose highest byte is 0 are addresses of this process (global, constant and mapped host memory) and
//! are used only inside `Env::ranges`. Shared, local and kernel-parameter memory have windows above, whose addresses
//! no process can own.

use super::error::Fault;

/// Generic address of byte 0 of shared memory.
pub(crate) const SHARED_WINDOW: u64 = 0x0100_0000_0000_0000;
/// Generic address of byte 0 of a thread's local memory.
pub(crate) const LOCAL_WINDOW: u64 = 0x0200_0000_0000_0000;
/// Generic address of byte 0 of the kernel's parameters.
pub(crate) const PARAM_WINDOW: u64 = 0x0300_0000_0000_0000;
/// Bits of a generic address that identify the window.
pub(crate) const WINDOW_SHIFT: u32 = 56;

/// Why an access failed, with its generic address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemError {
    Illegal(u64),
    Misaligned(u64),
}

impl From<MemError> for Fault {
    fn from(error: MemError) -> Fault {
        match error {
            MemError::Illegal(address) => Fault::IllegalAddress(address),
            MemError::Misaligned(address) => Fault::MisalignedAddress(address),
        }
    }
}

/// The address ranges of this process that a launch may touch.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Takes `[start, end)` pairs in any order; touching and overlapping ones become one.
    ///
    /// Every byte of them must stay mapped, readable and writable for as long as a launch uses the value.
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Ranges {
        let mut all: Vec<_> = ranges.into_iter().filter(|r| r.0 < r.1 && r.1 <= SHARED_WINDOW).collect();
        all.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (start, end) in all {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Ranges(merged)
    }

    /// The range that holds `address`.
    pub fn find(&self, address: u64) -> Option<(u64, u64)> {
        let next = self.0.partition_point(|r| r.0 <= address);
        self.0.get(next.checked_sub(1)?).copied().filter(|r| address < r.1)
    }
}

/// The window that a generic address belongs to; 0 for global memory.
#[inline(always)]
pub(crate) fn window(address: u64) -> u64 {
    address >> WINDOW_SHIFT << WINDOW_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_find() {
        let ranges = Ranges::new([(0x3000, 0x4000), (0x1000, 0x2000), (0x2000, 0x2800), (5, 5), (1 << 60, 1 << 61)]);
        assert_eq!(ranges.find(0x27ff), Some((0x1000, 0x2800)));
        assert_eq!(ranges.find(0x2800), None);
        assert_eq!(ranges.find(0xfff), None);
        assert_eq!(ranges.find(0x3000), Some((0x3000, 0x4000)));
        assert_eq!(ranges.find(1 << 60), None);
    }
}
