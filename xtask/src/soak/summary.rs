//! What all runs together show.

use super::run::{RunOutcome, Verdict, WANTED_MOVES};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Bars of the histogram.
const BINS: usize = 10;

/// Figures of all runs.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    runs: usize,
    /// Runs with at least three counted moves.
    good: usize,
    /// Runs without, whose time was over before their last move.
    cut: usize,
    /// Runs that had not ended in their time.
    cut_off: usize,
    /// Counted moves by the part of the run at which they happened.
    moments: [usize; BINS],
    /// Direction: counted, committed on an idle GPU, refused.
    directions: BTreeMap<String, [usize; 3]>,
    /// Why moves were refused, by code and in words, and how often.
    reasons: BTreeMap<(String, String), usize>,
    /// The downtimes of counted moves, in milliseconds.
    downtimes: Vec<f64>,
    /// The longest downtime of a refused move.
    refused_ms: f64,
}

impl Summary {
    /// Adds a run.
    pub(crate) fn add(&mut self, run: &RunOutcome) {
        self.runs += 1;
        let good = run.moves.iter().filter(|(_, m)| m.counts()).count() >= WANTED_MOVES;
        self.good += usize::from(good);
        self.cut += usize::from(run.cut && !good);
        self.cut_off += usize::from(matches!(run.verdict, Verdict::CutOff(_)));
        for (moment, report) in &run.moves {
            let kind = if report.counts() { 0 } else { 1 + usize::from(!report.ok()) };
            self.directions.entry(report.direction()).or_default()[kind] += 1;
            if !report.ok() {
                *self.reasons.entry((report.code().to_owned(), in_short(report.reason()))).or_default() += 1;
                self.refused_ms = self.refused_ms.max(report.downtime_ms());
            }
            if report.counts() {
                self.moments[((moment * BINS as f64) as usize).min(BINS - 1)] += 1;
                self.downtimes.push(report.downtime_ms());
            }
        }
    }

    /// Moves that counted.
    pub(crate) fn counted(&self) -> usize {
        self.moments.iter().sum()
    }

    /// Runs that were made.
    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    /// The share of runs with three counted moves, of those that had the time for them.
    pub(crate) fn share(&self) -> f64 {
        let runs = self.runs - self.cut;
        if runs == 0 { 0.0 } else { self.good as f64 / runs as f64 }
    }
}

/// A reason without addresses, each of its parts once, so that the same ones are counted together.
fn in_short(reason: &str) -> String {
    let mut parts = reason.split("0x");
    let first = parts.next().unwrap_or_default().to_owned();
    let reason = parts.fold(first, |all, part| all + "0x…" + part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    let (head, list) = reason.rsplit_once(": ").map_or(("", &*reason), |(head, list)| (head, list));
    let list: BTreeSet<&str> = list.split("; ").collect();
    let list = list.into_iter().collect::<Vec<_>>().join("; ");
    if head.is_empty() { list } else { format!("{head}: {list}") }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "moments of the counted moves, as parts of the run:")?;
        let most = self.moments.iter().copied().max().unwrap_or(0).max(1);
        for (bin, count) in self.moments.iter().enumerate() {
            let bar = "#".repeat((count * 40).div_ceil(most));
            writeln!(f, "  {:3}-{:3} % {count:5}  {bar}", bin * 100 / BINS, (bin + 1) * 100 / BINS)?;
        }
        writeln!(f, "direction          counted  idle GPU  refused")?;
        for (direction, [counted, idle, refused]) in &self.directions {
            writeln!(f, "{direction:<18}{counted:8}{idle:10}{refused:9}")?;
        }
        for ((code, reason), count) in &self.reasons {
            writeln!(f, "refused {count} times ({code}): {reason}")?;
        }
        let mut downtimes = self.downtimes.clone();
        downtimes.sort_by(f64::total_cmp);
        if let (Some(middle), Some(most)) = (downtimes.get(downtimes.len() / 2), downtimes.last()) {
            writeln!(f, "downtime: p50 {middle:.0} ms, at most {most:.0} ms")?;
        }
        if !self.reasons.is_empty() {
            writeln!(f, "downtime of refused moves: at most {:.0} ms", self.refused_ms)?;
        }
        if self.cut > 0 {
            writeln!(f, "{} runs ended without three of them since the time was over", self.cut)?;
        }
        if self.cut_off > 0 {
            writeln!(f, "{} runs were cut off: they had not ended in their time", self.cut_off)?;
        }
        writeln!(f, "{} of {} runs have three counted moves", self.good, self.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::in_short;

    #[test]
    fn reasons_that_differ_in_addresses_are_the_same() {
        let (a, b) = (
            "cannot move now: not idle: stream 0x12af waits; stream 0x3 runs",
            "cannot move now: not idle: stream 0x4 runs; stream 0x5 waits; stream 0xff runs",
        );
        assert_eq!(in_short(a), "cannot move now: not idle: stream 0x… runs; stream 0x… waits");
        assert_eq!(in_short(a), in_short(b));
        assert_eq!(in_short("the job is already at this place"), "the job is already at this place");
    }
}
