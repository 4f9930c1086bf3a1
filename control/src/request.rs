//! Requests to a job.

use crate::answer::Refusal;
use crate::name::is_name;
use crate::{LONGEST_ID, ReasonCode, VERSION};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request. On the wire it is an object with `"v"`, `"op"` (the variant's name in lower case) and the variant's
/// fields. Unknown fields are refused, because an option that is silently ignored could be a deadline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Requests the state of the job and the places of its GPUs; answered with a [`crate::Job`].
    List {},
    /// Requests a prediction of a move without making it; answered with a [`crate::Plan`].
    Plan {
        /// The target place.
        to: String,
        /// The GPU in the program's numbering; none: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu: Option<u32>,
        /// See [`Migrate::allow_different`].
        #[serde(default)]
        allow_different: bool,
    },
    /// Requests a move; answered with its [`crate::Move`].
    Migrate(Migrate),
    /// Requests that the job be parked: its memory moves to a place that executes nothing, and its calls wait. Answered with the
    /// [`crate::Move`].
    Suspend(Park),
    /// Requests that a copy of the job be kept current while it runs, so that a later suspend to the same place carries only what has
    /// changed since. Answered with the [`crate::Move`] of its first round, which commits nothing; with an interval of 0 no copy is kept
    /// any more, and the answer is the [`crate::Job`].
    KeepCopy {
        /// The place; none: `memory`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// How many milliseconds after the end of a round the next one begins; 0: no more rounds.
        every_ms: u64,
        /// Whether the answer is sent at the end of the first round, or at once.
        #[serde(default = "yes")]
        wait: bool,
    },
    /// Requests that a parked job move to GPUs and go on; answered with the [`crate::Move`].
    Resume(Park),
    /// Cancels a move that has not been committed; answered with its [`crate::Move`] when the move has ended.
    Cancel {
        /// The move's id; none: the running move.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
    /// Requests reports of moves; answered with [`crate::Move`]s.
    Report {
        /// The move's id; none: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Whether the answer is sent at the end of the move with this id.
        #[serde(default)]
        wait: bool,
    },
    /// From now on this connection carries [`crate::Event`]s, one per line, and accepts no more requests.
    Subscribe {},
}

/// How a move proves that the target holds the bytes of the source (docs/page-hash.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// By bytes between places of one GPU, by hashes otherwise.
    #[default]
    Auto,
    /// By 256-bit keyed hashes.
    Hash,
    /// By comparing all bytes, which between machines sends them a second time.
    Bytes,
}

/// The parameters of a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Migrate {
    /// The target place.
    pub to: String,
    /// The GPU in the program's numbering; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The requester's id for this move: [`LONGEST_ID`] bytes of letters, digits, `.`, `_`, `-`; none: the job chooses
    /// one. An id that was used before is refused, so a request can be repeated without the risk of a second move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^[A-Za-z0-9._-]{1,64}$")))]
    pub id: Option<String>,
    /// The move is abandoned if it has not been committed this many milliseconds after the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The move is abandoned before its commit if the job's calls have been blocked for this many milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<u64>,
    /// For how many milliseconds the job goes on trying if its GPU does not become idle: it runs meanwhile, and the copy is kept
    /// current. None: for some seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
    /// How the copy is proved to be identical.
    #[serde(default)]
    pub verify: Verify,
    /// Whether the answer is sent at the end of the move, or at once.
    #[serde(default = "yes")]
    pub wait: bool,
    /// Whether to queue behind a running move instead of being refused.
    #[serde(default)]
    pub queue: bool,
    /// Whether the report is to have a [`crate::Trace`].
    #[serde(default)]
    pub trace: bool,
    /// Whether the target's driver and GPU may differ from those with which the job started, where everything that the job relies on holds
    /// nevertheless.
    #[serde(default)]
    pub allow_different: bool,
}

fn yes() -> bool {
    true
}

/// The parameters of a move that parks a job, or of one that lets it go on. All its GPUs move. The fields are those of [`Migrate`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Park {
    /// The place; none: `memory` to park, and where the job came from to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// See [`Migrate::id`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^[A-Za-z0-9._-]{1,64}$")))]
    pub id: Option<String>,
    /// See [`Migrate::deadline_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// See [`Migrate::max_downtime_ms`]; the calls of a parked job count as blocked since the beginning of the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<u64>,
    /// See [`Migrate::patience_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
    /// See [`Migrate::verify`].
    #[serde(default)]
    pub verify: Verify,
    /// See [`Migrate::wait`].
    #[serde(default = "yes")]
    pub wait: bool,
    /// See [`Migrate::queue`].
    #[serde(default)]
    pub queue: bool,
}

impl Park {
    /// To this place or the default one, without limits; waits.
    pub fn to(place: Option<&str>) -> Park {
        Park {
            to: place.map(str::to_owned),
            id: None,
            deadline_ms: None,
            max_downtime_ms: None,
            patience_ms: None,
            verify: Verify::default(),
            wait: true,
            queue: false,
        }
    }

    /// The move to the place that is named, or to this one.
    pub fn or_to(self, place: &str) -> Migrate {
        let Park { to, id, deadline_ms, max_downtime_ms, patience_ms, verify, wait, queue } = self;
        let to = to.unwrap_or_else(|| place.to_owned());
        Migrate { gpu: None, id, deadline_ms, max_downtime_ms, patience_ms, verify, wait, queue, ..Migrate::to(&to) }
    }
}

impl Migrate {
    /// Moves all GPUs to a place, without limits, and waits.
    pub fn to(place: &str) -> Migrate {
        Migrate {
            to: place.to_owned(),
            gpu: None,
            id: None,
            deadline_ms: None,
            max_downtime_ms: None,
            patience_ms: None,
            verify: Verify::default(),
            wait: true,
            queue: false,
            trace: false,
            allow_different: false,
        }
    }
}

/// Checks the id that a client has chosen.
fn check_id(id: Option<&str>) -> Result<(), Refusal> {
    match id {
        Some(id) if !is_name(id) => Err(Refusal::new(
            ReasonCode::BadRequest,
            format!("an id has 1 to {LONGEST_ID} letters, digits, dots, dashes or underscores"),
        )),
        _ => Ok(()),
    }
}

impl Request {
    /// Parses a line. The error text is meant for the author of the request.
    pub fn read(line: &[u8]) -> Result<Request, Refusal> {
        let bad = |why: String| Refusal::new(ReasonCode::BadRequest, why);
        let mut value: Value = serde_json::from_slice(line).map_err(|e| bad(format!("the request is not JSON: {e}")))?;
        let fields = value.as_object_mut().ok_or_else(|| bad("the request is not a JSON object".to_owned()))?;
        if fields.remove("v").and_then(|v| v.as_u64()) != Some(VERSION) {
            let why = format!("this job speaks version {VERSION} of the protocol: send \"v\": {VERSION}");
            return Err(Refusal::new(ReasonCode::Version, why));
        }
        match fields.get("op").and_then(Value::as_str) {
            Some("list" | "plan" | "migrate" | "suspend" | "keep_copy" | "resume" | "cancel" | "report" | "subscribe") => {}
            _ => {
                let why = "\"op\" is list, plan, migrate, suspend, keep_copy, resume, cancel, report or subscribe";
                return Err(Refusal::new(ReasonCode::UnknownOp, why.to_owned()));
            }
        }
        let request: Request = serde_json::from_value(value).map_err(|e| bad(format!("the request is not understood: {e}")))?;
        match &request {
            Request::Migrate(Migrate { id, .. }) | Request::Suspend(Park { id, .. }) | Request::Resume(Park { id, .. }) => {
                check_id(id.as_deref())?;
            }
            Request::Report { id: None, wait: true } => return Err(bad("who waits for a move names it: \"id\"".to_owned())),
            _ => {}
        }
        Ok(request)
    }

    /// The encoded line, including its newline.
    pub fn line(&self) -> String {
        crate::answer::line(self, None)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ErrorCode;

    fn code(line: &str) -> ErrorCode {
        Request::read(line.as_bytes()).expect_err(line).error
    }

    /// Every request, and a move with every field set.
    pub(crate) fn every_request() -> [Request; 10] {
        let full = Migrate {
            gpu: Some(3),
            id: Some("slurm-12.3_a".into()),
            deadline_ms: Some(1),
            max_downtime_ms: Some(2),
            patience_ms: Some(3),
            verify: Verify::Bytes,
            wait: false,
            queue: true,
            trace: true,
            allow_different: true,
            ..Migrate::to("a:1/0")
        };
        [
            Request::List {},
            Request::Plan { to: "local".into(), gpu: Some(0), allow_different: true },
            Request::Migrate(Migrate::to("local")),
            Request::Migrate(full),
            Request::Suspend(Park { id: Some("p".into()), deadline_ms: Some(1), wait: false, ..Park::to(Some("file:/d")) }),
            Request::KeepCopy { to: Some("file:/d".into()), every_ms: 60_000, wait: false },
            Request::Resume(Park::to(None)),
            Request::Cancel { id: None },
            Request::Report { id: Some("m1".into()), wait: true },
            Request::Subscribe {},
        ]
    }

    #[test]
    fn what_is_written_is_read_again() {
        for request in every_request() {
            let line = request.line();
            assert!(line.ends_with('\n') && line.contains("\"v\":2"), "{line}");
            assert_eq!(Request::read(line.as_bytes()), Ok(request));
        }
    }

    #[test]
    fn defaults_are_to_wait_for_all_gpus_without_limits() {
        let read = Request::read(br#"{"v":2,"op":"migrate","to":"local"}"#);
        assert_eq!(read, Ok(Request::Migrate(Migrate::to("local"))));
        let null = Request::read(br#"{"v":2,"op":"migrate","to":"local","gpu":null,"id":null,"deadline_ms":null}"#);
        assert_eq!(null, read);
        assert_eq!(Request::read(br#"{"v":2,"op":"suspend"}"#), Ok(Request::Suspend(Park::to(None))));
        assert_eq!(Park::to(None).or_to("memory"), Migrate::to("memory"));
        assert_eq!(Park::to(Some("file:/d")).or_to("memory"), Migrate::to("file:/d"));
    }

    #[test]
    fn every_mistake_has_its_code() {
        assert_eq!(code("hello"), ErrorCode::BadRequest);
        assert_eq!(code(""), ErrorCode::BadRequest);
        assert_eq!(code("[]"), ErrorCode::BadRequest);
        assert_eq!(code("{\"v\":2,\"op\":\"list\"} {}"), ErrorCode::BadRequest);
        assert_eq!(code(&"[".repeat(10_000)), ErrorCode::BadRequest);
        for v in ["{}", r#"{"v":1,"op":"list"}"#, r#"{"v":3,"op":"list"}"#, r#"{"v":"2","op":"list"}"#, r#"{"op":"list"}"#] {
            assert_eq!(code(v), ErrorCode::Version, "{v}");
        }
        for op in [r#"{"v":2}"#, r#"{"v":2,"op":"status"}"#, r#"{"v":2,"op":7}"#, r#"{"v":2,"op":"List"}"#] {
            assert_eq!(code(op), ErrorCode::UnknownOp, "{op}");
        }
        for field in [
            r#"{"v":2,"op":"list","x":1}"#,
            r#"{"v":2,"op":"migrate"}"#,
            r#"{"v":2,"op":"migrate","to":7}"#,
            r#"{"v":2,"op":"migrate","to":"local","gpu":-1}"#,
            r#"{"v":2,"op":"migrate","to":"local","gpu":"0"}"#,
            r#"{"v":2,"op":"migrate","to":"local","deadline":5}"#,
            r#"{"v":2,"op":"migrate","to":"local","deadline_ms":-5}"#,
            r#"{"v":2,"op":"migrate","to":"local","wait":"no"}"#,
            r#"{"v":2,"op":"migrate","to":"local","id":""}"#,
            r#"{"v":2,"op":"migrate","to":"local","id":"a b"}"#,
            r#"{"v":2,"op":"cancel","id":1}"#,
            r#"{"v":2,"op":"suspend","gpu":0}"#,
            r#"{"v":2,"op":"resume","to":"local","id":"a b"}"#,
            r#"{"v":2,"op":"report","wait":true}"#,
        ] {
            assert_eq!(code(field), ErrorCode::BadRequest, "{field}");
        }
        let long = format!(r#"{{"v":2,"op":"migrate","to":"local","id":"{}"}}"#, "x".repeat(LONGEST_ID + 1));
        assert_eq!(code(&long), ErrorCode::BadRequest);
        let why = Request::read(br#"{"v":2,"op":"migrate","to":"local","deadline":5}"#).unwrap_err().reason;
        assert!(why.contains("deadline"), "{why}");
    }
}
