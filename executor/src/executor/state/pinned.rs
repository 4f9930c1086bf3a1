//! The job's pinned memory at an executor.

use super::gpu_blocks::GpuBlocks;
use crate::host_mirror::MirroredMemory;
use crate::limits::{Budget, Held};
use cuda_api::lock::{lock, read_lock, write_lock};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// Copies are made in pieces of this size, which bounds how long the lock is held.
const PIECE: usize = 1 << 20;

/// A registered block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) bytes: u64,
    pub(crate) flags: u32,
    pub(crate) from: From,
    /// Number of its registration with the driver, if it does not belong to a slab.
    pub(crate) registration: u64,
}

/// Where its memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// It was mapped before.
    Here,
    /// The job's file; unmapped when it is unregistered.
    File,
    /// Allocated here; unmapped when it is unregistered.
    Apart,
    /// The GPU's memory: this process cannot access it.
    OnGpu,
    /// It belongs to the slab at this address, which is registered as a whole.
    Slab(u64),
}

/// A slab that is registered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlabPart {
    pub(crate) bytes: u64,
    pub(crate) number: u64,
    /// Number of its blocks that are registered; it goes with the last one.
    pub(crate) blocks: u32,
    /// Where its memory comes from; not [`From::Slab`].
    pub(crate) from: From,
    /// Number of its registration with the driver.
    pub(crate) registration: u64,
}

/// The executor's copies of mirrored memory.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    pub(crate) mirrored: MirroredMemory,
    /// Number of the job's messages that were applied.
    pub(crate) taken: u64,
    /// Number of requests for blocks ([`cuda_api::ops::id::HOST_BLOCK`]) that were applied.
    pub(crate) blocks: u64,
}

/// Ranges of addresses, mostly none, that are looked up by many threads. No two of them overlap.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// Their number.
    count: AtomicUsize,
    /// By address.
    all: RwLock<Vec<Range<u64>>>,
}

impl Ranges {
    /// Returns whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns whether one contains an address.
    #[inline]
    pub(crate) fn contains(&self, at: u64) -> bool {
        self.around(at).is_some()
    }

    /// The one that contains an address.
    #[inline]
    pub(crate) fn around(&self, at: u64) -> Option<Range<u64>> {
        if self.is_empty() {
            return None;
        }
        let all = read_lock(&self.all);
        all[..all.partition_point(|range| range.start <= at)].last().filter(|range| at < range.end).cloned()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Range<u64>>)) {
        let mut all = write_lock(&self.all);
        change(&mut all);
        self.count.store(all.len(), Ordering::Release);
    }

    pub(crate) fn add(&self, range: Range<u64>) {
        self.change(|all| all.insert(all.partition_point(|other| other.start < range.start), range));
    }

    /// Removes the range that begins at an address.
    pub(crate) fn remove(&self, at: u64) {
        self.change(|all| all.retain(|range| range.start != at));
    }

    pub(crate) fn clear(&self) {
        self.change(Vec::clear);
    }
}

/// The job's pinned memory at this executor.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    /// The job's file, in a worker.
    pub(crate) file: OnceLock<OwnedFd>,
    pub(crate) parts: Mutex<BTreeMap<u64, Part>>,
    /// Slabs by address. Taken before `apart`, and that before `parts`.
    pub(crate) slabs: Mutex<BTreeMap<u64, SlabPart>>,
    /// For the mirrored copies and the staging areas; also for what others pin on behalf of the job.
    pub(crate) budget: Arc<Budget>,
    /// Whether the job has a message that the limit is reached.
    pub(crate) reported: AtomicBool,
    pub(crate) apart: Mutex<Apart>,
    /// Whether there are mirrored copies.
    pub(crate) any_apart: AtomicBool,
    /// The blocks that are in the GPU's memory. Taken before `apart`, and behind the lock of the context's state.
    pub(crate) gpu_blocks: Mutex<Option<GpuBlocks>>,
    /// What the buffers of such blocks take of the budget: from the first block to the end of the context, where those that are not used stay pinned.
    pub(crate) gpu_buffers: Mutex<Option<Held>>,
    /// Where they are; changed with the lock of the blocks. A block is added here before it is among the parts, and removed last.
    pub(crate) on_gpu: Ranges,
    /// Whether some of the job's changes of these blocks may still be being written.
    pub(crate) unfinished: AtomicBool,
    /// Whether the job has requested mirrored memory at an address that this process uses itself.
    pub(crate) collided: AtomicBool,
    /// How many registrations there were.
    pub(crate) registrations: AtomicU64,
    /// How many blocks have ended.
    pub(crate) ended: AtomicU64,
}

impl Default for PinnedMemory {
    fn default() -> PinnedMemory {
        PinnedMemory {
            file: OnceLock::new(),
            parts: Mutex::default(),
            slabs: Mutex::default(),
            budget: Budget::new(u64::MAX),
            reported: AtomicBool::new(false),
            apart: Mutex::default(),
            any_apart: AtomicBool::new(false),
            gpu_blocks: Mutex::default(),
            gpu_buffers: Mutex::default(),
            on_gpu: Ranges::default(),
            unfinished: AtomicBool::new(false),
            collided: AtomicBool::new(false),
            registrations: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }
}

impl PinnedMemory {
    /// Writes bytes to registered memory; memory that is not, or no longer, registered is skipped.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        if self.on_gpu.contains(at) && lock(&self.gpu_blocks).as_mut().is_some_and(|blocks| blocks.write(at, bytes)) {
            return;
        }
        for (number, piece) in bytes.chunks(PIECE).enumerate() {
            let to = at + (number * PIECE) as u64;
            // SAFETY: mapped while this runs; concurrent writers are the program's own race, as in the job.
            let copy = || unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to as *mut u8, piece.len()) };
            if !self.while_mapped(to, piece.len(), copy) {
                return;
            }
        }
    }

    /// Reads bytes of registered memory; returns false if not all of them are registered.
    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> bool {
        if self.on_gpu.contains(at) && lock(&self.gpu_blocks).as_mut().is_some_and(|blocks| blocks.read(at, to)) {
            return true;
        }
        to.chunks_mut(PIECE).enumerate().all(|(number, piece)| {
            let (from, bytes) = (at + (number * PIECE) as u64, piece.len());
            // SAFETY: mapped while this runs; concurrent writers are the program's own race, as in the job.
            let copy = || unsafe { std::ptr::copy_nonoverlapping(from as *const u8, piece.as_mut_ptr(), bytes) };
            self.while_mapped(from, bytes, copy)
        })
    }

    /// Runs something that uses a range of registered memory; returns false without running it if not all of the range is registered, or
    /// if only the GPU can access it.
    fn while_mapped(&self, at: u64, bytes: usize, run: impl FnOnce()) -> bool {
        // Held meanwhile: memory is removed from the list before it is unmapped.
        let parts = lock(&self.parts);
        let whole = inside(&parts, at, bytes as u64) == Some(true) && !self.on_gpu.contains(at);
        if whole {
            run();
        }
        whole
    }
}

/// Returns whether the bytes lie in one of the parts; `None` if they do not begin in one.
pub(crate) fn inside(parts: &BTreeMap<u64, Part>, at: u64, bytes: u64) -> Option<bool> {
    let (start, part) = parts.range(..=at).next_back().filter(|(start, p)| at - **start < p.bytes)?;
    Some(bytes <= part.bytes - (at - start))
}
