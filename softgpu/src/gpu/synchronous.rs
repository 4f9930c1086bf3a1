//! Memory whose synchronous calls always wait (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).

use super::lock;
use super::memory::Alloc;
use std::sync::Mutex;

/// The number of each such allocation.
static WAITING: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Whether a synchronous call on this memory waits for completion.
pub(crate) fn waits(alloc: &Alloc) -> bool {
    lock(&WAITING).contains(&alloc.buffer)
}

/// Enables or disables the waits.
pub(crate) fn set_waits(alloc: &Alloc, on: bool) {
    let mut waiting = lock(&WAITING);
    waiting.retain(|buffer| *buffer != alloc.buffer);
    waiting.extend(on.then_some(alloc.buffer));
}
