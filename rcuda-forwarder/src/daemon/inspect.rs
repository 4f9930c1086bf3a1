//! Describes the daemon's GPUs and jobs for a client that asks (`mrcuda gpus`).

use super::State;
use super::pool::{Occupant, Worker};
use crate::endpoint::Endpoint;
use crate::limits::Limits;
use crate::server_state::{GpuState, MemoryUse, ServedJob, ServerLimits, ServerState};
use cuda_api::board::Readings;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long workers have to report their use of memory, all together, and NVML what GPUs measure. A driver that is busy may take longer;
/// then the report is without it.
const MEASURING: Duration = Duration::from_secs(2);

/// What workers and NVML say.
pub(super) struct Survey {
    /// The workers that are ready or serve a client, with what they say of memory if they have answered in time.
    pub(super) workers: Vec<(Arc<Worker>, Occupant, Option<MemoryUse>)>,
    /// What the GPUs measure, by their numbers; nothing of one that no worker has opened.
    pub(super) readings: Vec<Readings>,
    /// Why that is not known.
    pub(super) no_readings: Option<String>,
    /// Free memory of each GPU, if it is known.
    free_bytes: Vec<Option<u64>>,
}

impl Survey {
    /// Free memory of a GPU, as a worker of the server's own reports it, or NVML.
    pub(super) fn free_bytes(&self, gpu: u32) -> Option<u64> {
        *self.free_bytes.get(gpu as usize)?
    }
}

impl State {
    /// Asks the workers and NVML.
    pub(super) fn survey(&self) -> Survey {
        let uuids: Vec<Option<[u8; 16]>> = (0..self.pool.gpus()).map(|gpu| Some(self.pool.facts(gpu)?.uuid)).collect();
        self.nvml.ask(uuids.iter().flatten().copied().collect());
        let workers: Vec<(Arc<Worker>, Occupant)> = self.pool.occupants();
        let asked: Vec<u64> = workers.iter().map(|(worker, _)| worker.ask_memory()).collect();
        let until = Instant::now() + MEASURING;
        let answered = |((worker, occupant), before): ((Arc<Worker>, Occupant), u64)| {
            let memory = worker.memory_after(before, until);
            (worker, occupant, memory)
        };
        let workers: Vec<_> = workers.into_iter().zip(asked).map(answered).collect();
        let known = self.nvml.answer(until);
        let of_gpu = |uuid: &Option<[u8; 16]>| known.as_ref().ok()?.get(uuid.as_ref()?);
        let readings = uuids.iter().map(|uuid| of_gpu(uuid).map(|facts| facts.readings.clone()).unwrap_or_default()).collect();
        let by_worker = |gpu: u32| {
            let own = workers.iter().filter(|(worker, ..)| worker.gpu() == gpu && !worker.is_of_client());
            own.filter_map(|(.., memory)| (*memory)?.free_bytes).next()
        };
        let free_bytes = (0..).zip(&uuids).map(|(gpu, uuid)| by_worker(gpu).or_else(|| of_gpu(uuid)?.usage.free_bytes)).collect();
        Survey { workers, readings, no_readings: known.err().map(|why| why.to_string()), free_bytes }
    }

    /// The daemon's GPUs and jobs now.
    pub(super) fn report(&self) -> ServerState {
        let survey = self.survey();
        let Survey { workers, readings, no_readings, .. } = &survey;
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
        let limits = server_limits(self.pool.limits());
        let of_gpu = |gpu: u32| {
            let there = || all().filter(move |(worker, ..)| worker.gpu() == gpu);
            let (facts, jobs) = (self.pool.facts(gpu), jobs(gpu));
            GpuState {
                promised_bytes: promised(&limits, facts.as_ref().map(|facts| facts.total_bytes), &jobs),
                facts,
                free_bytes: survey.free_bytes(gpu),
                idle_workers: there().filter(|(_, occupant, _)| matches!(occupant, Occupant::Nobody)).count() as u32,
                waiting: self.lines.waiting(gpu) as u32,
                jobs,
                readings: readings.get(gpu as usize).cloned().unwrap_or_default(),
            }
        };
        ServerState {
            pid: std::process::id(),
            since_unix_ms: self.since_unix_ms,
            ending: self.takes_no_jobs(),
            gpus: (0..self.pool.gpus()).map(of_gpu).collect(),
            limits: limits.clone(),
            parked: jobs(Endpoint::MEMORY),
            no_readings: no_readings.clone(),
            earlier: self.earlier.as_ref().filter(|earlier| !earlier.has_ended()).map(|earlier| earlier.described()),
        }
    }
}

fn server_limits(limits: &Limits) -> ServerLimits {
    ServerLimits {
        workers: limits.workers,
        client_workers: limits.client_workers,
        gpu_jobs: limits.clients.gpu_jobs,
        client_rate: limits.clients.rate,
        // All of the GPU's is no limit.
        memory_bytes: Some(limits.of_worker.memory).filter(|bytes| *bytes != u64::MAX),
        client_memory_bytes: limits.clients.memory,
    }
}

/// What jobs of a GPU with so much memory may still take by their limits.
fn promised(limits: &ServerLimits, total: Option<u64>, jobs: &[ServedJob]) -> Option<u64> {
    let of_one = limits.memory_bytes.into_iter().chain(limits.client_memory_bytes).min()?;
    // No job gets more than the GPU has.
    let of_one = total.map_or(of_one, |total| of_one.min(total));
    jobs.iter().try_fold(0u64, |sum, job| Some(sum.saturating_add(of_one.saturating_sub(job.used_bytes?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_jobs_may_still_take_is_what_their_limits_leave() {
        let job = |used_bytes| ServedJob {
            worker: 1,
            host: None,
            pid: 7,
            uid: None,
            user: None,
            user_by: None,
            since_unix_ms: 0,
            used_bytes,
            evicted_bytes: used_bytes.map(|_| 7),
        };
        let limits =
            |memory_bytes, client_memory_bytes| ServerLimits { memory_bytes, client_memory_bytes, ..ServerLimits::default() };
        let two = [job(Some(3)), job(Some(10))];
        assert_eq!(promised(&limits(Some(8), None), Some(100), &two), Some(5));
        assert_eq!(promised(&limits(Some(20), Some(12)), Some(100), &two), Some(9 + 2));
        assert_eq!(promised(&limits(Some(u64::MAX - 1), None), Some(100), &two), Some(97 + 90));
        assert_eq!(promised(&limits(Some(8), None), None, &[]), Some(0));
        assert_eq!(promised(&limits(None, None), Some(100), &two), None, "they may take everything");
        assert_eq!(promised(&limits(Some(8), None), Some(100), &[job(None)]), None);
    }
}
