//! Changes of exclusive memory that the connections for large copies to the host carry to the worker.
//!
//! A *round* is what was touched since the last one, at most [`MOST`] parts of it: requests that the worker answers behind it must not wait for long. The thread that sends changes says so in the ring ([`cuda_api::ops::id::HOST_RUNS`]), and waits while the threads of
//! the connections find what has changed, each a part at a time, and send it when the worker asks for it. The worker applies all of it before it takes what is
//! sent behind in the ring. So the order is that of the ring, and no later change of the same bytes is found before these were.
//!
//! The threads wait for nothing but their connections and the worker, which always reads what it has asked for. They do not give the worker memory that
//! changes name: its request would lie behind the round. The waiting thread does that afterwards.

use crate::sync::lock;
use cuda_api::lock::wait_while;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

/// From this number of bytes on that were touched, connections carry what has changed of them.
pub(super) const MANY: u64 = 1 << 20;

/// Maximum number of parts of 512 KiB of a round.
const MOST: usize = 512;

/// The parts of the next round, of those of all that was touched, which are taken in order from the end.
pub(super) fn take_round(parts: &mut Vec<Range<u64>>) -> Option<Vec<Range<u64>>> {
    let rest = parts.len().saturating_sub(MOST);
    (!parts.is_empty()).then(|| parts.split_off(rest))
}

/// A round, and the parts of it.
#[derive(Debug, Default)]
struct Round {
    number: u64,
    /// The next one last.
    parts: Vec<Range<u64>>,
    /// Number of parts in which changes are being found.
    being_found: usize,
    /// Parts that may name memory, and whether there were any changes.
    naming: Vec<Range<u64>>,
    found: bool,
    is_shut: bool,
}

/// What was found in a round.
#[derive(Debug)]
pub(super) struct Found {
    /// Whether there were any changes.
    pub(super) any: bool,
    /// Parts that may name memory.
    pub(super) naming: Vec<Range<u64>>,
}

/// The rounds of a link.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    has_connections: AtomicBool,
    round: Mutex<Round>,
    over: Condvar,
}

impl Outgoing {
    pub(super) fn has_connections(&self) -> bool {
        self.has_connections.load(Ordering::Acquire)
    }

    /// There are connections from now on.
    pub(super) fn begin_to_use_connections(&self) {
        self.has_connections.store(true, Ordering::Release);
    }

    /// Nothing waits for connections any more.
    pub(super) fn shut(&self) {
        lock(&self.round).is_shut = true;
        self.over.notify_all();
    }

    /// Begins a round of these parts, of which the last one is the first.
    pub(super) fn begin(&self, parts: Vec<Range<u64>>) {
        let mut r = lock(&self.round);
        let (number, is_shut) = (r.number + 1, r.is_shut);
        *r = Round { number, parts, is_shut, ..Round::default() };
    }

    /// Waits until all changes were found, if the worker `knows` of the round; otherwise no further part is looked at. `None` if the link is lost.
    pub(super) fn finish(&self, knows: bool) -> Option<Found> {
        let mut r =
            wait_while(&self.over, lock(&self.round), |r| knows && !r.is_shut && !r.parts.is_empty() || r.being_found > 0);
        r.parts.clear();
        let found = Found { any: r.found, naming: std::mem::take(&mut r.naming) };
        (!r.is_shut).then_some(found)
    }

    /// The next part of a round, if it is the one under way.
    pub(super) fn next(&self, round: u64) -> Option<Range<u64>> {
        let mut r = lock(&self.round);
        let part = if r.number == round && !r.is_shut { r.parts.pop() } else { None }?;
        r.being_found += 1;
        Some(part)
    }

    /// The changes of a part were found.
    pub(super) fn found(&self, part: Range<u64>, any: bool, names: bool) {
        let mut r = lock(&self.round);
        r.being_found -= 1;
        r.found |= any;
        r.naming.extend(names.then_some(part));
        if r.parts.is_empty() && r.being_found == 0 {
            self.over.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_all_parts_in_order_and_no_more_than_fit() {
        let all = |count: u64| (0..count).rev().map(|i| i..i + 1).collect::<Vec<_>>();
        for (count, rounds) in [(0, vec![]), (1, vec![1]), (512, vec![512]), (513, vec![512, 1]), (1300, vec![512, 512, 276])] {
            let (mut parts, mut taken, mut sizes) = (all(count), Vec::new(), Vec::new());
            while let Some(mut round) = take_round(&mut parts) {
                sizes.push(round.len());
                while let Some(part) = round.pop() {
                    taken.push(part.start);
                }
            }
            assert_eq!((sizes, taken), (rounds, (0..count).collect::<Vec<_>>()));
        }
    }
}
