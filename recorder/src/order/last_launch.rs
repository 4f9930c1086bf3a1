//! What was launched last in each stream: a move that waits for a stream names it.

use crate::enter::CallContext;
use crate::job::{Device, Job};
use cuda_api::handle::{Kind, kind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest name of a kernel in a report: those of templates have thousands of characters.
const LONGEST: usize = 200;

/// Where the job's handle of what was launched last in a stream is kept.
#[inline]
fn last<'a>(job: &'a Job, device: &'a Device, stream: u64) -> &'a AtomicU64 {
    job.tables.streams.get(stream).map_or(&device.launched_in_legacy.0, |s| &s.data.launched)
}

/// Notes the launch of a function or of a graph instance.
#[inline]
pub(crate) fn note(cx: &CallContext, device: &Device, stream: u64, launched: u64) {
    last(cx.job, device, stream).store(launched, Ordering::Relaxed);
}

/// The name of what was launched last in a stream, if it is still known.
pub(crate) fn name(job: &Job, device: &Device, stream: u64) -> Option<String> {
    let launched = last(job, device, stream).load(Ordering::Relaxed);
    if kind(launched) == Some(Kind::GraphExec) {
        return Some("a graph".to_owned());
    }
    let name = &job.tables.function(launched).ok()?.known_on(device.index)?.info.name;
    Some(name.chars().filter(|c| !c.is_control()).take(LONGEST).collect())
}
