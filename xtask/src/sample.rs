//! Which system tests a run leaves out: they take turns, so that [`TURNS`] consecutive seeds run all of them.
//!
//! The seed is the day unless it is given.

use ::tests::random::TURNS;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

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
        // Tests that take turns with each other, in the order of their names, so that each run has some of each module; the two of a
        // program run as far apart as they can. The turns of one test and the next are `apart` runs from each other.
        let mut groups: BTreeMap<&str, (usize, Vec<&'a str>)> = BTreeMap::new();
        for name in names {
            let Some((module, _)) = name.split_once("::") else { continue };
            let (group, apart) = match name.rsplit_once('_') {
                Some((program, "static" | "shared")) if module == PROGRAMS => (program, TURNS as usize / 2),
                _ => (module, 1),
            };
            groups.entry(group).or_insert((apart, Vec::new())).1.push(name);
        }
        let of_group = |(number, (apart, tests)): (u64, (usize, Vec<&'a str>))| {
            let at = (number..).step_by(apart);
            let out = move |at: u64| !at.wrapping_add(self.seed).is_multiple_of(TURNS);
            tests.into_iter().zip(at).filter(move |(_, at)| out(*at)).map(|(name, _)| name)
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
        for first in [0, 20_416, 20_417] {
            let mut seen = BTreeSet::new();
            for seed in first..first + TURNS {
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
    fn every_test_has_one_turn_and_the_two_of_a_program_are_as_far_apart_as_can_be() {
        let names = names();
        let run = |name: &str| -> Vec<u64> {
            (0..2 * TURNS).filter(|seed| !Sample::new(Some(*seed)).left_out(&names).contains(&name)).collect()
        };
        let (fixed, shared) = (run("programs::vecadd_static"), run("programs::vecadd_shared"));
        assert_eq!((fixed.len(), shared.len()), (2, 2), "{fixed:?} {shared:?}");
        assert!(fixed.iter().zip(&shared).all(|(one, other)| one.abs_diff(*other) == TURNS / 2), "{fixed:?} {shared:?}");
        assert!(names.iter().all(|name| run(name).len() == 2));
    }
}
