//! The lock of a device's allocations, and what calls know of them without it: copies, fills and waits of one thread mostly concern the
//! same allocation, and no free in a stream that is incomplete.

use crate::objects::allocations::Memory;
use crate::place::Waiting;
use crate::thread::{Used, here};
use cuda_api::lock::{read_lock, write_lock};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A synchronisation that no thread waits for.
#[derive(Debug)]
pub(crate) struct Fence {
    /// The last generation of frees that it covers.
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    pub(crate) waiting: Waiting,
}

/// The allocations of a device.
#[derive(Debug)]
pub(crate) struct MemoryLock {
    /// Identifies a state of the allocations, among those of all devices; changed before a lock for writing is released.
    version: AtomicU64,
    /// Whether frees in streams are incomplete ([`Memory::is_settled`]).
    is_unsettled: AtomicBool,
    memory: RwLock<Memory>,
}

impl MemoryLock {
    pub(crate) fn new(memory: Memory) -> MemoryLock {
        let is_unsettled = AtomicBool::new(!memory.is_settled());
        // Each device has an arena of its own, so its address makes the versions differ from those of other devices.
        MemoryLock { version: AtomicU64::new(memory.base), is_unsettled, memory: RwLock::new(memory) }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Memory> {
        read_lock(&self.memory)
    }

    /// As [`MemoryLock::read`], for readers that do not wait.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, Memory>> {
        self.memory.try_read().ok()
    }

    pub(crate) fn write(&self) -> MemoryMut<'_> {
        MemoryMut { memory: write_lock(&self.memory), of: self }
    }

    /// As [`Memory::is_settled`]. A thread that synchronises sees the frees of which it knows.
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_unsettled.load(Ordering::Acquire)
    }

    /// As [`Memory::allows`].
    pub(crate) fn allows(&self, address: u64, bytes: u64) -> Option<bool> {
        let used = &here().used;
        let is_inside =
            |u: Used| bytes > 0 && bytes <= u.bytes && address.checked_sub(u.start).is_some_and(|at| at <= u.bytes - bytes);
        if used.get().version == self.version.load(Ordering::Acquire) && is_inside(used.get()) {
            return Some(true);
        }
        let memory = self.read();
        let allowed = memory.allows(address, bytes);
        if let (Some(true), Some(found)) = (allowed, memory.find(address)) {
            used.set(Used { version: self.version.load(Ordering::Relaxed), start: found.start, bytes: found.bytes });
        }
        allowed
    }
}

/// The allocations, locked for writing.
#[derive(Debug)]
pub(crate) struct MemoryMut<'d> {
    memory: RwLockWriteGuard<'d, Memory>,
    of: &'d MemoryLock,
}

impl Deref for MemoryMut<'_> {
    type Target = Memory;
    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl DerefMut for MemoryMut<'_> {
    fn deref_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }
}

impl Drop for MemoryMut<'_> {
    fn drop(&mut self) {
        self.of.is_unsettled.store(!self.memory.is_settled(), Ordering::Release);
        // One thread at a time has the lock.
        self.of.version.store(self.of.version.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::allocations::Home;
    use cuda_api::address_map::OWN;

    #[test]
    fn a_freed_allocation_is_not_used_again() {
        let devices = [0, 1].map(|d| MemoryLock::new(Memory::new(d)));
        let [one, other] = &devices;
        assert_eq!(one.allows(OWN, 8), Some(false));
        one.write().note(OWN, 100, Home::Shared);
        for _ in 0..2 {
            assert_eq!((one.allows(OWN, 100), one.allows(OWN + 50, 50)), (Some(true), Some(true)));
            assert_eq!(
                (one.allows(OWN + 50, 51), one.allows(OWN, 101), one.allows(OWN - 1, 1)),
                (Some(false), Some(false), None)
            );
            assert_eq!((one.allows(OWN + 100, 0), one.allows(OWN + 99, u64::MAX)), (Some(false), Some(false)));
            assert_eq!(other.allows(OWN, 100), None, "another device's");
        }
        assert!(one.write().forget(OWN).is_ok());
        assert_eq!(one.allows(OWN, 100), Some(false));
        one.write().note(OWN, 50, Home::Shared);
        assert_eq!((one.allows(OWN, 50), one.allows(OWN, 100)), (Some(true), Some(false)));
    }

    #[test]
    fn a_free_in_a_stream_is_seen_without_the_lock() {
        let device = MemoryLock::new(Memory::new(0));
        assert!(device.is_settled());
        let freed = {
            let mut m = device.write();
            m.note(OWN, 100, Home::Shared);
            let freed = m.forget(OWN).unwrap();
            m.free_late(OWN, freed);
            freed
        };
        assert!(!device.is_settled() && freed.bytes == 100);
        device.write().late.clear();
        assert!(device.is_settled());
    }
}
