//! Locks of parts of memory, for threads that find or apply changes of exclusive memory at the same time.

use cuda_api::lock::lock;
use std::sync::{Mutex, MutexGuard};

/// Bytes of a part, which is at a multiple of this. One message has the changes of one part.
pub(super) const PART: u64 = 512 << 10;

/// One for all parts of memory whose numbers have the same remainder. Held while changes of a part are found, or applied to it: what one thread applies
/// must not be found by another one as this side's own change.
#[derive(Debug)]
pub(super) struct PartLocks([Mutex<()>; 64]);

impl Default for PartLocks {
    fn default() -> PartLocks {
        PartLocks([const { Mutex::new(()) }; 64])
    }
}

impl PartLocks {
    /// Locks the part in which an address is.
    pub(super) fn lock(&self, at: u64) -> MutexGuard<'_, ()> {
        lock(&self.0[(at / PART) as usize % self.0.len()])
    }
}
