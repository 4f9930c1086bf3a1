//! Managed memory that the job's host does not touch while kernels run: mirrored blocks of it lie in the GPU's memory, as far as there is room
//! ([`super::state::gpu_blocks`]).
//!
//! The driver takes an address in such a block for one of the device, so copies name it as device memory whatever the job's call says.

use super::state::gpu_blocks::{BUFFERS, Contents, GpuBlocks};
use super::state::pinned::{From, Part};
use super::{ContextState, Executor};
use crate::host_mirror::{self, LINE_BYTES, LinesOfRuns, MORE, PlaceChanges};
use crate::limits::{Held, MAX_PINNED_BLOCKS};
use cuda_api::address_map::{GRANULE, HOST, HOST_END, PAGE, SLOT, SMALLEST_EXCLUSIVE, slot};
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::HostPin;
use std::borrow::Cow;
use std::sync::atomic::Ordering;

/// The blocks, with both copies of each, have at most one part in this many of the GPU's memory.
const PART: u64 = 4;

/// A block that was taken from the GPU, and the host memory that is held for it.
#[derive(Debug)]
pub(super) struct Taken {
    at: u64,
    part: Part,
    contents: Contents,
    held: Held,
}

/// An encoded line.
type Encoded = [u8; LINE_BYTES];

/// Those of the lines for which `first` returns true, and the others; mostly all are of one kind.
fn partition(lines: &[Encoded], mut first: impl FnMut(&Encoded) -> bool) -> (Cow<'_, [Encoded]>, Cow<'_, [Encoded]>) {
    if lines.iter().all(&mut first) {
        return (lines.into(), Cow::default());
    }
    let (some, others): (Vec<_>, Vec<_>) = lines.iter().copied().partition(first);
    (some.into(), others.into())
}

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
        // It would take the room that the job's own memory needs to come back.
        if self.evicted_bytes() > 0 {
            return Ok(false);
        }
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
        // Held until it is in all lists: a thread that takes all blocks from the GPU meanwhile would free its memory and leave it in the lists.
        let mut blocks = lock(&self.pinned.gpu_blocks);
        let added = !self.overlaps_part(address, slot) && self.add_on_gpu(life, &mut blocks, (address, bytes), slot).is_ok();
        if added {
            let registration = self.pinned.registrations.fetch_add(1, Ordering::Relaxed);
            // First where: nothing may take it for memory of this process.
            self.pinned.on_gpu.add(address..address + bytes.next_multiple_of(PAGE));
            lock(&self.pinned.parts).insert(address, Part { bytes, flags, from: From::OnGpu, registration });
            self.still_apart();
        }
        Ok(added)
    }

    fn add_on_gpu(
        &self,
        life: &ContextState,
        blocks: &mut Option<GpuBlocks>,
        (at, bytes): (u64, u64),
        slot: u64,
    ) -> Result<(), Code> {
        let needed = 2 * bytes.next_multiple_of(GRANULE);
        let used = blocks.as_ref().map_or(0, GpuBlocks::used);
        let (free, _) = self.memory_info()?;
        if used + needed > self.device.total_bytes / PART || needed > free {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        let held = self.memory.hold(needed)?;
        let context = (self.context.load(Ordering::Acquire), life.number);
        let blocks = match blocks {
            Some(blocks) => blocks,
            none => {
                let mut buffers = lock(&self.pinned.gpu_buffers);
                if buffers.is_none() {
                    *buffers = Some(self.pinned.budget.hold(BUFFERS).ok_or(code::ERROR_OUT_OF_MEMORY)?);
                }
                none.insert(GpuBlocks::new(&self.gpu, life.own, context)?)
            }
        };
        blocks.add(at, bytes, slot, held)
    }

    /// Ends a block that is in no list of parts any more.
    pub(super) fn end_on_gpu(&self, at: u64) {
        // Held for both: another block at the address comes after them.
        let mut blocks = lock(&self.pinned.gpu_blocks);
        if let Some(blocks) = &mut *blocks {
            blocks.remove(at);
        }
        self.pinned.on_gpu.remove(at);
        drop(blocks);
        self.still_apart();
    }

    /// Passes on what the GPU has changed in these blocks since the last call, or gives it to the connections for large copies and waits until the job
    /// has it. Must be called before an answer that shows that work is complete. `sent`: number of messages with changes that come before.
    ///
    /// # Errors
    /// The driver's, although the context has not failed. Some changes may not have been passed on, and some may be found once more, when the job has
    /// already changed the same bytes: the place must not answer any more.
    pub fn collect_gpu_changes(&self, sent: u64, send: &mut dyn FnMut(PlaceChanges)) -> Result<(), Code> {
        if self.pinned.on_gpu.is_empty() || self.make_current().is_err() {
            return Ok(());
        }
        let mut blocks = lock(&self.pinned.gpu_blocks);
        let Some(blocks) = &mut *blocks else { return Ok(()) };
        let (messages, requests) = {
            let apart = lock(&self.pinned.apart);
            (apart.taken, apart.blocks)
        };
        // All changes have arrived while the blocks are locked: another one may come to the address of one that is freed.
        match blocks.scan((self.staging(), sent), |lines| send(PlaceChanges { messages, blocks: requests, lines })) {
            // The job learns from its next call that the context has failed.
            Err(rc) if code::is_sticky(rc) => Ok(()),
            scanned => scanned,
        }
    }

    /// Tells lines of blocks in the GPU's memory from others.
    fn is_line_on_gpu(&self) -> impl FnMut(&Encoded) -> bool {
        // Most lines are in the same block as the one before.
        let mut around = 0..0;
        move |line| {
            let at = host_mirror::word_of_line(line, 0);
            if !around.contains(&at) {
                around = self.pinned.on_gpu.around(at).unwrap_or(0..0);
            }
            around.contains(&at)
        }
    }

    /// Returns whether there are blocks in the GPU's memory.
    pub fn has_gpu_blocks(&self) -> bool {
        !self.pinned.on_gpu.is_empty()
    }

    /// Returns whether changes of the job, the body of [`cuda_api::ops::id::HOST_BYTES`], need the driver.
    pub fn bytes_need_driver(&self, body: &[u8]) -> bool {
        // The last message of several may have no line on the GPU.
        self.pinned.unfinished.load(Ordering::Acquire)
            || self.has_gpu_blocks() && body.as_chunks().0.iter().any(self.is_line_on_gpu())
    }

    /// Applies the job's changes. A scan of either kind of memory finds all changes of a message in it, with the message counted, or none.
    pub(super) fn host_bytes(&self, body: &[u8]) -> Result<(), Code> {
        let (lines, rest) = body.as_chunks::<LINE_BYTES>();
        let more = rest == [MORE];
        let (mut others, mut applied) = (None, Ok(true));
        // Held until the message is counted.
        let mut blocks = None;
        if self.bytes_need_driver(body) {
            self.make_current()?;
            let blocks = blocks.insert(lock(&self.pinned.gpu_blocks));
            // Asked again: they may have been taken from the GPU meanwhile.
            let (on_gpu, rest) = partition(lines, self.is_line_on_gpu());
            // Before the others: a flag for a stream that waits is among those.
            applied = blocks.as_mut().map_or(Ok(on_gpu.is_empty()), |blocks| blocks.apply(&on_gpu, more && rest.is_empty()));
            self.pinned.unfinished.store(blocks.as_ref().is_some_and(GpuBlocks::has_launches), Ordering::Release);
            others = Some(rest);
        }
        let bytes = others.as_deref().unwrap_or(lines).as_flattened();
        let mut apart = lock(&self.pinned.apart);
        apart.taken += 1;
        let known = (rest.is_empty() || more) & apart.mirrored.take_over(bytes, |_| 0) & applied?;
        if known { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
    }

    /// Applies changes of the job that come over the connections of copies to the host. Like other messages with changes it is applied entirely before
    /// the next one; scans may find a part of them, which differs in neither copy.
    pub(super) fn host_runs(&self) -> Result<(), Code> {
        let staging = self.staging();
        if !staging.begin_from_job() {
            // The job would wait for connections that ask for nothing.
            return Err(code::ERROR_OPERATING_SYSTEM);
        }
        let mut applied = self.make_current().map(|()| true);
        // Also after an error: connections have asked for them.
        while let Some(changes) = staging.next_from_job() {
            applied = applied.and_then(|known| Ok(self.apply_runs(&changes)? & known));
            staging.give_back(changes);
        }
        staging.end_from_job();
        if let Some(blocks) = &mut *lock(&self.pinned.gpu_blocks) {
            let finished = blocks.finish_launches();
            applied = applied.and_then(|known| finished.map(|()| known));
        }
        match applied {
            Ok(true) => Ok(()),
            Ok(false) => Err(code::ERROR_INVALID_VALUE),
            // The driver's own: that code stands for memory that has ended.
            Err(code::ERROR_INVALID_VALUE) => Err(code::ERROR_NOT_MAPPED),
            Err(rc) => Err(rc),
        }
    }

    /// Applies one message; returns false if some of its lines are not of mirrored memory.
    fn apply_runs(&self, changes: &LinesOfRuns) -> Result<bool, Code> {
        let mut blocks = lock(&self.pinned.gpu_blocks);
        if let Some(blocks) = &mut *blocks
            && blocks.apply_runs(changes)?
        {
            return Ok(true);
        }
        // Blocks may have been taken from the GPU meanwhile.
        let (on_gpu, others) = partition(&changes.lines, self.is_line_on_gpu());
        let known = blocks.as_mut().map_or(Ok(on_gpu.is_empty()), |blocks| blocks.apply(&on_gpu, true))?;
        Ok(known & lock(&self.pinned.apart).mirrored.take_over(others.as_flattened(), |_| 0))
    }

    /// Takes all blocks from the GPU, whose context is about to end or that does not use them. The caller holds the lock of the blocks until it
    /// has [put them into host memory](Self::keep_on_host). One that cannot be read any more is gone; so are those for which there is not enough
    /// host memory, if the context is `ending`.
    ///
    /// # Errors
    /// There is not enough host memory for all, or one cannot be read. They stay where they are, unless the context is ending.
    pub(super) fn take_from_gpu(&self, blocks: &mut Option<GpuBlocks>, ending: bool) -> (Vec<Taken>, Result<(), Code>) {
        let (mut taken, mut all) = (Vec::new(), Ok(()));
        let Some(of_gpu) = blocks else { return (taken, all) };
        let on_gpu = |part: &Part| part.from == From::OnGpu;
        let parts: Vec<(u64, Part)> =
            lock(&self.pinned.parts).iter().filter(|(_, part)| on_gpu(part)).map(|(at, part)| (*at, *part)).collect();
        // All memory is held and all blocks are read before the first one ends, which cannot be undone.
        for (at, part) in parts {
            match self.hold_pinned(part.bytes.next_multiple_of(PAGE)).map(|held| (held, of_gpu.contents(at))) {
                Ok((held, Ok(contents))) => taken.push(Taken { at, part, contents, held }),
                Ok((_, Err(rc))) | Err(rc) if !ending => return (Vec::new(), Err(rc)),
                Ok((_, Err(rc))) | Err(rc) if rc == code::ERROR_OUT_OF_MEMORY => all = Err(rc),
                // A context that has failed cannot be read, and is not expected to be.
                Ok(_) | Err(_) => {}
            }
        }
        let still: Vec<u64> = lock(&self.pinned.parts).extract_if(.., |_, part| on_gpu(part)).map(|(at, _)| at).collect();
        // Another thread may have freed one meanwhile.
        taken.retain(|block| still.contains(&block.at));
        blocks.take().into_iter().for_each(GpuBlocks::end);
        self.pinned.ended.fetch_add(1, Ordering::Relaxed);
        (taken, all)
    }

    /// Ends all blocks at the end of the place.
    pub(super) fn end_gpu_blocks(&self) {
        lock(&self.pinned.gpu_blocks).take().into_iter().for_each(GpuBlocks::end);
    }

    /// Puts blocks into mirrored host memory, at their addresses.
    ///
    /// # Errors
    /// The system or the driver refuses one of them; that one is gone, and the others are there.
    pub(super) fn keep_on_host(&self, taken: Vec<Taken>) -> Result<(), Code> {
        let mut kept = Ok(());
        for Taken { at, part, contents, held } in taken {
            kept = kept.and(self.pin_apart_with((at, part.bytes), part.flags, &contents, held));
        }
        self.pinned.on_gpu.clear();
        self.still_apart();
        kept
    }

    /// Takes so many bytes of the GPU's memory. If there are none, the blocks make room first: to ask for free memory each time would take
    /// longer.
    pub(super) fn take_or_make_room<T>(&self, bytes: u64, take: impl Fn() -> Result<T, Code>) -> Result<T, Code> {
        match take() {
            Err(code::ERROR_OUT_OF_MEMORY) if !self.pinned.on_gpu.is_empty() => {
                self.make_room(bytes)?;
                take()
            }
            taken => taken,
        }
    }

    /// Takes the blocks from the GPU if `bytes` of its memory are wanted and not free, nothing runs, and there is host memory for all of them.
    pub(super) fn make_room(&self, bytes: u64) -> Result<(), Code> {
        if self.pinned.on_gpu.is_empty() || self.memory_info()?.0 >= bytes {
            return Ok(());
        }
        if self.ended_streams_work() || !self.busy_streams()?.is_empty() {
            return Ok(());
        }
        let mut blocks = lock(&self.pinned.gpu_blocks);
        blocks.iter_mut().for_each(GpuBlocks::await_kernels);
        match self.take_from_gpu(&mut blocks, false) {
            (taken, Ok(())) => self.keep_on_host(taken),
            // They stay, and what is wanted does not fit.
            (_, Err(_)) => Ok(()),
        }
    }

    /// Bytes of the GPU's memory that [`Executor::make_room`] can free.
    pub(super) fn room_on_gpu(&self) -> u64 {
        if self.pinned.on_gpu.is_empty() { 0 } else { lock(&self.pinned.gpu_blocks).as_ref().map_or(0, GpuBlocks::used) }
    }
}
