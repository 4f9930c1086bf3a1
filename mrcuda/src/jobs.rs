//! `mrcuda ps`, `mrcuda migrate`, `mrcuda moves`: commands that ask running jobs.

use crate::control::{self, ControlError, VERSION};
use crate::failure::Failure;
use crate::places;
use crate::table::{Table, bytes, duration, say};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a job may take to answer a question: it answers from a thread of its own, so this is long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `mrcuda ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `mrcuda migrate`.
#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    /// Process id of the job
    pid: u32,
    /// Where to: local[:GPU], helper[:GPU] or HOST:PORT[/GPU]
    #[arg(long, value_name = "PLACE", value_parser = places::place)]
    to: String,
    /// Which of the job's GPUs: its number as the program sees it, or all
    #[arg(long, value_name = "N|all", default_value = "all", value_parser = gpu)]
    gpu: Gpu,
    /// Only say whether it could move and what it would take
    #[arg(long)]
    dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `mrcuda moves`.
#[derive(Debug, clap::Args)]
pub(crate) struct MovesArgs {
    /// Process id of the job
    pid: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which GPUs of a job; none: all of them.
#[derive(Debug, Clone, Copy)]
struct Gpu(Option<u32>);

fn gpu(text: &str) -> Result<Gpu, String> {
    match (text, text.parse::<u32>()) {
        ("all", _) => Ok(Gpu(None)),
        (_, Ok(n)) if n < 32 => Ok(Gpu(Some(n))),
        _ => Err("it must be a GPU's number (0 to 31) or `all`".to_owned()),
    }
}

/// Lists the jobs; sockets that dead jobs have left are removed.
pub(crate) fn ps(args: &PsArgs) -> Result<(), Failure> {
    let mut jobs = Vec::new();
    for pid in control::pids().map_err(Failure::new)? {
        match control::ask(pid, &json!({"v": VERSION, "op": "status"}), Some(PATIENCE)) {
            Ok(status) if ok(&status) => jobs.push(status),
            Ok(answer) => eprintln!("mrcuda: job {pid}: {}", text(&answer, "reason")),
            Err(ControlError::NoJob) => control::remove_stale(pid),
            Err(why) => eprintln!("mrcuda: job {pid}: {why}"),
        }
    }
    if args.json {
        say(&Value::Array(jobs).to_string());
        return Ok(());
    }
    if jobs.is_empty() {
        say("no jobs");
        return Ok(());
    }
    let mut table = Table::new(&["PID", "PROGRAM", "GPU", "PLACE", "NAME", "MEMORY", "OBJECTS", "MOVES"]);
    for job in &jobs {
        for device in list(job, "devices") {
            let live = device.get("live").and_then(Value::as_object);
            let objects: u64 = live.map_or(0, |kinds| kinds.values().filter_map(Value::as_u64).sum());
            table.row(vec![
                whole(job, "pid").to_string(),
                text(job, "program").to_owned(),
                whole(device, "device").to_string(),
                text(device, "place").to_owned(),
                text(device, "name").to_owned(),
                bytes(whole(device, "used_bytes")),
                objects.to_string(),
                whole(device, "moves").to_string(),
            ]);
        }
    }
    say(&table.render());
    Ok(())
}

/// Moves a job and prints the report of the move; a move that was refused or failed is exit code 1.
pub(crate) fn migrate(args: &MigrateArgs) -> Result<(), Failure> {
    let request = json!({"v": VERSION, "op": "migrate", "to": args.to, "gpu": args.gpu.0, "dry_run": args.dry_run});
    let report = control::ask(args.pid, &request, None).map_err(|why| no_answer(args.pid, &why))?;
    if args.json {
        say(&public(&report).to_string());
    } else {
        match list(&report, "moves") {
            [] => say(&describe(&report, args.dry_run)),
            several => several.iter().for_each(|one| say(&describe(one, args.dry_run))),
        }
    }
    if ok(&report) { Ok(()) } else { Err(Failure::silent(1)) }
}

/// Prints the moves that a job has made.
pub(crate) fn moves(args: &MovesArgs) -> Result<(), Failure> {
    let answer =
        control::ask(args.pid, &json!({"v": VERSION, "op": "moves"}), Some(PATIENCE)).map_err(|why| no_answer(args.pid, &why))?;
    if !ok(&answer) {
        return Err(no_answer(args.pid, &ControlError::Failed(text(&answer, "reason").to_owned())));
    }
    let moves = list(&answer, "moves");
    if args.json {
        say(&json!(moves.iter().map(public).collect::<Vec<_>>()).to_string());
    } else if moves.is_empty() {
        say("no moves yet");
    } else {
        for (number, report) in moves.iter().enumerate() {
            say(&format!("{}. {}", number + 1, describe(report, false)));
        }
    }
    Ok(())
}

fn no_answer(pid: u32, why: &ControlError) -> Failure {
    Failure::new(format!("process {pid}: {why}"))
}

/// A report without what belongs to the protocol.
fn public(report: &Value) -> Value {
    let mut report = report.clone();
    if let Some(fields) = report.as_object_mut() {
        fields.remove("v");
    }
    report
}

/// A report as a few lines: what happened, and a timeline of its phases.
fn describe(report: &Value, dry_run: bool) -> String {
    let from = report.get("from").and_then(Value::as_str).map_or_else(String::new, |from| format!("{from} "));
    let way = format!("{from}-> {}", text(report, "to"));
    if !ok(report) {
        let verb = if dry_run { "would not move" } else { "did not move" };
        let why = report.get("reason").and_then(Value::as_str).unwrap_or("no reason was given");
        return format!("{way}: {verb}: {why}\n");
    }
    let records = whole(report, "records");
    if dry_run {
        return format!("{way}: would move {}, {records} records\n", bytes(whole(report, "live_bytes")));
    }
    let mut out = format!(
        "{way}: moved {}, {records} records in {}; the job stood still for {}, the GPU for {}\n",
        bytes(whole(report, "bytes")),
        duration(number(report, "total_ms")),
        duration(number(report, "downtime_ms")),
        duration(number(report, "gpu_idle_ms")),
    );
    out.push_str(&timeline(report));
    out
}

/// The phases of a move in the order in which they happen. The program's calls wait from quiesce to commit.
const PHASES: [(&str, bool); 10] = [
    ("plan", false),
    ("prepare", false),
    ("replay", false),
    ("connect", false),
    ("precopy", false),
    ("quiesce", true),
    ("delta", true),
    ("verify", true),
    ("commit", true),
    ("release", false),
];

/// One bar for each phase, one after the other from left to right; `#` where the job stands still.
fn timeline(report: &Value) -> String {
    const WIDTH: f64 = 48.0;
    let Some(phases) = report.get("phases").and_then(Value::as_object) else { return String::new() };
    let rank = |name: &str| PHASES.iter().position(|(p, _)| *p == name).unwrap_or(PHASES.len());
    let mut phases: Vec<(&str, f64)> =
        phases.iter().map(|(name, ms)| (name.as_str(), ms.as_f64().unwrap_or(0.0).max(0.0))).collect();
    phases.sort_by_key(|(name, _)| rank(name));
    let total: f64 = phases.iter().map(|(_, ms)| ms).sum();
    if total <= 0.0 {
        return String::new();
    }
    let mut out = String::new();
    let mut start = 0.0;
    for (name, ms) in phases {
        let from = ((start / total * WIDTH) as usize).min(WIDTH as usize - 1);
        start += ms;
        let to = ((start / total * WIDTH).ceil() as usize).clamp(from + 1, WIDTH as usize);
        let still = PHASES.iter().any(|(p, still)| *p == name && *still);
        let bar = (if still { "#" } else { "-" }).repeat(to - from);
        out.push_str(&format!("   {name:<9}{:>9}  {}{bar}\n", duration(ms), " ".repeat(from)));
    }
    out
}

fn ok(v: &Value) -> bool {
    v.get("ok").and_then(Value::as_bool).unwrap_or(false)
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v.get(key).and_then(Value::as_str).unwrap_or("?")
}

fn whole(v: &Value, key: &str) -> u64 {
    v.get(key).and_then(Value::as_u64).unwrap_or(0)
}

fn number(v: &Value, key: &str) -> f64 {
    v.get(key).and_then(Value::as_f64).unwrap_or(0.0)
}

fn list<'a>(v: &'a Value, key: &str) -> &'a [Value] {
    v.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Value {
        json!({"v": 1, "ok": true, "from": "a:1/0", "to": "local:0", "bytes": 4096, "records": 12, "downtime_ms": 3.5,
            "gpu_idle_ms": 2.0, "total_ms": 40.0, "reason": null, "digest": "00",
            "phases": {"verify": 0.5, "delta": 2.0, "plan": 7.5, "prepare": 30.0}})
    }

    #[test]
    fn phases_come_in_order_and_stillness_shows() {
        let text = describe(&report(), false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("a:1/0 -> local:0: moved 4.0 KiB, 12 records in 40 ms"), "{text}");
        assert!(lines[1].contains("plan") && lines[1].contains("--------"), "{text}");
        assert!(lines[2].contains("prepare") && lines[3].contains("delta") && lines[3].contains("###"), "{text}");
        assert!(lines[4].contains("verify") && lines[4].ends_with('#'), "{text}");
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn a_refusal_gives_its_reason() {
        let refused = json!({"ok": false, "from": "a:1/0", "to": "b:2/0", "reason": "needs 5 GiB, 4 GiB are free"});
        assert_eq!(describe(&refused, true), "a:1/0 -> b:2/0: would not move: needs 5 GiB, 4 GiB are free\n");
        assert!(describe(&json!({}), false).contains("did not move: no reason"));
    }

    #[test]
    fn answers_of_any_shape_can_be_printed() {
        for odd in [json!(null), json!([]), json!({"ok": true}), json!({"ok": true, "phases": {"x": -1, "y": "z"}})] {
            assert!(!describe(&odd, false).is_empty());
            let _ = public(&odd);
        }
    }

    #[test]
    fn gpus_by_number_or_all() {
        assert_eq!(gpu("all").unwrap().0, None);
        assert_eq!(gpu("3").unwrap().0, Some(3));
        assert!(gpu("32").is_err() && gpu("").is_err() && gpu("-1").is_err());
    }
}
