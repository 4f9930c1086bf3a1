//! Locks, and waiting under a lock, even if a holder has panicked: for data that is valid between any two statements.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};
use std::time::Duration;

/// Locks a mutex.
#[inline]
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the value out of a mutex.
#[inline]
pub fn into_inner<T>(m: Mutex<T>) -> T {
    m.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading.
#[inline]
pub fn read_lock<T>(l: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    l.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing.
#[inline]
pub fn write_lock<T>(l: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    l.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification, or less.
#[inline]
pub fn wait<'a, T>(c: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    c.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a condition no longer holds.
#[inline]
pub fn wait_while<'a, T>(c: &Condvar, guard: MutexGuard<'a, T>, condition: impl FnMut(&mut T) -> bool) -> MutexGuard<'a, T> {
    c.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification, or less, and not longer than a limit.
#[inline]
pub fn wait_timeout<'a, T>(c: &Condvar, guard: MutexGuard<'a, T>, limit: Duration) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
    c.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a condition no longer holds, and not longer than a limit.
#[inline]
pub fn wait_timeout_while<'a, T>(
    c: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
    condition: impl FnMut(&mut T) -> bool,
) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
    c.wait_timeout_while(guard, limit, condition).unwrap_or_else(PoisonError::into_inner)
}
