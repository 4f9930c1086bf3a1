//! The benchmark's options and results.

use super::goals::Goal;
use models::Sample;
use serde_json::Value;
use std::collections::BTreeMap;

/// The options.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) quick: bool,
    pub(super) validation: bool,
    /// Seconds for the moves.
    pub(super) seconds: u64,
}

/// The results so far.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// The parts of the file that are for people, by name.
    pub(super) parts: serde_json::Map<String, Value>,
    /// What is unavailable, and why.
    pub(super) absent: BTreeMap<String, String>,
    pub(super) samples: Vec<Sample>,
    pub(super) goals: Vec<Goal>,
}

impl Figures {
    /// Records that something is unavailable; the first reason is kept.
    pub(super) fn miss(&mut self, what: &str, why: &str) {
        self.absent.entry(what.to_owned()).or_insert_with(|| why.to_owned());
    }
}
