//! What policies propose for a state of the world.

mod balance;
mod consolidate;
mod drain;
mod home;
mod yields;

use crate::world::{Job, JobState, World};
use serde::Deserialize;

/// What an operator wants.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Policy {
    /// Jobs leave these servers, and no job goes there.
    Drain {
        /// The servers, as in [`crate::Settings::servers`].
        servers: Vec<String>,
        /// Whether a job that fits nowhere else is parked in host memory.
        #[serde(default)]
        park: bool,
    },
    /// Where jobs of different priority share a GPU, those of lower priority leave it.
    Yield {
        /// As for [`Policy::Drain`].
        #[serde(default)]
        park: bool,
    },
    /// Jobs go to the place where they belong when no job uses it.
    Home,
    /// Jobs leave the GPU that is used least if all of them fit on GPUs that are in use anyway.
    Consolidate,
    /// A job leaves the GPU with the most jobs for one with at least two fewer.
    Balance,
}

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

impl Policy {
    /// The name in the settings.
    pub fn name(&self) -> &'static str {
        match self {
            Policy::Drain { .. } => "drain",
            Policy::Yield { .. } => "yield",
            Policy::Home => "home",
            Policy::Consolidate => "consolidate",
            Policy::Balance => "balance",
        }
    }

    /// Whether the moves that it proposes are made at once: somebody waits for them.
    pub(crate) fn is_urgent(&self) -> bool {
        matches!(self, Policy::Drain { .. } | Policy::Yield { .. })
    }

    /// What it proposes, the best first. Each proposal is for the world as it is: after one has been taken, the others may be wrong. `reserve`:
    /// bytes that a GPU must have left.
    pub(crate) fn propose(&self, world: &World, reserve: u64) -> Vec<Proposal> {
        match self {
            Policy::Drain { servers, park } => drain::propose(world, servers, *park, reserve),
            Policy::Yield { park } => yields::propose(world, *park, reserve),
            Policy::Home => home::propose(world, reserve),
            Policy::Consolidate => consolidate::propose(world, reserve),
            Policy::Balance => balance::propose(world, reserve),
        }
    }
}

/// A move of a job to a GPU.
fn moved(world: &World, job: &Job, to: usize, why: String) -> Proposal {
    Proposal { pid: job.pid, action: Action::Move(world.gpus[to].place.clone()), to: Some(to), why }
}

fn parked(job: &Job, why: String) -> Proposal {
    Proposal { pid: job.pid, action: Action::Park, to: None, why }
}

/// The GPU with the fewest jobs, and of several the one with the most free memory.
fn emptiest(world: &World, gpus: impl Iterator<Item = usize>) -> Option<usize> {
    gpus.min_by_key(|gpu| (world.load(*gpu), std::cmp::Reverse(world.gpus[*gpu].free_bytes), *gpu))
}

/// Whether a job would share a GPU with none of another priority.
fn is_among_equals(world: &World, job: &Job, gpu: usize) -> bool {
    world.jobs_on(gpu).all(|other| other.priority == job.priority)
}

/// Whether a job is where it belongs: other policies leave it there.
fn is_at_home(world: &World, job: &Job) -> bool {
    job.gpu.is_some_and(|gpu| job.home.as_ref() == Some(&world.gpus[gpu].place))
}

/// The jobs that an agent has parked go on where they fit among jobs of their own priority, the most important first: whatever the policies
/// are by now.
pub(crate) fn resumed(world: &World, reserve: u64) -> Vec<Proposal> {
    let mut jobs: Vec<&Job> = world.jobs.iter().filter(|job| job.state == JobState::Parked { by_agent: true }).collect();
    jobs.sort_by_key(|job| (std::cmp::Reverse(job.priority), job.pid));
    let goes_on = |job: &Job| {
        let fits = |gpu: &usize| world.fits(job, *gpu, reserve) && is_among_equals(world, job, *gpu);
        let to = emptiest(world, (0..world.gpus.len()).filter(fits))?;
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
            world.gpus.push(Gpu { place, server, free_bytes: Some(*free), takes_jobs: true, others: 0 });
        }
        world
    }

    impl World {
        /// Adds a running job.
        pub(crate) fn with(mut self, pid: u32, gpu: usize, used_bytes: u64, priority: i32) -> World {
            let (name, state) = (format!("job{pid}"), JobState::Running);
            self.jobs.push(Job { pid, name, gpu: Some(gpu), used_bytes, state, priority, home: None, avoid: Vec::new() });
            self
        }

        pub(crate) fn at_home(mut self, pid: u32, home: &str) -> World {
            self.jobs.iter_mut().filter(|job| job.pid == pid).for_each(|job| job.home = Some(home.to_owned()));
            self
        }
    }

    /// Which jobs go where.
    pub(crate) fn proposed(policy: &Policy, world: &World) -> Vec<(u32, String)> {
        let to = |p: Proposal| match p.action {
            Action::Move(place) => place,
            Action::Park => "parked".to_owned(),
            Action::Resume(place) => format!("resumed at {place}"),
        };
        policy.propose(world, 10).into_iter().map(|p| (p.pid, to(p))).collect()
    }

    pub(crate) fn pairs(expected: &[(u32, &str)]) -> Vec<(u32, String)> {
        expected.iter().map(|(pid, to)| (*pid, (*to).to_owned())).collect()
    }
}
