//! Managed memory that the job's host does not touch while kernels run: mirrored blocks of it lie in the GPU's memory, as far as there is room
//! ([`super::state::gpu_blocks`]).
//!
//! The driver takes an address in such a block for one of the device, so copies name it as device memory whatever the job's call says.

use super::state::gpu_blocks::{Contents, GpuBlocks};
use super::state::pinned::{From, Part};
use super::{ContextState, Executor};
use crate::host_mirror::{self, LINE_BYTES, PlaceChanges};
use crate::limits::MAX_PINNED_BLOCKS;
use cuda_api::address_map::{GRANULE, HOST, HOST_END, PAGE, SLOT, SMALLEST_EXCLUSIVE, slot};
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::HostPin;
use std::sync::atomic::Ordering;

/// The blocks, with both copies of each, have at most one part in this many of the GPU's memory.
const PART: u64 = 4;

/// Blocks that were taken from the GPU.
pub(super) type Taken = Vec<(u64, Part, Contents)>;

impl Executor {
    /// Returns whether the memory at an address is a block in the GPU's memory.
    #[inline]
    pub(super) fn is_on_gpu(&self, address: u64) -> bool {
        self.pinned.on_gpu.contains(address)
    }

    /// Adds a mirrored block in the GPU's memory, instead of an earlier one at its address. Returns false if that is not possible.
    ///
    /// # Errors
    /// There are too many blocks.
    pub(super) fn pin_on_gpu(&self, life: &ContextState, pin: &HostPin) -> Result<bool, Code> {
        let &HostPin { address, bytes, flags, .. } = pin;
        let Some(slot) = slot(bytes) else { return Ok(false) };
        let inside = address >= HOST && address.checked_add(slot).is_some_and(|end| end <= HOST_END);
        if bytes < SMALLEST_EXCLUSIVE || !address.is_multiple_of(SLOT) || !inside {
            return Ok(false);
        }
        if lock(&self.pinned.parts).get(&address).is_some_and(|p| matches!(p.from, From::Apart | From::OnGpu)) {
            self.unpin_host(address);
        }
        self.end_other_slabs(address..address + slot, None);
        if lock(&self.pinned.parts).len() >= MAX_PINNED_BLOCKS {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        let added = !self.overlaps_part(address, slot) && self.add_on_gpu(life, (address, bytes), slot).is_ok();
        if added {
            let registration = self.pinned.registrations.fetch_add(1, Ordering::Relaxed);
            // First where: nothing may take it for memory of this process.
            self.pinned.on_gpu.add(address..address + bytes.next_multiple_of(PAGE));
            lock(&self.pinned.parts).insert(address, Part { bytes, flags, from: From::OnGpu, registration });
            self.pinned.any_apart.store(true, Ordering::Release);
        }
        Ok(added)
    }

    fn add_on_gpu(&self, life: &ContextState, (at, bytes): (u64, u64), slot: u64) -> Result<(), Code> {
        let needed = 2 * bytes.next_multiple_of(GRANULE);
        let mut blocks = lock(&self.pinned.gpu_blocks);
        let used = blocks.as_ref().map_or(0, GpuBlocks::used);
        let (free, _) = self.memory_info()?;
        if used + needed > self.device.total_bytes / PART || needed > free {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        let held = self.memory.hold(needed)?;
        let context = (self.context.load(Ordering::Acquire), life.number);
        let blocks = match &mut *blocks {
            Some(blocks) => blocks,
            none => none.insert(GpuBlocks::new(&self.gpu, life.own, context, &self.pinned.budget)?),
        };
        blocks.add(at, bytes, slot, held)
    }

    /// Ends a block that is in no list of parts any more.
    pub(super) fn end_on_gpu(&self, at: u64) {
        if let Some(blocks) = &mut *lock(&self.pinned.gpu_blocks) {
            blocks.remove(at);
        }
        self.pinned.on_gpu.remove(at);
        self.still_apart();
    }

    /// Passes on what the GPU has changed in these blocks since the last call. Must be called before an answer that shows that work is complete.
    pub fn collect_gpu_changes(&self, send: &mut dyn FnMut(PlaceChanges)) {
        if self.pinned.on_gpu.is_empty() || self.make_current().is_err() {
            return;
        }
        let mut blocks = lock(&self.pinned.gpu_blocks);
        let Some(blocks) = &mut *blocks else { return };
        let (messages, requests) = {
            let apart = lock(&self.pinned.apart);
            (apart.taken, apart.blocks)
        };
        // The job learns from its next call that the context has failed.
        let _ = blocks.scan(|lines| send(PlaceChanges { messages, blocks: requests, lines }));
    }

    /// Applies the job's changes. A scan of either kind of memory finds all changes of a message in it, with the message counted, or none.
    pub(super) fn host_bytes(&self, body: &[u8]) -> Result<(), Code> {
        let (lines, rest) = body.as_chunks::<LINE_BYTES>();
        let of_gpu = |line: &[u8; LINE_BYTES]| self.is_on_gpu(host_mirror::word_of_line(line, 0));
        let (mut others, mut applied) = (None, Ok(true));
        // Held until the message is counted.
        let mut blocks = None;
        if !self.pinned.on_gpu.is_empty() && lines.iter().any(of_gpu) {
            self.make_current()?;
            let blocks = blocks.insert(lock(&self.pinned.gpu_blocks));
            // Asked again: they may have been taken from the GPU meanwhile.
            let (on_gpu, rest): (Vec<_>, Vec<_>) = lines.iter().copied().partition(of_gpu);
            // Before the others: a flag for a stream that waits is among those.
            applied = blocks.as_mut().map_or(Ok(true), |blocks| blocks.apply(&on_gpu));
            others = Some(rest);
        }
        let bytes = others.as_ref().map_or(lines, |others| others).as_flattened();
        let mut apart = lock(&self.pinned.apart);
        apart.taken += 1;
        let known = rest.is_empty() & apart.mirrored.take_over(bytes, |_| 0) & applied?;
        if known { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
    }

    /// Takes all blocks from the GPU, whose context is about to end or that does not use them. The caller holds the lock of the blocks until it
    /// has [put them into host memory](Self::keep_on_host). One that cannot be read any more is gone.
    pub(super) fn take_from_gpu(&self, blocks: &mut Option<GpuBlocks>) -> Taken {
        let Some(mut blocks) = blocks.take() else { return Taken::new() };
        let on_gpu = |_: &u64, part: &mut Part| part.from == From::OnGpu;
        let parts: Vec<(u64, Part)> = lock(&self.pinned.parts).extract_if(.., on_gpu).collect();
        let taken = parts.into_iter().filter_map(|(at, part)| Some((at, part, blocks.contents(at).ok()?))).collect();
        blocks.end();
        self.pinned.ended.fetch_add(1, Ordering::Relaxed);
        taken
    }

    /// Ends all blocks at the end of the place.
    pub(super) fn end_gpu_blocks(&self) {
        lock(&self.pinned.gpu_blocks).take().into_iter().for_each(GpuBlocks::end);
    }

    /// Puts blocks into mirrored host memory, at their addresses.
    ///
    /// # Errors
    /// There is not enough memory for one of them.
    pub(super) fn keep_on_host(&self, taken: Taken) -> Result<(), Code> {
        let kept =
            taken.into_iter().try_for_each(|(at, part, contents)| self.pin_apart_with(at, part.bytes, part.flags, &contents));
        self.pinned.on_gpu.clear();
        self.still_apart();
        kept
    }

    /// Takes the blocks from the GPU if `bytes` of its memory are wanted and not free, and nothing runs.
    pub(super) fn make_room(&self, bytes: u64) -> Result<(), Code> {
        if self.pinned.on_gpu.is_empty() || self.memory_info()?.0 >= bytes {
            return Ok(());
        }
        if self.ended_streams_work() || !self.busy_streams()?.is_empty() {
            return Ok(());
        }
        let mut blocks = lock(&self.pinned.gpu_blocks);
        blocks.iter().for_each(GpuBlocks::await_late);
        let taken = self.take_from_gpu(&mut blocks);
        self.keep_on_host(taken)
    }

    /// Bytes of the GPU's memory that [`Executor::make_room`] can free.
    pub(super) fn room_on_gpu(&self) -> u64 {
        if self.pinned.on_gpu.is_empty() { 0 } else { lock(&self.pinned.gpu_blocks).as_ref().map_or(0, GpuBlocks::used) }
    }
}
