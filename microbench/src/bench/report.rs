//! Tables of calls and round trips.

use super::table::Table;
use super::times::Times;
use crate::cases::Case;
use std::collections::BTreeMap;

fn microseconds(times: &Times, parts: u64, key: &str) -> String {
    format!("{:.2}", times.percentiles(parts)[key].as_f64().unwrap_or(0.0) / 1e3)
}

/// Microseconds of calls, two columns for each path; and GB/s of large copies.
pub(super) fn calls(cases: &[Case], paths: &[(&str, &BTreeMap<Case, Times>)]) -> Vec<Table> {
    let heads = paths.iter().flat_map(|(name, _)| [(*name).to_owned(), "p99".to_owned()]);
    let mut calls = Table::new("Calls, microseconds: p50 and p99", std::iter::once("call".to_owned()).chain(heads));
    for case in cases {
        let cells = |times: Option<&Times>| match times.filter(|t| !t.is_empty()) {
            Some(times) => ["p50", "p99"].map(|key| microseconds(times, case.parts(), key)),
            None => ["absent".to_owned(), String::new()],
        };
        calls.row(std::iter::once(case.words()).chain(paths.iter().flat_map(|(_, times)| cells(times.get(case)))));
    }
    let large: Vec<&Case> =
        cases.iter().filter(|c| c.bytes().is_some_and(|n| n >= 1 << 20) && !matches!(c, Case::Beside(_))).collect();
    if large.is_empty() {
        return vec![calls];
    }
    let mut rates = Table::new("Copies, GB/s", std::iter::once("copy").chain(paths.iter().map(|(name, _)| *name)));
    for case in large {
        let cell = |times: Option<&Times>| match times.filter(|t| !t.is_empty()).and_then(|t| bandwidth(*case, t)) {
            Some(n) => format!("{n:.2}"),
            None => "absent".to_owned(),
        };
        rates.row(std::iter::once(case.words()).chain(paths.iter().map(|(_, times)| cell(times.get(case)))));
    }
    vec![calls, rates]
}

/// Round trips of the controls.
pub(super) fn pings(ways: &BTreeMap<&str, Times>) -> Table {
    let mut table = Table::new("Raw round trip of 64 B, microseconds", ["way", "p50", "p99"]);
    for (way, times) in ways {
        table.row([(*way).to_owned(), microseconds(times, 1, "p50"), microseconds(times, 1, "p99")]);
    }
    table
}

/// GB/s of a large copy.
pub(super) fn bandwidth(case: Case, times: &Times) -> Option<f64> {
    case.bytes().filter(|n| *n >= 1 << 20).map(|n| n as f64 / times.median())
}
