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

/// Carries out a step for all items at the same time, for the last one on this thread. Returns the first error.
pub(crate) fn for_all<T: Send>(
    items: impl Iterator<Item = T>,
    step: impl Fn(T) -> Result<(), SyncError> + Sync,
) -> Result<(), SyncError> {
    let mut items: Vec<T> = items.collect();
    let Some(last) = items.pop() else { return Ok(()) };
    let step = &step;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| spawn(scope, move || step(item))).collect();
        threads.into_iter().fold(step(last), |all, thread| {
            let one = join(thread);
            all.and(one)
        })
    })
}
