//! Atomic operations with system scope: natively those of a kernel and of the processor on one word of managed memory, or of memory that
//! both use, are atomic with respect to each other. Here managed memory is host memory, and other places have copies of what GPUs use, so
//! there they are not (docs/features.md). A program that has both such a kernel and such memory gets one warning.

use crate::enter::CallContext;
use crate::host_memory::places;
use crate::place::Place;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first kernel that uses such operations.
static KERNEL: OnceLock<String> = OnceLock::new();
static WARNED: AtomicBool = AtomicBool::new(false);

/// Called before the first use of a kernel with such operations.
#[cold]
pub(crate) fn note_kernel(cx: &CallContext, name: &str) {
    KERNEL.get_or_init(|| name.to_owned());
    memory_changed(cx);
}

/// Called when there may be more host memory that GPUs use.
pub(crate) fn memory_changed(cx: &CallContext) {
    if KERNEL.get().is_some() {
        cx.job.devices.iter().for_each(|d| place_changed(cx.place(d)));
    }
}

/// Called when a device has a new place.
pub(crate) fn place_changed(place: &Place) {
    let Some(kernel) = KERNEL.get() else { return };
    if !WARNED.load(Ordering::Relaxed) && places::splits_atomics(place) && !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(target: "code", "kernel {kernel} uses atomic operations with the scope of the whole system: on memory that the processor changes at the same time they \
             are not atomic here (README, \"Limits\")");
    }
}
