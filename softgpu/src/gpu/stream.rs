//! Streams: order of work, and the rules between the legacy default stream and the others.

use super::context::{self, Context};
use super::graph_table::GRAPHS;
use super::live::Live;
use super::mark::Mark;
use super::mempool;
use super::sched::{self, Work};
use super::stream_state::{Kind, NON_BLOCKING, Stream};
use super::table::Table;
use crate::result::Res;
use cuda_api::sys::{CUresult, CUstream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

/// Greatest priority (numerically lowest); the least is 0.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// A stream that the program made.
pub(crate) struct Created {
    pub stream: Arc<Stream>,
    live: Weak<Live>,
}

impl Created {
    /// Whether it is a stream of this context.
    pub fn belongs_to(&self, live: &Arc<Live>) -> bool {
        std::ptr::eq(self.live.as_ptr(), Arc::as_ptr(live))
    }
}

/// Streams by handle.
pub(crate) static STREAMS: LazyLock<Table<Created>> = LazyLock::new(|| Table::new(1));

/// The meaning of the NULL stream in a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Default {
    /// The legacy stream of the context.
    Legacy,
    /// The stream of the calling thread.
    PerThread,
}

/// A stream with its context: what most calls want.
#[derive(Clone)]
pub(crate) struct Target {
    pub stream: Arc<Stream>,
    pub live: Arc<Live>,
}

impl Target {
    /// Adds work that starts after `after` and after what the stream rules require.
    pub fn submit(&self, work: Work, mut after: Vec<Arc<Mark>>) -> Arc<Mark> {
        let mut submission = sched::submit();
        if self.stream.kind == Kind::Legacy {
            self.live.each_stream(|other| {
                if other.blocking() {
                    after.extend(other.pending());
                }
            });
        } else if self.stream.blocking() {
            after.extend(self.live.legacy.pending());
        }
        after.extend(self.live.awaited(&self.stream));
        let mark = submission.push(self.stream.number, &self.live, work, after);
        self.stream.set_last(mark.clone());
        mark
    }

    /// Marks of all work that a synchronisation with this stream waits for.
    pub fn outstanding(&self) -> Vec<Arc<Mark>> {
        let mut marks: Vec<_> = self.stream.pending().into_iter().collect();
        if self.stream.kind == Kind::Legacy {
            let _submission = sched::submit();
            self.live.each_stream(|other| {
                if other.blocking() {
                    marks.extend(other.pending());
                }
            });
        }
        marks
    }

    /// Waits for the stream and returns the context's failure, if any.
    pub fn synchronise(&self) -> Res {
        sched::wait(&self.outstanding());
        mempool::trim();
        self.live.settle()
    }
}

/// Number of the calling thread, for per-thread streams.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    // During thread exit a fresh number gives a fresh, empty stream.
    NUMBER.try_with(|n| *n).unwrap_or_else(|_| NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The stream that a handle means for the calling thread.
pub(crate) fn resolve(handle: CUstream, default: Default) -> Res<Target> {
    let kind = match (handle as usize, default) {
        (0, Default::Legacy) | (1, _) => Kind::Legacy,
        (0, Default::PerThread) | (2, _) => Kind::PerThread(thread_number()),
        (handle, _) => {
            let created = STREAMS.get(handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            let live = created.live.upgrade().ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
            let stream = created.stream.clone();
            if stream.orphaned.load(Ordering::Acquire) {
                return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
            }
            live.check()?;
            return Ok(Target { stream, live });
        }
    };
    let live = context::current()?;
    let stream = live.default_stream(kind);
    Ok(Target { stream, live })
}

/// Creates a stream of the current context.
pub(crate) fn create(flags: u32, priority: i32) -> Res<Arc<Stream>> {
    context::current()?;
    create_in(&*context::top().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?, flags, priority)
}

/// Creates a stream of a context.
pub(crate) fn create_in(context: &Context, flags: u32, priority: i32) -> Res<Arc<Stream>> {
    if flags & !NON_BLOCKING != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let live = context.live()?;
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let created = STREAMS.insert_with(|handle| Created {
        stream: Arc::new(Stream::new(handle, Kind::Created, flags, priority, context.handle)),
        live: Arc::downgrade(&live),
    });
    let stream = created.stream.clone();
    live.adopt(stream.clone());
    Ok(stream)
}

/// Destroys a created stream; its work continues. Default streams cannot be destroyed.
pub(crate) fn destroy(handle: CUstream) -> Res {
    let target = resolve(handle, Default::Legacy)?;
    if target.stream.kind != Kind::Created || STREAMS.remove(target.stream.handle).is_none() {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    GRAPHS.forget_stream(target.stream.number);
    target.stream.abandon();
    Ok(())
}
