//! How much memory the calling thread has at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has taken and not given back since [`begin`], and the most so far. What it gives back for another thread
    /// counts as well: an input is checked on one.
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(taken: usize, given: usize) {
    let now = NOW.get().wrapping_add_unsigned(taken).wrapping_sub_unsigned(given);
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

// SAFETY: everything is done by the system's allocator; counting uses thread-local cells, which neither allocate nor end.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's obligations are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Counts from here on.
pub(crate) fn begin() {
    NOW.set(0);
    PEAK.set(0);
}

/// The most that this thread had at a time since [`begin`].
pub(crate) fn peak() -> usize {
    PEAK.get().max(0).unsigned_abs()
}
