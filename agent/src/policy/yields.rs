//! Jobs of lower priority leave GPUs to others.

use crate::proposal::{Proposal, emptiest, fits_among_equals, moved, parked};
use crate::world::{Job, JobState, World};

pub(super) fn propose(world: &World, park: bool, reserve: u64) -> Vec<Proposal> {
    let mut leaving: Vec<(&Job, &Job)> = Vec::new();
    for gpu in 0..world.gpus.len() {
        let Some(first) = world.jobs_on(gpu).max_by_key(|job| (job.priority, job.pid)) else { continue };
        let lower = |job: &&Job| job.priority < first.priority && job.state == JobState::Running;
        leaving.extend(world.jobs_on(gpu).filter(lower).map(|job| (job, first)));
    }
    leaving.sort_by_key(|(job, _)| (job.priority, job.pid));
    let leaves = |(job, first): (&Job, &Job)| {
        let why = format!("{} (job {}) has priority {}, this one {}", first.name, first.pid, first.priority, job.priority);
        match emptiest(world, |gpu| job.gpu != Some(gpu) && fits_among_equals(world, job, gpu, reserve)) {
            Some(to) => Some(moved(world, job, to, why)),
            None => parked(world, job, park, why),
        }
    };
    leaving.into_iter().filter_map(leaves).collect()
}

#[cfg(test)]
mod tests {
    use super::propose;
    use crate::proposal::tests::{ends, pairs, world};
    use crate::proposal::{Action, resumed};
    use crate::world::JobState;

    #[test]
    fn the_lower_one_leaves_for_a_gpu_of_its_equals() {
        let world =
            world(&[('a', 100), ('b', 100), ('c', 100)]).with(1, 0, 10, 5).with(2, 0, 10, 1).with(3, 1, 10, 3).with(4, 2, 10, 1);
        assert_eq!(ends(propose(&world, false, 10)), pairs(&[(2, "c:1/0")]));
    }

    #[test]
    fn without_room_it_is_parked_and_goes_on_when_the_other_has_gone() {
        let mut world = world(&[('a', 100), ('b', 15)]).with(1, 0, 10, 5).with(2, 0, 10, 1);
        assert_eq!(ends(propose(&world, false, 10)), []);
        assert_eq!(ends(propose(&world, true, 10)), pairs(&[(2, "parked")]));
        world.jobs[1].gpu = None;
        world.jobs[1].state = JobState::Parked { by_agent: true };
        assert_eq!(resumed(&world, 10), [], "beside a job of higher priority it does not go on");
        world.jobs.remove(0);
        let goes_on = resumed(&world, 10);
        assert_eq!(goes_on.iter().map(|p| &p.action).collect::<Vec<_>>(), [&Action::Resume("a:1/0".to_owned())]);
        // Somebody else has parked it, and will resume it.
        world.jobs[0].state = JobState::Parked { by_agent: false };
        assert_eq!(resumed(&world, 10), []);
    }

    #[test]
    fn equals_share() {
        let world = world(&[('a', 100), ('b', 100)]).with(1, 0, 10, 5).with(2, 0, 10, 5);
        assert_eq!(ends(propose(&world, true, 10)), []);
    }
}
