//! How a command asks a running job, and what it makes of a refusal.

use crate::failure::Failure;
use crate::table::say;
use control::{AskError, Client, ErrorCode, ReasonCode};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

/// How long a job may take to answer a question: it answers from a thread of its own, so this is long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Connects to a job.
pub(crate) fn connect(pid: u32, json: bool) -> Result<Client, Failure> {
    Client::connect(pid).map_err(|why| refused(pid, why, json))
}

/// Connects to a job that answers: what takes as long as it takes is not asked of a process that is stopped.
pub(crate) fn connect_awake(pid: u32, json: bool) -> Result<Client, Failure> {
    let mut client = connect(pid, json)?;
    match client.list(Some(PATIENCE)) {
        // What it says against a list it will say against everything.
        Ok(_) => Ok(client),
        Err(why) => Err(refused(pid, why, json)),
    }
}

fn no_answer(pid: u32, why: &AskError) -> Failure {
    let next = match why {
        AskError::NoJob => " (mrcuda ps lists the jobs)".to_owned(),
        AskError::Refused(r) if r.error == ErrorCode::Busy => format!(" (mrcuda cancel {pid}, or migrate --queue)"),
        AskError::Refused(_) | AskError::Failed(_) => String::new(),
    };
    Failure::new(format!("process {pid}: {why}{next}"))
}

/// What the command says when there was no answer: in words, or as JSON what the job has said, or why it has said nothing.
pub(crate) fn refused(pid: u32, why: AskError, json: bool) -> Failure {
    if !json {
        return no_answer(pid, &why);
    }
    let own = |error: &str, code: ReasonCode| json!({ "ok": false, "error": error, "code": code, "reason": why.to_string(), "id": null });
    let said = match &why {
        AskError::Refused(r) => json!({ "ok": false, "error": r.error, "code": r.code, "reason": r.reason, "id": r.id }),
        AskError::NoJob => own("no_job", ReasonCode::NoJob),
        AskError::Failed(_) => own("no_answer", ReasonCode::NoAnswer),
    };
    say(&said.to_string());
    Failure::silent(1)
}

/// Prints what a program is to read.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    say(&serde_json::to_string(value).map_err(Failure::new)?);
    Ok(())
}
