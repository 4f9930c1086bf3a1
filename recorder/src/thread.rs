//! The per-thread state of the program's threads. It exists until after the last exit handler: when the process ends, the thread-locals
//! of the thread that ends it are dropped before the handlers run, but natively the handlers still find their context. When another
//! thread ends, it exists until after the destructors of the thread-local objects, and for most rounds of those of pthread keys.

use crate::base::log::lock;
use crate::base::sync::{AtomicBool, AtomicU32};
use crate::base::traced_calls::Calls;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// State of the calling thread that each call needs, in one thread-local because the lookup is most of the cost of a cheap call. It is
/// never dropped, so calls in the destructors of thread-local objects and of pthread keys find it, too.
#[derive(Debug)]
pub(crate) struct Here {
    /// Nesting depth of the thread's passes through the gate.
    pub(crate) depth: Cell<u32>,
    /// Its mark at the gate, once it has passed.
    pub(crate) slot: Cell<Option<&'static Slot>>,
    /// What it has to do when it is outside the gate again, besides taking its mark away; mostly nothing, so it is tested as one.
    pub(crate) after: Cell<After>,
    /// Whether the thread releases its resources when it ends.
    tidies: Cell<bool>,
    /// Whether it has done so.
    is_tidied: Cell<bool>,
    /// Whether it runs a host function of the program.
    pub(crate) in_host_function: Cell<bool>,
    /// Its current context, 0 without one: the last one of its stack.
    pub(crate) context: Cell<u64>,
    /// Number of active [`crate::job::PutOff`] guards: they leave pending errors to a later call.
    pub(crate) puts_off: Cell<u32>,
    /// The allocation that its last copy or fill used.
    pub(crate) used: Cell<Used>,
    /// The call that it makes, noted while a move is traced.
    pub(crate) call: Noted,
}

/// What is to be done after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct After(u8);

impl After {
    pub(crate) const NOTHING: After = After(0);
    /// The mark is released, since it would not be released later.
    pub(crate) const RELEASE: After = After(1);
    /// The call is added to a trace, once it is over.
    pub(crate) const TRACE: After = After(2);

    pub(crate) fn has(self, what: After) -> bool {
        self.0 & what.0 != 0
    }

    /// The same with or without this.
    pub(crate) fn with(self, what: After, wanted: bool) -> After {
        After(if wanted { self.0 | what.0 } else { self.0 & !what.0 })
    }
}

/// The call that a thread makes, noted while a move is traced.
#[derive(Debug)]
pub(crate) struct Noted {
    call: Cell<&'static str>,
    since: Cell<Option<Instant>>,
    /// The number of the trace during which it was noted.
    trace: Cell<u64>,
}

/// Number of traces so far.
static TRACES: AtomicU64 = AtomicU64::new(0);

impl Noted {
    /// Notes the call that begins; `None` if one goes on.
    pub(crate) fn note(&self, call: Option<&'static str>) {
        if let Some(call) = call {
            self.call.set(call);
            self.since.set(Some(Instant::now()));
            self.trace.set(TRACES.load(Ordering::Relaxed));
        }
    }

    /// When the call began, if it has begun during the current trace.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.call().and_then(|_| self.since.get())
    }

    /// The call, if it has begun during the current trace.
    pub(crate) fn call(&self) -> Option<&'static str> {
        (self.trace.get() == TRACES.load(Ordering::Relaxed)).then(|| self.call.get())
    }

    /// What was noted before is of another trace.
    pub(crate) fn begin_trace() {
        TRACES.fetch_add(1, Ordering::Relaxed);
    }
}

/// An allocation that a thread has used, as long as the allocations of its device stay as they were.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    /// Identifies the state of the allocations ([`crate::objects::memory_lock`]); 0: none.
    pub(crate) version: u64,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// Resources of a thread, released when it ends.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// The stack of contexts.
    pub(crate) contexts: Vec<u64>,
    /// The streams used for `CU_STREAM_PER_THREAD`, by device. They end with their context, which any thread can destroy.
    pub(crate) streams: Vec<(u32, u64)>,
}

/// Rounds in which the destructors of a thread's pthread keys are called as long as they set values again
/// (`PTHREAD_DESTRUCTOR_ITERATIONS` of glibc and musl).
const ROUNDS: usize = 4;

/// Called when a thread ends, after the destructors of its thread-local objects; not in a thread that ends the process by `exit`.
/// Resources are kept until the last round: destructors of the program's keys may make calls in the rounds before.
extern "C" fn at_end(round: *mut c_void) {
    let next = round as usize + 1;
    // If the value cannot be set, this is the last call.
    if next <= ROUNDS && set_round(next) {
        return;
    }
    let here = here();
    here.is_tidied.set(true);
    here.context.set(0);
    here.release_slot();
    let own = OWN.with(|own| own.take());
    // In a forked child another thread of the parent may hold the lock for ever.
    if !IS_FORKED_CHILD.load(Ordering::Relaxed) {
        lock(&ENDED_STREAMS).extend(own.streams);
    }
}

/// Whether this process is a forked child of the job.
static IS_FORKED_CHILD: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Notes that this process is a forked child: its threads leave nothing to others.
pub(crate) fn note_fork() {
    IS_FORKED_CHILD.store(true, Ordering::Relaxed);
}

/// The default streams of threads that have ended, with their devices, until they are destroyed: a thread that ends makes no calls.
static ENDED_STREAMS: Mutex<Vec<(u32, u64)>> = Mutex::new(Vec::new());

/// Takes those of a device.
pub(crate) fn take_ended_streams(device: u32) -> Vec<u64> {
    lock(&ENDED_STREAMS).extract_if(.., |(d, _)| *d == device).map(|(_, stream)| stream).collect()
}

impl Here {
    /// Releases the slot. The thread is outside the gate.
    #[cold]
    pub(crate) fn release_slot(&self) {
        if let Some(slot) = self.slot.take() {
            slot.taken.store(false, Ordering::Release);
        }
    }
}

/// Registers [`at_end`] to be called when the calling thread ends; returns false if the system has no key or memory for that.
fn set_round(round: usize) -> bool {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let make = || {
        let mut key = 0;
        // SAFETY: the key is writable; the function is of this library, which is never unloaded (its build script).
        (unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) } == 0).then_some(key)
    };
    let Some(key) = *KEY.get_or_init(make) else { return false };
    // SAFETY: the key exists; the value is a number that is never followed as a pointer.
    unsafe { libc::pthread_setspecific(key, ptr::without_provenance(round)) == 0 }
}

/// Makes the calling thread release its resources when it ends; returns false if it cannot, because as far as this library sees it has
/// already ended, or because the system has no key or memory.
pub(crate) fn tidy_at_end() -> bool {
    let here = here();
    if here.is_tidied.get() {
        return false;
    }
    if !here.tidies.get() {
        here.tidies.set(set_round(1));
    }
    here.tidies.get()
}

thread_local! {
    static HERE: Here = const {
        Here {
            depth: Cell::new(0),
            slot: Cell::new(None),
            after: Cell::new(After::NOTHING),
            tidies: Cell::new(false),
            is_tidied: Cell::new(false),
            in_host_function: Cell::new(false),
            context: Cell::new(0),
            puts_off: Cell::new(0),
            used: Cell::new(Used { version: 0, start: 0, bytes: 0 }),
            call: Noted { call: Cell::new(""), since: Cell::new(None), trace: Cell::new(0) },
        }
    };
    static OWN: ManuallyDrop<RefCell<Own>> =
        const { ManuallyDrop::new(RefCell::new(Own { contexts: Vec::new(), streams: Vec::new() })) };
}

/// The state of the calling thread.
#[inline]
pub(crate) fn here() -> &'static Here {
    // SAFETY: nothing in it is dropped, so it is there as long as its thread; the reference cannot leave that, since `Here` is
    // not `Sync`.
    HERE.with(|here| unsafe { &*std::ptr::from_ref(here) })
}

/// Makes the calling thread new, for models, whose threads run again and again: one that has ended as far as this library sees, or one that
/// never ends, since a release of its slot would be at no step of the model.
#[cfg(test)]
pub(crate) fn pretend(has_ended: bool) {
    let here = here();
    here.slot.set(None);
    here.after.set(After::NOTHING);
    here.tidies.set(!has_ended);
    here.is_tidied.set(has_ended);
}

/// Reads the resources of the calling thread.
pub(crate) fn read<T>(f: impl FnOnce(&Own) -> T) -> T {
    OWN.with(|own| f(&own.borrow()))
}

/// Changes the resources of the calling thread.
pub(crate) fn change<T>(f: impl FnOnce(&mut Own) -> T) -> T {
    // A thread that has ended as far as this library sees keeps what it acquires now.
    tidy_at_end();
    OWN.with(|own| f(&mut own.borrow_mut()))
}

/// The mark of a thread, alone in its cache lines because the thread writes to it twice in each call; and what a trace has of its calls.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Slot {
    pub(crate) inside: AtomicU32,
    pub(crate) taken: AtomicBool,
    pub(crate) calls: Mutex<Calls>,
}
