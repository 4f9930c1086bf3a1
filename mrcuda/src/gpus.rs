//! `mrcuda gpus`: lists the GPUs of servers, and the jobs that use them.

use crate::ask::print_json;
use crate::failure::Failure;
use crate::progress::waiting;
use crate::table::{Table, bytes, note, one_line, printable, say, since};
use cuda_api::hex::hex;
use rcuda_forwarder::{
    Credentials, Endpoint, FormerServer, GpuState, LinkError, Measured, Munge, ServedJob, ServerLimits, ServerState, Token,
    TokenError, Trust, UserBy, inspect,
};
use serde::Serialize;
use std::collections::BTreeSet;

/// Arguments of `mrcuda gpus`.
#[derive(Debug, clap::Args)]
pub(crate) struct GpusArgs {
    /// Servers: HOST:PORT, plain://HOST:PORT or unix:PATH [default: 127.0.0.1:7878]
    #[arg(value_name = "SERVER")]
    servers: Vec<Endpoint>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The columns in which several servers are shown together.
pub(crate) const OVERVIEW: [&str; 14] = [
    "SERVER", "GPU", "MODEL", "USERS", "MEMORY", "FREE", "USED", "JOBS", "UTIL", "MEM-UTIL", "POWER", "LIMIT", "TEMP", "SM-CLOCK",
];

/// Widest name of a GPU, and of a client's machine or user, in the table.
const WIDEST: usize = 22;

/// Most users in a cell of it, and GPUs of a server.
const MOST_USERS: usize = 8;
const MOST_GPUS: usize = 256;

/// A server's answer as JSON (docs/servers.md).
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Server {
    server: String,
    ok: bool,
    reason: Option<String>,
    pid: Option<u32>,
    since_unix_ms: Option<u64>,
    ending: bool,
    limits: Option<Limits>,
    gpus: Vec<Gpu>,
    no_readings: Option<String>,
    parked: Vec<Served>,
    earlier: Option<Former>,
}

/// Its limits for clients, as JSON; null: no limit.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Limits {
    max_workers: u32,
    max_client_workers: u32,
    max_gpu_jobs: Option<u32>,
    max_client_rate: Option<u32>,
    max_memory_bytes: Option<u64>,
    max_client_memory_bytes: Option<u64>,
}

impl From<ServerLimits> for Limits {
    fn from(limits: ServerLimits) -> Limits {
        let ServerLimits { workers, client_workers, gpu_jobs, client_rate, memory_bytes, client_memory_bytes } = limits;
        Limits {
            max_workers: workers,
            max_client_workers: client_workers,
            max_gpu_jobs: gpu_jobs,
            max_client_rate: client_rate,
            max_memory_bytes: memory_bytes,
            max_client_memory_bytes: client_memory_bytes,
        }
    }
}

/// The server before it, which has jobs left, as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Former {
    pid: u32,
    jobs: Vec<u32>,
    parked: u32,
}

/// A GPU as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Gpu {
    gpu: usize,
    place: String,
    name: Option<String>,
    uuid: Option<String>,
    total_bytes: Option<u64>,
    driver_version: Option<i32>,
    free_bytes: Option<u64>,
    promised_bytes: Option<u64>,
    utilization_percent: Option<u32>,
    memory_utilization_percent: Option<u32>,
    power_watts: Option<f64>,
    power_limit_watts: Option<f64>,
    temperature_celsius: Option<u32>,
    sm_clock_mhz: Option<u32>,
    idle_workers: u32,
    waiting: u32,
    jobs: Vec<Served>,
}

impl Gpu {
    /// What it measures, in the columns from `UTIL` on.
    fn measured(&self) -> [String; 6] {
        let percent = |share: Option<u32>| share.map_or_else(unknown, |share| format!("{share}%"));
        let watts = |power: Option<f64>| power.map_or_else(unknown, |power| format!("{power:.0} W"));
        [
            percent(self.utilization_percent),
            percent(self.memory_utilization_percent),
            watts(self.power_watts),
            watts(self.power_limit_watts),
            self.temperature_celsius.map_or_else(unknown, |degrees| format!("{degrees} °C")),
            self.sm_clock_mhz.map_or_else(unknown, |clock| format!("{clock} MHz")),
        ]
    }
}

/// A job as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Served {
    worker: u32,
    host: Option<String>,
    pid: u32,
    uid: Option<u32>,
    user: Option<String>,
    user_by: Option<NamedBy>,
    since_unix_ms: u64,
    used_bytes: Option<u64>,
    evicted_bytes: Option<u64>,
}

/// How the server knows a job's user, as JSON.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum NamedBy {
    Token,
    Munge,
    System,
}

impl From<ServedJob> for Served {
    fn from(job: ServedJob) -> Served {
        let ServedJob { worker, host, pid, uid, user, user_by, since_unix_ms, used_bytes, evicted_bytes } = job;
        let user_by = user_by.map(|by| match by {
            UserBy::Token => NamedBy::Token,
            UserBy::Munge => NamedBy::Munge,
            UserBy::System => NamedBy::System,
        });
        Served { worker, host, pid, uid, user, user_by, since_unix_ms, used_bytes, evicted_bytes }
    }
}

/// A GPU of a server that takes new jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Its place.
    pub(crate) place: String,
    /// Number of its jobs.
    pub(crate) jobs: usize,
    /// Free bytes of its memory.
    pub(crate) free_bytes: u64,
}

impl Server {
    pub(crate) fn new(at: &Endpoint, asked: Result<ServerState, AskServerError>) -> Server {
        let server = Server {
            server: at.server(),
            ok: asked.is_ok(),
            reason: asked.as_ref().err().map(ToString::to_string),
            pid: None,
            since_unix_ms: None,
            ending: false,
            limits: None,
            gpus: Vec::new(),
            no_readings: None,
            parked: Vec::new(),
            earlier: None,
        };
        let Ok(state) = asked else { return server };
        let gpus = state.gpus.into_iter().enumerate().map(|(gpu, state)| {
            let GpuState { facts, free_bytes, promised_bytes, idle_workers, waiting, jobs, readings } = state;
            let measured = Measured::from(&readings);
            Gpu {
                gpu,
                place: Endpoint { gpu: gpu as u32, ..at.clone() }.to_string(),
                name: facts.as_ref().map(|f| f.name.clone()),
                uuid: facts.as_ref().map(|f| hex(&f.uuid)),
                total_bytes: facts.as_ref().map(|f| f.total_bytes),
                driver_version: facts.as_ref().map(|f| f.driver_version),
                free_bytes,
                promised_bytes,
                utilization_percent: measured.utilization_percent,
                memory_utilization_percent: measured.memory_utilization_percent,
                power_watts: measured.power_watts,
                power_limit_watts: measured.power_limit_watts,
                temperature_celsius: measured.temperature_celsius,
                sm_clock_mhz: measured.sm_clock_mhz,
                idle_workers,
                waiting,
                jobs: jobs.into_iter().map(Served::from).collect(),
            }
        });
        Server {
            pid: Some(state.pid),
            since_unix_ms: Some(state.since_unix_ms),
            ending: state.ending,
            limits: Some(state.limits.into()),
            gpus: gpus.collect(),
            no_readings: state.no_readings,
            parked: state.parked.into_iter().map(Served::from).collect(),
            earlier: state.earlier.map(|FormerServer { pid, jobs, parked }| Former { pid, jobs, parked }),
            ..server
        }
    }

    /// Its address, and why its state is not known, if it is not.
    pub(crate) fn outcome(&self) -> (&str, Option<&str>) {
        (&self.server, self.reason.as_deref())
    }

    /// Why what its GPUs measure is not known, if it has answered without.
    pub(crate) fn no_readings(&self) -> Option<&str> {
        self.no_readings.as_deref()
    }

    /// Its GPUs, as far as they are known and it takes new jobs.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        // A place that no job can name would be a start that fails.
        let is_place = |gpu: &&Gpu| gpu.place.parse::<Endpoint>().is_ok();
        let known = self.gpus.iter().filter(|gpu| !self.ending && gpu.name.is_some()).filter(is_place);
        let candidate = |gpu: &Gpu| Candidate {
            place: gpu.place.clone(),
            jobs: gpu.jobs.len() + self.earlier_jobs(gpu.gpu),
            free_bytes: gpu.free_bytes.unwrap_or_default(),
        };
        known.map(candidate).collect()
    }

    /// Number of jobs on a GPU that the server before it has left.
    fn earlier_jobs(&self, gpu: usize) -> usize {
        self.earlier.as_ref().and_then(|earlier| earlier.jobs.get(gpu)).map_or(0, |n| *n as usize)
    }

    /// Whether it takes no new jobs, because it is about to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending
    }

    /// Its GPUs, and the memory for parked jobs if it has some, in the columns of [`OVERVIEW`].
    pub(crate) fn overview(&self) -> Vec<Vec<String>> {
        let users = |jobs: &[Served]| {
            let users: Vec<String> = jobs.iter().map(|job| cut(&client(job))).collect::<BTreeSet<_>>().into_iter().collect();
            match users.len().saturating_sub(MOST_USERS) {
                _ if users.is_empty() => unknown(),
                0 => users.join(", "),
                more => format!("{} and {more} more", users[..MOST_USERS].join(", ")),
            }
        };
        let used = |jobs: &[Served]| jobs.iter().try_fold(0u64, |sum, job| Some(sum.saturating_add(job.used_bytes?)));
        let of_gpu = |gpu: &Gpu| {
            let cells = vec![
                self.server.clone(),
                gpu.gpu.to_string(),
                gpu.name.as_deref().map_or_else(unknown, cut),
                users(&gpu.jobs),
                gpu.total_bytes.map_or_else(unknown, bytes),
                gpu.free_bytes.map_or_else(unknown, bytes),
                used(&gpu.jobs).map_or_else(unknown, bytes),
                gpu.jobs.len().to_string(),
            ];
            cells.into_iter().chain(gpu.measured()).collect()
        };
        let parked = (!self.parked.is_empty()).then(|| {
            let (used, jobs) = (used(&self.parked).map_or_else(unknown, bytes), self.parked.len().to_string());
            let cells =
                vec![self.server.clone(), unknown(), "parked".to_owned(), users(&self.parked), unknown(), unknown(), used, jobs];
            let none = OVERVIEW.len() - cells.len();
            cells.into_iter().chain((0..none).map(|_| unknown())).collect()
        });
        self.gpus.iter().take(MOST_GPUS).map(of_gpu).chain(parked).collect()
    }

    /// A heading, a table of the GPUs, one of what they measure, and one of the jobs.
    fn render(&self) -> String {
        let serving = self.since_unix_ms.map(since).unwrap_or_default();
        let ending = if self.ending { ", ending: it takes no new jobs" } else { "" };
        let mut text = format!("{}: process {}, serving for {serving}{ending}\n", self.server, self.pid.unwrap_or_default());
        if let Some(Former { pid, jobs, parked }) = &self.earlier {
            let by_gpu = jobs.iter().enumerate().filter(|(_, n)| **n > 0).map(|(gpu, n)| format!("GPU {gpu}: {n}"));
            let parked = (*parked > 0).then(|| format!("parked: {parked}"));
            let jobs: Vec<String> = by_gpu.chain(parked).collect();
            text.push_str(&format!("process {pid}, from which it has taken over, has jobs left ({})\n", jobs.join(", ")));
        }
        let mut gpus = Table::new(&["GPU", "MODEL", "UUID", "MEMORY", "FREE", "JOBS", "IDLE"]);
        for gpu in &self.gpus {
            gpus.row(vec![
                gpu.gpu.to_string(),
                gpu.name.as_deref().map_or_else(unknown, cut),
                // CUDA and nvidia-smi accept the beginning of one.
                gpu.uuid.as_deref().map_or_else(unknown, |uuid| format!("GPU-{}", uuid.chars().take(8).collect::<String>())),
                gpu.total_bytes.map_or_else(unknown, bytes),
                gpu.free_bytes.map_or_else(unknown, bytes),
                gpu.jobs.len().to_string(),
                gpu.idle_workers.to_string(),
            ]);
        }
        text.push_str(&gpus.render());
        text.push('\n');
        match &self.no_readings {
            Some(why) => text.push_str(&format!("what the GPUs measure is not known: {}\n", one_line(why))),
            None => {
                let mut measured = Table::new(&["GPU", "UTIL", "MEM-UTIL", "POWER", "LIMIT", "TEMP", "SM-CLOCK"]);
                self.gpus.iter().for_each(|gpu| measured.row([gpu.gpu.to_string()].into_iter().chain(gpu.measured()).collect()));
                text.push_str(&measured.render());
            }
        }
        let mut jobs = Table::new(&["GPU", "JOB", "FROM", "MEMORY", "SINCE", "WORKER"]);
        let of_gpus = self.gpus.iter().flat_map(|gpu| gpu.jobs.iter().map(move |job| (gpu.gpu.to_string(), job)));
        let all: Vec<(String, &Served)> = of_gpus.chain(self.parked.iter().map(|job| ("parked".to_owned(), job))).collect();
        for (gpu, job) in &all {
            jobs.row(vec![
                gpu.clone(),
                job.pid.to_string(),
                cut(&client(job)),
                memory_of(job),
                since(job.since_unix_ms),
                job.worker.to_string(),
            ]);
        }
        if !all.is_empty() {
            text.push('\n');
            text.push_str(&jobs.render());
        }
        text
    }
}

/// What a job uses of a GPU's memory, and what of its memory was taken off the GPU.
fn memory_of(job: &Served) -> String {
    let used = job.used_bytes.map_or_else(unknown, bytes);
    match job.evicted_bytes {
        None | Some(0) => used,
        Some(evicted) => format!("{used}, evicted: {}", bytes(evicted)),
    }
}

/// Where a job comes from: a user, as far as one is known, and the other machine, if it is one.
fn client(job: &Served) -> String {
    match (&job.host, &job.user, job.uid) {
        (Some(host), Some(user), _) => format!("{user}@{host}"),
        (Some(host), None, _) => host.clone(),
        (None, Some(user), _) => format!("user {user}"),
        (None, None, Some(uid)) => format!("user {uid}"),
        (None, None, None) => "its machine".to_owned(),
    }
}

fn unknown() -> String {
    "-".to_owned()
}

/// A text of others, short enough for a column.
fn cut(text: &str) -> String {
    let text = printable(text).replace('\n', " ");
    if text.chars().count() <= WIDEST { text } else { text.chars().take(WIDEST - 1).chain(['…']).collect() }
}

/// Asks the servers and prints their answers.
pub(crate) fn gpus(args: &GpusArgs) -> Result<(), Failure> {
    let servers = named_or_usual(&args.servers)?;
    let shown = waiting("the servers are asked");
    let asked = ask_all(&servers);
    drop(shown);
    if args.json {
        print_json(&asked)?;
    } else {
        let answers: Vec<String> = asked.iter().filter(|server| server.ok).map(Server::render).collect();
        if !answers.is_empty() {
            say(&answers.join("\n"));
        }
        let refused = asked.iter().filter_map(|server| server.reason.as_ref());
        refused.for_each(|why| note(why));
    }
    if asked.len() == servers.len() && asked.iter().all(|server| server.ok) { Ok(()) } else { Err(Failure::silent(1)) }
}

/// The servers that were named, or the one that `mrcuda serve` is without options.
pub(crate) fn named_or_usual(named: &[Endpoint]) -> Result<Vec<Endpoint>, Failure> {
    let usual = || crate::serve::DEFAULT_ADDRESS.parse().map_err(Failure::new);
    if named.is_empty() { Ok(vec![usual()?]) } else { Ok(named.to_vec()) }
}

/// Why a server's state is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskServerError {
    /// There are no credentials.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The server cannot be reached, or refuses.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Asks servers at the same time: one that does not answer must not delay the others.
pub(crate) fn ask_all(servers: &[Endpoint]) -> Vec<Server> {
    std::thread::scope(|threads| {
        let asking: Vec<_> = servers.iter().map(|at| threads.spawn(move || Server::new(at, ask(at)))).collect();
        // A thread that has panicked has printed why.
        asking.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

/// Asks a server.
pub(crate) fn ask(at: &Endpoint) -> Result<ServerState, AskServerError> {
    Ok(inspect(at, credentials(at)?.as_ref())?)
}

/// The token for a server cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{server}: {source}")]
pub(crate) struct CredentialsError {
    /// The server.
    server: String,
    /// The cause.
    source: TokenError,
}

/// What this user shows to a server; `None` if it needs nothing, or there is neither a token nor munge.
pub(crate) fn credentials(at: &Endpoint) -> Result<Option<Credentials>, CredentialsError> {
    if at.unix_path().is_some() {
        return Ok(None);
    }
    let loaded = Credentials::load(&Token::default_path(), Munge::from_environment(), Trust::from_environment());
    loaded.map_err(|source| CredentialsError { server: at.server(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_api::board::Reading;
    use rcuda_forwarder::GpuFacts;
    use serde_json::{Value, json};

    fn job(host: Option<&str>, user: Option<&str>, used_bytes: Option<u64>) -> ServedJob {
        let uid = user.filter(|_| host.is_none()).map(|_| 1000);
        let user_by = user.map(|_| if host.is_some() { UserBy::Token } else { UserBy::System });
        let (host, user) = (host.map(str::to_owned), user.map(str::to_owned));
        ServedJob {
            worker: 4_194_304,
            host,
            pid: 4_194_303,
            uid,
            user,
            user_by,
            since_unix_ms: 0,
            used_bytes,
            evicted_bytes: used_bytes.map(|_| 0),
        }
    }

    fn server() -> Server {
        let facts = GpuFacts {
            name: "NVIDIA H100 80GB HBM3 in a long name".into(),
            uuid: [0xab; 16],
            total_bytes: 140 << 30,
            driver_version: 13_000,
        };
        let jobs =
            vec![job(Some("2001:db8:1234:5678:9abc:def0:1234:5678"), None, Some(100 << 30)), job(None, Some("ann\x1b"), None)];
        let readings = vec![
            (Reading::Utilization as u32, 100),
            (Reading::Power as u32, 312_500),
            (Reading::Temperature as u32, 0),
            (Reading::SmClock as u32, 1981),
        ];
        let known = GpuState {
            facts: Some(facts),
            free_bytes: Some(1023 << 20),
            promised_bytes: Some(7 << 20),
            idle_workers: 10,
            waiting: 3,
            jobs,
            readings,
        };
        let unknown = GpuState::default();
        let parked = vec![job(None, None, Some(0)), job(Some("10.0.0.7"), Some("bob"), Some(0))];
        let state = ServerState {
            pid: 7,
            since_unix_ms: 0,
            ending: true,
            limits: ServerLimits { workers: 64, client_workers: 16, gpu_jobs: Some(1), ..ServerLimits::default() },
            gpus: vec![known, unknown],
            parked,
            earlier: Some(FormerServer { pid: 6, jobs: vec![2, 0], parked: 1 }),
            no_readings: None,
        };
        Server::new(&"gpubox:7878/3".parse().expect("a server"), Ok(state))
    }

    #[test]
    fn the_table_fits_a_terminal() {
        let text = server().render();
        assert!(text.lines().skip(1).all(|line| line.chars().count() <= 80), "{text}");
        for word in [
            "gpubox:7878: process 7",
            "process 6, from which it has taken over, has jobs left (GPU 0: 2, parked: 1)",
            "ending",
            "GPU-abababab ",
            "140.0 GiB",
            "1023.0 MiB",
            "4194303",
            "user ann\\u001b",
            "bob@10.0.0.7",
            "parked",
            "…",
        ] {
            assert!(text.contains(word), "`{word}` is missing in {text}");
        }
        let columns: Vec<&str> = text.lines().nth(2).expect("a heading").split_whitespace().collect();
        assert_eq!(columns, ["GPU", "MODEL", "UUID", "MEMORY", "FREE", "JOBS", "IDLE"]);
        // What is absent is not 0.
        let measured = "\nGPU  UTIL  MEM-UTIL  POWER  LIMIT  TEMP  SM-CLOCK\n  0  100%         -  312 W      -  0 °C  1981 MHz\n  \
            1     -         -      -      -     -         -\n";
        assert!(text.contains(measured), "{text}");
        let mut unread = server();
        unread.no_readings = Some("NVML\nsleeps".to_owned());
        let text = unread.render();
        assert!(text.contains("\nwhat the GPUs measure is not known: NVML\\u000asleeps\n") && !text.contains("UTIL"), "{text}");
    }

    #[test]
    fn the_json_has_the_documented_fields() {
        let whole = serde_json::to_value(server()).expect("JSON");
        let names = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        // The page has a row for each field.
        let page = include_str!("../../docs/servers.md");
        for value in [&whole, &whole["limits"], &whole["gpus"][0], &whole["gpus"][0]["jobs"][0], &whole["earlier"]] {
            for name in names(value) {
                assert!(page.contains(&format!("`{name}`")), "docs/servers.md does not name `{name}`");
            }
        }
        assert_eq!((&whole["ok"], &whole["reason"], &whole["gpus"][1]["name"]), (&json!(true), &Value::Null, &Value::Null));
        assert_eq!(whole["gpus"][0]["place"], json!("gpubox:7878/0"));
        let measured =
            |gpu: usize| ["power_watts", "temperature_celsius", "power_limit_watts"].map(|name| whole["gpus"][gpu][name].clone());
        assert_eq!((measured(0), measured(1)), ([json!(312.5), json!(0), Value::Null], [const { Value::Null }; 3]));
        assert_eq!(whole["gpus"][0]["uuid"], json!("ab".repeat(16)));
        let by = |job: &Value| (job["user"].clone(), job["user_by"].clone());
        assert_eq!(by(&whole["gpus"][0]["jobs"][0]), (Value::Null, Value::Null));
        assert_eq!(by(&whole["gpus"][0]["jobs"][1]).1, json!("system"));
        assert_eq!(by(&whole["parked"][1]), (json!("bob"), json!("token")));
    }

    #[test]
    fn the_overview_of_a_large_server_is_cut() {
        let mut server = server();
        let gpu = |n: usize| {
            let jobs = (0..n).map(|n| Served::from(job(None, Some(&format!("u{n}")), Some(1)))).collect();
            Gpu {
                gpu: n,
                place: String::new(),
                name: None,
                uuid: None,
                total_bytes: None,
                driver_version: None,
                free_bytes: None,
                promised_bytes: None,
                utilization_percent: None,
                memory_utilization_percent: None,
                power_watts: None,
                power_limit_watts: None,
                temperature_celsius: None,
                sm_clock_mhz: None,
                idle_workers: 0,
                waiting: 0,
                jobs,
            }
        };
        server.gpus = (0..MOST_GPUS + 5).map(gpu).collect();
        let rows = server.overview();
        // One is that of parked jobs.
        assert_eq!(rows.len(), MOST_GPUS + 1);
        assert!(rows[8][3].ends_with("user u6, user u7") && rows[10][3].ends_with("user u7 and 2 more"), "{:?}", rows[10]);
    }

    #[test]
    fn a_server_without_an_answer_has_a_reason() {
        let at: Endpoint = "unix:/nowhere/mrcuda/0".parse().expect("a server");
        let server = serde_json::to_value(Server::new(&at, ask(&at))).expect("JSON");
        assert_eq!(
            (&server["ok"], &server["server"], &server["gpus"]),
            (&json!(false), &json!("unix:/nowhere/mrcuda"), &json!([]))
        );
        assert!(server["reason"].as_str().is_some_and(|why| why.contains("mrcuda serve")), "{server}");
    }
}
