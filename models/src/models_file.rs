//! Model files: the result of [`crate::fit`] for one machine.

use crate::bench::Machine;
use crate::form;
use crate::limits::{self, ContentError, FileError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Kind of a model file.
pub const KIND: &str = "mrcuda-models";
/// Version of model files.
pub const VERSION: u64 = 1;
/// Maximum length of a file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of models of a file.
const MAX_MODELS: usize = 1024;
/// Maximum cost of one unit, in seconds.
const MAX_UNIT_COST: f64 = 1e6;

/// The model of one overhead on one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Which overhead: the name of a [`form::Form`].
    pub what: String,
    /// Its path.
    pub path: String,
    /// Seconds per unit of each quantity.
    pub terms: BTreeMap<String, f64>,
    /// Number of samples that it was fitted to.
    pub samples: u64,
    /// Smallest and largest amount of each quantity among them.
    pub range: BTreeMap<String, [f64; 2]>,
}

impl Model {
    /// Seconds for these amounts; missing quantities are 0.
    pub fn seconds(&self, amount: impl Fn(&str) -> f64) -> f64 {
        self.terms.iter().map(|(term, cost)| cost * if term == "once" { 1.0 } else { amount(term) }).sum()
    }

    /// Seconds per unit of a quantity; 0 if the overhead does not depend on it.
    pub fn cost(&self, term: &str) -> f64 {
        self.terms.get(term).copied().unwrap_or(0.0)
    }

    /// Whether amounts are far outside of the range that the model was fitted to.
    pub fn is_far(&self, amount: impl Fn(&str) -> f64) -> bool {
        self.range.iter().any(|(term, [_, high])| self.cost(term) > 0.0 && amount(term) > 2.0 * high)
    }

    fn check(&self) -> Result<(), ContentError> {
        let form = form::of(&self.what).ok_or_else(|| ContentError::Overhead(self.what.clone()))?;
        limits::name(&self.path, "the path of a model")?;
        if let Some(odd) = self.terms.keys().chain(self.range.keys()).find(|t| !form.terms.contains(&t.as_str())) {
            return Err(ContentError::Term { overhead: form.what, term: odd.clone() });
        }
        for (term, cost) in &self.terms {
            if !(0.0..=MAX_UNIT_COST).contains(cost) {
                return Err(ContentError::Cost { overhead: form.what, term: term.clone(), cost: *cost });
            }
        }
        self.range.values().flatten().try_for_each(|n| limits::figure(*n, "a quantity"))
    }
}

/// The models of one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    kind: String,
    v: u64,
    /// The measured machine.
    pub machine: Machine,
    /// The models.
    pub models: Vec<Model>,
}

/// Models that come with the program (docs/models.md says where they were measured).
const BUILTIN: &str = include_str!("builtin.json");

impl Models {
    /// Models of a machine.
    pub fn new(machine: Machine, models: Vec<Model>) -> Models {
        Models { kind: KIND.to_owned(), v: VERSION, machine, models }
    }

    /// The built-in models, which are in all likelihood of another machine than the user's.
    ///
    /// # Panics
    /// Never: a test reads them.
    pub fn builtin() -> Models {
        serde_json::from_str(BUILTIN).expect("the file in the program is right")
    }

    /// The model of an overhead on a path.
    pub fn find(&self, what: &str, path: &str) -> Option<&Model> {
        self.models.iter().find(|m| m.what == what && m.path == path)
    }

    /// Reads a file and checks all of it.
    ///
    /// # Errors
    /// It is not a model file, has another version, or holds invalid values.
    pub fn read(path: &Path) -> Result<Models, FileError> {
        let models: Models = limits::read(path, MAX_FILE_BYTES)?;
        models.check().map_err(|why| limits::content(path, why))?;
        Ok(models)
    }

    /// Writes a file atomically.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        let io = |source| FileError::Io { path: path.to_owned(), source };
        let text = serde_json::to_string_pretty(self).map_err(|e| io(e.into()))?;
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}.new", std::process::id()));
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(io)?;
        }
        std::fs::write(&draft, text + "\n").and_then(|()| std::fs::rename(&draft, path)).map_err(io)
    }

    fn check(&self) -> Result<(), ContentError> {
        limits::heading(&self.kind, self.v, KIND, VERSION)?;
        self.machine.check()?;
        if self.models.len() > MAX_MODELS {
            return Err(ContentError::TooMany { limit: MAX_MODELS, what: "models" });
        }
        let mut seen = BTreeSet::new();
        for model in &self.models {
            model.check()?;
            if !seen.insert((&model.what, &model.path)) {
                return Err(ContentError::TwoModels { overhead: model.what.clone(), path: model.path.clone() });
            }
        }
        Ok(())
    }
}
