//! Closes descriptors in forked children.
//!
//! A child of `fork` that does not exec keeps copies of its parent's descriptors. The end of the parent would then not close a
//! connection, and a worker would keep its GPU for a job that has ended; memory of a GPU would stay when the parent has freed it. The child
//! therefore closes them before it runs anything else.

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Maximum number of descriptors that can be registered: connections of 32 GPUs, data connections of some copies, shared memory, memory of
/// GPUs.
const MAX_DESCRIPTORS: usize = 16 << 10;
const NONE: RawFd = -1;
static OPEN: [AtomicI32; MAX_DESCRIPTORS] = [const { AtomicI32::new(NONE) }; MAX_DESCRIPTORS];

/// A descriptor that forked children do not keep. It must be dropped before the descriptor is closed, because the number may
/// then be reused.
#[derive(Debug)]
pub struct NotInherited {
    slot: usize,
}

impl NotInherited {
    /// Registers a descriptor. `None` if too many are registered: children inherit it.
    pub fn note(fd: RawFd) -> Option<NotInherited> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // Without memory for the handler, children inherit the descriptors, which only matters if a job dies before its
            // children.
            // SAFETY: the handler only swaps atomics and closes descriptors, and this library is never unloaded.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        let free = |s: &AtomicI32| s.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Mostly the slot after the last one.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let start = NEXT.load(Ordering::Relaxed) % MAX_DESCRIPTORS;
        let slot = (start..MAX_DESCRIPTORS).chain(0..start).find(|slot| free(&OPEN[*slot]))?;
        NEXT.store(slot + 1, Ordering::Relaxed);
        Some(NotInherited { slot })
    }
}

impl Drop for NotInherited {
    fn drop(&mut self) {
        OPEN[self.slot].store(NONE, Ordering::Release);
    }
}

extern "C" fn in_child() {
    for slot in &OPEN {
        let fd = slot.swap(NONE, Ordering::AcqRel);
        if fd != NONE {
            // SAFETY: the parent's descriptor; its owner runs nothing in a child, where every call is refused.
            unsafe { libc::close(fd) };
        }
    }
}
