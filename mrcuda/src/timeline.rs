//! Summarizes a move in a few lines, with a timeline of its phases.

use crate::table::{bytes, duration, one_line};
use control::{Move, MoveState, without_numbers};
use std::collections::BTreeMap;

/// Describes the result of a move.
pub(crate) fn describe(it: &Move) -> String {
    let way = format!("{} -> {}", one_line(&it.from), one_line(&target(it)));
    let why = reason(it.reason.as_deref().unwrap_or("no reason was given"));
    let id = one_line(&it.id);
    match it.state {
        MoveState::Queued => format!("{way}: move {id} accepted; it has not begun yet\n"),
        MoveState::Running | MoveState::Committed => {
            let phase = one_line(it.phase.as_deref().unwrap_or("start"));
            format!("{way}: move {id} is in the phase {phase} after {}\n", duration(it.total_ms))
        }
        MoveState::Stopping => format!("{way}: move {id} is being abandoned\n"),
        MoveState::Failed => format!("{way}: did not move: {why}\n"),
        MoveState::Cancelled => format!("{way}: did not move: {why}; the job stays where it was\n"),
        MoveState::Done if it.by == "every" => format!(
            "{way}: copied {} in {}, and keeps that current; downtime {}\n{}",
            bytes(it.bytes),
            duration(it.total_ms),
            duration(it.downtime_ms),
            timeline(&it.phases),
        ),
        MoveState::Done => format!(
            "{way}: moved {}, {} records in {}; downtime {}{}, GPU idle for {}\n{}{}",
            bytes(it.bytes),
            it.records,
            duration(it.total_ms),
            duration(it.downtime_ms),
            // Older builds do not say what they aim at.
            if it.target_downtime_ms > 0.0 && it.downtime_ms > it.target_downtime_ms {
                format!(" (it aimed at {})", duration(it.target_downtime_ms))
            } else {
                String::new()
            },
            duration(it.gpu_idle_ms),
            it.legs
                .iter()
                .filter_map(|gpu| Some(format!("   a helper, not {}\n", one_line(gpu.instead.as_ref()?))))
                .collect::<String>(),
            timeline(&it.phases),
        ),
    }
}

/// Where a move leads: to the GPUs that were chosen, or, as long as there are none, to what was requested.
pub(crate) fn target(it: &Move) -> String {
    let chosen: Vec<&str> = it.legs.iter().map(|gpu| gpu.to.as_str()).collect();
    if chosen.is_empty() { it.to.clone() } else { chosen.join(",") }
}

/// A reason, in one line, without what is said before it anyway: that the job did not move.
pub(crate) fn reason(text: &str) -> String {
    one_line(&without_numbers(text.strip_prefix("cannot move: ").unwrap_or(text)))
}

/// The phases of a move in order. The program's calls wait from quiesce to commit.
const PHASES: [(&str, bool); 9] = [
    ("plan", false),
    ("prepare", false),
    ("replay", false),
    ("connect", false),
    ("precopy", false),
    ("quiesce", true),
    ("delta", true),
    ("verify", true),
    ("release", false),
];

/// Draws one bar for each phase, in order from left to right; `#` while the job's calls wait.
fn timeline(phases: &BTreeMap<String, f64>) -> String {
    const WIDTH: f64 = 48.0;
    let rank = |name: &str| PHASES.iter().position(|(p, _)| *p == name).unwrap_or(PHASES.len());
    let mut phases: Vec<(&str, f64)> = phases.iter().map(|(name, ms)| (name.as_str(), ms.max(0.0))).collect();
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
        out.push_str(&format!("   {:<9}{:>9}  {}{bar}\n", one_line(name), duration(ms), " ".repeat(from)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Move {
        let phases = [("verify", 0.5), ("delta", 2.0), ("plan", 7.5), ("prepare", 30.0)];
        Move {
            state: MoveState::Done,
            ok: true,
            from: "a:1/0".into(),
            to: "local:0".into(),
            bytes: 4096,
            records: 12,
            downtime_ms: 3.5,
            total_ms: 40.0,
            phases: phases.map(|(name, ms)| (name.to_owned(), ms)).into(),
            ..Move::default()
        }
    }

    #[test]
    fn phases_come_in_order_and_stillness_shows() {
        let text = describe(&report());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("a:1/0 -> local:0: moved 4.0 KiB, 12 records in 40 ms"), "{text}");
        assert!(lines[1].contains("plan") && lines[1].contains("--------"), "{text}");
        assert!(lines[2].contains("prepare") && lines[3].contains("delta") && lines[3].contains("###"), "{text}");
        assert!(lines[4].contains("verify") && lines[4].ends_with('#'), "{text}");
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn what_did_not_happen_gives_its_reason() {
        let failed = Move { state: MoveState::Failed, reason: Some("needs 5 GiB".into()), ..report() };
        assert_eq!(describe(&failed), "a:1/0 -> local:0: did not move: needs 5 GiB\n");
        let there = Move { reason: Some("cannot move: the job is already at this place".into()), ..failed };
        assert_eq!(describe(&there), "a:1/0 -> local:0: did not move: the job is already at this place\n");
        let queued = Move { id: "m2".into(), state: MoveState::Queued, ..report() };
        assert_eq!(describe(&queued), "a:1/0 -> local:0: move m2 accepted; it has not begun yet\n");
        let cancelled = Move { state: MoveState::Cancelled, reason: Some("cancelled in the phase delta".into()), ..report() };
        assert!(describe(&cancelled).ends_with("cancelled in the phase delta; the job stays where it was\n"));
    }

    #[test]
    fn a_reason_cannot_forge_lines() {
        let forged = Move { state: MoveState::Failed, reason: Some("x\nmrcuda: all is well".into()), ..report() };
        assert_eq!(describe(&forged), "a:1/0 -> local:0: did not move: x\\u000amrcuda: all is well\n");
    }

    #[test]
    fn odd_figures_can_be_printed() {
        let odd = Move { phases: BTreeMap::from([("x".into(), -1.0), ("y".into(), f64::NAN)]), ..report() };
        assert!(!describe(&odd).is_empty());
    }
}
