//! Jobs leave servers that are to be empty.

use crate::proposal::{Proposal, emptiest, fits_among_equals, moved, parked};
use crate::world::{Gpu, Job, JobState, World};

pub(super) fn propose(world: &World, why_drained: impl Fn(&Gpu) -> Option<String>, park: bool, reserve: u64) -> Vec<Proposal> {
    let is_drained = |gpu: usize| why_drained(&world.gpus[gpu]).is_some();
    // The largest first: they find room least easily.
    let mut jobs: Vec<(&Job, usize)> = world
        .jobs
        .iter()
        .filter(|job| job.state == JobState::Running)
        .filter_map(|job| job.gpu.filter(|gpu| is_drained(*gpu)).map(|gpu| (job, gpu)))
        .collect();
    jobs.sort_by_key(|(job, _)| (std::cmp::Reverse(job.used_bytes), job.pid));
    let leaves = |(job, from): (&Job, usize)| {
        let why = why_drained(&world.gpus[from])?;
        let among_equals = || emptiest(world, |gpu| !is_drained(gpu) && fits_among_equals(world, job, gpu, reserve));
        match among_equals().or_else(|| emptiest(world, |gpu| !is_drained(gpu) && world.fits(job, gpu, reserve))) {
            Some(to) => Some(moved(world, job, to, why)),
            None => parked(world, job, park, format!("{why}, and it fits nowhere else")),
        }
    };
    jobs.into_iter().filter_map(leaves).collect()
}

#[cfg(test)]
mod tests {
    use crate::policy::Policy;
    use crate::proposal::Proposal;
    use crate::proposal::tests::{ends, pairs, world};
    use crate::world::World;

    fn propose(world: &World, server: &str, park: bool, reserve: u64) -> Vec<Proposal> {
        Policy::Drain { servers: vec![server.to_owned()], slurm: false, park }.propose(world, reserve)
    }

    #[test]
    fn jobs_leave_for_the_emptiest_gpu_where_they_fit() {
        let world = world(&[('a', 100), ('a', 100), ('b', 60), ('c', 200)]).with(1, 0, 40, 0).with(2, 1, 80, 0).with(3, 3, 5, 0);
        assert_eq!(ends(propose(&world, "a:1", false, 10)), pairs(&[(2, "c:1/0"), (1, "b:1/0")]));
    }

    #[test]
    fn who_fits_nowhere_stays_or_is_parked() {
        let mut world = world(&[('a', 100), ('b', 60)]).with(1, 0, 80, 0);
        assert_eq!(ends(propose(&world, "a:1", false, 10)), []);
        assert_eq!(ends(propose(&world, "a:1", true, 10)), pairs(&[(1, "parked")]));
        world.is_incomplete = true;
        assert_eq!(ends(propose(&world, "a:1", true, 10)), [], "there may be room at a server that has not answered");
    }
    #[test]
    fn a_node_that_slurm_drains_is_left_if_the_policy_says_so() {
        let mut world = world(&[('a', 100), ('b', 60)]).with(1, 0, 40, 0).with(2, 1, 10, 0);
        world.gpus[0].draining_node = Some("n4".to_owned());
        let proposed = |slurm| Policy::Drain { servers: Vec::new(), slurm, park: false }.propose(&world, 10);
        assert_eq!(ends(proposed(false)), []);
        assert_eq!(ends(proposed(true)), pairs(&[(1, "b:1/0")]));
        assert_eq!(proposed(true)[0].why, "Slurm drains n4, the node of a:1");
    }
}
