//! Jobs share fewer GPUs, so that the others can be switched off or given to somebody else.

use crate::proposal::{Proposal, fits_among_equals, is_at_home, moved};
use crate::world::{Job, World};

pub(super) fn propose(world: &World, reserve: u64) -> Vec<Proposal> {
    let used = |gpu: usize| world.jobs_on(gpu).fold(0, |sum: u64, job| sum.saturating_add(job.used_bytes));
    let could_leave = |gpu: &usize| {
        let mut jobs = world.jobs_on(*gpu).peekable();
        world.gpus[*gpu].others == 0
            && jobs.peek().is_some()
            && jobs.all(|job| job.may_move("consolidate") && !is_at_home(world, job))
    };
    let mut gpus: Vec<usize> = (0..world.gpus.len()).filter(could_leave).collect();
    gpus.sort_by_key(|gpu| (used(*gpu), world.load(*gpu), *gpu));
    gpus.into_iter().find_map(|gpu| emptied(world, gpu, reserve)).unwrap_or_default()
}

/// The moves that empty a GPU, if all its jobs fit on others that are in use.
fn emptied(world: &World, gpu: usize, reserve: u64) -> Option<Vec<Proposal>> {
    let mut after = world.clone();
    let mut jobs: Vec<&Job> = world.jobs_on(gpu).collect();
    jobs.sort_by_key(|job| (std::cmp::Reverse(job.used_bytes), job.pid));
    let mut moves = Vec::new();
    for job in jobs {
        // The fullest one where it fits: room for large jobs stays.
        // Two agents must not exchange the places of their jobs: to a GPU that only others use, jobs go in one direction.
        let is_in_use =
            |to: usize| after.jobs_on(to).next().is_some() || after.load(to) > 0 && after.gpus[to].place > after.gpus[gpu].place;
        let fits = |to: &usize| *to != gpu && is_in_use(*to) && fits_among_equals(&after, job, *to, reserve);
        let to = (0..after.gpus.len()).filter(fits).min_by_key(|to| (after.gpus[*to].free_bytes, *to))?;
        moves.push(moved(world, job, to, format!("with it {} becomes free", world.gpus[gpu].place)));
        after = after.after(job.pid, Some(to));
    }
    Some(moves)
}

#[cfg(test)]
mod tests {
    use super::propose;
    use crate::proposal::tests::{ends, pairs, world};

    #[test]
    fn two_gpus_that_are_half_used_become_one() {
        let world = world(&[('a', 60), ('b', 50), ('c', 100)]).with(1, 0, 30, 0).with(2, 1, 40, 0);
        assert_eq!(ends(propose(&world, 10)), pairs(&[(1, "b:1/0")]));
        assert_eq!(ends(propose(&world.after(1, Some(1)), 10)), [], "one GPU is in use");
    }

    #[test]
    fn all_jobs_of_a_gpu_leave_or_none() {
        let world = world(&[('a', 20), ('b', 50)]).with(1, 0, 30, 0).with(2, 0, 20, 0).with(3, 1, 100, 0);
        assert_eq!(ends(propose(&world, 10)), [], "the first one would fit, both do not");
        let mut world = world;
        world.gpus[1].free_bytes = Some(60);
        assert_eq!(ends(propose(&world, 10)), pairs(&[(1, "b:1/0"), (2, "b:1/0")]));
        let chosen = world.clone().choosing(2, "home");
        assert_eq!(ends(propose(&chosen, 10)), [], "one of them may not be moved");
        assert_eq!(ends(propose(&world.clone().choosing(2, "consolidate"), 10)), ends(propose(&world, 10)));
        world.gpus[0].others = 1;
        assert_eq!(ends(propose(&world, 10)), [], "it would stay in use");
    }
}
