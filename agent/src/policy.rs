//! What policies propose for a state of the world.

mod balance;
mod consolidate;
mod drain;
mod home;
mod yields;

use crate::proposal::Proposal;
use crate::world::{Gpu, World};
use serde::Deserialize;

/// What an operator wants.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Policy {
    /// Jobs leave these servers, and no job goes there.
    Drain {
        /// The servers, as in [`crate::Settings::servers`].
        #[serde(default)]
        servers: Vec<String>,
        /// Also the servers on nodes that Slurm drains.
        #[serde(default)]
        slurm: bool,
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

    /// Why jobs must leave a server by this policy, if they must. `draining_node` as in [`Gpu::draining_node`].
    pub fn why_drained(&self, server: &String, draining_node: Option<&String>) -> Option<String> {
        let Policy::Drain { servers, slurm, .. } = self else { return None };
        let node = draining_node.filter(|_| *slurm);
        let by_slurm = || node.map(|node| format!("Slurm drains {node}, the node of {server}"));
        if servers.contains(server) { Some(format!("{server} is to be empty")) } else { by_slurm() }
    }

    /// The same for a GPU.
    pub(crate) fn why_left(&self, gpu: &Gpu) -> Option<String> {
        self.why_drained(&gpu.server, gpu.draining_node.as_ref())
    }

    /// Whether the moves that it proposes are made at once: somebody waits for them.
    pub(crate) fn is_urgent(&self) -> bool {
        matches!(self, Policy::Drain { .. } | Policy::Yield { .. })
    }

    /// What it proposes, the best first. Each proposal is for the world as it is: after one has been taken, the others may be wrong. `reserve`:
    /// bytes that a GPU must have left.
    pub(crate) fn propose(&self, world: &World, reserve: u64) -> Vec<Proposal> {
        match self {
            Policy::Drain { park, .. } => drain::propose(world, |gpu| self.why_left(gpu), *park, reserve),
            Policy::Yield { park } => yields::propose(world, *park, reserve),
            Policy::Home => home::propose(world, reserve),
            Policy::Consolidate => consolidate::propose(world, reserve),
            Policy::Balance => balance::propose(world, reserve),
        }
    }
}
