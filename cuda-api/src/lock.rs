//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex even if a holder has panicked: for data that is valid between any two statements.
#[inline]
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
