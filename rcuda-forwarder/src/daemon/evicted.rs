//! What workers have of the memory of stopped jobs in host memory.

use crate::sync::lock;
use executor::Held;
use std::sync::Mutex;

/// What a worker has of its job in host memory.
#[derive(Debug, Default)]
pub(super) struct Evicted(Mutex<Account>);

#[derive(Debug, Default)]
struct Account {
    /// What it may have there, with its bytes; given back when the worker is gone.
    granted: Option<(Held, u64)>,
    /// Bytes that it has there.
    evicted: Option<u64>,
    /// Its job waits for them.
    waits: bool,
}

impl Account {
    fn evict(&mut self, bytes: u64) -> Option<u64> {
        let (_, granted) = self.granted.as_ref().filter(|_| self.evicted.is_none())?;
        self.evicted = Some(bytes.min(*granted));
        self.evicted
    }

    fn wait(&mut self) -> Option<u64> {
        self.evicted.filter(|_| !std::mem::replace(&mut self.waits, true))
    }

    fn end(&mut self) -> Option<u64> {
        std::mem::take(self).evicted
    }
}

impl Evicted {
    /// It may have so many there from now on, and had nothing.
    pub(super) fn grant(&self, held: Option<Held>, bytes: u64) {
        *lock(&self.0) = Account { granted: held.map(|held| (held, bytes)), ..Account::default() };
    }

    /// It has so many there, at most what it was granted; `None` if it was granted nothing.
    pub(super) fn evict(&self, bytes: u64) -> Option<u64> {
        lock(&self.0).evict(bytes)
    }

    /// Its job waits from now on for so many; `None` if that makes no sense.
    pub(super) fn wait(&self) -> Option<u64> {
        lock(&self.0).wait()
    }

    /// It has nothing there any more; returns how much it had.
    pub(super) fn end(&self) -> Option<u64> {
        lock(&self.0).end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor::Budget;

    #[test]
    fn what_a_worker_says_counts_only_in_its_order_and_up_to_what_it_was_granted() {
        let (budget, evicted) = (Budget::new(100), Evicted::default());
        assert_eq!((evicted.evict(7), evicted.wait(), evicted.end()), (None, None, None), "nothing was granted");
        evicted.grant(budget.hold(60), 60);
        assert_eq!((evicted.wait(), evicted.evict(1 << 40), evicted.evict(5)), (None, Some(60), None));
        assert!(budget.hold(41).is_none());
        assert_eq!((evicted.wait(), evicted.wait(), evicted.end(), evicted.end()), (Some(60), None, Some(60), None));
        assert!(budget.hold(100).is_some(), "it is given back");
        evicted.grant(None, 7);
        assert_eq!(evicted.evict(7), None, "it was refused");
    }
}
