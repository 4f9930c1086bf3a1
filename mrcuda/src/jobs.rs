//! `mrcuda ps` and `mrcuda moves`: list jobs and their moves.

use crate::ask::{PATIENCE, connect, print_json, refused};
use crate::failure::Failure;
use crate::table::{Table, bytes, duration, printable, say};
use crate::timeline::describe;
use control::{AskError, Client, Device, DeviceState, Job, Move, MoveState, directory};
use std::time::{SystemTime, UNIX_EPOCH};

/// Arguments of `mrcuda ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `mrcuda moves`.
#[derive(Debug, clap::Args)]
pub(crate) struct MovesArgs {
    /// Process id of the job
    pid: u32,
    /// Id of one move, to show with a timeline of its phases
    id: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists the jobs and removes stale sockets of jobs that have ended.
pub(crate) fn ps(args: &PsArgs) -> Result<(), Failure> {
    let (mut jobs, mut silent) = (Vec::new(), false);
    for pid in directory::pids().map_err(Failure::new)? {
        match Client::connect(pid).and_then(|mut c| c.list(Some(PATIENCE))) {
            Ok(job) => jobs.push(job),
            Err(AskError::NoJob) => directory::remove_stale(pid),
            Err(why) => {
                silent = true;
                eprintln!("mrcuda: job {pid}: {}", printable(&why.to_string()));
            }
        }
    }
    if args.json {
        return print_json(&jobs);
    }
    if jobs.is_empty() {
        say(if silent { "no other jobs" } else { "no jobs" });
        return Ok(());
    }
    let mut table = Table::new(&["PID", "PROGRAM", "GPU", "PLACE", "BY", "SINCE", "STATE", "NAME", "MEMORY", "OBJECTS", "MOVES"]);
    for job in &jobs {
        for device in &job.devices {
            table.row(vec![
                job.pid.to_string(),
                job.program.clone(),
                device.device.to_string(),
                device.place.clone(),
                carried(device),
                ago(device.since_unix_ms),
                state(job, device),
                device.name.clone(),
                bytes(device.used_bytes),
                device.live.values().sum::<u64>().to_string(),
                device.moves.to_string(),
            ]);
        }
    }
    say(&table.render());
    Ok(())
}

/// How calls travel, and the bytes of large copies if they travel otherwise than one expects.
fn carried(device: &Device) -> String {
    let Device { transport, large_copies, .. } = device;
    let is_usual = large_copies.is_empty() || large_copies == transport || transport == "shm";
    if is_usual { transport.clone() } else { format!("{transport}, large copies {large_copies}") }
}

fn state(job: &Job, device: &Device) -> String {
    match device.state {
        DeviceState::Idle => "idle".to_owned(),
        DeviceState::Parked => "parked".to_owned(),
        DeviceState::Moving => format!("moving ({})", job.moving.as_deref().unwrap_or("?")),
        DeviceState::Failed => format!("failed (error {})", device.error),
    }
}

/// Prints the past and current moves of a job.
pub(crate) fn moves(args: &MovesArgs) -> Result<(), Failure> {
    let answer = connect(args.pid, args.json)?.report(args.id.as_deref(), Some(PATIENCE));
    let moves = match answer {
        Ok(moves) => moves,
        Err(why) => return Err(refused(args.pid, why, args.json)),
    };
    if args.json {
        return match (&args.id, &moves[..]) {
            (Some(_), [one]) => print_json(one),
            _ => print_json(&moves),
        };
    }
    match (&args.id, &moves[..]) {
        (Some(_), [one]) => say(&describe(one)),
        (_, []) => say("no moves yet"),
        _ => say(&table(&moves)),
    }
    Ok(())
}

fn table(moves: &[Move]) -> String {
    let mut table = Table::new(&["ID", "WHEN", "FROM", "TO", "BYTES", "DOWNTIME", "TOTAL", "LONGEST PHASES", "RESULT"]);
    for it in moves {
        table.row(vec![
            it.id.clone(),
            ago(it.at_unix_ms),
            it.from.clone(),
            it.to.clone(),
            bytes(it.bytes),
            duration(it.downtime_ms),
            duration(it.total_ms),
            longest(it),
            result(it),
        ]);
    }
    table.render()
}

/// The two phases that took longest.
fn longest(it: &Move) -> String {
    let mut phases: Vec<(&String, &f64)> = it.phases.iter().collect();
    phases.sort_by(|a, b| b.1.total_cmp(a.1));
    let words: Vec<String> = phases.iter().take(2).map(|(name, ms)| format!("{name} {}", duration(**ms))).collect();
    words.join(", ")
}

fn result(it: &Move) -> String {
    let why = || it.reason.as_deref().unwrap_or("no reason was given");
    let by = if it.by == "signal" { ", by signal" } else { "" };
    match it.state {
        MoveState::Queued => format!("queued{by}"),
        MoveState::Running => format!("in the phase {}{by}", it.phase.as_deref().unwrap_or("?")),
        MoveState::Stopping => format!("being abandoned{by}"),
        MoveState::Committed => format!("committed{by}"),
        MoveState::Done => format!("done{by}"),
        MoveState::Failed => format!("failed{by}: {}", why()),
        MoveState::Cancelled => why().to_owned(),
    }
}

/// Formats the time since a time of day.
fn ago(unix_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
    let s = now.saturating_sub(unix_ms) / 1000;
    match s {
        0..120 => format!("{s} s ago"),
        120..7200 => format!("{} min ago", s / 60),
        7200..172_800 => format!("{} h ago", s / 3600),
        _ => format!("{} days ago", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_line_for_each_move_with_its_result() {
        let phases = BTreeMap::from([("delta".to_owned(), 2.0), ("plan".to_owned(), 7.5), ("prepare".to_owned(), 30.0)]);
        let done = Move {
            id: "m1".into(),
            state: MoveState::Done,
            ok: true,
            from: "a:1/0".into(),
            to: "local".into(),
            by: "signal".into(),
            bytes: 4096,
            downtime_ms: 3.5,
            total_ms: 40.0,
            phases,
            ..Move::default()
        };
        let failed = Move { id: "x".into(), state: MoveState::Failed, reason: Some("it rains".into()), ..Move::default() };
        let text = table(&[done, failed]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("ID") && lines[0].contains("DOWNTIME"), "{text}");
        for word in ["m1", "a:1/0", "local", "4.0 KiB", "3.50 ms", "40 ms", "prepare 30 ms, plan 7.50 ms", "done, by signal"] {
            assert!(lines[1].contains(word), "`{word}` is missing in {text}");
        }
        assert!(lines[2].ends_with("failed: it rains"), "{text}");
    }
}
