//! Late calls: calls that a second thread applies while a stream waits for the job.
//!
//! A driver's call may wait for the GPU: a module load does, and so does any launch when the stream's queue is full. If
//! the GPU waits for a host function of the job, the message that it has completed lies behind that call in the
//! connection. If it waits for bytes, these may name memory that the place must get first, and that request lies there.
//! Therefore, while a host call is outstanding or bytes are missing, the reader only reads: it processes such messages
//! at once and leaves the other calls, in order, to this thread.
//!
//! Changes of memory that the place keeps in the GPU's memory need the driver, which may not return before a call of another thread that waits for
//! the GPU. A third thread applies them, and the messages behind them, in order; each late call waits for those before it.

use crate::frame::Head;
use crate::pipe::Spin;
use crate::sync::lock;
use cuda_api::lock::wait_while;
use cuda_api::ops::id;
use cuda_api::spin::spin_until;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Poll interval of threads that wait for such calls.
pub(super) const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// A queued call.
#[derive(Debug)]
struct Call {
    head: Head,
    body: Vec<u8>,
    /// Number of messages in the other queue that were queued before it.
    after: u64,
}

/// The queued calls, and the one being applied. The other queue, of messages, is of the same type.
#[derive(Debug)]
pub(super) struct LateCalls {
    /// Maximum bytes in the queue.
    limit: u64,
    /// Bytes in the queue and being applied.
    waiting: AtomicU64,
    queue: Mutex<VecDeque<Call>>,
    arrived: Condvar,
    /// The thread that applies the calls sleeps until one arrives.
    asleep: AtomicBool,
    left: AtomicUsize,
    /// Number of calls among these that end pinned memory.
    ends: AtomicUsize,
    /// Total number of calls queued so far.
    count: AtomicU64,
    /// Total number of calls applied so far.
    applied: AtomicU64,
}

impl LateCalls {
    /// Creates a queue for this many bytes.
    pub(super) fn new(limit: u64) -> LateCalls {
        LateCalls {
            limit,
            waiting: AtomicU64::new(0),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            asleep: AtomicBool::new(false),
            left: AtomicUsize::new(0),
            ends: AtomicUsize::new(0),
            count: AtomicU64::new(0),
            applied: AtomicU64::new(0),
        }
    }

    /// Maximum bytes in the queue.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes in the queue and being applied.
    pub(super) fn bytes(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether every call has been applied: only then may the reader apply one itself.
    pub(super) fn is_empty(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Number of calls that have not been applied.
    pub(super) fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// Whether calls that end pinned memory have not been applied: other memory may come to its addresses only after that.
    pub(super) fn ends_memory(&self) -> bool {
        self.ends.load(Ordering::Acquire) != 0
    }

    /// Total number of calls queued so far.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until so many calls have been applied in all.
    pub(super) fn wait_for(&self, count: u64) {
        let done = || self.applied.load(Ordering::Acquire) >= count;
        if !done() && !spin_until(done) {
            while !done() {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Queues a call, which is applied after so many of the other queue; false if there is no room. Only for the reader.
    pub(super) fn push(&self, head: Head, body: &[u8], after: u64) -> bool {
        let bytes = cost(body);
        if self.waiting.load(Ordering::Relaxed).saturating_add(bytes) > self.limit {
            return false;
        }
        let body = body.to_vec();
        // Under the lock, so that the other thread waits for it instead of asking again and again for a call that is not there yet.
        let mut queue = lock(&self.queue);
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.left.fetch_add(1, Ordering::AcqRel);
        self.ends.fetch_add(usize::from(ends_memory(head.id)), Ordering::AcqRel);
        queue.push_back(Call { head, body, after });
        // It is set under the lock.
        if self.asleep.load(Ordering::Relaxed) {
            self.arrived.notify_one();
        }
        true
    }

    /// Applies calls with `apply`, in order, until it fails; it gets the number of those of the other queue that come before. Between two calls it
    /// calls `idle` with a function that returns whether there is no next one yet. Then it spins before it sleeps: mostly a call or the GPU's progress comes sooner than a thread can be woken. It
    /// yields meanwhile, because what it waits for is the reader, which may need this processor.
    pub(super) fn run<E>(
        &self,
        mut apply: impl FnMut(Head, &[u8], u64) -> Result<(), E>,
        mut idle: impl FnMut(&dyn Fn() -> bool),
    ) -> E {
        let mut spin = Spin::new();
        loop {
            idle(&|| self.is_empty());
            let began = Instant::now();
            let soon = spin.until(|| !self.is_empty());
            let mut queue = lock(&self.queue);
            if !soon {
                self.asleep.store(true, Ordering::Relaxed);
                queue = wait_while(&self.arrived, queue, |q| q.is_empty());
                self.asleep.store(false, Ordering::Relaxed);
                spin.learn(began.elapsed());
            }
            let Some(Call { head, body, after }) = queue.pop_front() else { continue };
            drop(queue);
            if let Err(why) = apply(head, &body, after) {
                return why;
            }
            self.applied.fetch_add(1, Ordering::Release);
            self.waiting.fetch_sub(cost(&body), Ordering::Relaxed);
            self.ends.fetch_sub(usize::from(ends_memory(head.id)), Ordering::AcqRel);
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Whether the driver may wait for the GPU before it returns from a call: it does when code is loaded, for more local memory too, or ends, and when arrays
/// end. (The job has waited itself before other memory ends.)
pub(super) fn may_wait_for_gpu(call: u16) -> bool {
    use cuda_api::calls::Call;
    use cuda_api::calls::module::{cuLibraryUnload, cuModuleUnload};
    let loads = [id::IMAGE_LOAD, id::LINK, id::BATCH, id::FUNCTION_INFO, id::LOCAL_GROW, id::HEAP_MAKE];
    let ends = [id::CONTEXT_RESET, id::ARRAY_END, id::TILE_POOL_END, cuModuleUnload::Fn::ID, cuLibraryUnload::Fn::ID];
    loads.contains(&call) || ends.contains(&call)
}

/// Whether a call ends pinned memory, or registers all of it anew.
fn ends_memory(call: u16) -> bool {
    matches!(call, id::HOST_UNPIN | id::CONTEXT_RESET | id::BATCH)
}

/// What a queued call costs: its body, and its entry in the queue.
fn cost(body: &[u8]) -> u64 {
    body.len() as u64 + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_room_comes_back() {
        let late = LateCalls::new(10_000);
        let head = Head { len: 24, id: 1, flags: 0, seq: 0, ticket: 0 };
        let mut n = 0;
        while late.push(head, &[7; 100], 0) {
            n += 1;
        }
        assert_eq!(n, 10_000 / 164);
        assert!(late.push(head, &[], 0), "a smaller one still fits");
        let mut applied = 0;
        let end = late.run(
            |_, _, _| {
                applied += 1;
                if applied == 10 { Err("enough") } else { Ok(()) }
            },
            |_| (),
        );
        assert_eq!((end, applied), ("enough", 10));
        assert!((0..9).all(|_| late.push(head, &[7; 100], 0)) && !late.push(head, &[7; 200], 0));
    }

    #[test]
    fn the_end_of_memory_is_known_until_it_is_applied() {
        let late = LateCalls::new(10_000);
        let call = |id| Head { len: 24, id, flags: 0, seq: 0, ticket: 0 };
        for id in [id::LAUNCH, id::HOST_UNPIN, id::STREAM_SYNC, id::CONTEXT_RESET, id::LAUNCH] {
            assert!(late.push(call(id), &[], 0));
        }
        let mut known = Vec::new();
        late.run(
            |_, _, _| {
                known.push(late.ends_memory());
                if known.len() == 5 { Err(()) } else { Ok(()) }
            },
            |_| (),
        );
        assert_eq!(known, [true, true, true, true, false]);
    }
}
