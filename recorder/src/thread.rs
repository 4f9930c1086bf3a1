//! What is known of the calling thread: found with one look, since looking is most of what a cheap call costs.

use crate::gate::Slot;
use std::cell::Cell;

/// The calling thread. It is never dropped, so calls in the destructors of other thread-locals find it, too.
#[derive(Debug)]
pub(crate) struct Here {
    /// How often it has passed the gate.
    pub(crate) depth: Cell<u32>,
    /// Its mark at the gate, once it has passed.
    pub(crate) slot: Cell<Option<&'static Slot>>,
    /// It runs a host function of the program.
    pub(crate) in_host_function: Cell<bool>,
    /// Its current context, 0 without one: the last one of its stack ([`crate::context`]).
    pub(crate) context: Cell<u64>,
}

thread_local! {
    static HERE: Here = const {
        Here { depth: Cell::new(0), slot: Cell::new(None), in_host_function: Cell::new(false), context: Cell::new(0) }
    };
}

/// The calling thread.
#[inline]
pub(crate) fn here() -> &'static Here {
    // SAFETY: nothing in it is dropped, so it is there as long as its thread; the reference cannot leave that, since `Here` is
    // not `Sync`.
    HERE.with(|here| unsafe { &*std::ptr::from_ref(here) })
}
