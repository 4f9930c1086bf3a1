//! Taking memory away while kernels may be running on it.
//!
//! `cuMemUnmap` does not wait for kernels; one that goes on using the range faults on hardware. Kernels here read memory of
//! this process, which must not crash: the range gets fresh empty pages until no kernel runs, and if those were touched the
//! next kernel to end has faulted. (With several running, the one blamed may be the wrong one.)

use super::os::{self, Protection};

/// What becomes of a range in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// It is address space without memory again.
    Reserve,
    /// It is given back to the system.
    Unmap,
}

struct Leaving {
    address: u64,
    len: u64,
    then: Then,
    /// Whether pages of it show that a kernel used it.
    watched: bool,
}

/// Ranges that have been taken away but must stay harmless for a while.
#[derive(Default)]
pub(crate) struct Retired {
    running: usize,
    leaving: Vec<Leaving>,
    touched: bool,
}

impl Retired {
    /// A kernel starts: it may use what is mapped now.
    pub fn kernel_begins(&mut self) {
        self.running += 1;
    }

    /// A kernel has ended; true if a range was used after it had been taken away.
    pub fn kernel_ends(&mut self) -> bool {
        self.running -= 1;
        self.touched |= self.leaving.iter().any(|range| range.watched && os::touched(range.address, range.len));
        if self.running == 0 {
            for range in std::mem::take(&mut self.leaving) {
                finish(range.address, range.len, range.then);
            }
        }
        std::mem::take(&mut self.touched)
    }

    /// Takes a range away.
    pub fn take_away(&mut self, address: u64, len: u64, then: Then) {
        if self.running == 0 {
            return finish(address, len, then);
        }
        // If fresh pages cannot be had the old ones stay until the kernels have ended.
        let watched = os::replace(address, len, Protection::ReadWrite).is_ok();
        self.leaving.push(Leaving { address, len, then, watched });
    }

    /// Gives address space back that has no memory, once parts taken away before are no longer needed.
    pub fn drop_space(&mut self, address: u64, len: u64) {
        if self.running == 0 {
            return finish(address, len, Then::Unmap);
        }
        self.leaving.push(Leaving { address, len, then: Then::Unmap, watched: false });
    }

    /// A range is about to be mapped anew: what was to become of it no longer matters.
    pub fn reuse(&mut self, address: u64, len: u64) {
        let end = address + len;
        let mut kept = Vec::with_capacity(self.leaving.len());
        for range in self.leaving.drain(..) {
            let range_end = range.address + range.len;
            if range_end <= address || range.address >= end {
                kept.push(range);
                continue;
            }
            self.touched |= range.watched && os::touched(range.address, range.len);
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

    #[test]
    fn use_after_unmap_is_seen() {
        let mut retired = Retired::default();
        let at = os::anywhere(8192).expect("memory");
        retired.kernel_begins();
        retired.take_away(at, 8192, Then::Unmap);
        // SAFETY: the range stays mapped until the kernel has ended.
        unsafe { std::ptr::write_volatile(at as *mut u8, 1) };
        assert!(retired.kernel_ends());
        retired.kernel_begins();
        assert!(!retired.kernel_ends());
    }

    #[test]
    fn a_reused_part_is_left_alone() {
        let mut retired = Retired::default();
        let at = os::anywhere(12288).expect("memory");
        retired.kernel_begins();
        retired.take_away(at, 12288, Then::Reserve);
        retired.reuse(at + 4096, 4096);
        assert_eq!(retired.leaving.iter().map(|r| (r.address - at, r.len)).collect::<Vec<_>>(), [(0, 4096), (8192, 4096)]);
        assert!(!retired.kernel_ends());
        os::unmap(at, 12288);
    }
}
