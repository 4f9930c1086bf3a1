//! Writing a value to memory and waiting for one, in stream order.

use super::copy::{check_word, load_word, store_word};
use super::sched::Work;
use crate::result::Res;
use cuda_api::sys::{CUresult, CUstreamBatchMemOpParams};
use std::ffi::c_uint;

/// `CU_STREAM_WAIT_VALUE_*`: how the word is compared.
const COMPARISON: c_uint = 3;
const FLUSH: c_uint = 1 << 30;

/// One operation of a batch; see the header's union of the same name.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Part {
    operation: u32,
    /// Flags of those without an address.
    short_flags: u32,
    address: u64,
    value: u64,
    flags: u32,
    padding: u32,
    alias: [u64; 2],
}

const _: () = assert!(size_of::<Part>() == size_of::<CUstreamBatchMemOpParams>());

impl Part {
    /// Writes a word of 4 or 8 bytes.
    pub(crate) fn write(at: u64, size: u64, value: u64, flags: c_uint) -> Part {
        Part { operation: if size == 4 { 2 } else { 5 }, flags, ..Part::at(at, value) }
    }

    /// Waits for a word of 4 or 8 bytes.
    pub(crate) fn wait(at: u64, size: u64, value: u64, flags: c_uint) -> Part {
        Part { operation: if size == 4 { 1 } else { 4 }, flags, ..Part::at(at, value) }
    }

    fn at(address: u64, value: u64) -> Part {
        Part { operation: 0, short_flags: 0, address, value, flags: 0, padding: 0, alias: [0; 2] }
    }

    /// Size of its word in bytes; 0 for barriers.
    fn size(&self) -> u64 {
        match self.operation {
            1 | 2 => 4,
            4 | 5 => 8,
            _ => 0,
        }
    }

    /// Its form in a node of a graph.
    pub(crate) fn words(&self) -> [u64; 6] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [a, b] = self.alias;
        [pair(self.operation, self.short_flags), self.address, self.value, pair(self.flags, self.padding), a, b]
    }

    /// Converts and checks an operation of a graph node.
    pub(crate) fn of(words: &[u64; 6]) -> Res<Part> {
        let [head, address, value, flags, a, b] = *words;
        let (operation, short_flags) = (head as u32, (head >> 32) as u32);
        let part = Part { operation, short_flags, address, value, flags: flags as u32, padding: 0, alias: [a, b] };
        part.check().map(|()| part)
    }

    /// The action of a stream.
    pub(crate) fn work(&self) -> Work {
        let (at, size) = (self.address, self.size());
        let value = if size == 4 { self.value & u64::from(u32::MAX) } else { self.value };
        match self.operation {
            1 | 4 => {
                let comparison = self.flags & COMPARISON;
                let condition = move || Ok(holds(comparison, load_word(at, size)?, value, size));
                Work::Until(Box::new(move |_| condition()))
            }
            2 | 5 => Work::Run(Box::new(move |_| store_word(at, size, value))),
            _ => Work::Nothing,
        }
    }

    /// Whether a driver accepts it.
    pub(crate) fn check(&self) -> Res {
        let allowed = match self.operation {
            1 | 4 => self.flags & !(COMPARISON | FLUSH) == 0,
            2 | 5 => self.flags == 0,
            6 => self.short_flags <= 1,
            operation => operation == 3,
        };
        if !allowed {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // Remote writes need no flush here, and none is offered.
        if (matches!(self.operation, 1 | 4) && self.flags & FLUSH != 0) || self.operation == 3 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if self.size() == 0 { Ok(()) } else { check_word(self.address, self.size()) }
    }
}

/// Whether a word satisfies a comparison: 0 greater or equal (cyclically), 1 equal, 2 common bits, 3 a zero bit in both.
fn holds(comparison: c_uint, word: u64, value: u64, size: u64) -> bool {
    match comparison {
        0 if size == 4 => (word as u32).wrapping_sub(value as u32) as i32 >= 0,
        0 => word.wrapping_sub(value) as i64 >= 0,
        1 => word == value,
        2 => word & value != 0,
        _ => !(word | value) & (if size == 4 { u64::from(u32::MAX) } else { u64::MAX }) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::holds;

    #[test]
    fn comparisons() {
        assert!(holds(0, 5, 5, 4) && holds(0, 2, u64::from(u32::MAX), 4) && !holds(0, 4, 5, 8));
        assert!(holds(1, 7, 7, 8) && !holds(1, 7, 8, 8));
        assert!(holds(2, 6, 2, 4) && !holds(2, 4, 2, 4));
        assert!(!holds(3, 0xffff_0000, 0xffff, 4) && holds(3, 0xffff_0000, 0xfffe, 4));
    }
}
