//! Goals, compared with the results.

use super::table::Table;
use serde_json::{Value, json};

/// A goal and how it was met.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Goal {
    what: String,
    unit: &'static str,
    limit: f64,
    measured: f64,
    /// More is better.
    at_least: bool,
}

impl Goal {
    pub(super) fn at_most(what: impl Into<String>, measured: f64, limit: f64, unit: &'static str) -> Goal {
        Goal { what: what.into(), unit, limit, measured, at_least: false }
    }

    pub(super) fn at_least(what: impl Into<String>, measured: f64, limit: f64, unit: &'static str) -> Goal {
        Goal { what: what.into(), unit, limit, measured, at_least: true }
    }

    fn is_met(&self) -> bool {
        if self.at_least { self.measured >= self.limit } else { self.measured <= self.limit }
    }

    pub(super) fn json(&self) -> Value {
        json!({"what": self.what, "unit": self.unit, "limit": self.limit, "measured": self.measured,
            "at_least": self.at_least, "met": self.is_met()})
    }
}

/// The table of goals, if there are any.
pub(super) fn table(goals: &[Goal]) -> Option<Table> {
    let mut table = Table::new("Goals", ["goal", "measured", "wanted", ""]);
    for g in goals {
        let sign = if g.at_least { ">=" } else { "<=" };
        table.row([
            g.what.clone(),
            format!("{:.3} {}", g.measured, g.unit),
            format!("{sign} {}", g.limit),
            if g.is_met() { "met" } else { "NOT met" }.to_owned(),
        ]);
    }
    (!goals.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::Goal;

    #[test]
    fn both_directions() {
        assert!(Goal::at_most("x", 0.1, 0.1, "us").is_met() && !Goal::at_most("x", 0.2, 0.1, "us").is_met());
        assert!(Goal::at_least("x", 61.0, 60.0, "%").is_met() && !Goal::at_least("x", 59.0, 60.0, "%").is_met());
    }
}
