//! How far a daemon has come that another one takes over from.

use crate::sync::lock;
use cuda_api::lock::wait_timeout;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Serving,
    /// Another daemon has the sockets.
    Retired,
    /// And no job is left.
    Over,
}

/// How far a daemon has come.
#[derive(Debug, Default)]
pub(super) struct Retirement {
    phase: Mutex<Phase>,
    changed: Condvar,
    /// A daemon is about to take over.
    is_asked: AtomicBool,
}

impl Retirement {
    /// Whether another daemon has its sockets.
    pub(super) fn has_begun(&self) -> bool {
        *lock(&self.phase) != Phase::Serving
    }

    /// Whether a process has asked to take over before; from now on one has.
    pub(super) fn is_asked(&self) -> bool {
        self.is_asked.swap(true, Ordering::SeqCst)
    }

    /// The process that has asked does not take over.
    pub(super) fn ask_again(&self) {
        self.is_asked.store(false, Ordering::SeqCst);
    }

    /// Another daemon has the sockets.
    pub(super) fn begin(&self) {
        self.set(Phase::Retired);
    }

    /// And no job is left.
    pub(super) fn end(&self) {
        self.set(Phase::Over);
    }

    fn set(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.changed.notify_all();
    }

    /// Waits until another daemon has the sockets, and no job is left; false after the time limit.
    pub(super) fn wait_over(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut phase = lock(&self.phase);
        while *phase != Phase::Over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            phase = wait_timeout(&self.changed, phase, left).0;
        }
        true
    }
}
