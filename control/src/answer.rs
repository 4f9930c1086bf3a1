//! What a job answers. Times of day are milliseconds since 1970, durations milliseconds, sizes bytes.
//!
//! Clients must pass over fields that they do not know; a field that is missing has its empty value.

use crate::VERSION;
use crate::code::{ErrorCode, ReasonCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The answer to `list`: the job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Process id.
    pub pid: u32,
    /// Path of the program.
    pub program: String,
    /// The signal that moves the job; none: the program uses it itself.
    pub signal: Option<String>,
    /// Where the signal moves it.
    pub on_signal: String,
    /// Id of the move that is under way.
    pub moving: Option<String>,
    /// Ids of the moves that wait, the next one first.
    pub queued: Vec<String>,
    /// GPUs as the program numbers them.
    pub devices: Vec<Device>,
}

/// A GPU of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Its number.
    pub device: u32,
    /// Name that the program sees: that of the first place.
    pub name: String,
    /// UUID that the program sees, hexadecimal.
    pub uuid: String,
    /// Compute capability, as `9.0`.
    pub capability: String,
    /// Memory that the program sees.
    pub total_bytes: u64,
    /// Where its calls execute now.
    pub place: String,
    /// How they get there: `tcp`, `shm`, `in-process`.
    pub transport: String,
    /// Since when it has been there.
    pub since_unix_ms: u64,
    /// What it is doing.
    pub state: DeviceState,
    /// Memory that the program has allocated.
    pub used_bytes: u64,
    /// Live objects by kind: streams, events, modules, functions, allocations.
    pub live: BTreeMap<String, u64>,
    /// Records of the journal that a move would replay.
    pub records: u64,
    /// Bytes of the journal.
    #[serde(default)]
    pub journal_bytes: u64,
    /// Moves that it has made.
    pub moves: u64,
    /// The CUDA error that stays with the context; 0: none.
    pub error: i32,
}

/// What a GPU of a job is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// Nothing that concerns moves.
    #[default]
    Idle,
    /// A move is under way.
    Moving,
    /// Its context has failed: it cannot move.
    Failed,
}

/// The answer to `plan`: what a move would find.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// Whether nothing stands in the way.
    pub ok: bool,
    /// Numbers of the GPUs that would move.
    pub gpus: Vec<u32>,
    /// Where they are, separated by commas.
    pub from: String,
    /// The place asked for.
    pub to: String,
    /// All that stands in the way.
    pub blockers: Vec<String>,
    /// A code for each of them.
    pub codes: Vec<ReasonCode>,
    /// All of them as one text.
    pub reason: Option<String>,
    /// The code of the first one.
    pub code: Option<ReasonCode>,
    /// Bytes that the program has allocated: what would have to travel.
    pub live_bytes: u64,
    /// Records that would be replayed.
    pub records: u64,
    /// Chunks of memory among them.
    pub chunks: u64,
    /// Bytes in those chunks.
    pub chunk_bytes: u64,
    /// Modules and libraries among them.
    pub modules: u64,
    /// Streams, events, modules, functions and allocations.
    pub live_objects: u64,
    /// Ranges of memory that would be compared and copied: chunks, variables, heaps.
    pub regions: u64,
}

/// One move: what `migrate`, `cancel`, `report` and events tell of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Move {
    /// Its name.
    pub id: String,
    /// How far it is.
    pub state: MoveState,
    /// Whether the job is at the new place: `state` is `done`.
    pub ok: bool,
    /// Who asked: `request` or `signal`.
    pub by: String,
    /// The places that the GPUs leave, separated by commas.
    pub from: String,
    /// Where they go: the place that was asked for.
    pub to: String,
    /// How calls get there, separated by commas: `tcp`, `shm` or `in-process`.
    pub transport: String,
    /// When it was asked for.
    pub at_unix_ms: u64,
    /// The phase that it is in.
    pub phase: Option<String>,
    /// How long the phases took that are over; of several GPUs the slowest counts.
    pub phases: BTreeMap<String, f64>,
    /// Bytes copied, counted after each round.
    pub bytes: u64,
    /// Bytes copied while calls were held up.
    pub delta_bytes: u64,
    /// Bytes that GPU copied to GPU, from memory that the target had by descriptor; the others went over connections.
    pub bytes_by_descriptor: u64,
    /// Bytes that the program had allocated.
    pub live_bytes: u64,
    /// Records replayed before the calls were held up.
    pub records: u64,
    /// Chunks of memory among them.
    pub chunks: u64,
    /// Bytes in those chunks.
    pub chunk_bytes: u64,
    /// Modules and libraries among them.
    pub modules: u64,
    /// Streams, events, modules, functions and allocations.
    pub live_objects: u64,
    /// Whether a kernel was unfinished when the calls were held up.
    pub kernel_running: bool,
    /// How long calls were held up: the longest time, if the GPU was not idle at the first attempt.
    pub downtime_ms: f64,
    /// How long the GPUs had nothing to do.
    pub gpu_idle_ms: f64,
    /// From the start to the end, without the time in the queue.
    pub total_ms: f64,
    /// Digest of all memory that was moved, as the target computed it; with several GPUs see `legs`.
    pub digest: String,
    /// Why it failed.
    pub reason: Option<String>,
    /// The same for programs.
    pub code: Option<ReasonCode>,
    /// The same for each GPU.
    pub legs: Vec<Leg>,
}

/// What a move did with one GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Leg {
    /// Its number in the job.
    pub gpu: u32,
    /// The place that it leaves.
    pub from: String,
    /// The place where it goes, with the GPU that was chosen.
    pub to: String,
    /// How calls get there: `tcp`, `shm` or `in-process`; empty until it is open.
    pub transport: String,
    /// The place that was chosen first and why it would not do: a helper process is used instead.
    pub instead: Option<String>,
    /// Why memory that could have been had by descriptor went over connections.
    pub by_socket: Option<String>,
    /// How long the phases took that are over.
    pub phases: BTreeMap<String, f64>,
    /// Bytes copied, counted after each round.
    pub bytes: u64,
    /// Bytes copied while calls were held up.
    pub delta_bytes: u64,
    /// Bytes that GPU copied to GPU, from memory that the target had by descriptor; the others went over connections.
    pub bytes_by_descriptor: u64,
    /// Bytes that the program had allocated.
    pub live_bytes: u64,
    /// Records replayed before the calls were held up.
    pub records: u64,
    /// Chunks of memory among them.
    pub chunks: u64,
    /// Bytes in those chunks.
    pub chunk_bytes: u64,
    /// Modules and libraries among them.
    pub modules: u64,
    /// Streams, events, modules, functions and allocations.
    pub live_objects: u64,
    /// Whether a kernel was unfinished when the calls were held up.
    pub kernel_running: bool,
    /// Digest of all memory that was moved, as the target computed it.
    pub digest: String,
}

impl Move {
    /// Fills in what follows from the legs.
    pub fn sum_up(&mut self) {
        let legs = &self.legs;
        let text = |part: fn(&Leg) -> &str| legs.iter().map(part).collect::<Vec<_>>().join(",");
        self.from = text(|leg| &leg.from);
        self.transport = text(|leg| &leg.transport);
        let sum = |part: fn(&Leg) -> u64| legs.iter().map(part).sum::<u64>();
        self.bytes = sum(|leg| leg.bytes);
        self.delta_bytes = sum(|leg| leg.delta_bytes);
        self.bytes_by_descriptor = sum(|leg| leg.bytes_by_descriptor);
        self.live_bytes = sum(|leg| leg.live_bytes);
        self.records = sum(|leg| leg.records);
        self.chunks = sum(|leg| leg.chunks);
        self.chunk_bytes = sum(|leg| leg.chunk_bytes);
        self.modules = sum(|leg| leg.modules);
        self.live_objects = sum(|leg| leg.live_objects);
        self.kernel_running = legs.iter().any(|leg| leg.kernel_running);
        for (name, ms) in legs.iter().flat_map(|leg| &leg.phases) {
            let most = self.phases.entry(name.clone()).or_default();
            *most = most.max(*ms);
        }
        if let [only] = &legs[..] {
            self.digest.clone_from(&only.digest);
        }
    }
}

/// How far a move is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// It waits for another one.
    #[default]
    Queued,
    /// It can still be given up.
    Running,
    /// It is being given up.
    Stopping,
    /// The job is at the new place, the old one is being released.
    Committed,
    /// It has succeeded.
    Done,
    /// The job stays where it was, for the reason given.
    Failed,
    /// The job stays where it was because someone wanted so.
    Cancelled,
}

impl MoveState {
    /// Whether nothing more will happen.
    pub fn is_over(self) -> bool {
        matches!(self, MoveState::Done | MoveState::Failed | MoveState::Cancelled)
    }
}

/// Something that has happened to a move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event in this job, from 1; a gap means that the reader was too slow.
    pub seq: u64,
    /// What.
    pub event: EventKind,
    /// The move as it was then.
    #[serde(rename = "move")]
    pub it: Move,
}

/// What has happened to a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// It was accepted.
    Queued,
    /// It has begun.
    Started,
    /// A phase has begun.
    Phase,
    /// A round of copying is over.
    Progress,
    /// It is being given up.
    Stopping,
    /// The job is at the new place.
    Committed,
    /// It is over, in one way or another.
    Ended,
    /// Something that a later version tells.
    #[serde(other)]
    Other,
}

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub error: ErrorCode,
    /// For programs, in more detail; a job of an older build has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ReasonCode>,
    /// For people, and what to do next.
    pub reason: String,
    /// The move that is in the way or that was meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl Refusal {
    /// A refusal that concerns no move in particular.
    pub fn new(code: ReasonCode, reason: impl Into<String>) -> Refusal {
        Refusal { error: code.error(), code: Some(code), reason: reason.into(), id: None }
    }

    /// A refusal because of a move.
    pub fn about(code: ReasonCode, id: &str, reason: impl Into<String>) -> Refusal {
        Refusal { id: Some(id.to_owned()), ..Refusal::new(code, reason) }
    }
}

/// An answer. On the wire it is an object with `"v"`, `"ok": true` and one field named after what it carries.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To `list`.
    Job(Job),
    /// To `plan`.
    Plan(Plan),
    /// To `migrate` and `cancel`.
    Move(Move),
    /// To `report`, in the order in which they were asked for.
    Moves(Vec<Move>),
    /// To `subscribe`: number of the last event so far.
    Subscribed(u64),
}

impl Answer {
    /// The line, with its newline.
    pub fn line(&self) -> String {
        line(self, Some(true))
    }

    /// Reads a line: an answer or a refusal; the error says in words why it is neither.
    pub fn read(line: &[u8]) -> Result<Result<Answer, Refusal>, String> {
        let odd = |e: serde_json::Error| format!("the job's answer is not understood: {e}");
        let mut value = read(line)?;
        if value.get("ok").and_then(Value::as_bool) != Some(true) {
            return serde_json::from_value(value).map(Err).map_err(odd);
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
            return Err("the job's answer is not understood: it carries nothing".to_owned());
        };
        read.map(Ok).map_err(odd)
    }
}

impl Refusal {
    /// The line, with its newline.
    pub fn line(&self) -> String {
        line(self, Some(false))
    }
}

impl Event {
    /// The line, with its newline.
    pub fn line(&self) -> String {
        line(self, None)
    }

    /// Reads a line; the error says in words why it is none.
    pub fn read(line: &[u8]) -> Result<Event, String> {
        serde_json::from_value(read(line)?).map_err(|e| format!("the job's event is not understood: {e}"))
    }
}

/// Any line of this version.
fn read(line: &[u8]) -> Result<Value, String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| format!("the job's answer is not understood: {e}"))?;
    match value.get("v").and_then(Value::as_u64) {
        Some(VERSION) => Ok(value),
        other => {
            let theirs = other.map_or_else(|| "none".to_owned(), |v| v.to_string());
            Err(format!(
                "the job speaks version {theirs} of this protocol, we speak {VERSION}: use the mrcuda that started the job"
            ))
        }
    }
}

/// A line of JSON: the body with the version, and whether the request was carried out.
pub(crate) fn line(body: &impl Serialize, ok: Option<bool>) -> String {
    // Our own types are objects with text keys, which cannot fail to be written.
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
            legs: vec![Leg { phases: BTreeMap::from([("plan".to_owned(), 0.5)]), ..Leg::default() }],
            ..Move::default()
        }
    }

    #[test]
    fn several_legs_come_to_one_move() {
        let leg = |gpu: u32, from: &str, ms: f64| Leg {
            gpu,
            from: from.into(),
            bytes: 10,
            kernel_running: gpu == 1,
            digest: format!("{gpu}"),
            phases: BTreeMap::from([("delta".to_owned(), ms)]),
            ..Leg::default()
        };
        let mut it = Move { legs: vec![leg(0, "a:1/0", 3.0), leg(1, "local:0", 2.0)], ..Move::default() };
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
            assert_eq!(Answer::read(answer.line().as_bytes()), Ok(Ok(answer)));
        }
        let refusal = Refusal::about(ReasonCode::Busy, "m1", "later");
        assert_eq!(
            refusal.line(),
            "{\"code\":\"busy\",\"error\":\"busy\",\"id\":\"m1\",\"ok\":false,\"reason\":\"later\",\"v\":2}\n"
        );
        assert_eq!(Answer::read(refusal.line().as_bytes()), Ok(Err(refusal)));
        let event = Event { seq: 3, event: EventKind::Phase, it: report() };
        assert_eq!(Event::read(event.line().as_bytes()), Ok(event));
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
        let why = Answer::read(br#"{"v":3,"ok":true,"job":{}}"#).unwrap_err();
        assert!(why.contains("version 3") && why.contains("we speak 2"), "{why}");
        for odd in ["", "hello", "[]", "{}", r#"{"v":2}"#, r#"{"v":2,"ok":true}"#, r#"{"v":2,"ok":true,"job":7}"#] {
            assert!(Answer::read(odd.as_bytes()).is_err(), "{odd}");
        }
    }
}
