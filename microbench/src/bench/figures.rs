//! What is asked of the benchmark, and what it has measured.

use super::goals::Goal;
use models::Sample;
use serde_json::Value;
use std::collections::BTreeMap;

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) quick: bool,
    pub(super) validation: bool,
    /// Seconds for the moves.
    pub(super) seconds: u64,
}

/// What was measured so far.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// The parts of the file that are for people, by name.
    pub(super) parts: serde_json::Map<String, Value>,
    /// What is not there, and why.
    pub(super) absent: BTreeMap<String, String>,
    pub(super) samples: Vec<Sample>,
    pub(super) goals: Vec<Goal>,
}

impl Figures {
    /// Notes that something is not there; the first reason counts.
    pub(super) fn miss(&mut self, what: &str, why: &str) {
        self.absent.entry(what.to_owned()).or_insert_with(|| why.to_owned());
    }
}
