//! A summary of all programs: a table for people, JSON for programs.

use crate::Mode;
use crate::mover::Pause;
use crate::output::{Ending, Verdict};
use crate::run::{Cell, Comparison, RunError};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// The results.
#[derive(Debug)]
pub struct Summary {
    modes: Vec<Mode>,
    programs: Vec<Comparison>,
    /// Programs that could not be compared, and why.
    failures: BTreeMap<String, String>,
}

impl Summary {
    /// Creates an empty summary for these modes.
    pub fn new(modes: &[Mode]) -> Summary {
        Summary { modes: modes.to_vec(), programs: Vec::new(), failures: BTreeMap::new() }
    }

    /// Adds a program.
    pub fn add(&mut self, name: &str, result: Result<Comparison, RunError>) {
        match result {
            Ok(comparison) if comparison.expected.ending == Ending::Hung => {
                self.failures.insert(comparison.name, format!("natively: {}", Ending::Hung));
            }
            Ok(comparison) => self.programs.push(comparison),
            Err(why) => {
                self.failures.insert(name.to_owned(), why.to_string());
            }
        }
        self.programs.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Whether every run of every program was as native.
    pub fn all_as_native(&self) -> bool {
        self.failures.is_empty() && self.programs.iter().all(|p| p.cells.values().all(|c| c.verdict.as_native()))
    }

    fn cells(&self, mode: Mode) -> impl Iterator<Item = (&Comparison, &Cell)> {
        self.programs.iter().filter_map(move |p| Some((p, p.cells.get(&mode)?)))
    }

    /// Median and maximum ratio of a mode, with the program of the maximum. Runs that were not as native are
    /// excluded.
    pub fn ratios(&self, mode: Mode) -> Option<(f64, f64, &str)> {
        let mut all: Vec<(f64, &str)> =
            self.cells(mode).filter(|(_, c)| c.verdict.as_native()).map(|(p, c)| (c.ratio, p.name.as_str())).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (worst, name) = *all.last()?;
        Some((median(&all.iter().map(|(r, _)| *r).collect::<Vec<_>>()), worst, name))
    }

    /// Pauses of all moves, and the longest with its program.
    fn pauses(&self) -> (Vec<f64>, Option<(&Pause, &str)>) {
        let all: Vec<(&Pause, &str)> =
            self.cells(Mode::Moved).flat_map(|(p, c)| c.pauses.iter().map(|pause| (pause, p.name.as_str()))).collect();
        let mut times: Vec<f64> = all.iter().map(|(pause, _)| pause.ms).collect();
        times.sort_by(f64::total_cmp);
        (times, all.into_iter().max_by(|a, b| a.0.ms.total_cmp(&b.0.ms)))
    }

    /// Everything, for a file.
    pub fn json(&self) -> Value {
        let mut modes = serde_json::Map::new();
        for mode in &self.modes {
            let (runs, as_native) = self.counts(*mode);
            let ratios = self.ratios(*mode);
            modes.insert(
                mode.name().to_owned(),
                json!({
                    "runs": runs, "as_native": as_native, "median_ratio": ratios.map(|r| r.0), "worst_ratio": ratios.map(|r| r.1),
                    "worst": ratios.map(|r| r.2),
                }),
            );
        }
        let (pauses, longest) = self.pauses();
        json!({
            "kind": "mrcuda-apps",
            "v": 1,
            "modes": modes,
            "moves": pauses.len(),
            "median_pause_ms": (!pauses.is_empty()).then(|| median(&pauses)),
            "longest_pause": longest.map(|(pause, name)| json!({"program": name, "pause": pause.json()})),
            "programs": self.programs.iter().map(program_json).collect::<Vec<_>>(),
            "failures": self.failures,
        })
    }

    /// Runs of a mode, and how many of them were as native.
    fn counts(&self, mode: Mode) -> (usize, usize) {
        (self.cells(mode).count(), self.cells(mode).filter(|(_, c)| c.verdict.as_native()).count())
    }

    /// One line for each remark that does not fit the table.
    fn remarks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for program in &self.programs {
            if program.expected.ending != Ending::Code(0) {
                lines.push(format!("{}, natively: {}: {}", program.name, program.expected.ending, program.last_stderr_line));
            }
            for (mode, cell) in &program.cells {
                let mut remark = |text: &str| lines.push(format!("{}, {}: {text}", program.name, mode.name()));
                if let Verdict::Wrong(why) = &cell.verdict {
                    remark(why);
                }
                cell.words.iter().for_each(|line| remark(line));
                if *mode == Mode::Moved && cell.pauses.is_empty() {
                    remark(&format!("it ended before any move had succeeded ({} under way or asked for)", cell.unfinished));
                }
                for (reason, count) in &cell.refusals {
                    remark(&format!("{count} x not moved: {reason}"));
                }
            }
        }
        lines.extend(self.failures.iter().map(|(name, why)| format!("{name}: not compared: {why}")));
        lines
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.programs.iter().map(|p| p.name.len()).max().unwrap_or(0).max(7);
        let moved = self.modes.contains(&Mode::Moved);
        write!(f, "{:width$} native s  varies", "program")?;
        for mode in &self.modes {
            write!(f, "  {:>8}     x", mode.name())?;
            if *mode == Mode::Tcp {
                write!(f, "   waits      MB")?;
            }
        }
        writeln!(f, "{}", if moved { "  moves  longest pause" } else { "" })?;
        for program in &self.programs {
            let varies = match (program.expected.stable, program.expected.varying) {
                (true, _) => String::new(),
                (false, 0) => "order".to_owned(),
                (false, lines) => format!("{lines} lines"),
            };
            write!(f, "{:width$} {:8.2}  {varies:>6}", program.name, program.native[0].min(program.native[1]))?;
            for mode in &self.modes {
                match program.cells.get(mode) {
                    Some(cell) => write!(f, "  {:>8} {:5.2}", cell.verdict.word(), cell.ratio)?,
                    None => write!(f, "  {:>8} {:5}", "", "")?,
                }
                if *mode == Mode::Tcp {
                    match program.cells.get(mode).and_then(|cell| cell.traffic) {
                        Some(sent) => write!(f, " {:7} {:7.0}", sent.waits, sent.bytes as f64 / 1e6)?,
                        None => write!(f, " {:7} {:7}", "", "")?,
                    }
                }
            }
            if let Some(cell) = program.cells.get(&Mode::Moved) {
                let longest = cell.pauses.iter().max_by(|a, b| a.ms.total_cmp(&b.ms));
                let longest = longest.map(|p| format!("{:.1} ms, {} {:.1}", p.ms, p.phase, p.phase_ms)).unwrap_or_default();
                write!(f, "  {:5}  {longest}", cell.pauses.len())?;
            }
            writeln!(f)?;
        }
        for line in self.remarks() {
            writeln!(f, "{line}")?;
        }
        for mode in &self.modes {
            let (runs, as_native) = self.counts(*mode);
            write!(f, "{:8} {as_native} of {runs} as native", mode.name())?;
            if let Some((median, worst, name)) = self.ratios(*mode) {
                write!(f, ", median {median:.2}x native, worst {worst:.2}x ({name})")?;
            }
            writeln!(f)?;
        }
        let (pauses, longest) = self.pauses();
        if let Some((pause, name)) = longest {
            let programs = self.cells(Mode::Moved).filter(|(_, c)| !c.pauses.is_empty()).count();
            writeln!(
                f,
                "{} moves in {programs} programs, median pause {:.1} ms, longest {:.1} ms ({name}, {} -> {}, {} {:.1} ms)",
                pauses.len(),
                median(&pauses),
                pause.ms,
                pause.from,
                pause.to,
                pause.phase,
                pause.phase_ms
            )?;
        }
        Ok(())
    }
}

/// Of sorted values; between the two in the middle if there are two.
fn median(sorted: &[f64]) -> f64 {
    let at = |i: usize| sorted.get(i).copied().unwrap_or(0.0);
    (at(sorted.len().saturating_sub(1) / 2) + at(sorted.len() / 2)) / 2.0
}

fn program_json(program: &Comparison) -> Value {
    let cell = |cell: &Cell| {
        json!({
            "as_native": cell.verdict.as_native(),
            "verdict": cell.verdict.word(),
            "why": if let Verdict::Wrong(why) = &cell.verdict { Some(why) } else { None },
            "seconds": cell.seconds,
            "ratio": cell.ratio,
            "pauses": cell.pauses.iter().map(Pause::json).collect::<Vec<_>>(),
            "unfinished_moves": cell.unfinished,
            "refusals": cell.refusals,
            "mrcuda_said": cell.words,
            "waits": cell.traffic.map(|t| t.waits),
            "bytes": cell.traffic.map(|t| t.bytes),
            "ends_of_stdout_and_stderr": cell.ends,
        })
    };
    let cells: serde_json::Map<String, Value> = program.cells.iter().map(|(mode, c)| (mode.name().to_owned(), cell(c))).collect();
    json!({
        "name": program.name,
        "native_ending": program.expected.ending.to_string(),
        "native_seconds": program.native,
        "stable": program.expected.stable,
        "varying_lines": program.expected.varying,
        "modes": cells,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Expected;

    fn program(name: &str, ratio: f64, verdict: Verdict) -> Comparison {
        let pause = Pause { ms: ratio * 10.0, phase: "delta".into(), phase_ms: 1.0, from: "local".into(), to: "helper".into() };
        let cell = Cell {
            verdict,
            seconds: ratio,
            ratio,
            pauses: vec![pause],
            unfinished: 0,
            refusals: BTreeMap::from([("busy".to_owned(), 2)]),
            words: vec![],
            traffic: None,
            ends: None,
        };
        Comparison {
            name: name.into(),
            expected: Expected::new(Ending::Code(0), "", ""),
            native: [1.0, 1.0],
            out: String::new(),
            last_stderr_line: String::new(),
            cells: BTreeMap::from([(Mode::Tcp, cell.clone()), (Mode::Moved, cell)]),
        }
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!((median(&[]), median(&[2.0]), median(&[1.0, 3.0]), median(&[1.0, 2.0, 9.0])), (0.0, 2.0, 2.0, 2.0));
    }

    #[test]
    fn figures_are_those_of_the_programs() {
        let mut summary = Summary::new(&[Mode::Tcp, Mode::Moved]);
        for (name, ratio) in [("c", 3.0), ("a", 1.0), ("b", 2.0)] {
            summary.add(name, Ok(program(name, ratio, Verdict::Same)));
        }
        assert!(summary.all_as_native());
        let json = summary.json();
        assert_eq!(
            json["modes"]["tcp"],
            json!({"runs": 3, "as_native": 3, "median_ratio": 2.0, "worst_ratio": 3.0, "worst": "c"})
        );
        assert_eq!((&json["moves"], &json["longest_pause"]["program"]), (&json!(3), &json!("c")));
        summary.add("d", Ok(program("d", 99.0, Verdict::Wrong("7 instead of 8".into()))));
        summary.add("e", Err(RunError::Link("there".into())));
        assert!(!summary.all_as_native());
        let text = summary.to_string();
        for part in [
            "tcp      3 of 4 as native, median 2.00x native, worst 3.00x (c)",
            "d, tcp: 7 instead of 8",
            "2 x not moved: busy",
            "e: not compared: cannot make there",
            "4 moves in 4 programs",
        ] {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
    }
}
