//! Cooperative launches: grids that must be resident as a whole, at a target as well.

use crate::base::log::lock;
use cuda_api::ops::Launch;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of different launches that are remembered.
const MAX_LAUNCHES: usize = 4096;

/// A cooperative launch of a function: its handle, threads of a block, bytes of dynamic shared memory.
pub(crate) type Shape = (u64, u32, u32);

/// The largest grids of a device's cooperative launches, also of those that are nodes of graphs.
#[derive(Debug, Default)]
pub(crate) struct Resident {
    known: Mutex<Known>,
    /// Whether there were launches with clusters of more than one block.
    clusters: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    /// Blocks of the largest grid.
    largest: HashMap<Shape, u64>,
    /// Whether there were more than can be remembered.
    too_many: bool,
}

impl Resident {
    /// Notes a launch.
    pub(crate) fn note(&self, launch: &Launch) {
        let shape = (launch.function, launch.block.iter().product(), launch.shared);
        let blocks = launch.grid.iter().map(|n| u64::from(*n)).product::<u64>();
        let mut known = lock(&self.known);
        if known.largest.len() >= MAX_LAUNCHES && !known.largest.contains_key(&shape) {
            known.too_many = true;
            return;
        }
        let largest = known.largest.entry(shape).or_default();
        *largest = blocks.max(*largest);
    }

    /// Notes a launch with clusters, cooperative or not.
    pub(crate) fn note_clusters(&self) {
        self.clusters.store(true, Ordering::Relaxed);
    }

    /// Whether there were launches with clusters.
    pub(crate) fn has_clusters(&self) -> bool {
        self.clusters.load(Ordering::Relaxed)
    }

    /// All that are remembered, with their blocks; `None` if there were too many. Those of functions for which `is_live` is false are
    /// forgotten.
    pub(crate) fn all(&self, is_live: impl Fn(u64) -> bool) -> Option<Vec<(Shape, u64)>> {
        let mut known = lock(&self.known);
        known.largest.retain(|(function, ..), _| is_live(*function));
        (!known.too_many).then(|| known.largest.iter().map(|(shape, blocks)| (*shape, *blocks)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(function: u64, grid: u32) -> Launch {
        Launch { function, stream: 0, grid: [grid, 2, 1], block: [32, 4, 1], shared: 64, attributes: 0, cooperative: true }
    }

    #[test]
    fn the_largest_grid_of_each_shape_is_known() {
        let resident = Resident::default();
        [launch(1, 5), launch(1, 3), launch(2, 1)].iter().for_each(|l| resident.note(l));
        let mut all = resident.all(|_| true).unwrap();
        all.sort_unstable();
        assert_eq!(all, [((1, 128, 64), 10), ((2, 128, 64), 2)]);
        assert_eq!(resident.all(|function| function == 2).unwrap().len(), 1);
        assert_eq!(resident.all(|_| true).unwrap().len(), 1, "the other one is forgotten");
    }

    #[test]
    fn it_is_bounded_and_says_so() {
        let resident = Resident::default();
        (0..MAX_LAUNCHES as u64).for_each(|function| resident.note(&launch(function, 1)));
        resident.note(&launch(0, 7));
        assert_eq!(resident.all(|_| true).unwrap().len(), MAX_LAUNCHES);
        resident.note(&launch(MAX_LAUNCHES as u64, 1));
        assert!(resident.all(|_| true).is_none());
    }

    #[test]
    fn clusters_are_noted() {
        let resident = Resident::default();
        assert!(!resident.has_clusters());
        resident.note_clusters();
        assert!(resident.has_clusters());
    }
}
