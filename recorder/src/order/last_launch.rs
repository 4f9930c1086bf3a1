//! What was launched last in each stream: a move that waits for a stream names it.

use crate::enter::CallContext;
use crate::job::{Device, Job};
use cuda_api::handle::{Kind, kind};
use std::sync::atomic::Ordering;

/// Longest name of a kernel in a report: those of templates have thousands of characters.
const LONGEST: usize = 200;

/// Notes the launch of a function or of a graph instance.
#[inline]
pub(crate) fn note(cx: &CallContext, device: &Device, stream: u64, launched: u64) {
    let last = cx.job.tables.streams.get(stream).map_or(&device.launched_in_legacy.0, |s| &s.data.launched);
    last.store(launched, Ordering::Relaxed);
}

/// The name of what was launched last in a stream, if it is still known.
pub(crate) fn name(job: &Job, device: &Device, stream: u64) -> Option<String> {
    let last = job.tables.streams.get(stream).map_or(&device.launched_in_legacy.0, |s| &s.data.launched);
    let launched = last.load(Ordering::Relaxed);
    if kind(launched) == Some(Kind::GraphExec) {
        return Some("a graph".to_owned());
    }
    let name = &job.tables.function(launched).ok()?.known_on(device.index)?.info.name;
    Some(name.chars().filter(|c| !c.is_control()).take(LONGEST).collect())
}
