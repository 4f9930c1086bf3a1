//! Describes the daemon for Prometheus (docs/servers.md, "Metrics"): what is exported, and the text format 0.0.4. [`status`] describes it for
//! its page.

use super::client::Client;
use super::counters::OfPlace;
use super::error::ServeError;
use super::inspect::Survey;
use super::listeners::{Kind, Listeners};
use super::log::{Log, LogLine, RateLimitedLog};
use super::metrics_options::MetricsOptions;
use super::pool::{Occupant, Worker};
use super::service_manager::Sockets;
use super::{Daemon, State};
use crate::endpoint::Endpoint;
use crate::exposition::{Exposition as Text, Family};
use crate::server_state::{Measured, ServedJob};
use crate::sync::lock;
use cuda_api::facts::uuid_text;
use http::Resource;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(super) mod http;
mod status;

/// For so long the same text is given to all who ask: it costs every worker a question.
const FRESH: Duration = Duration::from_secs(1);
/// Jobs of which each has series of its own; of further ones only the number is told.
const MOST_JOBS: usize = 512;

const BUILD: Family = ("mrcuda_build_info", "gauge", "The program, by version and commit; always 1.");
const START: Family = ("mrcuda_start_time_seconds", "gauge", "When the server started, in seconds since 1970.");
const ENDING: Family = ("mrcuda_ending", "gauge", "1 if the server takes no new jobs because it is about to end, otherwise 0.");
const GPU: Family =
    ("mrcuda_gpu_info", "gauge", "A shared GPU that a worker has opened, by UUID, name and CUDA version; always 1.");
const TOTAL: Family = ("mrcuda_gpu_memory_total_bytes", "gauge", "Memory of the GPU.");
const FREE: Family = ("mrcuda_gpu_memory_free_bytes", "gauge", "Free memory of the GPU, as the driver reports it.");
const USED: Family = (
    "mrcuda_gpu_memory_used_bytes",
    "gauge",
    "GPU memory of the server's jobs, without what the driver needs for contexts and code.",
);
const JOBS: Family = ("mrcuda_gpu_jobs", "gauge", "Workers that have a job on the GPU.");
const IDLE: Family = ("mrcuda_gpu_idle_workers", "gauge", "Workers that wait for a job, and hold a context on the GPU.");
const UNUSED: Family =
    ("mrcuda_gpu_unused_seconds", "gauge", "Time since a job was on the GPU, or since the server's start; 0 while one is.");
const BUSY: Family = (
    "mrcuda_gpu_utilization_ratio",
    "gauge",
    "Share of the last sample period in which a kernel ran on the GPU, as NVML reports it, from 0 to 1.",
);
const MEMORY_BUSY: Family = (
    "mrcuda_gpu_memory_utilization_ratio",
    "gauge",
    "Share of the last sample period in which memory of the GPU was read or written, as NVML reports it, from 0 to 1.",
);
const POWER: Family = ("mrcuda_gpu_power_watts", "gauge", "Power that the GPU draws, as NVML reports it.");
const POWER_LIMIT: Family = ("mrcuda_gpu_power_limit_watts", "gauge", "Power that the GPU may draw, as NVML reports it.");
const TEMPERATURE: Family =
    ("mrcuda_gpu_temperature_celsius", "gauge", "Temperature of the GPU's chip, as NVML reports it, in degrees Celsius.");
const SM_CLOCK: Family = ("mrcuda_gpu_sm_clock_hertz", "gauge", "Clock of the GPU's multiprocessors, as NVML reports it.");
const NVML_UP: Family = ("mrcuda_nvml_up", "gauge", "1 if NVML has answered in time, 0 if what GPUs measure is not known.");
const QUEUE: Family = ("mrcuda_queue_jobs", "gauge", "Jobs that wait for a turn on the GPU (mrcuda run --wait).");
const PARKED: Family = ("mrcuda_parked_jobs", "gauge", "Jobs that are parked in the server's memory.");
const PARKED_BYTES: Family =
    ("mrcuda_parked_memory_bytes", "gauge", "Memory of the jobs that are parked in the server's memory.");
const EARLIER: Family =
    ("mrcuda_earlier_jobs", "gauge", "Jobs that are left with the server from which this one has taken over.");
const JOB_MEMORY: Family = ("mrcuda_job_memory_bytes", "gauge", "GPU memory of a job (mrcuda serve --metrics-jobs).");
const JOB_START: Family = (
    "mrcuda_job_start_time_seconds",
    "gauge",
    "Since when a worker serves a job, in seconds since 1970 (mrcuda serve --metrics-jobs).",
);
const OMITTED: Family = ("mrcuda_jobs_omitted", "gauge", "Jobs without series of their own, because there are too many.");
const ACCEPTED: Family = (
    "mrcuda_connections_accepted_total",
    "counter",
    "Connections that were handed to a worker or answered, by what they were for.",
);
const REFUSED: Family =
    ("mrcuda_connections_refused_total", "counter", "Connections that were refused or lost, by what they were for and why.");
const SERVED: Family = ("mrcuda_jobs_served_total", "counter", "Workers that were handed a job: one for each GPU of a job.");
const STARTED: Family = ("mrcuda_workers_started_total", "counter", "Workers that were started, also those that wait for a job.");
const NOT_STARTED: Family =
    ("mrcuda_worker_starts_failed_total", "counter", "Workers that could not be started or have not opened their GPU.");
const FAILED: Family = ("mrcuda_workers_failed_total", "counter", "Workers that have failed with a job, which has lost its GPU.");
const MOVES: Family = ("mrcuda_moves_total", "counter", "Jobs whose state came here by a move (in), or has left by one (out).");
const BYTES: Family =
    ("mrcuda_traffic_bytes_total", "counter", "Bytes of calls, copies and moves that workers received (in) and sent (out).");
const DRAIN_ASKED: Family = ("mrcuda_drain_asked_total", "counter", "Requests to jobs to move away because the server ends.");
const DRAIN_REFUSED: Family =
    ("mrcuda_drain_refused_total", "counter", "Such requests that a job has refused; it is asked again.");
const DRAIN_LEFT: Family = ("mrcuda_drain_left_total", "counter", "Jobs that have left after they were asked.");
const LINES: Family = ("mrcuda_accounting_lines_total", "counter", "Lines written by mrcuda serve --accounting.");
const LINES_LOST: Family = ("mrcuda_accounting_lines_lost_total", "counter", "Lines of accounting that could not be written.");

/// Serves the metrics of one daemon.
#[derive(Debug)]
struct Metrics {
    jobs: bool,
    version: String,
    commit: String,
    text: Fresh,
    status: Fresh,
}

/// The last text and its time. Held while it is made, so that many who ask at the same time get the same.
#[derive(Debug, Default)]
struct Fresh(Mutex<Option<(Instant, Arc<str>)>>);

impl Fresh {
    /// The text as it was up to a second ago, or as it is made now.
    fn get(&self, make: impl FnOnce() -> String) -> Arc<str> {
        let mut last = lock(&self.0);
        if let Some((_, text)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return text.clone();
        }
        let text: Arc<str> = make().into();
        // Its age counts from when it is complete: workers that do not answer must not make every question wait for them.
        *last = Some((Instant::now(), text.clone()));
        text
    }
}

/// Metrics of another program that are served as a server's are; until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    listeners: Listeners,
    /// Where they are.
    pub at: SocketAddr,
}

impl MetricsServer {
    /// Serves the text that `make` makes at `http://ADDRESS:PORT/metrics`, and nothing else.
    pub fn start(at: SocketAddr, make: impl Fn() -> String + Send + Sync + 'static) -> Result<MetricsServer, ServeError> {
        let (fd, at) = http::bind(at)?;
        let server = MetricsServer { listeners: Listeners::default(), at };
        let pages: http::Pages = Arc::new(move |asked| (asked == Resource::Metrics).then(|| make().into()));
        server.listeners.add(Kind::Metrics, fd, http::serve_each(pages)).map_err(ServeError::Start)?;
        server.listeners.open(&RateLimitedLog::new(LogLine::write_text, "connections for metrics")).map_err(ServeError::Start)?;
        Ok(server)
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.listeners.end();
    }
}

impl Daemon {
    /// Serves metrics, and the page, until the daemon ends.
    pub(super) fn serve_metrics(&self, options: &MetricsOptions, sockets: &mut Sockets, log: Log) -> Result<(), ServeError> {
        let listener = http::listen(options.at, sockets.take_metrics(options.at), log)?;
        let (theirs, metrics) = (self.state.clone(), Metrics::new(options));
        let pages: http::Pages = Arc::new(move |asked| Some(metrics.answer(asked, &theirs)));
        self.listeners.add(Kind::Metrics, listener, http::serve_each(pages)).map_err(ServeError::Start)
    }
}

impl Metrics {
    fn new(options: &MetricsOptions) -> Metrics {
        let MetricsOptions { jobs, version, commit, .. } = options.clone();
        Metrics { jobs, version, commit, text: Fresh::default(), status: Fresh::default() }
    }

    /// What is served there.
    fn answer(&self, asked: Resource, state: &State) -> Arc<str> {
        match asked {
            Resource::Metrics => self.text.get(|| self.describe(state)),
            Resource::Status => self.status.get(|| self.status(state)),
            Resource::Page => include_str!("metrics/page/page.html").into(),
            Resource::Style => include_str!("metrics/page/page.css").into(),
            Resource::Script => include_str!("metrics/page/page.js").into(),
        }
    }

    /// The metrics now.
    fn describe(&self, state: &State) -> String {
        let survey = state.survey();
        let Survey { workers, readings, no_readings, .. } = &survey;
        let (counters, mut text) = (state.pool.counters(), Text::default());
        workers.iter().for_each(|(worker, ..)| worker.settle());
        text.family(BUILD).sample(&[("version", &self.version), ("commit", &self.commit)], 1);
        text.family(START).sample(&[], state.since_unix_ms as f64 / 1e3);
        text.family(ENDING).sample(&[], u8::from(state.takes_no_jobs()));
        let gpus: Vec<u32> = (0..state.pool.gpus()).collect();
        let at = |gpu: u32| workers.iter().filter(move |(worker, ..)| worker.gpu() == gpu);
        let of_jobs = |gpu: u32| {
            at(gpu).filter_map(|(worker, occupant, memory)| match occupant {
                Occupant::Job(client) => Some((worker, client, memory.map(|memory| memory.used_bytes))),
                Occupant::Nobody => None,
            })
        };
        // Without a number if one is missing: a part of it would be misleading.
        let used = |gpu: u32| of_jobs(gpu).try_fold(0u64, |sum, (.., used)| Some(sum.saturating_add(used?)));
        text.family(GPU);
        for (gpu, facts) in gpus.iter().filter_map(|gpu| Some((gpu, state.pool.facts(*gpu)?))) {
            let cuda = format!("{}.{}", facts.driver_version / 1000, facts.driver_version % 1000 / 10);
            text.sample(
                &[("gpu", &gpu.to_string()), ("uuid", &uuid_text(&facts.uuid)), ("name", &facts.name), ("cuda", &cuda)],
                1,
            );
        }
        text.by_gpu(TOTAL, &gpus, |gpu| Some(state.pool.facts(gpu)?.total_bytes));
        text.by_gpu(FREE, &gpus, |gpu| survey.free_bytes(gpu));
        text.by_gpu(USED, &gpus, used);
        text.by_gpu(JOBS, &gpus, |gpu| Some(of_jobs(gpu).count()));
        text.by_gpu(IDLE, &gpus, |gpu| Some(at(gpu).count() - of_jobs(gpu).count()));
        let unused = |gpu| if of_jobs(gpu).next().is_some() { 0.0 } else { counters.unused_seconds(gpu) };
        text.by_gpu(UNUSED, &gpus, |gpu| Some(unused(gpu)));
        let measured: Vec<Measured> = readings.iter().map(Measured::from).collect();
        let families: [(Family, fn(&Measured) -> Option<f64>); 6] = [
            (BUSY, |it| Some(f64::from(it.utilization_percent?) / 1e2)),
            (MEMORY_BUSY, |it| Some(f64::from(it.memory_utilization_percent?) / 1e2)),
            (POWER, |it| it.power_watts),
            (POWER_LIMIT, |it| it.power_limit_watts),
            (TEMPERATURE, |it| it.temperature_celsius.map(f64::from)),
            (SM_CLOCK, |it| Some(f64::from(it.sm_clock_mhz?) * 1e6)),
        ];
        families.into_iter().for_each(|(family, get)| text.by_gpu(family, &gpus, |gpu| get(measured.get(gpu as usize)?)));
        text.family(NVML_UP).sample(&[], u8::from(no_readings.is_none()));
        text.by_gpu(QUEUE, &gpus, |gpu| Some(state.lines.waiting(gpu)));
        text.family(PARKED).sample(&[], of_jobs(Endpoint::MEMORY).count());
        text.family(PARKED_BYTES);
        used(Endpoint::MEMORY).iter().for_each(|used| text.sample(&[], used));
        let earlier = state.earlier.as_ref().map(|earlier| earlier.jobs()).unwrap_or_default();
        let places: Vec<u32> = gpus.iter().copied().chain([Endpoint::MEMORY]).collect();
        text.by_gpu(EARLIER, &places, |gpu| Some(earlier.on(gpu)));
        if self.jobs {
            let served = |gpu: u32| {
                let of_gpu = move |(worker, client, used): (&Arc<Worker>, &Client, Option<u64>)| Job {
                    gpu: place_name(gpu),
                    name: client.name().to_owned(),
                    served: client.served(worker.pid(), None),
                    used,
                };
                of_jobs(gpu).map(of_gpu)
            };
            let all: Vec<Job> = gpus.iter().copied().chain([Endpoint::MEMORY]).flat_map(served).take(MOST_JOBS).collect();
            text.family(JOB_MEMORY);
            all.iter().for_each(|job| job.used.iter().for_each(|used| job.sample(&mut text, used)));
            text.family(JOB_START);
            all.iter().for_each(|job| job.sample(&mut text, job.served.since_unix_ms as f64 / 1e3));
            let jobs = workers.iter().filter(|(_, occupant, _)| matches!(occupant, Occupant::Job(_))).count();
            text.family(OMITTED).sample(&[], jobs - all.len());
        }
        text.family(ACCEPTED);
        counters.accepted().for_each(|(kind, n)| text.sample(&[("kind", kind)], n));
        text.family(REFUSED);
        counters.refused().for_each(|(kind, reason, n)| text.sample(&[("kind", kind), ("reason", reason)], n));
        let counted: [(Family, fn(&OfPlace) -> u64); 4] = [
            (SERVED, |place| place.served.get()),
            (STARTED, |place| place.started.get()),
            (NOT_STARTED, |place| place.not_started.get()),
            (FAILED, |place| place.failed.get()),
        ];
        counted.into_iter().for_each(|(family, get)| text.by_gpu(family, &places, |gpu| Some(get(counters.place(gpu)))));
        let both: [(Family, fn(&OfPlace) -> [u64; 2]); 2] = [
            (MOVES, |place| [place.moved_in.get(), place.moved_out.get()]),
            (BYTES, |place| [place.bytes_in.get(), place.bytes_out.get()]),
        ];
        for (family, get) in both {
            text.family(family);
            for gpu in &places {
                for (direction, n) in ["in", "out"].into_iter().zip(get(counters.place(*gpu))) {
                    text.sample(&[("gpu", &place_name(*gpu)), ("direction", direction)], n);
                }
            }
        }
        text.family(DRAIN_ASKED).sample(&[], counters.drain.asked.get());
        text.family(DRAIN_REFUSED).sample(&[], counters.drain.refused.get());
        text.family(DRAIN_LEFT).sample(&[], counters.drain.left.get());
        let (written, lost) = state.pool.accounting_lines();
        text.family(LINES).sample(&[], written);
        text.family(LINES_LOST).sample(&[], lost);
        text.finish()
    }
}

/// The value of the label `gpu`.
fn place_name(gpu: u32) -> String {
    if gpu == Endpoint::MEMORY { "memory".to_owned() } else { gpu.to_string() }
}

/// A job that has series of its own.
struct Job {
    gpu: String,
    name: String,
    served: ServedJob,
    used: Option<u64>,
}

impl Job {
    /// A series of the job. A worker serves one job, so its process distinguishes jobs of the same name.
    fn sample(&self, text: &mut Text, value: impl Display) {
        let (worker, pid) = (self.served.worker.to_string(), self.served.pid.to_string());
        let (user, host) = (self.served.user.as_deref().unwrap_or_default(), self.served.host.as_deref().unwrap_or_default());
        let labels =
            [("gpu", &*self.gpu), ("worker", &worker), ("pid", &pid), ("name", &self.name), ("user", user), ("host", host)];
        text.sample(&labels, value);
    }
}

impl Text {
    /// A metric with a value for each of these GPUs that has one.
    fn by_gpu<T: Display>(&mut self, family: Family, gpus: &[u32], value: impl Fn(u32) -> Option<T>) {
        self.family(family);
        for gpu in gpus {
            value(*gpu).iter().for_each(|value| self.sample(&[("gpu", &place_name(*gpu))], value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ALL: [Family; 37] = [
        BUILD,
        START,
        ENDING,
        GPU,
        TOTAL,
        FREE,
        USED,
        JOBS,
        IDLE,
        UNUSED,
        BUSY,
        MEMORY_BUSY,
        POWER,
        POWER_LIMIT,
        TEMPERATURE,
        SM_CLOCK,
        NVML_UP,
        QUEUE,
        PARKED,
        PARKED_BYTES,
        EARLIER,
        JOB_MEMORY,
        JOB_START,
        OMITTED,
        ACCEPTED,
        REFUSED,
        SERVED,
        STARTED,
        NOT_STARTED,
        FAILED,
        MOVES,
        BYTES,
        DRAIN_ASKED,
        DRAIN_REFUSED,
        DRAIN_LEFT,
        LINES,
        LINES_LOST,
    ];

    #[test]
    fn names_follow_the_conventions_and_are_documented() {
        let page = include_str!("../../../docs/servers.md");
        for (name, kind, help) in ALL {
            assert!(name.starts_with("mrcuda_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(help.ends_with('.') || help.ends_with(')'), "{name}: {help}");
            assert!(page.contains(&format!("`{name}`")), "docs/servers.md does not describe `{name}`");
        }
        let words = page.split(|c: char| !(c.is_ascii_lowercase() || c == '_')).filter(|word| word.starts_with("mrcuda_"));
        for word in words {
            assert!(ALL.iter().any(|(name, ..)| *name == word), "docs/servers.md names `{word}`, which is not exported");
        }
    }

    /// The texts behind `expr` in a part of a dashboard.
    fn expressions(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
                Some(text) if ["expr", "query", "definition"].contains(&name.as_str()) => found.push(text.to_owned()),
                _ => expressions(value, found),
            }),
            serde_json::Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_dashboard_asks_for_what_is_exported() {
        let dashboard: serde_json::Value = serde_json::from_str(include_str!("../../../docs/grafana/mrcuda.json")).unwrap();
        let mut found = Vec::new();
        expressions(&dashboard, &mut found);
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let asked: BTreeSet<&str> =
            found.iter().flat_map(|text| text.split(|c| !is_part(c))).filter(|word| word.starts_with("mrcuda_")).collect();
        assert!(asked.len() >= 10, "{asked:?}");
        for name in &asked {
            assert!(ALL.iter().any(|(known, ..)| known == name), "the dashboard asks for {name}, which is not exported");
        }
        // Each panel has a place of its own, a source of data and a title.
        let panels = dashboard["panels"].as_array().unwrap();
        let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len());
        assert!(panels.iter().all(|panel| !panel["title"].as_str().unwrap().is_empty() && panel["gridPos"].is_object()));
    }
}
