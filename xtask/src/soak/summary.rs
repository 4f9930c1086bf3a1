//! What all runs together show.

use super::WANTED_MOVES;
use super::run::RunOutcome;
use std::collections::BTreeMap;
use std::fmt;

/// Bars of the histogram.
const BINS: usize = 10;

/// Figures of all runs.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    runs: usize,
    /// Runs with at least three counted moves.
    good: usize,
    /// Counted moves by the part of the run at which they happened.
    moments: [usize; BINS],
    /// Direction: counted, committed on an idle GPU, refused.
    directions: BTreeMap<String, [usize; 3]>,
    /// Why moves were refused, and how often.
    reasons: BTreeMap<String, usize>,
    /// How long the job stood still in counted moves, in milliseconds.
    downtimes: Vec<f64>,
}

impl Summary {
    /// Adds a run.
    pub(crate) fn add(&mut self, run: &RunOutcome) {
        self.runs += 1;
        self.good += usize::from(run.moves.iter().filter(|(_, m)| m.counts()).count() >= WANTED_MOVES);
        for (moment, report) in &run.moves {
            let kind = if report.counts() { 0 } else { 1 + usize::from(!report.ok()) };
            self.directions.entry(report.direction()).or_default()[kind] += 1;
            if !report.ok() {
                *self.reasons.entry(report.reason().to_owned()).or_default() += 1;
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

    /// The share of runs with three counted moves.
    pub(crate) fn share(&self) -> f64 {
        if self.runs == 0 { 0.0 } else { self.good as f64 / self.runs as f64 }
    }
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
        for (reason, count) in &self.reasons {
            writeln!(f, "refused {count} times: {reason}")?;
        }
        let mut downtimes = self.downtimes.clone();
        downtimes.sort_by(f64::total_cmp);
        if let (Some(middle), Some(most)) = (downtimes.get(downtimes.len() / 2), downtimes.last()) {
            writeln!(f, "the job stood still for {middle:.0} ms in the middle, {most:.0} ms at most")?;
        }
        writeln!(f, "{} of {} runs have three counted moves", self.good, self.runs)
    }
}
