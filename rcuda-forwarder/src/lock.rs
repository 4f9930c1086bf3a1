//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex whose data stays valid if a holder panics.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    let m = interleave::when_free(m);
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
