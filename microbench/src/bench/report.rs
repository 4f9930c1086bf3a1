//! Tables on the terminal.

use super::times::Times;
use crate::cases::Case;
use std::collections::BTreeMap;

/// Microseconds of calls, half of them and 99 %, one column for each path; GB/s for large copies.
pub(super) fn calls(cases: &[Case], paths: &[(&str, &BTreeMap<Case, Times>)]) {
    println!("\n{:<32}{}", "microseconds: p50, p99", paths.iter().map(|(name, _)| format!("{name:>22}")).collect::<String>());
    for case in cases {
        let cell = |times: Option<&Times>| match times.filter(|t| !t.is_empty()) {
            Some(times) => {
                let p = times.percentiles(case.parts());
                let us = |key: &str| p[key].as_f64().unwrap_or(0.0) / 1e3;
                format!("{:>12.2} {:>9.2}", us("p50"), us("p99"))
            }
            None => format!("{:>22}", "absent"),
        };
        println!("{:<32}{}", case.words(), paths.iter().map(|(_, times)| cell(times.get(case))).collect::<String>());
    }
    let large: Vec<&Case> =
        cases.iter().filter(|c| c.bytes().is_some_and(|n| n >= 1 << 20) && !matches!(c, Case::Beside(_))).collect();
    if large.is_empty() {
        return;
    }
    println!("\n{:<32}{}", "GB/s", paths.iter().map(|(name, _)| format!("{name:>22}")).collect::<String>());
    for case in large {
        let cell = |times: Option<&Times>| match times.filter(|t| !t.is_empty()).and_then(|t| bandwidth(*case, t)) {
            Some(n) => format!("{n:>22.2}"),
            None => format!("{:>22}", "absent"),
        };
        println!("{:<32}{}", case.words(), paths.iter().map(|(_, times)| cell(times.get(case))).collect::<String>());
    }
}

/// Round trips of the controls.
pub(super) fn pings(ways: &BTreeMap<&str, Times>) {
    println!("\n{:<32}{:>12} {:>9}", "raw round trip of 64 B, us", "p50", "p99");
    for (way, times) in ways {
        let p = times.percentiles(1);
        let us = |key: &str| p[key].as_f64().unwrap_or(0.0) / 1e3;
        println!("{way:<32}{:>12.2} {:>9.2}", us("p50"), us("p99"));
    }
}

/// Heading of a row of copies, for the report.
pub(super) fn bandwidth(case: Case, times: &Times) -> Option<f64> {
    case.bytes().filter(|n| *n >= 1 << 20).map(|n| n as f64 / times.median())
}
