//! Compares models with samples that were not used for the fit.

use crate::bench::Sample;
use crate::fit::median;
use crate::models_file::Models;
use std::collections::BTreeMap;

/// Maximum mean relative error of a valid model.
pub const WRONG: f64 = 0.3;

/// The accuracy that models should have on the samples of other runs together: the median and the 90th percentile of their relative
/// errors.
pub const GOALS: (f64, f64) = (0.10, 0.25);

/// Relative errors, |predicted − measured| / measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Relative {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub median: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The maximum.
    pub max: f64,
}

impl Relative {
    /// The errors of pairs of measured and predicted seconds; zeros if there are none.
    pub fn of<'a>(points: impl IntoIterator<Item = &'a (f64, f64)>) -> Relative {
        let mut all: Vec<f64> = points.into_iter().map(|(measured, predicted)| (predicted - measured).abs() / measured).collect();
        all.sort_by(f64::total_cmp);
        let Some(max) = all.last().copied() else { return Relative::default() };
        let at = |share: f64| all[((all.len() as f64 * share).ceil() as usize).clamp(1, all.len()) - 1];
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        Relative { mean, median: median(&all), p90: at(0.9), p95: at(0.95), max }
    }

    /// Whether the [`GOALS`] are met.
    pub fn is_accurate(&self) -> bool {
        self.median <= GOALS.0 && self.p90 <= GOALS.1
    }
}

/// The error of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Errors {
    /// Which overhead.
    pub what: String,
    /// On which path.
    pub path: String,
    /// Measured and predicted seconds of each sample; empty without a model.
    pub points: Vec<(f64, f64)>,
    /// Number of samples without a model.
    pub without: usize,
}

impl Errors {
    /// Its errors on all samples.
    pub fn relative(&self) -> Relative {
        Relative::of(&self.points)
    }

    /// Whether the model is valid.
    pub fn holds(&self) -> bool {
        !self.points.is_empty() && self.relative().mean <= WRONG
    }
}

/// The errors of each model for which there are samples.
pub fn check<'a>(models: &Models, samples: impl IntoIterator<Item = &'a Sample>) -> Vec<Errors> {
    let mut all: BTreeMap<(&str, &str), Errors> = BTreeMap::new();
    for sample in samples.into_iter().filter(|s| s.seconds > 0.0) {
        let errors = all.entry((&sample.what, &sample.path)).or_insert_with(|| Errors {
            what: sample.what.clone(),
            path: sample.path.clone(),
            points: Vec::new(),
            without: 0,
        });
        match models.find(&sample.what, &sample.path) {
            Some(model) => errors.points.push((sample.seconds, model.seconds(|term| sample.amount(term)))),
            None => errors.without += 1,
        }
    }
    all.into_values().collect()
}
