//! Streams: order of work, and the rules between the legacy default stream and the others.

use super::context::{self, Context, Live};
use super::sched::{self, Mark, Work};
use super::table::Table;
use super::{graph, lock, mempool};
use crate::result::Res;
use cuda_api::sys::{CUresult, CUstream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

/// The flag of streams that do not synchronise with the legacy stream.
pub(crate) const NON_BLOCKING: u32 = 1;
/// Greatest priority (numerically lowest); the least is 0.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// Streams by handle.
pub(crate) static STREAMS: LazyLock<Table<Stream>> = LazyLock::new(|| Table::new(1));

/// The meaning of the NULL stream in a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Default {
    /// The legacy stream of the context.
    Legacy,
    /// The stream of the calling thread.
    PerThread,
}

/// A `CUstreamAttrValue`.
pub(crate) type Attribute = [u8; 64];

/// Which of the three kinds a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The legacy default stream: waits for all blocking streams, and they for it.
    Legacy,
    /// The default stream of one thread, by the thread's number.
    PerThread(u64),
    /// Made by the program.
    Created,
}

/// A stream of a live context.
pub(crate) struct Stream {
    /// Handle of a created stream, else 0.
    pub handle: usize,
    /// Unique in the process; returned by `cuStreamGetId`.
    pub number: u64,
    pub kind: Kind,
    pub flags: u32,
    priority: i32,
    /// The context that it was made in, for those that the program made.
    pub context: usize,
    /// Its green context has been destroyed.
    pub orphaned: AtomicBool,
    /// The attributes that were set, by number.
    pub attributes: Mutex<Vec<(u32, Attribute)>>,
    live: Weak<Live>,
    /// Last work submitted; changed only during a submission.
    last: Mutex<Option<Arc<Mark>>>,
    destroyed: AtomicBool,
}

impl Stream {
    /// A stream with the given handle.
    pub fn new(handle: usize, kind: Kind, flags: u32, priority: i32, (live, context): (Weak<Live>, usize)) -> Stream {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Stream {
            handle,
            number,
            kind,
            flags,
            priority,
            context,
            orphaned: AtomicBool::new(false),
            attributes: Mutex::default(),
            live,
            last: Mutex::new(None),
            destroyed: AtomicBool::new(false),
        }
    }

    /// The value that was set last, or the initial one.
    pub fn priority(&self) -> i32 {
        /// `CU_STREAM_ATTRIBUTE_PRIORITY`
        const PRIORITY: u32 = 8;
        let set = lock(&self.attributes).iter().find(|(id, _)| *id == PRIORITY).map(|(_, v)| [v[0], v[1], v[2], v[3]]);
        set.map_or(self.priority, i32::from_le_bytes)
    }

    /// Whether it synchronizes with the legacy stream.
    pub fn blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// Mark of the last work submitted, if it has not ended.
    pub fn pending(&self) -> Option<Arc<Mark>> {
        lock(&self.last).clone().filter(|mark| !mark.done())
    }

    /// Whether it is a stream of this context.
    pub fn belongs_to(&self, live: &Arc<Live>) -> bool {
        std::ptr::eq(self.live.as_ptr(), Arc::as_ptr(live))
    }

    /// Marks it as destroyed: it gets no more work.
    pub fn abandon(&self) {
        self.destroyed.store(true, Ordering::Release);
    }

    /// Whether it is destroyed and its work has completed.
    pub fn finished(&self) -> bool {
        self.destroyed.load(Ordering::Acquire) && self.pending().is_none()
    }
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
        *lock(&self.stream.last) = Some(mark.clone());
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
            let stream = STREAMS.get(handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            let live = stream.live.upgrade().ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
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
    let stream = STREAMS
        .insert_with(|handle| Stream::new(handle, Kind::Created, flags, priority, (Arc::downgrade(&live), context.handle)));
    live.adopt(stream.clone());
    Ok(stream)
}

/// Destroys a created stream; its work continues. Default streams cannot be destroyed.
pub(crate) fn destroy(handle: CUstream) -> Res {
    let target = resolve(handle, Default::Legacy)?;
    if target.stream.kind != Kind::Created || STREAMS.remove(target.stream.handle).is_none() {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    graph::GRAPHS.forget_stream(target.stream.number);
    target.stream.abandon();
    Ok(())
}
