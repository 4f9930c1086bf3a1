//! The daemon's state as JSON, for its page (docs/servers.md, "The page of a server").

use super::{MOST_JOBS, Metrics};
use crate::daemon::State;
use crate::daemon::accounting::End;
use crate::daemon::client::Client;
use crate::daemon::inspect::Survey;
use crate::daemon::pool::Occupant;
use crate::endpoint::Endpoint;
use crate::server_state::Measured;
use cuda_api::clock::unix_ms;
use cuda_api::facts::uuid_text;
use serde::Serialize;

/// So exact are the times of jobs that are not named.
const COARSE_MS: u64 = 10_000;

#[derive(Debug, Serialize)]
struct Status<'a> {
    version: &'a str,
    commit: &'a str,
    now_unix_ms: u64,
    since_unix_ms: u64,
    ending: bool,
    names_jobs: bool,
    gpus: Vec<Gpu>,
    no_readings: Option<String>,
    stays: Vec<Stay>,
    jobs_omitted: usize,
}

#[derive(Debug, Serialize)]
struct Gpu {
    gpu: u32,
    name: Option<String>,
    uuid: Option<String>,
    total_bytes: Option<u64>,
    free_bytes: Option<u64>,
    used_bytes: Option<u64>,
    jobs: usize,
    idle_workers: usize,
    waiting: usize,
    bytes_in: u64,
    bytes_out: u64,
    moved_in: u64,
    moved_out: u64,
    #[serde(flatten)]
    measured: Measured,
}

#[derive(Debug, Serialize)]
struct Stay {
    gpu: Option<u32>,
    since_unix_ms: u64,
    until_unix_ms: Option<u64>,
    moved_in: bool,
    moved_out: bool,
    end: Option<End>,
    used_bytes: Option<u64>,
    job: Option<Job>,
}

#[derive(Debug, Serialize)]
struct Job {
    worker: u32,
    pid: u32,
    name: String,
    host: Option<String>,
    user: Option<String>,
}

impl Metrics {
    /// The state now.
    pub(super) fn status(&self, state: &State) -> String {
        let survey = state.survey();
        let Survey { workers, readings, no_readings, .. } = &survey;
        let counters = state.pool.counters();
        let now = unix_ms();
        // After the workers: a job that has left meanwhile is in both lists.
        let over = state.pool.stays(now);
        workers.iter().for_each(|(worker, ..)| worker.settle());
        let at = |gpu: u32| workers.iter().filter(move |(worker, ..)| worker.gpu() == gpu);
        let stay = |gpu: u32, worker: u32, client: &Client, used_bytes: Option<u64>| {
            let served = client.served(worker, None);
            let job = Job { worker, pid: served.pid, name: client.name().to_owned(), host: served.host, user: served.user };
            Stay {
                gpu: Some(gpu).filter(|gpu| *gpu != Endpoint::MEMORY),
                since_unix_ms: self.rounded(served.since_unix_ms),
                until_unix_ms: None,
                moved_in: false,
                moved_out: false,
                end: None,
                used_bytes: used_bytes.filter(|_| self.jobs),
                job: self.jobs.then_some(job),
            }
        };
        let of_gpu = |gpu: u32| {
            let (facts, counted) = (state.pool.facts(gpu), counters.place(gpu));
            let of_jobs = || at(gpu).filter(|(_, occupant, _)| matches!(occupant, Occupant::Job(_)));
            let jobs = of_jobs().count();
            Gpu {
                gpu,
                total_bytes: facts.as_ref().map(|facts| facts.total_bytes),
                uuid: facts.as_ref().map(|facts| uuid_text(&facts.uuid)),
                name: facts.map(|facts| facts.name),
                free_bytes: survey.free_bytes(gpu),
                // As in the metrics, nothing if one is missing.
                used_bytes: of_jobs().try_fold(0u64, |sum, (.., memory)| Some(sum.saturating_add((*memory)?.used_bytes))),
                jobs,
                idle_workers: at(gpu).count() - jobs,
                waiting: state.lines.waiting(gpu),
                bytes_in: counted.bytes_in.get(),
                bytes_out: counted.bytes_out.get(),
                moved_in: counted.moved_in.get(),
                moved_out: counted.moved_out.get(),
                measured: readings.get(gpu as usize).map(Measured::from).unwrap_or_default(),
            }
        };
        let here = workers.iter().filter_map(|(worker, occupant, memory)| match occupant {
            Occupant::Job(client) if !over.iter().any(|it| it.is(worker.pid(), client)) => {
                let moved_in = worker.used().is_some_and(|used| used.moved_in);
                Some(Stay { moved_in, ..stay(worker.gpu(), worker.pid(), client, memory.map(|memory| memory.used_bytes)) })
            }
            Occupant::Job(_) | Occupant::Nobody => None,
        });
        let over = over.iter().map(|it| Stay {
            until_unix_ms: Some(self.rounded(it.until_unix_ms)),
            moved_in: it.moved_in,
            moved_out: it.moved_out,
            end: it.end,
            ..stay(it.gpu, it.worker, &it.client, None)
        });
        let (here, over): (Vec<Stay>, Vec<Stay>) = (here.collect(), over.collect());
        let jobs_omitted = here.len().saturating_sub(MOST_JOBS);
        let status = Status {
            version: &self.version,
            commit: &self.commit,
            now_unix_ms: now,
            since_unix_ms: state.since_unix_ms,
            ending: state.takes_no_jobs(),
            names_jobs: self.jobs,
            gpus: (0..state.pool.gpus()).map(of_gpu).collect(),
            no_readings: no_readings.clone(),
            stays: over.into_iter().chain(here.into_iter().take(MOST_JOBS)).collect(),
            jobs_omitted,
        };
        // Texts, numbers and lists: there is nothing that JSON could not have.
        serde_json::to_string(&status).unwrap_or_default()
    }

    /// A time of a job, less exact for those who are not to know which one it is.
    fn rounded(&self, unix_ms: u64) -> u64 {
        if self.jobs { unix_ms } else { unix_ms - unix_ms % COARSE_MS }
    }
}
