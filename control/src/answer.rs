//! The answers of a job. Times of day are in milliseconds since 1970, durations in milliseconds, sizes in bytes.
//!
//! Clients must ignore fields that they do not know. A missing field has its default value.

use crate::VERSION;
use crate::code::{ErrorCode, ReasonCode};
use crate::reason::without_numbers;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The answer to `list`: the state of the job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Job {
    /// Process id.
    pub pid: u32,
    /// Path of the program.
    pub program: String,
    /// Name of the job: that of `mrcuda run --name`, otherwise that of its script or program.
    pub name: String,
    /// The signal that moves the job; none if the program uses that signal itself.
    pub signal: Option<String>,
    /// The place to which the signal moves the job.
    pub on_signal: String,
    /// The places to which a GPU of the job may move when it is full, separated by commas.
    pub when_full: String,
    /// The place where the job belongs, for an agent; empty: it has named none.
    pub home: String,
    /// The policies of an agent that may move it for its own sake, separated by commas, or `none`; empty: all.
    pub policy: String,
    /// The copy of the job that is kept current.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy: Option<KeptCopy>,
    /// Id of the move that is running.
    pub moving: Option<String>,
    /// Ids of the queued moves, the next one first.
    pub queued: Vec<String>,
    /// The job's GPUs, in the program's numbering.
    pub devices: Vec<Device>,
}

/// A copy of a job that is kept current while the job runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct KeptCopy {
    /// The places, one for all GPUs or separated by commas.
    pub to: String,
    /// How long after the end of a round the next one begins.
    pub every_ms: u64,
    /// When the last round began that has succeeded; none if there was none.
    pub current_unix_ms: Option<u64>,
}

/// A GPU of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Device {
    /// The GPU's number.
    pub device: u32,
    /// Name that the program sees: that of the GPU at the first place.
    pub name: String,
    /// UUID that the program sees, in hexadecimal.
    pub uuid: String,
    /// Compute capability, such as `9.0`.
    pub capability: String,
    /// Amount of memory that the program sees.
    pub total_bytes: u64,
    /// The place where its calls execute now.
    pub place: String,
    /// How calls reach the place: `tls`, `tcp`, `rdma`, `shm` or `in-process`.
    pub transport: String,
    /// How the bytes of large copies travel: `rdma`, `tls`, `tcp` or `unix`, several joined by `+`; empty if there was none yet, or if they
    /// travel with the calls.
    #[serde(default)]
    pub large_copies: String,
    /// The time at which it arrived at this place.
    pub since_unix_ms: u64,
    /// What the link to the place has carried; none in the job's own process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Carried>,
    /// Its state with respect to moves.
    pub state: DeviceState,
    /// Bytes that the program has allocated.
    pub used_bytes: u64,
    /// Live objects by kind: streams, events, modules, functions, allocations.
    pub live: BTreeMap<String, u64>,
    /// Journal records that a move would replay.
    pub records: u64,
    /// Bytes of the journal.
    #[serde(default)]
    pub journal_bytes: u64,
    /// Number of moves so far.
    pub moves: u64,
    /// The sticky CUDA error of the context; 0 if there is none.
    pub error: i32,
}

/// What the link between a GPU of a job and its place has carried since the GPU arrived there. Calls that the job answers itself are not
/// among it, nor is what a move copies between places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Carried {
    /// Calls to the place.
    pub calls: u64,
    /// Bytes to the place, with those of large copies that have begun.
    pub bytes_sent: u64,
    /// Bytes from the place.
    pub bytes_received: u64,
}

/// State of a GPU of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// No move is under way. Jobs of older builds say `idle`, although their programs use the GPU.
    #[default]
    #[serde(alias = "idle")]
    Running,
    /// It is parked: its calls wait until it is resumed.
    Parked,
    /// A move is under way.
    Moving,
    /// Its context has failed, so it cannot move.
    Failed,
}

/// The answer to `plan`: what a move would involve.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Plan {
    /// Whether there are no blockers.
    pub ok: bool,
    /// Numbers of the GPUs that would move.
    pub gpus: Vec<u32>,
    /// Their places, separated by commas.
    pub from: String,
    /// The requested place.
    pub to: String,
    /// All blockers.
    pub blockers: Vec<String>,
    /// The code of each blocker.
    pub codes: Vec<ReasonCode>,
    /// All blockers as one text.
    pub reason: Option<String>,
    /// The code of the first blocker.
    pub code: Option<ReasonCode>,
    /// What else is to be known of a move to a driver or GPU that differs, where the request allows that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Bytes that the program has allocated, which a move would have to copy.
    pub live_bytes: u64,
    /// Records that would be replayed.
    pub records: u64,
    /// Memory chunks that they create.
    pub chunks: u64,
    /// Bytes of those chunks.
    pub chunk_bytes: u64,
    /// How many of them the target could take over without a copy, because both places use one GPU.
    pub adoptable_bytes: u64,
    /// Modules and libraries that they load.
    pub modules: u64,
    /// Streams, events, modules, functions and allocations.
    pub live_objects: u64,
    /// Ranges of memory that would be compared and copied: chunks, variables, heaps.
    pub regions: u64,
}

/// One move, as reported by `migrate`, `cancel`, `report` and events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Move {
    /// The move's id.
    pub id: String,
    /// Its state.
    pub state: MoveState,
    /// Whether the job is at the target: `state` is `done`.
    pub ok: bool,
    /// How it was requested: `request`, `signal`, `server` if the job's server is ending, `out-of-memory` if a call found no memory, or `every` for
    /// a round of a copy that is kept current: then `done` says that the copy is, and the job stays.
    pub by: String,
    /// The source places, separated by commas.
    pub from: String,
    /// The target, as it was requested.
    pub to: String,
    /// How calls reach the target, separated by commas: `tls`, `tcp`, `rdma`, `shm` or `in-process`.
    pub transport: String,
    /// The time of the request.
    pub at_unix_ms: u64,
    /// The current phase.
    pub phase: Option<String>,
    /// Durations of the completed phases; with several GPUs, that of the slowest.
    pub phases: BTreeMap<String, f64>,
    /// Rounds that have copied memory; with several GPUs, of the one with the most.
    pub rounds: u64,
    /// How often calls were blocked: the attempts to quiesce.
    pub closings: u64,
    /// Bytes copied, counted after each round.
    pub bytes: u64,
    /// Bytes copied while calls were blocked.
    pub delta_bytes: u64,
    /// Bytes copied from GPU to GPU, from memory that the target mapped through a descriptor; the rest went over
    /// connections.
    pub bytes_by_descriptor: u64,
    /// Bytes that connections carried, counted after each round: fewer than `bytes` without `bytes_by_descriptor` if memory was
    /// compressed.
    pub bytes_carried: u64,
    /// Bytes that were handed over without a copy, because both places use one GPU.
    pub bytes_adopted: u64,
    /// Bytes that the program had allocated.
    pub live_bytes: u64,
    /// Records replayed before calls were blocked.
    pub records: u64,
    /// Memory chunks that they created.
    pub chunks: u64,
    /// Bytes of those chunks.
    pub chunk_bytes: u64,
    /// Modules and libraries that they loaded.
    pub modules: u64,
    /// Streams, events, modules, functions and allocations.
    pub live_objects: u64,
    /// Whether a kernel was still running when calls were blocked.
    pub kernel_running: bool,
    /// How long calls were blocked. If the GPU was not idle at the first attempt, this is the longest of the
    /// attempts.
    pub downtime_ms: f64,
    /// The downtime that the move aimed at: its limit, or 300 ms. Without a limit a longer downtime is not a failure.
    pub target_downtime_ms: f64,
    /// What the last attempt that did not find the job idle was waiting for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// How long the GPUs were idle.
    pub gpu_idle_ms: f64,
    /// Time from the start to the end, without the time in the queue.
    pub total_ms: f64,
    /// Digest of all memory that was moved, as computed by the target; with several GPUs see `legs`.
    pub digest: String,
    /// Why the move failed.
    pub reason: Option<String>,
    /// The same as a code for programs.
    pub code: Option<ReasonCode>,
    /// The details for each GPU.
    pub legs: Vec<GpuMove>,
    /// What happened when, if the request asked for it; not in events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Box<Trace>>,
}

/// What a move did for one GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GpuMove {
    /// The GPU's number in the job.
    pub gpu: u32,
    /// The source place.
    pub from: String,
    /// The target place, with the GPU that was chosen.
    pub to: String,
    /// How calls reach the target: `tls`, `tcp`, `rdma`, `shm` or `in-process`; empty until it is open.
    pub transport: String,
    /// How memory travels from source to target: `rdma`, `tls`, `tcp` or `unix`, several joined by `+`; empty until they are connected.
    pub data: String,
    /// The place that was chosen first and why it could not be used; a helper is used instead.
    pub instead: Option<String>,
    /// Why memory was copied over connections although descriptors were possible in principle.
    pub by_socket: Option<String>,
    /// Durations of the completed phases.
    pub phases: BTreeMap<String, f64>,
    /// Rounds that have copied memory.
    pub rounds: u64,
    /// Bytes copied, counted after each round.
    pub bytes: u64,
    /// Bytes copied while calls were blocked.
    pub delta_bytes: u64,
    /// Bytes copied from GPU to GPU, from memory that the target mapped through a descriptor; the rest went over
    /// connections.
    pub bytes_by_descriptor: u64,
    /// Bytes that connections carried, counted after each round: fewer than `bytes` without `bytes_by_descriptor` if memory was
    /// compressed.
    pub bytes_carried: u64,
    /// Bytes that were handed over without a copy, because both places use one GPU.
    pub bytes_adopted: u64,
    /// Bytes that the program had allocated.
    pub live_bytes: u64,
    /// Memory that the target must have free.
    pub needed_bytes: u64,
    /// Memory that it had free when it was asked.
    pub free_bytes: u64,
    /// Records replayed before calls were blocked.
    pub records: u64,
    /// Memory chunks that they created.
    pub chunks: u64,
    /// Bytes of those chunks.
    pub chunk_bytes: u64,
    /// Modules and libraries that they loaded.
    pub modules: u64,
    /// Streams, events, modules, functions and allocations.
    pub live_objects: u64,
    /// Whether a kernel was still running when calls were blocked.
    pub kernel_running: bool,
    /// Digest of all memory that was moved, as computed by the target.
    pub digest: String,
}

impl Move {
    /// Computes the totals from the legs.
    pub fn sum_up(&mut self) {
        let legs = &self.legs;
        let text = |part: fn(&GpuMove) -> &str| legs.iter().map(part).collect::<Vec<_>>().join(",");
        self.from = text(|gpu| &gpu.from);
        self.transport = text(|gpu| &gpu.transport);
        let sum = |part: fn(&GpuMove) -> u64| legs.iter().map(part).sum::<u64>();
        self.rounds = legs.iter().map(|gpu| gpu.rounds).max().unwrap_or_default();
        self.bytes = sum(|gpu| gpu.bytes);
        self.delta_bytes = sum(|gpu| gpu.delta_bytes);
        self.bytes_by_descriptor = sum(|gpu| gpu.bytes_by_descriptor);
        self.bytes_carried = sum(|gpu| gpu.bytes_carried);
        self.bytes_adopted = sum(|gpu| gpu.bytes_adopted);
        self.live_bytes = sum(|gpu| gpu.live_bytes);
        self.records = sum(|gpu| gpu.records);
        self.chunks = sum(|gpu| gpu.chunks);
        self.chunk_bytes = sum(|gpu| gpu.chunk_bytes);
        self.modules = sum(|gpu| gpu.modules);
        self.live_objects = sum(|gpu| gpu.live_objects);
        self.kernel_running = legs.iter().any(|gpu| gpu.kernel_running);
        for (name, ms) in legs.iter().flat_map(|gpu| &gpu.phases) {
            let most = self.phases.entry(name.clone()).or_default();
            *most = most.max(*ms);
        }
        if let [only] = &legs[..] {
            self.digest.clone_from(&only.digest);
        }
    }
}

/// State of a move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// It waits for another move.
    #[default]
    Queued,
    /// It is running and can still be cancelled.
    Running,
    /// It is being abandoned.
    Stopping,
    /// The job is at the target; the source is being released.
    Committed,
    /// It has succeeded.
    Done,
    /// It failed; the job stays at the source, for the given reason.
    Failed,
    /// It was cancelled; the job stays at the source.
    Cancelled,
}

impl MoveState {
    /// Whether the move has ended.
    pub fn is_over(self) -> bool {
        matches!(self, MoveState::Done | MoveState::Failed | MoveState::Cancelled)
    }
}

/// An event of a move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// Number of the event in this job, starting at 1; a gap means that the reader was too slow.
    pub seq: u64,
    /// The kind of event.
    pub event: EventKind,
    /// The move at the time of the event.
    #[serde(rename = "move")]
    pub it: Move,
}

/// The kinds of events of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// It was accepted.
    Queued,
    /// It has begun.
    Started,
    /// A new phase has begun.
    Phase,
    /// A round of copying has ended.
    Progress,
    /// It is being abandoned.
    Stopping,
    /// The job is at the target.
    Committed,
    /// It has ended, successfully or not.
    Ended,
    /// An event of a later version.
    #[serde(other)]
    Other,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refusal {
    /// Error code for programs.
    pub error: ErrorCode,
    /// More detailed code for programs; jobs of older builds do not send one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ReasonCode>,
    /// Text for people, including what to do next.
    pub reason: String,
    /// The move that blocks the request or to which the request refers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl Refusal {
    /// Creates a refusal that concerns no particular move.
    pub fn new(code: ReasonCode, reason: impl Into<String>) -> Refusal {
        Refusal { error: code.error(), code: Some(code), reason: without_numbers(&reason.into()), id: None }
    }

    /// Creates a refusal that concerns a move.
    pub fn about(code: ReasonCode, id: &str, reason: impl Into<String>) -> Refusal {
        Refusal { id: Some(id.to_owned()), ..Refusal::new(code, reason) }
    }
}

/// Why a line is not an answer or an event.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not JSON, or not an answer.
    #[error("the job's answer is not understood: {0}")]
    Answer(serde_json::Error),
    /// It is an answer without contents that this build knows.
    #[error("the job's answer is not understood: it carries nothing")]
    Empty,
    /// It is not an event.
    #[error("the job's event is not understood: {0}")]
    Event(serde_json::Error),
    /// It is of another version of the protocol.
    #[error(
        "the job speaks version {} of this protocol, we speak {VERSION}: use the mrcuda that started the job",
        .0.map_or_else(|| "none".to_owned(), |v| v.to_string())
    )]
    Version(Option<u64>),
}

/// An answer. On the wire it is an object with `"v"`, `"ok": true` and one field named after its contents.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The answer to `list`.
    Job(Job),
    /// The answer to `plan`.
    Plan(Plan),
    /// The answer to `migrate` and `cancel`.
    Move(Move),
    /// The answer to `report`, in the order of the requests for the moves.
    Moves(Vec<Move>),
    /// The answer to `subscribe`: number of the last event so far.
    Subscribed(u64),
}

impl Answer {
    /// The encoded line, including its newline.
    pub fn line(&self) -> String {
        line(self, Some(true))
    }

    /// Parses a line: an answer or a refusal.
    ///
    /// # Errors
    /// It is neither.
    pub fn read(line: &[u8]) -> Result<Result<Answer, Refusal>, ReadError> {
        let mut value = read(line)?;
        if value.get("ok").and_then(Value::as_bool) != Some(true) {
            return serde_json::from_value(value).map(Err).map_err(ReadError::Answer);
        }
        let mut take = |name: &str| value.get_mut(name).map(Value::take);
        let read = if let Some(v) = take("job") {
            serde_json::from_value(v).map(Answer::Job)
        } else if let Some(v) = take("plan") {
            serde_json::from_value(v).map(Answer::Plan)
        } else if let Some(v) = take("move") {
            serde_json::from_value(v).map(Answer::Move)
        } else if let Some(v) = take("moves") {
            serde_json::from_value(v).map(Answer::Moves)
        } else if let Some(v) = take("subscribed") {
            serde_json::from_value(v).map(Answer::Subscribed)
        } else {
            return Err(ReadError::Empty);
        };
        read.map(Ok).map_err(ReadError::Answer)
    }
}

impl Refusal {
    /// The encoded line, including its newline.
    pub fn line(&self) -> String {
        line(self, Some(false))
    }
}

impl Event {
    /// The encoded line, including its newline.
    pub fn line(&self) -> String {
        line(self, None)
    }

    /// Parses a line.
    ///
    /// # Errors
    /// It is not an event.
    pub fn read(line: &[u8]) -> Result<Event, ReadError> {
        serde_json::from_value(read(line)?).map_err(ReadError::Event)
    }
}

/// Parses any line of this protocol version.
fn read(line: &[u8]) -> Result<Value, ReadError> {
    let value: Value = serde_json::from_slice(line).map_err(ReadError::Answer)?;
    match value.get("v").and_then(Value::as_u64) {
        Some(VERSION) => Ok(value),
        other => Err(ReadError::Version(other)),
    }
}

/// Encodes a line of JSON: the body with the version, and whether the request was carried out.
pub(crate) fn line(body: &impl Serialize, ok: Option<bool>) -> String {
    // Our own types are objects with text keys, whose serialization cannot fail.
    let mut value = serde_json::to_value(body).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("v".to_owned(), VERSION.into());
        if let Some(ok) = ok {
            fields.insert("ok".to_owned(), ok.into());
        }
    }
    format!("{value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Move {
        Move {
            id: "m1".into(),
            state: MoveState::Done,
            ok: true,
            legs: vec![GpuMove { phases: BTreeMap::from([("plan".to_owned(), 0.5)]), ..GpuMove::default() }],
            ..Move::default()
        }
    }

    #[test]
    fn several_legs_come_to_one_move() {
        let gpu = |gpu: u32, from: &str, ms: f64| GpuMove {
            gpu,
            from: from.into(),
            bytes: 10,
            kernel_running: gpu == 1,
            digest: format!("{gpu}"),
            phases: BTreeMap::from([("delta".to_owned(), ms)]),
            ..GpuMove::default()
        };
        let mut it = Move { legs: vec![gpu(0, "a:1/0", 3.0), gpu(1, "local:0", 2.0)], ..Move::default() };
        it.sum_up();
        assert_eq!((it.from.as_str(), it.bytes, it.kernel_running, it.phases["delta"]), ("a:1/0,local:0", 20, true, 3.0));
        assert_eq!(it.digest, "", "two digests are no digest");
        it.legs.truncate(1);
        it.sum_up();
        assert_eq!((it.from.as_str(), it.digest.as_str()), ("a:1/0", "0"));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for answer in [
            Answer::Job(Job { pid: 7, devices: vec![Device::default()], ..Job::default() }),
            Answer::Plan(Plan { blockers: vec!["x".into()], ..Plan::default() }),
            Answer::Move(report()),
            Answer::Moves(vec![report(), Move::default()]),
            Answer::Subscribed(9),
        ] {
            assert_eq!(Answer::read(answer.line().as_bytes()).unwrap(), Ok(answer));
        }
        let refusal = Refusal::about(ReasonCode::Busy, "m1", "later");
        assert_eq!(
            refusal.line(),
            "{\"code\":\"busy\",\"error\":\"busy\",\"id\":\"m1\",\"ok\":false,\"reason\":\"later\",\"v\":2}\n"
        );
        assert_eq!(Answer::read(refusal.line().as_bytes()).unwrap(), Err(refusal));
        let event = Event { seq: 3, event: EventKind::Phase, it: report() };
        assert_eq!(Event::read(event.line().as_bytes()).unwrap(), event);
    }

    #[test]
    fn later_versions_may_say_more_but_not_something_else() {
        let more = br#"{"v":2,"ok":true,"news":1,"job":{"pid":7,"devices":[{"device":0,"colour":"red"}],"mood":"good"}}"#;
        assert!(matches!(Answer::read(more), Ok(Ok(Answer::Job(j))) if j.pid == 7 && j.devices.len() == 1));
        let code = br#"{"v":2,"ok":false,"error":"rainy","reason":"it rains"}"#;
        assert!(
            matches!(Answer::read(code), Ok(Err(r)) if r.error == ErrorCode::Other && r.reason == "it rains" && r.code.is_none())
        );
        let code = br#"{"v":2,"ok":true,"move":{"state":"failed","reason":"it rains","code":"weather"}}"#;
        let unknown = Some(ReasonCode::Unknown("weather".to_owned()));
        assert!(matches!(Answer::read(code), Ok(Ok(Answer::Move(m))) if m.state == MoveState::Failed && m.code == unknown));
        let why = Answer::read(br#"{"v":3,"ok":true,"job":{}}"#).unwrap_err().to_string();
        assert!(why.contains("version 3") && why.contains("we speak 2"), "{why}");
        for odd in ["", "hello", "[]", "{}", r#"{"v":2}"#, r#"{"v":2,"ok":true}"#, r#"{"v":2,"ok":true,"job":7}"#] {
            assert!(Answer::read(odd.as_bytes()).is_err(), "{odd}");
        }
    }
}
