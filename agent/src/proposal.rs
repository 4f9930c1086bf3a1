//! What policies propose.

use crate::world::{Job, JobState, World};

/// What is to be done with a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It moves to this place.
    Move(String),
    /// It is parked in the host memory of its machine.
    Park,
    /// It was parked, and goes on at this place.
    Resume(String),
}

/// Something that would improve the state of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proposal {
    pub(crate) pid: u32,
    pub(crate) action: Action,
    /// The GPU that the action leads to.
    pub(crate) to: Option<usize>,
    /// The reason, for people.
    pub(crate) why: String,
}

/// A move of a job to a GPU.
pub(crate) fn moved(world: &World, job: &Job, to: usize, why: String) -> Proposal {
    Proposal { pid: job.pid, action: Action::Move(world.gpus[to].place.clone()), to: Some(to), why }
}

/// A job is parked if the policy may park jobs, and all room elsewhere is known.
pub(crate) fn parked(world: &World, job: &Job, may_park: bool, why: String) -> Option<Proposal> {
    (may_park && !world.is_incomplete).then_some(Proposal { pid: job.pid, action: Action::Park, to: None, why })
}

/// Of the GPUs that meet a condition the one with the fewest jobs, and of several the one with the most free memory.
pub(crate) fn emptiest(world: &World, meets: impl Fn(usize) -> bool) -> Option<usize> {
    let gpus = (0..world.gpus.len()).filter(|gpu| meets(*gpu));
    gpus.min_by_key(|gpu| (world.load(*gpu), std::cmp::Reverse(world.gpus[*gpu].free_bytes), *gpu))
}

/// Whether a job fits on a GPU, and would share it with none of another priority.
pub(crate) fn fits_among_equals(world: &World, job: &Job, gpu: usize, reserve: u64) -> bool {
    world.fits(job, gpu, reserve) && world.jobs_on(gpu).all(|other| other.priority == job.priority)
}

/// Whether a job is where it belongs: other policies leave it there.
pub(crate) fn is_at_home(world: &World, job: &Job) -> bool {
    job.gpu.is_some_and(|gpu| job.home.as_ref() == Some(&world.gpus[gpu].place))
}

/// The jobs that an agent has parked go on where they fit among jobs of their own priority, the most important first: whatever the policies
/// are by now.
pub(crate) fn resumed(world: &World, reserve: u64) -> Vec<Proposal> {
    let mut jobs: Vec<&Job> = world.jobs.iter().filter(|job| job.state == JobState::Parked { by_agent: true }).collect();
    jobs.sort_by_key(|job| (std::cmp::Reverse(job.priority), job.pid));
    let goes_on = |job: &Job| {
        let to = emptiest(world, |gpu| fits_among_equals(world, job, gpu, reserve))?;
        let action = Action::Resume(world.gpus[to].place.clone());
        Some(Proposal { pid: job.pid, action, to: Some(to), why: "its memory fits there again".to_owned() })
    };
    jobs.into_iter().filter_map(goes_on).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::world::Gpu;

    /// GPUs `a:1/0`, `a:1/1`, …: each a letter for its server and its free memory.
    pub(crate) fn world(gpus: &[(char, u64)]) -> World {
        let mut world = World::default();
        for (server, free) in gpus {
            let server = format!("{server}:1");
            let number = world.gpus.iter().filter(|gpu| gpu.server == server).count();
            let place = format!("{server}/{number}");
            let (others, sees_programs, draining_node) = (0, false, None);
            world.gpus.push(Gpu {
                place,
                server,
                free_bytes: Some(*free),
                takes_jobs: true,
                others,
                sees_programs,
                draining_node,
            });
        }
        world
    }

    impl World {
        /// Adds a running job.
        pub(crate) fn with(mut self, pid: u32, gpu: usize, used_bytes: u64, priority: i32) -> World {
            let (name, state) = (format!("job{pid}"), JobState::Running);
            let (gpu, home, choice, avoid) = (Some(gpu), None, None, Vec::new());
            self.jobs.push(Job { pid, name, gpu, used_bytes, state, priority, home, choice, avoid });
            self
        }

        /// The same with a job that lets these policies move it.
        pub(crate) fn choosing(mut self, pid: u32, policies: &str) -> World {
            let choice = policies.parse().ok();
            self.jobs.iter_mut().filter(|job| job.pid == pid).for_each(|job| job.choice = choice.clone());
            self
        }

        pub(crate) fn at_home(mut self, pid: u32, home: &str) -> World {
            self.jobs.iter_mut().filter(|job| job.pid == pid).for_each(|job| job.home = Some(home.to_owned()));
            self
        }
    }

    /// Which jobs go where.
    pub(crate) fn ends(proposals: Vec<Proposal>) -> Vec<(u32, String)> {
        let to = |action| match action {
            Action::Move(place) => place,
            Action::Park => "parked".to_owned(),
            Action::Resume(place) => format!("resumed at {place}"),
        };
        proposals.into_iter().map(|p| (p.pid, to(p.action))).collect()
    }

    pub(crate) fn pairs(expected: &[(u32, &str)]) -> Vec<(u32, String)> {
        expected.iter().map(|(pid, to)| (*pid, (*to).to_owned())).collect()
    }
}
