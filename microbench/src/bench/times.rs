//! Times of many runs of one thing.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Maximum duration that the histogram resolves, in nanoseconds.
const LONGEST: u64 = 600_000_000_000;

/// Nanoseconds of each run.
#[derive(Debug, Clone, Default)]
pub(super) struct Times(Vec<u64>);

impl Times {
    pub(super) fn extend(&mut self, ns: impl IntoIterator<Item = u64>) {
        self.0.extend(ns);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// The median, in nanoseconds, exactly.
    pub(super) fn median(&self) -> f64 {
        models::fit::median(&self.0.iter().map(|n| *n as f64).collect::<Vec<_>>())
    }

    /// Percentiles, each divided by `parts`.
    pub(super) fn percentiles(&self, parts: u64) -> Value {
        // Three digits; bounds are constants that a histogram can have.
        let Ok(mut all) = Histogram::<u64>::new_with_bounds(1, LONGEST, 3) else { return Value::Null };
        self.0.iter().for_each(|n| all.saturating_record(*n));
        let part = |n: f64| n / parts as f64;
        let at = |q| part(all.value_at_quantile(q) as f64);
        json!({"n": all.len(), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": part(all.max() as f64),
            "mean": part(all.mean())})
    }
}
