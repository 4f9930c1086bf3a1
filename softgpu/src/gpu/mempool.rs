//! Pools of stream-ordered allocations: their settings, and how much of them is used.

use super::table::Table;
use super::{device, lock};
use crate::result::Res;
use cuda_api::sys::CUresult;
use std::sync::{Arc, LazyLock, Mutex};

/// Granularity in which a pool appears to reserve device memory.
const GROWTH: u64 = 32 << 20;

/// The process of a pool and its handle there.
pub(crate) type Lender = [u64; 2];

/// A pool.
pub(crate) struct Pool {
    /// Ordinal of its device.
    pub device: usize,
    /// Whether its allocations can be shared with other processes.
    pub is_exportable: bool,
    /// The owner, if the pool was imported from another process: nothing is allocated from it.
    pub lender: Option<Lender>,
    pub state: Mutex<State>,
}

/// The mutable state of a pool.
pub(crate) struct State {
    pub reuse: [i32; 3],
    pub threshold: u64,
    pub most: u64,
    pub used: [u64; 2],
    pub reserved: [u64; 2],
    destroyed: bool,
}

impl State {
    /// Counts an allocation of so many bytes as used.
    pub fn count(&mut self, size: u64) {
        let raise = |level: &mut [u64; 2], to: u64| *level = [to, level[1].max(to)];
        let used = self.used[0] + size;
        raise(&mut self.used, used);
        let reserved = self.reserved[0].max(used.next_multiple_of(GROWTH));
        raise(&mut self.reserved, reserved);
    }
}

/// Pools by handle.
static POOLS: LazyLock<Table<Pool>> = LazyLock::new(|| Table::new(11));
/// The default pools of devices, and those that they currently allocate from.
static DEVICES: LazyLock<Mutex<Vec<[usize; 2]>>> =
    LazyLock::new(|| Mutex::new(device::all().iter().map(|d| [add(d.ordinal as usize, 0, false, None); 2]).collect()));

/// Creates a pool; returns its handle.
pub(crate) fn add(device: usize, most: u64, is_exportable: bool, lender: Option<Lender>) -> usize {
    let state = State { reuse: [1; 3], threshold: 0, most, used: [0; 2], reserved: [0; 2], destroyed: false };
    let mut handle = 0;
    POOLS.insert_with(|h| {
        handle = h;
        Pool { device, is_exportable, lender, state: Mutex::new(state) }
    });
    handle
}

/// The pool of a handle.
pub(crate) fn resolve(handle: usize) -> Res<Arc<Pool>> {
    POOLS.get(handle).filter(|p| !lock(&p.state).destroyed).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// The default pool of a device.
pub(crate) fn default_of(device: usize) -> usize {
    lock(&DEVICES)[device][0]
}

/// The current pool of a device.
pub(crate) fn current_of(device: usize) -> usize {
    lock(&DEVICES)[device][1]
}

/// Sets the current pool of a device.
pub(crate) fn choose(device: usize, handle: usize) -> Res {
    let pool = resolve(handle)?;
    if pool.device != device || pool.lender.is_some() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    lock(&DEVICES)[device][1] = handle;
    Ok(())
}

/// `cuMemPoolDestroy`.
pub(crate) fn destroy(handle: usize) -> Res {
    let pool = resolve(handle)?;
    let mut devices = lock(&DEVICES);
    let [default, current] = &mut devices[pool.device];
    if *default == handle {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if *current == handle {
        *current = *default;
    }
    lock(&pool.state).destroyed = true;
    Ok(())
}

/// Counts an allocation of a pool as unused, after it was freed.
pub(crate) fn freed(handle: usize, size: u64) {
    if let Some(pool) = POOLS.get(handle) {
        lock(&pool.state).used[0] -= size;
    }
}

/// At a synchronization, pools keep no more than their threshold.
pub(crate) fn trim() {
    POOLS.each(|pool| {
        let keep = lock(&pool.state).threshold;
        pool.trim_to(keep);
    });
}

impl Pool {
    /// An allocation of the lender is mapped: it counts as used here until it is freed.
    pub fn imported(&self, size: u64) {
        lock(&self.state).used[0] += size;
    }

    /// `cuMemPoolTrimTo`.
    pub fn trim_to(&self, keep: u64) {
        let mut state = lock(&self.state);
        let needed = state.used[0].next_multiple_of(GROWTH).max(keep);
        state.reserved[0] = state.reserved[0].min(needed);
    }
}
