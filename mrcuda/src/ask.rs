//! Sends requests of commands to a running job, and reports refusals.

use crate::failure::Failure;
use crate::table::say_as_it_is;
use control::{AskError, Client, ErrorCode, Job, ReasonCode};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

/// Timeout for the answer to a query. The job answers from a dedicated thread, so this is generous.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to a job.
pub(crate) fn connect(pid: u32, json: bool) -> Result<Client, Failure> {
    Client::connect(pid).map_err(|why| refused(pid, why, json))
}

/// Connects to a job and checks that it answers, because a request without a timeout must not go to a process that is
/// stopped.
pub(crate) fn connect_awake(pid: u32, json: bool) -> Result<(Client, Job), Failure> {
    let mut client = connect(pid, json)?;
    match client.list(Some(ANSWER_TIMEOUT)) {
        // A refusal of `list` is not specific to it: the actual request would be refused as well.
        Ok(job) => Ok((client, job)),
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

/// The command's failure when a request was not carried out: text, or the job's refusal as JSON.
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
    say_as_it_is(&said.to_string());
    Failure::silent(1)
}

/// Prints JSON for programs.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    say_as_it_is(&serde_json::to_string(value).map_err(Failure::new)?);
    Ok(())
}
