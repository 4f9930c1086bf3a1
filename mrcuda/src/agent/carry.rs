//! Carries out a decision.

use crate::ask::ANSWER_TIMEOUT;
use crate::predict::predict;
use agent::{Action, Decision, Settings};
use control::{AskError, Client, Migrate, Move, Park, Verify};
use std::time::{SystemTime, UNIX_EPOCH};

/// The ids of moves that an agent has requested begin so.
pub(super) const ID: &str = "agent-";

/// How a move ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    pub(super) pid: u32,
    pub(super) name: String,
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

/// Why a move was not made, or failed.
#[derive(Debug, thiserror::Error)]
enum NotMoved {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("{0}")]
    Blocked(String),
    #[error("the models predict a downtime of {predicted:.0} ms, and {limit} ms are allowed")]
    TooLong { predicted: f64, limit: u64 },
}

/// Carries it out and waits for the end.
pub(super) fn out(decision: &Decision, settings: &Settings) -> Outcome {
    let mut predicted_ms = None;
    let made = carry(decision, settings, &mut predicted_ms);
    let (pid, name) = (decision.pid, decision.name.clone());
    match made {
        Ok(it) => Outcome {
            pid,
            name,
            ok: it.ok,
            reason: it.reason,
            id: Some(it.id),
            total_ms: Some(it.total_ms),
            downtime_ms: Some(it.downtime_ms),
            predicted_ms,
        },
        Err(why) => {
            let reason = Some(why.to_string());
            Outcome { pid, name, ok: false, reason, id: None, total_ms: None, downtime_ms: None, predicted_ms }
        }
    }
}

fn carry(decision: &Decision, settings: &Settings, predicted_ms: &mut Option<f64>) -> Result<Move, NotMoved> {
    let mut client = Client::connect(decision.pid)?;
    // A request without a time limit must not go to a process that does not answer.
    client.list(Some(ANSWER_TIMEOUT))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let id = Some(format!("{ID}{}-{now}", decision.policy));
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let deadline_ms = Some(ms(settings.deadline));
    let max_downtime_ms = Some(ms(settings.max_downtime)).filter(|ms| *ms > 0);
    // The calls of a parked job wait anyway.
    let park = |to| Park {
        to,
        id: id.clone(),
        deadline_ms,
        max_downtime_ms: None,
        patience_ms: None,
        verify: Verify::Auto,
        wait: true,
        queue: false,
    };
    match &decision.action {
        Action::Park => Ok(client.suspend(park(None))?),
        Action::Resume(to) => Ok(client.resume(park(Some(to.clone())))?),
        Action::Move(to) => {
            let plan = client.plan(to, None, false)?;
            if !plan.ok {
                return Err(NotMoved::Blocked(plan.reason.unwrap_or_else(|| "the job says that it cannot move".to_owned())));
            }
            *predicted_ms = predict(&plan).downtime_ms();
            if let (Some(predicted), Some(limit)) = (*predicted_ms, max_downtime_ms)
                && predicted > limit as f64
            {
                return Err(NotMoved::TooLong { predicted, limit });
            }
            Ok(client.migrate(Migrate {
                to: to.clone(),
                gpu: None,
                id,
                deadline_ms,
                max_downtime_ms,
                patience_ms: None,
                verify: Verify::Auto,
                wait: true,
                queue: false,
                trace: false,
                allow_different: false,
            })?)
        }
    }
}
