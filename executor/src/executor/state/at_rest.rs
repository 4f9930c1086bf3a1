//! Which stream has copies that no thread waits for.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// The stream with copies to an idle stream that may not be complete, if there is one.
#[derive(Debug, Default)]
pub(crate) struct AtRest {
    /// Whether there is one: read before each call.
    pub(crate) any: AtomicBool,
    pub(crate) stream: Mutex<Option<u64>>,
}
