//! Encoding of values as bytes for a place.

use cuda_api::wire::Wire;
use std::cell::Cell;

pub(crate) fn encode<T: Wire>(value: &T) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    value.put(&mut body);
    body
}

thread_local! {
    /// Reusable buffer for encoded calls.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Encodes a value and passes the buffer to `use_it`, which may append to it. A call that is made meanwhile on this thread uses another
/// buffer.
pub(crate) fn encoded<T: Wire, R>(value: &T, use_it: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    // A thread that is ending has no thread-locals with destructors.
    let mut body = SCRATCH.try_with(Cell::take).unwrap_or_default();
    body.clear();
    value.put(&mut body);
    let result = use_it(&mut body);
    let _ = SCRATCH.try_with(|s| s.set(body));
    result
}
