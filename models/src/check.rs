//! Compares models with samples that were not used for the fit.

use crate::bench::Sample;
use crate::models_file::Models;
use std::collections::BTreeMap;

/// Maximum mean relative error of a valid model.
pub const WRONG: f64 = 0.3;

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
    /// Mean, 95th percentile and maximum of |predicted − measured| / measured.
    pub fn relative(&self) -> [f64; 3] {
        let mut all: Vec<f64> = self.points.iter().map(|(measured, predicted)| (predicted - measured).abs() / measured).collect();
        all.sort_by(f64::total_cmp);
        let Some(max) = all.last() else { return [0.0; 3] };
        let rank = (all.len() as f64 * 0.95).ceil() as usize;
        [all.iter().sum::<f64>() / all.len() as f64, all[rank.clamp(1, all.len()) - 1], *max]
    }

    /// Whether the model is valid.
    pub fn holds(&self) -> bool {
        !self.points.is_empty() && self.relative()[0] <= WRONG
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
