//! Memory about which synchronous calls wait, though they need not (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).

use super::lock;
use super::memory::Alloc;
use std::sync::Mutex;

/// That memory, by its number.
static WAITING: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Whether a synchronous call about this memory waits until it is done.
pub(crate) fn waits(alloc: &Alloc) -> bool {
    lock(&WAITING).contains(&alloc.buffer)
}

/// Lets such calls wait, or not.
pub(crate) fn set_waits(alloc: &Alloc, on: bool) {
    let mut waiting = lock(&WAITING);
    waiting.retain(|buffer| *buffer != alloc.buffer);
    waiting.extend(on.then_some(alloc.buffer));
}
