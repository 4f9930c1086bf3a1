//! The GPU memory that a place uses for its job, within limits.
//!
//! Counted are chunks, arrays, memory for tiles, the variables of the job's code, and the device heap: what the job asks for by its size. What
//! a driver needs for a context, for code and for local memory is not.

use crate::limits::report_once;
use cuda_api::code::{self, Code};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An account on which several places of one client are.
pub trait Account: Send + Sync + Debug {
    /// Uses bytes, unless the client uses too many then.
    fn hold(&self, bytes: u64) -> bool;
    /// They are not used any more.
    fn give_back(&self, bytes: u64);
    /// Bytes that the client may use, at all its places together.
    fn limit(&self) -> u64;
    /// Bytes that it may still use.
    fn room(&self) -> u64;
}

/// What a place uses.
#[derive(Debug)]
pub struct GpuMemory {
    limit: AtomicU64,
    used: AtomicU64,
    account: OnceLock<Arc<dyn Account>>,
    reported: [AtomicBool; 2],
}

impl Default for GpuMemory {
    fn default() -> GpuMemory {
        let no = || AtomicBool::new(false);
        GpuMemory { limit: AtomicU64::new(u64::MAX), used: AtomicU64::new(0), account: OnceLock::new(), reported: [no(), no()] }
    }
}

impl GpuMemory {
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Puts the place on a client's account, before it uses any memory.
    pub fn set_account(&self, account: Arc<dyn Account>) {
        // A place has one client.
        let _ = self.account.set(account);
    }

    /// Bytes that are used.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Free and total bytes of a GPU, as far as the limits allow them.
    pub fn within(&self, (free, total): (u64, u64)) -> (u64, u64) {
        let limit = self.limit.load(Ordering::Relaxed);
        let (room, most) = self.account.get().map_or((u64::MAX, u64::MAX), |account| (account.room(), account.limit()));
        (free.min(limit.saturating_sub(self.used())).min(room), total.min(limit).min(most))
    }

    /// Uses bytes until the result is dropped.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if that is more than the place, or its client, may use.
    pub(crate) fn hold(self: &Arc<Self>, bytes: u64) -> Result<HeldMemory, Code> {
        self.try_hold(bytes).map_err(|exceeded| {
            match exceeded {
                Exceeded::Place(limit) => report_once(&self.reported[0], "GPU memory", limit, "--max-memory"),
                Exceeded::Client(limit) if !self.reported[1].swap(true, Ordering::Relaxed) => {
                    let most = limit >> 20;
                    eprintln!(
                        "mrcuda: this server gives all jobs of a client together at most {most} MiB of GPU memory (mrcuda serve --max-client-memory)"
                    );
                }
                Exceeded::Client(_) => {}
            }
            code::ERROR_OUT_OF_MEMORY
        })
    }

    /// As [`GpuMemory::hold`], for memory that the place has used before: there is nothing to report.
    pub(crate) fn hold_again(self: &Arc<Self>, bytes: u64) -> Result<HeldMemory, Code> {
        self.try_hold(bytes).map_err(|_| code::ERROR_OUT_OF_MEMORY)
    }

    fn try_hold(self: &Arc<Self>, bytes: u64) -> Result<HeldMemory, Exceeded> {
        let limit = self.limit.load(Ordering::Relaxed);
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= limit);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return Err(Exceeded::Place(limit));
        }
        if let Some(account) = self.account.get().filter(|account| !account.hold(bytes)) {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Exceeded::Client(account.limit()));
        }
        Ok(HeldMemory { memory: self.clone(), bytes })
    }
}

/// The limit that would be exceeded, in bytes.
#[derive(Debug)]
enum Exceeded {
    /// The place's own.
    Place(u64),
    /// That of its client.
    Client(u64),
}

/// Memory that is used as long as this exists.
#[derive(Debug)]
pub(crate) struct HeldMemory {
    memory: Arc<GpuMemory>,
    bytes: u64,
}

impl HeldMemory {
    /// Takes so many of its bytes out, at most all.
    pub(crate) fn split(&mut self, bytes: u64) -> HeldMemory {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        HeldMemory { memory: self.memory.clone(), bytes }
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(account) = self.memory.account.get() {
            account.give_back(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fake(AtomicU64);

    impl Account for Fake {
        fn hold(&self, bytes: u64) -> bool {
            let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit());
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        }

        fn give_back(&self, bytes: u64) {
            self.0.fetch_sub(bytes, Ordering::Relaxed);
        }

        fn limit(&self) -> u64 {
            150
        }

        fn room(&self) -> u64 {
            self.limit() - self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn neither_a_place_nor_its_client_uses_more_than_it_may() {
        let memory = || Arc::new(GpuMemory::default());
        let (a, b, account) = (memory(), memory(), Arc::new(Fake(AtomicU64::new(0))));
        assert_eq!(a.within((900, 1000)), (900, 1000));
        for place in [&a, &b] {
            place.set_limit(100);
            place.set_account(account.clone());
        }
        assert_eq!(a.within((900, 1000)), (100, 100));
        let first = a.hold(80).unwrap();
        assert_eq!(
            (a.hold(21).unwrap_err(), a.hold(u64::MAX).unwrap_err()),
            (code::ERROR_OUT_OF_MEMORY, code::ERROR_OUT_OF_MEMORY)
        );
        assert_eq!((a.within((900, 1000)), b.within((900, 1000))), ((20, 100), (70, 100)));
        // The client's limit counts both, and a refusal leaves nothing behind.
        assert!(b.hold(71).is_err() && b.used() == 0);
        let second = b.hold(70).unwrap();
        assert!(a.hold(1).is_err() && a.used() == 80);
        drop(first);
        let _third = a.hold(80).unwrap();
        drop(second);
        assert_eq!(account.room(), 70);
    }

    #[test]
    fn the_parts_of_held_memory_are_given_back_apart() {
        let memory = Arc::new(GpuMemory::default());
        let account = Arc::new(Fake(AtomicU64::new(0)));
        memory.set_account(account.clone());
        let mut all = memory.hold(100).unwrap();
        let (first, rest) = (all.split(30), all.split(500));
        assert_eq!((memory.used(), account.room()), (100, 50));
        drop(all);
        assert_eq!(memory.used(), 100);
        drop(first);
        assert_eq!((memory.used(), account.room()), (70, 80));
        drop(rest);
        assert_eq!((memory.used(), account.room()), (0, 150));
    }
}
