//! Repeatedly moves every job that appears.

use control::{Answer, AskError, Client, Migrate, Move, ReasonCode, Request};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Poll interval for the directory of sockets.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Timeout for a job's answer to a move request, which is generous: a move that cannot work is refused much
/// earlier.
const MOVE_TIMEOUT: Duration = Duration::from_secs(300);
/// Pause after a refused move.
const AFTER_REFUSAL: Duration = Duration::from_millis(20);
/// Phases in which the job's calls are blocked.
const HOLDING: [&str; 3] = ["quiesce", "delta", "verify"];

/// How long one move blocked the job's calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Pause {
    /// Duration in milliseconds.
    pub ms: f64,
    /// The phase that took most of it.
    pub phase: String,
    /// Duration of that phase, in milliseconds.
    pub phase_ms: f64,
    /// The source.
    pub from: String,
    /// The target.
    pub to: String,
}

impl Pause {
    fn new(it: &Move) -> Pause {
        let phase = HOLDING.iter().filter_map(|name| Some((*name, *it.phases.get(*name)?))).max_by(|a, b| a.1.total_cmp(&b.1));
        let (phase, phase_ms) = phase.unwrap_or(("none", 0.0));
        Pause { ms: it.downtime_ms, phase: phase.to_owned(), phase_ms, from: it.from.clone(), to: it.to.clone() }
    }

    /// For a file.
    pub fn json(&self) -> Value {
        json!({"ms": self.ms, "phase": self.phase, "phase_ms": self.phase_ms, "from": self.from, "to": self.to})
    }
}

/// The results of one run's moves.
#[derive(Debug, Clone, Default)]
pub struct Moves {
    /// The pause of each move that succeeded.
    pub pauses: Vec<Pause>,
    /// Moves that were running when the program ended.
    pub unfinished: usize,
    /// Why moves were refused, with the number of each.
    pub refusals: BTreeMap<String, usize>,
}

/// Moves every job that appears in a runtime directory to one target after the other until `over` is set.
pub(crate) fn move_all(directory: &Path, targets: &[String], every: Duration, over: &AtomicBool) -> Moves {
    let sockets = directory.join("mrcuda");
    let (moves, mut known) = (Mutex::new(Moves::default()), BTreeSet::<PathBuf>::new());
    std::thread::scope(|s| {
        while !over.load(Ordering::Relaxed) {
            let entries = std::fs::read_dir(&sockets).into_iter().flatten().filter_map(Result::ok);
            let jobs = entries.filter(|e| e.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit())).map(|e| e.path());
            for path in jobs.filter(|path| !known.contains(path)).collect::<Vec<_>>() {
                known.insert(path.clone());
                let moves = &moves;
                s.spawn(move || move_one(&path, targets, every, over, moves));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    });
    moves.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Returns when the job ends; its last answer may then be missing.
fn move_one(socket: &Path, targets: &[String], every: Duration, over: &AtomicBool, moves: &Mutex<Moves>) {
    let Ok(mut client) = Client::connect_at(socket) else {
        return;
    };
    let mut next = targets.iter().cycle();
    while let Some(target) = next.next().filter(|_| !over.load(Ordering::Relaxed)) {
        let done = match client.ask(&Request::Migrate(Migrate::to(target)), Some(MOVE_TIMEOUT)) {
            Ok(Answer::Move(it)) if it.ok => Ok(Pause::new(&it)),
            Ok(Answer::Move(it)) => Err((it.code, it.reason.unwrap_or_else(|| "no reason was given".to_owned()))),
            Ok(other) => Err((None, format!("another answer came: {other:?}"))),
            Err(AskError::Refused(refusal)) => Err((refusal.code, refusal.reason)),
            // It has ended.
            Err(AskError::NoJob | AskError::Stopped(_) | AskError::Failed(_)) => {
                moves.lock().unwrap_or_else(PoisonError::into_inner).unfinished += 1;
                return;
            }
        };
        let mut moves = moves.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = match done {
            Ok(pause) => {
                moves.pauses.push(pause);
                every
            }
            Err((Some(ReasonCode::JobEnded), _)) => {
                moves.unfinished += 1;
                return;
            }
            Err((_, why)) => {
                *moves.refusals.entry(in_short(&why)).or_default() += 1;
                AFTER_REFUSAL
            }
        };
        drop(moves);
        std::thread::sleep(rest);
    }
}

/// A reason without addresses and ports, so that equal ones are counted together.
fn in_short(reason: &str) -> String {
    let mut parts = reason.split("0x");
    let first = parts.next().unwrap_or_default().to_owned();
    let short = parts.fold(first, |all, part| all + "0x…" + part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    short.chars().take(240).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_names_its_longest_phase() {
        let mut report: Move = serde_json::from_value(json!({
            "id": "m1", "state": "done", "ok": true, "by": "request", "from": "local", "to": "helper", "transport": "shm",
            "at_unix_ms": 0, "phase": null, "phases": {"precopy": 90.0, "quiesce": 1.0, "delta": 5.0, "verify": 2.0},
            "bytes": 0, "delta_bytes": 0, "bytes_by_descriptor": 0, "bytes_adopted": 0, "live_bytes": 0, "records": 0, "chunks": 0, "chunk_bytes": 0,
            "modules": 0, "live_objects": 0, "kernel_running": false, "downtime_ms": 8.5, "gpu_idle_ms": 0.0, "total_ms": 100.0,
            "digest": "", "reason": null, "legs": []
        }))
        .unwrap();
        let pause = Pause::new(&report);
        assert_eq!((pause.phase.as_str(), pause.phase_ms, pause.ms), ("delta", 5.0, 8.5));
        report.phases.clear();
        assert_eq!(Pause::new(&report).phase, "none");
    }

    #[test]
    fn reasons_that_differ_in_addresses_are_the_same() {
        assert_eq!(in_short("stream 0x12af waits"), in_short("stream 0x3 waits"));
    }
}
