//! Frees in the order of streams, without I/O and without locks: when freed memory may be used again.
//! [`crate::device_memory::stream_ordered`] finds out what work is complete, and reports it.

use crate::objects::allocations::{Allocation, Home, Memory};
use crate::objects::pool::Pool;
use cuda_api::code::Code;

impl Memory {
    /// Frees an allocation of a pool behind the work of a stream. Returns whether the pool waits only for its frees to be complete, to end.
    pub(crate) fn release_to_pool(&mut self, pool: u64, stream: u64, address: u64, bytes: u64) -> bool {
        let generation = self.generation;
        let Some(p) = self.pools.get_mut(&pool) else { return false };
        p.give_back(stream, generation, address, bytes);
        p.doomed && p.used.now == 0
    }

    /// Frees an allocation behind the work of a stream. Returns whether its pool waits only for its frees to be complete, to end.
    pub(crate) fn free_in(&mut self, stream: u64, address: u64) -> Result<bool, Code> {
        let a = self.forget(address)?;
        if let Home::Pool(pool) = a.home {
            return Ok(self.release_to_pool(pool, stream, address, a.bytes));
        }
        self.free_late(address, a);
        Ok(false)
    }

    /// Frees an allocation outside of pools when all work that is submitted now is complete ([`Memory::complete`] returns it then).
    pub(crate) fn free_late(&mut self, address: u64, a: Allocation) {
        self.late.push((self.generation, address, a));
    }

    /// Begins a new generation if there are frees in this one. Returns the last one that has ended: it is complete when all current work
    /// is.
    pub(crate) fn seal(&mut self) -> u64 {
        let generation = self.generation;
        let late = self.late.iter().any(|(g, ..)| *g == generation);
        if late || self.pools.values().any(|p| p.has_pending(generation)) {
            self.generation += 1;
        }
        self.generation - 1
    }

    /// As [`Memory::seal`], if any free waits for work.
    pub(crate) fn seal_if_waiting(&mut self) -> Option<u64> {
        let waits = !self.late.is_empty() || self.pools.values().any(Pool::is_waiting);
        waits.then(|| self.seal())
    }

    /// Completes the frees up to a generation: of one stream, or all. Returns the allocations outside of pools that are not in use any
    /// more.
    pub(crate) fn complete(&mut self, stream: Option<u64>, generation: u64) -> Vec<(u64, Allocation)> {
        for p in self.pools.values_mut() {
            p.complete(stream, generation);
        }
        let is_done = |(g, ..): &mut (u64, u64, Allocation)| stream.is_none() && *g <= generation;
        let gone = self.late.extract_if(.., is_done).map(|(_, address, a)| (address, a)).collect();
        let ended: Vec<u64> = self.pools.iter().filter(|(_, p)| p.has_ended()).map(|(h, _)| *h).collect();
        for pool in ended {
            self.shrink(pool, 0);
            self.pools.remove(&pool);
        }
        gone
    }

    /// Releases free chunks of a pool until it has no more than `keep` bytes.
    pub(crate) fn shrink(&mut self, pool: u64, keep: u64) {
        let gone = self.pools.get_mut(&pool).map(|p| p.release(keep)).unwrap_or_default();
        gone.into_iter().for_each(|chunk| self.make_spare(chunk));
    }

    /// Releases the free chunks of all pools.
    pub(crate) fn shrink_all(&mut self) {
        let pools: Vec<u64> = self.pools.keys().copied().collect();
        pools.into_iter().for_each(|pool| self.shrink(pool, 0));
    }

    /// Trims pools to their thresholds, as a synchronisation does.
    pub(crate) fn trim(&mut self) {
        let held: Vec<(u64, u64)> =
            self.pools.iter().filter(|(_, p)| p.holds_too_much()).map(|(h, p)| (*h, p.settings.threshold)).collect();
        held.into_iter().for_each(|(pool, keep)| self.shrink(pool, keep));
    }

    /// Returns whether waiting for work could free anything.
    pub(crate) fn can_reclaim(&self) -> bool {
        !self.late.is_empty() || !self.pools.values().all(Pool::is_empty)
    }

    /// Removes the allocations of a context that belong to no pool from the table: memory of pools belongs to the device.
    pub(crate) fn forget_context(&mut self, context: u64) -> Result<Vec<(u64, Allocation)>, Code> {
        let is_of = |a: &Allocation| a.context == context && matches!(a.home, Home::Own | Home::Shared);
        let mine: Vec<u64> = self.live.iter().filter(|(_, a)| is_of(a)).map(|(at, _)| *at).collect();
        mine.into_iter().map(|at| Ok((at, self.forget(at)?))).collect()
    }
}

#[cfg(test)]
mod model;
