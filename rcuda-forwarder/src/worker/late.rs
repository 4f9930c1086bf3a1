//! Calls that are applied by a thread of their own while a stream waits for the job.
//!
//! A driver's call may wait for the GPU: a module load does, and so does any launch when the stream's queue is full. If the GPU
//! waits for a host function of the job, the word that it is done lies behind that call in the connection. So from a host call
//! on until it is over, the reader only reads: it takes that word at once and leaves the rest, in order, to this thread.

use crate::frame::Head;
use crate::link::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// The calls that wait for that thread, and the one that it is applying.
#[derive(Debug, Default)]
pub(super) struct Late {
    queue: Mutex<VecDeque<(Head, Vec<u8>)>>,
    arrived: Condvar,
    left: AtomicUsize,
    /// How many there have been.
    count: AtomicU64,
}

impl Late {
    /// Whether every call has been applied: only then may the reader apply one itself.
    pub(super) fn is_empty(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// How many calls were left to that thread.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Leaves a call. Only the reader does.
    pub(super) fn push(&self, head: Head, body: &[u8]) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.left.fetch_add(1, Ordering::AcqRel);
        lock(&self.queue).push_back((head, body.to_vec()));
        self.arrived.notify_one();
    }

    /// Applies calls with `apply`, in order, until it fails.
    pub(super) fn run<E>(&self, mut apply: impl FnMut(Head, &[u8]) -> Result<(), E>) -> E {
        loop {
            let queue = lock(&self.queue);
            let mut queue = self.arrived.wait_while(queue, |q| q.is_empty()).unwrap_or_else(PoisonError::into_inner);
            let Some((head, body)) = queue.pop_front() else { continue };
            drop(queue);
            if let Err(why) = apply(head, &body) {
                return why;
            }
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
