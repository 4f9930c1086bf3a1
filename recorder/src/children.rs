//! Forked children: they share the job's pinned memory, and this process does not notice their writes to it ([`executor::host_mirror`]).
//!
//! A child keeps one end of a pipe until it ends or executes another program; a thread here waits for that at the other end.

use crate::base::spawn;
use crate::internal_error;
use crate::job;
use crate::pinned::blocks;
use executor::host_mirror::UnseenWriter;
use std::cell::Cell;
use std::io::{PipeReader, PipeWriter, Read};
use std::mem::{ManuallyDrop, forget};
use std::sync::Arc;

/// A fork in progress: the note that a child may write, and the pipe.
struct Begun {
    child: Arc<UnseenWriter>,
    read: PipeReader,
    write: PipeWriter,
}

thread_local! {
    /// The fork in progress on this thread. It has no destructor, so it exists until the thread's end.
    static BEGUN: Cell<Option<ManuallyDrop<Begun>>> = const { Cell::new(None) };
}

fn take() -> Option<Begun> {
    BEGUN.take().map(ManuallyDrop::into_inner)
}

/// Called before this thread forks.
pub(crate) extern "C" fn before() {
    internal_error::guard("a fork", prepare);
}

fn prepare() {
    // A child's own children inherit its end of the pipe and keep it open.
    if !blocks::any_in_arena() || job::is_forked_child() {
        return;
    }
    let child = Arc::new(UnseenWriter::sharing());
    match std::io::pipe() {
        Ok((read, write)) => BEGUN.set(Some(ManuallyDrop::new(Begun { child, read, write }))),
        // Nothing would notice the end of such a child.
        Err(_) => forget(child),
    }
}

/// Called after the fork, successful or not, in the parent.
pub(crate) extern "C" fn in_parent() {
    internal_error::guard("a fork", watch);
}

fn watch() {
    let Some(Begun { child, mut read, write }) = take() else { return };
    drop(write);
    let known = child.clone();
    let wait = move || {
        // Nothing is ever written: this waits for the end of the pipe.
        let _ = read.read(&mut [0]);
        drop(known);
    };
    if spawn::spawn("mrcuda-child", wait).is_err() {
        forget(child);
    }
}

/// Called after the fork in the child.
pub(crate) fn in_child() {
    if let Some(Begun { child, write, .. }) = take() {
        // It is closed when the child ends or executes another program. The parent counts the writers.
        forget(write);
        forget(child);
    }
}
