//! Copies to idle streams that no thread waits for ([`Op::CopyInAtRest`](cuda_api::ops::Op::CopyInAtRest)). Such copies to one stream follow
//! each other without a wait; they are complete before any other call is carried out, and soon after the last of them if none comes.

use super::{ContextState, Executor, short};
use cuda_api::arg::stage_stream;
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::CopyIn;
use cuda_api::wire::Wire;
use std::sync::atomic::Ordering;

impl Executor {
    /// Submits a copy to a stream that had nothing to do but earlier copies of this kind.
    pub(super) fn copy_in_at_rest(&self, life: &ContextState, body: &[u8]) -> Result<(), Code> {
        let mut bytes = body;
        let op = CopyIn::get(&mut bytes).map_err(short)?;
        let stream = stage_stream(op.stream, &self.bindings)?;
        if *lock(&self.at_rest.stream) != Some(stream) {
            self.finish_copies()?;
        }
        if op.rows == 1 && !self.reads_pageable {
            if op.width != bytes.len() as u64 {
                return Err(code::ERROR_INVALID_VALUE);
            }
            self.check_pitched(op.dst, op.pitch, op.width, op.rows)?;
            // SAFETY: the message has these bytes, in pageable memory, which the driver reads at the call (docs/driver-facts.md 5.5).
            unsafe { self.gpu.copy_in(op.dst, bytes.as_ptr(), op.width, stream) }?;
        } else {
            self.copy_in(life, body)?;
        }
        let mut open = lock(&self.at_rest.stream);
        *open = Some(stream);
        self.at_rest.any.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether [`Executor::finish_copies`] has something to wait for.
    #[inline]
    pub fn has_copies_at_rest(&self) -> bool {
        self.at_rest.any.load(Ordering::Acquire)
    }

    /// Waits until all copies of this kind are complete.
    ///
    /// # Errors
    /// The context has failed.
    pub fn finish_copies(&self) -> Result<(), Code> {
        let mut open = lock(&self.at_rest.stream);
        let Some(stream) = *open else { return Ok(()) };
        let done = self.make_current().and_then(|()| self.gpu.synchronize_stream(stream));
        // Not before: who finds none goes on without the lock.
        *open = None;
        self.at_rest.any.store(false, Ordering::Release);
        done
    }
}
