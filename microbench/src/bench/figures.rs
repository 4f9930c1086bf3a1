//! The benchmark's options and results.

use super::goals::Goal;
use super::table::Table;
use crate::error::Error;
use models::Sample;
use models::plot::{Plot, Series, draw};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

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
    /// What the report shows.
    pub(super) tables: Vec<Table>,
    pub(super) plots: Vec<PathBuf>,
}

impl Figures {
    /// Prints a table and keeps it for the report.
    pub(super) fn table(&mut self, table: Table) {
        print!("{}", table.text());
        self.tables.push(table);
    }

    /// Draws a plot into the directory and keeps it for the report; without points there is none.
    pub(super) fn plot(&mut self, out: &Path, name: &str, plot: &Plot<'_>, series: &[Series]) -> Result<(), Error> {
        if series.iter().all(|s| s.points.is_empty()) {
            return Ok(());
        }
        let path = out.join(format!("{name}.svg"));
        draw(&path, plot, series)?;
        self.plots.push(path);
        Ok(())
    }

    /// Records that something is unavailable; the first reason is kept.
    pub(super) fn miss(&mut self, what: &str, why: impl Display) {
        self.absent.entry(what.to_owned()).or_insert_with(|| why.to_string());
    }
}
