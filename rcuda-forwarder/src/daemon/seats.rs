//! Counts what is in use at a time, by its owner, within limits.

use super::admission::Budget;
use crate::sync::lock;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

/// Number of seats that each owner has taken.
type Counts<K> = Arc<Mutex<HashMap<K, usize>>>;

/// Seats, and who has taken them.
#[derive(Debug)]
pub(super) struct Seats<K>(Counts<K>);

/// A seat; released on drop.
#[derive(Debug)]
pub(super) struct Seat<K: Eq + Hash>(Counts<K>, K);

/// Why there is no seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// So many are taken in all.
    All(usize),
    /// The owner has so many.
    OfOne(usize),
}

impl<K> Default for Seats<K> {
    fn default() -> Seats<K> {
        Seats(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> Seats<K> {
    /// Takes a seat.
    pub(super) fn take(&self, owner: K, budget: Budget) -> Result<Seat<K>, Full> {
        let mut counts = lock(&self.0);
        let (all, own) = (counts.values().sum::<usize>(), counts.get(&owner).copied().unwrap_or(0));
        if own >= budget.of_one {
            return Err(Full::OfOne(own));
        }
        if all >= budget.all {
            return Err(Full::All(all));
        }
        *counts.entry(owner.clone()).or_default() += 1;
        Ok(Seat(self.0.clone(), owner))
    }

    /// Number of seats that an owner has taken.
    pub(super) fn of(&self, owner: &K) -> usize {
        lock(&self.0).get(owner).copied().unwrap_or(0)
    }

    /// Number of seats that are taken.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.0).values().sum()
    }

    /// Whether a seat is taken.
    pub(super) fn any(&self) -> bool {
        !lock(&self.0).is_empty()
    }
}

impl<K: Eq + Hash> Seat<K> {
    /// Who has taken it.
    pub(super) fn owner(&self) -> &K {
        &self.1
    }
}

impl<K: Eq + Hash> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.0);
        if let Some(n) = counts.get_mut(&self.1) {
            *n -= 1;
            if *n == 0 {
                counts.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_seats_than_there_are() {
        let (seats, budget) = (Seats::default(), Budget { all: 3, of_one: 2 });
        let take = |owner: u32| seats.take(owner, budget);
        let (first, second) = (take(1).unwrap(), take(1).unwrap());
        assert_eq!(take(1).unwrap_err(), Full::OfOne(2));
        let third = take(2).unwrap();
        assert_eq!(take(2).unwrap_err(), Full::All(3));
        drop(first);
        assert!(take(1).is_ok() && seats.any());
        drop((second, third));
        assert!(!seats.any());
    }
}
