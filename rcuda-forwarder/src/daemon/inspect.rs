//! Describes the daemon's GPUs and jobs for a client that asks (`mrcuda gpus`).

use super::State;
use super::pool::{Occupant, Worker};
use crate::endpoint::Endpoint;
use crate::server_state::{GpuState, MemoryUse, ServedJob, ServerState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long workers have to report their use of memory, all together. A driver that is busy may take longer; then the report is
/// without it.
const MEASURING: Duration = Duration::from_secs(2);

impl State {
    /// The workers that are ready or serve a client, with what they say of memory if they have answered in time.
    pub(super) fn survey(&self) -> Vec<(Arc<Worker>, Occupant, Option<MemoryUse>)> {
        let workers: Vec<(Arc<Worker>, Occupant)> = self.pool.occupants();
        let asked: Vec<u64> = workers.iter().map(|(worker, _)| worker.ask_memory()).collect();
        let until = Instant::now() + MEASURING;
        let answered = |((worker, occupant), before): ((Arc<Worker>, Occupant), u64)| {
            let memory = worker.memory_after(before, until);
            (worker, occupant, memory)
        };
        workers.into_iter().zip(asked).map(answered).collect()
    }

    /// The daemon's GPUs and jobs now.
    pub(super) fn report(&self) -> ServerState {
        let workers = self.survey();
        let all = || workers.iter().map(|(worker, occupant, memory)| (worker, occupant, *memory));
        let jobs = |gpu: u32| {
            let served = all().filter(move |(worker, ..)| worker.gpu() == gpu);
            let mut jobs: Vec<ServedJob> = served
                .filter_map(|(worker, occupant, memory)| match occupant {
                    Occupant::Job(client) => Some(client.served(worker.pid(), memory)),
                    Occupant::Nobody => None,
                })
                .collect();
            jobs.sort_by_key(|job| (job.since_unix_ms, job.worker));
            jobs
        };
        let of_gpu = |gpu: u32| {
            let there = || all().filter(move |(worker, ..)| worker.gpu() == gpu);
            GpuState {
                facts: self.pool.facts(gpu),
                free_bytes: there().find_map(|(.., memory)| memory?.free_bytes),
                idle_workers: there().filter(|(_, occupant, _)| matches!(occupant, Occupant::Nobody)).count() as u32,
                jobs: jobs(gpu),
            }
        };
        ServerState {
            pid: std::process::id(),
            since_unix_ms: self.since_unix_ms,
            ending: self.is_ending(),
            gpus: (0..self.pool.gpus()).map(of_gpu).collect(),
            parked: jobs(Endpoint::MEMORY),
            earlier: self.earlier.as_ref().filter(|earlier| !earlier.has_ended()).map(|earlier| earlier.described()),
        }
    }
}
