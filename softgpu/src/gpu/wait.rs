//! Waits for all work of a context, or of a device.

use super::context::CONTEXTS;
use super::live::Live;
use super::mark::Mark;
use super::stream_state::Kind;
use super::{mempool, sched};
use crate::result::Res;
use std::sync::Arc;

/// Marks of all work that has not completed.
pub(crate) fn outstanding(live: &Live) -> Vec<Arc<Mark>> {
    outstanding_in(live, live.context)
}

/// As [`outstanding`] of a context that has this state: a green one has but its own streams, and the default ones.
pub(crate) fn outstanding_in(live: &Live, context: usize) -> Vec<Arc<Mark>> {
    let _submission = sched::submit();
    let mut marks: Vec<_> = live.legacy.pending().into_iter().collect();
    live.each_stream(|stream| {
        if context == live.context || stream.context == context || stream.kind != Kind::Created {
            marks.extend(stream.pending());
        }
    });
    marks
}

/// Waits for all work and returns the fault, if any.
pub(crate) fn synchronise(live: &Live) -> Res {
    sched::wait(&outstanding(live));
    mempool::trim();
    live.settle()
}

/// Waits for the work of every context on a device.
pub(crate) fn for_device(ordinal: usize) {
    let mut marks = Vec::new();
    CONTEXTS.each(|context| {
        if context.device.ordinal as usize == ordinal
            && let Ok(live) = context.live()
        {
            marks.extend(outstanding(&live));
        }
    });
    sched::wait(&marks);
}
