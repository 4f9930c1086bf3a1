//! Which system tests a run leaves out: the slow ones take turns, so that some consecutive seeds run all of them.
//!
//! The seed is the day unless it is given, so what today leaves out runs tomorrow or the day after.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Modules of `tests/system` whose tests take turns: one in so many runs.
const TURNS: [(&str, u64); 15] = [
    ("apps", 4),
    ("cancel", 3),
    ("conformance", 3),
    ("coverage", 3),
    ("crossings", 3),
    ("descriptors", 3),
    ("host_memory", 4),
    ("lost", 3),
    ("mix", 4),
    ("moves", 3),
    ("network", 3),
    ("order", 4),
    ("refusals", 4),
    ("repeated", 3),
    ("scheduler", 4),
];
/// The module with one test for each program and runtime library: `NAME_static` and `NAME_shared`.
const PROGRAMS: &str = "programs";

/// A choice among the system tests, the same for the same seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    seed: u64,
}

impl Sample {
    /// The choice of this seed, or of today.
    pub(crate) fn new(seed: Option<u64>) -> Sample {
        let today = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() / 86_400;
        Sample { seed: seed.unwrap_or_else(today) }
    }

    /// What it was made from.
    pub(crate) fn seed(self) -> u64 {
        self.seed
    }

    /// The tests among these that it leaves out.
    pub(crate) fn left_out<'a>(self, names: &'a [String]) -> Vec<&'a str> {
        // Tests that take turns with each other, in the order of their names; one in so many of them runs, or one of all.
        let mut groups: BTreeMap<&str, (Option<u64>, Vec<&'a str>)> = BTreeMap::new();
        for name in names {
            let Some((module, _)) = name.split_once("::") else { continue };
            let group = match name.rsplit_once('_') {
                Some((program, "static" | "shared")) if module == PROGRAMS => Some((program, None)),
                _ => TURNS.iter().find(|(of, _)| *of == module).map(|(of, turns)| (*of, Some(*turns))),
            };
            if let Some((group, turns)) = group {
                groups.entry(group).or_insert((turns, Vec::new())).1.push(name);
            }
        }
        let of_group = |(number, (turns, tests)): (u64, (Option<u64>, Vec<&'a str>))| {
            let turns = turns.unwrap_or(tests.len() as u64);
            tests.into_iter().zip(number..).filter(move |(_, at)| !(at + self.seed).is_multiple_of(turns)).map(|(name, _)| name)
        };
        (0..).zip(groups.into_values()).flat_map(of_group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn names() -> Vec<String> {
        let programs = ["vecadd_static", "vecadd_shared", "storm_static", "vecadd_with_the_runtime_of_cuda_11"]
            .map(|n| format!("programs::{n}"));
        let order = ["far", "near", "here", "helper"].map(|n| format!("order::{n}"));
        programs.into_iter().chain(order).chain(["trust::strangers".to_owned()]).collect()
    }

    #[test]
    fn a_seed_repeats_its_choice_and_consecutive_seeds_run_everything() {
        let names = names();
        let all: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let most = TURNS.iter().map(|(_, turns)| *turns).max().unwrap();
        for first in [0, 20_416, 20_417] {
            let mut seen = BTreeSet::new();
            for seed in first..first + most {
                let out = Sample::new(Some(seed)).left_out(&names);
                assert_eq!(out, Sample::new(Some(seed)).left_out(&names));
                assert!(!out.is_empty());
                let out: BTreeSet<&str> = out.into_iter().collect();
                seen.extend(all.difference(&out));
            }
            assert_eq!(seen, all);
        }
    }

    #[test]
    fn one_runtime_of_each_program_runs_and_what_takes_no_turns_always_does() {
        let names = names();
        for seed in 0..6 {
            let out = Sample::new(Some(seed)).left_out(&names);
            let runs = |name: &str| !out.contains(&name);
            assert!(runs("programs::vecadd_static") != runs("programs::vecadd_shared"), "seed {seed}: {out:?}");
            assert!(runs("programs::storm_static"), "it has no other one");
            assert!(runs("trust::strangers") && runs("programs::vecadd_with_the_runtime_of_cuda_11"), "seed {seed}: {out:?}");
        }
    }
}
