//! Fitting: least squares on relative errors with non-negative coefficients and reduced weights of outliers.
//!
//! Times span six orders of magnitude, so relative errors are minimized. A form has at most ten quantities, so the best
//! set of positive coefficients is found by trying every subset of them. This is exact, and correlated or constant
//! quantities do no harm.

use crate::bench::{Bench, Machine, Sample};
use crate::form::{self, Form};
use crate::models_file::{Model, Models};
use std::collections::BTreeMap;

/// Why a fit failed.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// No file, or no samples.
    #[error("there are no samples to fit")]
    Empty,
    /// The files come from different machines.
    #[error("the files are of different machines: {0}; and: {1}")]
    Machines(Box<Machine>, Box<Machine>),
}

/// Number of reweighting iterations.
const ROUNDS: usize = 20;
/// A residual of more than this many typical ones gets a smaller weight (Huber's constant).
const HUBER: f64 = 1.345;
/// Two quantities that are correlated more closely than this cannot be distinguished.
const SINGULAR: f64 = 1e-9;

/// One model for each overhead and path that the files have samples of.
///
/// # Errors
/// The files hold no samples, or come from different machines.
pub fn fit(files: &[Bench]) -> Result<Models, FitError> {
    let machine = &files.first().ok_or(FitError::Empty)?.machine;
    if let Some(other) = files.iter().map(|f| &f.machine).find(|m| !m.is_like(machine)) {
        return Err(FitError::Machines(machine.clone().into(), other.clone().into()));
    }
    let mut groups: BTreeMap<(&str, &str), Vec<&Sample>> = BTreeMap::new();
    for sample in files.iter().flat_map(|f| &f.samples) {
        groups.entry((&sample.what, &sample.path)).or_default().push(sample);
    }
    let models: Vec<Model> = groups
        .into_iter()
        .filter_map(|((what, path), samples)| form::of(what).and_then(|form| one(form, path, &samples)))
        .collect();
    if models.is_empty() { Err(FitError::Empty) } else { Ok(Models::new(machine.clone(), models)) }
}

/// The model of one overhead on one path; `None` without a sample with a positive duration.
pub fn one(form: &Form, path: &str, samples: &[&Sample]) -> Option<Model> {
    let samples: Vec<&Sample> = samples.iter().copied().filter(|s| s.seconds > 0.0).collect();
    // Rows are relative: the target value is 1 everywhere.
    let rows: Vec<Vec<f64>> = samples.iter().map(|s| form.terms.iter().map(|t| s.amount(t) / s.seconds).collect()).collect();
    let best = robust(&rows)?;
    let range = |term: &&str| {
        let amounts = samples.iter().map(|s| s.amount(term));
        let ends = amounts.fold((f64::INFINITY, 0.0f64), |(low, high), n| (low.min(n), high.max(n)));
        ((*term).to_owned(), [ends.0, ends.1])
    };
    Some(Model {
        what: form.what.to_owned(),
        path: path.to_owned(),
        terms: form.terms.iter().zip(best).map(|(t, c)| ((*t).to_owned(), c)).collect(),
        samples: samples.len() as u64,
        range: form.terms.iter().filter(|t| **t != "once").map(range).collect(),
    })
}

/// The line that fits points best: a constant and a slope, neither negative.
pub fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let rows: Vec<Vec<f64>> = points.iter().filter(|(_, y)| *y > 0.0).map(|(x, y)| vec![1.0 / y, x / y]).collect();
    if rows.len() < 2 {
        return None;
    }
    robust(&rows).map(|c| (c[0], c[1]))
}

/// Coefficients that fit every row to 1, with reduced weights of outliers.
fn robust(rows: &[Vec<f64>]) -> Option<Vec<f64>> {
    let mut weights = vec![1.0; rows.len()];
    let mut best = positive(rows, &weights)?;
    for _ in 0..ROUNDS {
        let residuals: Vec<f64> = rows.iter().map(|row| (dot(row, &best) - 1.0).abs()).collect();
        // 1.4826 × median: the standard deviation, if they were normal.
        let typical = 1.4826 * median(&residuals);
        if typical <= f64::EPSILON {
            break;
        }
        for (weight, r) in weights.iter_mut().zip(&residuals) {
            *weight = (HUBER * typical / r).min(1.0);
        }
        let next = positive(rows, &weights)?;
        let still = next.iter().zip(&best).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs());
        best = next;
        if still {
            break;
        }
    }
    Some(best)
}

/// The best non-negative coefficients.
fn positive(rows: &[Vec<f64>], weights: &[f64]) -> Option<Vec<f64>> {
    let terms = rows.first()?.len();
    let error = |c: &[f64]| -> f64 { rows.iter().zip(weights).map(|(row, w)| w * (dot(row, c) - 1.0).powi(2)).sum() };
    (1u32..1 << terms)
        .filter_map(|set| {
            let chosen: Vec<usize> = (0..terms).filter(|t| set & 1 << t != 0).collect();
            let some = solve(rows, weights, &chosen)?;
            let mut all = vec![0.0; terms];
            for (at, c) in chosen.iter().zip(some) {
                all[*at] = c;
            }
            all.iter().all(|c| *c >= 0.0).then_some(all)
        })
        .min_by(|a, b| error(a).total_cmp(&error(b)))
}

/// Weighted least squares on some of the quantities; `None` if they cannot be distinguished.
fn solve(rows: &[Vec<f64>], weights: &[f64], chosen: &[usize]) -> Option<Vec<f64>> {
    let n = chosen.len();
    if rows.len() < n {
        return None;
    }
    // Columns are normalized: seconds per byte and seconds per call differ by many orders of magnitude.
    let scale: Vec<f64> =
        chosen.iter().map(|t| rows.iter().zip(weights).map(|(row, w)| w * row[*t] * row[*t]).sum::<f64>().sqrt()).collect();
    if scale.contains(&0.0) {
        return None;
    }
    let column = |row: &[f64], i: usize| row[chosen[i]] / scale[i];
    let sum = |f: &dyn Fn(&[f64]) -> f64| -> f64 { rows.iter().zip(weights).map(|(row, w)| w * f(row)).sum() };
    // The normal equations, the right side as last column.
    let mut m: Vec<Vec<f64>> = (0..n)
        .map(|i| {
            let left = (0..n).map(|j| sum(&|row| column(row, i) * column(row, j)));
            left.chain([sum(&|row| column(row, i))]).collect()
        })
        .collect();
    for i in 0..n {
        let pivot = (i..n).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()))?;
        m.swap(i, pivot);
        let row = m[i].clone();
        if row[i].abs() < SINGULAR {
            return None;
        }
        for (_, other) in m.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let factor = other[i] / row[i];
            other.iter_mut().zip(&row).for_each(|(to, from)| *to -= factor * from);
        }
    }
    Some(m.iter().enumerate().map(|(i, row)| row[n] / row[i] / scale[i]).collect())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The median; 0 for an empty list.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
