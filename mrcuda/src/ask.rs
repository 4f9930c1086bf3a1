//! Sends requests of commands to a running job, and reports refusals.

use crate::failure::Failure;
use crate::processes::{has_history, jobs_below, user};
use crate::table::{note, say_as_it_is};
use crate::value_error::ValueError;
use control::{AskError, Client, ErrorCode, Job, ReasonCode, directory, name, without_numbers};
use nix::unistd::Uid;
use serde::Serialize;
use std::time::Duration;

/// Timeout for the answer to a query. The job answers from a dedicated thread, so this is generous.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A process id in the command line.
pub(crate) fn pid(text: &str) -> Result<u32, ValueError> {
    match text.parse::<i32>() {
        Ok(pid @ 1..) => Ok(pid.unsigned_abs()),
        _ => Err(ValueError::Pid),
    }
}

/// Connects to a job.
pub(crate) fn connect(pid: u32, json: bool) -> Result<Client, Failure> {
    Client::connect(pid).map_err(|why| refused(pid, why, json))
}

/// A job that answers.
#[derive(Debug)]
pub(crate) struct Awake {
    pub(crate) pid: u32,
    pub(crate) client: Client,
    pub(crate) job: Job,
}

/// Connects to a job and checks that it answers, because a request without a timeout must not go to a process that is
/// stopped. If the process is not a job, but has started one, that one is meant.
pub(crate) fn connect_awake(pid: u32, json: bool) -> Result<Awake, Failure> {
    let (pid, mut client) = match Client::connect(pid) {
        Ok(client) => (pid, client),
        Err(AskError::NoJob) => match started_by(pid, json)? {
            Some(job) => (job, connect(job, json)?),
            None => return Err(refused(pid, AskError::NoJob, json)),
        },
        Err(why) => return Err(refused(pid, why, json)),
    };
    match client.list(Some(ANSWER_TIMEOUT)) {
        // A refusal of `list` is not specific to it: the actual request would be refused as well.
        Ok(job) => Ok(Awake { pid, client, job }),
        Err(why) => Err(refused(pid, why, json)),
    }
}

/// The only job that a process has started, which is said; a failure if there are several, or if it cannot be the one that is meant.
pub(crate) fn started_by(pid: u32, json: bool) -> Result<Option<u32>, Failure> {
    // Everything descends from the first process, whoever has started it.
    if pid == 1 {
        return Ok(None);
    }
    let jobs = jobs_below(pid);
    let called = |job: &u32| format!("{job} ({})", name::of_process(*job));
    match &jobs[..] {
        [] => Ok(None),
        [job] if directory::owner(*job) != directory::owner(pid) => {
            let reason = format!("it has started a job of user {}: name that one, {}", user(*job), called(job));
            Err(refused_here(pid, "no_job", ReasonCode::NoJob, &reason, json))
        }
        [job] => {
            note(&format!("process {pid} is not a job, but has started one: {}", called(job)));
            Ok(Some(*job))
        }
        several => {
            let names: Vec<String> = several.iter().map(called).collect();
            let reason = format!("it has started {} jobs, name one of them: {}", names.len(), names.join(", "));
            Err(refused_here(pid, "several_jobs", ReasonCode::SeveralJobs, &reason, json))
        }
    }
}

/// Why a process is not a job that this user can ask, as the end of a sentence about it; and what to do.
fn no_job(pid: u32) -> (String, String) {
    let me = Uid::effective();
    match directory::owner(pid) {
        None if has_history(pid) => (
            "there is no such process any more".to_owned(),
            format!(" (mrcuda moves {pid} lists the moves of a job that has ended)"),
        ),
        None => ("there is no such process".to_owned(), " (mrcuda ps lists the jobs)".to_owned()),
        Some(owner) if owner != me.as_raw() && !me.is_root() => {
            (format!("it belongs to user {}; you can move only your own jobs", user(pid)), String::new())
        }
        Some(_) => (AskError::NoJob.to_string(), " (mrcuda ps lists the jobs)".to_owned()),
    }
}

fn no_answer(pid: u32, why: &AskError) -> Failure {
    let (why, next) = match why {
        AskError::NoJob => no_job(pid),
        AskError::Refused(r) if r.error == ErrorCode::Busy => {
            (why.to_string(), format!(" (mrcuda cancel {pid}, or migrate --queue)"))
        }
        AskError::Refused(_) | AskError::Stopped(_) | AskError::Failed(_) => (why.to_string(), String::new()),
    };
    Failure::new(format!("process {pid}: {why}{next}"))
}

/// A request that was not carried out, as JSON (docs/scheduler.md).
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Refused<E> {
    /// Always false.
    ok: bool,
    /// Why, for programs: an error of the job, or `no_job`, `several_jobs` or `no_answer`.
    error: E,
    /// The same in more detail; null if the job's build has no codes.
    code: Option<ReasonCode>,
    /// The same for people.
    reason: String,
    /// The move that is the cause.
    id: Option<String>,
}

impl<E: Serialize> Refused<E> {
    fn print(&self) -> Failure {
        print_json(self).err().unwrap_or_else(|| Failure::silent(1))
    }
}

/// The command's failure when a request was not carried out: text, or the job's refusal as JSON.
pub(crate) fn refused(pid: u32, why: AskError, json: bool) -> Failure {
    if !json {
        return no_answer(pid, &why);
    }
    match &why {
        AskError::Refused(r) => {
            let (code, reason, id) = (r.code.clone(), without_numbers(&r.reason), r.id.clone());
            Refused { ok: false, error: r.error, code, reason, id }.print()
        }
        AskError::NoJob => refused_here(pid, "no_job", ReasonCode::NoJob, &no_job(pid).0, json),
        AskError::Stopped(_) | AskError::Failed(_) => {
            refused_here(pid, "no_answer", ReasonCode::NoAnswer, &without_numbers(&why.to_string()), json)
        }
    }
}

/// The failure of a request that did not reach a job, or was not answered.
pub(crate) fn refused_here(pid: u32, error: &str, code: ReasonCode, reason: &str, json: bool) -> Failure {
    if !json {
        return Failure::new(format!("process {pid}: {reason}"));
    }
    Refused { ok: false, error, code: Some(code), reason: reason.to_owned(), id: None }.print()
}

/// Prints JSON for programs.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    say_as_it_is(&serde_json::to_string(value).map_err(Failure::new)?);
    Ok(())
}
