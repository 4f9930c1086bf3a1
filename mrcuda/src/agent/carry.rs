//! Carries out a decision.

use crate::predict::predict;
use agent::{Action, Decision, Settings};
use control::{Answer, AskError, Client, Migrate, Move, Park, Plan, Request, Verify};
use cuda_api::clock::unix_ms;
use std::time::{Duration, Instant};

/// The ids of moves that an agent has requested begin so.
pub(super) const ID: &str = "agent-";

/// How a move ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    pub(super) pid: u32,
    pub(super) name: String,
    /// The policy that wanted it, and what was to be done.
    pub(super) policy: &'static str,
    pub(super) action: &'static str,
    /// The place where the job was to arrive; none if it was to be parked.
    pub(super) to: Option<String>,
    pub(super) ok: bool,
    /// Why not.
    pub(super) reason: Option<String>,
    /// The move, if the job has made or tried one.
    pub(super) id: Option<String>,
    pub(super) total_ms: Option<f64>,
    pub(super) downtime_ms: Option<f64>,
    /// The downtime that the models had predicted.
    pub(super) predicted_ms: Option<f64>,
}

impl Outcome {
    /// Of a decision that was not carried out.
    pub(super) fn failed(decision: &Decision, reason: String) -> Outcome {
        let (pid, name, to) = (decision.pid, decision.name.clone(), target(decision).map(str::to_owned));
        let reason = Some(reason);
        let (policy, action) = (decision.policy, word(&decision.action));
        Outcome {
            pid,
            name,
            policy,
            action,
            to,
            ok: false,
            reason,
            id: None,
            total_ms: None,
            downtime_ms: None,
            predicted_ms: None,
        }
    }
}

/// Why a move was not made, or failed.
#[derive(Debug, thiserror::Error)]
enum NotMoved {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("{0}")]
    Blocked(String),
    #[error("the models predict a downtime of {predicted:.0} ms, and {limit} ms are allowed")]
    TooLong { predicted: f64, limit: u64 },
    #[error("the job has taken longer to plan the move than a move may take")]
    Late,
    #[error("the job gave another answer than the one to this request")]
    Odd,
}

/// The word for what is to be done.
pub(super) fn word(action: &Action) -> &'static str {
    match action {
        Action::Move(_) => "move",
        Action::Park => "park",
        Action::Resume(_) => "resume",
    }
}

/// The place to which a decision sends a job.
pub(super) fn target(decision: &Decision) -> Option<&str> {
    match &decision.action {
        Action::Move(to) | Action::Resume(to) => Some(to),
        Action::Park => None,
    }
}

/// How long after a move's own deadline the job may take to answer.
const MARGIN: Duration = Duration::from_secs(30);

/// Carries it out and waits for the end.
pub(super) fn out(decision: &Decision, settings: &Settings) -> Outcome {
    let mut predicted_ms = None;
    match carry(decision, settings, &mut predicted_ms) {
        Ok(it) => Outcome {
            ok: it.ok,
            reason: it.reason,
            id: Some(it.id),
            total_ms: Some(it.total_ms),
            downtime_ms: Some(it.downtime_ms),
            predicted_ms,
            ..Outcome::failed(decision, String::new())
        },
        Err(why) => Outcome { predicted_ms, ..Outcome::failed(decision, why.to_string()) },
    }
}

fn carry(decision: &Decision, settings: &Settings, predicted_ms: &mut Option<f64>) -> Result<Move, NotMoved> {
    let until = Instant::now() + settings.deadline;
    let mut client = Client::connect(decision.pid)?;
    let id = Some(format!("{ID}{}-{}", decision.policy, unix_ms()));
    let max_downtime_ms = Some(ms(settings.max_downtime)).filter(|ms| *ms > 0);
    let deadline_ms = |until: Instant| Some(ms(until.saturating_duration_since(Instant::now())));
    // The calls of a parked job wait anyway.
    let park = |to| Park {
        to,
        id: id.clone(),
        deadline_ms: deadline_ms(until),
        max_downtime_ms: None,
        patience_ms: None,
        verify: Verify::Auto,
        wait: true,
        queue: false,
    };
    let request = match &decision.action {
        Action::Park => Request::Suspend(park(None)),
        Action::Resume(to) => Request::Resume(park(Some(to.clone()))),
        Action::Move(to) => {
            let plan = plan(&mut client, to, settings.deadline)?;
            *predicted_ms = predict(&plan).downtime_ms();
            if let (Some(predicted), Some(limit)) = (*predicted_ms, max_downtime_ms)
                && predicted > limit as f64
            {
                return Err(NotMoved::TooLong { predicted, limit });
            }
            // The world may have changed since it was decided.
            if Instant::now() >= until {
                return Err(NotMoved::Late);
            }
            Request::Migrate(Migrate {
                to: to.clone(),
                gpu: None,
                id,
                deadline_ms: deadline_ms(until),
                max_downtime_ms,
                patience_ms: None,
                verify: Verify::Auto,
                wait: true,
                queue: false,
                trace: false,
                allow_different: false,
            })
        }
    };
    match client.ask(&request, Some(until.saturating_duration_since(Instant::now()) + MARGIN))? {
        Answer::Move(it) => Ok(it),
        _ => Err(NotMoved::Odd),
    }
}

/// The plan of a move that can be made.
fn plan(client: &mut Client, to: &str, limit: Duration) -> Result<Plan, NotMoved> {
    match client.ask(&Request::Plan { to: to.to_owned(), gpu: None, allow_different: false }, Some(limit))? {
        Answer::Plan(plan) if plan.ok => Ok(plan),
        Answer::Plan(plan) => {
            Err(NotMoved::Blocked(plan.reason.unwrap_or_else(|| "the job says that it cannot move".to_owned())))
        }
        _ => Err(NotMoved::Odd),
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
