//! Events: a mark in a stream, with its time.

use super::context::{self, Live};
use super::lock;
use super::sched::{self, Mark, Work};
use super::stream::Target;
use super::table::Table;
use crate::abi::Res;
use cuda_api::sys::{CUevent, CUresult};
use std::sync::{Arc, LazyLock, Mutex};

/// Events by handle.
pub(crate) static EVENTS: LazyLock<Table<Event>> = LazyLock::new(|| Table::new(2));

const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

/// An event of one context.
pub(crate) struct Event {
    /// Its handle.
    pub handle: usize,
    flags: u32,
    live: Arc<Live>,
    recorded: Mutex<Option<Arc<Mark>>>,
}

/// The event of a handle.
pub(crate) fn resolve(handle: CUevent) -> Res<Arc<Event>> {
    EVENTS.get(handle as usize).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// Makes an event of the current context.
pub(crate) fn create(flags: u32) -> Res<Arc<Event>> {
    if flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0
        || flags & (INTERPROCESS | DISABLE_TIMING) == INTERPROCESS
    {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if flags & INTERPROCESS != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let live = context::current()?;
    Ok(EVENTS.insert_with(|handle| Event { handle, flags, live, recorded: Mutex::new(None) }))
}

impl Event {
    /// Whether the event belongs to this context.
    pub fn belongs_to(&self, live: &Arc<Live>) -> bool {
        Arc::ptr_eq(&self.live, live)
    }

    /// Records the present end of a stream of the same context.
    pub fn record(&self, target: &Target) -> Res {
        if !self.belongs_to(&target.live) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        // Locked over the submission, so that of two recordings the later one in the queue is remembered.
        let mut recorded = lock(&self.recorded);
        *recorded = Some(target.submit(Work::Nothing, Vec::new()));
        Ok(())
    }

    /// Number of its context.
    pub fn context(&self) -> u64 {
        self.live.number
    }

    /// A graph has recorded it.
    pub fn recorded_at(&self, mark: Arc<Mark>) {
        *lock(&self.recorded) = Some(mark);
    }

    /// The last recording, if there was one.
    pub fn mark(&self) -> Option<Arc<Mark>> {
        lock(&self.recorded).clone()
    }

    /// `NOT_READY` while the last recording has not been reached.
    pub fn query(&self) -> Res {
        self.live.check()?;
        match self.mark() {
            Some(mark) if !mark.done() => Err(CUresult::CUDA_ERROR_NOT_READY),
            _ => self.live.check(),
        }
    }

    /// Waits for the last recording.
    pub fn synchronise(&self) -> Res {
        self.live.check()?;
        if let Some(mark) = self.mark() {
            sched::wait(&[mark]);
        }
        self.live.settle()
    }

    /// Milliseconds from one event to another.
    pub fn elapsed(start: &Event, end: &Event) -> Res<f32> {
        if (start.flags | end.flags) & DISABLE_TIMING != 0 || !start.belongs_to(&end.live) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        start.live.check()?;
        let (Some(from), Some(to)) = (start.mark(), end.mark()) else {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        };
        if !from.done() || !to.done() {
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        }
        Ok((to.nanoseconds() as f64 - from.nanoseconds() as f64) as f32 / 1e6)
    }
}
