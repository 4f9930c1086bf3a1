//! `mrcuda moves`: lists the moves of a job, also of one that has ended, or of all jobs of this user.

use crate::ask::{ANSWER_TIMEOUT, pid, print_json, refused, started_by};
use crate::failure::Failure;
use crate::predict::{Predicted, describe_with_prediction, predict_move};
use crate::table::{Table, bytes, duration, note, say, since};
use crate::time::time;
use crate::timeline::{reason, target};
use crate::trace;
use control::history::{self, History, Past};
use control::{AskError, Client, ErrorCode, Move, MoveState, name};
use cuda_api::clock::unix_ms;
use std::path::PathBuf;

/// Arguments of `mrcuda moves`.
#[derive(Debug, clap::Args)]
pub(crate) struct MovesArgs {
    /// Process id of a job, also of one that has ended [default: the moves of all jobs of this user, as far as they have ended]
    #[arg(value_parser = pid)]
    pid: Option<u32>,
    /// Id of one move, to show with a timeline of its phases
    id: Option<String>,
    /// Show only moves of jobs whose name or program's path contains this text
    #[arg(long, value_name = "TEXT", conflicts_with = "id")]
    program: Option<String>,
    /// Show only moves that were requested within this time, for example 30m or 12h
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "id")]
    since: Option<u64>,
    /// Write the trace of the move to this file, if it was requested with one and the job still runs
    #[arg(long, value_name = "FILE", requires = "id")]
    trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A move, and the job that made it.
#[derive(Debug, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Known {
    pid: u32,
    program: String,
    name: String,
    #[serde(flatten)]
    it: Move,
}

/// As JSON.
#[derive(Debug, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Shown<'a> {
    #[serde(flatten)]
    known: &'a Known,
    predicted: Option<Predicted>,
}

impl<'a> Shown<'a> {
    fn of(known: &'a Known) -> Shown<'a> {
        Shown { known, predicted: predict_move(&known.it) }
    }
}

/// Prints past and current moves.
pub(crate) fn moves(args: &MovesArgs) -> Result<(), Failure> {
    let mut all = find(args)?;
    let now = unix_ms();
    all.retain(|known| {
        let recent = args.since.is_none_or(|since| now.saturating_sub(known.it.at_unix_ms) <= since);
        recent && args.program.as_ref().is_none_or(|text| known.program.contains(text) || known.name.contains(text))
    });
    // Later jobs may have had the same process id and moves of the same ids.
    let one = if args.id.is_some() { all.pop() } else { None };
    if let (Some(file), Some(known)) = (&args.trace, &one) {
        trace::File::open(file)?.write(known.it.trace.as_deref())?;
    }
    let one = one.map(|known| Known { it: Move { trace: None, ..known.it }, ..known });
    match (&one, &all[..]) {
        (Some(one), _) if args.json => print_json(&Shown::of(one))?,
        (None, all) if args.json => print_json(&all.iter().map(Shown::of).collect::<Vec<_>>())?,
        (Some(one), _) => say(&describe_with_prediction(&one.it)),
        (None, []) => say(if args.pid.is_some() { "no moves yet" } else { "no moves" }),
        (None, all) => say(&table(all, args.pid.is_none())),
    }
    Ok(())
}

/// The moves of the job, or those that have ended of all jobs.
fn find(args: &MovesArgs) -> Result<Vec<Known>, Failure> {
    match args.pid {
        Some(pid) => moves_of(pid, args),
        None => past(|_| true),
    }
}

fn moves_of(pid: u32, args: &MovesArgs) -> Result<Vec<Known>, Failure> {
    let ask = |mut job: Client| Ok((job.list(Some(ANSWER_TIMEOUT))?, job.report(args.id.as_deref(), Some(ANSWER_TIMEOUT))?));
    let why = match Client::connect(pid).and_then(ask) {
        Ok((job, moves)) => {
            let (name, program) = (name::of_job(&job.name, &job.program), job.program);
            return Ok(moves.into_iter().map(|it| Known { pid, program: program.clone(), name: name.clone(), it }).collect());
        }
        Err(why) => why,
    };
    // The job has ended, or does not keep that move any more.
    let wanted = |past: &Past| past.pid == pid && args.id.as_ref().is_none_or(|id| *id == past.it.id);
    let is_gone = match &why {
        AskError::NoJob => true,
        AskError::Refused(refusal) => refusal.error == ErrorCode::NoSuchMove,
        AskError::Stopped(_) | AskError::Failed(_) => false,
    };
    let found = if is_gone { past(wanted).unwrap_or_else(|failure| failure.warn(Vec::new())) } else { Vec::new() };
    match (&why, &found[..]) {
        (AskError::NoJob, []) => match started_by(pid, args.json)? {
            Some(job) => moves_of(job, args),
            None => Err(refused(pid, why, args.json)),
        },
        (_, []) => Err(refused(pid, why, args.json)),
        _ => Ok(found),
    }
}

/// Moves of the history.
fn past(wanted: impl Fn(&Past) -> bool) -> Result<Vec<Known>, Failure> {
    let directory = history::path().ok_or_else(|| Failure::new("no history: neither XDG_STATE_HOME nor HOME is set"))?;
    let History { moves, skipped } = history::read(&directory).map_err(Failure::new)?;
    if skipped > 0 {
        note(&format!("{skipped} lines of the history in {} are not understood", directory.display()));
    }
    let known =
        |past: Past| Known { pid: past.pid, name: name::of_job(&past.name, &past.program), program: past.program, it: past.it };
    Ok(moves.into_iter().filter(wanted).map(known).collect())
}

/// The report of a move of a job that has ended.
pub(crate) fn of_ended_job(pid: u32, id: &str) -> Option<Move> {
    past(|past| past.pid == pid && past.it.id == id).ok()?.pop().map(|known| known.it)
}

/// A line for each move of one job, within so many columns.
pub(crate) fn of_one_job(moves: &[Move], limit: Option<usize>) -> String {
    listed(moves.iter().map(|it| (None, it)), false).render_in(limit)
}

/// A line for each move; with `jobs` it names the job, and leaves out the bytes, for which 80 columns have no room.
fn table(moves: &[Known], jobs: bool) -> String {
    listed(moves.iter().map(|known| (jobs.then_some((known.pid, &*known.name)), &known.it)), jobs).render()
}

/// The moves, each with its job if `jobs` says so.
fn listed<'a>(moves: impl Iterator<Item = (Option<(u32, &'a str)>, &'a Move)>, jobs: bool) -> Table {
    let (job, bytes_moved): (&[_], &[_]) = if jobs { (&["PID", "NAME"], &[]) } else { (&[], &["BYTES"]) };
    let mut table = Table::new(&[job, &["ID", "AGO", "FROM", "TO"], bytes_moved, &["DOWNTIME", "TOTAL", "RESULT"]].concat());
    for (job, it) in moves {
        let mut cells: Vec<String> = job.into_iter().flat_map(|(pid, name)| [pid.to_string(), name.to_owned()]).collect();
        cells.extend([it.id.clone(), since(it.at_unix_ms), it.from.clone(), target(it)]);
        if !jobs {
            cells.push(bytes(it.bytes));
        }
        cells.extend([duration(it.downtime_ms), duration(it.total_ms), result(it)]);
        table.row(cells);
    }
    table
}

fn result(it: &Move) -> String {
    let why = || reason(it.reason.as_deref().unwrap_or("no reason was given"));
    let by = match &*it.by {
        "signal" => ", by signal",
        "server" => ", because its server was drained",
        "server-request" => ", requested of its server",
        "out-of-memory" => ", because memory ran out",
        "every" => ", a copy that is kept current",
        _ => "",
    };
    match it.state {
        MoveState::Queued => format!("queued{by}"),
        MoveState::Running => format!("in the phase {}{by}", it.phase.as_deref().unwrap_or("?")),
        MoveState::Stopping => format!("being abandoned{by}"),
        MoveState::Committed => format!("committed{by}"),
        MoveState::Done => format!("done{by}"),
        MoveState::Failed => format!("failed{by}: {}", why()),
        MoveState::Cancelled => why(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::GpuMove;

    #[test]
    fn a_line_for_each_move_with_its_result() {
        let done = Move {
            id: "m1".into(),
            state: MoveState::Done,
            ok: true,
            from: "a:1/0".into(),
            to: "local".into(),
            legs: vec![GpuMove { to: "local:0".into(), ..GpuMove::default() }],
            by: "signal".into(),
            bytes: 4096,
            downtime_ms: 3.5,
            total_ms: 40.0,
            ..Move::default()
        };
        let failed = Move { id: "x".into(), state: MoveState::Failed, reason: Some("it rains".into()), ..Move::default() };
        let moves = [done, failed].map(|it| Known { pid: 4711, program: "/usr/bin/python3".into(), name: "train.py".into(), it });
        let text = table(&moves, false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("ID") && lines[0].contains("DOWNTIME"), "{text}");
        for word in ["m1", "a:1/0", "local:0", "4.0 KiB", "3.50 ms", "40 ms", "done, by signal"] {
            assert!(lines[1].contains(word), "`{word}` is missing in {text}");
        }
        assert!(lines[2].ends_with("failed: it rains") && !text.contains("4711"), "{text}");
        let text = table(&moves, true);
        assert!(text.contains("PID") && text.contains("4711  train.py  "), "{text}");
    }
}
