//! `mrcuda migrate --server`: has a server ask a job to move.

use crate::ask::print_json;
use crate::failure::Failure;
use crate::gpus::{AskServerError, credentials};
use crate::progress::waiting;
use crate::table::{duration, one_line, say};
use rcuda_forwarder::{Endpoint, MoveAnswer, MoveOutcome, MoveRequest, MovedGpu, request_move};
use serde::Serialize;

/// How long a job has to move, unless the command line says otherwise, in milliseconds;
const USUAL_MS: u64 = 120_000;
/// and at most.
const LONGEST_MS: u64 = 3_600_000;

/// What has become of a request, or of the part of one GPU, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Outcome {
    Moved,
    Refused,
    Ended,
    Failed,
    NoAnswer,
    NoSuchJob,
    NotPermitted,
    Ambiguous,
    Busy,
    Invalid,
    /// The server cannot be reached, or refuses the client.
    Unreachable,
}

impl From<MoveOutcome> for Outcome {
    fn from(outcome: MoveOutcome) -> Outcome {
        match outcome {
            MoveOutcome::Moved => Outcome::Moved,
            MoveOutcome::Refused => Outcome::Refused,
            MoveOutcome::Ended => Outcome::Ended,
            MoveOutcome::Failed => Outcome::Failed,
            MoveOutcome::NoAnswer => Outcome::NoAnswer,
            MoveOutcome::NoSuchJob => Outcome::NoSuchJob,
            MoveOutcome::NotPermitted => Outcome::NotPermitted,
            MoveOutcome::Ambiguous => Outcome::Ambiguous,
            MoveOutcome::Busy => Outcome::Busy,
            MoveOutcome::Invalid => Outcome::Invalid,
        }
    }
}

/// A GPU of the job at the server, as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Gpu {
    worker: u32,
    gpu: Option<u32>,
    to: String,
    outcome: Outcome,
    reason: Option<String>,
}

impl From<MovedGpu> for Gpu {
    fn from(MovedGpu { worker, gpu, to, outcome, reason }: MovedGpu) -> Gpu {
        Gpu { worker, gpu, to, outcome: outcome.into(), reason }
    }
}

/// What has become of a request, as JSON (docs/servers.md).
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Requested {
    ok: bool,
    server: String,
    pid: u32,
    outcome: Outcome,
    reason: Option<String>,
    took_ms: Option<u64>,
    gpus: Vec<Gpu>,
}

impl Requested {
    fn new(at: &Endpoint, pid: u32, answer: Result<MoveAnswer, AskServerError>) -> Requested {
        let server = at.server();
        match answer {
            Ok(MoveAnswer { outcome, reason, gpus, took_ms }) => Requested {
                ok: outcome == MoveOutcome::Moved,
                server,
                pid,
                outcome: outcome.into(),
                reason,
                took_ms: Some(took_ms),
                gpus: gpus.into_iter().map(Gpu::from).collect(),
            },
            Err(why) => Requested {
                ok: false,
                server,
                pid,
                outcome: Outcome::Unreachable,
                reason: Some(why.to_string()),
                took_ms: None,
                gpus: Vec::new(),
            },
        }
    }

    /// A line for people.
    fn words(&self) -> String {
        let job = format!("job {} at {}", self.pid, self.server);
        let why = one_line(self.reason.as_deref().unwrap_or("no reason was given"));
        let to = || self.gpus.iter().map(|gpu| one_line(&gpu.to)).collect::<Vec<_>>().join(", ");
        match self.outcome {
            Outcome::Moved => format!("{job} has moved to {}, {}", to(), duration(self.took_ms.unwrap_or_default() as f64)),
            Outcome::Refused => format!("{job} stays there: {why}"),
            Outcome::NoSuchJob | Outcome::NotPermitted | Outcome::Ambiguous | Outcome::Invalid => {
                format!("{}: {why}", self.server)
            }
            Outcome::Unreachable => why,
            Outcome::Ended | Outcome::Failed | Outcome::NoAnswer | Outcome::Busy => format!("{job} has not moved: {why}"),
        }
    }
}

/// Has a server ask a job to move, and prints what has become of it; exit code 1 if the job has not moved.
pub(crate) fn move_by_server(at: &Endpoint, request: MoveRequest, json: bool) -> Result<(), Failure> {
    let pid = request.pid;
    let shown = waiting("the server asks the job to move");
    let asked = credentials(at).map_err(AskServerError::from).and_then(|by| Ok(request_move(at, by.as_ref(), &request)?));
    drop(shown);
    let requested = Requested::new(at, pid, asked);
    if json {
        print_json(&requested)?;
        return if requested.ok { Ok(()) } else { Err(Failure::silent(1)) };
    }
    if !requested.ok {
        return Err(Failure::new(requested.words()));
    }
    say(&requested.words());
    Ok(())
}

/// How long a job has to move.
pub(crate) fn limit_ms(wanted: Option<u64>) -> Result<u64, Failure> {
    match wanted.unwrap_or(USUAL_MS) {
        ms if ms <= LONGEST_MS => Ok(ms),
        _ => Err(Failure::with_code(2, "--deadline: a server waits for a job for one hour at most")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn requested(outcome: MoveOutcome, reason: Option<&str>) -> Requested {
        let reason = reason.map(str::to_owned);
        let gpu = MovedGpu { worker: 9, gpu: Some(1), to: "b:1/0".into(), outcome, reason: reason.clone() };
        Requested::new(&"a:7878".parse().unwrap(), 7, Ok(MoveAnswer { outcome, reason, gpus: vec![gpu], took_ms: 1500 }))
    }

    #[test]
    fn outcomes_are_told_in_one_line() {
        let words = |outcome, reason| requested(outcome, reason).words();
        assert_eq!(words(MoveOutcome::Moved, None), "job 7 at a:7878 has moved to b:1/0, 1.50 s");
        assert_eq!(words(MoveOutcome::Refused, Some("no\nGPU\x1b")), "job 7 at a:7878 stays there: no\\u000aGPU\\u001b");
        assert_eq!(words(MoveOutcome::NotPermitted, Some("job 7 is of another user")), "a:7878: job 7 is of another user");
        assert_eq!(words(MoveOutcome::NoAnswer, Some("late")), "job 7 at a:7878 has not moved: late");
    }

    #[test]
    fn the_json_has_the_documented_fields() {
        let page = include_str!("../../docs/servers.md");
        let refused = serde_json::to_value(requested(MoveOutcome::Refused, Some("no"))).unwrap();
        assert_eq!(
            (&refused["ok"], &refused["outcome"], &refused["gpus"][0]["worker"]),
            (&json!(false), &json!("refused"), &json!(9))
        );
        for value in [&refused, &refused["gpus"][0]] {
            for name in value.as_object().unwrap().keys() {
                assert!(page.contains(&format!("`{name}`")), "docs/servers.md does not name `{name}`");
            }
        }
        let words = [
            Outcome::Moved,
            Outcome::Refused,
            Outcome::Ended,
            Outcome::Failed,
            Outcome::NoAnswer,
            Outcome::NoSuchJob,
            Outcome::NotPermitted,
            Outcome::Ambiguous,
            Outcome::Busy,
            Outcome::Invalid,
            Outcome::Unreachable,
        ];
        for word in words {
            let word = serde_json::to_value(word).unwrap();
            assert!(page.contains(&format!("`{}`", word.as_str().unwrap())), "docs/servers.md does not name {word}");
        }
    }

    #[test]
    fn a_server_waits_for_an_hour_at_most() {
        assert_eq!((limit_ms(None).unwrap(), limit_ms(Some(5)).unwrap()), (USUAL_MS, 5));
        assert!(limit_ms(Some(LONGEST_MS)).is_ok() && limit_ms(Some(LONGEST_MS + 1)).is_err());
    }
}
