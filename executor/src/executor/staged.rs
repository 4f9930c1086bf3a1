//! Large copies whose bytes travel over connections of their own, through staging areas ([`crate::staging`]).

use super::state::gpu_areas::GpuAreas;
use super::{ContextState, Executor, short};
use crate::pending::{Mark, Pending};
use crate::staging::{Room, Staging, WORDS, Word};
use cuda_api::address_map::{ARENA, DIRECT, GRANULE};
use cuda_api::arg::{LEGACY, stage_stream};
use cuda_api::code::{self, Code};
use cuda_api::flags::{MEM_OP_WAIT_32, MEM_OP_WRITE_32};
use cuda_api::lock::lock;
use cuda_api::ops::{BulkCopy, MemoryPart, StreamMemory};
use cuda_api::sys::{CUGPUDirectRDMAWritesOrdering_enum, CUdevice_attribute_enum};
use cuda_api::wire::Wire;
use std::sync::Arc;

fn part(word: Word) -> MemoryPart {
    let (operation, address, value) = match word {
        Word::Wait(at, value) => (MEM_OP_WAIT_32, at, value),
        Word::Write(at, value) => (MEM_OP_WRITE_32, at, value),
    };
    MemoryPart { operation, address, value: value.into(), flags: 0 }
}

impl Executor {
    /// The staging areas, for the connections.
    pub fn staging(&self) -> &Staging {
        &self.staging
    }

    /// Makes sure that there are at least so many areas: so many streams can have large copies at the same time.
    ///
    /// # Errors
    /// There is no memory for them, or there cannot be so many.
    pub fn provide_areas(&self, at_least: u32) -> Result<(), Code> {
        self.make_current()?;
        let _life = self.life();
        while self.staging.areas() < at_least as usize {
            self.add_area(LEGACY)?;
        }
        Ok(())
    }

    /// Makes an area in the GPU's memory, for network cards that write there and read from there (GPUDirect RDMA), and adds it if `reach`
    /// says that all connections of the job can. Returns whether it has added one; none where the GPU does not see such writes in their order.
    ///
    /// # Errors
    /// The driver's: there is no memory, or it makes no dma-buf.
    pub fn provide_gpu_area(&self, reach: &mut dyn FnMut(&Arc<Room>) -> bool) -> Result<bool, Code> {
        if !self.gpu_sees_writes_of_cards() {
            return Ok(false);
        }
        self.make_current()?;
        let _life = self.life();
        let size = self.staging.sizes().regions() as u64;
        let bytes = size.next_multiple_of(GRANULE);
        let mut areas = lock(&self.gpu_areas);
        let words_held = self.pinned.budget.hold(WORDS as u64).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let held = self.memory.hold(bytes)?;
        // A driver chooses the address of a small range, and takes the wanted one for so large a range if it is free.
        let base = areas.base.map_or_else(|| self.gpu.reserve(ARENA, DIRECT), Ok)?;
        areas.base = Some(base);
        let at = base + areas.used;
        let memory = self.create_chunk(bytes)?;
        self.map_memory(at, bytes, memory)?;
        areas.used += bytes;
        let made = self.gpu.release_memory(memory).and_then(|()| {
            let dma_buf = self.gpu.dma_buf(at, bytes)?;
            let words = self.gpu.pin(WORDS)?;
            // SAFETY: a fresh mapping of words, zero at first; `end_staging` only unregisters it.
            Ok(Arc::new(unsafe { Room::on_gpu((at as usize, size as usize), words, dma_buf) }))
        });
        let room = made.inspect_err(|_| _ = self.gpu.unmap(at, bytes))?;
        // Until `end_staging`.
        words_held.keep();
        if reach(&room) && self.staging.add(room.clone(), LEGACY) {
            areas.held.push(held);
            return Ok(true);
        }
        // The words stay registered: the end of a registration may wait for kernels, and these for the call that waits for this one.
        let _ = self.gpu.unmap(at, bytes);
        areas.refused.push(room);
        Ok(false)
    }

    /// Whether work of the GPU that begins when the processor has seen the end of a card's write sees the bytes.
    fn gpu_sees_writes_of_cards(&self) -> bool {
        use CUdevice_attribute_enum as A;
        let is = |attribute: A, least: i32| self.device.attribute(attribute as i32).is_some_and(|value| value >= least);
        let owner = CUGPUDirectRDMAWritesOrdering_enum::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32;
        self.rdma
            && is(A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1)
            && is(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, owner)
    }

    fn add_area(&self, stream: u64) -> Result<(), Code> {
        let held = self.pinned.budget.hold(self.staging.sizes().area() as u64).ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let (part, regions) = (self.staging.part(), self.staging.sizes().regions());
        let at = match &part {
            Some(part) => self.gpu.pin_file(regions, part.file(), part.offset())?,
            None => self.gpu.pin(regions)?,
        };
        let words = self.gpu.pin(WORDS).inspect_err(|_| self.gpu.unpin(at, regions))?;
        // SAFETY: fresh mappings, the words zero at first; `end_room` only unregisters them.
        let room = Arc::new(unsafe { Room::new((at, regions), words, part) });
        if !self.staging.add(room.clone(), stream) {
            self.end_room(&room);
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        // Until `end_staging`.
        held.keep();
        Ok(())
    }

    /// The GPU uses it no more. A dma-buf keeps its memory as long as a registration with a card does.
    fn end_room(&self, room: &Room) {
        let (at, bytes) = room.regions();
        // They fail only if the context was destroyed.
        let _ = match room.dma_buf() {
            Some(_) => self.gpu.unmap(at as u64, (bytes as u64).next_multiple_of(GRANULE)),
            None => self.gpu.unregister(at as u64),
        };
        self.end_words(room);
    }

    fn end_words(&self, room: &Room) {
        // As above.
        let _ = self.gpu.unregister(room.words_at() as u64);
    }

    /// Gives a stream (its handle and the driver's value) operations on words.
    pub(super) fn words(&self, (stream, live): (u64, u64), words: &[Word]) -> Result<(), Code> {
        let parts = words.iter().copied().map(part).collect();
        self.gpu.stream_memory(live, &StreamMemory { stream, first_version: false, flags: 0, parts })
    }

    /// Gives the driver all commands of a copy. The answer comes when the stream has passed them; for a copy to the host the job then has
    /// the bytes.
    pub(super) fn bulk_copy(&self, life: &ContextState, mut body: &[u8], to_device: bool) -> Result<Option<Pending>, Code> {
        let op = BulkCopy::get(&mut body).map_err(short)?;
        if op.bytes == 0 {
            return Err(code::ERROR_INVALID_VALUE);
        }
        self.check_memory(op.address, op.bytes)?;
        let live = stage_stream(op.stream, &self.bindings)?;
        // The job has asked for enough of them, but a reset of the context ends them.
        if self.staging.lacks_area(op.stream) {
            self.add_area(op.stream)?;
        }
        let begun = self.staging.begin(op.stream, op.token, op.bytes, to_device, op.late);
        let (steps, last) = begun.ok_or(code::ERROR_OUT_OF_MEMORY)?;
        let stream = (op.stream, live);
        let submitted = steps.iter().try_for_each(|step| {
            self.words(stream, &step.words)?;
            let (device, bytes) = (op.address + step.offset, step.bytes as u64);
            if step.on_gpu {
                let (to, from) = if to_device { (device, step.at as u64) } else { (step.at as u64, device) };
                return self.gpu.copy_device(to, from, bytes, live);
            }
            // SAFETY: inside the area, whose words keep the connections away until the copy has been made; an area lives as long as its
            // context.
            unsafe {
                if to_device {
                    self.gpu.copy_in(device, step.at as *const u8, bytes, live)
                } else {
                    self.gpu.copy_out(step.at as *mut u8, device, bytes, live)
                }
            }
        });
        // After an error too: then the connections are done with the pieces that were begun, and the area is free again.
        self.words(stream, &last)?;
        submitted?;
        Ok(Some(self.pending(life, vec![Mark::Own(life.pools.mark(live)?)])))
    }

    /// Gives up all areas, in a context in which no work is running any more.
    pub(super) fn end_staging(&self) {
        for room in self.staging.end() {
            let pinned = if room.dma_buf().is_some() { WORDS } else { self.staging.sizes().area() };
            self.pinned.budget.give_back(pinned as u64);
            self.end_room(&room);
        }
        let GpuAreas { base, refused, .. } = std::mem::take(&mut *lock(&self.gpu_areas));
        for room in refused {
            self.pinned.budget.give_back(WORDS as u64);
            self.end_words(&room);
        }
        if let Some(base) = base {
            // As above.
            let _ = self.gpu.unreserve(base, ARENA);
        }
    }
}
