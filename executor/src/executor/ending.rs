//! The end of a context: by a reset, which creates another one, or by closing the place.

use super::state::buffers;
use super::{CURRENT, ContextState, Executor, Streams, fresh_number, remember_current};
use crate::steer;
use cuda_api::address_map::{ARENA, own_base};
use cuda_api::code::Code;
use cuda_api::handle::Kind;
use cuda_api::lock::{lock, write_lock};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Handles of objects that are destroyed with their context. Libraries and their kernels are not.
const ENDING_WITH_CONTEXT: [Kind; 9] = [
    Kind::Stream,
    Kind::Event,
    Kind::Module,
    Kind::Function,
    Kind::GraphExec,
    Kind::Array,
    Kind::Mipmap,
    Kind::TextureRef,
    Kind::SurfaceRef,
];

impl Executor {
    fn unmap_all(&self) {
        self.end_aliases();
        self.end_peers();
        self.unmap_view(self.take_view());
        self.forget_evicted();
        for (address, c) in std::mem::take(&mut **lock(&self.chunks)) {
            // Both fail only if the driver has already released the memory.
            let _ = self.gpu.unmap(address, c.bytes);
            let _ = self.gpu.release_memory(c.memory);
        }
    }

    /// Destroys the context with everything in it, and creates a new one. Returns whether libraries have created the new context's heap.
    pub(super) fn reset(&self) -> Result<bool, Code> {
        let mut life = write_lock(&self.life);
        self.hosts.forget_copies();
        let mut gpu_blocks = lock(&self.pinned.gpu_blocks);
        let (taken, all_taken) = self.take_from_gpu(&mut gpu_blocks, true);
        self.unmap_all();
        self.graphs_ended();
        self.arrays_ended();
        buffers::forget_spares(&self.gpu, life.number);
        *lock(&self.pinned.gpu_buffers) = None;
        self.end_hashes();
        self.forget_all_waits();
        self.end_holds();
        self.end_staging();
        self.end_turns();
        life.pools.clear();
        *lock(&self.streams) = Streams::default();
        // The driver's behaviour for handles of destroyed objects is undefined.
        self.bindings.unbind_all(&ENDING_WITH_CONTEXT);
        lock(&self.layouts).clear();
        let lenders = lock(&self.modules).context_ended();
        for library in lenders {
            let _ = self.gpu.unload_library(library);
        }
        let _placing = steer::Placing::enter(self.virtual_device);
        self.gpu.reset()?;
        // If the driver cannot start over, the addresses still follow from the journal.
        steer::begin_anew(self.virtual_device);
        // References survive a reset; only a new reference creates the context again.
        let context = self.gpu.retain()?;
        self.gpu.release()?;
        self.gpu.set_current(context)?;
        let number = fresh_number();
        let next = ContextState::begin(&self.gpu, self.virtual_device, number).map_err(|(_, rc)| rc)?;
        *life = next;
        // All at once, whatever fails later: the old context is gone.
        self.turn.store(life.turn, Ordering::Release);
        self.context.store(context, Ordering::Release);
        self.ticket.store(number, Ordering::Release);
        remember_current(number);
        let again = self.pin_again();
        let kept = self.keep_on_host(taken);
        drop(gpu_blocks);
        let made_heap = self.place_libraries(&life)?;
        again.and(all_taken).and(kept).map(|()| made_heap)
    }

    /// Closes the place: releases everything on the GPU. Later calls through remaining references return `DEINITIALIZED`.
    pub fn close(self: Arc<Self>) {
        self.shut_down();
    }

    fn shut_down(&self) {
        if self.make_current().is_err() && self.ticket.load(Ordering::Acquire) == 0 {
            return;
        }
        let life = write_lock(&self.life);
        if self.ticket.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        // Errors are ignored: the context's resources are released with it, and after an execution error nothing else is possible anyway.
        self.let_go();
        self.hosts.forget_copies();
        let _ = self.gpu.synchronize();
        std::mem::take(&mut *lock(&self.streams)).destroy_all_but_live(&self.gpu);
        self.end_holds();
        self.end_staging();
        self.end_turns();
        for library in lock(&self.modules).take_libraries() {
            let _ = self.gpu.unload_library(library);
        }
        self.graphs_ended();
        self.end_arrays();
        self.end_gpu_blocks();
        buffers::forget_spares(&self.gpu, life.number);
        *lock(&self.pinned.gpu_buffers) = None;
        self.end_hashes();
        life.end(&self.gpu);
        self.unmap_all();
        self.end_adoption();
        self.unpin_all();
        let _ = self.gpu.release();
        let _ = self.gpu.unreserve(own_base(self.virtual_device), ARENA);
        steer::hold_own_again(self.virtual_device);
        let _ = self.gpu.set_current(0);
        CURRENT.set(0);
        *lock(&self.lease) = None;
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shut_down();
    }
}
