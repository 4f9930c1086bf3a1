//! Forked children: they have the job's pinned memory, too, and what they write there this process does not notice ([`executor::host_mirror`]).
//!
//! A child keeps one end of a pipe until it ends or begins another program; a thread here waits for that at the other end.

use crate::{control, host_memory, job};
use executor::host_mirror::UnseenWriter;
use std::cell::Cell;
use std::io::{PipeReader, PipeWriter, Read};
use std::mem::{ManuallyDrop, forget};
use std::sync::Arc;

/// A fork that is being carried out: who may write, and the pipe.
struct Begun {
    child: Arc<UnseenWriter>,
    read: PipeReader,
    write: PipeWriter,
}

thread_local! {
    /// This thread's. It has no destructor, so it is there until the thread's end.
    static BEGUN: Cell<Option<ManuallyDrop<Begun>>> = const { Cell::new(None) };
}

fn take() -> Option<Begun> {
    BEGUN.take().map(ManuallyDrop::into_inner)
}

/// This thread is about to fork.
pub(crate) extern "C" fn before() {
    // What a child's own children have keeps its end of the pipe open.
    if !host_memory::any_in_arena() || job::is_forked_child() {
        return;
    }
    let child = Arc::new(UnseenWriter::sharing());
    match std::io::pipe() {
        Ok((read, write)) => BEGUN.set(Some(ManuallyDrop::new(Begun { child, read, write }))),
        // Nobody will see its end.
        Err(_) => forget(child),
    }
}

/// It has forked, or not, and this is the process that goes on.
pub(crate) extern "C" fn in_parent() {
    let Some(Begun { child, mut read, write }) = take() else { return };
    drop(write);
    let known = child.clone();
    let wait = move || {
        // Nothing is ever written.
        let _ = read.read(&mut [0]);
        drop(known);
    };
    if control::spawn("mrcuda-child", wait).is_err() {
        forget(child);
    }
}

/// It has forked, and this is the child.
pub(crate) fn in_child() {
    if let Some(Begun { child, write, .. }) = take() {
        // It closes with the child, or where that begins another program. Who writes is counted in the parent.
        forget(write);
        forget(child);
    }
}
