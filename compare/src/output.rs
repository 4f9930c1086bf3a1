//! Decides whether an output equals the native one.

use regex_lite::Regex;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Matches lines with a duration, a speed or an amount of free memory, in which numbers are masked.
pub const MEASURE: &str = r"(?i)\btime|elapsed|ms\b|msec|usec|\bus\b|\bsec\b|seconds|[GMK]i?B/s|/sec|/s\b|flop|bandwidth|throughput|iterations while|memcopy:|kernel:|streamed:|speed|clocks|lshmname|average|latency|\bfree\b.*bytes";

static MEASURES: LazyLock<Regex> = LazyLock::new(|| pattern(MEASURE));
static NUMBER: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)[-+]?\d+(\.\d+)?(e[-+]?\d+)?"));
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)0x[0-9a-f]+"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|e| unreachable!("the pattern {text} is well formed: {e}"))
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// With this exit status.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was killed at its time limit.
    Hung,
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Code(code) => write!(f, "exit status {code}"),
            Ending::Signal(signal) => write!(f, "signal {signal}"),
            Ending::Hung => write!(f, "no end within its limit"),
        }
    }
}

/// How a run compares with native ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is the same.
    Same,
    /// Its lines come in another order.
    Order,
    /// The native runs vary, and this one differs from them in its numbers only.
    Numbers,
    /// Any other difference, described by the text.
    Wrong(String),
}

impl Verdict {
    /// Whether it counts as native.
    pub fn as_native(&self) -> bool {
        !matches!(self, Verdict::Wrong(_))
    }

    /// One word for a table.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Same => "ok",
            Verdict::Order => "order",
            Verdict::Numbers => "numbers",
            Verdict::Wrong(_) => "WRONG",
        }
    }
}

/// The common part of two native runs.
#[derive(Debug)]
pub struct Expected {
    /// Their exit status.
    pub ending: Ending,
    lines: Vec<String>,
    /// Lines that both have, with their counts.
    common: BTreeMap<String, usize>,
    /// Whether their outputs are equal.
    pub stable: bool,
    /// Lines that are not compared.
    pub varying: usize,
}

impl Expected {
    /// From two native runs.
    pub fn new(ending: Ending, first: &str, second: &str) -> Expected {
        let (lines, other) = (masked(first), masked(second));
        let (counts, others) = (count(&lines), count(&other));
        let common: BTreeMap<String, usize> =
            counts.iter().filter_map(|(line, n)| Some((line.clone(), *n.min(others.get(line)?)))).collect();
        let varying = lines.len().max(other.len()) - common.values().sum::<usize>();
        Expected { ending, stable: lines == other, lines, common, varying }
    }

    /// Compares another run; `words` is its stderr.
    pub fn compare(&self, ending: Ending, out: &str, words: &str) -> Verdict {
        if ending != self.ending {
            let last = |text: &str| text.trim().lines().next_back().map(|line| line.chars().take(160).collect::<String>());
            let last = last(words).or_else(|| last(out)).unwrap_or_default();
            return Verdict::Wrong(format!("{ending} instead of {}: {last}", self.ending));
        }
        let lines = masked(out);
        let counts = count(&lines);
        if self.stable {
            if lines == self.lines {
                return Verdict::Same;
            }
            if counts == count(&self.lines) {
                return Verdict::Order;
            }
            let end = || std::iter::once("(nothing)".to_owned());
            let differ = lines.iter().cloned().chain(end()).zip(self.lines.iter().cloned().chain(end())).find(|(a, b)| a != b);
            let (have, want) = differ.unwrap_or_default();
            return Verdict::Wrong(format!("`{have}` instead of `{want}`"));
        }
        let Some(missing) = self.common.iter().find(|(line, n)| counts.get(*line).is_none_or(|have| have < n)) else {
            return Verdict::Same;
        };
        let bare =
            |lines: &[String]| count(&lines.iter().map(|line| NUMBER.replace_all(line, "#").into_owned()).collect::<Vec<_>>());
        if bare(&lines) == bare(&self.lines) { Verdict::Numbers } else { Verdict::Wrong(format!("`{}` is missing", missing.0)) }
    }
}

/// The lines with variable parts masked.
fn masked(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| {
            let line = ADDRESS.replace_all(line.trim_end(), "ADDRESS");
            if MEASURES.is_match(&line) { NUMBER.replace_all(&line, "#").into_owned() } else { line.into_owned() }
        })
        .collect()
}

fn count(lines: &[String]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines {
        *counts.entry(line.clone()).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Ending = Ending::Code(0);

    #[test]
    fn times_and_addresses_do_not_count() {
        let expected = Expected::new(END, "sum 3\nTime: 1.5e-3 ms\nat 0x7f00\n", "sum 3\nTime: 2 ms\nat 0x7e00\n");
        assert!(expected.stable && expected.varying == 0);
        assert_eq!(expected.compare(END, "sum 3\nTime: 70 ms\nat 0x1\n", ""), Verdict::Same);
        assert_eq!(expected.compare(END, "Time: 70 ms\nsum 3\nat 0x1\n", ""), Verdict::Order);
        assert_eq!(
            expected.compare(END, "sum 4\nTime: 70 ms\nat 0x1\n", ""),
            Verdict::Wrong("`sum 4` instead of `sum 3`".into())
        );
        assert_eq!(expected.compare(END, "sum 3\n", ""), Verdict::Wrong("`(nothing)` instead of `Time: # ms`".into()));
    }

    #[test]
    fn what_varies_natively_is_not_compared() {
        let expected = Expected::new(END, "pi 3\nrandom 17\n", "pi 3\nrandom 4\n");
        assert!(!expected.stable && expected.varying == 1);
        assert_eq!(expected.compare(END, "pi 3\nrandom 99\n", ""), Verdict::Same);
        assert_eq!(expected.compare(END, "pi 4\nrandom 99\n", ""), Verdict::Numbers);
        assert_eq!(expected.compare(END, "random 99\n", ""), Verdict::Wrong("`pi 3` is missing".into()));
    }

    #[test]
    fn the_end_counts() {
        let expected = Expected::new(END, "a\n", "a\n");
        let wrong = expected.compare(Ending::Signal(11), "a\n", "first\nsecond\n");
        assert_eq!(wrong, Verdict::Wrong("signal 11 instead of exit status 0: second".into()));
        assert!(!wrong.as_native() && !expected.compare(Ending::Hung, "a\n", "").as_native());
        // A program that fails natively must fail the same way.
        let failing = Expected::new(Ending::Code(3), "a\n", "a\n");
        assert_eq!(failing.compare(Ending::Code(3), "a\n", ""), Verdict::Same);
    }
}
