//! Which policies a job lets move it.

use std::str::FromStr;

/// The policies that a job can choose from. The others, `drain` and `yield`, serve an operator or another job.
const FOR_THE_JOB: [&str; 3] = ["home", "consolidate", "balance"];
/// None of them.
const NONE: &str = "none";

/// Those of `home`, `consolidate` and `balance` that may move a job. `drain` and `yield` move it in any case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice(Vec<&'static str>);

/// It names something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of {list}, separated by commas, or {NONE}", list = FOR_THE_JOB.join(", "))]
pub struct ChoiceError(String);

impl FromStr for Choice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Choice, ChoiceError> {
        if text == NONE {
            return Ok(Choice(Vec::new()));
        }
        let known = |name: &str| FOR_THE_JOB.into_iter().find(|known| *known == name).ok_or_else(|| ChoiceError(name.to_owned()));
        text.split(',').map(known).collect::<Result<_, _>>().map(Choice)
    }
}

impl Choice {
    /// Whether it contains the policy.
    pub(crate) fn contains(&self, policy: &str) -> bool {
        self.0.contains(&policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_a_list_of_policies_for_the_job() {
        let chosen = |text: &str| {
            text.parse::<Choice>().map(|choice| FOR_THE_JOB.map(|policy| choice.contains(policy))).map_err(|why| why.to_string())
        };
        assert_eq!(chosen("home"), Ok([true, false, false]));
        assert_eq!(chosen("balance,home"), Ok([true, false, true]));
        assert_eq!(chosen("none"), Ok([false; 3]));
        for wrong in ["", "drain", "yield", "home,", "home, balance", "none,home", "Home"] {
            assert!(chosen(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            chosen("home,drain"),
            Err("`drain` is none of home, consolidate, balance, separated by commas, or none".to_owned())
        );
    }
}
