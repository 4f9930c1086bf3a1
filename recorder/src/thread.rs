//! What belongs to a thread of the program. It is there until after the last exit handler: when the process ends, the thread-locals
//! of the thread that ends it are dropped before the handlers run, and natively these still find their context.

use crate::gate::Slot;
use crate::log::lock;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;

/// The calling thread: found with one look, since looking is most of what a cheap call costs. It is never dropped, so calls in the
/// destructors of other thread-locals find it, too.
#[derive(Debug)]
pub(crate) struct Here {
    /// How often it has passed the gate.
    pub(crate) depth: Cell<u32>,
    /// Its mark at the gate, once it has passed.
    pub(crate) slot: Cell<Option<&'static Slot>>,
    /// It runs a host function of the program.
    pub(crate) in_host_function: Cell<bool>,
    /// Its current context, 0 without one: the last one of its stack.
    pub(crate) context: Cell<u64>,
}

/// What a thread has, and gives back when it ends.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// The stack of contexts.
    pub(crate) contexts: Vec<u64>,
    /// The streams that stand for `CU_STREAM_PER_THREAD`, by device; when the thread ends the next one takes them.
    pub(crate) streams: Vec<(u32, u64)>,
}

/// Takes back what a thread has when it ends.
struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        // SAFETY: these calls have no preconditions.
        if unsafe { libc::gettid() == libc::getpid() } {
            // The process ends with it.
            return;
        }
        let own = OWN.with(|own| own.take());
        here().context.set(0);
        let Ok(job) = crate::job::get() else { return };
        for (device, stream) in own.streams {
            if let Some(d) = job.devices.get(device as usize) {
                lock(&d.idle_streams).push(stream);
            }
        }
    }
}

thread_local! {
    static HERE: Here = const {
        Here { depth: Cell::new(0), slot: Cell::new(None), in_host_function: Cell::new(false), context: Cell::new(0) }
    };
    static OWN: ManuallyDrop<RefCell<Own>> =
        const { ManuallyDrop::new(RefCell::new(Own { contexts: Vec::new(), streams: Vec::new() })) };
    static AT_END: AtEnd = const { AtEnd };
}

/// The calling thread.
#[inline]
pub(crate) fn here() -> &'static Here {
    // SAFETY: nothing in it is dropped, so it is there as long as its thread; the reference cannot leave that, since `Here` is
    // not `Sync`.
    HERE.with(|here| unsafe { &*std::ptr::from_ref(here) })
}

/// Looks at what the calling thread has.
pub(crate) fn look<T>(f: impl FnOnce(&Own) -> T) -> T {
    OWN.with(|own| f(&own.borrow()))
}

/// Changes what the calling thread has.
pub(crate) fn change<T>(f: impl FnOnce(&mut Own) -> T) -> T {
    // From its first use on it is dropped when the thread ends; a thread that is ending keeps what it makes now.
    let _ = AT_END.try_with(|_| ());
    OWN.with(|own| f(&mut own.borrow_mut()))
}
