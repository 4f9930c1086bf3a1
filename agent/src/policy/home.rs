//! Jobs go to the place where they belong.

use crate::proposal::{Proposal, is_at_home, moved};
use crate::world::{Job, LOCAL, World};

pub(super) fn propose(world: &World, reserve: u64) -> Vec<Proposal> {
    let mut jobs: Vec<&Job> = world.jobs.iter().filter(|job| job.may_move("home") && !is_at_home(world, job)).collect();
    jobs.sort_by_key(|job| (std::cmp::Reverse(job.priority), job.pid));
    let goes = |job: &Job| {
        let home = world.gpu_at(job.home.as_deref()?)?;
        let is_free = world.load(home) == 0 && world.fits(job, home, reserve);
        let gpu = &world.gpus[home];
        let why = match (gpu.server == LOCAL, gpu.sees_programs) {
            (true, true) => "nothing uses the GPU where it belongs",
            (true, false) => "no job uses the GPU where it belongs; whether another program does is not known",
            (false, _) => "no job uses the GPU where it belongs",
        };
        is_free.then(|| moved(world, job, home, why.to_owned()))
    };
    jobs.into_iter().filter_map(goes).collect()
}

#[cfg(test)]
mod tests {
    use super::propose;
    use crate::proposal::tests::{ends, pairs, world};
    use crate::world::{Gpu, LOCAL};

    #[test]
    fn a_job_goes_home_when_its_gpu_is_free() {
        let mut world = world(&[('a', 100), ('b', 100)]).with(1, 1, 10, 0).at_home(1, "a:1/0");
        assert_eq!(ends(propose(&world, 10)), pairs(&[(1, "a:1/0")]));
        assert_eq!(ends(propose(&world.clone().choosing(1, "balance"), 10)), []);
        world.gpus[0].others = 1;
        assert_eq!(ends(propose(&world, 10)), []);
        world.gpus[0].others = 0;
        world.jobs[0].used_bytes = 95;
        assert_eq!(ends(propose(&world, 10)), [], "it does not fit");
        world.jobs[0].home = Some("nowhere:1/0".into());
        assert_eq!(ends(propose(&world, 10)), []);
    }

    #[test]
    fn the_more_important_one_goes_first_and_who_is_there_stays() {
        let world = world(&[('a', 100), ('b', 100)]).with(1, 1, 10, 0).with(2, 1, 10, 3);
        let world = world.at_home(1, "a:1/0").at_home(2, "a:1/0");
        assert_eq!(ends(propose(&world, 10)), pairs(&[(2, "a:1/0"), (1, "a:1/0")]));
        assert_eq!(ends(propose(&world.after(2, Some(0)), 10)), []);
    }

    #[test]
    fn a_gpu_of_this_machine_is_free_if_no_program_uses_it_as_far_as_is_known() {
        let mut world = world(&[('a', 100)]).with(1, 0, 10, 0).at_home(1, "local:0");
        let local = |free_bytes, others, sees_programs| Gpu {
            place: "local:0".into(),
            server: LOCAL.into(),
            free_bytes,
            takes_jobs: true,
            others,
            sees_programs,
            draining_node: None,
        };
        world.gpus.push(local(None, 0, false));
        let why = |world: &super::World| propose(world, 10).pop().map(|proposal| proposal.why);
        assert!(why(&world).is_some_and(|why| why.contains("whether another program does is not known")));
        world.gpus[1] = local(Some(20), 0, true);
        assert!(why(&world).is_some_and(|why| why.contains("nothing uses")));
        world.gpus[1] = local(Some(20), 1, true);
        assert_eq!(why(&world), None, "a program is there");
        world.gpus[1] = local(Some(19), 0, true);
        assert_eq!(why(&world), None, "it does not fit");
        world.gpus[1] = Gpu { takes_jobs: false, ..local(Some(20), 0, false) };
        assert_eq!(why(&world), None, "who uses it is about to be known");
    }
}
