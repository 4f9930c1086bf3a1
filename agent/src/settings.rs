//! What an operator writes: a file in TOML (docs/agent.md).

use crate::choice::Choice;
use crate::policy::Policy;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::time::Duration;
use wildmatch::WildMatch;

/// The settings of an agent.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Servers whose GPUs the jobs may use, as in a place without its GPU.
    pub servers: Vec<String>,
    /// How many GPUs of this machine jobs may use in their own processes: `local:0` and so on.
    pub local_gpus: u32,
    /// How often the agent looks.
    #[serde(deserialize_with = "time")]
    pub every: Duration,
    /// How long a proposal must have been made, time after time, before it is carried out.
    #[serde(deserialize_with = "time")]
    pub settle: Duration,
    /// How long a job stays at a place after any move, of the agent or of somebody else.
    #[serde(deserialize_with = "time")]
    pub rest: Duration,
    /// Most moves that begin within a minute.
    pub moves_per_minute: u32,
    /// A move is abandoned rather than hold up calls for longer; `0s`: no limit.
    #[serde(deserialize_with = "time")]
    pub max_downtime: Duration,
    /// A move is abandoned if it has not been committed after so long.
    #[serde(deserialize_with = "time")]
    pub deadline: Duration,
    /// Memory in MiB that a GPU must have left when a job has arrived.
    pub reserve_mib: u64,
    /// How often Slurm is asked which nodes it drains.
    #[serde(deserialize_with = "time")]
    pub slurm_every: Duration,
    /// The names that Slurm has for the machines of servers; a server that is not among them is on the node with its host's name or address.
    pub slurm_nodes: BTreeMap<String, String>,
    /// What is known of jobs; the first rule that matches a job holds.
    #[serde(rename = "job")]
    pub jobs: Vec<JobRule>,
    /// The policies, in their order.
    #[serde(rename = "policy")]
    pub policies: Vec<Policy>,
}

/// A rule of the operator for some jobs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRule {
    /// Names of jobs; `*` is any text, `?` any character.
    pub name: String,
    /// The user whose jobs these are; none: any user. Users choose the names of their jobs.
    #[serde(default)]
    pub user: Option<String>,
    /// Larger numbers go first.
    #[serde(default)]
    pub priority: i32,
    /// Where these jobs belong: a place with its GPU.
    #[serde(default)]
    pub home: Option<String>,
    /// The policies that may move them, such as `home,balance`, or `none`.
    #[serde(default, deserialize_with = "choice")]
    pub policy: Option<Choice>,
    /// Whether the agent leaves them alone.
    #[serde(default)]
    pub leave: bool,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It is not TOML, or has unknown or wrong values.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// There is nothing to do.
    #[error("no [[policy]]: the agent would do nothing (docs/agent.md lists the policies)")]
    NoPolicy,
    /// Two policies that undo each other's moves.
    #[error("`consolidate` and `balance` undo each other: choose one")]
    Contrary,
    /// A policy without an object.
    #[error("`drain` needs `servers`, or `slurm = true`: it would do nothing")]
    DrainsNothing,
    /// A bound that must be positive is zero.
    #[error("`{0}` must be more than zero")]
    Zero(&'static str),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            servers: Vec::new(),
            local_gpus: 0,
            every: Duration::from_secs(5),
            settle: Duration::from_secs(10),
            rest: Duration::from_secs(60),
            moves_per_minute: 12,
            max_downtime: Duration::ZERO,
            deadline: Duration::from_secs(120),
            reserve_mib: 1024,
            slurm_every: Duration::from_secs(30),
            slurm_nodes: BTreeMap::new(),
            jobs: Vec::new(),
            policies: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads settings.
    ///
    /// # Errors
    /// See [`SettingsError`].
    pub fn read(text: &str) -> Result<Settings, SettingsError> {
        let settings: Settings = toml::from_str(text)?;
        let has = |policy: &Policy| settings.policies.iter().any(|p| std::mem::discriminant(p) == std::mem::discriminant(policy));
        if settings.policies.is_empty() {
            return Err(SettingsError::NoPolicy);
        }
        if has(&Policy::Consolidate) && has(&Policy::Balance) {
            return Err(SettingsError::Contrary);
        }
        if settings
            .policies
            .iter()
            .any(|policy| matches!(policy, Policy::Drain { servers, slurm: false, .. } if servers.is_empty()))
        {
            return Err(SettingsError::DrainsNothing);
        }
        let zero = [("every", settings.every.is_zero()), ("deadline", settings.deadline.is_zero())];
        let zero = zero.into_iter().chain([("moves_per_minute", settings.moves_per_minute == 0)]);
        match zero.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((name, _)) => Err(SettingsError::Zero(name)),
            None => Ok(settings),
        }
    }

    /// The rule that holds for a job of a user.
    pub fn rule(&self, name: &str, user: &str) -> Option<&JobRule> {
        let holds =
            |rule: &&JobRule| rule.user.as_deref().is_none_or(|of| of == user) && WildMatch::new(&rule.name).matches(name);
        self.jobs.iter().find(holds)
    }

    /// Memory in bytes that a GPU must have left.
    pub fn reserve(&self) -> u64 {
        self.reserve_mib.saturating_mul(1 << 20)
    }
}

/// A time like `500ms`, `5s`, `2m`.
fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text)
        .map_err(|why| serde::de::Error::custom(format!("`{text}` is not a time like 500ms, 5s or 2m: {why}")))
}

/// The policies that may move a job.
fn choice<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Choice>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_has_its_usual_value() {
        let settings = Settings::read("every = '500ms'\n[[policy]]\nkind = 'home'\n").expect("settings");
        assert_eq!(settings.every, Duration::from_millis(500));
        assert_eq!(Settings { every: Settings::default().every, policies: Vec::new(), ..settings }, Settings::default());
    }

    #[test]
    fn times_are_those_of_the_command_line_too() {
        let every =
            |text: &str| Settings::read(&format!("every = '{text}'\n[[policy]]\nkind = 'home'\n")).map(|it| it.every).ok();
        for (text, ms) in
            [("200ms", 200), ("1.5s", 1500), ("10m", 600_000), ("2min", 120_000), ("0.5h", 1_800_000), ("3d", 259_200_000)]
        {
            assert_eq!(every(text), Some(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let refused = |text: &str| Settings::read(text).expect_err(text).to_string();
        for (text, why) in [
            ("", "no [[policy]]"),
            ("[[policy]]\nkind = 'sleep'", "sleep"),
            ("frequency = '5s'\n[[policy]]\nkind = 'home'", "frequency"),
            ("every = '5'\n[[policy]]\nkind = 'home'", "500ms, 5s or 2m"),
            ("every = '0s'\n[[policy]]\nkind = 'home'", "`every`"),
            ("moves_per_minute = 0\n[[policy]]\nkind = 'home'", "`moves_per_minute`"),
            ("[[policy]]\nkind = 'balance'\n[[policy]]\nkind = 'consolidate'", "undo each other"),
            ("[[policy]]\nkind = 'drain'\npark = true", "`drain` needs `servers`"),
            ("[[job]]\npriority = 1\n[[policy]]\nkind = 'home'", "name"),
            ("[[job]]\nname = '*'\npolicy = 'yield'\n[[policy]]\nkind = 'home'", "`yield` is none of home"),
        ] {
            assert!(refused(text).contains(why), "{text}: {}", refused(text));
        }
    }

    #[test]
    fn the_first_rule_that_matches_holds() {
        let text = "[[policy]]\nkind = 'yield'\n[[job]]\nname = 'train-*'\nuser = 'ann'\npriority = 5\n[[job]]\nname = '*'\nleave = true";
        let settings = Settings::read(text).expect("settings");
        let rule = |name, user| settings.rule(name, user).map(|rule| (rule.priority, rule.leave));
        assert_eq!(rule("train-7", "ann"), Some((5, false)));
        assert_eq!((rule("train-7", "bob"), rule("other", "ann")), (Some((0, true)), Some((0, true))));
    }
}
