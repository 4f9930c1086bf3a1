//! Jobs spread over the GPUs.

use crate::proposal::{Proposal, emptiest, fits_among_equals, is_at_home, moved};
use crate::world::{Job, World};

pub(super) fn propose(world: &World, reserve: u64) -> Vec<Proposal> {
    let mut gpus: Vec<usize> = (0..world.gpus.len()).collect();
    gpus.sort_by_key(|gpu| (std::cmp::Reverse(world.load(*gpu)), *gpu));
    gpus.into_iter().flat_map(|from| leave(world, from, reserve)).collect()
}

/// The jobs that could leave a GPU for one with at least two jobs fewer, the cheapest first.
fn leave(world: &World, from: usize, reserve: u64) -> Vec<Proposal> {
    let load = world.load(from);
    let could = |job: &&Job| job.may_move("balance") && !is_at_home(world, job);
    let mut jobs: Vec<&Job> = world.jobs_on(from).filter(could).collect();
    jobs.sort_by_key(|job| (job.used_bytes, job.pid));
    let goes = |job: &Job| {
        let to = emptiest(world, |to| world.load(to) + 2 <= load && fits_among_equals(world, job, to, reserve))?;
        let why = format!("{} has {load} jobs, {} has {}", world.gpus[from].place, world.gpus[to].place, world.load(to));
        Some(moved(world, job, to, why))
    };
    jobs.into_iter().filter_map(goes).collect()
}

#[cfg(test)]
mod tests {
    use super::propose;
    use crate::proposal::tests::{ends, pairs, world};

    #[test]
    fn three_jobs_on_one_gpu_spread_over_three() {
        let world = world(&[('a', 10), ('b', 100), ('c', 200)]).with(1, 0, 30, 0).with(2, 0, 20, 0).with(3, 0, 40, 0);
        assert_eq!(ends(propose(&world, 10))[0], (2, "c:1/0".to_owned()), "the smallest one");
        let world = world.after(2, Some(2));
        assert_eq!(ends(propose(&world, 10))[0], (1, "b:1/0".to_owned()));
        assert_eq!(ends(propose(&world.after(1, Some(1)), 10)), []);
    }

    #[test]
    fn who_is_at_home_stays_and_a_difference_of_one_is_none() {
        let world = world(&[('a', 100), ('b', 100)]).with(1, 0, 10, 0).with(2, 0, 20, 0).at_home(1, "a:1/0");
        assert_eq!(ends(propose(&world, 10)), pairs(&[(2, "b:1/0")]));
        assert_eq!(ends(propose(&world.with(3, 1, 10, 0), 10)), []);
    }

    #[test]
    fn a_job_that_does_not_let_it_stays_and_another_one_leaves() {
        let world = world(&[('a', 100), ('b', 100)]).with(1, 0, 10, 0).with(2, 0, 20, 0).choosing(1, "none");
        assert_eq!(ends(propose(&world, 10)), pairs(&[(2, "b:1/0")]));
        assert_eq!(ends(propose(&world.choosing(2, "home"), 10)), []);
    }
}
