//! Connections and forked children.
//!
//! A child of `fork` that does not exec keeps copies of its parent's sockets. Then the end of the parent would not be the end
//! of the connection, and a worker would keep its GPU for a job that is dead. So the child closes them before it does anything
//! else.

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

/// Sockets that can be open at one time: connections of 32 GPUs, stripes of some copies, borrowed memory.
const MOST: usize = 1024;
const NONE: RawFd = -1;
static OPEN: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];

/// A socket that no forked child keeps. It must go before the socket is closed: its number may be another one's then.
#[derive(Debug)]
pub struct NotInherited {
    slot: usize,
}

impl NotInherited {
    /// Notes a socket. `None` if too many are open: that one is inherited.
    pub fn note(fd: RawFd) -> Option<NotInherited> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // Without memory for the handler, children inherit: that does no harm until a job dies before its children.
            // SAFETY: the handler only swaps atomics and closes descriptors, and this library is never unloaded.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        let free = |s: &AtomicI32| s.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        OPEN.iter().position(free).map(|slot| NotInherited { slot })
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
            // SAFETY: the parent's socket; whoever owns it here is never run in a child (every call is refused there).
            unsafe { libc::close(fd) };
        }
    }
}
