//! Types that stand for what is written elsewhere, or without a type. Tests of the whole system compare them with what is written.

use schemars::JsonSchema;
use serde_json::Value;
use std::collections::BTreeMap;

/// A line of a server's accounting: a worker that has served a job.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
pub(super) struct Accounted {
    /// Version of the form.
    #[schemars(extend("const" = 1))]
    version: u32,
    /// The server's process.
    server_pid: u32,
    /// The worker's process.
    worker: u32,
    /// The number of the GPU in places; null: a job that was parked in the server's memory, as for the following two.
    gpu: Option<u32>,
    gpu_name: Option<String>,
    gpu_uuid: Option<String>,
    /// The job's machine; null: the server's.
    host: Option<String>,
    /// The job's process, over a network by its own word.
    pid: u32,
    /// The job's name, by its own word.
    name: String,
    /// The number of the job's user, if the kernel says.
    uid: Option<u32>,
    /// The name of the user whose token or credential of munge was shown, otherwise that of `uid`.
    user: Option<String>,
    user_by: Option<UserBy>,
    /// Milliseconds since 1970, as for the following.
    since_unix_ms: u64,
    until_unix_ms: u64,
    /// 0 for a job that was parked.
    gpu_seconds: f64,
    /// The largest amount of GPU memory.
    peak_bytes: u64,
    /// Memory over time.
    byte_seconds: f64,
    /// From the job.
    bytes_in: u64,
    /// To the job.
    bytes_out: u64,
    /// The job has moved here.
    moved_in: bool,
    /// The job has moved away.
    moved_out: bool,
    end: End,
}

/// How a user is known.
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "it stands for its schema")]
enum UserBy {
    Token,
    Munge,
    System,
}

/// How a worker's service of a job has ended.
#[derive(JsonSchema)]
#[schemars(rename_all = "kebab-case")]
#[expect(dead_code, reason = "it stands for its schema")]
enum End {
    /// The job has ended, or moved away.
    Left,
    /// The worker has failed.
    Failed,
    /// The server has ended.
    ServerEnded,
}

/// What a server's page shows.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
pub(super) struct Status {
    /// Version and commit of mrcuda.
    version: String,
    commit: String,
    /// Milliseconds since 1970, as for the following.
    now_unix_ms: u64,
    since_unix_ms: u64,
    /// It takes no new jobs.
    ending: bool,
    /// Whether jobs are named (`--metrics-jobs`).
    names_jobs: bool,
    /// By their numbers in places.
    gpus: Vec<Gpu>,
    /// Why it is not known what the GPUs measure; null if it is.
    no_readings: Option<String>,
    /// Jobs that are served, or were within the last minutes.
    stays: Vec<Stay>,
    /// Number of jobs that are served and not among `stays`.
    jobs_omitted: usize,
}

/// A GPU of a server.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Gpu {
    gpu: u32,
    /// Null, as other properties of the GPU: no worker has opened it.
    name: Option<String>,
    /// `GPU-…`
    uuid: Option<String>,
    total_bytes: Option<u64>,
    free_bytes: Option<u64>,
    /// By the server's jobs.
    used_bytes: Option<u64>,
    /// How many jobs use it.
    jobs: usize,
    /// How many workers wait for a job.
    idle_workers: usize,
    /// How many jobs wait for a turn.
    waiting: usize,
    /// Since the server's start, as the following.
    bytes_in: u64,
    bytes_out: u64,
    moved_in: u64,
    moved_out: u64,
    /// Measured by NVML, as the following; null if it is not known.
    utilization_percent: Option<u32>,
    memory_utilization_percent: Option<u32>,
    power_watts: Option<f64>,
    power_limit_watts: Option<f64>,
    temperature_celsius: Option<u32>,
    sm_clock_mhz: Option<u32>,
}

/// A job at a GPU.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Stay {
    /// Null: parked in the server's memory.
    gpu: Option<u32>,
    /// In steps of 10 s if jobs are not named, as the following.
    since_unix_ms: u64,
    /// Null: it is there.
    until_unix_ms: Option<u64>,
    moved_in: bool,
    moved_out: bool,
    /// How the stay has ended.
    end: Option<End>,
    /// Null if jobs are not named.
    used_bytes: Option<u64>,
    job: Option<NamedJob>,
}

/// A job that is named.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct NamedJob {
    worker: u32,
    pid: u32,
    name: String,
    /// Null: the server's machine.
    host: Option<String>,
    user: Option<String>,
}

/// A record of a journal. A field that does not apply is absent. Handles are numbers like `0x40`.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
pub(super) struct Record {
    /// Its number.
    seq: u64,
    /// The call's number, like `0x0507`.
    #[schemars(extend("pattern" = "^0x[0-9a-f]{4}$"))]
    id: String,
    /// The call's name, if it has one.
    call: Option<String>,
    /// The job's device.
    device: u32,
    role: Option<Role>,
    /// The handle that it creates.
    creates: Option<Vec<String>>,
    /// The handle that it ends.
    ends: Option<String>,
    /// The handles that it uses.
    uses: Option<Vec<String>>,
    /// What it sets: an earlier record with the same numbers does not count any more.
    setting: Option<Vec<String>>,
    /// The call's arguments as text; otherwise the following two.
    body: Option<String>,
    body_bytes: Option<u64>,
    /// The first 64 bytes.
    body_hex: Option<String>,
    reply_bytes: Option<u64>,
    /// As `body_hex`.
    reply_hex: Option<String>,
}

/// What becomes of a record.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
enum Role {
    #[schemars(rename = "stays")]
    Stays,
    #[schemars(rename = "load")]
    Load,
    #[schemars(rename = "load without variables")]
    LightLoad,
    #[schemars(rename = "child")]
    Child,
}

/// A file of figures. It has further fields, for people.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
pub(super) struct Bench {
    #[schemars(extend("const" = "mrcuda-bench"))]
    kind: String,
    #[schemars(extend("const" = 1))]
    v: u64,
    machine: Machine,
    /// Version of mrcuda.
    mrcuda: String,
    /// Year, month and day.
    date: String,
    /// How long it has taken.
    seconds: u64,
    /// Few repetitions (`--quick`).
    quick: bool,
    /// For the validation of models (`--validation`).
    validation: bool,
    /// What was not measured, and why.
    absent: BTreeMap<String, String>,
    /// What was wanted, and whether it holds.
    goals: Vec<Goal>,
    /// What models are fitted to.
    samples: Vec<Sample>,
    /// What was printed.
    tables: Vec<Table>,
    #[schemars(flatten)]
    parts: BTreeMap<String, Value>,
}

/// The machine that was measured.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Machine {
    gpu: String,
    /// CUDA version of the driver.
    driver: String,
    cpu: String,
    /// Processors that the process could use.
    cores: u32,
    system: String,
    /// The GPU is softgpu, whose figures do not apply to hardware.
    soft: bool,
}

/// What was wanted.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Goal {
    what: String,
    unit: String,
    limit: f64,
    measured: f64,
    /// The limit is the smallest good value, otherwise the largest.
    at_least: bool,
    met: bool,
}

/// A measured time.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Sample {
    /// Of what: the name of a model.
    what: String,
    /// On which path.
    path: String,
    /// Amounts by name.
    terms: BTreeMap<String, f64>,
    /// The median of the runs.
    seconds: f64,
    /// Their number.
    runs: u64,
}

/// A table as it was printed.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}
