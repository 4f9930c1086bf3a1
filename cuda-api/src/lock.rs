//! Locks, and waiting under a lock, even if a holder has panicked: for data that is valid between any two statements.

use std::sync::{
    Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
use std::time::{Duration, Instant};

/// Approximate cost of waking a sleeping thread (10 to 50 us on an H100 machine). A thread spins for this time before it sleeps.
pub const WAKE_UP: Duration = Duration::from_micros(50);
/// How long a thread spins for what another process sends before it sleeps. With eight processors or more it is four times [`WAKE_UP`]: a
/// worker first executes what was sent before, and each thread between the two that has fallen asleep adds a wake-up (docs/measurements.md, "How
/// long to spin").
pub fn spin_time() -> Duration {
    static TIME: OnceLock<Duration> = OnceLock::new();
    *TIME.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        match processors {
            // What is waited for needs the processor.
            1 => POLITE,
            n if n < SPARE => WAKE_UP,
            _ => 4 * WAKE_UP,
        }
    })
}

/// With so many processors, some are likely to be idle.
const SPARE: usize = 8;

/// A spinning thread yields the processor between two checks after this time.
pub const POLITE: Duration = Duration::from_micros(5);

/// Spins until a condition holds, for at most [`spin_time`]; returns whether it holds.
pub fn spin_until(mut condition: impl FnMut() -> bool) -> bool {
    let (began, limit) = (Instant::now(), spin_time());
    loop {
        if condition() {
            return true;
        }
        match began.elapsed() {
            spun if spun >= limit => return false,
            spun if spun >= POLITE => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}

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
