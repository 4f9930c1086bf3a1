//! Unmaps memory while kernels may be running on it.
//!
//! `cuMemUnmap` does not wait for kernels; one that continues to use the range faults on hardware. Kernels here access
//! memory of this process, which must not crash: the range gets fresh empty pages until no kernel runs, and if those
//! were touched the kernel has faulted. If kernels of several contexts could have touched them, none is charged with
//! the fault.

use super::os::{self, Protection};
use crate::ptx::Ranges;
use std::sync::Arc;

/// The final state of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// Reserved address space without memory.
    Reserve,
    /// Returned to the system.
    Unmap,
}

struct Leaving {
    address: u64,
    len: u64,
    then: Then,
    /// The only context whose kernels could access it when it was unmapped.
    suspect: Option<u64>,
}

impl Leaving {
    fn touched(&self) -> bool {
        os::touched(self.address, self.len)
    }
}

/// Unmapped ranges that must stay accessible for a while.
#[derive(Default)]
pub(crate) struct Retired {
    /// Running kernels, by number of their context, with the ranges that they may use.
    running: Vec<(u64, Arc<Ranges>)>,
    leaving: Vec<Leaving>,
    /// Contexts whose kernels have used a range that has been mapped again since.
    guilty: Vec<u64>,
}

impl Retired {
    /// Records the start of a context's kernel, which may use `ranges`.
    pub fn kernel_begins(&mut self, context: u64, ranges: Arc<Ranges>) {
        self.running.push((context, ranges));
    }

    /// Records the end of a context's kernel; true if one of this context used a range after it was unmapped.
    pub fn kernel_ends(&mut self, context: u64) -> bool {
        if let Some(index) = self.running.iter().position(|(running, _)| *running == context) {
            self.running.swap_remove(index);
        }
        let used = self.leaving.iter().any(|range| range.suspect == Some(context) && range.touched());
        let guilty = self.guilty.contains(&context);
        self.guilty.retain(|other| *other != context);
        if self.running.is_empty() {
            self.guilty.clear();
            for range in std::mem::take(&mut self.leaving) {
                finish(range.address, range.len, range.then);
            }
        }
        used || guilty
    }

    /// Unmaps a range.
    pub fn take_away(&mut self, address: u64, len: u64, then: Then) {
        if self.running.is_empty() {
            return finish(address, len, then);
        }
        let mut users = self.running.iter().filter(|(_, ranges)| ranges.find(address).is_some()).map(|(context, _)| *context);
        let suspect = users.next().filter(|first| users.all(|other| other == *first));
        // If fresh pages cannot be had the old ones stay until the kernels have ended.
        let fresh = os::replace(address, len, Protection::ReadWrite).is_ok();
        self.leaving.push(Leaving { address, len, then, suspect: suspect.filter(|_| fresh) });
    }

    /// Releases address space without memory, once parts that were unmapped before are no longer needed.
    pub fn drop_space(&mut self, address: u64, len: u64) {
        if self.running.is_empty() {
            return finish(address, len, Then::Unmap);
        }
        self.leaving.push(Leaving { address, len, then: Then::Unmap, suspect: None });
    }

    /// Cancels the final state of a range that is about to be mapped again.
    pub fn reuse(&mut self, address: u64, len: u64) {
        let end = address + len;
        let mut kept = Vec::with_capacity(self.leaving.len());
        for range in self.leaving.drain(..) {
            let range_end = range.address + range.len;
            if range_end <= address || range.address >= end {
                kept.push(range);
                continue;
            }
            self.guilty.extend(range.suspect.filter(|_| range.touched()));
            if range.address < address {
                kept.push(Leaving { len: address - range.address, ..range });
            }
            if range_end > end {
                kept.push(Leaving { address: end, len: range_end - end, ..range });
            }
        }
        self.leaving = kept;
    }
}

fn finish(address: u64, len: u64, then: Then) {
    match then {
        // A failure leaves pages that nothing refers to.
        Then::Reserve => drop(os::replace(address, len, Protection::None)),
        Then::Unmap => os::unmap(address, len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(address: u64) {
        // SAFETY: the tests touch only ranges that stay mapped while a kernel runs.
        unsafe { std::ptr::write_volatile(address as *mut u8, 1) };
    }

    #[test]
    fn use_after_unmap_is_seen() {
        let mut retired = Retired::default();
        let at = os::anywhere(8192).expect("memory");
        let ranges = Arc::new(Ranges::new([(at, at + 8192)]));
        retired.kernel_begins(1, ranges.clone());
        retired.kernel_begins(2, Arc::new(Ranges::new([])));
        retired.take_away(at, 8192, Then::Unmap);
        touch(at);
        assert!(!retired.kernel_ends(2), "could not have done it");
        assert!(retired.kernel_ends(1));
        retired.kernel_begins(1, ranges);
        assert!(!retired.kernel_ends(1), "long ago");
    }

    #[test]
    fn nobody_is_blamed_for_another() {
        let mut retired = Retired::default();
        let at = os::anywhere(4096).expect("memory");
        let ranges = Arc::new(Ranges::new([(at, at + 4096)]));
        retired.kernel_begins(1, ranges.clone());
        retired.kernel_begins(2, ranges);
        retired.take_away(at, 4096, Then::Unmap);
        touch(at);
        assert!(!retired.kernel_ends(1) && !retired.kernel_ends(2));
    }

    #[test]
    fn a_reused_part_is_left_alone() {
        let mut retired = Retired::default();
        let at = os::anywhere(12288).expect("memory");
        retired.kernel_begins(1, Arc::new(Ranges::new([(at, at + 12288)])));
        retired.take_away(at, 12288, Then::Reserve);
        touch(at + 4096);
        retired.reuse(at + 4096, 4096);
        assert_eq!(retired.leaving.iter().map(|r| (r.address - at, r.len)).collect::<Vec<_>>(), [(0, 4096), (8192, 4096)]);
        assert!(retired.kernel_ends(1));
        os::unmap(at, 12288);
    }
}
