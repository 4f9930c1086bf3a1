//! Threads of a round.

use crate::error::SyncError;
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// A started thread, or why it was not started.
pub(crate) type Started<'s, T> = Result<ScopedJoinHandle<'s, Result<T, SyncError>>, SyncError>;

/// Starts a thread of a round.
pub(crate) fn spawn<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    body: impl FnOnce() -> Result<T, SyncError> + Send + 's,
) -> Started<'s, T> {
    const NAME: &str = "round";
    let start = || Builder::new().name(NAME.to_owned()).spawn_scoped(scope, body);
    faults::thread(NAME).and_then(|()| start()).map_err(SyncError::Thread)
}

/// Waits for a thread, and returns its result.
pub(crate) fn join<T>(started: Started<'_, T>) -> Result<T, SyncError> {
    started?.join().unwrap_or(Err(SyncError::Protocol("a thread of the round ended abruptly")))
}
